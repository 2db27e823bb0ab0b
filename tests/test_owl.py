"""OWL-ViT and OWLv2: equal to transformers where it is right, to arithmetic by hand everywhere."""


import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from small_models import SHAPES, noise
from transformers import Owlv2ImageProcessor, OwlViTImageProcessor

from qgcam_lib.models.common.adapter import BoxDetector, best_pairs, to_corners
from qgcam_lib.models.common.checkpoints import save_model
from qgcam_lib.models.owl import OwlDetector, box_scale, build_owl, load_owl, padded_square
from qgcam_lib.models.registry import ModelEntry
from qgcam_lib.models.roles import Detections, Detector, phrase_texts

SIZE = {
    "projection_dim": 32,
    "vision_config": {"image_size": 64, "patch_size": 16, "hidden_size": 32, "intermediate_size": 64,
                      "num_hidden_layers": 2, "num_attention_heads": 2},
    "text_config": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "a", "red", "ball", "dog", "and", "big", "[START]", "[END]"]
CAPTION, PHRASES = "a red ball and a big dog", [[(0, 10)], [(15, 24)], [(0, 1), (21, 24)]]


def tiny(kind="owlvit", **options) -> OwlDetector:
    owl = build_owl({**SIZE, "model_type": kind}, WORDS, seed=1)
    with torch.no_grad():  # spread the boxes and the scores, which new weights keep together
        for parameter in [*owl.model.box_head.parameters(), *owl.model.class_head.parameters()]:
            parameter.normal_(0, 0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    return OwlDetector(owl, **options)


def transformers_outputs(detector, picture, texts):
    """The model's own forward pass, with its own processor's pixels, as a user of transformers calls it."""
    side = {"height": 64, "width": 64}
    processor = (Owlv2ImageProcessor if detector.owl.pads else OwlViTImageProcessor)(size=side)
    ids = detector.owl.tokenize(texts)
    pixels = processor(picture, return_tensors="pt").pixel_values.float()
    with torch.no_grad():
        return processor, detector.model(input_ids=ids, attention_mask=(ids > 0).long(), pixel_values=pixels)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["owlvit", "owlv2"])
def test_all_pairs_equal_transformers(kind, shape):
    detector, picture = tiny(kind, max_boxes=None), noise(*shape)
    texts = phrase_texts(CAPTION, PHRASES)
    processor, outputs = transformers_outputs(detector, picture, texts)
    found = detector.detect(picture, CAPTION, PHRASES)
    scores = torch.sigmoid(outputs.logits[0])
    assert len(found) == scores.numel() == 16 * 3
    # Slow and literal: every pair of box and phrase, by its numbers.
    across, down = (max(shape), max(shape)) if kind == "owlv2" else shape
    for phrase in range(3):
        mine, expected = found.phrases == phrase, []
        for box in range(16):
            x, y, w, h = outputs.pred_boxes[0, box].tolist()
            corners = [(x - w / 2) * across, (y - h / 2) * down, (x + w / 2) * across, (y + h / 2) * down]
            expected.append((scores[box, phrase].item(), corners))
        expected.sort(reverse=True)
        np.testing.assert_allclose(found.scores[mine], [score for score, _ in expected], atol=2e-5)
        np.testing.assert_allclose(found.boxes[mine], [box for _, box in expected], rtol=1e-4, atol=2e-3)
    assert (np.diff(found.scores) <= 0).all()
    # Its own post-processing keeps the best phrase of each box; these are among ours, with these boxes.
    (theirs,) = processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=[shape[::-1]])
    for score, label, box in zip(theirs["scores"], theirs["labels"], theirs["boxes"]):
        mine = (found.phrases == label.item()) & (np.abs(found.boxes - box.numpy()).max(1) < 2e-3)
        assert np.abs(found.scores[mine] - score.item()).min() < 2e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_the_pictures_are_those_of_transformers(shape):
    picture = noise(*shape, seed=3)
    for kind, processor in (("owlvit", OwlViTImageProcessor), ("owlv2", Owlv2ImageProcessor)):
        theirs = processor(size={"height": 64, "width": 64})(picture, return_tensors="pt").pixel_values[0].float()
        torch.testing.assert_close(tiny(kind).prepare(picture), theirs, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["owlvit", "owlv2"])
@pytest.mark.parametrize("shape", [(160, 60), (60, 160), (100, 100), (24, 16)])
def test_a_drawn_box_is_found_again_where_it_was_drawn(kind, shape):
    width, height = shape
    drawn = np.array([width // 4, height // 4, width * 3 // 4, height * 3 // 4])
    picture = Image.new("RGB", shape, (0, 0, 0))
    ImageDraw.Draw(picture).rectangle((*drawn[:2], *(drawn[2:] - 1)), fill=(255, 0, 0))
    pixels = tiny(kind).prepare(picture)
    side = pixels.shape[1]
    low, high = pixels[0].amin(), pixels[0].amax()
    seen = ((pixels[0] > (low + high) / 2) & (pixels[1] < pixels[0])).nonzero()
    fractions = np.r_[seen.amin(0).flip(0), seen.amax(0).flip(0) + 1] / side
    across, down = box_scale(width, height, kind == "owlv2")
    tolerance = max(width, height) / side + 0.01  # a pixel of the model's square
    np.testing.assert_allclose(fractions * [across, down, across, down], drawn, atol=tolerance)
    if kind == "owlv2" and width != height:  # the mistake of transformers' issues 27205 and 27705 would show
        assert np.abs(fractions * [width, height, width, height] - drawn).max() > 2 * tolerance


def test_owlv2_pads_with_grey_below_and_on_the_right():
    view = padded_square(Image.new("RGB", (40, 20), "white"), 32)
    assert view[:, 2:14].amin() > view[:, 18:].amax()
    assert view[:, 18:].std((1, 2)).max() < 1e-6


def test_one_by_one_equals_together_and_each_text_is_read_once(monkeypatch):
    detector, asked = tiny(), []
    encode = detector.text_vectors
    monkeypatch.setattr(detector, "text_vectors", lambda texts: (asked.extend(texts), encode(texts))[1])
    pictures = [noise(40, 30, 1), noise(30, 40, 2)]
    together = detector.detect_batch(pictures, [CAPTION, "a big dog"], [PHRASES, [[(0, 9)]]])
    assert sorted(asked) == ["a big dog", "a dog", "a red ball"]
    for picture, caption, phrases, found in zip(pictures, [CAPTION, "a big dog"], [PHRASES, [[(0, 9)]]], together):
        alone = detector.detect(picture, caption, phrases)
        np.testing.assert_allclose(alone.scores, found.scores, atol=1e-6)
        np.testing.assert_allclose(alone.boxes, found.boxes, atol=1e-4)


def test_only_the_best_are_kept():
    all_of, few = tiny(max_boxes=None), tiny(max_boxes=7)
    a, b = (each.detect(noise(40, 30), CAPTION, PHRASES) for each in (all_of, few))
    assert (len(a), len(b)) == (48, 7)
    np.testing.assert_array_equal(a.scores[:7], b.scores)


def test_the_mini_form_and_save_pretrained_come_back(tmp_path):
    detector = tiny()
    entry = ModelEntry("owl-vit-b32", checkpoint="https://huggingface.co/nowhere/none", role="detector")
    folder = save_model(tmp_path / "owl", detector.model, detector.owl.config, WORDS, {"name": "owl"})
    back = load_owl(entry, folder)
    assert back.card["name"] == "owl-vit-b32" and len(back.card["sha256"]) == 64
    a, b = (each.detect(noise(40, 30), CAPTION, PHRASES) for each in (detector, back))
    np.testing.assert_allclose(np.sort(a.scores), np.sort(b.scores), atol=2e-2)  # stored as float16
    full = build_owl(SIZE, seed=2)
    full.model.save_pretrained(tmp_path / "full")
    read = load_owl(entry, tmp_path / "full")
    assert read.card["licence"].startswith("unknown") and read.card["unused_keys"] == 0
    expected = OwlDetector(full).detect(noise(40, 30), CAPTION, PHRASES)
    np.testing.assert_array_equal(read.detect(noise(40, 30), CAPTION, PHRASES).scores, expected.scores)


def test_mistakes_are_named():
    detector = tiny()
    assert isinstance(detector, Detector) and isinstance(detector, BoxDetector)
    assert len(detector.detect(noise(20, 20), CAPTION, [])) == 0 and detector.detect_batch([], [], []) == []
    for named, call in (
        ("spans", lambda: detector.detect(noise(20, 20), CAPTION, [[(0, 99)]])),
        ("max_boxes", lambda: tiny(max_boxes=0)),
        ("precision", lambda: tiny(precision="int8")),
        ("vocab_size", lambda: build_owl({**SIZE, "text_config": {**SIZE["text_config"], "vocab_size": 5}}, WORDS)),
        ("model_type", lambda: build_owl({**SIZE, "model_type": "clip"}, WORDS)),
    ):
        with pytest.raises(ValueError, match=named):
            call()


def test_best_pairs_is_a_stable_sort_of_all_pairs():
    rng = np.random.default_rng(0)
    scores, boxes = torch.from_numpy(rng.integers(0, 4, (9, 5)) / 4), torch.from_numpy(rng.random((9, 2)))
    boxes = torch.cat([boxes, boxes + 1], 1)
    found = best_pairs(scores, boxes, 20)
    pairs = sorted((-scores[i, j].item(), i, j) for i in range(9) for j in range(5))[:20]
    assert found.phrases.tolist() == [j for _, _, j in pairs]
    np.testing.assert_array_equal(found.boxes, boxes.numpy()[[i for _, i, _ in pairs]])
    each = best_pairs(scores, boxes, 3, each=True)
    first = [sorted((-scores[i, j].item(), i, j) for i in range(9))[:3] for j in range(5)]
    pairs = sorted(pair for of_one in first for pair in of_one)
    assert list(zip(-each.scores, each.phrases)) == [(score, j) for score, _, j in pairs]
    np.testing.assert_array_equal(each.boxes, boxes.numpy()[[i for _, i, _ in pairs]])
    assert isinstance(found, Detections)
    torch.testing.assert_close(to_corners(torch.tensor([[0.5, 0.25, 1.0, 0.5]]), 4, 8), torch.tensor([[0.0, 0, 4, 4]]))
