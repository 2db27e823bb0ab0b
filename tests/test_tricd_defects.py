"""What the authors' evaluator does, repeated: their own numbers, properties, and predictions that show each effect."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from qgcam_lib.data.tricd.pairs import Tricd, TricdPair, TricdPhrase, load_tricd
from qgcam_lib.errors import ExampleError
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.audit import (
    after_group_recall,
    ap_with_cut,
    defect_effects,
    fill_silent,
    recall_beyond_half,
    refused,
    second_call,
    subset_f1_as_shipped,
    subset_spread,
    tie_effect,
)
from qgcam_lib.phrase_detection.prediction_files import (
    break_ties,
    coarse_scores,
    synthetic_predictions,
    synthetic_tricd,
)
from qgcam_lib.phrase_detection.questions import load_tricd_vqa
from qgcam_lib.phrase_detection.score import match_predictions
from qgcam_lib.report.published import read_sources

REAL = Path(__file__).parents[1] / ".." / "shared" / "realdata" / "tricd"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no real TRICD files (../shared/realdata/tricd)")


@pytest.fixture(scope="module")
def made():
    return synthetic_tricd(30, seed=4)


@pytest.fixture(scope="module")
def graded(made):
    return synthetic_predictions(made, seed=5)


def value(data, predictions, metric="AP", subset="all", **options):
    table = evaluate(data, predictions, recall_at=(1,), **options)
    return table[(table["metric"] == metric) & (table["subset"] == subset)]["value"].item()


# --- the authors' numbers --------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def real():
    read = {name: json.loads((REAL / f"synthetic_{name}.json").read_text())
            for name in ("predictions_seed0", "expected_metrics")}
    return load_tricd(REAL / "TRICD_grounding_val.json"), *read.values()


@needs_real
def test_the_order_of_metrics_gives_the_numbers_their_program_prints(real):
    data, predictions, expected = real
    before, after = copy.deepcopy(predictions), after_group_recall(data, predictions, rename=False)
    boxes = [sum(len(entry["scores"]) for entry in p.values()) for p in (predictions, after)]
    assert boxes == expected["n_predictions_before_after_mutation"] == [1975, 2805]
    theirs = expected["AP_as_printed_by_main_default_order_AFTER_group_recall_mutated_the_predictions"]["AP"]
    for subset, right in expected["AP_pure"]["AP"].items():
        assert value(data, predictions, subset=subset) == pytest.approx(right, abs=1e-6)
        assert value(data, after, subset=subset) == pytest.approx(theirs[subset], abs=1e-6)
    assert value(data, after) == pytest.approx(0.250793, abs=1e-6) and predictions == before


@needs_real
def test_the_second_call_stops_at_the_phrase_it_stops_at_there(real):
    data, predictions, _ = real
    assert second_call(data, predictions) == "KeyError: 1"


@needs_real
def test_the_questions_stop_on_the_subsets_and_agree_on_all(real):
    questions = load_tricd_vqa(REAL / "TRICD_VQA_val.json")
    answers = {int(id): int(id % 3 != 0) for id in questions["image_id"]}
    found = subset_f1_as_shipped(questions, answers)
    expected = real[2]["vqa_synthetic_rule_answer_is_1_iff_image_id_mod_3_ne_0"]["all"]["macro_f1"]
    assert float(found["all"]) == pytest.approx(expected, abs=1e-4) and found["check"] == "passes"
    assert found["coco_obj"].startswith("ValueError") and "84" in found["coco_obj"] and "204" in found["coco_obj"]
    assert found["coco_rel"].startswith("ValueError")


@needs_real
def test_every_effect_is_counted_on_the_real_annotations(real):
    data, predictions, _ = real
    effects = defect_effects(data, predictions, n_orders=3, n_resamples=50).set_index(["defect", "metric", "subset"])
    assert effects.loc[("order", "AP", "all"), "difference"] == pytest.approx(0.250793 - 0.302640, abs=1e-5)
    assert effects["difference"].notna().all()
    moving = set(read_sources("tricd").query("kind == 'number'").defect) | {"silence"}
    assert set(effects.index.get_level_values("defect")) == moving


# --- order -----------------------------------------------------------------------------------------------------------

def test_group_recall_itself_is_not_touched_by_the_change_it_makes(made, graded):
    after = after_group_recall(made, graded, rename=False)
    own = {pair.id: {name: values[:len(graded[pair.id]["scores"])] for name, values in after[pair.id].items()}
           for pair in made.pairs}
    assert own == graded  # only appended
    assert value(made, after) < value(made, graded)


def test_a_model_that_is_silent_on_false_captions_loses_nothing(made):
    silent = synthetic_predictions(made, seed=6, alarms=0, clutter=0)
    after = after_group_recall(made, silent, rename=False)
    assert value(made, after) == value(made, silent) and second_call(made, silent) == ""


def test_a_group_that_is_not_whole_is_named(made, graded):
    true = next(pair for pair in made.pairs if pair.positive)
    torn = replace(made, pairs=tuple(pair for pair in made.pairs if pair.group != true.group or pair.positive))
    with pytest.raises(ExampleError, match=f"example {true.id}: data: expected also a pair of this caption"):
        after_group_recall(torn, graded)


# --- silence ---------------------------------------------------------------------------------------------------------

def test_the_check_counts_what_is_missing_and_the_filler_satisfies_it(made):
    some = synthetic_predictions(made, seed=7, clutter=0.2, alarms=0.2)
    del some[made.pairs[0].id]
    problems = refused(made, some).set_index("problem")["n"]
    boxes = {id for entry in some.values() for id in entry["phrase_ids"]}
    assert problems["pairs without an entry"] == 1
    assert problems.iloc[1:].sum() == len(made.phrases) - len(boxes)
    before, filled = copy.deepcopy(some), fill_silent(made, some)
    assert refused(made, filled)["n"].eq(0).all() and some == before
    assert value(made, filled) == pytest.approx(value(made, some))  # score 0 comes after everything else
    assert value(made, fill_silent(made, some, score=1.0)) < value(made, some)


# --- ties ------------------------------------------------------------------------------------------------------------

def test_constant_scores_get_plain_recall_of_the_first_box_under_their_rule(made, graded):
    flat = coarse_scores(graded, 0)
    rules = tie_effect(made, flat, n_orders=8).set_index(["metric", "rule"])
    assert rules.loc[("group_recall@1", "true first"), "value"] == value(made, flat, "recall@1")
    # with the false image first, only phrases without a box there can be hit
    assert rules.loc[("group_recall@1", "false first"), "value"] < 0.2
    low, high = rules.loc[("AP", "random"), ["low", "high"]]
    assert low < high


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_breaking_ties_keeps_the_order_of_distinct_scores(made, graded, seed):
    broken = break_ties(graded, seed)
    pd.testing.assert_frame_equal(evaluate(made, broken), evaluate(made, graded))
    scores = np.concatenate([entry["scores"] for entry in broken.values()])
    assert len(np.unique(scores)) == len(scores) and 0 < scores.min() and scores.max() < 1


# --- cut, half, spread -----------------------------------------------------------------------------------------------

def test_the_cut_of_a_hundred_is_the_evaluators(made):
    crowded = synthetic_predictions(made, seed=8, clutter=90.0, wrong=0.8)
    assert ap_with_cut(made, crowded) == pytest.approx(value(made, crowded), abs=1e-12)
    assert ap_with_cut(made, crowded, per="none") == pytest.approx(ap_with_cut(made, crowded, limit=10**6))
    assert ap_with_cut(made, crowded, per="phrase") != ap_with_cut(made, crowded)
    with pytest.raises(ValueError, match="pair"):
        ap_with_cut(made, crowded, per="image")


def test_half_is_told_apart_only_by_boxes_at_exactly_half(made, graded):
    phrase = TricdPhrase(0, ((0, 3),), "cat", ((0.0, 0.0, 10.0, 10.0),))
    one = Tricd((TricdPair(0, "a.jpg", "cat", "coco_test2017", "coco_obj", "g", 0, True, (100, 100), (phrase,)),))
    for height, expected in ((5.0, (1, 1, 0)), (5.1, (0, 1, 1)), (4.9, (0, 0, 0))):
        found = recall_beyond_half(one, {0: {"scores": [1.0], "boxes": [[0, 0, 10, height]], "phrase_ids": [0]}})
        assert (found["n_exact"], found["at_least"], found["above"]) == expected
    assert recall_beyond_half(made, graded)["at_least"] == value(made, graded, "recall@1")


def test_parts_of_90_percent_spread_about_a_third_as_much(made, graded):
    spread = subset_spread(match_predictions(made, graded), n=300, seed=1)
    assert set(spread["subset"]) == {"all", "coco_obj", "coco_rel"} and set(spread["unit"]) == {"pair", "group"}
    assert spread["ratio"].between(0.25, 0.42).all()
    group = spread.query("subset == 'all' and unit == 'group'").iloc[0]
    table = evaluate(made, graded, n_bootstrap=300, n_subsets=300).iloc[0]
    assert group["bootstrap_sd"] == pytest.approx(table["bootstrap_sd"], rel=0.25)
    assert group["sd_90"] == pytest.approx(table["sd_90"], rel=0.25)


# --- questions -------------------------------------------------------------------------------------------------------


# --- the synthetic predictions ---------------------------------------------------------------------------------------
