"""The checks that a user runs: all pass on sound input, each fails on the fault it is for."""

import json
from pathlib import Path

import numpy as np
import pytest

from qgcam_lib.data.tricd.pairs import SUBSETS, load_tricd, tricd_content
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection import selfcheck as tricd_check
from qgcam_lib.phrase_detection.audit import after_group_recall
from qgcam_lib.phrase_detection.prediction_files import synthetic_predictions, synthetic_tricd
from qgcam_lib.phrase_detection.selfcheck import check_tricd, known_case, pseudo_image_ap

REAL = Path(__file__).parents[1] / ".." / "shared" / "realdata" / "tricd"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no real TRICD files (../shared/realdata/tricd)")


@pytest.fixture(scope="module")
def data():
    return synthetic_tricd(6, 1, subsets=SUBSETS)


def outcome(table):
    return dict(zip(table["check"], table["ok"]))


def test_all_checks_pass(data):
    assert check_tricd().ok.tolist() == [True] * 5
    assert check_tricd(data, synthetic_predictions(data, 3)).ok.tolist() == [True] * 5


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


def pools_first(data, predictions, *args, **kwargs):
    """What the authors' main does: group recall changes the predictions before AP is computed."""
    everyone = {pair.id: {"scores": [], "boxes": [], "phrase_ids": []} for pair in data.pairs}
    given = {int(key): {name: list(np.asarray(value).tolist()) for name, value in entry.items()}
             for key, entry in predictions.items()}
    return evaluate(data, after_group_recall(data, {**everyone, **given}, rename=False), *args, **kwargs)


@pytest.mark.parametrize(("broken", "caught"), [
    (lambda *a, **k: shifted(evaluate(*a, **k), lambda v: v * 0.999), {"perfect", "pycocotools", "known numbers"}),
    (lambda *a, **k: shifted(evaluate(*a, **k), lambda v: v + 1e-4), {"perfect", "silent", "known numbers"}),
    (reads_order, {"order"}), (pools_first, {"pycocotools", "known numbers"}),
    (lambda *a, **k: 1 / 0, {"perfect", "silent", "order", "pycocotools", "known numbers"}),
])
def test_a_broken_evaluator_is_caught(data, monkeypatch, broken, caught):
    monkeypatch.setattr(tricd_check, "evaluate", broken)
    found = {name for name, ok in outcome(check_tricd(data)).items() if ok is False}
    assert caught <= found


def test_the_known_case_says_more_than_0_and_1():
    data, _, expected = known_case()
    assert len(data) == 24 and len(expected) == 20
    assert len({round(value, 6) for (metric, _), value in expected.items() if metric == "AP"}) == 4
    assert expected["group_recall@1", "all"] < expected["recall@1", "all"] < 1


def test_predictions_need_annotations():
    with pytest.raises(ValueError, match="annotations: expected the TRICD file"):
        check_tricd(predictions={})


@needs_real
def test_the_real_validation_file_and_its_numbers():
    table = check_tricd(REAL / "TRICD_grounding_val.json", REAL / "synthetic_predictions_seed0.json",
                        expected=REAL / "synthetic_expected_metrics.json").set_index("check")
    assert table.ok.tolist() == [True] * 6 and table.got["given numbers"].startswith("15 values")


def test_pseudo_images_of_nothing(data):
    assert pseudo_image_ap(data, {})["AP"] == 0


def test_a_written_file_reads_back(data, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(tricd_content(data)))
    again = load_tricd(tmp_path / "a.json")
    np.testing.assert_allclose(again.truth, data.truth, atol=1e-9)
    for name in ("pair_ids", "positive", "subset_codes", "phrase_ids", "rival_of", "group_codes"):
        np.testing.assert_array_equal(getattr(again, name), getattr(data, name))
