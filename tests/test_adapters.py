"""What every adapter owes: one map a phrase whatever its company, defined answers to odd input, checked loading."""

import json
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from qgcam_lib.models import Explainer, Matcher, list_models, load_model
from qgcam_lib.models.albef.network import AlbefConfig
from qgcam_lib.models.blip.network import BlipConfig
from qgcam_lib.models.common import sources
from qgcam_lib.models.common.vocabulary import build_vocabulary, write_vocabulary
from qgcam_lib.models.registry import MODELS

PHRASES = ["a young boy in a red shirt", "the dog", "two women", "a blue and white striped umbrella"]
_LAVIS = {"image_size": 48, "patch_size": 12, "vision_width": 36, "vision_depth": 1, "vision_heads": 3,
          "text_width": 32, "text_depth": 3, "text_heads": 2, "text_mlp_width": 48, "vocab_size": 700, "embed_dim": 8}
_VILT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 64,
         "patch_size": 16, "vocab_size": 700, "initializer_range": 0.2}
_TOWER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "text_config": {"vocab_size": 700, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
                          "intermediate_size": 64, "max_position_embeddings": 80, "initializer_factor": 4},
          "vision_config": {"hidden_size": 64, "num_hidden_layers": 3, "patch_size": 16, "image_size": 64}}
_BLIP2 = {"num_query_tokens": 4, "image_text_hidden_size": 16,
          "vision_config": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                            "num_attention_heads": 4, "image_size": 64, "patch_size": 16, "initializer_range": 0.1},
          "qformer_config": {"vocab_size": 700, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
                             "intermediate_size": 64, "encoder_hidden_size": 32, "use_qformer_text_input": True,
                             "initializer_range": 0.2}}
CASES = {"blip-base": ("blip-base", {"config": BlipConfig(**_LAVIS)}),
         "albef-amc": ("albef-amc", {"config": AlbefConfig(**_LAVIS, fusion_layer=1)}),
         "vilt": ("vilt", {"config": _VILT}), "vilt gradcam": ("vilt", {"config": _VILT, "explain": "gradcam"}),
         "bridgetower": ("bridgetower", {"config": _TOWER}),
         "bridgetower gradcam": ("bridgetower", {"config": _TOWER, "explain": "gradcam"}),
         "blip2-itm": ("blip2-itm", {"config": _BLIP2})}
FOLDERS = ("vilt", "bridgetower", "blip2-itm")
_made: dict = {}


def picture(seed=0, size=(60, 80), mode="RGB"):
    noise = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return Image.fromarray(noise).convert(mode)


@pytest.fixture(params=CASES)
def explainer(request):
    if request.param not in _made:
        name, options = CASES[request.param]
        _made[request.param] = load_model(name, "random", seed=4, **options)
    return _made[request.param]


def near(found, expected):
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5 * float(expected.abs().max()))


# ------------------------------------------------------------------------------------------------------- invariants


def test_a_phrase_has_one_map(explainer):
    """Order, company, batches of phrases, batches of pictures, encoded pictures: the map stays."""
    maps, scores = explainer.explain(picture(), PHRASES)
    assert maps.dtype == torch.float32 and maps.ndim == 3 and bool(torch.isfinite(maps).all() and (maps >= 0).all())
    assert bool((maps.amax((1, 2)) > 0).all()) and scores.shape == (4,)
    near(explainer.maps(picture(), PHRASES[::-1]), maps.flip(0))
    state = explainer.encode(picture())
    for i, phrase in enumerate(PHRASES):
        near(explainer.maps(state, [phrase])[0], maps[i])
    before, explainer.batch_phrases = explainer.batch_phrases, 3
    try:
        near(explainer.maps(state, PHRASES), maps)
    finally:
        explainer.batch_phrases = before
    batch = explainer.maps_batch([picture(1, (40, 90)), picture()], [PHRASES[:1], PHRASES])
    near(batch[1], maps)
    near(batch[0], explainer.maps(picture(1, (40, 90)), PHRASES[:1]))
    near(explainer.score([picture(), picture(1)], PHRASES)[0], scores)
    assert isinstance(explainer, Explainer) and isinstance(explainer, Matcher)


def test_maps_depend_on_phrase_and_picture(explainer):
    maps = explainer.maps(picture(), PHRASES[:2])
    assert not torch.allclose(maps[0] / maps[0].sum(), maps[1] / maps[1].sum(), rtol=1e-3)
    other = explainer.maps(picture(1), PHRASES[:1])[0]
    assert not torch.allclose(other / other.sum(), maps[0] / maps[0].sum(), rtol=1e-3)


def test_card_says_what_was_explained(explainer):
    needed = {"name", "weights", "checkpoint", "sha256", "block", "tokens", "grid", "input_size", "parameters",
              "licence", "precision", "seed"}
    assert needed <= set(explainer.card) and explainer.card["weights"] == "random"
    json.dumps(explainer.card)
    assert explainer.protocol in ("paper", "amc", "pixel") and "random" in repr(explainer)


# -------------------------------------------------------------------------------------------------------- odd input


@pytest.mark.parametrize("bad", ["", "  \n", None, 3])
def test_prompts_without_words_are_refused(explainer, bad):
    kind, message = (ValueError, "nothing is left") if isinstance(bad, str) else (TypeError, "expected texts, got")
    for call in (lambda: explainer.maps(picture(), ["a dog", bad]), lambda: explainer.score([picture()], [bad])):
        with pytest.raises(kind, match=message):
            call()


def test_long_prompts_are_cut_with_a_warning(explainer):
    with pytest.warns(UserWarning, match="cut to"):
        found = explainer.maps(picture(), [" ".join(["dog"] * 60), "the dog"])
    assert bool(torch.isfinite(found).all())
    near(found[1], explainer.maps(picture(), ["the dog"])[0])


def test_lists_are_lists(explainer):
    with pytest.raises(TypeError, match="expected a list of texts"):
        explainer.maps(picture(), "a dog")
    with pytest.raises(ValueError, match="expected 2 lists"):
        explainer.maps_batch([picture(), picture()], [["a dog"]])
    grid = explainer.maps(picture(), ["a dog"]).shape[1:]
    assert explainer.maps(picture(), []).shape == (0, *grid) and explainer.maps_batch([], []) == []
    assert explainer.score([], ["a dog"]).shape == (0, 1) and explainer.score([picture()], []).shape == (1, 0)


@pytest.mark.parametrize("image", [picture(size=(1, 1)), picture(size=(1, 200)), picture(size=(300, 2)),
                                   picture(mode="L"), picture(mode="RGBA"), picture(mode="P"), picture(mode="CMYK")],
                         ids=["1x1", "200 wide", "300 high", "grey", "RGBA", "palette", "CMYK"])
def test_any_picture_has_a_map(explainer, image):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maps = explainer.maps(image, ["the dog"])
    assert bool(torch.isfinite(maps).all()) and min(maps.shape) >= 1
    near(explainer.maps(image.convert("RGB"), ["the dog"]), maps)


def test_what_is_no_picture_is_refused(explainer, tmp_path):
    with pytest.raises(TypeError, match="expected a PIL image or a path"):
        explainer.maps(np.zeros((4, 4, 3)), ["the dog"])
    (tmp_path / "half.png").write_bytes(b"\x89PNG")
    with pytest.raises(ValueError, match=r"half\.png"):
        explainer.maps(tmp_path / "half.png", ["the dog"])
    picture().save(tmp_path / "whole.png")
    near(explainer.maps(tmp_path / "whole.png", ["the dog"]), explainer.maps(picture(), ["the dog"]))


@pytest.mark.parametrize(("options", "message"), [
    ({"block": 99}, "block: expected"), ({"precision": "float16"}, "precision: expected"),
    ({"device": "abacus"}, "device: 'abacus'"), ({"tokens": "mean"}, "tokens: expected")])
def test_wrong_options_are_refused(explainer, options, message):
    name, given = CASES[[key for key, one in _made.items() if one is explainer][0]]
    with pytest.raises(ValueError, match=message):
        load_model(name, "random", **given, **options)


def test_bfloat16_is_near(explainer):
    name, given = CASES[[key for key, one in _made.items() if one is explainer][0]]
    half = load_model(name, "random", seed=4, **given, precision="bfloat16")
    both = torch.stack([one.maps(picture(), PHRASES[:1]).flatten() for one in (explainer, half)])
    assert both.dtype == torch.float32 and torch.corrcoef(both)[0, 1] > 0.9


# ---------------------------------------------------------------------------------------------------------- loading


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    return write_vocabulary(build_vocabulary(), tmp_path_factory.mktemp("vocab") / "vocab.txt")


@pytest.fixture(params=FOLDERS)
def saved(request, tmp_path):
    name, options = CASES[request.param]
    one = load_model(name, "random", seed=4, **options)
    one.model.save_pretrained(tmp_path / "mine")
    one.tokenizer.save_pretrained(tmp_path / "mine")
    return name, one, tmp_path / "mine"


def test_a_saved_folder_loads_with_its_words(saved):
    name, one, folder = saved
    again = load_model(name, folder, block=one.block)
    near(again.maps(picture(), PHRASES), one.maps(picture(), PHRASES))
    assert (again.card["weights"], again.card["unused_keys"]) == ("mine", 0) and len(again.card["sha256"]) == 64
    assert again.card["licence"] == "unknown (a folder of the user's)"
    with pytest.raises(ValueError, match="have their own"):
        load_model(name, folder, config={})


def test_missing_and_damaged_weights_are_named(saved):
    from safetensors.torch import load_file, save_file

    name, _, folder = saved
    path = folder / "model.safetensors"
    state = load_file(path)
    head = next(key for key in state if key.startswith(("rank_output", "itm_score", "itm_head")) and "weight" in key)
    save_file({key: value for key, value in state.items() if key != head}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"1 missing or of another shape: {head}"):
        load_model(name, folder)
    save_file({**state, head: state[head][:, :3].clone()}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="does not fit"):
        load_model(name, folder)
    save_file({**state, "second_head.weight": torch.zeros(2)}, path, metadata={"format": "pt"})
    assert load_model(name, folder).card["unused_keys"] == 1
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises((ValueError, FileNotFoundError), match="weights:"):
        load_model(name, folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="has no weights"):
        load_model(name, folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"folder with config\.json"):
        load_model(name, folder)


@pytest.mark.parametrize("name", FOLDERS)
def test_published_weights_out_of_reach_say_what_to_do(name, vocab, monkeypatch, tmp_path):
    repository = MODELS[name].checkpoint.removeprefix("https://huggingface.co/")
    with pytest.raises(FileNotFoundError, match=f"huggingface-cli download {repository}"):
        load_model(name, "official")
    monkeypatch.setattr(sources, "zoo_folder", lambda: tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match="make zoo" if MODELS[name].mini else "no mini model"):
        load_model(name, "mini")
    small = dict(CASES[name][1]["config"])
    part = small if name == "vilt" else small["text_config" if name == "bridgetower" else "qformer_config"]
    before, part["vocab_size"] = part["vocab_size"], 10
    try:
        with pytest.raises(ValueError, match="vocab_size of at least"):
            load_model(name, "random", config=small, vocab=vocab)
    finally:
        part["vocab_size"] = before


# --------------------------------------------------------------------------------------------------------- registry


def test_registry_has_every_column_for_every_model():
    table = list_models().set_index("name")
    assert {case[0] for case in CASES.values()} <= set(table.index) and table.index.is_unique
    columns = ["role", "explainer", "grid", "block", "tokens", "checkpoint", "licence", "weights"]
    assert list(table.columns) == columns and not table.isna().any().any()
    for entry in MODELS.values():
        module, function = entry.loader.split(":")
        assert module.startswith("qgcam_lib.models.") and function.startswith("load_"), entry.name
        assert entry.checkpoint.startswith("https://") or (entry.checkpoint == "" and entry.mini), entry.name
    assert "official (download)" in table.loc["vilt", "weights"] or "cached" in table.loc["vilt", "weights"]
