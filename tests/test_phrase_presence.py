"""IL_MCC, pmF1 and cgF1: a literal count with every assignment tried, the curve over thresholds, and the edges."""

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.boxes import box_iou
from qgcam_lib.data.tricd.pairs import SUBSETS, Tricd
from qgcam_lib.phrase_detection import parts as phrase_parts
from qgcam_lib.phrase_detection.analysis import NAMES, best_threshold, presence, presence_curve
from qgcam_lib.phrase_detection.matching import THRESHOLDS
from qgcam_lib.phrase_detection.prediction_files import BEHAVIOURS, synthetic_predictions, synthetic_tricd
from qgcam_lib.phrase_detection.score import match_predictions


def case(seed, behaviour="uneven", n_groups=8):
    data = synthetic_tricd(n_groups, seed, subsets=SUBSETS)
    predictions = synthetic_predictions(data, seed + 1, **BEHAVIOURS[behaviour])
    for key in list(predictions)[::9]:
        del predictions[key]
    return data, predictions


def drawn(data, predictions, weights):
    """The data with each group as often as its weight says, under new ids."""
    pairs, new = [], {}
    for weight, group in zip(weights.astype(int), data.group_names):
        for turn in range(weight):
            for pair in data.pairs:
                if pair.group == group:
                    pairs.append(replace(pair, id=len(pairs) + 1, group=f"{group}x{turn}"))
                    if pair.id in predictions:
                        new[len(pairs)] = predictions[pair.id]
    return Tricd(tuple(pairs)), new


def under(monkeypatch, weights):
    """Let the bootstrap draw these weights of all groups, twice."""
    monkeypatch.setattr(phrase_parts, "group_weights", lambda n, *rest: np.stack([np.ones(n), weights, weights]))


def values(table):
    return table.set_index(["metric", "subset"]).value


# --- the definition, read aloud --------------------------------------------------------------------------------------

def best_assignment(overlap):
    """The overlaps of the assignment with the highest sum, all of them tried."""
    n, m = overlap.shape
    if n > m:
        return best_assignment(overlap.T)
    tries = ([overlap[i, j] for i, j in enumerate(columns)]
             for chosen in combinations(range(m), n) for columns in permutations(chosen))
    return max(tries, key=sum)


def slow_presence(data, predictions, threshold):
    tp = fp = tn = fn = 0
    hits, extra, missed = np.zeros((3, 10))
    for pair in data.pairs:
        entry = predictions.get(pair.id, {"scores": [], "boxes": [], "phrase_ids": []})
        for phrase in pair.phrases:
            boxes = [box for score, box, id in zip(entry["scores"], entry["boxes"], entry["phrase_ids"])
                     if id == phrase.id and score >= threshold]
            tp += bool(boxes) and bool(phrase.boxes)
            fp += bool(boxes) and not phrase.boxes
            tn += not boxes and not phrase.boxes
            fn += not boxes and bool(phrase.boxes)
            for t, least in enumerate(THRESHOLDS):
                n = 0
                if boxes and phrase.boxes:
                    n = sum(v >= least for v in best_assignment(box_iou(np.array(boxes), np.array(phrase.boxes))))
                hits[t] += n
                missed[t] += len(phrase.boxes) - n
                extra[t] += len(boxes) - n if phrase.boxes else 0
    base = ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    mcc = (tp * tn - fp * fn) / base if base else np.nan
    f1 = 2 * hits / (2 * hits + extra + missed)
    return {"IL_MCC": mcc, "IL_recall": tp / (tp + fn), "IL_FPR": fp / (fp + tn), "pmF1": f1.mean(), "pmF1@0.5": f1[0],
            "pmF1@0.75": f1[5], "cgF1": f1.mean() * mcc, "cgF1@0.5": f1[0] * mcc, "cgF1@0.75": f1[5] * mcc}


@pytest.mark.parametrize("seed, behaviour, threshold", [(0, "uneven", 0.5), (1, "graded", 0.35), (2, "cautious", 0.8)])
def test_equal_to_the_literal_definition(seed, behaviour, threshold):
    data, predictions = case(seed, behaviour)
    found = values(presence(match_predictions(data, predictions), threshold))
    for subset in ("all", *SUBSETS):
        part = Tricd(tuple(pair for pair in data.pairs if subset in ("all", pair.subset)))
        known = slow_presence(part, predictions, threshold)
        for name, value in known.items():
            assert found[name, subset] == pytest.approx(value, abs=1e-12, nan_ok=True), (name, subset)


def test_an_optimal_assignment_is_not_the_greedy_one():
    data, _ = case(0, n_groups=1)
    pair = next(pair for pair in data.pairs if pair.positive)
    phrase = replace(pair.phrases[0], boxes=((0.0, 0, 10, 10), (4.0, 0, 14, 10)))
    data = Tricd((replace(pair, phrases=(phrase,)),))
    # the sure box prefers the second truth box, which the other one needs: greedy finds one, optimal two
    matches = match_predictions(data, {pair.id: {"scores": [0.9, 0.8], "boxes": [[2.1, 0, 12, 10], [5, 0, 15, 10]],
                                                 "phrase_ids": [phrase.id] * 2}})
    assert matches.hits[0].tolist() == [True, False]
    assert values(presence(matches))["pmF1@0.5", "all"] == 1
    assert presence_curve(matches).pmF1.iloc[-1] < values(presence(matches))["pmF1", "all"]


# --- every threshold -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("seed", range(2))
def test_the_curve_is_the_score_at_every_threshold(seed):
    data, predictions = case(seed, "graded", n_groups=5)
    single = Tricd(tuple(replace(pair, phrases=tuple(replace(p, boxes=p.boxes[:1]) for p in pair.phrases))
                         for pair in data.pairs))  # with one truth box, greedy may only choose a worse box
    matches = match_predictions(single, predictions)
    curve = presence_curve(matches)
    assert (np.diff(curve.threshold) < 0).all() and len(curve) == len(np.unique(matches.packed.score))
    for row in curve.iloc[::7].itertuples():
        found = values(presence(matches, row.threshold, subsets=("all",)))
        for name in ("IL_MCC", "IL_recall", "IL_FPR"):
            assert found[name, "all"] == pytest.approx(getattr(row, name), abs=1e-12, nan_ok=True)
        assert row.pmF1 <= found["pmF1", "all"] + 1e-12
        assert row.cgF1 == pytest.approx(row.pmF1 * row.IL_MCC, nan_ok=True)


def test_the_best_threshold(seed=3):
    data, predictions = case(seed, "cautious")
    matches = match_predictions(data, predictions)
    curve = presence_curve(matches)
    assert best_threshold(matches) == curve.threshold[curve.cgF1 == curve.cgF1.max()].max()
    table = presence(matches, "best")
    assert (table.threshold == best_threshold(matches)).all() and table.note.str.contains("optimistic").all()
    pd.testing.assert_frame_equal(table.drop(columns="note"),
                                  presence(matches, best_threshold(matches)).drop(columns="note"))


# --- properties ------------------------------------------------------------------------------------------------------

@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), threshold=st.floats(0.05, 0.95))
def test_order_and_scale_change_nothing(seed, threshold):
    rng = np.random.default_rng(seed)
    data, predictions = case(seed, "graded", n_groups=4)
    plain = presence(match_predictions(data, predictions), threshold)
    bounds = plain[plain.metric != "IL_MCC"].value.dropna()
    assert plain.value.dropna().between(-1, 1).all() and (bounds >= -1).all()
    shuffled = {}
    for key in rng.permutation(list(predictions)):
        order = rng.permutation(len(predictions[key]["scores"]))
        shuffled[int(key)] = {name: [column[k] for k in order] for name, column in predictions[key].items()}
    pd.testing.assert_frame_equal(plain, presence(match_predictions(data, shuffled), threshold))
    scaled = {key: {**entry, "scores": [4 * s - 2 for s in entry["scores"]]} for key, entry in predictions.items()}
    again = presence(match_predictions(data, scaled), 4 * threshold - 2)
    pd.testing.assert_series_equal(plain.value, again.value)
    true = {int(id) for id in data.pair_ids[data.positive]}
    quiet = values(presence(match_predictions(data, {k: v for k, v in predictions.items() if k in true}), threshold))
    assert [quiet[name, "all"] for name in NAMES[4:7]] == [values(plain)[name, "all"] for name in NAMES[4:7]]
    assert quiet["IL_FPR", "all"] == 0


def test_a_replicate_is_the_score_of_the_drawn_data(monkeypatch):
    data, predictions = case(4)
    weights = np.array([2.0, 0, 1, 1, 3, 0, 1, 0])
    again = values(presence(match_predictions(*drawn(data, predictions, weights)), subsets=("all",)))
    under(monkeypatch, weights)
    table = presence(match_predictions(data, predictions), n_bootstrap=2, subsets=("all",), interval="percentile")
    np.testing.assert_allclose(table.ci_low, again.to_numpy(), atol=1e-12)
    np.testing.assert_allclose(table.ci_high, table.ci_low)


# --- edges -----------------------------------------------------------------------------------------------------------

def test_perfect_silent_and_always():
    data, _ = case(5)
    perfect = {pair.id: {"scores": [0.9 for p in pair.phrases for _ in p.boxes],
                         "boxes": [box for p in pair.phrases for box in p.boxes],
                         "phrase_ids": [p.id for p in pair.phrases for _ in p.boxes]} for pair in data.pairs}
    found = values(presence(match_predictions(data, perfect)))
    assert all(found[name, "all"] == (0 if name == "IL_FPR" else 1) for name in NAMES)
    silent = presence(match_predictions(data, {})).set_index(["metric", "subset"])
    assert np.isnan(silent.value["IL_MCC", "all"]) and np.isnan(silent.value["cgF1", "all"])
    assert silent.value["pmF1", "all"] == silent.value["IL_recall", "all"] == 0
    assert silent.note["cgF1", "all"] == "undefined: nothing to tell apart"
    assert presence_curve(match_predictions(data, {})).empty and np.isnan(best_threshold(match_predictions(data, {})))
    assert np.isnan(values(presence(match_predictions(data, {}), "best"))["cgF1", "all"])
    always = {pair.id: {"scores": [1] * len(pair.phrases), "boxes": [[0, 0, 9, 9]] * len(pair.phrases),
                        "phrase_ids": [p.id for p in pair.phrases]} for pair in data.pairs}
    always = values(presence(match_predictions(data, always)))
    assert np.isnan(always["IL_MCC", "all"]) and always["IL_recall", "all"] == always["IL_FPR", "all"] == 1
    nothing = presence(match_predictions(Tricd(()), {}), n_bootstrap=3)
    assert nothing.value.isna().all() and (nothing.n == 0).all()


def test_the_threshold_itself_counts_and_boxes_beyond_the_hundredth():
    data, _ = case(6, n_groups=1)
    pair = next(pair for pair in data.pairs if pair.positive and len(pair.phrases) == 1)
    entry = {"scores": [0.5], "boxes": [pair.phrases[0].boxes[0]], "phrase_ids": [pair.phrases[0].id]}
    found = values(presence(match_predictions(data, {pair.id: entry})))
    assert found["IL_recall", "all"] == 1 / data.positive[data.phrase_pairs].sum()
    assert values(presence(match_predictions(data, {pair.id: entry}), np.nextafter(0.5, 1)))["IL_recall", "all"] == 0
    n = 150
    many = {"scores": np.linspace(1, 0.6, n), "boxes": np.tile(pair.phrases[0].boxes[0], (n, 1)),
            "phrase_ids": np.full(n, pair.phrases[0].id)}
    found = values(presence(match_predictions(data, {pair.id: many})))
    assert found["pmF1@0.5", "all"] == pytest.approx(2 / (n + len(data.truth))), "149 false alarms, not 99"
    assert presence_curve(match_predictions(data, {pair.id: many})).pmF1.iloc[-1] == found["pmF1", "all"]


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), "half", True])
def test_bad_thresholds(threshold):
    with pytest.raises(ValueError, match="threshold"):
        presence(match_predictions(*case(0, n_groups=1)), threshold)
