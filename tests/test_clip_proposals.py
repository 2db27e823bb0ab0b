"""CLIP and proposals: the windows, the crops, and scores that are the matcher's own."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import noise

from qgcam_lib.models.clip.vit import ClipProposals, load_clip_proposals, sliding_windows
from qgcam_lib.models.common.device import cut_box
from qgcam_lib.models.registry import MODELS, ModelEntry, load_model
from qgcam_lib.models.roles import Detector

CAPTION, PHRASES = "a red ball and a dog and a red ball", [[(0, 10)], [(15, 20)], [(25, 35)]]


class Brightness:
    """Scores a crop by its mean in a channel that the first letter of the text chooses; remembers what it was asked."""

    card = {"name": "brightness"}

    def __init__(self):
        self.asked = []

    def score(self, images, texts):
        self.asked.append(list(texts))
        means = torch.tensor([np.asarray(image, float).mean((0, 1)).tolist() for image in images])
        return torch.stack([means[:, len(text) % 3] for text in texts], 1)


@given(st.integers(1, 500), st.integers(1, 500))
@settings(deadline=None, max_examples=30)
def test_windows_are_different_boxes_inside_that_reach_every_border(width, height):
    windows = sliding_windows(width, height)
    assert windows[0].tolist() == [0, 0, width, height]
    assert (windows[:, :2] >= 0).all() and (windows[:, 2:] <= np.array([width, height]) + 1e-9).all()
    assert (windows[:, :2] < windows[:, 2:]).all() and len({tuple(box) for box in windows}) == len(windows)
    for side, border in ((0, 0), (1, 0), (2, width), (3, height)):
        assert np.isclose(windows[1:, side], border).any()


@given(st.integers(20, 300), st.integers(20, 300))
@settings(deadline=None, max_examples=30)
def test_windows_leave_no_gap(width, height):
    side, windows = 0.3 * min(width, height), sliding_windows(width, height)
    windows = windows[np.isclose(windows[:, 2:] - windows[:, :2], side).all(1)]
    np.testing.assert_allclose(windows[:, 2:] - windows[:, :2], side, rtol=1e-9)
    for column in (0, 1):
        assert np.diff(np.unique(windows[:, column].round(9))).max(initial=0) <= side / 2 + 1e-6


def test_every_pair_has_the_score_of_its_crop():
    picture, matcher = noise(60, 40), Brightness()
    boxes = sliding_windows(60, 40)
    found = ClipProposals(matcher, margin=0.2, max_boxes=None).detect(picture, CAPTION, PHRASES)
    assert matcher.asked == [["a red ball", "a dog"]] and len(found) == 3 * len(boxes)  # each different text once
    pixels = np.asarray(picture, float)
    channels = [len(words) % 3 for words in ("a red ball", "a dog", "a red ball")]
    for score, box, phrase in zip(found.scores, found.boxes, found.phrases):
        x0, y0, x1, y1 = box
        across, down = 0.1 * (x1 - x0), 0.1 * (y1 - y0)
        rows = slice(max(int(y0 - down), 0), int(np.ceil(y1 + down)))
        columns = slice(max(int(x0 - across), 0), int(np.ceil(x1 + across)))
        assert score == pytest.approx(pixels[rows, columns, channels[phrase]].mean(), rel=1e-5)
    assert {tuple(box) for box in found.boxes} == {tuple(box) for box in boxes}
    assert (np.diff(found.scores) <= 0).all()


class Heights:
    """Scores the texts of five phrases at five heights, ten apart, and a crop by its brightness below one."""

    card = {"name": "heights"}

    def score(self, images, texts):
        light = torch.tensor([np.asarray(image, float).mean() / 255 for image in images])
        return light[:, None] + torch.tensor([10.0 * int(text) for text in texts])


@pytest.mark.parametrize("max_boxes", [1, 7, 300, None])
def test_each_of_five_phrases_has_its_boxes(max_boxes):
    caption, picture = "0 1 2 3 4", noise(120, 80)
    detector = ClipProposals(Heights(), max_boxes=max_boxes)
    found = detector.detect(picture, caption, [[(k, k + 1)] for k in range(0, 9, 2)])
    boxes = sliding_windows(120, 80)
    kept = min(max_boxes or len(boxes), len(boxes))
    assert np.bincount(found.phrases, minlength=5).tolist() == [kept] * 5
    assert (np.diff(found.scores) <= 0).all()
    for k in range(5):  # each phrase alone gives the same
        alone = detector.detect(picture, str(k), [[(0, 1)]])
        np.testing.assert_array_equal(alone.boxes, found.boxes[found.phrases == k])


def test_crops_stay_in_the_picture_and_are_never_empty():
    picture = noise(20, 10)
    assert cut_box(picture, (0, 0, 20, 10), 0.5).size == (20, 10)
    assert cut_box(picture, (5, 2, 9, 6), 0.5).size == (6, 6)
    for box in ((19.5, 9.5, 30, 30), (-9, -9, -5, -5), (19.999, 0, 20, 0.001)):
        assert min(cut_box(picture, box, 0.5).size) >= 1


def test_the_mini_scores_as_its_matcher():
    detector = load_clip_proposals(ModelEntry("clip-proposals", role="detector"), "mini", margin=0.0, max_boxes=5)
    assert isinstance(detector, Detector) and detector.card["matcher"] == "clip-rn50x16-gscorecam"
    picture = noise(96, 96)
    found = detector.detect(picture, "a red ball", [[(0, 10)]])
    assert len(found) == 5 and detector.card["name"] == "clip-proposals"
    alone = load_model("clip-rn50x16-gscorecam", "mini").score([cut_box(picture, found.boxes[0])], ["a red ball"])
    assert found.scores[0] == pytest.approx(alone.item(), rel=1e-5)
    assert MODELS["clip-proposals"].role == "detector" and MODELS["clip-proposals"].mini == "clip-rn-mini"
    assert len(load_model("clip-proposals", "mini", max_boxes=3).detect(picture, "a dog", [[(0, 5)]])) == 3


def test_mistakes_are_named():
    assert len(ClipProposals(Brightness()).detect(noise(20, 10), CAPTION, [])) == 0
    with pytest.raises(ValueError, match="max_boxes"):
        ClipProposals(Brightness(), max_boxes=0)
