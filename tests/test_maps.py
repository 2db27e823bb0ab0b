"""Maps: protocols, resampling against scikit-image and torch, and boxes that stay with their map."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from qgcam_lib.boxes import box_mask, crop_boxes, flip_boxes, pad_boxes, resize_boxes
from qgcam_lib.maps import PROTOCOLS, MapProtocol, axis_operator, get_protocol, normalise, prepare_map, prepare_maps

SIZES = [
    ((24, 24), (384, 384)), ((24, 24), (375, 500)), ((16, 16), (333, 500)), ((7, 9), (7, 30)), ((24, 30), (120, 25)),
    ((1, 5), (10, 10)), ((2, 3), (9, 9)),
]
SMALLER = [((24, 24), (12, 17)), ((24, 24), (23, 72)), ((30, 30), (5, 8))]


def random_map(size, seed=0):
    return np.random.default_rng(seed).random(size, dtype=np.float32)


def skimage_paper(a, size, **options):
    from skimage.transform import resize

    a = a - a.min()
    return resize(a / a.max() if a.max() > 0 else a, size, order=3, mode="constant", **options)


@pytest.mark.parametrize("size, new", SIZES)
def test_paper_is_scikit_images_resize_bit_for_bit(size, new):
    for seed in range(3):
        a = random_map(size, seed) ** 3
        expected = skimage_paper(a, new)
        got = prepare_map(a, new, "paper")
        assert got.dtype == expected.dtype == np.float32
        assert np.abs(got - expected).max() < 1e-6
        assert np.array_equal(got == got.max(), expected == expected.max())  # the ties are the same pixels


@pytest.mark.parametrize("size, new", SMALLER)
def test_paper_agrees_when_the_image_is_smaller_than_the_map(size, new):
    a = random_map(size)
    assert np.abs(prepare_map(a, new, "paper") - skimage_paper(a, new)).max() < 1e-6


@pytest.mark.parametrize("edge, mode", [("reflect", "reflect"), ("replicate", "edge"), ("zero", "constant")])
@pytest.mark.parametrize("clip", [False, True])
def test_spline_edges_are_scikit_images_modes(edge, mode, clip):
    from skimage.transform import resize

    a = normalise(random_map((11, 13)), "minmax")
    p = MapProtocol("test", resampler="spline", edge=edge, clip="input" if clip else "none")
    for new in ((50, 40), (100, 13)):
        assert np.abs(prepare_map(a, new, p) - resize(a, new, order=3, mode=mode, clip=clip)).max() < 1e-6


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size, new", SIZES + SMALLER)
def test_bilinear_and_bicubic_are_torchs(kind, size, new):
    torch = pytest.importorskip("torch")
    a = random_map(size)
    expected = torch.nn.functional.interpolate(torch.tensor(a)[None, None], new, mode=kind)[0, 0].numpy()
    assert np.abs(prepare_map(a, new, MapProtocol("test", resampler=kind)) - expected).max() < 1e-5


def test_operator_splits_into_prefilter_and_four_taps():
    operator = axis_operator(24, 100, "spline", "zero")
    dense = np.zeros((100, len(operator.prefilter)))
    for j, (first, weights) in enumerate(zip(operator.first, operator.weights)):
        dense[j, first : first + 4] = weights
    assert np.allclose(operator.matrix(), dense @ operator.prefilter)
    assert operator.first.min() >= 0 and operator.first.max() + 4 <= len(operator.prefilter)
    assert not operator.weights.flags.writeable


@pytest.mark.parametrize("kind", ["bilinear", "bicubic", "spline"])
def test_constant_stays_constant_and_nodes_are_kept(kind):
    edge = "reflect" if kind == "spline" else "replicate"
    assert np.allclose(axis_operator(9, 40, kind, edge).matrix().sum(1), 1)
    assert np.allclose(axis_operator(9, 9, kind, edge).matrix(), np.eye(9))
    assert np.allclose(
        axis_operator(9, 27, kind, edge).matrix()[1::3], np.eye(9)
    )  # odd factor: pixel centres on samples


def test_blur_is_lavis_display_path():
    a = random_map((24, 24))
    p = dataclasses.replace(PROTOCOLS["paper"], blur=0.02, after="minmax")
    expected = ndimage.gaussian_filter(skimage_paper(a, (200, 300)), 0.02 * 300)
    expected = (expected - expected.min()) / (expected.max() - expected.min())
    assert np.abs(prepare_map(a, (200, 300), p) - expected).max() < 1e-5


def test_normalise():
    a = np.array([[2, 4], [6, 10]], np.float32)
    assert np.allclose(normalise(a, "minmax"), [[0, 0.25], [0.5, 1]])
    assert np.allclose(normalise(a, "max"), a / 10)
    assert normalise(a, "none") is a
    assert not normalise(np.full((2, 2), 3.0), "minmax").any()
    assert (normalise(np.zeros((2, 2)), "max") == 0).all()
    assert normalise(a, "minmax").max() == 1  # exactly


def test_protocols_are_frozen_recordable_and_checked():
    assert {"pixel", "paper", "amc", "gscorecam", "native"} == set(PROTOCOLS)
    for name, p in PROTOCOLS.items():
        assert p.name == name and p.evidence and json.loads(json.dumps(p.as_dict()))["name"] == name
        assert get_protocol(name) is p and get_protocol(p) is p
    with pytest.raises(dataclasses.FrozenInstanceError):
        PROTOCOLS["paper"].clip = "none"
    for wrong in (
        dict(before="sum"), dict(resampler="cubic"), dict(edge="wrap"), dict(clip="yes"), dict(blur=-1),
        dict(grid="x"), dict(grid=(0, 4)), dict(grid=(4,)),
    ):
        with pytest.raises(ValueError, match="MapProtocol"):
            MapProtocol("test", **wrong)
    with pytest.raises(ValueError, match="paper"):
        get_protocol("papr")


def test_grid_for():
    fixed = MapProtocol("test", grid=(10, 20))
    assert PROTOCOLS["paper"].grid_for((24, 24), (375, 500)) == (375, 500)
    assert PROTOCOLS["paper"].grid_for((24, 24)) == (24, 24)
    assert PROTOCOLS["native"].grid_for((24, 24), (375, 500)) == (24, 24)
    assert fixed.grid_for((24, 24), (375, 500)) == (10, 20)


def test_prepare_maps_shapes_types_and_errors():
    maps = random_map((3, 8, 8))
    for name in PROTOCOLS:
        out = prepare_maps(maps, (20, 30), name)
        assert out.dtype == np.float32 and out.shape == ((3, 8, 8) if name == "native" else (3, 20, 30))
    torch = pytest.importorskip("torch")
    assert np.array_equal(prepare_maps(torch.tensor(maps), (20, 30)), prepare_maps(list(maps), (20, 30)))
    assert prepare_maps(maps[:0], (20, 30)).shape == (0, 20, 30)
    with pytest.raises(ValueError, match=r"maps\[None\]"):
        prepare_maps(maps[0], (20, 30))
    with pytest.raises(ValueError, match="size"):
        prepare_maps(maps)
    with pytest.raises(ValueError, match="height, width"):
        prepare_maps(maps, (20.5, 30))
    maps[1, 2, 2] = np.nan
    with pytest.raises(ValueError, match="map 1"):
        prepare_maps(maps, (20, 30))


def test_the_input_is_left_alone():
    maps = random_map((2, 6, 6))
    before = maps.copy()
    for name in PROTOCOLS:
        prepare_maps(maps, (12, 12), name)
    assert np.array_equal(maps, before)


@given(st.sampled_from(sorted(PROTOCOLS)), st.integers(0, 99), st.sampled_from([0, 1]))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_flips_commute_with_every_preset(name, seed, axis):
    a = random_map((7, 9), seed)
    assert np.allclose(
        prepare_map(np.flip(a, axis), (31, 40), name), np.flip(prepare_map(a, (31, 40), name), axis), atol=1e-6
    )


@given(st.sampled_from(["pixel", "paper", "amc", "gscorecam"]), st.integers(0, 99), st.floats(1e-6, 1e6))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_presets_with_a_minmax_ignore_scale_and_end_in_0_1(name, seed, factor):
    a = random_map((7, 9), seed)
    prepared = prepare_map(a, (31, 40), name)
    assert np.allclose(prepare_map(a * np.float32(factor), (31, 40), name), prepared, atol=1e-5)
    assert prepared.min() >= 0 and prepared.max() <= 1


@st.composite
def boxes_on_cells(draw, cells=6):
    x0, y0 = draw(st.integers(0, cells - 1)), draw(st.integers(0, cells - 1))
    return [x0, y0, draw(st.integers(x0 + 1, cells)), draw(st.integers(y0 + 1, cells))]


@given(boxes_on_cells(), st.sampled_from(["bilinear", "spline"]), st.tuples(*[st.integers(0, 3)] * 4), boxes_on_cells())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_box_stays_on_its_object_through_resize_pad_and_crop(box, kind, pad, window):
    """An object fills a box. However the map is resized, padded and cropped, the half-height line of the object is the
    outline of the carried box, to within the three of twelve pixels by which interpolation rounds a corner."""
    factor, size = 12, (6, 6)
    p = MapProtocol("test", resampler=kind, grid=(6 * factor, 6 * factor))
    drawn = prepare_map(box_mask(box, size).astype(np.float32), None, p)
    carried = resize_boxes(box, size, drawn.shape)
    top, bottom, left, right = (v * factor for v in pad)
    drawn, carried = np.pad(drawn, ((top, bottom), (left, right))), pad_boxes(carried, top, left)
    carried = flip_boxes(carried, drawn.shape, "x")
    drawn = drawn[:, ::-1]
    whole = box_mask(carried, drawn.shape)
    outer, inner = (
        ndimage.binary_dilation(whole, iterations=3),
        ndimage.binary_erosion(whole, iterations=3, border_value=1),
    )
    x0, y0, x1, y1 = (v * factor for v in window)
    cropped, _ = crop_boxes(carried, [x0, y0, x1, y1])
    drawn, outer, inner, whole = (m[y0:y1, x0:x1] for m in (drawn, outer, inner, whole))
    assert np.array_equal(box_mask(cropped, drawn.shape), whole)
    assert not ((drawn > 0.5) & ~outer).any() and (drawn > 0.5)[inner].all()
