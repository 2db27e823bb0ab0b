"""Predictions as a mapping, a table or a list of records: the same numbers, arguments left alone, clear errors."""

import copy
import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.data.tricd.pairs import SUBSETS, Tricd
from qgcam_lib.errors import ExampleError
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.matching import descending, find_phrases
from qgcam_lib.phrase_detection.prediction_files import synthetic_predictions, synthetic_tricd
from qgcam_lib.phrase_detection.predictions import pack

CORNERS = ["x0", "y0", "x1", "y1"]


def quarters(boxes):
    "Coordinates on a grid of quarters, where x + width is exact."
    return np.round(np.asarray(boxes, float).reshape(-1, 4) * 4) / 4


@pytest.fixture(scope="module")
def example():
    data = synthetic_tricd(9, seed=0, subsets=SUBSETS)
    predictions = {id: {**entry, "boxes": quarters(entry["boxes"]).tolist()}
                   for id, entry in synthetic_predictions(data, seed=1).items()}
    return data, predictions


def as_table(predictions):
    rows = [(id, phrase, score, *box) for id, entry in predictions.items()
            for score, box, phrase in zip(entry["scores"], entry["boxes"], entry["phrase_ids"])]
    table = pd.DataFrame(rows, columns=["image_id", "phrase_id", "score", *CORNERS])
    return table.astype({"image_id": np.int64, "phrase_id": np.int64, "score": float})


def as_records(table):
    return [{"image_id": int(row.image_id), "phrase_id": int(row.phrase_id), "category_id": 1, "score": row.score,
             "bbox": [row.x0, row.y0, row.x1 - row.x0, row.y1 - row.y0]} for row in table.itertuples()]


def all_forms(predictions, rng=None):
    table = as_table(predictions)
    mixed = table.sample(frac=1, random_state=rng) if rng is not None else table
    return {
        "str keys": {str(id): entry for id, entry in predictions.items()},
        "arrays": {id: {"scores": np.array(e["scores"]), "boxes": quarters(e["boxes"]),
                        "phrase_ids": np.array(e["phrase_ids"], int)} for id, e in predictions.items()},
        "table": mixed,
        "boxes in one column": mixed.drop(columns=CORNERS).assign(box=mixed[CORNERS].to_numpy().tolist()),
        "tuples in one column": mixed.drop(columns=CORNERS).assign(box=list(map(tuple, mixed[CORNERS].to_numpy()))),
        "ids as text": mixed.assign(image_id=mixed.image_id.astype(str)),
        "nullable": mixed.convert_dtypes(),
        "other columns": mixed.assign(model="a", category_id=None),
        "records": as_records(mixed),
        "JSON": json.loads(json.dumps(as_records(mixed))),
    }


def test_every_form_gives_the_same_table(example):
    data, predictions = example
    plain = evaluate(data, predictions, n_bootstrap=5)
    assert 0.1 < plain.value[0] < 0.9
    for name, form in all_forms(predictions).items():
        pd.testing.assert_frame_equal(plain, evaluate(data, form, n_bootstrap=5), obj=name)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_order_of_rows_changes_nothing(example, seed):
    data, predictions = example
    plain = evaluate(data, predictions)
    for name, form in all_forms(predictions, np.random.RandomState(seed)).items():
        pd.testing.assert_frame_equal(plain, evaluate(data, form), obj=name)


def test_arguments_stay_as_they_were(example):
    data, predictions = example
    for form in all_forms(predictions).values():
        before = copy.deepcopy(form)
        evaluate(data, form)
        if isinstance(form, pd.DataFrame):
            pd.testing.assert_frame_equal(form, before)
        else:
            assert str(form) == str(before)


def test_equal_scores_keep_the_order_given(example):
    data, _ = example
    pair = next(pair for pair in data.pairs if pair.positive)
    phrase = pair.phrases[0]
    rows = [[0, 0, 1, 1], phrase.boxes[0]]
    for boxes, expected in ((rows, 0.0), (rows[::-1], 1.0)):
        table = pd.DataFrame({"image_id": pair.id, "phrase_id": phrase.id, "score": 0.5, "box": boxes})
        found = evaluate(data, table, recall_at=(1,), metrics=("recall",), subsets=("all",))
        assert found.value[0] * found.n[0] == pytest.approx(expected)


# --- what is malformed -----------------------------------------------------------------------------------------------

def broken_table(table, column, value, row=3):
    values = table[column].astype(object).tolist()
    values[row] = value
    return table.assign(**{column: values})


@pytest.mark.parametrize("column, value", [
    ("image_id", 999), ("image_id", "x"), ("image_id", None), ("image_id", 2**70), ("phrase_id", 999),
    ("phrase_id", 1.5), ("score", float("nan")), ("score", pd.NA), ("score", float("inf")), ("score", [0.5]),
    ("x0", 1e6), ("y1", float("nan")), ("box", [0, 0, 5]), ("box", None), ("box", "0 0 5 5"), ("box", [9, 0, 5, 5]),
    ("box", [0, 0, 5, float("nan")]),
])
def test_bad_tables(example, column, value):
    data, predictions = example
    table = as_table(predictions)
    table = table.assign(box=table[CORNERS].to_numpy().tolist()) if column == "box" else table
    with pytest.raises(ExampleError, match="row 4"):
        evaluate(data, broken_table(table, column, value))


def test_missing_columns_and_empty_tables(example):
    data, predictions = example
    table = as_table(predictions)
    for lost in table:
        with pytest.raises(ExampleError, match=lost):
            evaluate(data, table.drop(columns=lost))
    for nothing in (table.iloc[:0], pd.DataFrame({name: [] for name in table}), [], ()):
        assert (evaluate(data, nothing).value == 0).all()
    empty = Tricd(())
    assert evaluate(empty, table.iloc[:0]).value.isna().all()
    with pytest.raises(ExampleError, match="row 1, image.*one of the 0 pairs"):
        evaluate(empty, table)


@pytest.mark.parametrize("change", [
    3, {"image_id": 999}, {"image_id": None}, {"phrase_id": -5}, {"score": float("nan")}, {"score": None},
    {"bbox": [1, 2, 3]}, {"bbox": [0, 0, -1, 5]}, {"bbox": "0 0 1 1"}, {"bbox": [0, 0, 5, float("nan")]},
])
def test_bad_records(example, change):
    data, predictions = example
    records = as_records(as_table(predictions))
    records[2] = {**records[2], **change} if isinstance(change, dict) else change
    with pytest.raises(ExampleError, match="row 3"):
        evaluate(data, records)
    del records[2]
    del records[2]["score"]
    with pytest.raises(ExampleError, match="row 3.*score"):
        evaluate(data, records)


# --- the pieces ------------------------------------------------------------------------------------------------------

@settings(max_examples=60, deadline=None)
@given(scores=st.lists(st.sampled_from([0.0, -0.0, 0.25, 0.5, -1.0, 1e-300]), max_size=30), seed=st.integers(0, 9))
def test_the_order_is_a_stable_one(scores, seed):
    score = np.array(scores)
    assert descending(score).tolist() == sorted(range(len(scores)), key=lambda k: -scores[k])
    late = np.random.default_rng(seed).random(len(scores)) < 0.5
    assert descending(score, late).tolist() == sorted(range(len(scores)), key=lambda k: (-scores[k], late[k]))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_phrases_are_found_within_their_pair(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, 5)
    starts = np.r_[0, sizes.cumsum()]
    ids = np.concatenate([rng.permutation(5)[:size] for size in sizes]).astype(np.int64)
    pair, asked = rng.integers(0, 5, 30), rng.integers(-1, 6, 30)
    known = [next((q for q in range(starts[p], starts[p + 1]) if ids[q] == a), -1) for p, a in zip(pair, asked)]
    assert find_phrases(pair, asked, starts, ids).tolist() == known


def test_pack_keeps_what_was_given(example):
    data, predictions = example
    packed = pack(data, all_forms(predictions)["table"])
    assert (np.diff(packed.pair) >= 0).all() and len(packed.pair) == len(as_table(predictions))
    ids = data.phrase_ids[packed.phrase]
    rows = sorted(zip(data.pair_ids[packed.pair].tolist(), ids.tolist(), packed.score.tolist()))
    assert rows == sorted(as_table(predictions)[["image_id", "phrase_id", "score"]].itertuples(index=False, name=None))


def test_what_other_libraries_hold_is_read_too(example):
    data, _ = example
    pair = data.pairs[0]
    id, phrase = pair.id, pair.phrases[0].id
    columns = {"scores": [0.5], "boxes": [[0.0, 0.0, 5.0, 5.0]], "phrase_ids": [phrase]}
    sized = pd.DataFrame({"image_id": [str(id)], "phrase_id": phrase, "score": 0.5, "x": 0, "y": 0, "w": 5, "h": 5})
    forms = [columns, {name: torch.tensor(value) for name, value in columns.items()},
             {name: pd.Series(value) for name, value in columns.items()}]
    for form in (*({np.int64(id): entry} for entry in forms), sized):
        packed = pack(data, form)
        assert packed.boxes.tolist() == [[0, 0, 5, 5]] and packed.named.tolist() == [0]
    with pytest.raises(ExampleError, match=f"row 2.*pair {id} occurs twice"):
        pack(data, pd.concat([sized.assign(image_id=id).astype({"image_id": object}), sized], ignore_index=True))
