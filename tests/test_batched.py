"""Scores in batches of torch against the compiled pass: sums, exact verdicts, what goes back, and the same on a GPU."""

import warnings

import numpy as np
import pytest
import torch
from scipy import ndimage

from qgcam_lib.maps import PROTOCOLS, MapProtocol, prepare_map
from qgcam_lib.metrics import SCORE_COLUMNS, batched, score, score_maps

EXACT = ["pg_hit", "pg_ties", "pg_uncertain"]
SUMS = [name for name in SCORE_COLUMNS if name not in EXACT]
RAW = MapProtocol("raw", before="max", resampler="spline", edge="reflect", clip="input")


def case(n, sizes, seed=0):
    """Blobs, few levels, twin peaks, constant maps; boxes on whole pixels and between them, up to three a map."""
    rng = np.random.default_rng(seed)
    maps = ndimage.gaussian_filter(rng.random((n, 24, 24)) ** 6, (0, 1, 1)).astype(np.float32)
    maps[1::5] = np.round(maps[1::5] / maps.max() * 7) / 7
    maps[2::5] = np.maximum(maps[2::5], maps[2::5, ::-1])
    maps[3::15], maps[8::15] = 0, 0.5
    image_sizes = np.array([sizes[k] for k in rng.integers(len(sizes), size=n)])
    boxes = []
    for k, (height, width) in enumerate(image_sizes):
        low = rng.uniform(0, 0.6, (rng.integers(1, 4), 2)) * [width, height]
        high = np.minimum(low + rng.uniform(0.05, 0.6, low.shape) * [width, height], [width, height])
        boxes.append(np.concatenate([low, high], 1) if k % 3 else np.round(np.concatenate([low, high + 1], 1)))
        boxes[-1] = np.minimum(boxes[-1], [width, height, width, height])
    return maps, boxes, image_sizes


def hold(maps, boxes, image_sizes, protocol, device="cpu", **options):
    """The same by both; returns the share that went back to the compiled pass."""
    shares, own = [], batched.batch_parts

    def watched(*given):
        parts, again = own(*given)
        shares.append((len(again), again.sum()))
        return parts, again

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(score, "batch_parts", watched)
        how = dict(image_sizes=image_sizes, protocol=protocol, **options)
        ours = score_maps(torch.tensor(maps, device=device), boxes, backend="torch", **how)
        compiled = score_maps(maps, boxes, backend="numba", **how)
    for name in EXACT:
        assert (ours[name] == compiled[name]).all(), name
    np.testing.assert_allclose(ours[SUMS], compiled[SUMS], rtol=1e-5, atol=0)
    asked, back = np.sum(shares, axis=0)
    assert asked == len(maps)
    return back / asked


@pytest.mark.parametrize("protocol", [*PROTOCOLS, RAW])
def test_sums_agree_and_verdicts_are_equal(protocol):
    """At most every fourth map goes back (twin peaks on both sides of a box), so the batches are what is tested."""
    assert hold(*case(150, [(96, 130), (77, 60)]), protocol) < 1 / 4


def test_options_reach_the_batches():
    given = case(60, [(60, 90)], seed=1)
    for options in ({"ties": "first", "delta": 5, "tau": 0.3}, {"distance": "symmetric", "ties": "optimistic"},
                    {"clip_dice": True, "ties": "pessimistic", "delta": 0}):
        hold(*given, "paper", **options)


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", ["paper", "pixel", "amc", "gscorecam"])
def test_ten_thousand_maps_of_picture_size(protocol):
    assert hold(*case(10_000, [(384, 384), (333, 500), (500, 375)], seed=2), protocol) < 1 / 4


@pytest.mark.parametrize(("resampler", "edge", "antialias"), [
    ("spline", "zero", True), ("bicubic", "replicate", False), ("bilinear", "reflect", True)])
@pytest.mark.parametrize("size", [(60, 47), (13, 9)])
def test_a_map_made_one_by_one_lies_between_the_two_ends(resampler, edge, antialias, size):
    protocol = MapProtocol("any", before="minmax", resampler=resampler, edge=edge, antialias=antialias)
    maps = np.random.default_rng(3).random((50, 17, 23)).astype(np.float32)
    (high, _), (low, _) = batched._both_ends(torch.tensor(maps), size, protocol)
    one_by_one = np.stack([prepare_map(a, size, protocol) for a in maps])
    assert (low.numpy() <= one_by_one).all() and (one_by_one <= high.numpy()).all()
    assert (low != high).double().mean() < 1e-3


def test_a_tie_that_rounding_decides_goes_back():
    """The second of two peaks is (1 + (1 - 2**-24)) / 2, half way between 1 and the float32 below it."""
    a = np.zeros((2, 2, 8), np.float32)
    a[:, :, :2] = a[0, :, 6] = 1
    a[0, :, 7], a[1, :, 6:] = 1 - 2**-24, 0.9
    protocol = MapProtocol("half", grid=(2, 4))
    parts, again = batched.batch_parts(torch.tensor(a), np.tile([0.0, 0, 1, 2], (2, 1)), np.arange(3), (2, 4), protocol,
                                       score.ScoreOptions())
    assert again.tolist() == [True, False] and parts[1, 8] == 2


def test_the_device_is_waited_for_three_times_whatever_the_number_of_maps(monkeypatch):
    """Once for negative cells, once for the maps that are looked at, once for a bucket."""
    waits, copy = [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: waits.append(self.shape) or copy(self))
    for n in (20, 200):
        waits.clear()
        boxes = np.tile([[0.0, 0.0, 30.0, 40.0]], (n, 1))
        maps = np.random.default_rng(0).random((n, 6, 6)).astype(np.float32)
        score_maps(torch.tensor(maps), boxes, image_sizes=(40, 30), protocol="amc", backend="torch")
        assert len(waits) == 3, waits


def test_tensors_and_lists_of_many_shapes_and_types_give_what_arrays_give():
    maps, boxes, sizes = case(12, [(40, 30)], seed=4)
    shapes = [a[: 10 + k % 3] for k, a in enumerate(maps)]
    one = score_maps(shapes, boxes, image_sizes=sizes)
    for form in (torch.float32, torch.float64):
        other = score_maps([torch.tensor(a, dtype=form) for a in shapes], boxes, image_sizes=sizes, backend="torch")
        np.testing.assert_allclose(other[SUMS], one[SUMS], rtol=1e-5)
        assert other[EXACT].equals(one[EXACT])
    as_bytes = (255 * maps / maps.max()).astype(np.uint8)
    by_numba = score_maps(as_bytes, boxes, image_sizes=sizes, backend="numba")
    assert score_maps(torch.tensor(as_bytes), boxes, image_sizes=sizes, backend="torch")[EXACT].equals(by_numba[EXACT])
    half = torch.tensor(maps).bfloat16()
    assert score_maps(half, boxes, image_sizes=sizes, backend="torch")[EXACT].equals(
        score_maps(half, boxes, image_sizes=sizes, backend="numba")[EXACT])


@pytest.mark.parametrize("rule", ["relu", "minmax"])
@pytest.mark.parametrize("form", [torch.tensor, lambda maps: [torch.tensor(a) for a in maps]])
def test_negative_cells_are_counted_and_settled_in_the_batch(rule, form):
    maps, boxes, sizes = case(30, [(40, 30)], seed=5)
    maps[::2] -= 0.05
    ours, compiled = (score_maps(given, boxes, image_sizes=sizes, protocol="amc", negatives=rule, backend=backend)
                      for given, backend in ((form(maps), "torch"), (maps, "numba")))
    np.testing.assert_allclose(ours[SUMS], compiled[SUMS], rtol=1e-5)
    assert ours[[*EXACT, "n_negative"]].equals(compiled[[*EXACT, "n_negative"]]) and ours.n_negative.any()


@pytest.mark.gpu
@pytest.mark.parametrize("protocol", [*PROTOCOLS, RAW])
def test_the_same_on_a_gpu(protocol):
    assert hold(*case(1000, [(384, 384), (333, 500)], seed=6), protocol, "cuda") < 1 / 4


@pytest.mark.gpu
def test_a_call_on_a_gpu_waits_for_it_as_often_whatever_the_number_of_maps():
    waits = []
    for n in (100, 2000):
        maps, boxes, _ = case(n, [(384, 384)], seed=7)
        maps = torch.tensor(maps[4::5], device="cuda")  # blobs, of which none goes back
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            score_maps(maps, boxes[4::5], image_sizes=(384, 384), protocol="amc")
        torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("synchroniz" in str(one.message) for one in caught))
    assert waits[0] == waits[1] <= 4
