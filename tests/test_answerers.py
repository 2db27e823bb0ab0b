"""BLIP-VQA, ALBEF-VQA and ViLT-VQA as Answerers: equal to LAVIS's and transformers' own ways, and loaded with care."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from qgcam_lib.models import load_model
from qgcam_lib.models.albef.network import AlbefConfig
from qgcam_lib.models.blip.network import BlipConfig
from qgcam_lib.models.blip.vqa import VQA_CONFIGS, clean_question
from qgcam_lib.models.common.images import prepare_image
from qgcam_lib.models.common.vocabulary import build_vocabulary
from qgcam_lib.models.registry import MODELS
from qgcam_lib.models.roles import Answerer

_LAVIS = {
    "image_size": 48,
    "patch_size": 12,
    "vision_width": 36,
    "vision_depth": 1,
    "vision_heads": 3,
    "text_width": 32,
    "text_depth": 3,
    "text_heads": 2,
    "text_mlp_width": 48,
    "max_txt_len": 20,
}
_VOCAB = len(build_vocabulary())
_VILT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 64,
    "patch_size": 16,
    "vocab_size": 700,
    "initializer_range": 0.2,
    "num_labels": 9,
}
CONFIGS = {
    "blip-vqa": BlipConfig(**_LAVIS, vocab_size=_VOCAB + 2),
    "albef-vqa": AlbefConfig(**_LAVIS, vocab_size=_VOCAB, fusion_layer=1),
    "vilt-vqa": _VILT,
}
WORDS = ["yes", "no", "red", "two dogs", "a man in a hat", "yes sir", "dog"]
QUESTIONS = ["Is there a dog on the sofa?", "are there two (big) cats", "what colour", "is there a very small red dog"]
lavis_ones = pytest.mark.parametrize("name", ["blip-vqa", "albef-vqa"])
all_ones = pytest.mark.parametrize("name", list(CONFIGS))


def picture(seed, size=(40, 60)):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


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
    found = answerer.answer_scores(PICTURES[0], QUESTIONS[0])
    with torch.no_grad():
        one = {key: value[:1] for key, value in samples(answerer).items()}
        output = model.forward_encoder(one)[0]
        for answer, score in zip(WORDS, found):
            ids = words(answer, return_tensors="pt").input_ids
            ids[:, 0] = words.bos_token_id if name == "blip-vqa" else words.cls_token_id
            loss = model.text_decoder(
                ids,
                encoder_hidden_states=output.last_hidden_state,
                labels=ids,
                return_dict=True,
                encoder_attention_mask=one["tokenized_text"].attention_mask,
                reduction="none",
            ).loss
            torch.testing.assert_close(score, -loss[0], rtol=1e-5, atol=1e-5)


def spoken_by_hand(answerer, image, question, steps=9):
    """The greedy answer, one full pass of the decoder a token."""
    model, words = answerer.model, answerer.model.tokenizer
    one = {"image": prepare_image(image, 48)[None], "text_input": [clean_question(question)]}
    states = model.forward_encoder(one)[0].last_hidden_state
    ids = torch.tensor([[words.cls_token_id if words.bos_token_id is None else words.bos_token_id]])
    while ids.shape[1] <= steps and (ids.shape[1] == 1 or ids[0, -1] != words.sep_token_id):
        logits = model.text_decoder(
            ids,
            attention_mask=torch.ones_like(ids),
            encoder_hidden_states=states,
            encoder_attention_mask=torch.ones(states.shape[:2]),
            return_dict=True,
        ).logits[0, -1]
        if ids.shape[1] < 1:  # min_length 1: the first token alone may not end the answer
            logits[words.sep_token_id] = -torch.inf
        ids = torch.cat([ids, logits.argmax().view(1, 1)], 1)
    return words.decode(ids[0], skip_special_tokens=True)


@lavis_ones
def test_generating_greedily_is_the_decoder_step_by_step(name):
    answerer = made(name, mode="generate", beams=1)
    with torch.no_grad():
        expected = [spoken_by_hand(answerer, *each) for each in zip(PICTURES, QUESTIONS)]
    assert answerer.answer_batch(PICTURES, QUESTIONS) == expected
    assert len(set(expected)) > 1 and all(expected)


@pytest.mark.parametrize("beams", [1, 3])
def test_generating_is_lavis_own(beams):
    """LAVIS repeats the states for each beam before it generates, today's transformers does so itself: undone here."""
    answerer = made("blip-vqa", mode="generate", beams=beams)
    model, generate = answerer.model, answerer.model.text_decoder.generate

    def once(input_ids, encoder_hidden_states, encoder_attention_mask, **options):
        return generate(
            input_ids=input_ids,
            encoder_hidden_states=encoder_hidden_states[::beams],
            encoder_attention_mask=encoder_attention_mask[::beams],
            **options,
        )

    model.text_decoder.generate = once
    with torch.no_grad():
        theirs = [
            model.predict_answers(
                {"image": prepare_image(image, 48)[None], "text_input": [clean_question(text)]},
                inference_method="generate",
                num_beams=beams,
            )[0]
            for image, text in zip(PICTURES, QUESTIONS)
        ]
    model.text_decoder.generate = generate
    assert [answerer.answer(*each) for each in zip(PICTURES, QUESTIONS)] == theirs


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
            with pytest.raises(ValueError, match="nothing is left"):
                clean_question(text)

    check()
    assert len(clean_question("dog " * 80).split()) == 50
    with pytest.raises(TypeError, match="question: expected a text"):
        clean_question(None)


def test_the_published_sizes_and_addresses_are_those_of_lavis():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lavis.models.albef_models.albef_vqa import AlbefVQA
        from lavis.models.blip_models.blip_vqa import BlipVQA
        from omegaconf import OmegaConf

    from qgcam_lib.models.albef.vqa import ALBEF_VQA_CONFIGS

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
        with pytest.raises(ValueError, match="questions: expected 1, one an image, got 2"):
            answerer.answer_batch(PICTURES[:1], QUESTIONS[:2])
    if name != "vilt-vqa":
        speaks = made(name, mode="generate")
        assert speaks.answer_batch(images, asked) == [speaks.answer(*each) for each in zip(images, asked)]


@all_ones
def test_yes_scores_agree_with_the_forced_choice(name):
    answerer = made(name, answers=["yes", "no"])
    scores = [answerer.yes_score(image, question) for image in PICTURES for question in QUESTIONS]
    said = [answerer.answer(image, question) for image in PICTURES for question in QUESTIONS]
    assert said == ["yes" if score > 0.5 else "no" for score in scores]
    assert all(0 <= score <= 1 for score in scores) and len(set(scores)) > 4


@all_ones
def test_files_and_pictures_are_one(name, tmp_path):
    answerer = made(name)
    PICTURES[1].save(tmp_path / "1.png")
    assert answerer.yes_score(tmp_path / "1.png", "is it so") == pytest.approx(
        answerer.yes_score(PICTURES[1], "is it so")
    )
    (tmp_path / "2.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="2.png"):
        answerer.answer(tmp_path / "2.png", "is it so")
    with pytest.raises(TypeError, match="expected a PIL image or a path"):
        answerer.answer(np.zeros((4, 4, 3)), "is it so")


@all_ones
def test_the_card_names_what_changes_the_answers(name):
    one, two = made(name), made(name, answers=["no", "yes"])
    assert one.card["name"] == name and one.card["weights"] == "random" and one.card["seed"] == 6
    assert one.card != two.card and json.dumps(one.card)
    assert "none (untrained)" in one.card["licence"]


# ----------------------------------------------------------------------------------------------------- what is refused


@lavis_ones
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "guess"}, "mode: expected one of"),
        ({"answers": []}, "answers: expected at least one"),
        ({"answers": ["yes", "yes"]}, "each once"),
        ({"answers": ["yes", " "]}, "expected a list of texts"),
        ({"candidates": 0}, "candidates, beams, max_length"),
        ({"max_length": 1}, "candidates, beams, max_length"),
        ({"precision": "float16"}, "precision"),
        ({"device": "tpu"}, "device"),
    ],
)
def test_wrong_options(name, options, text):
    with pytest.raises(ValueError, match=text):
        load_model(name, "random", config=CONFIGS[name], **options)


def test_answers_may_lie_in_a_file(tmp_path):
    (tmp_path / "answers.json").write_text(json.dumps(WORDS))
    assert made("blip-vqa", answers=tmp_path / "answers.json").answers == WORDS
    (tmp_path / "answers.json").write_text(json.dumps({"yes": 1}))
    with pytest.raises(ValueError, match="expected a list of texts"):
        made("blip-vqa", answers=tmp_path / "answers.json")


def test_vilt_says_only_what_it_may_and_knows_its_answers():
    free, forced = made("vilt-vqa"), made("vilt-vqa", answers=["no", "answer 5"])
    for image in PICTURES:
        logits = free.logits(image, QUESTIONS[0])
        places = [free.labels.index(answer) for answer in forced.answers]
        assert forced.answer(image, QUESTIONS[0]) == forced.answers[int(logits[places].argmax())]
    with pytest.raises(ValueError, match="expected some of the 9 answers"):
        made("vilt-vqa", answers=["maybe"])
    other = made("vilt-vqa")
    other.labels = ["cat", *other.labels[1:]]
    with pytest.raises(ValueError, match=r"has no answer \['yes'\]"):
        other.yes_score(PICTURES[0], "is it so")
    with pytest.warns(UserWarning, match="cut to 40 tokens"):
        free.answer(PICTURES[0], "dog " * 60)


# ------------------------------------------------------------------------------------------------------- checkpoints


@lavis_ones
@pytest.mark.parametrize("form", ["plain", "training", "other size"])
def test_checkpoints_come_back_with_every_key_checked(name, form, tmp_path):
    answerer = made(name)
    state = {key: value.clone() for key, value in answerer.model.state_dict().items()}
    expected, size = answerer.answer_scores(PICTURES[0], QUESTIONS[0]), None
    if form == "training":
        state = {**state, **{key.replace(".", "_m.", 1): value for key, value in state.items()}}
        state.pop("text_encoder.embeddings.position_ids", None)
        state = {"model": state, "epoch": torch.tensor(3)}
    if form == "other size":
        size = 96
    torch.save(state, tmp_path / "model.pth")
    again = load_model(name, tmp_path / "model.pth", vocab=_vocabulary(tmp_path), config=CONFIGS[name], image_size=size)
    if form == "other size":
        assert again.card["input_size"] == (96, 96) and again.answer(PICTURES[0], QUESTIONS[0]) in ("yes", "no")
    else:
        torch.testing.assert_close(again.answer_scores(PICTURES[0], QUESTIONS[0]), expected)
    assert again.card["sha256"] and again.card["checkpoint"] == "model.pth"


def _vocabulary(folder):
    from qgcam_lib.models.common.vocabulary import write_vocabulary

    return write_vocabulary(build_vocabulary(), folder / "vocab.txt")


@lavis_ones
def test_checkpoints_that_do_not_fit_are_refused(name, tmp_path):
    state = made(name).model.state_dict()
    vocab = _vocabulary(tmp_path)
    wrong = {
        "missing": {k: v for k, v in state.items() if not k.startswith("text_decoder.cls.predictions.transform")},
        "unexpected": {**state, "itm_head.weight": torch.zeros(2, 2)},
        "of another shape": {**state, "visual_encoder.norm.weight": torch.zeros(7)},
    }
    for text, content in wrong.items():
        torch.save(content, tmp_path / "wrong.pth")
        with pytest.raises(ValueError, match=text):
            load_model(name, tmp_path / "wrong.pth", vocab=vocab, config=CONFIGS[name])
    with pytest.raises(ValueError, match="expected a checkpoint file"):
        load_model(name, tmp_path)
    with pytest.raises(ValueError, match="has no mini model"):
        load_model(name, "mini")
    with pytest.raises(ValueError, match="vocab_size"):
        load_model(name, "random", config=replace(CONFIGS[name], vocab_size=50))


def test_albefs_original_names_are_understood_and_an_untied_decoder_is_refused(tmp_path):
    answerer, vocab = made("albef-vqa"), _vocabulary(tmp_path)
    state = {f"module.{key}": value.clone() for key, value in answerer.model.state_dict().items()}
    words = "module.text_encoder.embeddings.word_embeddings.weight"
    types = torch.randn(2, 32)
    state[words] -= types[0]
    state["module.text_encoder.embeddings.token_type_embeddings.weight"] = types
    state["module.text_decoder.bert.embeddings.token_type_embeddings.weight"] = torch.zeros(2, 32)
    torch.save(state, tmp_path / "model.pth")
    again = load_model("albef-vqa", tmp_path / "model.pth", vocab=vocab, config=CONFIGS["albef-vqa"])
    expected = answerer.answer_scores(PICTURES[0], QUESTIONS[0])
    torch.testing.assert_close(again.answer_scores(PICTURES[0], QUESTIONS[0]), expected, rtol=1e-4, atol=1e-4)
    state["module.text_decoder.bert.embeddings.token_type_embeddings.weight"] = types
    torch.save(state, tmp_path / "model.pth")
    with pytest.raises(ValueError, match="one matrix for both"):
        load_model("albef-vqa", tmp_path / "model.pth", vocab=vocab, config=CONFIGS["albef-vqa"])


def test_vilt_from_a_folder_and_from_nowhere(tmp_path):
    answerer = made("vilt-vqa")
    answerer.model.save_pretrained(tmp_path / "vilt")
    answerer.tokenizer.save_pretrained(tmp_path / "vilt")
    again = load_model("vilt-vqa", tmp_path / "vilt")
    torch.testing.assert_close(again.logits(PICTURES[0], QUESTIONS[0]), answerer.logits(PICTURES[0], QUESTIONS[0]))
    with pytest.raises(
        FileNotFoundError, match="vilt-b32-finetuned-vqa.*neither in Hugging Face's cache nor reachable"
    ):
        load_model("vilt-vqa", "official")
    (tmp_path / "config.json").write_text(json.dumps({**_VILT, "num_labels": 4}))
    assert load_model("vilt-vqa", "random", config=tmp_path / "config.json").labels == [
        "yes",
        "no",
        "answer 2",
        "answer 3",
    ]
