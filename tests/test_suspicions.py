"""Input that looks like a known mistake: honest boxes are silent, each mistake made with them is named."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.boxes import xywh_to_xyxy
from qgcam_lib.errors import SuspiciousInput
from qgcam_lib.suspicions import SUSPICIONS, box_suspicions, checked_allow, id_shift, settle, shape_suspicions

REAL = Path(__file__).parents[2] / "shared" / "realdata"


def drawn(seed, n, height, width, spread=0.5, border=0.3):
    """n boxes as annotators draw them, whole pixels, some cut by all borders alike; sizes vary by a quarter."""
    rng = np.random.default_rng(seed)
    sizes = np.maximum(32, np.array([height, width]) * rng.uniform(0.8, 1, (n, 1))).astype(int)
    extent = rng.uniform(0.1, 0.1 + spread, (n, 2))
    low = rng.uniform(-border * extent, 1 - extent + border * extent)
    shares = np.clip(np.concatenate([low, low + extent], axis=1), 0, 1)
    boxes = np.round(shares * sizes[:, [1, 0, 1, 0]])
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 2)
    return boxes, np.maximum(sizes, boxes[:, [3, 2]].astype(int))


def xywh(boxes):
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


MISTAKES = {
    "normalised": ("normalised boxes", lambda b, s: (b / s[:, [1, 0, 1, 0]], s)),
    "ten times too large": ("small boxes", lambda b, s: (b, s * 10)),
    "ten times too small": ("boxes outside", lambda b, s: (b, s // 10)),
    "xywh as xyxy": ("boxes outside", lambda b, s: (xywh(b), s)),
    "xyxy as xywh": ("boxes outside", lambda b, s: (xywh_to_xyxy(b), s)),
    "rows first": ("boxes outside", lambda b, s: (b[:, [1, 3, 0, 2]], s)),
    "thousandths": ("boxes outside", lambda b, s: (b / s[:, [1, 0, 1, 0]] * 1000, s)),
}


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 400), st.integers(32, 900), st.integers(32, 900), st.floats(0.1, 0.8),
       st.sampled_from([0.0, 0.1, 0.3, 0.8]))
def test_honest_boxes_are_silent(seed, n, height, width, spread, border):
    boxes, sizes = drawn(seed, n, height, width, spread, border)
    assert box_suspicions(boxes, sizes) == []
    assert box_suspicions(boxes * 0.97 + 0.3, sizes) == []  # not whole


@pytest.mark.parametrize("mistake", MISTAKES)
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 300), st.integers(320, 800), st.integers(320, 800))
def test_each_mistake_is_named(mistake, seed, n, height, width):
    name, made = MISTAKES[mistake]
    found = box_suspicions(*made(*drawn(seed, n, height, width)))
    assert [one.name for one in found] == [name] and 0.1 <= found[0].share <= 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(100, 400), st.sampled_from([(480, 640), (640, 400), (300, 500)]))
def test_turned_sizes_and_one_based_boxes_are_named(seed, n, size):
    boxes, sizes = drawn(seed, n, *size)
    for b, s in ((boxes, sizes[:, ::-1]), (boxes[:, [1, 0, 3, 2]], sizes)):
        [found] = box_suspicions(b, s)
        assert found.name == "boxes outside" and "sizes are (height, width)" in found.text
    for more in ([1, 1, 1, 1], [1, 1, 0, 0]):
        assert [one.name for one in box_suspicions(boxes + more, sizes)] == ["one-based boxes"]


def test_the_right_reading_is_said():
    boxes, sizes = drawn(3, 100, 480, 640)
    for mistake, words in (("xywh as xyxy", "xywh_to_xyxy"), ("xyxy as xywh", "box format xyxy"),
                           ("rows first", "yyxx_to_xyxy"), ("thousandths", "in pixels of these pictures")):
        assert words in box_suspicions(*MISTAKES[mistake][1](boxes, sizes))[0].text


@pytest.mark.skipif(not REAL.is_dir(), reason="no real annotations (../shared/realdata)")
@pytest.mark.parametrize("name", ["coco/instances_val2014_100.json", "tricd/TRICD_grounding_val.json"])
def test_real_annotations_are_silent_and_their_mistakes_are_named(name):
    data = json.loads((REAL / name).read_text())
    size = {image["id"]: (image["height"], image["width"]) for image in data["images"]}
    boxes = xywh_to_xyxy([one["bbox"] for one in data["annotations"]])
    sizes = np.array([size[one["image_id"]] for one in data["annotations"]])
    assert box_suspicions(boxes, sizes) == []
    for expected, made in MISTAKES.values():
        assert [one.name for one in box_suspicions(*made(boxes, sizes))] == [expected]
    assert [one.name for one in box_suspicions(boxes, sizes[:, ::-1])] == ["boxes outside"]
    assert [one.name for one in box_suspicions(boxes + 1, sizes)] == ["one-based boxes"]


def test_what_is_no_number_is_left_to_others():
    boxes, sizes = drawn(1, 20, 100, 100)
    boxes[3], boxes[4, 0], boxes[5] = np.nan, np.inf, 2.0**31
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert box_suspicions(boxes, sizes) == [] == box_suspicions(np.zeros((0, 4)), np.zeros((0, 2)))


def test_few_boxes_are_left_alone():
    assert box_suspicions([[0, 0, 3, 3], [1, 1, 4, 5]], [(480, 640)] * 2) == []
    assert [one.certain for one in box_suspicions([[0.1, 0.2, 0.5, 0.9]], [(480, 640)])] == [True]
    assert [one.certain for one in box_suspicions([[0, 0, 1, 1]], [(480, 640)])] == [False]
    assert box_suspicions([[0, 0, 1, 1]], [(8, 8)]) == []


def test_maps_that_follow_their_pictures_are_silent():
    sizes = drawn(0, 60, 400, 700)[1]
    patches = np.maximum(1, np.round(sizes / 32))
    for maps in (patches, [(24, 24)] * 60, [(12, 21)] * 60):
        assert shape_suspicions(maps, sizes) == []
    assert "height, width" in shape_suspicions(patches[:, ::-1], sizes)[0].text
    mixed = np.where(np.arange(60)[:, None] % 3 == 0, sizes[:, ::-1], sizes)
    assert shape_suspicions(np.round(mixed / 32), mixed) == []
    assert "these records" in shape_suspicions(np.roll(np.round(mixed / 32), 1, axis=0), mixed)[0].text


@given(st.integers(1, 30), st.sampled_from([-7, -1, 1, 2]), st.sampled_from(["", "im", "a/", "x_0"]))
def test_a_shift_of_ids_is_seen(n, shift, name):
    ids = [f"{name}{k + 10}" for k in range(n)]
    assert id_shift(ids, [f"{name}{k + 10 + shift}" for k in range(n)]) == shift
    assert id_shift(ids, ids) == 0 == id_shift(ids, [*ids, f"{name}99"]) == id_shift(ids, ["cat"])


def test_what_is_seen_is_said_once_and_can_be_allowed():
    boxes, sizes = drawn(2, 200, 480, 640)
    found = box_suspicions(boxes + 1, sizes) + box_suspicions(boxes, sizes[:, ::-1])
    with pytest.warns(SuspiciousInput, match="one-based boxes.*boxes outside.*allow=") as caught:
        settle(found)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settle(found, ["one-based boxes", "boxes outside"]) == [] == settle([])
        assert settle(box_suspicions(boxes / 1000, sizes), tuple(SUSPICIONS)) == []
    with pytest.raises(ValueError, match="normalised boxes: 100% .* multiply"):
        settle(box_suspicions(boxes / 1000, sizes), ["one-based boxes"])
    with pytest.raises(ValueError, match="allow: expected names from 'normalised boxes'"):
        checked_allow("all")
