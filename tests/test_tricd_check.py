"""The checks that a user runs: all pass on sound input, each fails on the fault it is for, none raises."""

import copy
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qgcam_lib.data.tricd.pairs import SUBSETS, Tricd, load_tricd, tricd_content
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection import selfcheck as tricd_check
from qgcam_lib.phrase_detection.audit import after_group_recall
from qgcam_lib.phrase_detection.selfcheck import (
    BACKENDS,
    check_tricd,
    known_case,
    official_scores,
    plain_recall,
    pseudo_image_ap,
)
from qgcam_lib.phrase_detection.synthetic import break_ties, synthetic_predictions, synthetic_tricd

REAL = Path(__file__).parents[1] / ".." / "shared" / "realdata" / "tricd"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no real TRICD files (../shared/realdata/tricd)")
NOT_RUN = {"given numbers", "authors' program"}


@pytest.fixture(scope="module")
def data():
    return synthetic_tricd(6, 1, subsets=SUBSETS)


def outcome(table):
    return dict(zip(table["check"], table["ok"]))


def test_all_checks_pass_without_files():
    table = check_tricd()
    assert list(table) == ["check", "says", "expected", "got", "ok", "seconds"] and (table.seconds >= 0).all()
    assert {name for name, ok in outcome(table).items() if ok is None} == NOT_RUN
    assert all(ok in (True, None) for ok in table.ok) and table.check.is_unique
    assert table[table.ok.isna()].got.str.startswith("not run (").all()


def test_other_seeds_and_given_data_pass(data):
    for table in (check_tricd(seed=7), check_tricd(data), check_tricd(data, synthetic_predictions(data, 3))):
        assert all(ok in (True, None) for ok in table.ok), table[table.ok.eq(False)]


# --- a check must be able to fail ------------------------------------------------------------------------------------

def shifted(table, change):
    out = table.copy()
    out["value"] = change(out["value"])
    return out


def reads_order(data, predictions, *args, **kwargs):
    """An evaluator whose numbers depend on the first box listed."""
    table = evaluate(data, predictions, *args, **kwargs)
    first = next((entry["scores"][0] for entry in predictions.values() if len(entry["scores"])), 0)
    return shifted(table, lambda value: value + first * 1e-3 * (len(predictions) > 3))


def changes_arguments(data, predictions, *args, **kwargs):
    table = evaluate(data, predictions, *args, **kwargs)
    for entry in predictions.values():
        entry["scores"][:] = list(entry["scores"])[::-1]
    return table


def accepts_everything(data, predictions, *args, **kwargs):
    try:
        return evaluate(data, predictions, *args, **kwargs)
    except ValueError:
        return evaluate(data, {}, *args, **kwargs)


def pools_first(data, predictions, *args, **kwargs):
    """What the authors' main does: group recall changes the predictions before AP is computed."""
    everyone = {pair.id: {"scores": [], "boxes": [], "phrase_ids": []} for pair in data.pairs}
    given = {int(key): {name: list(np.asarray(value).tolist()) for name, value in entry.items()}
             for key, entry in predictions.items()}
    return evaluate(data, after_group_recall(data, {**everyone, **given}, rename=False), *args, **kwargs)


@pytest.mark.parametrize(("broken", "caught"), [
    (lambda *a, **k: shifted(evaluate(*a, **k), lambda v: v * 0.999), {"perfect", "definition", "pycocotools"}),
    (lambda *a, **k: shifted(evaluate(*a, **k), lambda v: v + 1e-4), {"perfect", "silent", "known numbers"}),
    (reads_order, {"order"}), (changes_arguments, {"arguments"}), (accepts_everything, {"faults"}),
    (pools_first, {"pycocotools", "faster_coco_eval", "known numbers"}),
    (lambda *a, **k: 1 / 0, {"perfect", "silent", "order", "arguments", "faults", "definition", "known numbers"}),
])
def test_a_broken_evaluator_is_caught(data, monkeypatch, broken, caught):
    monkeypatch.setattr(tricd_check, "evaluate", broken)
    found = {name for name, ok in outcome(check_tricd(data)).items() if ok is False}
    assert caught <= found


def test_a_missing_program_is_said_and_not_a_failure(data, monkeypatch):
    monkeypatch.setattr(tricd_check, "find_spec", lambda name: None)
    table = check_tricd(data).set_index("check")
    assert table.ok[list(BACKENDS)].tolist() == [None, None]
    assert table.got["pycocotools"] == "not run (pycocotools is not installed)"


# --- the parts -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(2))
def test_pseudo_images_give_the_same_ap(data, backend, seed):
    predictions = break_ties(synthetic_predictions(data, seed, clutter=60.0 if seed else 2.0), seed)  # over 100 a pair
    table = evaluate(data, predictions).query("subset == 'all'").set_index("metric").value
    for name, value in pseudo_image_ap(data, predictions, backend).items():
        assert value == pytest.approx(table[name], abs=1e-9)


def test_pseudo_images_of_nothing(data):
    assert pseudo_image_ap(data, {})["AP"] == 0
    with pytest.raises(ValueError, match="backend"):
        pseudo_image_ap(data, {}, "coco")


def test_plain_recall_is_the_evaluators(data):
    predictions = synthetic_predictions(data, 2, alarms=3.0)
    table = evaluate(data, predictions, recall_at=(1, 3)).set_index(["metric", "subset"]).value
    for k in (1, 3):
        for name, kind in (("recall", {}), ("group_recall", {"group": True}), ("merged_recall", {"merged": True})):
            for subset, value in plain_recall(data, predictions, k, **kind).items():
                assert value == table[f"{name}@{k}", subset]


def test_a_written_file_reads_back(data, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(tricd_content(data)))
    again = load_tricd(tmp_path / "a.json")
    np.testing.assert_allclose(again.truth, data.truth, atol=1e-9)
    for name in ("pair_ids", "positive", "subset_codes", "phrase_ids", "rival_of", "group_codes"):
        np.testing.assert_array_equal(getattr(again, name), getattr(data, name))


def test_the_known_case_says_more_than_0_and_1():
    data, predictions, expected = known_case()
    assert len(data) == 24 and len(expected) == 20
    assert len({round(value, 6) for (metric, _), value in expected.items() if metric == "AP"}) == 4
    assert expected["group_recall@1", "all"] < expected["recall@1", "all"] < 1
    wrong = copy.deepcopy(predictions)
    for entry in wrong.values():
        entry["scores"] = [-score for score in entry["scores"]]
    assert tricd_check._known((data, wrong, expected))[2] is False


def test_predictions_need_annotations(tmp_path):
    with pytest.raises(ValueError, match="predictions: expected their annotations"):
        check_tricd(predictions={})


# --- the authors' program --------------------------------------------------------------------------------------------

def test_another_folder_is_no_checkout(data, tmp_path):
    table = check_tricd(data, official=tmp_path).set_index("check")
    assert table.ok["authors' program"] is None and "grounding_AP.py" in table.got["authors' program"]


def test_a_program_that_fails_is_a_failed_check(data, tmp_path):
    folder = tmp_path / "grounding" / "evaluation"
    folder.mkdir(parents=True)
    (folder / "grounding_AP.py").write_text("raise SystemError('out of order')")
    table = check_tricd(data, official=tmp_path).set_index("check")
    assert table.ok["authors' program"] is False and "out of order" in table.got["authors' program"]


def test_what_the_program_prints_is_compared(data, tmp_path):
    """A stand-in for their functions: the way there and back, and that each gets fresh predictions."""
    folder = tmp_path / "grounding" / "evaluation"
    folder.mkdir(parents=True)
    (folder / "grounding_AP.py").write_text(
        "import pandas as pd\n"
        "def get_AP(truth, coco, found):\n"
        "    assert len(truth['images']) == len(found) == len(coco.imgs), 'not whole'\n"
        "    assert {image['source'] for image in truth['images']} == {'coco_test2017'}, 'a source it does not know'\n"
        "    assert all(set(map(int, image['phrases'])) <= set(found[str(image['id'])]['phrase_ids'])\n"
        "               for image in truth['images']), 'a phrase without a box'\n"
        "    return pd.DataFrame([{'metric': 'AP', 'all': 0.25}])\n")
    (folder / "grounding_recall.py").write_text(
        "import pandas as pd\n"
        "from prettytable import PrettyTable\n"
        "def get_recall(truth, found, topk):\n"
        "    assert found.pop(next(iter(found)))\n"
        "    return pd.DataFrame([{'metric': f'recall@{k}', 'all': 0.5} for k in topk])\n"
        "def get_group_recall(truth, found, topk):\n"
        "    assert len(found) == len(truth['images']), 'not fresh'\n"
        "    return pd.DataFrame([{'metric': f'group_recall@{k}', 'coco_obj': 0.125} for k in topk])\n")
    other = Tricd(tuple(replace(pair, source="made", subset="coco_obj") for pair in data.pairs))
    found = official_scores(other, {}, tmp_path)
    assert found == {("AP", "all"): 0.25, ("recall@1", "all"): 0.5, ("recall@5", "all"): 0.5,
                     ("group_recall@1", "coco_obj"): 0.125, ("group_recall@5", "coco_obj"): 0.125}
    assert outcome(check_tricd(other, official=tmp_path))["authors' program"] is False


@pytest.mark.skipif("TRICD_CHECKOUT" not in os.environ, reason="no checkout of ashkamath/TRICD in TRICD_CHECKOUT")
def test_the_authors_program_agrees(data):
    table = check_tricd(data, official=os.environ["TRICD_CHECKOUT"])
    assert outcome(table)["authors' program"] is True


@needs_real
def test_the_real_validation_file_and_its_numbers():
    table = check_tricd(REAL / "TRICD_grounding_val.json", REAL / "synthetic_predictions_seed0.json",
                        expected=REAL / "synthetic_expected_metrics.json").set_index("check")
    assert table.ok.drop("authors' program").tolist() == [True] * 10
    assert table.expected["given numbers"].startswith("AP 0.302640") and "15 values" in table.got["given numbers"]
