"""What the library computed once still comes out, on any processor: tests/golden, computed again.

Three rules, for three kinds of numbers. Scores of stored maps, boxes and answers: to 1e-9, and each verdict exactly.
Maps and detection scores of a model: to 1e-5 of the map's maximum, for a network's float32 sums depend on the
processor and on the number of threads. Means from the picture to the score: within a tenth of the half width of their
95 % interval, for a map that moves by its last digits can take a pixel across a threshold or break a tie; how many did
is printed at the end.
"""

import json
import math

import numpy as np
import pytest
from golden import numbers

from qgcam_lib.maps import PROTOCOLS, MapProtocol
from qgcam_lib.metrics import score
from qgcam_lib.models import load_model

KEPT = json.loads(numbers.FILE.read_text(encoding="utf-8"))


def differences(kept, made, where=""):
    """Places where two nested results differ: floats by more than 1e-9, the rest at all."""
    if isinstance(kept, dict) and isinstance(made, dict):
        if kept.keys() != made.keys():
            return [f"{where}: {sorted(kept.keys() ^ made.keys())[:5]} on one side only"]
        return [found for key in kept for found in differences(kept[key], made[key], f"{where} > {key}")]
    if isinstance(kept, list) and isinstance(made, list) and len(kept) == len(made):
        return [found for k, pair in enumerate(zip(kept, made)) for found in differences(*pair, f"{where}[{k}]")]
    if isinstance(kept, float) and isinstance(made, float):
        return [] if math.isclose(kept, made, rel_tol=1e-9, abs_tol=1e-9) else [f"{where}: {kept} became {made}"]
    return [] if kept == made else [f"{where}: {kept} became {made}"]


def movements(kept, made):
    """By how many half widths of its interval each mean moved. kept, made: {name: [mean, half width or None]}."""
    assert kept.keys() == made.keys()
    found = {}
    for name, (mean, half) in kept.items():
        now = made[name][0]
        moved = 0.0 if mean == now else math.inf if None in (mean, now) else abs(now - mean)
        found[name] = moved / max(half, 1e-9) if half is not None and moved else moved and math.inf
    return found


def check_means(kept, made, tell, about):
    """Hold means against the rule. about: what else moved, for the report."""
    moved = movements(kept, made)
    tell(f"{about}means moved by at most {max(moved.values()):.2g} of a half width")
    assert not (far := {name: [kept[name][0], made[name][0]] for name, one in moved.items() if not one <= 0.1}), far


@pytest.fixture
def tell(record_property, request):
    """Say what moved: shown where the test fails, and in the summary of every run."""
    return lambda text: record_property("moved", f"{request.node.callspec.id}: {text}")


@pytest.mark.parametrize("part", numbers.EXACT)
def test_scores_of_stored_arrays(part):
    found = differences(KEPT[part], json.loads(json.dumps(numbers.EXACT[part]())))
    assert not found, f"{len(found)} differ, such as {found[:5]}"


# --- models -----------------------------------------------------------------------------------------------------------

def moved_by(before, now):
    """By which share of its maximum each map moved: float64 [n]."""
    return np.abs(np.float64(now) - before).max((1, 2)) / before.max((1, 2))


@pytest.mark.parametrize("model", numbers.EXPLAINERS)
def test_maps_of_a_model(model, tell):
    """The maps of three pictures value by value, the means of all."""
    before = numbers.stored()[model]
    asked = numbers.examples()[:len(before)]
    now = numbers.maps_of(load_model(model), asked)
    moved = moved_by(before, now)
    check_means(numbers.means(numbers.scored(before, asked)), numbers.means(numbers.scored(now, asked)), tell,
                f"maps moved by at most {moved.max():.2g} of their maximum, ")
    assert moved[:numbers.CLOSE].max() <= 1e-5


@pytest.mark.parametrize("reading", numbers.READINGS, ids=numbers.title)
def test_maps_of_another_layer_or_token(reading, tell):
    before = numbers.stored()[numbers.title(reading)]
    moved = moved_by(before, numbers.maps_of(numbers.load_reading(reading), numbers.examples()[:numbers.CLOSE]))
    tell(f"maps moved by at most {moved.max():.2g} of their maximum")
    assert moved.max() <= 1e-5


@pytest.mark.parametrize("dataset, split", numbers.SPLITS)
def test_scores_of_a_split(dataset, split, tell):
    kept, made = KEPT[f"split {dataset} {split}"], numbers.split_scores(dataset, split)
    assert kept.pop("examples") == made.pop("examples"), "other phrases, sizes or boxes than before"
    check_means(kept, made, tell, "")


@pytest.mark.filterwarnings("ignore:words that this model never saw")
@pytest.mark.parametrize("model", numbers.DETECTORS)
def test_boxes_of_a_detector(model, tell):
    """Each pair's scores in descending order, to 1e-5 of the highest of all; TRICD's scores of the boxes."""
    before, now = numbers.stored_detections(model), numbers.detections(model)
    assert np.array_equal(before["pairs"], now["pairs"])
    ordered = [rows["scores"][np.lexsort((-rows["scores"], rows["pairs"]))] for rows in (before, now)]
    moved = np.abs(np.float64(ordered[1]) - ordered[0]).max() / before["scores"].max()
    check_means(*(numbers.intervals(numbers.evaluated(rows)) for rows in (before, now)), tell,
                f"scores moved by at most {moved:.2g} of the highest, ")
    assert moved <= 1e-5


@pytest.mark.parametrize("model", [numbers.ANSWERER])
def test_answers_of_a_model(model, tell):
    kept, said = dict(KEPT["answers"]), numbers.answers()
    before = kept.pop("said")
    assert not differences(kept, numbers.intervals(numbers.judged(before)))
    assert len(before) == len(said)
    changed = sum(a != b for a, b in zip(before, said))
    check_means(kept, numbers.intervals(numbers.judged(said)), tell, f"{changed} of {len(said)} answers changed, ")


# --- would a real change be seen? -------------------------------------------------------------------------------------

def test_a_changed_tie_rule_is_seen(monkeypatch):
    monkeypatch.setattr(score, "tie_rule", lambda rule, share, first: np.float64(share > 0))
    assert differences(KEPT["scores"], numbers.stored_scores())


@pytest.mark.parametrize("change", [{"resampler": "bilinear"}, {"edge": "replicate"}], ids=str)
def test_a_changed_resampler_is_seen(change, monkeypatch):
    monkeypatch.setitem(PROTOCOLS, "paper", MapProtocol(**(PROTOCOLS["paper"].as_dict() | change)))
    assert differences(KEPT["scores"], numbers.stored_scores())
