"""GroundingScores: the digits of score_maps for any split, merge order and number of processes."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import MetricCollection
from two_processes import both_end_well

from qgcam_lib.metrics import METRICS, SCORE_COLUMNS, score_maps
from qgcam_lib.metrics.torchmetric import GroundingScores
from qgcam_lib.statistics import summarize

ROOT = Path(__file__).parents[1]
RNG = np.random.default_rng(0)
N = 14
MAPS = RNG.random((N, 9, 12), dtype=np.float32)
MAPS[3] = 0  # no mass
MAPS[7] = 1  # all tie
MAPS[9, 2:4] = 1.0
BOXES = [[[x, 1, x + 4, 7]] + ([[0, 0, 2, 2]] if x % 2 else []) for x in RNG.integers(0, 8, N).tolist()]
IDS, GROUPS = [f"ü{k}" for k in range(N)], [f"image{k // 3}" for k in range(N)]


def update(metric, rows):
    rows = list(rows)
    metric.update(torch.from_numpy(MAPS[rows]), [BOXES[k] for k in rows], ids=[IDS[k] for k in rows],
                  groups=[GROUPS[k] for k in rows])
    return metric


def values(metric):
    return {name: value.item() for name, value in metric.compute().items()}


def same(a, b):
    return a.keys() == b.keys() and all(a[k] == b[k] or (a[k] != a[k] and b[k] != b[k]) for k in a)


WHOLE = values(update(GroundingScores(), range(N)))


def test_means_and_counts_are_those_of_score_maps():
    frame = score_maps(MAPS, BOXES)
    summary = summarize(frame, list(SCORE_COLUMNS), group=None, n_bootstrap=0).set_index("metric")
    for name in SCORE_COLUMNS:
        assert WHOLE[name] == pytest.approx(summary.value[name], rel=1e-13)
        assert WHOLE.get(f"{name}_n_undefined", 0) == summary.n_undefined[name]
    assert WHOLE["n"] == N and WHOLE["io_ratio_n_undefined"] == 1
    assert {k for k in WHOLE if k.endswith("_n_undefined")} == {
        f"{name}_n_undefined" for name, m in METRICS.items() if m.undefined_when != "never"}
    rows = update(GroundingScores(), range(N)).frame()
    assert rows.id.tolist() == IDS and rows.group.tolist() == GROUPS
    for name in SCORE_COLUMNS:
        np.testing.assert_array_equal(rows[name], frame[name].astype(float))


def test_options_and_image_sizes_are_passed_on():
    options = {"protocol": "paper", "ties": "first", "tau": 0.4, "delta": 3.0, "distance": "symmetric"}
    metric = GroundingScores(**options)
    boxes = [np.array(b) * 3 for b in BOXES]
    metric.update(list(MAPS), boxes, image_sizes=(27, 36))
    expected = score_maps(MAPS, boxes, image_sizes=(27, 36), **options)
    for name in SCORE_COLUMNS:
        np.testing.assert_array_equal(metric.frame()[name], expected[name].astype(float))
    assert metric.frame().columns.tolist() == list(SCORE_COLUMNS)  # neither ids nor groups were given


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.permutations(range(N)), st.lists(st.integers(0, N), max_size=4), st.randoms(use_true_random=False))
def test_any_split_and_any_order_of_merging_give_the_same_digits(order, cuts, random):
    cuts = [0, *sorted(cuts), N]
    parts = [update(GroundingScores(), order[a:b]) for a, b in zip(cuts, cuts[1:])]
    while len(parts) > 1:
        random.shuffle(parts)
        parts[-2].merge_state(parts.pop())
    assert same(values(parts[0]), WHOLE)
    assert sorted(parts[0].frame().id) == sorted(IDS)


def test_forward_gives_the_batch_and_keeps_the_rest():
    metric = update(GroundingScores(), range(5))
    batch = metric(torch.from_numpy(MAPS[5:]), BOXES[5:], ids=IDS[5:], groups=GROUPS[5:])
    assert same({k: v.item() for k, v in batch.items()}, values(update(GroundingScores(), range(5, N))))
    assert same(values(metric), WHOLE) and sorted(metric.frame().id) == sorted(IDS)


def test_reset_clone_pickle_state_dict_and_device():
    metric = update(GroundingScores(), range(N))
    for other in (copy.deepcopy(metric), metric.clone(), pickle.loads(pickle.dumps(metric)), metric.to("cpu")):
        assert same(values(other), WHOLE)
    metric.persistent(True)
    fresh = GroundingScores()
    fresh.persistent(True)
    fresh.load_state_dict(metric.state_dict())
    assert same(values(fresh), WHOLE) and fresh.frame().id.tolist() == IDS
    metric.reset()
    assert len(metric.frame()) == 0 and metric.protocol is None
    assert same(values(update(metric, range(N))), WHOLE)
    assert all(value.dtype == torch.float64 and value.ndim == 0 for value in metric.compute().values())


@pytest.mark.gpu
def test_the_same_scores_on_a_gpu():
    metric = GroundingScores(backend="torch").to("cuda")
    metric.update(torch.from_numpy(MAPS).cuda(), BOXES)
    found = metric.compute()
    assert found["io_ratio"].device.type == "cuda"
    for name in SCORE_COLUMNS:
        assert found[name].item() == pytest.approx(WHOLE[name], rel=1e-5)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_nothing_yet_is_nan_and_zero():
    found = values(GroundingScores())
    assert found["n"] == 0 and np.isnan(found["io_ratio"]) and found["io_ratio_n_undefined"] == 0


def test_different_options_are_never_merged_or_grouped():
    metric = update(GroundingScores(), range(3))
    for other in (GroundingScores("pixel"), GroundingScores(ties="first"), GroundingScores(tau=0.71)):
        with pytest.raises(ValueError, match="metrics with equal protocol, .* got different ones"):
            metric.merge_state(update(other, range(3, 6)))
        assert len(metric.frame()) == 3
    both = MetricCollection({"expected": GroundingScores(), "first": GroundingScores(ties="first"),
                             "again": GroundingScores()})
    both.update(MAPS[:2], BOXES[:2])  # no ties: all states but the digest are equal
    assert sorted(map(sorted, both.compute_groups.values())) == [["again", "expected"], ["first"]]
    both.update(MAPS[7:8], BOXES[7:8])
    found = {name: metric.compute()["pg_hit"].item() for name, metric in both.items()}
    assert found["expected"] == found["again"] != found["first"]
    assert len(both.compute()) == 3 * (len(SCORE_COLUMNS) + 6)


@pytest.mark.parametrize("wrong, words", [
    (lambda m: m.update(-MAPS[:2], BOXES[:2]), "negative ones in example 0"),
    (lambda m: m.update(MAPS[:2] * np.nan, BOXES[:2]), "NaN or infinity in example 0"),
    (lambda m: m.update(MAPS[:2], BOXES[:3]), "one entry per map"),
    (lambda m: m.update(MAPS[:2], [[[3, 3, 3, 9]]] * 2), "empty or inverted"),
    (lambda m: m.update(MAPS[:2], BOXES[:2], ids=["a"]), "ids: expected one text .*, 2 in all, got 1"),
    (lambda m: m.update(MAPS[:2], BOXES[:2], ids=["a", "b"], groups=["a"]), "groups: expected one .*, 2 in all, got 1"),
    (lambda m: GroundingScores(ties="last"), "ties"),
    (lambda m: GroundingScores("papers"), "protocol"),
])  # fmt: skip
def test_a_wrong_batch_is_refused_and_leaves_no_trace(wrong, words):
    metric = update(GroundingScores(), range(N))
    with pytest.raises(ValueError, match=words):
        wrong(metric)
    assert same(values(metric), WHOLE)


WORKER = """
import sys, torch
sys.path.insert(0, sys.argv[3])
import torch.distributed as dist
from test_grounding_scores import GroundingScores, N, WHOLE, same, update, values
rank, world, place = int(sys.argv[1]), 2, sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + place, rank=rank, world_size=world)
for parts in ([range(0, N, 2), range(1, N, 2)], [range(0, 3), range(3, N)], [range(N), []]):
    metric = GroundingScores()
    for start in parts[rank]:
        update(metric, [start])
    assert same(values(metric), WHOLE), (rank, values(metric))
    assert len(metric.frame()) == len(parts[rank])  # the process's own rows are back
    with metric.sync_context():
        assert sorted(metric.frame().id) == sorted(f"\\u00fc{k}" for k in range(N))
try:
    values(update(GroundingScores(ties=("first", "optimistic")[rank]), [0]))
except ValueError as error:
    assert "in the same way" in str(error)
else:
    raise AssertionError("different options were gathered")
print("fine")
"""


@pytest.mark.nightly
def test_two_processes_give_the_digits_of_one(tmp_path):
    both_end_well(WORKER, tmp_path / "meet")


def test_scores_without_torch_stay_without_it():
    code = ("import sys, qgcam_lib.metrics, qgcam_lib.statistics, qgcam_lib.storage.rows; "
            "print({'torch', 'torchmetrics'} & set(sys.modules))")
    shown = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True, timeout=300)
    assert shown.strip() == "set()"
