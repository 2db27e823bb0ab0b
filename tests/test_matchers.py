"""Matchers: scores of each library's own pass, one picture and one text at a time; any batch gives the same."""

import json
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from small_models import BLIP2, LAVIS, TOWER, VILT

from qgcam_lib.models import Matcher, load_model
from qgcam_lib.models.blip.network import BlipConfig
from qgcam_lib.models.clip.network import PUBLISHED, build_clip, clip_config, word_vocabulary
from qgcam_lib.models.clip.vit import published_address
from qgcam_lib.models.common import sources
from qgcam_lib.models.common.adapter import ITM_SCORES, Recent, distinct_pictures
from qgcam_lib.models.common.checkpoints import save_model
from qgcam_lib.models.common.device import prepare_image
from qgcam_lib.models.common.vocabulary import build_vocabulary
from qgcam_lib.models.dual.loading import siglip_rows
from qgcam_lib.models.dual.matcher import FAMILIES, DualMatcher, OtterModel, otter_config
from qgcam_lib.models.registry import MODELS

TEXTS = ["a photo of a dog", "a red ball on the wide table", "cat", "a photo of a cat"]
_PART = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
_WORDS = {**_PART, "vocab_size": 700, "max_position_embeddings": 80}
_SEEN = {**_PART, "image_size": 48, "patch_size": 16}
_CLIP_TEXT = {"context_length": 20, "width": 32, "heads": 2, "layers": 1}
_VIT = {"embed_dim": 32, "quick_gelu": True, "text_cfg": _CLIP_TEXT,
        "vision_cfg": {"layers": 2, "width": 48, "patch_size": 16, "image_size": 48, "head_width": 12}}
_RESNET = {**_VIT, "vision_cfg": {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64, "patch_size": None}}
_FLAVA = {"text_config": _WORDS, "image_config": {**_SEEN, "vocab_size": 8}, "multimodal_config": _PART,
          "hidden_size": 32, "projection_dim": 24}
_ALIGN = {"text_config": _WORDS, "projection_dim": 64,
          "vision_config": {"image_size": 48, "width_coefficient": 0.2, "depth_coefficient": 0.2, "hidden_dim": 64,
                            "depthwise_padding": []}}
_BLIP = BlipConfig(**LAVIS, vocab_size=700, embed_dim=16)
CASES = {
    "clip resnet": ("clip-rn50", {"config": _RESNET}), "clip vit": ("clip-vit-b32", {"config": _VIT}),
    "metaclip": ("metaclip-b32", {"config": _VIT}),
    "clip sigmoid": ("clip-vit-b16", {"config": {**_VIT, "init_logit_bias": -10}}),
    "siglip": ("siglip-b16", {"config": {"text_config": {**_WORDS, "projection_size": 32}, "vision_config": _SEEN}}),
    "align": ("align-base", {"config": _ALIGN}), "flava": ("flava-full", {"config": _FLAVA}),
    "flava itm": ("flava-full", {"config": _FLAVA, "head": "itm"}),
    "otter": ("otter-rn50", {"config": {**_WORDS}}),
    "vilt": ("vilt", {"config": VILT}),
    "bridgetower": ("bridgetower", {"config": TOWER}), "blip": ("blip-base", {"config": _BLIP}),
    "blip itc": ("blip-base", {"config": _BLIP, "head": "itc"}),
    "blip2": ("blip2-itm", {"config": BLIP2}), "blip2 itc": ("blip2-itm", {"config": BLIP2, "head": "itc"}),
}
COSINES = ("blip itc", "blip2 itc")


@cache
def matcher(case):
    name, options = CASES[case]
    return load_model(name, "random", seed=4, **options, **({} if case in COSINES else {"score": "logit"}))


@cache
def picture(seed, width=80, height=60):
    noise = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height))


PICTURES = [picture(0), picture(1, 60, 90), picture(2)]


# ------------------------------------------------------------------------------------- the library's own forward pass


def _dual(model, image, text):
    """Rows as the library's users write them: one picture, one text, everything padded as its processor pads."""
    net, rows = model.model, model.tokenizer([text])
    pixels, mask = model.family.pixels(image, model.image_size)[None], (rows != model.tokenizer.pad).long()
    kind = type(net).__name__
    if kind == "CLIP":
        return net.get_logits(pixels, rows)[0]
    if kind == "SiglipModel":
        return net(pixel_values=pixels, input_ids=rows).logits_per_image
    if kind == "AlignModel":
        return net(pixel_values=pixels, input_ids=rows, attention_mask=mask).logits_per_image
    if kind == "FlavaForPreTraining":
        found = net(pixel_values=pixels, input_ids=rows, input_ids_masked=rows, attention_mask=mask, return_loss=False)
        return found.itm_logits[:, 1] if model.head == "itm" else found.contrastive_logits_per_image
    states = net.text_encoder.model(input_ids=rows, attention_mask=mask)[0] * mask[..., None]  # OTTER's authors' lines
    seen = torch.nn.functional.normalize(net.image_encoder.model(pixels), dim=1)
    said = torch.nn.functional.normalize(states.sum(1) / mask.sum(1, keepdim=True), dim=1)
    return seen @ said.T * torch.clamp(torch.exp(net.contrastive_loss.loss.T), min=1.0, max=100.0)


def _cross(model, image, text):
    """ViLT, BridgeTower and BLIP-2 by their class's forward."""
    net, words = model.model, model.tokenizer([model.clean(text)], return_tensors="pt")
    words = {"input_ids": words.input_ids, "attention_mask": words.attention_mask}
    pixels = model.prepare(image)[None]
    if type(net).__name__.startswith("Blip2"):
        found = net(pixel_values=pixels, **words, use_image_text_matching_head=model.head == "itm").logits_per_image
        return found[:, 1] if model.head == "itm" else found
    return net(pixel_values=pixels, **words).logits[:, 0 if type(net).__name__.startswith("Vilt") else 1]


def _blip(model, image, text):
    """LAVIS's BLIP through its own forward, which pads to 35 tokens."""
    sample = {"image": prepare_image(image, model.config.image_size)[None], "text_input": [model.clean(text)]}
    found = model.model(sample, match_head=model.head)
    return found[:, 1] if model.head == "itm" else found


def own_pass(case, image, text):
    model = matcher(case)
    ask = _dual if isinstance(model, DualMatcher) else _blip if case.startswith("blip") and "2" not in case else _cross
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return float(ask(model, image, text).reshape(()))


@cache
def table(case):
    return torch.tensor([[own_pass(case, image, text) for text in TEXTS] for image in PICTURES])


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_librarys_own_pass(case):
    model = matcher(case)
    assert isinstance(model, Matcher) and model.card["score"]
    scores = model.score(PICTURES, TEXTS)
    assert scores.shape == (3, 4) and scores.dtype == torch.float32
    torch.testing.assert_close(scores, table(case), rtol=0, atol=1e-5)
    assert scores.std() > 1e-4, "all scores alike: the network says nothing, so the comparison does not either"


# ----------------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("case", CASES)
def test_any_batch_gives_the_same_scores(case):
    model = matcher(case)
    asked = [(0, [0, 1, 2, 3]), (1, [3]), (0, [2, 2, 0]), (2, []), (1, [1, 0])]
    found = model.score_batch([PICTURES[k] for k, _ in asked], [[TEXTS[t] for t in texts] for _, texts in asked])
    assert [len(row) for row in found] == [4, 1, 3, 0, 2]
    for row, (k, texts) in zip(found, asked):
        torch.testing.assert_close(row, table(case)[k, texts], rtol=0, atol=1e-5)
    assert model.score_batch([], []) == [] and model.score([], TEXTS).shape == (0, 4)
    assert model.score(PICTURES[:2], []).shape == (2, 0)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=st.sampled_from(["clip vit", "flava itm", "vilt", "blip2"]),
       asked=st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), max_size=6)), max_size=4))
def test_scores_depend_on_picture_and_text_alone(case, asked):
    found = matcher(case).score_batch([PICTURES[k] for k, _ in asked],
                                      [[TEXTS[t] for t in texts] for _, texts in asked])
    for row, (k, texts) in zip(found, asked):
        torch.testing.assert_close(row, table(case)[k, texts], rtol=0, atol=1e-5)


def test_a_picture_is_encoded_once_and_a_text_once(monkeypatch, tmp_path):
    model, seen = matcher("clip vit"), []
    encode = model.model.visual.forward
    monkeypatch.setattr(model.model.visual, "forward", lambda pixels: seen.append(len(pixels)) or encode(pixels))
    monkeypatch.setattr(model, "_vectors", Recent(3))
    read = []
    monkeypatch.setattr(model, "_read", lambda texts: read.extend(texts) or DualMatcher._read(model, texts))
    PICTURES[0].save(tmp_path / "a.png")
    paths = [str(tmp_path / "a.png"), tmp_path / "a.png", PICTURES[1], PICTURES[1]]
    scores = model.score_batch(paths, [TEXTS[:2]] * 4)
    assert sum(seen) == 2 and read == TEXTS[:2] and torch.equal(scores[0], scores[1])
    model.score(paths, TEXTS)
    assert read == [*TEXTS[:2], *TEXTS[2:]] and len(model._vectors) == 3, "the vectors of three texts are kept"
    assert distinct_pictures(paths)[1] == [0, 0, 1, 1]


# ----------------------------------------------------------------------------------------------------- what a score is


def test_the_three_scores_of_a_matching_head():
    model = matcher("bridgetower")
    probability = load_model("bridgetower", "random", seed=4, config=TOWER).score(PICTURES, TEXTS)
    margin = load_model("bridgetower", "random", seed=4, config=TOWER, score="margin").score(PICTURES, TEXTS)
    torch.testing.assert_close(margin.sigmoid(), probability)
    assert model.card["score"] == "ITM logit" and set(ITM_SCORES) == {"probability", "logit", "margin"}
    for name, options in (("blip-base", {"config": _BLIP, "head": "itc", "score": "logit"}),
                          ("vilt", {**CASES["vilt"][1], "score": "probability"}),
                          ("clip-rn50", {"config": _RESNET, "score": "margin"})):
        with pytest.raises(ValueError, match="score"):
            load_model(name, "random", **options)


def test_a_sigmoid_score_says_so_and_its_bias_cancels_between_prompts():
    model = matcher("siglip")
    assert "plus bias" in model.card["score"] and model.card["fit"] == "published"
    plain = load_model("siglip-b16", "random", seed=4, **CASES["siglip"][1], score="cosine").score(PICTURES, TEXTS)
    torch.testing.assert_close(model.score(PICTURES, TEXTS).softmax(1), (model.scale * plain).softmax(1), atol=1e-5,
                               rtol=0)


@pytest.mark.parametrize("case", ["clip vit", "siglip", "flava", "vilt", "blip", "blip2"])
def test_a_prompt_longer_than_the_context_is_cut_with_a_warning(case):
    long = "a dog and a cat and " * 40
    with pytest.warns(UserWarning, match="truncated to"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Token indices")
        assert torch.isfinite(matcher(case).score(PICTURES[:1], [long])).all()
    with pytest.raises(ValueError):
        matcher(case).score(PICTURES[:1], ["  "])


# --------------------------------------------------------------------------------------------------- pictures and words


def test_pictures_are_prepared_as_the_libraries_do():
    from open_clip.transform import image_transform
    from transformers import EfficientNetImageProcessor, FlavaImageProcessor, SiglipImageProcessor

    crop = EfficientNetImageProcessor(do_center_crop=True, rescale_factor=1 / 127.5, rescale_offset=True,
                                      do_normalize=False, include_top=False, resample=Image.Resampling.BILINEAR)
    theirs = {"clip": lambda one: image_transform(224, is_train=False)(one), "align": crop,
              "siglip": SiglipImageProcessor(), "flava": FlavaImageProcessor()}
    for image in (picture(5, 400, 300), picture(6, 300, 500)):
        for family, prepare in theirs.items():
            size = 289 if family == "align" else 224
            found = prepare(image)
            found = found if family == "clip" else torch.tensor(np.array(found["pixel_values"][0]))
            torch.testing.assert_close(FAMILIES[family].pixels(image, size), found, rtol=0, atol=2e-5)


def test_siglips_pieces_are_read_from_its_own_table(tmp_path):
    import sentencepiece

    (tmp_path / "texts.txt").write_text("\n".join(TEXTS * 5))
    sentencepiece.SentencePieceTrainer.train(input=str(tmp_path / "texts.txt"), model_prefix=str(tmp_path / "spiece"),
                                             vocab_size=22, eos_id=1, unk_id=2, bos_id=-1, pad_id=0, minloglevel=2)
    rows = siglip_rows(tmp_path / "spiece.model", length=24)
    found = rows(["A photo, of a DOG!", "a photo of a dog"])
    assert torch.equal(found[0], found[1]) and found.shape == (2, 24)
    assert found[0, -1] == 1 and int((found[0] == 1).int().argmax()) == len(rows.encode(TEXTS[0]))


def test_every_published_clip_has_quickgelu_and_openais_address():
    assert len(PUBLISHED) == 9 and all(clip_config(name)["quick_gelu"] for name in PUBLISHED)
    ours = {entry.checkpoint for name, entry in MODELS.items() if name.startswith("clip") and entry.role == "matcher"}
    assert ours == {published_address(name) for name in PUBLISHED} | {""}


def test_metaclips_published_file_is_the_one_that_open_clip_names():
    from open_clip.pretrained import get_pretrained_cfg

    theirs = get_pretrained_cfg("ViT-B-32", "metaclip_400m")
    assert theirs["quick_gelu"] and MODELS["metaclip-b32"].checkpoint.endswith(theirs["hf_hub"].strip("/"))


# ------------------------------------------------------------------------------------------------------------- loading


def test_a_small_model_is_read_back_from_the_zoos_form(tmp_path, monkeypatch):
    """What `save_model` writes, `load_model` reads: for a class of transformers its config and a BERT vocabulary."""
    words = build_vocabulary()
    monkeypatch.setattr(sources, "zoo_folder", lambda: tmp_path)
    monkeypatch.setattr("qgcam_lib.models.dual.loading.zoo_folder", lambda: tmp_path)
    for case in ("vilt", "bridgetower", "flava", "siglip", "align"):
        name = CASES[case][0]
        folder = tmp_path / (MODELS[name].mini or "align-mini")
        save_model(folder, matcher(case).model, matcher(case).model.config.to_dict(), words, {"name": folder.name})
        again = load_model(name, "mini" if MODELS[name].mini else folder, score="logit")
        assert again.card["weights"] in ("mini", folder.name) and again.card["parameters"] > 0
        torch.testing.assert_close(again.score(PICTURES, TEXTS), table(case), rtol=0.02, atol=0.05)
        (folder / "config.json").write_text(json.dumps({}))
        with pytest.raises(ValueError, match="config"):
            load_model(name, folder)


def test_a_small_siglip_is_the_small_clips_towers_with_a_bias(tmp_path):
    words = word_vocabulary(TEXTS)
    clip = build_clip({**_VIT, "init_logit_bias": -10.0}, words, seed=2)
    save_model(tmp_path / "siglip-mini", clip.model, clip.config, words, {"name": "siglip-mini"})
    found = load_model("siglip-b16", tmp_path / "siglip-mini")
    assert found.bias == -10 and type(found.model).__name__ == "CLIP" and "plus bias" in found.card["score"]


def test_published_files_are_read_by_their_own_names(tmp_path):
    """State dictionaries as OpenAI, open_clip and OTTER's authors write them; folders as save_pretrained does."""
    from safetensors.torch import save_file

    clip = matcher("clip vit").model.state_dict()
    torch.save({**clip, "input_resolution": torch.tensor(48), "context_length": torch.tensor(20),
                "vocab_size": torch.tensor(49408)}, tmp_path / "openai.pt")
    save_file({key: value.contiguous() for key, value in clip.items()}, tmp_path / "open_clip_model.safetensors")
    for name, file in (("clip-vit-b32", "openai.pt"), ("metaclip-b32", "open_clip_model.safetensors")):
        found = load_model(name, tmp_path / file, config=_VIT)
        torch.testing.assert_close(found.score(PICTURES, TEXTS), table("clip vit"), atol=1e-5, rtol=0)
    bert = otter_config({**_WORDS})
    state = {f"student.{key}": value for key, value in OtterModel(bert).state_dict().items()}
    state["student.contrastive_loss.T"] = state.pop("student.contrastive_loss.loss.T")
    torch.save({"state_dict": state, "epoch": 10, "args": {"batch": 64}}, tmp_path / "OTTER.pth.tar")
    found = load_model("otter-rn50", tmp_path / "OTTER.pth.tar", config={**_WORDS}, vocab=build_vocabulary())
    assert abs(found.scale - np.exp(3.9)) < 1e-3
    matcher("align").model.save_pretrained(tmp_path / "align")
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(build_vocabulary()) + "\n")
    found = load_model("align-base", tmp_path / "align", vocab=vocab)
    torch.testing.assert_close(found.score(PICTURES, TEXTS), table("align"), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["siglip-b16", "otter-rn50"])
def test_published_weights_that_are_not_here_say_how_they_are_had(name, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    remedy = "manually" if name == "otter-rn50" else MODELS[name].checkpoint.removeprefix("https://huggingface.co/")
    with pytest.raises(FileNotFoundError, match=remedy):
        load_model(name, "official")


def test_the_unbiased_twin_exists_as_a_mini_only():
    with pytest.raises(ValueError):
        load_model("clip-vit-unbiased", "official")


@pytest.mark.parametrize("case", ["blip itc", "blip2 itc"])
def test_maps_are_the_matching_heads_whatever_the_head(case):
    name, options = CASES[case]
    plain = load_model(name, "random", seed=4, **{key: value for key, value in options.items() if key != "head"})
    ours, theirs = matcher(case).explain(PICTURES[0], TEXTS), plain.explain(PICTURES[0], TEXTS)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs)) and ours[1].shape == (4,)
