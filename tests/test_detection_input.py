"""What the scores of TRICD rest on: counted against slow loops, shown beside the score."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.data.tricd.pairs import load_tricd, tricd_content
from qgcam_lib.errors import ExampleError
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.prediction_files import coarse_scores, synthetic_predictions, synthetic_tricd
from qgcam_lib.phrase_detection.score import match_predictions


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


@pytest.mark.filterwarnings("ignore::qgcam_lib.errors.SuspiciousInput")  # scores of one digit
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
    asked = np.flatnonzero(match_predictions(data, predictions).asked)
    hits = [[(row[0], max(overlap(row[2], box) for box in data.phrases[q].boxes) >= 0.5)
             for row in ranked.get(q, []) if row[1]] for q in asked]
    for k in (1, 3):
        late = np.mean([any(hit for _, hit in sorted(one, key=lambda row: (-row[0], row[1]))[:k]) for one in hits])
        row = table.loc[f"recall@{k}"]
        assert np.isclose(row["value"] if np.isnan(row["pessimistic"]) else row["pessimistic"], late)
        row = table.loc[f"group_recall@{k}"]
        best, worst = (literal_group_recall(data, predictions, k, first) for first in (True, False))
        assert np.isclose(row["value"], best) and np.isnan(row["pessimistic"]) == np.isclose(best, worst)
        assert np.isclose(best, worst) or np.isclose(row["pessimistic"], worst) and "decided by ties" in row["note"]
        assert np.isclose(evaluate(data, predictions, recall_at=(k,), ties="pessimistic", metrics=("group_recall",),
                                   subsets=("all",))["value"][0], worst)
    assert table.loc[["AP", "upper_bound"], "pessimistic"].isna().all()


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


@pytest.mark.parametrize("box", [[650, 5, 20, 20], [-30, 5, 20, 20], [5, 5, 0, 20]])
def test_an_annotation_that_nothing_can_hit_is_refused_with_its_id(tmp_path, box):
    content = tricd_content(synthetic_tricd(4, 0))
    content["annotations"][3]["bbox"], id = box, content["annotations"][3]["id"]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ExampleError, match=f"annotation {id}, .*bbox"):
        load_tricd(path)
