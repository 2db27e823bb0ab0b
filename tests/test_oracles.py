"""Every score has an oracle: a test that computes it in another way. A score that is added without one fails here."""

import ast
from pathlib import Path

import pytest

from qgcam_lib.finetune.relcomp.scores import RELCOMP_SCORES
from qgcam_lib.phrase_detection import questions
from qgcam_lib.phrase_detection.score import METRICS as DETECTION
from qgcam_lib.probes.score import PROBE_SCORES
from qgcam_lib.referring.score import CHOICE_SCORES
from qgcam_lib.statistics import METRICS

TESTS = Path(__file__).parent
BOOK = "test_metrics::test_every_formula_by_the_book"
PAIRS = "test_probe_scores::test_pairs_equal_the_equations_read_literally"
CHOICES, RANKINGS = "test_probe_run::test_choices_equal_a_literal_reading", "test_probe_scores::{}"
SHARE, SOFTMAX = RANKINGS.format("test_robustness_is_the_share_that_is_left"), RANKINGS.format(
    "test_confidence_is_softmax_over_the_classes")
DEFINED, ASKED = "test_phrase_detection::test_equal_to_the_literal_definition", (
    "test_phrase_questions::test_scores_are_scikit_learns_in_every_subset")
CHOSEN, TRIPLES = "test_referring::test_choices_equal_a_slow_literal_reading", (
    "test_relcomp::test_relcomp_scores_are_the_literal_ones")

# registry -> (its scores, score -> the test that is its oracle)
ORACLES = {
    "statistics.MAP_SCORES": (METRICS, {
        "iou_soft": BOOK, "iou_binary": BOOK, "dice_soft": BOOK, "dice_binary": BOOK, "wdp_soft": BOOK,
        "wdp_binary": BOOK, "io_ratio": "test_metrics::test_io_ratio_is_quantus_relevance_mass_accuracy",
        "pg_hit": BOOK, "pg_ties": BOOK, "pg_uncertain": BOOK, "wdp_soft_rel": BOOK, "wdp_binary_rel": BOOK}),
    "phrase_detection.score.METRICS": (DETECTION, {
        "AP": "test_phrase_detection::test_equal_to_coco_evaluators", "recall": DEFINED, "merged_recall": DEFINED,
        "upper_bound": DEFINED, "group_recall": DEFINED}),
    "phrase_detection.questions.SCORES": (questions.SCORES, dict.fromkeys(
        ("macro_f1", "f1_yes", "f1_no", "accuracy"), ASKED)),
    "probes.score.PROBE_SCORES": (PROBE_SCORES, {
        "confidence": CHOICES, "correct": CHOICES, "tie": CHOICES, "text_score": PAIRS, "image_score": PAIRS,
        "group_score": PAIRS, "n_ties": PAIRS,
        "ap_reference": RANKINGS.format("test_ap_equals_scikit_learn"),
        "ap_patch": RANKINGS.format("test_ap_equals_scikit_learn"),
        "ap_edited": RANKINGS.format("test_ap_equals_scikit_learn"),
        "confidence_reference": SOFTMAX, "confidence_patch": SOFTMAX, "confidence_edited": SOFTMAX,
        "first_reference": SOFTMAX, "first_patch": SOFTMAX, "first_edited": SOFTMAX,
        "robustness_reference_patch": SHARE, "robustness_reference_edited": SHARE, "robustness_patch_edited": SHARE,
        "change_reference_patch": SHARE, "change_reference_edited": SHARE, "change_patch_edited": SHARE,
        "confidence_change_reference_patch": SHARE, "confidence_change_reference_edited": SHARE,
        "confidence_change_patch_edited": SHARE, "confidence_robustness_reference_patch": SHARE,
        "confidence_robustness_reference_edited": SHARE, "confidence_robustness_patch_edited": SHARE}),
    "referring.score.CHOICE_SCORES": (CHOICE_SCORES, dict.fromkeys(
        ("correct", "iou", "random", "n_candidates", "ties"), CHOSEN)),
    "finetune.relcomp.scores.RELCOMP_SCORES": (RELCOMP_SCORES, dict.fromkeys(
        ("text_score", "image_score", "group_score", "rival_agrees", "confidence"), TRIPLES)),
}


def without_oracle(scores, oracles):
    """What is wrong with the oracles of a registry's scores, a line each."""
    found = [f"{name} has no oracle: write a test that computes it in another way, and name it in tests/test_oracles.py"
             for name in scores if name not in oracles]
    found += [f"{name} is in no registry any more" for name in oracles if name not in scores]
    for name, address in oracles.items():
        module, _, function = address.partition("::")
        tree = ast.parse((TESTS / f"{module}.py").read_text(encoding="utf-8"))
        tests = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        if function not in tests:
            found.append(f"{name}: there is no test {address}")
        elif not any(isinstance(node, ast.Assert) or "assert" in ast.unparse(getattr(node, "func", ast.Pass()))
                     for node in ast.walk(tests[function])):
            found.append(f"{name}: {address} asserts nothing")
    return found


@pytest.mark.parametrize("registry", ORACLES)
def test_every_score_has_an_oracle(registry):
    assert without_oracle(*ORACLES[registry]) == []
