"""Misuse of the map scores: what cannot be right is an error with a remedy, what looks wrong is one warning."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from qgcam_lib.errors import SuspiciousInput
from qgcam_lib.maps import MapProtocol
from qgcam_lib.metrics import score_maps

PICTURE = (480, 640)
CORNERS = np.array([[x, y, x + w, y + h] for x, y, w, h in np.random.default_rng(0).integers(
    [0, 0, 40, 40], [400, 300, 240, 180], (60, 4))], dtype=np.float64)
FLAT = np.random.default_rng(0).random((60, 6, 8)).astype(np.float32)


@pytest.mark.parametrize(("maps", "words"), [
    (FLAT * 255, "values from 0 to 1 under protocol 'native'.*example 0; .*divide all maps by one number"),
    (np.where(np.arange(60)[:, None, None] == 7, FLAT + 0.01, FLAT / 2) * 1.9, "a larger one in example 7"),
    ((FLAT * 255).astype(np.uint8), "values from 0 to 1"),
    (list((FLAT * 9).astype(np.float64)), "values from 0 to 1"),
    (np.ma.masked_less(FLAT, 0.5), "maps: expected a plain array, got a masked one"),
    ([np.ma.masked_less(a, 0.5) for a in FLAT], "maps: expected a plain array, got a masked one"),
    (FLAT + 0j, "expected numbers, got an array of complex64"),
    (FLAT.astype(object), "expected numbers, got an array of object"),
    ([[[0.1, 0.2], [0.3]]], "expected dense arrays"),
    (torch.from_numpy(FLAT).to_sparse(), "expected dense arrays"),
    ((FLAT.astype(np.float16) * np.float16(6e4)) * np.float16(6e4), "NaN or infinity in example 0"),
    (FLAT.astype(np.float64) * 1e300, "values from 0 to 1"),
    (np.moveaxis(FLAT, 0, -1), r"expected one entry a map, 6, got 60; the last axis has 60: .*moveaxis"),
])
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_maps_that_are_no_maps_are_refused(maps, words, backend):
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=words):
        score_maps(maps, CORNERS / 80, backend=backend)


@pytest.mark.parametrize("protocol", ["pixel", "paper", "amc", "gscorecam", MapProtocol("share", before="max")])
def test_large_values_are_fine_where_the_protocol_normalises(protocol):
    small, large = (score_maps(a, CORNERS, image_sizes=PICTURE, protocol=protocol) for a in (FLAT, FLAT * 255))
    np.testing.assert_allclose(small.io_ratio, large.io_ratio, rtol=1e-5)
    assert large.iou_soft.max() <= 1
    for form in (FLAT > 0.5, FLAT.astype(np.float16), torch.from_numpy(FLAT).bfloat16(), (FLAT * 255).astype(np.uint8)):
        assert score_maps(form, CORNERS, image_sizes=PICTURE, protocol=protocol).io_ratio.notna().all()


@pytest.mark.parametrize(("boxes", "words"), [
    (CORNERS / 640, "normalised boxes: 100% of the boxes .* multiply .*allow="),
    (np.ma.masked_array(CORNERS, False), "boxes: expected a plain array"),
    (CORNERS + 0j, "boxes: expected real numbers, got an array of complex"),
    ([["1", "2", "30", "40"]] * 60, "boxes of example 0: expected real numbers"),
    ([[0, 0, 10**400, 5]] * 60, "boxes of example 0: expected real numbers"),
    (CORNERS.astype(np.int64) + 2**31, "wholly outside"),
    (np.concatenate([CORNERS[:, :2], CORNERS[:, 2:] - CORNERS[:, :2]], 1), "inverted.*they fit as x, y, width, height"),
    (3, "boxes: expected one .* array a map, got a single int"),
])
def test_boxes_that_are_no_boxes_are_refused(boxes, words):
    with pytest.raises(ValueError, match=words):
        score_maps(FLAT, boxes, image_sizes=PICTURE)


@pytest.mark.parametrize(("name", "boxes", "sizes"), [
    ("small boxes", CORNERS / 10, PICTURE),
    ("small boxes", CORNERS, (4800, 6400)),
    ("boxes outside", np.minimum(CORNERS, 475), (640, 440)),
    ("one-based boxes", np.clip(CORNERS + [-80, -80, 80, 80], 1, [640, 480] * 2), PICTURE),
])
def test_what_looks_like_a_mistake_is_one_warning_that_an_argument_silences(name, boxes, sizes):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = score_maps(FLAT[:, :, :6], boxes, image_sizes=sizes)
    [said] = [one for one in caught if one.category is SuspiciousInput]
    assert name in str(said.message) and f"allow=({name!r},)" in str(said.message) and said.filename == __file__
    assert frame.attrs["suspicions"] == [name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", SuspiciousInput)
        again = score_maps(FLAT[:, :, :6], boxes, image_sizes=sizes, allow=name)
    pd.testing.assert_frame_equal(frame, again)
    assert again.attrs["suspicions"] == []


def test_shapes_of_maps_that_do_not_follow_their_pictures_are_said():
    turned = np.array([PICTURE, PICTURE[::-1]])[np.arange(60) % 2]
    maps = [np.ones(tuple(size // 40), np.float32) for size in turned]
    boxes = np.minimum(CORNERS, 470)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score_maps(maps, boxes, image_sizes=turned)
        score_maps(maps, boxes, image_sizes=turned[::-1], allow="map shapes")
    with pytest.warns(SuspiciousInput, match="map shapes: 100% of the maps lie across"):
        score_maps(maps, boxes, image_sizes=turned[::-1])


def test_normalised_boxes_can_be_insisted_on():
    assert score_maps(FLAT, CORNERS / 640, image_sizes=PICTURE, allow="normalised boxes").attrs["suspicions"] == []
    with pytest.raises(ValueError, match="allow: expected names from"):
        score_maps(FLAT, CORNERS, image_sizes=PICTURE, allow="everything")


def test_ids_are_given_once():
    with pytest.raises(ValueError, match="ids: expected each once, got 'a' 60 times; .* groups"):
        score_maps(FLAT, CORNERS, image_sizes=PICTURE, ids=["a"] * 60)
