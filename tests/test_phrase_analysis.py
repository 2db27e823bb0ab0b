"""The scores behind the score: each against a slow literal version, with properties, edges and drawn replicates."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_phrase_presence import case, drawn, under, values

from qgcam_lib.boxes import box_iou
from qgcam_lib.data.tricd.pairs import SUBSETS, Tricd
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.analysis import (
    calibration,
    false_alarm_rates,
    false_alarms,
    precision_recall,
    price_of_false_captions,
)
from qgcam_lib.phrase_detection.matching import RECALL_POINTS, THRESHOLDS
from qgcam_lib.phrase_detection.parts import parts
from qgcam_lib.phrase_detection.prediction_files import synthetic_predictions
from qgcam_lib.phrase_detection.score import match_predictions

AP = {"metrics": ("AP",)}


def matched(seed, behaviour="uneven", n_groups=8):
    return match_predictions(*case(seed, behaviour, n_groups))


def rows(entry):
    return list(zip(entry["scores"], entry["boxes"], entry["phrase_ids"])) if entry else []


def rival(data, pair, phrase):
    """The pair with the same caption on the group's other picture, where it is true, and its phrase; literally."""
    for other in data.pairs:
        if (other.group, other.caption, other.positive) == (pair.group, pair.caption, True) and other.side != pair.side:
            return other, next(p for p in other.phrases if p.spans == phrase.spans)
    return None


def slow_bests(data, predictions):
    """{(pair id, phrase id): (highest score, highest score of a hit)}"""
    found = {}
    for pair in data.pairs:
        for phrase in pair.phrases:
            mine = [(s, b) for s, b, id in rows(predictions.get(pair.id)) if id == phrase.id]
            hits = [s for s, b in mine if phrase.boxes and box_iou(b, np.array(phrase.boxes)).max() >= 0.5]
            found[pair.id, phrase.id] = (max((s for s, _ in mine), default=-np.inf), max(hits, default=-np.inf))
    return found


def in_subset(data, subset):
    return Tricd(tuple(pair for pair in data.pairs if subset in ("all", pair.subset)))


# --- the curve -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("seed", range(2))
def test_the_curve_carries_the_average_precision(seed):
    data, _ = case(seed, n_groups=4)
    predictions = synthetic_predictions(data, seed, clutter=90)
    matches = match_predictions(data, predictions)
    assert matches.n_cut > 0
    for subset in ("all", "winoground"):
        curves, areas = precision_recall(matches, iou=THRESHOLDS, subset=subset), []
        for threshold, curve in curves.groupby("iou"):
            assert (np.diff(curve.score) <= 0).all() and (np.diff(curve.recall) >= 0).all()
            assert (np.diff(curve.envelope) <= 0).all() and (curve.envelope >= curve.precision).all()
            hits = curve.hit.to_numpy()
            assert all(curve.precision.iloc[k] == hits[: k + 1].mean() for k in range(0, len(hits), 37)), threshold
            areas.append(np.mean([next((p for f, p in zip(curve.recall, curve.envelope) if f >= r), 0.0)
                                  for r in RECALL_POINTS]))
        found = values(evaluate(data, predictions, **AP))
        assert np.mean(areas) == pytest.approx(found["AP", subset], abs=1e-12)
        assert areas[0] == pytest.approx(found["AP50", subset], abs=1e-12)


def test_curves_of_nothing():
    assert precision_recall(match_predictions(case(0)[0], {})).empty
    only_false = Tricd(tuple(pair for pair in case(0)[0].pairs if not pair.positive))
    pair = only_false.pairs[0]
    one = {pair.id: {"scores": [1.0], "boxes": [[0, 0, 1, 1]], "phrase_ids": [pair.phrases[0].id]}}
    curve = precision_recall(match_predictions(only_false, one), iou=(0.5,))
    assert len(curve) == 1 and np.isnan(curve.recall[0]) and curve.precision[0] == 0
    for wrong in ({"iou": ()}, {"iou": (0.51,)}, {"subset": "coco"}, {"by": "colour"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            precision_recall(matched(0), **wrong)


# --- the price of false captions -------------------------------------------------------------------------------------

@pytest.mark.parametrize("behaviour", ["graded", "credulous"])
def test_the_price_is_that_of_leaving_the_false_captions_out(behaviour):
    data, predictions = case(2, behaviour)
    found = values(price_of_false_captions(match_predictions(data, predictions)))
    true = Tricd(tuple(pair for pair in data.pairs if pair.positive))
    kept = {id: entry for id, entry in predictions.items() if data.positive[list(data.pair_ids).index(id)]}
    everything, alone = values(evaluate(data, predictions, **AP)), values(evaluate(true, kept, **AP))
    for subset in ("all", *SUBSETS):
        assert found["AP", subset] == pytest.approx(everything["AP", subset], abs=1e-12)
        assert found["AP_true_pairs", subset] == pytest.approx(alone["AP", subset], abs=1e-12)
        assert found["price", subset] == pytest.approx(alone["AP", subset] - everything["AP", subset], abs=1e-12)
    positive = {pair.id: pair.positive for pair in data.pairs}
    n = {truth: sum(len(e["scores"]) for id, e in predictions.items() if positive[id] == truth) for truth in (0, 1)}
    assert found["false_caption_boxes", "all"] == n[0] / (n[0] + n[1])
    curve = precision_recall(match_predictions(data, predictions), iou=(0.5,))
    assert found["false_caption_errors", "all"] == n[0] / (~curve.hit).sum()


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), behaviour=st.sampled_from(["cautious", "graded", "credulous", "uneven"]))
def test_bounds(seed, behaviour):
    matches = matched(seed, behaviour, n_groups=3)
    price = values(price_of_false_captions(matches)).unstack(0)
    assert (price["price"].dropna() >= 0).all() and price.stack().dropna().between(0, 1).all()
    table = values(calibration(matches)).unstack(0)
    assert table[["auc_within", "auc_across", "AP", "AP_standardised"]].stack().dropna().between(0, 1).all()
    rates = values(false_alarm_rates(matches, (0.2, 0.8), (0.2, 0.6, 1.0))).unstack(0)
    assert rates.stack().dropna().between(0, 1).all()
    assert (rates["false_alarm_rate@0.2"] >= rates["false_alarm_rate@0.8"]).all()
    assert (rates["hit_rate@0.2"] >= rates["hit_rate@0.8"]).all()
    both = rates[["false_alarm_rate@recall=0.2", "false_alarm_rate@recall=0.6"]].dropna()
    assert (both.iloc[:, 0] <= both.iloc[:, 1]).all()


# --- false alarms ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("seed, behaviour", [(3, "graded"), (4, "cautious")])
def test_false_alarms_one_by_one(seed, behaviour):
    data, predictions = case(seed, behaviour)
    table = false_alarms(match_predictions(data, predictions)).set_index(["image_id", "phrase_id"])
    best = slow_bests(data, predictions)
    n = 0
    for pair in data.pairs:
        for phrase in pair.phrases if not pair.positive else ():
            row = table.loc[(pair.id, phrase.id)]
            other, asked = rival(data, pair, phrase)
            alarm, (seen, hit) = best[pair.id, phrase.id][0], best[other.id, asked.id]
            assert (row.rival_image_id, row.rival_phrase_id, row.group) == (other.id, asked.id, pair.group)
            assert (row.alarm, row.rival, row.rival_hit, row.text) == (alarm, seen, hit, phrase.text)
            assert row.false_wins == (alarm > hit)
            assert row.margin == hit - alarm or (np.isnan(row.margin) and hit == alarm == -np.inf)
            n += 1
    assert n == len(table) and 0 < table.false_wins.mean() < 1


def slow_rates(data, predictions, thresholds, recalls):
    best = slow_bests(data, predictions)
    hit = [best[pair.id, p.id][1] for pair in data.pairs if pair.positive for p in pair.phrases if p.boxes]
    alarm = [best[pair.id, p.id][0] for pair in data.pairs if not pair.positive for p in pair.phrases]
    out = {}
    for t in thresholds:
        out[f"hit_rate@{t:g}"] = np.mean([s >= t for s in hit])
        out[f"false_alarm_rate@{t:g}"] = np.mean([s >= t for s in alarm])
    for r in recalls:
        reached = [s for s in hit if s > -np.inf and np.mean([h >= s for h in hit]) >= r - 1e-9]
        value = np.mean([s >= max(reached) for s in alarm]) if reached else np.nan
        out[f"false_alarm_rate@recall={r:g}"] = value
    return out


@pytest.mark.parametrize("seed, behaviour", [(5, "uneven"), (6, "credulous"), (7, "cautious")])
def test_rates_one_by_one(seed, behaviour):
    data, predictions = case(seed, behaviour)
    options = (0.3, 0.55), (0.25, 0.5, 0.99)
    found = values(false_alarm_rates(match_predictions(data, predictions), *options))
    for subset in ("all", *SUBSETS):
        known = slow_rates(in_subset(data, subset), predictions, *options)
        for name, value in known.items():
            assert found[name, subset] == pytest.approx(value, abs=1e-12, nan_ok=True), (name, subset)
    assert np.isnan(found["false_alarm_rate@recall=0.99", "all"]), "not every true phrase is found"


def test_ties_and_bad_options():
    data, _ = case(0, n_groups=2)
    same = {pair.id: {"scores": [0.5] * len(pair.phrases), "phrase_ids": [p.id for p in pair.phrases],
                      "boxes": [p.boxes[0] if p.boxes else (0, 0, 9, 9) for p in pair.phrases]} for pair in data.pairs}
    matches = match_predictions(data, same)
    assert not false_alarms(matches).false_wins.any() and (false_alarms(matches).margin == 0).all()
    found = values(false_alarm_rates(matches, (0.5, 0.6), (0.1, 1.0)))
    assert found.xs("all", level=1).tolist() == [1, 1, 0, 0, 1, 1], "at equal scores all of them are over the threshold"
    for wrong in ({"thresholds": (float("nan"),)}, {"recalls": (0,)}, {"recalls": (1.1,)}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected"):
            false_alarm_rates(matches, **wrong)


# --- calibration -----------------------------------------------------------------------------------------------------

def slow_calibration(data, predictions):
    best, p, n = slow_bests(data, predictions), [], []
    for pair in data.pairs:
        for phrase in pair.phrases if not pair.positive else ():
            if (found := rival(data, pair, phrase)) and found[1].boxes:
                p.append(best[found[0].id, found[1].id][1])
                n.append(best[pair.id, phrase.id][0])

    def wins(a, b):
        return (a > b) + 0.5 * (a == b)

    return np.mean([wins(*both) for both in zip(p, n)]), np.mean([wins(a, b) for a in p for b in n])


def standardised(data, predictions):
    """Predictions whose scores are the ranks after each phrase's scores became mean 0 and deviation 1."""
    boxes, of = [], {}
    for pair in data.pairs:
        kept = sorted(rows(predictions.get(pair.id)), key=lambda row: -row[0])[:100]
        for score, box, id in kept:
            phrase = next(p for p in pair.phrases if p.id == id)
            found = (pair, phrase) if pair.positive else rival(data, pair, phrase)
            of.setdefault((found[0].id, found[1].id), []).append(score)
            boxes.append((pair.id, (found[0].id, found[1].id), score, box, id))
    keyed = []
    for image, key, score, box, id in boxes:
        spread = np.std(of[key])
        z = round((score - np.mean(of[key])) / spread, 9) if spread > 1e-12 * abs(score) else 0.0
        keyed.append((z, score, image, box, id))
    out = {}
    for rank, (_, _, image, box, id) in enumerate(sorted(keyed, key=lambda row: row[:2])):
        entry = out.setdefault(image, {"scores": [], "boxes": [], "phrase_ids": []})
        for name, value in zip(entry, (float(rank), box, id)):
            entry[name].append(value)
    return out


@pytest.mark.parametrize("seed, behaviour", [(8, "uneven"), (9, "graded"), (10, "talkative")])
def test_calibration_one_by_one(seed, behaviour):
    data, predictions = case(seed, behaviour, n_groups=5)
    found = values(calibration(match_predictions(data, predictions)))
    moved = standardised(data, predictions)
    for subset in ("all", *SUBSETS):
        part = in_subset(data, subset)
        ids = set(part.pair_ids.tolist())
        within, across = slow_calibration(part, predictions)
        assert found["auc_within", subset] == pytest.approx(within, abs=1e-12)
        assert found["auc_across", subset] == pytest.approx(across, abs=1e-12)
        assert found["calibration_gap", subset] == pytest.approx(within - across, abs=1e-12)
        ap, other = (values(evaluate(part, {k: v for k, v in p.items() if k in ids}, **AP))["AP", "all"]
                     for p in (predictions, moved))
        assert found["AP", subset] == pytest.approx(ap, abs=1e-12)
        assert found["AP_standardised", subset] == pytest.approx(other, abs=1e-12)
        assert found["AP_gain", subset] == pytest.approx(other - ap, abs=1e-12)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_scale_for_each_phrase_changes_what_is_across_and_nothing_within(seed):
    data, predictions = case(seed, "talkative", n_groups=2)
    rng, scale = np.random.default_rng(seed), {}
    moved = {}
    for pair in data.pairs:
        if pair.id in predictions:
            spans = {p.id: p.spans for p in pair.phrases}
            factors = [scale.setdefault((pair.group, pair.caption, spans[id]), (rng.uniform(0.5, 2), rng.normal()))
                       for id in predictions[pair.id]["phrase_ids"]]
            scores = [a * s + b for (a, b), s in zip(factors, predictions[pair.id]["scores"])]
            moved[pair.id] = {**predictions[pair.id], "scores": scores}
    plain, other = (values(calibration(match_predictions(data, p))) for p in (predictions, moved))
    pd.testing.assert_series_equal(plain["auc_within"], other["auc_within"])
    matches, again = match_predictions(data, predictions), match_predictions(data, moved)
    pd.testing.assert_series_equal(false_alarms(matches).false_wins, false_alarms(again).false_wins)
    if matches.n_cut == again.n_cut == 0:
        assert other["AP_standardised", "all"] == pytest.approx(plain["AP_standardised", "all"], abs=1e-9)


def test_edges_of_calibration():
    data, _ = case(0)
    silent = values(calibration(match_predictions(data, {})))
    assert silent["auc_within", "all"] == silent["auc_across", "all"] == 0.5 and silent["AP", "all"] == 0
    true = Tricd(tuple(pair for pair in data.pairs if pair.positive))
    lonely = calibration(match_predictions(true, {})).set_index(["metric", "subset"])
    assert np.isnan(lonely.value["auc_within", "all"]) and lonely.n["auc_within", "all"] == 0
    assert lonely.n_undefined["auc_within", "all"] == len(true.phrases)
    alarms = false_alarms(match_predictions(Tricd(tuple(p for p in data.pairs if not p.positive)), {}))
    assert (alarms.rival_image_id == -1).all() and alarms.margin.isna().all() and not alarms.false_wins.any()
    for table in (calibration, price_of_false_captions, false_alarm_rates):
        nothing = table(match_predictions(Tricd(()), {}), n_bootstrap=3)
        assert nothing.value.isna().all() and (nothing.n == 0).all() and (nothing.note != "").all()
    assert false_alarms(match_predictions(Tricd(()), {})).empty


# --- uncertainty and parts -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("table", [calibration, price_of_false_captions, false_alarm_rates])
def test_a_replicate_is_the_score_of_the_drawn_data(monkeypatch, table):
    data, predictions = case(11)
    weights = np.array([0.0, 2, 1, 3, 0, 1, 1, 0])
    again = table(match_predictions(*drawn(data, predictions, weights)), subsets=("all",))
    under(monkeypatch, weights)
    found = table(match_predictions(data, predictions), n_bootstrap=2, subsets=("all",), interval="percentile")
    np.testing.assert_allclose(found.ci_low, again.value, atol=1e-12)
    np.testing.assert_allclose(found.ci_high, again.value, atol=1e-12)
    assert (np.abs(found.value - again.value) > 1e-6).any()


@pytest.mark.parametrize("table", [calibration, price_of_false_captions, false_alarm_rates])
def test_bootstrap_parts_and_columns(table):
    data, predictions = case(12)
    named = Tricd(tuple(replace(pair, contradiction="object" if int(pair.group[-1]) % 2 else "relation")
                        for pair in data.pairs))
    matches = match_predictions(named, predictions)
    whole = table(matches, n_bootstrap=30, n_subsets=5)
    assert list(whole.columns) == [*evaluate(data, predictions)][:-2]  # all but n_empty and pessimistic
    pd.testing.assert_frame_equal(whole, table(matches, n_bootstrap=30, n_subsets=5))
    one = table(matches, n_bootstrap=30, n_subsets=5, subsets=("winoground",))
    pd.testing.assert_frame_equal(one, whole[whole.subset == "winoground"].reset_index(drop=True))
    kinds = table(matches, by="contradiction")
    assert list(dict.fromkeys(kinds.subset)) == ["all", "object", "relation"]
    defined = whole[whole.ci_low.notna()]
    assert len(defined) and (defined.ci_low <= defined.ci_high).all()
    with pytest.raises(ValueError, match="subsets"):
        table(matches, subsets=("object",))
    assert [part.n_groups for part in parts(named, by="contradiction")] == [8, 4, 4]
