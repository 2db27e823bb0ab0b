"""The audit: rules against slow literal versions and scikit-image, properties, refusals."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.feature import peak_local_max

from qgcam_lib.boxes import box_mask
from qgcam_lib.grounding.audit import (
    RULES,
    TABLE1_COLUMNS,
    MapSet,
    change_log_base,
    largest_wdp,
    score_choice,
    sensitivity,
    tie_protocols,
    tie_rates,
    wdp_distance,
)
from qgcam_lib.maps import PROTOCOLS, prepare_map
from qgcam_lib.metrics import score_maps
from qgcam_lib.papers.q_groundcam.audit import (
    dice_arithmetic,
    movement_table,
    open_choices,
    ranking_changes,
    wdp_arithmetic,
)

PAPER = PROTOCOLS["paper"]


def some_maps(n=12, grid=10, size=(60, 80), seed=0, images=4):
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, [50, 35], (n, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(8, 25, (n, 2))], 1)
    maps = [(rng.random((grid, grid)) ** 3).astype(np.float32) for _ in range(n)]
    return MapSet([str(i) for i in range(n)], [str(i % images) for i in range(n)], maps, [b[None] for b in boxes],
                  np.tile(size, (n, 1)))


def base_and(rule, maps, **scores):
    base = score_maps(maps.maps, maps.boxes, image_sizes=maps.sizes, protocol=PAPER, **scores)
    return base, RULES[rule](base, maps, PAPER, scores)


@given(st.floats(0.001, 0.999), st.floats(1.5, 20))
def test_log_base_is_the_formula(share, base):
    """sigmoid(log_b(x / (1 - x))), written out; e changes nothing; the distance of a WDP is its inverse."""
    literal = 1 / (1 + math.exp(-math.log(share / (1 - share)) / math.log(base)))
    assert change_log_base(share, base) == pytest.approx(literal, rel=1e-9)
    assert change_log_base(share, math.e) == pytest.approx(share, rel=1e-9)
    distance = wdp_distance(share, base)
    assert 1 / (1 + math.exp(-math.log(distance, base))) == pytest.approx(share, rel=1e-6)


def test_log_base_at_the_ends():
    assert change_log_base([0, 1], 10).tolist() == [0, 1] and np.isnan(change_log_base([np.nan], 2)).all()
    assert wdp_distance(1.0) == math.inf and wdp_distance(0.0) == 0


@pytest.mark.parametrize("grid", [(1, 5), (7, 4), (12, 12)])
def test_largest_wdp_is_reached_and_not_passed(grid):
    """The largest value over all one-pixel maps and one-pixel boxes."""
    h, w = grid
    best = 0.0
    for y, x in ((0, 0), (h - 1, w - 1), (0, w - 1), (h - 1, 0)):
        a = np.zeros(grid, np.float32)
        a[y, x] = 1
        for by, bx in np.ndindex(h, w):
            if (by, bx) != (y, x):
                found = score_maps(a[None], [np.array([[bx, by, bx + 1, by + 1]], float)])
                best = max(best, found["wdp_soft"][0])
    assert best == pytest.approx(largest_wdp(grid), abs=1e-5)


@pytest.mark.parametrize("t", [0.3, 0.7])
def test_threshold_rule_against_literal(t):
    maps = some_maps()
    base, found = base_and(f"threshold {t}", maps)
    for n in range(len(maps)):
        on = prepare_map(maps.maps[n], (60, 80), PAPER) > t
        mask = box_mask(maps.boxes[n], (60, 80)).astype(bool)
        inside = (on & mask).sum()
        assert found["iou_binary"][n] == pytest.approx((inside + 1e-3) / ((on | mask).sum() + 1e-3), rel=1e-6)
    assert np.array_equal(found["iou_soft"], base["iou_soft"]) and np.array_equal(found["pg_hit"], base["pg_hit"])


def test_strict_edges_against_literal():
    """A point in the box's first row or column is a miss, as x > x0 and y > y0 on whole numbers."""
    maps = some_maps(40)
    whole = MapSet(maps.ids, maps.groups, maps.maps, [np.floor(b) for b in maps.boxes], maps.sizes)
    _, found = base_and("strict edges", whole, ties="first")
    for n in range(len(whole)):
        a = prepare_map(whole.maps[n], (60, 80), PAPER)
        y, x = np.unravel_index(a.argmax(), a.shape)
        x0, y0, x1, y1 = whole.boxes[n][0]
        assert found["pg_hit"][n] == float(x0 < x < x1 and y0 < y < y1)


def test_whole_pixels_truncate():
    maps = some_maps()
    cut = [np.floor(b) for b in maps.boxes]
    _, found = base_and("whole pixels", maps)
    pd.testing.assert_frame_equal(found, score_maps(maps.maps, cut, image_sizes=maps.sizes, protocol=PAPER))
    thin = MapSet(["a"], ["a"], maps.maps[:1], [np.array([[3.2, 4.1, 3.9, 9.0]])], maps.sizes[:1])
    assert np.isfinite(base_and("whole pixels", thin)[1]["iou_soft"]).all()


def test_border_peaks_against_scikit_image():
    """peak_local_max with its default border, then the greedy suppression, written out."""
    rng = np.random.default_rng(1)
    maps = some_maps(30)
    flat = [np.round(a * 4) / 4 for a in maps.maps]  # many equal values
    for a in flat:
        a[rng.integers(0, 10), [0, 9]] = 1
    maps = MapSet(maps.ids, maps.groups, flat, maps.boxes, maps.sizes)
    _, found = base_and("no border peaks", maps, delta=10.0)
    for n in range(len(maps)):
        a = prepare_map(maps.maps[n], (60, 80), PAPER)
        peaks = peak_local_max(a, min_distance=1, threshold_abs=0.7, exclude_border=True)
        peaks = sorted(peaks.tolist(), key=lambda p: (-a[p[0], p[1]], p[0], p[1]))
        kept = []
        for p in peaks:
            if all(math.dist(p, q) > 10 for q in kept):
                kept.append(p)
        mask = box_mask(maps.boxes[n], a.shape)
        sides = {bool(mask[y, x]) for y, x in kept if a[y, x] == a[kept[0][0], kept[0][1]]}
        assert found["pg_uncertain"][n] == (len(sides) == 2)
    assert 0 < found["pg_uncertain"].sum() < len(maps)


def test_image_means_and_certain_only():
    maps = some_maps(13, images=5)
    base, found = base_and("image means", maps)
    expected = base["io_ratio"].groupby(maps.groups).mean().mean()
    assert found["io_ratio"].mean() == pytest.approx(expected, rel=1e-12)
    base = base.assign(pg_uncertain=np.arange(13) % 3 == 0)
    found = RULES["certain only"](base, maps, PAPER, {})
    assert found["pg_hit"].mean() == pytest.approx(base.loc[~base["pg_uncertain"], "pg_hit"].mean())
    assert RULES["certain only"](base.assign(pg_uncertain=True), maps, PAPER, {})["pg_hit"].eq(0).all()


def test_every_choice_has_the_base_it_names_and_moves_only_what_it_may():
    maps = some_maps(16)
    found = sensitivity(maps, open_choices(), n_bootstrap=50)
    assert set(found["metric"]) == set(TABLE1_COLUMNS)
    assert len(found) == len(open_choices()) * len(TABLE1_COLUMNS)
    moved = found[found["difference"].abs() > 0].groupby("question")["metric"].agg(set)
    assert moved["log base"] <= {"wdp_soft", "wdp_binary", "io_ratio"}
    assert moved["threshold"] <= {"iou_binary", "dice_binary", "wdp_binary"}
    assert moved["distance"] <= {"wdp_soft", "wdp_binary"}
    assert "antialias" not in moved  # no axis shrinks here
    base = score_choice(maps)
    for name in TABLE1_COLUMNS:
        rows = found[found["metric"] == name]
        assert np.allclose(rows["base_value"] + rows["difference"], rows["value"], atol=1e-12)
        whole = rows[rows["n_undefined"] == 0]["base_value"]
        assert np.allclose(whole, base[name].astype(float).mean(), atol=1e-12)
    pivot = movement_table(found)
    assert pivot.shape == (len(open_choices()), len(TABLE1_COLUMNS))
    assert not pivot.isna().any(axis=None)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_order_of_examples_changes_nothing(seed):
    maps, order = some_maps(9, seed=seed), np.random.default_rng(seed).permutation(9)
    turned = MapSet(*([part[i] for i in order] for part in (maps.ids, maps.groups, maps.maps, maps.boxes)),
                    maps.sizes[order])
    choices = [c for c in open_choices() if c.rule][:4]
    a, b = (sensitivity(each, choices, n_bootstrap=20)["difference"] for each in (maps, turned))
    assert np.allclose(a, b, atol=1e-12, equal_nan=True)


def test_ties_come_from_the_clip():
    noise = list(np.random.default_rng(3).random((12, 24, 24)).astype(np.float32))
    rates = tie_rates(noise, (384, 384), tie_protocols())
    assert rates["n_tied"].iloc[0] > 0 and (rates["n_tied"].iloc[1:] == 0).all()
    assert tie_rates([], (8, 8), {"p": "paper"})["share"][0] == 0


def test_edge_maps_have_a_defined_movement():
    """No mass, constant, one spike: undefined values are counted, never an error."""
    spike = np.zeros((8, 8), np.float32)
    spike[2, 5] = 1
    maps = [np.zeros((8, 8), np.float32), np.ones((8, 8), np.float32), spike]
    edge = MapSet(list("abc"), list("abc"), maps, [np.array([[0, 0, 30, 30.0]])] * 3, np.tile((40, 40), (3, 1)))
    found = sensitivity(edge, open_choices(), n_bootstrap=20)
    assert found.loc[found["metric"] == "io_ratio", "n_undefined"].max() >= 1
    assert found.loc[found["metric"] == "iou_soft", "difference"].notna().all()


def test_order_changes_are_found():
    rows = [("m1", 0.5, 0.5), ("m2", 0.4, 0.6)]
    frame = pd.DataFrame([{"question": "q", "answer": "a", "metric": "pg_hit", "model": m, "base_value": b, "value": v}
                          for m, b, v in rows])
    assert ranking_changes(frame)[["base_order", "order"]].values.tolist() == [["m1 > m2", "m2 > m1"]]
    low = frame.assign(metric="wdp_soft")
    assert ranking_changes(low)[["base_order", "order"]].values.tolist() == [["m2 > m1", "m1 > m2"]]
    assert ranking_changes(frame.assign(value=frame["base_value"])).empty


def test_arithmetic_on_the_printed_table():
    table = pd.DataFrame({"model": ["a", "b"], "wdp_soft": [0.98, 0.9], "iou_soft": [0.1, 0.2],
                          "dice_soft": [0.18, 0.33], "iou_binary": [0.0, 1.0], "dice_binary": [0.0, 1.0]})
    found = wdp_arithmetic(table, [(24, 24), (384, 384)], {"e": math.e}).set_index("model")
    assert found["24 x 24"].tolist() == ["excluded", "possible"] and (found["384 x 384"] == "possible").all()
    assert np.allclose(dice_arithmetic(table)["difference"], [0.18 - 0.2 / 1.1, 0.33 - 0.4 / 1.2, 0, 0])
