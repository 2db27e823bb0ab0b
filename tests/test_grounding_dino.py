"""Grounding DINO: geometry and scores against transformers' processor, and literal loops for what a phrase scores."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from small_models import SHAPES, SWIN, noise
from transformers import GroundingDinoImageProcessor, GroundingDinoProcessor
from transformers.models.grounding_dino.modeling_grounding_dino import (
    generate_masks_with_special_tokens_and_transfer_map,
)

from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer
from qgcam_lib.models.grounding_dino import bert_places, dino_size, load_grounding_dino, phrase_scores, phrase_tokens
from qgcam_lib.models.registry import ModelEntry
from qgcam_lib.models.roles import Detector

TINY = {
    "d_model": 64, "num_queries": 12, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "backbone_config": SWIN,
    "text_config": {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                    "intermediate_size": 32, "vocab_size": 2000},
}  # fmt: skip
ENTRY = ModelEntry("grounding-dino-tiny", checkpoint="https://huggingface.co/nowhere/none", role="detector")
VOCABULARY = bert_places(build_vocabulary(["a red ball and another man beside the man"]))
CAPTION, PHRASES = "A man beside another man and a red ball", [[(0, 5)], [(13, 24)], [(29, 39)], [(0, 1), (21, 24)]]


@pytest.fixture(scope="module")
def tiny():
    loaded = {}

    def load(**options):
        key = tuple(sorted(options.items()))
        if key not in loaded:
            loaded[key] = load_grounding_dino(ENTRY, "random", config=TINY, vocab=VOCABULARY, shorter=64, longer=96,
                                              **options)  # fmt: skip
        return loaded[key]

    return load


def images(shorter=64, longer=96) -> GroundingDinoImageProcessor:
    return GroundingDinoImageProcessor(size={"shortest_edge": shorter, "longest_edge": longer})


@pytest.mark.parametrize("shape", SHAPES)
def test_boxes_and_scores_equal_transformers(tiny, shape):
    detector, picture = tiny(max_boxes=None), noise(*shape)
    processor = GroundingDinoProcessor(images(), detector.tokenizer)
    inputs = processor(images=picture, text=CAPTION + ".", return_tensors="pt")
    assert inputs.pixel_mask.all()
    with torch.no_grad():
        outputs = detector.model(**inputs)
    found = detector.detect(picture, CAPTION, PHRASES)
    assert len(found) == 12 * len(PHRASES)
    offsets = detector.tokenizer(CAPTION + ".", return_offsets_mapping=True).offset_mapping
    for number, spans in enumerate(PHRASES):  # slow and literal: letter by letter
        letters = {letter for start, end in spans for letter in range(start, end)}
        mine = [k for k, (start, end) in enumerate(offsets) if letters & set(range(start, end))]
        expected = []
        for box in range(12):
            x, y, w, h = outputs.pred_boxes[0, box].tolist()
            score = np.mean([torch.sigmoid(outputs.logits[0, box, k]).item() for k in mine])
            expected.append((score, [(x - w / 2) * shape[0], (y - h / 2) * shape[1], (x + w / 2) * shape[0],
                                     (y + h / 2) * shape[1]]))  # fmt: skip
        expected.sort(key=lambda pair: -pair[0])
        own = found.phrases == number
        np.testing.assert_allclose(found.scores[own], [score for score, _ in expected], atol=1e-6)
        np.testing.assert_allclose(found.boxes[own], [box for _, box in expected], atol=1e-3)
    (theirs,) = processor.post_process_grounded_object_detection(outputs, threshold=0.0, target_sizes=[shape[::-1]])
    distances = np.abs(theirs["boxes"].numpy()[:, None] - found.boxes[None]).max(2)
    assert distances.min(1).max() < 1e-3


@pytest.mark.parametrize("shape", [*SHAPES, (640, 480), (480, 640)])
def test_the_pictures_are_those_of_transformers(tiny, shape):
    theirs = images()(noise(*shape), return_tensors="pt", input_data_format="channels_last")
    torch.testing.assert_close(tiny().prepare(noise(*shape)), theirs.pixel_values[0], atol=1e-5, rtol=1e-5)


@given(st.integers(1, 3000), st.integers(1, 3000))
@settings(deadline=None)
def test_sizes_keep_their_limits_and_their_shape(width, height):
    from transformers.models.grounding_dino.image_processing_grounding_dino import get_size_with_aspect_ratio

    rows, columns = dino_size(width, height)
    expected = get_size_with_aspect_ratio((height, width), 800, 1333)
    assert (rows, columns) == tuple(max(side, 1) for side in expected)
    if (rows, columns) != (height, width):
        assert max(rows, columns) <= 1333 and min(rows, columns) <= 800


@pytest.mark.parametrize("shape", [(160, 60), (60, 160), (100, 100), (24, 16)])
def test_a_drawn_box_is_found_again_where_it_was_drawn(tiny, shape):
    width, height = shape
    drawn = np.array([width // 4, height // 4, width * 3 // 4, height * 3 // 4])
    picture = Image.new("RGB", shape)
    ImageDraw.Draw(picture).rectangle((*drawn[:2], *(drawn[2:] - 1)), fill=(255, 0, 0))
    pixels = tiny().prepare(picture)[0]
    seen = (pixels > (pixels.amin() + pixels.amax()) / 2).nonzero()
    fractions = np.r_[seen.amin(0).flip(0), seen.amax(0).flip(0) + 1] / np.tile(pixels.shape[::-1], 2)
    np.testing.assert_allclose(fractions * [width, height, width, height], drawn,
                               atol=max(width / pixels.shape[1], height / pixels.shape[0]) + 0.01)  # fmt: skip


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=40)
def test_phrase_scores_are_those_of_a_loop(seed):
    rng = np.random.default_rng(seed)
    boxes, tokens, phrases = rng.integers(1, 6, 3)
    logits = torch.from_numpy(rng.normal(0, 3, (boxes, tokens + 2)))
    mine = rng.random((phrases, tokens)) < 0.5
    found = phrase_scores(logits, mine)
    assert found.shape == (boxes, phrases)
    for box in range(boxes):
        for phrase in range(phrases):
            values = [1 / (1 + np.exp(-logits[box, k].item())) for k in range(tokens) if mine[phrase, k]]
            np.testing.assert_allclose(found[box, phrase], np.mean(values) if values else np.nan, rtol=1e-5)


def test_shared_words_do_not_mix_phrases():
    tokenizer = make_tokenizer(VOCABULARY, lavis_tokens=False)
    offsets = tokenizer(CAPTION, return_offsets_mapping=True).offset_mapping
    words = [[CAPTION[slice(*offsets[k])] for k in row.nonzero()[0]] for row in phrase_tokens(offsets, PHRASES)]
    assert words == [["A", "man"], ["another", "man"], ["a", "red", "ball"], ["A", "man"]]
    first, second = phrase_tokens(offsets, PHRASES[:2])
    assert not (first & second).any()
    assert not phrase_tokens([(0, 0), (0, 5)], [[(5, 9)]]).any()


def test_full_stops_part_the_text_as_in_bert():
    tokenizer = make_tokenizer(VOCABULARY, lavis_tokens=False)
    ids = tokenizer("a man. a red ball.", return_tensors="pt").input_ids
    mask, places = generate_masks_with_special_tokens_and_transfer_map(ids)
    assert ids[0, [0, 3, 7, 8]].tolist() == [101, 1012, 1012, 102]
    assert mask[0, 1, :4].tolist() == [False, True, True, True] and not mask[0, 1, 4:].any()
    assert places[0].tolist() == [0, 0, 1, 2, 0, 1, 2, 3, 0]


def test_long_captions_are_cut_with_a_warning(tiny):
    detector, caption = tiny(), "a man " * 300
    with pytest.warns(UserWarning, match="truncated to 256") as warned:
        found = detector.detect(noise(20, 20), caption, [[(0, 5)], [(1790, 1797)]])
    assert set(found.phrases) == {0} and any("no boxes" in str(one.message) for one in warned)
    with pytest.warns(UserWarning, match="no boxes"):
        assert len(detector.detect(noise(20, 20), caption, [[(1790, 1797)]])) == 0


def test_one_by_one_equals_together(tiny):
    detector, pictures = tiny(), [noise(40, 30, 1), noise(30, 40, 2)]
    together = detector.detect_batch(pictures, [CAPTION, "a red ball."], [PHRASES, [[(0, 10)]]])
    alone = detector.detect(pictures[1], "a red ball.", [[(0, 10)]])
    np.testing.assert_array_equal(alone.scores, together[1].scores)
    assert len(together[0]) == 48 and len(detector.detect(pictures[0], CAPTION, [])) == 0


def test_save_pretrained_comes_back(tiny, tmp_path):
    detector = tiny()
    detector.model.save_pretrained(tmp_path)
    detector.tokenizer.save_pretrained(tmp_path)
    back = load_grounding_dino(ENTRY, tmp_path, shorter=64, longer=96)
    assert back.card["licence"].startswith("unknown")
    a, b = (each.detect(noise(40, 30), CAPTION, PHRASES) for each in (detector, back))
    np.testing.assert_allclose(a.scores, b.scores, atol=1e-6)


def test_the_vocabulary_has_berts_places():
    places = {token: number for number, token in enumerate(VOCABULARY)}
    assert len(places) == len(VOCABULARY)
    known = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "!": 999, ",": 1010, ".": 1012, "?": 1029}
    assert {token: places[token] for token in known} == known


def test_mistakes_are_named(tiny):
    assert isinstance(tiny(), Detector)
    with pytest.raises(ValueError, match="max_boxes"):
        load_grounding_dino(ENTRY, "random", config=TINY, vocab=VOCABULARY, max_boxes=-1)


def test_bfloat16_is_near(tiny):
    exact, near = (tiny(precision=one, max_boxes=None).detect(noise(*SHAPES[0]), CAPTION, PHRASES)
                   for one in ("float32", "bfloat16"))  # fmt: skip
    assert len(exact) == len(near) and abs(np.sort(exact.scores) - np.sort(near.scores)).max() < 0.02
