"""What the scores of TRICD rest on: counted against slow loops, shown beside the score; boxes that look misread."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.cli.main import main
from qgcam_lib.data.tricd.pairs import Tricd, load_tricd, tricd_content
from qgcam_lib.errors import ExampleError, SuspiciousInput
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.score import match_predictions
from qgcam_lib.phrase_detection.synthetic import coarse_scores, synthetic_predictions, synthetic_tricd


def case(seed=0, digits=1, groups=8):
    data = synthetic_tricd(groups, seed)
    return data, coarse_scores(synthetic_predictions(data, seed), digits)


def rankings(data, predictions):
    """{phrase of a true pair, or one that takes part in no ranking: [(score, is the pair true, box, truth)]}"""
    found, place = {}, {pair.id: p for p, pair in enumerate(data.pairs)}
    for id, entry in predictions.items():
        phrases = {data.phrases[q].id: q for q in np.flatnonzero(data.phrase_pairs == place[int(id)]).tolist()}
        for score, box, phrase in zip(entry["scores"], entry["boxes"], entry["phrase_ids"]):
            q = phrases[phrase]
            key = int(data.rival_of[q]) if data.rival_of[q] >= 0 else q
            found.setdefault(key, []).append((score, bool(data.positive[place[int(id)]]), box))
    return found


def overlap(a, b):
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if w <= 0 or h <= 0:
        return 0.0
    return w * h / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h)


def literal_group_recall(data, predictions, k, true_first):
    """The mean over true phrases with a partner: does a box on the true picture hit among the k best of both?"""
    ranked, hits = rankings(data, predictions), []
    for q in np.flatnonzero(data.has_rival & data.positive[data.phrase_pairs]).tolist():
        if data.phrases[q].boxes:
            order = sorted(ranked.get(q, []), key=lambda row: (-row[0], row[1] != true_first))
            hits.append(any(true and max(overlap(box, truth) for truth in data.phrases[q].boxes) >= 0.5
                            for _, true, box in order[:k]))
    return np.mean(hits)


@given(st.integers(0, 99), st.sampled_from([0, 1, 2]))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_counts_and_the_pessimistic_value_are_those_of_a_slow_loop(seed, digits):
    data, predictions = case(seed, digits)
    predictions = {id: entry for id, entry in predictions.items() if id % 7}
    table = evaluate(data, predictions, recall_at=(1, 3), subsets=("all",)).set_index("metric")
    counts, ranked = match_predictions(data, predictions).counts, rankings(data, predictions)
    assert table.attrs["input"] == counts
    scores = [[row[0] for row in rows] for rows in ranked.values()]
    assert counts["tied"] == sum(row.count(value) > 1 for row in scores for value in row)
    given_ = {(id, q) for id, entry in predictions.items() for q in entry["phrase_ids"]}
    assert counts["boxes"] == sum(len(entry["scores"]) for entry in predictions.values())
    assert counts["pairs_without"] == len(data) - len({id for id, _ in given_})
    assert counts["phrases_without"] == len(data.phrases) - len(given_)
    for k in (1, 3):
        row = table.loc[f"group_recall@{k}"]
        best, worst = (literal_group_recall(data, predictions, k, first) for first in (True, False))
        assert np.isclose(row["value"], best) and np.isnan(row["pessimistic"]) == np.isclose(best, worst)
        assert np.isclose(best, worst) or np.isclose(row["pessimistic"], worst) and "decided by ties" in row["note"]
        assert np.isclose(evaluate(data, predictions, recall_at=(k,), ties="pessimistic", metrics=("group_recall",),
                                   subsets=("all",))["value"][0], worst)
    assert table.loc[["AP", "recall@1"], "pessimistic"].isna().all()


def test_all_scores_equal_gives_one_and_zero_beside_it():
    data = synthetic_tricd(6, 0)
    boxes = {pair.id: [phrase.boxes[0] if phrase.boxes else (0.0, 0.0, 50.0, 50.0) for phrase in pair.phrases]
             for pair in data.pairs}
    predictions = {pair.id: {"scores": [1.0] * len(pair.phrases), "boxes": [list(b) for b in boxes[pair.id]],
                             "phrase_ids": [p.id for p in pair.phrases]} for pair in data.pairs}
    row = evaluate(data, predictions, subsets=("all",)).set_index("metric").loc["group_recall@1"]
    assert row["value"] == 1.0 and row["pessimistic"] == 0.0 and row["note"] == "decided by ties"


def test_empty_pairs_and_phrases_stand_in_each_row():
    data, predictions = case(3, 2)
    gone = [pair.id for pair in data.pairs if pair.positive][:2]
    table = evaluate(data, {id: entry for id, entry in predictions.items() if id not in gone}, subsets=("all",))
    found = table.set_index("metric")["n_empty"]
    there = match_predictions(data, {id: entry for id, entry in predictions.items() if id not in gone})
    empty = there.empty_phrases & data.positive[data.phrase_pairs]
    assert found["AP"] == 2 + sum(not predictions[pair.id]["scores"] for pair in data.pairs if pair.id not in gone)
    assert found["recall@1"] == empty.sum() >= 2


def test_boxes_beside_their_picture_are_counted():
    data, predictions = case(0, 2)
    first = next(iter(predictions))
    entry = {**predictions[first], "boxes": [[-9, -9, -1, -1], [700, 5, 800, 9], [5, 5, 5, 9], [-9, 5, 90, 90]],
             "scores": [.9, .8, .7, .6], "phrase_ids": predictions[first]["phrase_ids"][:1] * 4}
    counts = match_predictions(data, {first: entry}).counts
    assert (counts["outside"], counts["no_area"], counts["stick_out"]) == (2, 1, 1)


def scaled(predictions, by):
    return {id: {**entry, "boxes": [list(np.multiply(box, by)) for box in entry["boxes"]]}
            for id, entry in predictions.items()}


def test_boxes_that_look_misread_are_named():
    data, predictions = case(0, 3, groups=20)
    with pytest.raises(ExampleError, match="normalised boxes: .*multiply them by width and height"):
        evaluate(data, scaled(predictions, [1 / 640, 1 / 480, 1 / 640, 1 / 480]))
    records = [{"image_id": id, "phrase_id": q, "score": s, "bbox": list(box)} for id, entry in predictions.items()
               for q, s, box in zip(entry["phrase_ids"], entry["scores"], entry["boxes"])]
    with pytest.warns(SuspiciousInput, match="boxes outside: .*corners, which were read as x, y, w") as seen:
        evaluate(data, records)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", SuspiciousInput)
        evaluate(data, records, allow="boxes outside")
        evaluate(data, predictions)
        for out, entry in enumerate(predictions.values()):  # a detector whose boxes stick out here and there
            if out % 3 == 0:
                entry["boxes"] = [[x0, y0, x1 + 640, y1] for x0, y0, x1, y1 in entry["boxes"]]
        evaluate(data, predictions)


@given(st.integers(0, 99), st.sampled_from([0, 1, 6]))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_honest_predictions_are_never_named(seed, digits):
    data, predictions = case(seed, digits, groups=12)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SuspiciousInput)
        evaluate(data, predictions)
        evaluate(Tricd(tuple(replace(pair, size=(960, 1280)) for pair in data.pairs)), scaled(predictions, 2))


@pytest.mark.parametrize("box, word, said", [([650, 5, 20, 20], "box outside", "wholly outside"),
                                             ([-30, 5, 20, 20], "box outside", "wholly outside"),
                                             ([5, 5, 0, 20], "box without area", "a width and a height above 0")])
def test_an_annotation_that_nothing_can_hit_is_refused_with_its_id(tmp_path, box, word, said):
    content = tricd_content(synthetic_tricd(4, 0))
    content["annotations"][3]["bbox"], id = box, content["annotations"][3]["id"]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ExampleError, match=f"annotation {id}, .*{said}.*allow='{word}'"):
        load_tricd(path)
    assert len(load_tricd(path, allow=word)) == 16
    with pytest.raises(ValueError, match="allow"):
        load_tricd(path, allow="anything")


def test_the_command_line_says_it_in_words(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    data, predictions = case(0, 0, groups=20)
    first = next(iter(predictions))
    (tmp_path / "a.json").write_text(json.dumps(tricd_content(data)))
    (tmp_path / "p.json").write_text(json.dumps({id: e for id, e in predictions.items() if id != first}))
    assert main("tricd evaluate p.json --annotations a.json --bootstrap 0".split()) == 0
    out = capsys.readouterr()
    assert f"no box for 1 of {len(data)} pairs" in out.out and "scores tie with another" in out.out
    assert "if ties fall badly" in out.out and "decided by ties" in out.out and out.err == ""
    records = [{"image_id": id, "phrase_id": q, "score": s, "bbox": list(box)} for id, entry in predictions.items()
               for q, s, box in zip(entry["phrase_ids"], entry["scores"], entry["boxes"])]
    (tmp_path / "r.json").write_text(json.dumps(records))
    assert main("tricd evaluate r.json --annotations a.json --bootstrap 0".split()) == 0
    assert "--allow 'boxes outside'" in capsys.readouterr().err
    assert main(["tricd", "evaluate", "r.json", "--annotations", "a.json", "--bootstrap", "0", "--allow",
                 "boxes outside", "--json"]) == 0
    out = capsys.readouterr()
    assert out.err == "" and json.loads(out.out)["input"]["stick_out"] > 0
