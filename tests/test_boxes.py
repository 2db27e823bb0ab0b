"""Boxes: conversions, overlap, masks, and moving with a map."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.boxes import (
    as_boxes,
    box_iou,
    box_mask,
    clip_boxes,
    crop_boxes,
    flip_boxes,
    pad_boxes,
    pixel_ranges,
    resize_boxes,
    union_box,
    voc_to_xyxy,
    xywh_to_xyxy,
    yyxx_to_xyxy,
)


@st.composite
def whole_boxes(draw, size=(20, 30)):
    h, w = size
    x0, y0 = draw(st.integers(0, w - 1)), draw(st.integers(0, h - 1))
    return [x0, y0, draw(st.integers(x0 + 1, w)), draw(st.integers(y0 + 1, h))]


@st.composite
def real_boxes(draw, size=(20, 30)):
    h, w = size
    x0, y0 = draw(st.floats(0, w - 1)), draw(st.floats(0, h - 1))
    return [x0, y0, x0 + draw(st.floats(0.1, w)), y0 + draw(st.floats(0.1, h))]


def test_conversions_give_the_same_rectangle():
    assert xywh_to_xyxy([4, 1, 3, 2]).tolist() == [4, 1, 7, 3]
    assert yyxx_to_xyxy([1, 3, 4, 7]).tolist() == [4, 1, 7, 3]
    assert voc_to_xyxy([5, 2, 7, 3]).tolist() == [4, 1, 7, 3]
    assert xywh_to_xyxy(np.zeros((0, 4))).shape == (0, 4)


def test_a_one_based_inclusive_box_covers_its_pixels():
    annotated = [3, 2, 3, 4]  # column 3 and rows 2 to 4, counted from one
    mask = box_mask(voc_to_xyxy(annotated), (6, 6))
    assert np.argwhere(mask).tolist() == [[1, 2], [2, 2], [3, 2]]


@given(whole_boxes(), whole_boxes())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_iou_is_the_iou_of_the_masks(a, b):
    m, n = box_mask(a, (20, 30)), box_mask(b, (20, 30))
    assert np.isclose(box_iou([a], [b])[0, 0], (m & n).sum() / (m | n).sum())


def test_iou_agrees_with_torchvision():
    torchvision = pytest.importorskip("torchvision.ops")
    import torch

    rng = np.random.default_rng(0)
    a, b = (np.cumsum(rng.uniform(0.1, 30, (9, 2, 2)), axis=1).reshape(9, 4) for _ in range(2))
    assert np.allclose(box_iou(a, b), torchvision.box_iou(torch.tensor(a), torch.tensor(b)).numpy())


def test_iou_edges():
    assert box_iou([[0, 0, 2, 2]], [[2, 0, 4, 2]])[0, 0] == 0  # sharing an edge is not overlapping
    assert box_iou([[1, 1, 1, 1]], [[1, 1, 1, 1]])[0, 0] == 0
    assert box_iou(np.zeros((0, 4)), [[0, 0, 1, 1]]).shape == (0, 1)


@given(real_boxes())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_mask_follows_the_pixel_centre_rule(box):
    x0, y0, x1, y1 = box
    centre_y, centre_x = np.mgrid[:20, :30] + 0.5
    expected = (centre_x >= x0) & (centre_x < x1) & (centre_y >= y0) & (centre_y < y1)
    assert np.array_equal(box_mask(box, (20, 30)), expected)


def test_mask_of_several_boxes_is_their_union_and_ranges_are_cut():
    a, b = [0, 0, 3, 3], [2, 2, 50, 4]
    assert np.array_equal(box_mask([a, b], (6, 6)), box_mask(a, (6, 6)) | box_mask(b, (6, 6)))
    assert pixel_ranges([b], (6, 6)).tolist() == [[2, 2, 6, 4]]
    assert box_mask(np.zeros((0, 4)), (3, 3)).sum() == 0


def test_union_box():
    assert union_box([[5, 1, 6, 9], [0, 4, 2, 5]]).tolist() == [0, 1, 6, 9]
    with pytest.raises(ValueError, match="at least one box"):
        union_box([])


def test_clip_counts_and_refuses_what_is_outside():
    cut, n = clip_boxes([[-3, 2, 6, 9], [1, 1, 4, 4]], (8, 8))
    assert n == 1 and cut.tolist() == [[0, 2, 6, 8], [1, 1, 4, 4]]
    with pytest.raises(ValueError, match="wholly outside"):
        clip_boxes([8, 0, 12, 4], (8, 8))


@pytest.mark.parametrize(
    "bad, message",
    [
        ([2, 2, 2, 5], "empty or inverted"), ([5, 2, 1, 4], "empty or inverted"), ([0, 0, np.nan, 1], "finite"),
        ([[1, 2, 3]], r"\[k, 4\]"), ([[[0, 0, 1, 1]]], r"\[k, 4\]"),
    ],
)
def test_what_is_no_box_is_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        as_boxes(bad)


@given(whole_boxes(), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_resize_keeps_box_and_map_together(box, down, across):
    size, new = (20, 30), (20 * down, 30 * across)
    resized = box_mask(box, size).repeat(down, 0).repeat(across, 1)
    assert np.array_equal(box_mask(resize_boxes(box, size, new), new), resized)
    assert np.allclose(resize_boxes(resize_boxes(box, size, new), new, size), [box])


@given(whole_boxes(), st.tuples(*[st.integers(0, 5)] * 4))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_pad_keeps_box_and_map_together(box, pad):
    top, bottom, left, right = pad
    padded = np.pad(box_mask(box, (20, 30)), ((top, bottom), (left, right)))
    assert np.array_equal(box_mask(pad_boxes(box, top, left), padded.shape), padded)


@given(whole_boxes(), whole_boxes())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_crop_keeps_box_and_map_together(box, window):
    x0, y0, x1, y1 = window
    cropped = box_mask(box, (20, 30))[y0:y1, x0:x1]
    boxes, kept = crop_boxes(box, window)
    assert kept.tolist() == [bool(cropped.any())]
    assert np.array_equal(box_mask(boxes, cropped.shape), cropped)


@given(whole_boxes(), st.sampled_from(["x", "y"]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_flip_keeps_box_and_map_together(box, axis):
    flipped = np.flip(box_mask(box, (20, 30)), 1 if axis == "x" else 0)
    assert np.array_equal(box_mask(flip_boxes(box, (20, 30), axis), (20, 30)), flipped)


def test_boxes_as_large_as_numbers_go_still_overlap_by_a_share():
    huge = np.array([[-1e308, -1e308, 1e308, 1e308], [0, 0, 1e308, 1e308]])
    with np.errstate(all="raise"):
        np.testing.assert_allclose(box_iou(huge, huge), [[1, 0.25], [0.25, 1]])
