"""Rankers from models that were trained for something else: crops, ReCLIP, the mass of a map, a detector's boxes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ImageFilter
from pydantic import TypeAdapter
from small_models import BOXES, clip_matcher, noise

from qgcam_lib.models import load_model
from qgcam_lib.models.inputs import RankerName
from qgcam_lib.models.registry import MODELS
from qgcam_lib.models.roles import Detections, RegionRanker
from qgcam_lib.models.zero_shot.detector_boxes import BY, DetectorRanker, MapRanker, map_scores_of_boxes, matched_scores
from qgcam_lib.models.zero_shot.reclip import RELATIONS, Place, ReClip, parse_places, place_weights, relation_matrix

TEXTS = ["the red ball", "a dog to the left of the ball", "the leftmost dog", "the ball under the big chair",
         "the largest", "the red ball"]
ZERO_SHOT = ("reclip", "itm-crops", "map-mass", "detector-boxes")


def tiny_clip(seed=1):
    return clip_matcher([*TEXTS, "a photo of"], seed, fit="squash")


def softmax(row):
    return np.exp(row - row.max()) / np.exp(row - row.max()).sum()


# --- words of place ---------------------------------------------------------------------------------------------------

def test_relations_equal_a_loop_over_pairs():
    for name in RELATIONS:
        matrix = relation_matrix(name, BOXES)
        for i, (a0, b0, a1, b1) in enumerate(BOXES):
            for j, (c0, d0, c1, d1) in enumerate(BOXES):
                shared = max(min(a1, c1) - max(a0, c0), 0) * max(min(b1, d1) - max(b0, d0), 0)
                size, other = (a1 - a0) * (b1 - b0), (c1 - c0) * (d1 - d0)
                want = {"left": a0 + a1 < c0 + c1, "right": a0 + a1 > c0 + c1, "above": b0 + b1 < d0 + d1,
                        "below": b0 + b1 > d0 + d1, "bigger": size > other, "smaller": size < other,
                        "inside": shared / size}[name]
                assert matrix[i, j] == pytest.approx(float(want) if i != j else 0.0), (name, i, j)


@pytest.mark.parametrize(("text", "place"), [
    ("the woman holding a cup", Place("the woman holding a cup")),
    ("The dog, left of the cat.", Place("the dog", (), (("left", Place("the cat")),))),
    ("the dog that is to the right side of the red car",
     Place("the dog", (), (("right", Place("the red car")),))),
    ("man on far left", Place("man", ("left",))),
    ("the bird on the left side of the photo", Place("the bird", ("left",))),
    ("bottom left pizza", Place("pizza", ("below", "left"))),
    ("left", Place("", ("left",))),
    ("the cat under", Place("the cat")),
    ("the book within the smallest box",
     Place("the book", (), (("inside", Place("box", ("smaller",))),))),
])
def test_expressions_are_taken_apart(text, place):
    assert parse_places(text) == place


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from("the dog ball left right of under on top largest leftmost picture is , . 3 é".split()),
                max_size=80), st.integers(1, 5))
def test_any_text_is_read_and_gives_a_distribution(words, count):
    place = parse_places(" ".join(words))
    rng = np.random.default_rng(len(words))
    corners = rng.random((count, 2)) * 50
    boxes = np.c_[corners, corners + rng.uniform(1, 20, (count, 2))]
    weights = place_weights(place, boxes, {text: rng.dirichlet(np.ones(count)) for text in place.texts()})
    assert weights.shape == (count,) and (weights >= 0).all() and weights.sum() == pytest.approx(1)


def test_rules_agree_with_a_literal_sum():
    known = {"the dog": np.array([0.4, 0.3, 0.2, 0.1]), "the ball": np.array([0.1, 0.2, 0.3, 0.4])}
    found = place_weights(parse_places("the dog left of the ball"), BOXES, known)
    left = [[BOXES[i, [0, 2]].sum() < BOXES[j, [0, 2]].sum() for j in range(4)] for i in range(4)]
    want = [known["the dog"][i] * sum(left[i][j] * known["the ball"][j] for j in range(4)) for i in range(4)]
    np.testing.assert_allclose(found, np.array(want) / sum(want))


# --- ReCLIP -----------------------------------------------------------------------------------------------------------

def literal_reclip(clip, image, boxes, expression):
    """One view and one text at a time through the library's own forward; rules by the formulas."""
    around, logits = image.filter(ImageFilter.GaussianBlur(100)), {}
    place = parse_places(expression)
    for text in {expression, *(place.texts() if place.is_spatial else ())}:
        rows = []
        for x0, y0, x1, y1 in boxes:
            corner = (int(x0), int(y0), int(np.ceil(x1)), int(np.ceil(y1)))
            blurred = around.copy()
            blurred.paste(image.crop(corner), corner[:2])
            total = 0.0
            for view in (image.crop(corner), blurred):
                with torch.no_grad():
                    pixels = clip.family.pixels(view, 64, "squash")[None]
                    total += float(clip.model.get_logits(pixels, clip.tokenizer(["a photo of " + text]))[0])
            rows.append(total)
        logits[text] = softmax(np.array(rows))
    if not place.is_spatial:
        return logits[expression]
    product = logits[expression] * place_weights(place, boxes, logits)
    return product / product.sum()


def test_reclip_equals_a_literal_version():
    clip, image = tiny_clip(), noise()
    boxes = np.clip(BOXES, 0, [90, 60, 90, 60])
    ranker = ReClip([clip])
    for text in TEXTS[:3]:
        np.testing.assert_allclose(ranker.rank(image, BOXES, text), literal_reclip(clip, image, boxes, text), atol=1e-5)


def test_reclip_adds_the_logits_of_several_clips():
    clips, image = [tiny_clip(1), tiny_clip(2)], noise()
    one = [np.log(ReClip([clip]).rank(image, BOXES, TEXTS[0])) for clip in clips]
    np.testing.assert_allclose(ReClip(clips).rank(image, BOXES, TEXTS[0]), softmax(np.sum(one, 0)), atol=1e-5)
    without = ReClip(clips, spatial=False).rank(image, BOXES, "the leftmost dog")
    assert without.sum() == pytest.approx(1) and not np.allclose(without, ReClip(clips).rank(image, BOXES, TEXTS[2]))


# --- crops, maps, boxes -----------------------------------------------------------------------------------------------

def test_itm_on_crops_equals_lavis_own_forward_crop_by_crop():
    from qgcam_lib.models.common.device import cut_box, prepare_image

    ranker, image = load_model("itm-crops"), noise()
    network, size = ranker.matcher.model, ranker.matcher.config.image_size
    found = ranker.rank(image, BOXES, "a red ball")
    for box, score in zip(np.clip(BOXES, 0, [90, 60, 90, 60]), found):
        with torch.no_grad():
            sample = {"image": prepare_image(cut_box(image, box, 0.1), size)[None], "text_input": ["a red ball"]}
            logits = network(sample, match_head="itm")[0]
        assert score == pytest.approx(float(logits[1] - logits[0]), abs=1e-4)


def test_mass_of_a_map_equals_a_loop_over_pixels():
    rng = np.random.default_rng(0)
    maps, boxes = rng.random((3, 12, 17)), np.array([[0, 0, 17, 12], [2.4, 1.6, 9.5, 7.5], [3.1, 3.2, 3.3, 3.4]])
    for by in BY:
        for one, row in zip(maps, map_scores_of_boxes(maps, boxes, by)):
            for (x0, y0, x1, y1), score in zip(boxes, row):
                inside = [one[i, j] for i in range(12) for j in range(17) if x0 <= j + 0.5 < x1 and y0 <= i + 0.5 < y1]
                inside = inside or [one[int(y0), int(x0)]]
                mass = sum(inside) / one.sum()
                want = {"mass": mass, "mean": np.mean(inside), "max": max(inside),
                        "root": mass / (len(inside) / 204) ** 0.5}[by]
                assert score == pytest.approx(want), by


class Spot:
    """An Explainer whose map is one pixel."""

    card, protocol = {"name": "spot"}, "pixel"

    def maps(self, image, phrases):
        maps = torch.zeros(len(phrases), 6, 9)
        maps[:, 4, 8] = 1
        return maps

    def maps_batch(self, images, phrases_per_image):
        return [self.maps(*one) for one in zip(images, phrases_per_image)]


def test_a_map_on_its_own_grid_finds_the_box_in_the_noise():
    for protocol in ("pixel", "native"):
        assert MapRanker(Spot(), protocol=protocol, by="root").rank(noise(), BOXES, "that").argmax() == 3


class Boxes:
    """A Detector that finds two boxes for a ball and none for anything else."""

    card = {"name": "boxes"}

    def detect(self, image, caption, phrases):
        assert phrases == [[(0, len(caption))]]
        if "ball" not in caption:
            return Detections([], [], [])
        return Detections([2.0, 5.0], [BOXES[0] + 1, BOXES[1] + 1], [0, 0])


def test_candidates_take_the_best_box_that_overlaps_them():
    ranker = DetectorRanker(Boxes())
    table = ranker.rank_batch([noise()], [BOXES], [["the ball", "a dog"]])[0]
    assert table.tolist() == [[2, 5, 1, 1], [0, 0, 0, 0]]
    scores = matched_scores(Detections([2.0, 5.0], [BOXES[0], BOXES[0]], [0, 0]), BOXES)
    assert scores.tolist() == [5, 1, 1, 1]


# --- all of them ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ZERO_SHOT)
def test_rankers_by_name_answer_together_as_one_by_one(name):
    assert TypeAdapter(RankerName).validate_python(name) == name and MODELS[name].role == "ranker"
    ranker = load_model(name)
    assert isinstance(ranker, RegionRanker) and ranker.card["name"] == name and ranker.card["weights"] == "mini"
    pictures, boxes = [noise(), noise(64, 80, 1)], [BOXES, [[0, 0, 30, 30]]]
    tables = ranker.rank_batch(pictures, boxes, [TEXTS, TEXTS[:2]])
    assert [table.shape for table in tables] == [(6, 4), (2, 1)]
    for image, own, texts, table in zip(pictures, boxes, (TEXTS, TEXTS[:2]), tables):
        for text, row in zip(texts, table):
            np.testing.assert_allclose(ranker.rank(image, own, text), row, atol=1e-5)
    doubled = ranker.rank(pictures[0], BOXES[[0, 0, 1]], TEXTS[0])
    assert doubled.shape == (3,) and doubled[0] == pytest.approx(doubled[1])  # equal boxes are a tie
    long = " ".join(["ball"] * 80)
    if name == "detector-boxes":  # the small detector refuses what it cannot read whole; the others cut and say so
        with pytest.raises(ValueError, match="38"):
            ranker.rank(pictures[0], BOXES, long)
    else:
        with pytest.warns(UserWarning, match="truncated"):
            assert ranker.rank(pictures[0], BOXES, long).shape == (4,)
