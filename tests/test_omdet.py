"""OmDet-Turbo: against transformers' own processor and post-processing, and against plain loops."""

import numpy as np
import pytest
import torch
from small_models import SHAPES, SWIN, noise
from transformers import DetrImageProcessor
from transformers.models.omdet_turbo.processing_omdet_turbo import OmDetTurboProcessor

from qgcam_lib.models.grounding_dino import load_omdet, without_duplicates
from qgcam_lib.models.registry import ModelEntry
from qgcam_lib.models.roles import Detections, Detector, phrase_texts

TINY = {
    "image_size": 64, "num_queries": 20, "encoder_hidden_dim": 32, "decoder_hidden_dim": 32,
    "encoder_in_channels": [32, 64, 128], "vision_features_channels": [32, 32, 32], "encoder_attention_heads": 4,
    "decoder_num_heads": 4, "encoder_dim_feedforward": 32, "decoder_dim_feedforward": 32, "decoder_num_layers": 1,
    "text_projection_in_dim": 48, "text_projection_out_dim": 48, "class_embed_dim": 48, "task_encoder_hidden_dim": 32,
    "use_timm_backbone": False, "backbone": None, "apply_layernorm_after_vision_backbone": False,
    "backbone_config": SWIN,
    "text_config": {"model_type": "clip_text_model", "hidden_size": 48, "num_hidden_layers": 1,
                    "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 10, "max_position_embeddings": 16,
                    "eos_token_id": 9, "bos_token_id": 8, "pad_token_id": 0},
}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "a", "red", "ball", "and", "dog", "detect", "[START]", "[END]"]
ENTRY = ModelEntry("omdet-turbo", checkpoint="https://huggingface.co/nowhere/none", role="detector")
CAPTION, PHRASES = "a red ball and a dog", [[(0, 10)], [(15, 20)], [(2, 5)]]


def tiny(**options):
    detector = load_omdet(ENTRY, "random", config=TINY, vocab=WORDS, **options)
    with torch.no_grad():  # new weights keep all boxes and scores together
        for part in (detector.model.decoder.decoder_bbox_head, detector.model.decoder.decoder_class_head):
            for parameter in part.parameters():
                parameter.normal_(0, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
        # In transformers it begins as zero: all phrases would score the same.
        detector.model.language_backbone.text_projection.normal_(generator=torch.Generator().manual_seed(0))
    return detector


def published_pictures() -> DetrImageProcessor:
    """The published processor: no rescaling, mean and deviation in 0..255, squashed, no padding."""
    return DetrImageProcessor(size={"height": 64, "width": 64}, do_rescale=False, do_pad=False,
                              image_mean=[123.675, 116.28, 103.53], image_std=[58.395, 57.12, 57.375])  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_detections_equal_transformers(shape):
    detector, picture = tiny(), noise(*shape)
    words = phrase_texts(CAPTION, PHRASES)
    pixels = published_pictures()(picture, return_tensors="pt", input_data_format="channels_last").pixel_values
    own = detector.prepare(picture)[None]
    torch.testing.assert_close(own, pixels, atol=2e-5, rtol=1e-4)
    with torch.no_grad():  # near ties are common in an untrained net: the very same pixels keep their order
        outputs = detector.model(pixel_values=own, **detector.text_inputs(CAPTION, words))
    processor = object.__new__(OmDetTurboProcessor)  # its post-processing needs no tokenizer
    (theirs,) = OmDetTurboProcessor.post_process_grounded_object_detection(
        processor, outputs, threshold=0.0, nms_threshold=0.5, target_sizes=[shape[::-1]])  # fmt: skip
    found = detector.detect(picture, CAPTION, PHRASES)
    assert len(found) == len(theirs["scores"]) > 3
    np.testing.assert_allclose(found.scores, np.sort(theirs["scores"])[::-1], atol=1e-6)
    rows = np.c_[theirs["scores"], theirs["boxes"], theirs["labels"]]  # equal scores may stand in any order
    far = np.abs(rows[:, None] - np.c_[found.scores, found.boxes, found.phrases][None]).max(2)
    assert sorted(far.argmin(1)) == list(range(len(found))) and far.min(1).max() < 1e-3


def test_duplicates_go_as_in_a_loop():
    rng = np.random.default_rng(0)
    low = rng.random((40, 2)) * 40
    boxes, scores, phrases = np.c_[low, low + 20], rng.random(40), rng.integers(0, 3, 40)
    kept = []
    for k in np.argsort(-scores):
        def overlap(j, k=k):
            inside = np.prod(np.clip(np.minimum(boxes[k, 2:], boxes[j, 2:]) - np.maximum(boxes[k, :2], boxes[j, :2]),
                                     0, None))  # fmt: skip
            return inside / (2 * 400 - inside)

        if all(phrases[j] != phrases[k] or overlap(j) <= 0.4 for j in kept):
            kept.append(k)
    found = without_duplicates(Detections(scores, boxes, phrases), 0.4, 50, 45)
    np.testing.assert_array_equal(found.scores, scores[kept])
    np.testing.assert_array_equal(found.boxes, np.clip(boxes[kept], 0, [50, 45, 50, 45]))
    assert len(without_duplicates(Detections([], [], []), 0.5, 4, 4)) == 0


@pytest.mark.parametrize("n", [1, 2, 5])
def test_one_box_left_is_one_box(n):
    """The box of every duplicate is the same, so that one is left; of a phrase alone, and of each of two phrases."""
    boxes, scores = np.tile([2.0, 3.0, 60.0, 9.0], (n, 1)), np.linspace(0.9, 0.5, n)
    found = without_duplicates(Detections(scores, boxes, np.zeros(n)), 0.5, 50, 45)
    assert (found.scores.tolist(), found.boxes.tolist(), found.phrases.tolist()) == ([0.9], [[2, 3, 50, 9]], [0])
    both = Detections([*scores, *scores / 2], np.tile(boxes, (2, 1)), np.repeat([0, 1], n))
    assert without_duplicates(both, 0.5, 50, 45).phrases.tolist() == [0, 1]


def test_texts_are_masked_after_their_end_and_padding_changes_nothing():
    detector = tiny()
    inputs = detector.text_inputs(CAPTION, ["a dog", "ball"])
    assert inputs["classes_input_ids"][0, :5].tolist() == [8, 2, 6, 9, 0]
    assert inputs["classes_attention_mask"].sum(1).tolist() == [4, 3]
    assert inputs["tasks_attention_mask"].sum().item() == 8 and inputs["classes_structure"].tolist() == [2]
    with torch.no_grad():
        short = {name: value[:, :8] if value.ndim == 2 else value for name, value in inputs.items()}
        pixels = detector.prepare(noise(40, 30))[None]
        a, b = (detector.model(pixel_values=pixels, **each).decoder_class_logits for each in (inputs, short))
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_the_caption_is_the_task():
    picture, detector = noise(40, 30), tiny()
    with torch.no_grad():  # the new net's task says little; make it heard
        for parameter in detector.model.decoder.task_encoder.parameters():
            parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
    scores = [detector.pairs(picture, caption, ["a dog"])[0] for caption in ("a red ball and a dog", "a dog")]
    assert not torch.allclose(*scores)


def test_options_and_batches():
    detector, pictures = tiny(max_boxes=2), [noise(40, 30, 1), noise(30, 40, 2)]
    found = detector.detect_batch(pictures, [CAPTION, "a dog"], [PHRASES, [[(0, 5)]]])
    assert [len(each) for each in found] == [2, 2] and isinstance(detector, Detector)
    np.testing.assert_allclose(found[1].scores, detector.detect(pictures[1], "a dog", [[(0, 5)]]).scores, atol=1e-6)


def test_save_pretrained_comes_back_and_words_need_clip(tmp_path):
    config = {**TINY, "text_config": {**TINY["text_config"], "vocab_size": 49408, "eos_token_id": 49407,
                                      "bos_token_id": 49406}}  # fmt: skip
    detector = load_omdet(ENTRY, "random", config=config)
    detector.model.save_pretrained(tmp_path)
    back = load_omdet(ENTRY, tmp_path)
    assert len(back.card["sha256"]) == 64
    a, b = (each.detect(noise(40, 30), CAPTION, PHRASES) for each in (detector, back))
    np.testing.assert_allclose(a.scores, b.scores, atol=1e-6)
    with pytest.raises(ValueError, match="49408"):
        load_omdet(ENTRY, "random", config=TINY)
