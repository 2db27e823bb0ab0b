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
from qgcam_lib.phrase_detection.predictions import pack
from qgcam_lib.phrase_detection.score import match_predictions
from qgcam_lib.phrase_detection.synthetic import synthetic_predictions, synthetic_tricd

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


@pytest.mark.parametrize("column, value, text", [
    ("image_id", 999, "row 3, image 999.*not among the 36 pairs"), ("image_id", -1, "row 3, image -1.*not among"),
    ("image_id", "x", "row 3.*image_id: expected a whole number, got 'x'"),
    ("image_id", 1.5, "row 3.*image_id: expected a whole number, got 1.5"),
    ("image_id", None, "row 3.*image_id: expected a whole number"),
    ("image_id", 2**70, "row 3.*image_id: expected a whole number of at most 63 bits"),
    ("phrase_id", 999, "row 3, image.*id 999 is not a phrase of pair"),
    ("phrase_id", "7", "row 3.*phrase_id: expected a whole number, got '7'"),
    ("phrase_id", True, "row 3.*phrase_id: expected a whole number, got True"),
    ("score", "0.5", "row 3.*score: expected a finite number, got '0.5'"),
    ("score", float("nan"), "row 3.*score"), ("score", pd.NA, "row 3.*score: expected a finite number, got <NA>"),
    ("score", float("inf"), "row 3.*score"), ("score", [0.5], r"row 3.*score: expected a finite number, got \[0.5\]"),
    ("x0", 1e6, "row 3, image.*x0 <= x1"), ("y1", float("nan"), "row 3.*y1: expected"),
    ("x1", "12", "row 3.*x0, y0, x1, y1: expected four finite numbers.*'12'"),
])
def test_bad_tables(example, column, value, text):
    data, predictions = example
    with pytest.raises(ExampleError, match=text):
        evaluate(data, broken_table(as_table(predictions), column, value))


@pytest.mark.parametrize("box, text", [
    ([0, 0, 5], r"row 3.*box: expected four finite numbers, got \[0, 0, 5\]"),
    (None, "row 3.*four finite numbers, got None"),
    ("0 0 5 5", "row 3.*four finite numbers"), ([0, 0, 5, "5"], "row 3.*four finite numbers"),
    ([0, 0, 5, True], "row 3.*four finite"),
    ([9, 0, 5, 5], "row 3, image.*x0 <= x1"), ([0, 0, 5, float("nan")], "row 3, image.*finite"),
])
def test_bad_boxes_in_one_column(example, box, text):
    data, predictions = example
    table = as_table(predictions)
    boxes = table[CORNERS].to_numpy().tolist()
    boxes[3] = box
    with pytest.raises(ExampleError, match=text):
        evaluate(data, table.assign(box=boxes))


def test_float_columns_are_no_ids(example):
    data, predictions = example
    table = as_table(predictions)
    with pytest.raises(ExampleError, match="row 0.*phrase_id: expected a whole number, got"):
        evaluate(data, table.assign(phrase_id=table.phrase_id.astype(float)))
    gap = table.assign(phrase_id=table.phrase_id.where(table.index != 5).astype(float))
    with pytest.raises(ExampleError, match="row 5.*phrase_id: expected a whole number, got nan"):
        evaluate(data, gap)
    named = table.set_index(pd.Index([f"box {k}" for k in range(len(table))]))
    with pytest.raises(ExampleError, match="row 'box 3'"):
        evaluate(data, broken_table(named, "score", "high"))


def test_missing_columns_and_empty_tables(example):
    data, predictions = example
    table = as_table(predictions)
    for lost in table:
        with pytest.raises(ExampleError, match=f"without {lost}"):
            evaluate(data, table.drop(columns=lost))
    with pytest.raises(ExampleError, match="each once"):
        evaluate(data, pd.concat([table, table[["score"]]], axis=1))
    for nothing in (table.iloc[:0], pd.DataFrame({name: [] for name in table}), [], ()):
        assert (evaluate(data, nothing).value == 0).all()
    empty = Tricd(())
    assert evaluate(empty, table.iloc[:0]).value.isna().all()
    with pytest.raises(ExampleError, match="row 0, image.*not among the 0 pairs"):
        evaluate(empty, table)


@pytest.mark.parametrize("change, text", [
    (3, "record 2.*got int"), ({"image_id": 999}, "record 2, image 999.*not among"),
    ({"image_id": None}, "record 2.*image_id: expected a whole number, got None"),
    ({"phrase_id": -5}, "record 2, image.*id -5 is not a phrase"), ({"phrase_id": "3"}, "record 2.*phrase_id.*'3'"),
    ({"score": "0.5"}, "record 2.*score: expected a finite number, got '0.5'"),
    ({"score": True}, "record 2.*score.*True"),
    ({"score": float("nan")}, "record 2, image.*finite"), ({"score": None}, "record 2.*score"),
    ({"bbox": [1, 2, 3]}, r"record 2.*bbox: expected four finite numbers, got \[1, 2, 3\]"),
    ({"bbox": [0, 0, -1, 5]}, "record 2, image.*width and height"), ({"bbox": "0 0 1 1"}, "record 2.*bbox"),
    ({"bbox": [0, 0, 5, float("nan")]}, "record 2, image.*finite"), ({"bbox": [0, 0, 5, "5"]}, "record 2.*bbox"),
])
def test_bad_records(example, change, text):
    data, predictions = example
    records = as_records(as_table(predictions))
    records[2] = {**records[2], **change} if isinstance(change, dict) else change
    with pytest.raises(ExampleError, match=text):
        evaluate(data, records)


@pytest.mark.parametrize("key", ["image_id", "phrase_id", "bbox", "score"])
def test_missing_keys(example, key):
    data, predictions = example
    records = as_records(as_table(predictions))
    del records[4][key]
    with pytest.raises(ExampleError, match=f"record 4.*{key} is missing"):
        evaluate(data, records)


# --- many boxes ------------------------------------------------------------------------------------------------------

@pytest.mark.nightly
def test_a_million_boxes_in_one_pair(example):
    data, _ = example
    pair = next(pair for pair in data.pairs if pair.positive)
    n, phrase, rng = 1_000_000, pair.phrases[0], np.random.default_rng(0)
    corner = rng.random((n, 2)) * 300
    entry = {"scores": rng.random(n), "boxes": np.hstack([corner, corner + 20]), "phrase_ids": np.full(n, phrase.id)}
    entry["boxes"][n // 2], entry["scores"][n // 2] = phrase.boxes[0], 2.0  # the best box is right
    matches = match_predictions(data, {pair.id: entry})
    assert matches.n_cut == n - 100 and matches.rank[matches.phrase[0]] == 0
    best = np.argsort(-entry["scores"])[:100]
    few = {name: column[best] for name, column in entry.items()}
    cut, found = (evaluate(data, {pair.id: e}).set_index(["metric", "subset"]) for e in (few, entry))
    assert found.value["AP", "all"] == cut.value["AP", "all"] > 0
    assert found.note["AP", "all"].startswith("999900 boxes beyond the 100 best")
    for wrong in (np.nan, np.inf):
        entry["scores"][-1] = wrong
        with pytest.raises(ExampleError, match="image .*, box 999999"):
            evaluate(data, {pair.id: entry})


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
    with pytest.raises(ExampleError, match=f"row 1.*pair {id} stands twice"):
        pack(data, pd.concat([sized.assign(image_id=id).astype({"image_id": object}), sized], ignore_index=True))
