"""ALBEF's maps against AMC's own way of making them, its words, and its checkpoints with every key accounted for."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import smooth

from qgcam_lib.explain.gradcam import Tokens, attention_gradients, image_keys_values
from qgcam_lib.models import load_model
from qgcam_lib.models.albef import explainer as loading
from qgcam_lib.models.albef.explainer import AlbefConfig, AlbefExplainer, build_albef, clean_caption
from qgcam_lib.models.common.checkpoints import save_model
from qgcam_lib.models.common.device import prepare_image
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer, write_vocabulary

PHRASES = ["a young boy in a red shirt", "the dog", "two women", "a blue and white striped umbrella"]
TYPES = "text_encoder.bert.embeddings.token_type_embeddings.weight"
QUEUES = ("image_queue", "text_queue", "idx_queue", "queue_ptr", "queue_ptr_img", "queue_ptr_txt")  # ALBEF's and AMC's
WORDS = "text_encoder.bert.embeddings.word_embeddings.weight"


def sizes(**changes) -> AlbefConfig:
    small = {"image_size": 60, "patch_size": 12, "vision_width": 40, "vision_depth": 2, "vision_heads": 5,
             "text_width": 36, "text_depth": 5, "text_heads": 3, "text_mlp_width": 50, "embed_dim": 8,
             "vocab_size": 700, "fusion_layer": 2}
    return AlbefConfig(**small | changes)


def strong(config: AlbefConfig, seed: int = 0):
    """A model whose weights are large enough for maps to differ."""
    torch.manual_seed(seed)
    model = build_albef(config, make_tokenizer(build_vocabulary(), lavis_tokens=False))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


@pytest.fixture(scope="module")
def model():
    return strong(sizes())


@pytest.fixture(scope="module")
def albef(model):
    return AlbefExplainer(model, sizes(), block=3)


def amc(model, pixels, phrases, block, grid):
    """AMC's evaluation: hooks in the attention, one backward pass, mean over heads, then over all padded tokens."""
    inner = model.text_encoder.encoder.layer[block].crossattention.self
    inner.save_attention = True
    model.requires_grad_(True)
    text = model.tokenizer(phrases, padding="longest", return_tensors="pt")
    states = model.visual_encoder.forward_features(pixels[None]).expand(len(phrases), -1, -1)
    last = model.text_encoder(text.input_ids, attention_mask=text.attention_mask, encoder_hidden_states=states,
                              encoder_attention_mask=torch.ones(states.shape[:2], dtype=torch.long), return_dict=True)
    logits = model.itm_head(last.last_hidden_state[:, 0])
    model.zero_grad(set_to_none=True)
    logits[:, 1].sum().backward()
    real = text.attention_mask[:, None, :, None, None]
    shape = (len(phrases), inner.num_attention_heads, -1, *grid)
    cams = inner.get_attention_map().detach()[..., 1:].reshape(shape) * real
    grads = inner.get_attn_gradients().detach()[..., 1:].clamp(min=0).reshape(shape) * real
    model.zero_grad(set_to_none=True)
    model.requires_grad_(False)
    inner.save_attention = False
    return (cams * grads).mean(1).mean(1), logits.detach()


# ------------------------------------------------------------------------------------------------------ against AMC


@pytest.mark.parametrize("block", [2, 3, 4])
def test_equal_to_amc_phrase_by_phrase(model, block):
    config = sizes()
    explainer = AlbefExplainer(model, config, block=block)
    pixels = prepare_image(smooth(), config.image_size)
    maps, chances = explainer.explain(smooth(), PHRASES)
    for phrase, found, chance in zip(PHRASES, maps, chances):
        expected, logits = amc(model, pixels, [phrase], block, config.grid)
        assert expected.max() > 0
        torch.testing.assert_close(found, expected[0], rtol=1e-4, atol=1e-5 * float(expected.max()))
        torch.testing.assert_close(chance, logits.softmax(1)[0, 1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(explainer.score([smooth()], PHRASES)[0], chances)


def test_amcs_padding_only_scales_a_map(model, albef):
    config = sizes()
    expected, _ = amc(model, prepare_image(smooth(), 60), PHRASES, 3, config.grid)
    lengths = torch.tensor([len(model.tokenizer(phrase).input_ids) for phrase in PHRASES])
    maps = albef.maps(smooth(), PHRASES) * (lengths / lengths.max())[:, None, None]
    torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-5 * float(expected.max()))


def test_gradient_stops_at_no_layer_and_text_layers_pass_through(model):
    """Layers 0 and 1 have no cross-attention: nothing of the picture, and nothing to explain."""
    text = model.tokenizer(PHRASES[:1], return_tensors="pt")
    states = torch.randn(26, 40, generator=torch.Generator().manual_seed(1))
    seen = image_keys_values(model.text_encoder, states)
    assert [pair is None for pair in seen] == [True, True, False, False, False]
    tokens = Tokens(text.input_ids, text.attention_mask)
    attention, gradient, _ = attention_gradients(model.text_encoder, model.itm_head, tokens, seen, 2)
    assert torch.allclose(attention.sum(-1), torch.ones(attention.shape[:2])) and gradient.abs().max() > 0


@given(order=st.permutations(range(4)), keep=st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_other_phrases_change_nothing(albef, order, keep):
    maps = albef.maps(smooth(), PHRASES)
    found = albef.maps(smooth(), [PHRASES[i] for i in order[:keep]])
    torch.testing.assert_close(found, maps[list(order[:keep])], rtol=1e-4, atol=1e-6 * float(maps.max()))


# ------------------------------------------------------------------------------------------------------------ words


@given(st.text(alphabet="aZ9 ,.'!?\"()*#:;~-/<\n", max_size=40))
@settings(max_examples=100, deadline=None)
def test_phrases_are_cleaned_as_in_albef(text):
    """Written after the rule: signs removed, - and / become spaces, <person> loses its marks, spaces are joined."""
    signs = set(",.'!?\"()*#:;~")
    kept = "".join(" " if sign in "-/" else sign for sign in text.lower() if sign not in signs)
    expected = re.sub(r"\s+", " ", kept.replace("<person>", "person")).strip()
    if expected:
        assert clean_caption(text) == expected
    else:
        with pytest.raises(ValueError, match="expected words"):
            clean_caption(text)


def test_prompts_and_their_length(model, albef):
    long = " ".join(["dog"] * 60)
    with pytest.warns(UserWarning, match="50"):
        found = albef.maps(smooth(), [long])
    assert torch.equal(found, albef.maps(smooth(), [" ".join(["dog"] * 50)]))
    short = AlbefExplainer(model, sizes(), block=3, max_words=30)
    with pytest.warns(UserWarning, match="30"):
        short.maps(smooth(), [long])
    blip = AlbefExplainer(model, sizes(), block=3, cleaning="blip")
    assert blip.clean("A man's hat!") == "a man's hat" and albef.clean("A man's hat!") == "a mans hat"
    assert torch.equal(blip.maps(smooth(), ["the dog"]), albef.maps(smooth(), ["the dog"]))


# ------------------------------------------------------------------------------------------------------ checkpoints


@pytest.fixture
def published(model):
    """The state as AMC's training names it, with everything that it stores beside the matcher."""
    state = {key: value.clone() for key, value in model.state_dict().items()}
    state = {key.replace("text_encoder.", "text_encoder.bert.", 1): value for key, value in state.items()}
    types = torch.randn(2, 36, generator=torch.Generator().manual_seed(5))
    momentum = {re.sub(r"^(visual_encoder|text_encoder|vision_proj|text_proj)", r"\1_m", key): value
                for key, value in state.items() if not key.startswith(("itm_head", "temp"))}
    heads = {"text_encoder.cls.predictions.bias": torch.zeros(700), "text_encoder_m.cls.predictions.bias":
             torch.zeros(700)}
    queues = {"image_queue": torch.zeros(8, 4), "text_queue": torch.zeros(8, 4), "idx_queue": torch.zeros(1, 4),
              **{name: torch.zeros(1, dtype=torch.long) for name in ("queue_ptr", "queue_ptr_img", "queue_ptr_txt")}}
    return {**state, WORDS: state[WORDS] - types[0], TYPES: types, **momentum, **heads, **queues}


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    return write_vocabulary(build_vocabulary(), tmp_path_factory.mktemp("vocab") / "vocab.txt")


def saved(state, path: Path) -> Path:
    torch.save({"model": state, "optimizer": {"state": {}, "param_groups": [{"lr": 1e-5}]}, "epoch": 3,
                "config": {"image_res": 256, "schedular": {"sched": "cosine"}}}, path)
    return path


@pytest.mark.parametrize("prefix", ["", "module."])
def test_amcs_checkpoint_form_loads(albef, published, vocab, tmp_path, prefix):
    path = saved({prefix + key: value for key, value in published.items()}, tmp_path / "best_flickr.pth")
    again = load_model("albef-amc", path, config=sizes(), vocab=vocab, block=3)
    maps = albef.maps(smooth(), PHRASES)
    torch.testing.assert_close(again.maps(smooth(), PHRASES), maps, rtol=1e-3, atol=1e-5 * float(maps.max()))
    ignored = loading.load_albef_weights(again.model, path)
    beside = {key for key in published if "_m." in key or "queue" in key or ".cls." in key}
    assert set(ignored) >= beside and all(key in beside or key.endswith("position_ids") for key in ignored)
    assert again.card["file"] == "best_flickr.pth" and len(again.card["sha256"]) == 64
    assert {name for name in again.card["dropped"] if "queue" in name} == set(QUEUES)
    assert {"text_encoder_m.*", "visual_encoder_m.*", "text_encoder.cls.*"} <= set(again.card["dropped"])


@pytest.mark.parametrize("key", ["queue_ptr_video", "text_encoder.bert.encoder.layer.2.crossattention.self.kee.bias"])
def test_a_key_of_nobody_is_named_and_nothing_is_loaded(model, published, tmp_path, key):
    before = {key: value.clone() for key, value in model.state_dict().items()}
    changed = {key: value + 1 if value.is_floating_point() else value for key, value in published.items()}
    with pytest.raises(ValueError, match=key.removeprefix("text_encoder.bert.")):
        loading.load_albef_weights(model, saved({**changed, key: torch.zeros(36)}, tmp_path / "damaged.pth"))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_positions_follow_the_input_size(published, vocab, tmp_path):
    path = saved(published, tmp_path / "best_refcoco.pth")
    larger = load_model("albef-amc", path, config=sizes(image_size=96), vocab=vocab, checkpoint="best-refcoco")
    assert larger.maps(smooth(), ["a dog"]).shape == (1, 8, 8) and larger.max_words == 30
    assert larger.block == 3 and larger.card["grid"] == (8, 8)


@pytest.mark.parametrize("checkpoint, file", [("best-flickr", "best_flickr.pth"), ("best-refcoco", "best_refcoco.pth")])
def test_official_checkpoints_are_fetched_by_hand(monkeypatch, tmp_path, checkpoint, file):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"https://drive.google.com/.*{file}"):
        load_model("albef-amc", "official", checkpoint=checkpoint)


def test_zoo_folder_by_path(model, albef, tmp_path):
    card = {"name": "albef-mini", "block": 4, "tokens": "lavis", "cleaning": "blip", "licence": "Apache-2.0"}
    tokens = list(dict(sorted(model.tokenizer.get_vocab().items(), key=lambda item: item[1])))
    folder = save_model(tmp_path / "albef-mini", model, sizes().to_dict(), tokens, card)
    again = load_model("albef-amc", folder)
    assert (again.block, again.tokens, again.cleaning, again.config) == (4, "lavis", "blip", sizes())
    assert again.card["licence"] == "Apache-2.0" and again.card["name"] == "albef-amc"
    maps = load_model("albef-amc", folder, block=3, tokens="amc").maps(smooth(), PHRASES)
    assert torch.corrcoef(torch.stack([maps.flatten(), albef.maps(smooth(), PHRASES).flatten()]))[0, 1] > 0.99


def test_defaults_and_refusals():
    one = load_model("albef-amc", "random", seed=1, config=sizes())
    assert (one.block, one.tokens, one.cleaning) == (3, "amc", "albef")
    assert load_model("albef-amc", "random", config=sizes(text_depth=3)).block == 2
    for options in ({"block": 1}, {"cleaning": "none"}, {"tokens": "mean"}, {"checkpoint": "best"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            load_model("albef-amc", "random", config=sizes(), **options)
