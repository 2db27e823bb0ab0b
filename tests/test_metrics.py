"""The map scores: oracles, the two implementations against each other, properties, edges and bad input."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from qgcam_lib.boxes import box_mask, flip_boxes
from qgcam_lib.maps import PROTOCOLS, MapProtocol, normalise, prepare_map
from qgcam_lib.metrics import METRICS, SCORE_COLUMNS, score_maps
from qgcam_lib.metrics.formulas import TIES, find_peaks, score_map_literal
from qgcam_lib.statistics import compare, summarize

TEN = [
    "iou_soft", "iou_binary", "dice_soft", "dice_binary", "wdp_soft", "wdp_binary", "io_ratio", "pg_hit", "pg_ties",
    "pg_uncertain",
]
NAN_WITHOUT_MASS = ["io_ratio", "wdp_soft", "wdp_binary", "wdp_soft_rel", "wdp_binary_rel"]


def blobs(n, size=(24, 24), seed=0):
    return ndimage.gaussian_filter(np.random.default_rng(seed).random((n, *size)) ** 6, (0, 1, 1)).astype(np.float32)


def random_boxes(n, size, seed=0, k_max=1):
    rng, (h, w) = np.random.default_rng(seed), size
    out = []
    for k in rng.integers(1, k_max + 1, n):
        low = rng.uniform(0, 0.6, (k, 2)) * [w, h]
        high = np.minimum(low + rng.uniform(0.1, 0.6, (k, 2)) * [w, h], [w, h])
        out.append(np.round(np.concatenate([low, high], 1)))
    return out


def by_the_book(a, boxes, tau=0.7, delta=50.0, ties="expected"):
    """metrics/01_formulas sentence by sentence, pixel by pixel, in plain Python: shares no code with the library."""
    height, width, s = a.shape[0], a.shape[1], 1e-3
    pixels = [(i, j) for i in range(height) for j in range(width)]

    def in_box(i, j):
        return any(x0 <= j + 0.5 < x1 and y0 <= i + 0.5 < y1 for x0, y0, x1, y1 in boxes)

    def distance(i, j):
        return max(0.0, min(max(y0 - i, i - y1, x0 - j, j - x1) for x0, y0, x1, y1 in boxes))

    M = {p: in_box(*p) for p in pixels}
    out = {}
    for kind, value in (("soft", lambda p: float(a[p])), ("binary", lambda p: float(a[p] > 0.5))):
        both, mass, area = sum(value(p) for p in pixels if M[p]), sum(map(value, pixels)), sum(M.values())
        out[f"iou_{kind}"] = (both + s) / (mass + area - both + s)
        out[f"dice_{kind}"] = 2 * (both + s) / (mass + area + s)
        weighted = sum(value(p) * distance(*p) for p in pixels)
        for name, unit in ((f"wdp_{kind}", 1), (f"wdp_{kind}_rel", (height**2 + width**2) ** 0.5)):
            r = weighted / unit / (mass + 1e-6)
            out[name] = r / (1 + r) if mass else float("nan")
        if kind == "soft":
            out["io_ratio"] = both / mass if mass else float("nan")
    top = a.max()
    tied = [p for p in pixels if a[p] == top]
    hits = [M[p] for p in tied]
    out["pg_hit"] = {"expected": sum(hits) / len(hits), "first": hits[0], "optimistic": any(hits),
                     "pessimistic": all(hits)}[ties]
    out["pg_ties"] = len(tied)
    around = [(di, dj) for di in (-1, 0, 1) for dj in (-1, 0, 1)]
    peaks = [
        p
        for p in pixels
        if a[p] > tau
        and all(
            a[p] >= a[q]
            for q in ((p[0] + di, p[1] + dj) for di, dj in around)
            if 0 <= q[0] < height and 0 <= q[1] < width
        )
    ]
    kept = []
    for p in sorted(peaks, key=lambda p: -a[p]):
        if all(((p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2) ** 0.5 > delta for q in kept):
            kept.append(p)
    sides = {M[p] for p in kept if a[p] == a[kept[0]]}
    out["pg_uncertain"] = len(sides) == 2
    return out


def assert_same_scores(got, expected, atol=1e-5):
    columns = [c for c in got.columns if c in expected.columns]
    assert len(columns) >= 10
    for name in columns:
        x, y = got[name].to_numpy(float), expected[name].to_numpy(float)
        exact = name in ("pg_ties", "pg_uncertain", "pg_hit")
        assert np.allclose(x, y, rtol=0, atol=1e-12 if exact else atol, equal_nan=True), (name, x, y)


# --- oracles ---------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 10_000),
    st.tuples(st.integers(1, 9), st.integers(1, 11)),
    st.integers(1, 3),
    st.sampled_from(["random", "coarse", "sparse"]),
    st.sampled_from([0.0, 1.0, 2.5, 50.0]),
    st.sampled_from([0.3, 0.7]),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_every_formula_by_the_book(seed, size, k, kind, delta, tau):
    rng = np.random.default_rng(seed)
    a = {
        "random": lambda: rng.random(size),
        "coarse": lambda: rng.integers(0, 5, size) / 4,
        "sparse": lambda: (rng.random(size) > 0.8).astype(float),
    }[kind]().astype(np.float32)
    low = rng.uniform(0, 0.8, (k, 2)) * [size[1], size[0]]
    boxes = np.concatenate([low, low + rng.uniform(0.1, 0.2, (k, 2)) * [size[1], size[0]]], 1)
    for ties in ("expected", "first", "optimistic", "pessimistic"):
        expected = pd.DataFrame([by_the_book(a, boxes, tau, delta, ties)])
        assert_same_scores(score_maps(a[None], [boxes], tau=tau, delta=delta, ties=ties), expected)
        assert_same_scores(score_maps(a[None], [boxes], tau=tau, delta=delta, ties=ties, backend="torch"), expected)
    literal = score_map_literal(a, boxes, tau=tau, delta=delta)
    assert literal["pg_uncertain"] == expected.pg_uncertain[0] and literal["pg_ties"] == expected.pg_ties[0]


@pytest.mark.parametrize("size", [(384, 384), (240, 333)])
def test_paper_protocol_equals_numpy_and_scikit_image(size):
    maps, boxes = blobs(25), random_boxes(25, size, k_max=3)
    got = score_maps(maps, boxes, image_sizes=size, protocol="paper")
    expected = pd.DataFrame([score_map_literal(a, b, size) for a, b in zip(maps, boxes)])
    assert_same_scores(got, expected, atol=1e-6)
    assert expected.pg_uncertain.any() and not expected.pg_uncertain.all() and expected.pg_ties.max() > 50


def test_io_ratio_is_quantus_relevance_mass_accuracy():
    quantus = pytest.importorskip("quantus")
    maps, boxes = blobs(6, (20, 30)), random_boxes(6, (20, 30))
    masks = np.stack([box_mask(b, (20, 30)) for b in boxes]).astype(int)
    metric = quantus.RelevanceMassAccuracy(abs=False, normalise=False, disable_warnings=True)
    theirs = metric.evaluate_batch(maps[:, None], masks[:, None])
    assert np.allclose(score_maps(maps, boxes).io_ratio, theirs, atol=1e-6)


def test_io_ratio_and_wdp_are_the_sigmoids_of_the_paper():
    a, box = blobs(1, (30, 40))[0].astype(float), [[5, 4, 22, 19]]
    s_in, mass = a[4:19, 5:22].sum(), a.sum()
    i, j = np.mgrid[:30, :40]
    D = np.maximum(np.maximum(4 - i, i - 19), np.maximum(5 - j, j - 22))
    penalty = (a * (1 - box_mask(box, a.shape)) * D).sum() / (mass + 1e-6)
    row = score_maps(a[None], [box]).iloc[0]
    assert np.isclose(row.io_ratio, 1 / (1 + np.exp(-np.log(s_in / (mass - s_in)))))
    assert np.isclose(row.wdp_soft, 1 / (1 + np.exp(-np.log(penalty))))


def test_peaks_against_scikit_image():
    feature = pytest.importorskip("skimage.feature")
    for seed in range(5):
        a = prepare_map(blobs(1, seed=seed)[0], (120, 160), "pixel")
        found = feature.peak_local_max(a, min_distance=1, threshold_abs=0.7, exclude_border=False)
        ours = find_peaks(a, 0.7, 0.0)  # without suppression
        assert {tuple(p) for p in found} == {tuple(p) for p in ours[:, :2].astype(int)}
        kept = find_peaks(a, 0.7, 30.0)
        gaps = np.linalg.norm(kept[:, None, :2] - kept[None, :, :2], axis=-1) + 1e9 * np.eye(len(kept))
        assert gaps.min() > 30 and (np.diff(kept[:, 2]) <= 0).all() and kept[0, 2] == a.max()


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_both_backends_agree_on_maps_of_all_sizes(name):
    shapes, sizes = [(24, 24), (7, 9), (16, 16), (24, 24), (1, 5)], [(60, 90), (48, 30), (60, 90), (33, 50), (20, 20)]
    maps = [blobs(1, shape, seed)[0] for seed, shape in enumerate(shapes)]
    boxes = [random_boxes(1, size, seed, 3)[0] for seed, size in enumerate(sizes)]
    for options in ({}, dict(distance="symmetric", clip_dice=True, ties="first", delta=10, tau=0.5)):
        fast = score_maps(maps, boxes, image_sizes=sizes, protocol=name, backend="numba", **options)
        slow = score_maps(maps, boxes, image_sizes=sizes, protocol=name, backend="torch", **options)
        assert_same_scores(fast, slow, atol=1e-7)


@pytest.mark.parametrize("protocol", [
    MapProtocol("blurred", before="minmax", resampler="spline", edge="zero", clip="input", blur=0.02, after="minmax"),
    MapProtocol("fixed", before="max", grid=(50, 40)),
    MapProtocol("maximum", before="minmax", resampler="bicubic", clip="input", after="max"),
])
def test_other_protocols_score_what_prepare_map_gives(protocol):
    maps, boxes, size = blobs(4), random_boxes(4, (60, 90)), (60, 90)
    got = score_maps(maps, boxes, image_sizes=size, protocol=protocol)
    prepared = np.stack([prepare_map(a, size, protocol) for a in maps])
    assert_same_scores(got, score_maps(prepared, boxes, image_sizes=size, protocol="native"), atol=1e-7)
    assert_same_scores(got, score_maps(maps, boxes, image_sizes=size, protocol=protocol, backend="torch"), atol=1e-5)


# --- properties ------------------------------------------------------------------------------------------------------


@given(st.permutations(range(6)))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_permuting_examples_permutes_rows(order):
    shapes = [(24, 24), (9, 9), (24, 24), (9, 9), (12, 20), (24, 24)]
    maps, boxes = [blobs(1, s, n)[0] for n, s in enumerate(shapes)], random_boxes(6, (40, 60), k_max=2)
    straight = score_maps(maps, boxes, image_sizes=(40, 60), protocol="paper")
    mixed = score_maps([maps[n] for n in order], [boxes[n] for n in order], image_sizes=(40, 60), protocol="paper")
    pd.testing.assert_frame_equal(mixed, straight.iloc[list(order)].reset_index(drop=True))


@given(st.integers(0, 999), st.floats(0, 0.9), st.integers(0, 2), st.integers(0, 3))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_mass_added_inside_never_lowers_io_ratio(seed, extra, i, j):
    a = np.random.default_rng(seed).random((8, 9)) / 10
    more = a.copy()
    more[3 + i, 2 + j] += extra
    before, after = score_maps(np.stack([a, more]), [[2, 3, 6, 6]] * 2).io_ratio
    assert after >= before - 1e-12


@given(st.integers(0, 999), st.floats(1e-3, 0.99))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_scaling_a_map_moves_neither_io_ratio_nor_wdp_soft_nor_the_hit(seed, factor):
    a = np.random.default_rng(seed).integers(0, 20, (8, 9)) / 20 + 0.01
    one, scaled = (score_maps(x[None], [[2, 3, 6, 6]]).iloc[0] for x in (a, a * factor))
    assert np.isclose(one.io_ratio, scaled.io_ratio) and one.pg_hit == scaled.pg_hit and one.pg_ties == scaled.pg_ties
    assert np.isclose(one.wdp_soft, scaled.wdp_soft, atol=1e-4)  # its epsilon of 1e-6 against a mass of at least 1e-3


SYMMETRIC = [c for c in SCORE_COLUMNS if not c.startswith("wdp") and c != "pg_uncertain"]


@given(st.integers(0, 999), st.sampled_from(["x", "y"]), st.sampled_from(["native", "paper", "pixel", "amc"]))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_flipping_map_and_box_changes_no_symmetric_score(seed, axis, protocol):
    a, size = blobs(1, (10, 12), seed)[0], (40, 48)
    box = random_boxes(1, size, seed)[0]
    options = dict(image_sizes=size, protocol=protocol, distance="symmetric")
    # the whole boxes lie on cell borders of neither grid in general, so native boxes are put on whole cells
    box = box if protocol != "native" else np.array([[8.0, 4.0, 32.0, 28.0]])
    flipped = np.flip(a, 1 if axis == "x" else 0)
    one = score_maps(a[None], [box], **options)
    other = score_maps(flipped[None], [flip_boxes(box, size, axis)], **options)
    columns = SYMMETRIC + [c for c in SCORE_COLUMNS if c.startswith("wdp")]
    # resampling a mirrored map may round the last bit of a pixel the other way, which can make or break a tie
    columns = [c for c in columns if protocol == "native" or not c.startswith("pg_")]
    assert np.allclose(one[columns].to_numpy(float), other[columns].to_numpy(float), atol=1e-5, equal_nan=True)


def test_the_papers_distance_is_not_symmetric():
    """One pixel line below and right of the box costs nothing; above and left of it, one."""
    below, above = np.zeros((2, 10, 10))
    below[6, 4], above[2, 4] = 1, 1  # the box covers rows 3 to 5: both pixels touch it
    box = [[3, 3, 6, 6]]
    scores = score_maps(np.stack([below, above]), box * 2)
    assert scores.wdp_soft[0] == 0 and np.isclose(scores.wdp_soft[1], 0.5, atol=1e-5)
    assert (scores.io_ratio == 0).all()  # both lie outside the mask
    even = score_maps(np.stack([below, above]), box * 2, distance="symmetric")
    assert np.allclose(even.wdp_soft, 0.5, atol=1e-5)


def test_a_wider_box_never_lowers_io_ratio_or_raises_wdp():
    a = blobs(1, (30, 30))
    rows = pd.concat([score_maps(a, [[10 - k, 10 - k, 20 + k, 20 + k]]) for k in range(10)])
    assert (rows.io_ratio.diff().dropna() >= 0).all() and (rows.wdp_soft.diff().dropna() <= 1e-9).all()


# --- edges -----------------------------------------------------------------------------------------------------------


def test_contracts_hold_on_random_input():
    maps = np.concatenate([blobs(20), np.random.default_rng(0).random((20, 24, 24), dtype=np.float32)])
    frame = score_maps(maps, random_boxes(40, (60, 90), k_max=3), image_sizes=(60, 90), protocol="pixel")
    assert list(frame.columns) == list(SCORE_COLUMNS) == list(METRICS) and list(frame.columns[:10]) == TEN
    for name, metric in METRICS.items():
        values = frame[name].dropna().astype(float)
        assert metric.name == name and metric.summary and metric.source and metric.undefined_when and metric.symbol
        assert values.between(metric.range[0], metric.range[1] + (1e-3 if "dice" in name else 0)).all()
    assert frame.pg_ties.dtype == np.int64 and frame.pg_uncertain.dtype == bool
    assert frame.attrs["settings"]["protocol"]["name"] == "pixel"


def test_perfect_map():
    box = [[4, 5, 12, 11]]
    row = score_maps(box_mask(box, (20, 20))[None], [box], clip_dice=True).iloc[0]
    assert (row[["iou_soft", "iou_binary", "dice_soft", "dice_binary", "io_ratio", "pg_hit"]] == 1).all()
    assert row.wdp_soft == row.wdp_binary == 0 and row.pg_ties == 48 and not row.pg_uncertain
    published = score_maps(box_mask(box, (20, 20))[None], [box]).dice_soft[0]
    assert 1 < published < 1 + 1e-3 / (2 * 48)


def test_constant_and_empty_maps():
    box = [[0, 0, 12, 12]]
    frame = score_maps(np.stack([np.ones((24, 24)), np.zeros((24, 24)), np.full((24, 24), 0.4)]), [box] * 3)
    assert (frame.pg_hit == 0.25).all() and (frame.pg_ties == 576).all()
    assert np.allclose(frame.io_ratio[[0, 2]], 0.25) and frame.loc[1, NAN_WITHOUT_MASS].isna().all()
    assert np.isnan(frame.wdp_binary[2]) and not np.isnan(frame.wdp_soft[2])  # mass, but no pixel above .5
    assert frame.iou_soft.notna().all() and frame.dice_binary.notna().all()
    flat = score_maps(np.full((1, 24, 24), 3.0), [[0, 0, 30, 45]], image_sizes=(60, 90), protocol="paper").iloc[0]
    assert flat[NAN_WITHOUT_MASS].isna().all() and flat.pg_hit == 0.25 and not flat.pg_uncertain


def test_ties():
    a = np.zeros((1, 80, 80), np.float32)
    a[0, 10, 10] = a[0, 70, 70] = 1
    box = [[0, 0, 30, 30]]
    hits = {rule: float(score_maps(a, [box], ties=rule).pg_hit[0]) for rule in TIES}
    assert hits == {"expected": 0.5, "first": 1, "optimistic": 1, "pessimistic": 0}
    assert score_maps(a, [box]).pg_uncertain[0]
    distance = 60 * 2**0.5
    assert not score_maps(a, [box], delta=distance + 1e-9).pg_uncertain[0]
    assert score_maps(a, [box], delta=distance - 1e-9).pg_uncertain[0]
    assert not score_maps(a, [box], tau=1.0).pg_uncertain[0]  # strictly above tau
    a[0, 70, 70] = np.nextafter(np.float32(1), np.float32(0))
    assert score_maps(a, [box]).pg_ties[0] == 1 and not score_maps(a, [box]).pg_uncertain[0]  # equal means equal


def test_tau_and_half_are_strict_in_the_maps_own_type():
    for kind in (np.float32, np.float64):
        a = np.zeros((1, 4, 70), kind)
        a[0, 0, 0] = a[0, 0, 60] = 0.7
        assert not score_maps(a, [[0, 0, 9, 4]], tau=0.7).pg_uncertain[0]
        assert score_maps(a, [[0, 0, 9, 4]], tau=0.69).pg_uncertain[0]
    assert np.isnan(score_maps(np.full((1, 4, 4), 0.5), [[0, 0, 2, 2]]).wdp_binary[0])


def test_a_constant_map_of_a_large_image_is_quick():
    big = np.ones((1, 1500, 2000), np.float32)
    score_maps(big[:, :9, :9], [[0, 0, 4, 4]])
    start = time.process_time()
    assert score_maps(big, [[0, 0, 2000, 1500]]).pg_ties[0] == 3_000_000
    assert time.process_time() - start < 20  # comparing all pairs of ties would take hours


def test_float64_maps_keep_their_precision_on_their_own_grid():
    a = np.zeros((1, 3, 3))
    a[0, 0, 0], a[0, 2, 2] = 0.9, 0.9 + 1e-12
    assert score_maps(a, [[0, 0, 1, 1]]).pg_hit[0] == 0 and score_maps(a, [[2, 2, 3, 3]]).pg_hit[0] == 1


# --- what comes in ---------------------------------------------------------------------------------------------------

GOOD = np.full((3, 4, 4), 0.5, np.float32)


@pytest.mark.parametrize("change, message", [
    ({"nan": True}, "example 1"), ({"inf": True, "negatives": "relu"}, "example 1"), ({"minus": True}, "example 1"),
    ({"negative": True}, "example 1"), ({"minus": True, "negatives": "minmax"}, "example 1"),
    ({"boxes": [[0, 0, 2, 2], [3, 3, 1, 1], [0, 0, 1, 1]]}, "example 1"),
    ({"boxes": [[0, 0, 2, 2], [0, 0, 1, 1], [4, 0, 6, 2]]}, "overlaps the image.*example 2"),
    ({"boxes": [[0, 0, 2, 2], [0, 0, np.nan, 1], [1, 0, 2, 2]]}, "example 1"),
    ({"boxes": [[[0, 0, 2, 2]], [], [[1, 0, 2, 2]]]}, "example 1"),
    ({"boxes": [[0, 0, 2, 2], [0, 0, 1, 1]]}, "got 2"), ({"boxes": [[0, 0, 2], [0, 0, 1], [0, 1, 1]]}, "example 0"),
    ({"image_sizes": [(4, 4), (0, 4), (4, 4)]}, "image_sizes.*example 1"), ({"image_sizes": (4.5, 4)}, "image_sizes"),
    ({"ties": "random"}, "ties"), ({"backend": "cuda"}, "backend"), ({"distance": "l2"}, "distance"),
    ({"protocol": "papers"}, "protocol"), ({"delta": -1}, "delta"), ({"tau": np.nan}, "tau"), ({"tau": 2}, "tau"),
    ({"negatives": "abs"}, "negatives"), ({"ids": ["a", "b"]}, "ids"), ({"groups": ["a", None, "c"]}, "groups"),
])
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_bad_input_is_named(change, message, backend):
    change, maps = dict(change), GOOD.copy()
    for key, value in (("nan", np.nan), ("inf", np.inf), ("minus", -np.inf), ("negative", -0.1)):
        if change.pop(key, False):
            maps[1, 2, 3] = value
    options = {"backend": backend, "boxes": [[0, 0, 2, 2]] * 3} | change
    with pytest.raises(ValueError, match=message):
        score_maps(maps, **options)


SIGNED = GOOD - np.linspace(0, 1, 16).reshape(4, 4).astype(np.float32) * np.array([0, 1, 2], np.float32)[:, None, None]
RULES = {"relu": lambda a: np.maximum(a, 0), "minmax": lambda a: normalise(a, "minmax") if (a < 0).any() else a}


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
@pytest.mark.parametrize("form", [np.asarray, list])
def test_signed_maps_are_an_error_or_what_was_asked_for_and_counted(form, protocol, backend):
    before, options = SIGNED.copy(), {"image_sizes": (12, 16), "protocol": protocol, "backend": backend}
    boxes = [[0, 0, 8, 6]] * 3
    with pytest.raises(ValueError, match="example 1"):
        score_maps(form(SIGNED), boxes, **options)
    for rule, change in RULES.items():
        found = score_maps(form(SIGNED), boxes, negatives=rule, **options)
        expected = score_maps(np.stack([change(a) for a in SIGNED]), boxes, **options)
        assert_same_scores(found[list(SCORE_COLUMNS)], expected, atol=1e-6)
        n = (SIGNED < 0).sum((1, 2))
        assert found.n_negative.tolist() == n.tolist() and n.tolist()[0] == 0
        assert found.attrs["negatives"] == {"rule": rule, "n_maps": 2, "n_cells": n.sum()}
    assert np.array_equal(SIGNED, before)  # the caller's maps stay as they are
    assert "n_negative" not in score_maps(form(GOOD), boxes, **options)


@pytest.mark.parametrize("maps", [GOOD[0], np.repeat(GOOD[:, None], 2, 1), [GOOD[0], GOOD], [np.zeros((0, 3))],
                                  np.array([["a"]])])
def test_maps_of_a_wrong_shape(maps):
    with pytest.raises(ValueError, match="map"):
        score_maps(maps, [[0, 0, 1, 1]] * len(maps))


def test_boxes_that_stick_out_are_clipped_and_counted_once():
    with pytest.warns(match="2 of 3 boxes") as caught:
        got = score_maps(GOOD, [[-1, 0, 2, 2], [0, 0, 9, 2], [0, 0, 2, 2]])
    assert len(caught) == 1
    pd.testing.assert_frame_equal(got, score_maps(GOOD, [[0, 0, 2, 2], [0, 0, 4, 2], [0, 0, 2, 2]]))


def test_every_form_of_input_gives_the_same_scores():
    import torch

    maps, boxes = blobs(3, (8, 8)), np.array([[0, 0, 5, 4], [1, 1, 3, 8], [2, 0, 8, 6]])
    expected = score_maps(maps, boxes)
    forms = [
        (list(maps), boxes.tolist()), (torch.tensor(maps), torch.tensor(boxes)),
        (np.asfortranarray(maps), boxes[:, None]), (maps[::-1][::-1], [b[None] for b in boxes]),
        (torch.tensor(maps)[:, None], boxes), (list(maps[:, None]), tuple(map(tuple, boxes))),  # as networks give them
    ]
    for m, b in forms:
        pd.testing.assert_frame_equal(score_maps(m, b), expected)
    half = score_maps(torch.tensor(maps).to(torch.bfloat16), boxes)
    assert np.allclose(half.io_ratio, expected.io_ratio, atol=0.01)
    whole = score_maps((maps > 0.5).astype(np.uint8), boxes)
    assert np.isclose(whole.iou_soft, score_maps(maps > 0.5, boxes).iou_soft).all()


def test_no_examples_give_an_empty_frame():
    for maps in (np.zeros((0, 24, 24)), []):
        empty = score_maps(maps, [], image_sizes=(30, 40), protocol="paper")
        assert empty.empty and list(empty.columns) == list(SCORE_COLUMNS)


def test_arguments_are_left_alone_and_threads_restored():
    import numba

    maps, boxes = blobs(3), np.array([[1.0, 0, 9, 9]] * 3)
    copies, threads = (maps.copy(), boxes.copy()), numba.get_num_threads()
    one = score_maps(maps, boxes, protocol="paper", image_sizes=(50, 50), threads=1)
    two = score_maps(maps, boxes, protocol="paper", image_sizes=(50, 50))
    assert np.array_equal(maps, copies[0]) and np.array_equal(boxes, copies[1]) and numba.get_num_threads() == threads
    pd.testing.assert_frame_equal(one, two)


# --- lightness -------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_ten_thousand_maps_need_little_memory():
    code = """
import re, numpy as np
from qgcam_lib.metrics import score_maps
maps = np.random.default_rng(0).random((10_000, 24, 24), dtype=np.float32)
frame = score_maps(maps, np.tile([10.0, 10, 60, 50], (10_000, 1)), image_sizes=(96, 96), protocol="paper")
assert len(frame) == 10_000
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) / 1024)
"""
    root = Path(__file__).resolve().parents[1]
    peak = subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True, timeout=300)
    assert float(peak) < 1000  # MB; the images alone would be 350 MB at 96 x 96 and 5.9 GB at 384 x 384


def test_names_come_back_as_the_columns_that_statistics_take():
    maps, boxes = blobs(6, (8, 8)), [[0, 0, 5, 4]] * 6
    plain, groups, ids = score_maps(maps, boxes), [1, 1, 2, 2, 3, 3], [f"p{k}" for k in range(6)]
    named = score_maps(maps, boxes, ids=ids, groups=pd.Series(groups))
    assert named.columns.tolist() == ["id", "group", *plain.columns, "protocol"] and named.group.tolist() == groups
    pd.testing.assert_frame_equal(named[list(plain)], plain)
    assert summarize(named, "io_ratio").n_groups[0] == 3
    other = score_maps(maps[::-1].copy(), boxes, ids=ids[::-1], groups=groups[::-1])
    assert (compare(named, other, ["io_ratio", "pg_hit"]).difference == 0).all()
    assert score_maps(maps[:0], boxes[:0], ids=[], groups=[]).columns.tolist()[:2] == ["id", "group"]


def test_full_mask():
    row = score_maps(blobs(1), [[0, 0, 24, 24]]).iloc[0]
    assert row.io_ratio == 1 and row.pg_hit == 1 and not row.pg_uncertain and row.wdp_soft == 0


def test_a_box_without_a_pixel_centre_has_nothing_inside():
    row = score_maps(blobs(1), [[3.6, 3.6, 4.4, 4.4]]).iloc[0]
    assert row.io_ratio == 0 and row.pg_hit == 0 and row.iou_soft < 0.01


def test_what_a_minmax_gave_without_asking_is_a_named_option():
    a, box = blobs(1, seed=3) - 0.05, [[100, 100, 300, 300]]
    by_rule = {rule: score_maps(a, box, image_sizes=(384, 384), protocol="pixel", negatives=rule).io_ratio[0]
               for rule in ("minmax", "relu")}
    assert by_rule["minmax"] == score_maps(a - a.min(), box, image_sizes=(384, 384), protocol="pixel").io_ratio[0]
    assert abs(by_rule["relu"] - by_rule["minmax"]) > 0.01


def test_overshoot_below_zero_is_refused():
    for backend in ("numba", "torch"):
        spike = np.zeros((1, 8, 8), np.float32)
        spike[0, 4, 4] = 1
        with pytest.raises(ValueError, match="example 0"):
            score_maps(
                spike,
                [[0, 0, 20, 20]],
                image_sizes=(40, 40),
                protocol=MapProtocol("raw", resampler="bicubic"),
                backend=backend,
            )


def test_the_order_and_repetition_of_boxes_does_not_matter():
    a, boxes = blobs(1, (30, 30)), np.array([[2, 3, 9, 20], [8, 1, 20, 12], [15, 15, 28, 29.5]])
    one = score_maps(a, [boxes])
    for other in (boxes[::-1], np.concatenate([boxes, boxes[1:2]])):
        assert_same_scores(score_maps(a, [other]), one, atol=1e-12)
