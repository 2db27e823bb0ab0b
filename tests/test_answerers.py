"""BLIP-VQA, ALBEF-VQA and ViLT-VQA as Answerers: equal to LAVIS's and transformers' own ways, and loaded with care."""

import json
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import LAVIS, VILT, picture

from qgcam_lib.models import load_model
from qgcam_lib.models.albef.explainer import AlbefConfig
from qgcam_lib.models.blip.network import BlipConfig
from qgcam_lib.models.blip.vqa import VQA_CONFIGS, clean_question
from qgcam_lib.models.common.device import prepare_image
from qgcam_lib.models.common.vocabulary import build_vocabulary, write_vocabulary
from qgcam_lib.models.registry import MODELS
from qgcam_lib.models.roles import Answerer

_VOCAB = len(build_vocabulary())
CONFIGS = {
    "blip-vqa": BlipConfig(**LAVIS, max_txt_len=20, vocab_size=_VOCAB + 2),
    "albef-vqa": AlbefConfig(**LAVIS, max_txt_len=20, vocab_size=_VOCAB, fusion_layer=1),
    "vilt-vqa": {**VILT, "num_labels": 9},
}
WORDS = ["yes", "no", "red", "two dogs", "a man in a hat", "yes sir", "dog"]
QUESTIONS = ["Is there a dog on the sofa?", "are there two (big) cats", "what colour", "is there a very small red dog"]
lavis_ones = pytest.mark.parametrize("name", ["blip-vqa", "albef-vqa"])
all_ones = pytest.mark.parametrize("name", list(CONFIGS))


@pytest.fixture
def vocab(tmp_path):
    return write_vocabulary(build_vocabulary(), tmp_path / "vocab.txt")


PICTURES = [picture(k) for k in range(4)]


def made(name, **options):
    """A tiny answerer whose answers depend on the picture and the question."""
    answerer = load_model(name, "random", seed=6, config=CONFIGS[name], **options)
    if name != "vilt-vqa":
        with torch.no_grad():
            for key, weight in answerer.model.named_parameters():
                weight.mul_((40 if "crossattention" in key else 6) if weight.ndim >= 2 else 1)
                weight.add_(0.3 * torch.randn_like(weight) if "LayerNorm" in key else 0)
    return answerer


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# ------------------------------------------------------------------------------------------------------- the oracle


def samples(answerer):
    side = answerer.config.image_size
    return {
        "image": torch.stack([prepare_image(each, side) for each in PICTURES]),
        "text_input": [clean_question(question) for question in QUESTIONS],
    }


@lavis_ones
@pytest.mark.parametrize("candidates", [1, 2, 4, 128])
def test_ranking_is_lavis_own(name, candidates):
    answerer = made(name, answers=WORDS, candidates=candidates)
    with torch.no_grad():
        theirs = answerer.model.predict_answers(samples(answerer), answer_list=WORDS, num_ans_candidates=candidates)
    assert answerer.answer_batch(PICTURES, QUESTIONS) == theirs
    assert len(set(theirs)) > 1, "an oracle that always says the same proves little"


@lavis_ones
def test_the_ranking_scores_are_minus_the_losses_of_lavis(name):
    answerer = made(name, answers=WORDS)
    model, words = answerer.model, answerer.model.tokenizer
    scores = answerer.answer_scores(PICTURES[0], QUESTIONS[0])
    with torch.no_grad():
        one = {key: value[:1] for key, value in samples(answerer).items()}
        output = model.forward_encoder(one)[0]
        for answer, score in zip(WORDS, scores):
            ids = words(answer, return_tensors="pt").input_ids
            ids[:, 0] = words.bos_token_id if name == "blip-vqa" else words.cls_token_id
            found = model.text_decoder(
                ids, encoder_hidden_states=output.last_hidden_state, labels=ids, return_dict=True, reduction="none",
                encoder_attention_mask=one["tokenized_text"].attention_mask)
            torch.testing.assert_close(score, -found.loss[0], rtol=1e-5, atol=1e-5)


def test_vilt_gives_the_logits_of_transformers_own_processor():
    from transformers import ViltImageProcessor

    answerer = made("vilt-vqa")
    processor = ViltImageProcessor(size={"shortest_edge": 64}, size_divisor=16)
    for image, question in zip(PICTURES, QUESTIONS):
        inputs = answerer.tokenizer([question], return_tensors="pt") | processor(image, return_tensors="pt")
        with torch.no_grad():
            theirs = answerer.model(**inputs).logits[0]
        torch.testing.assert_close(answerer.logits(image, question), theirs, rtol=1e-3, atol=2e-3)
        assert answerer.answer(image, question) == answerer.model.config.id2label[int(theirs.argmax())]


def test_questions_are_cleaned_as_lavis_does():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lavis.processors.blip_processors import BlipQuestionProcessor
    theirs = BlipQuestionProcessor()

    @settings(max_examples=200, deadline=None)
    @given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(["Dog", "a", "(b)", "c?", "*", ""])).map(" ".join)))
    def check(text):
        expected = theirs(text)
        if expected.strip():
            assert clean_question(text) == expected
        else:
            with pytest.raises(ValueError, match="question"):
                clean_question(text)

    check()
    assert len(clean_question("dog " * 80).split()) == 50


def test_the_published_sizes_and_addresses_are_those_of_lavis():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lavis.models.albef_models.albef_vqa import AlbefVQA
        from lavis.models.blip_models.blip_vqa import BlipVQA
        from omegaconf import OmegaConf

    from qgcam_lib.models.albef.explainer import ALBEF_VQA_CONFIGS

    for name, model, ours in (
        ("blip-vqa", BlipVQA, VQA_CONFIGS["blip-vqa"]),
        ("albef-vqa", AlbefVQA, ALBEF_VQA_CONFIGS["albef-vqa"]),
    ):
        config = OmegaConf.load(model.default_config_path("vqav2"))
        assert MODELS[name].checkpoint == config.model.finetuned and MODELS[name].role == "answerer"
        assert ours.image_size == config.model.image_size == config.preprocess.vis_processor.eval.image_size
        assert config.preprocess.vis_processor.eval.name == "blip_image_eval"
        assert config.preprocess.text_processor.eval.name == "blip_question"
    assert (VQA_CONFIGS["blip-vqa"].max_txt_len, ALBEF_VQA_CONFIGS["albef-vqa"].max_txt_len) == (35, 25)


# ------------------------------------------------------------------------------------------------------- invariants


@all_ones
def test_one_by_one_is_the_batch(name):
    answerer = made(name)
    assert isinstance(answerer, Answerer)
    images, asked = [PICTURES[0], *PICTURES, PICTURES[0]], [*QUESTIONS, QUESTIONS[2], QUESTIONS[1]]
    alone = [answerer.answer(*each) for each in zip(images, asked)]
    if hasattr(answerer, "answer_batch"):
        assert answerer.answer_batch(images, asked) == alone and answerer.answer_batch([], []) == []


@lavis_ones
def test_yes_scores_agree_with_the_forced_choice(name):
    answerer = made(name, answers=["yes", "no"])
    scores = [answerer.yes_score(image, question) for image in PICTURES for question in QUESTIONS]
    said = [answerer.answer(image, question) for image in PICTURES for question in QUESTIONS]
    assert said == ["yes" if score > 0.5 else "no" for score in scores]
    assert all(0 <= score <= 1 for score in scores) and len(set(scores)) > 4


# ----------------------------------------------------------------------------------------------------- what is refused


def test_vilt_knows_its_answers():
    other = made("vilt-vqa")
    other.labels = ["cat", *other.labels[1:]]
    with pytest.raises(ValueError, match="yes"):
        other.yes_score(PICTURES[0], "is it so")
    with pytest.warns(UserWarning, match="40"):
        made("vilt-vqa").answer(PICTURES[0], "dog " * 60)


# ------------------------------------------------------------------------------------------------------- checkpoints


@lavis_ones
@pytest.mark.parametrize("form", ["plain", "training", "other size"])
def test_checkpoints_come_back_with_every_key_checked(name, form, vocab, tmp_path):
    answerer = made(name)
    state = {key: value.clone() for key, value in answerer.model.state_dict().items()}
    expected, sizes = answerer.answer_scores(PICTURES[0], QUESTIONS[0]), CONFIGS[name]
    if form == "training":
        state = {**state, **{key.replace(".", "_m.", 1): value for key, value in state.items()}}
        state.pop("text_encoder.embeddings.position_ids", None)
        state = {"model": state, "epoch": torch.tensor(3)}
    if form == "other size":
        sizes = replace(sizes, image_size=96)
    torch.save(state, tmp_path / "model.pth")
    again = load_model(name, tmp_path / "model.pth", vocab=vocab, config=sizes)
    if form == "other size":
        assert again.card["input_size"] == (96, 96) and again.answer(PICTURES[0], QUESTIONS[0]) in ("yes", "no")
    else:
        torch.testing.assert_close(again.answer_scores(PICTURES[0], QUESTIONS[0]), expected)
    assert again.card["sha256"] and again.card["checkpoint"] == "model.pth"


@lavis_ones
def test_a_checkpoint_without_a_decoders_layer_is_refused(name, vocab, tmp_path):
    state = made(name).model.state_dict()
    part = "text_decoder.cls.predictions.transform"
    torch.save({k: v for k, v in state.items() if not k.startswith(part)}, tmp_path / "wrong.pth")
    with pytest.raises(ValueError, match=part):
        load_model(name, tmp_path / "wrong.pth", vocab=vocab, config=CONFIGS[name])


def test_albefs_original_names_are_understood_and_an_untied_decoder_is_refused(vocab, tmp_path):
    answerer = made("albef-vqa")
    state = {f"module.{key}": value.clone() for key, value in answerer.model.state_dict().items()}
    words = "module.text_encoder.embeddings.word_embeddings.weight"
    types = torch.randn(2, LAVIS["text_width"])
    state[words] -= types[0]
    state["module.text_encoder.embeddings.token_type_embeddings.weight"] = types
    state["module.text_decoder.bert.embeddings.token_type_embeddings.weight"] = torch.zeros(2, 32)
    torch.save(state, tmp_path / "model.pth")
    again = load_model("albef-vqa", tmp_path / "model.pth", vocab=vocab, config=CONFIGS["albef-vqa"])
    expected = answerer.answer_scores(PICTURES[0], QUESTIONS[0])
    torch.testing.assert_close(again.answer_scores(PICTURES[0], QUESTIONS[0]), expected, rtol=1e-4, atol=1e-4)
    state["module.text_decoder.bert.embeddings.token_type_embeddings.weight"] = types
    torch.save(state, tmp_path / "model.pth")
    with pytest.raises(ValueError, match="matrix"):
        load_model("albef-vqa", tmp_path / "model.pth", vocab=vocab, config=CONFIGS["albef-vqa"])


def test_vilt_from_a_folder(tmp_path):
    answerer = made("vilt-vqa")
    answerer.model.save_pretrained(tmp_path / "vilt")
    answerer.tokenizer.save_pretrained(tmp_path / "vilt")
    again = load_model("vilt-vqa", tmp_path / "vilt")
    torch.testing.assert_close(again.logits(PICTURES[0], QUESTIONS[0]), answerer.logits(PICTURES[0], QUESTIONS[0]))
    (tmp_path / "config.json").write_text(json.dumps({**VILT, "num_labels": 4}))
    found = load_model("vilt-vqa", "random", config=tmp_path / "config.json")
    assert found.labels == ["yes", "no", "answer 2", "answer 3"]
