"""What every adapter owes: one map a phrase whatever its company, defined answers to odd input, checked loading."""

import warnings

import numpy as np
import pytest
import torch
from small_models import BLIP2, LAVIS, TOWER, VILT, picture

from qgcam_lib.models import Explainer, Matcher, list_models, load_model
from qgcam_lib.models.albef.explainer import AlbefConfig
from qgcam_lib.models.blip.network import BlipConfig
from qgcam_lib.models.common import sources
from qgcam_lib.models.registry import MODELS

PHRASES = ["a young boy in a red shirt", "the dog", "two women", "a blue and white striped umbrella"]
CASES = {"blip-base": ("blip-base", {"config": BlipConfig(**LAVIS, vocab_size=700, embed_dim=8)}),
         "albef-amc": ("albef-amc", {"config": AlbefConfig(**LAVIS, vocab_size=700, embed_dim=8, fusion_layer=1)}),
         "vilt": ("vilt", {"config": VILT}), "vilt gradcam": ("vilt", {"config": VILT, "explain": "gradcam"}),
         "bridgetower": ("bridgetower", {"config": TOWER}),
         "bridgetower gradcam": ("bridgetower", {"config": TOWER, "explain": "gradcam"}),
         "blip2-itm": ("blip2-itm", {"config": BLIP2})}
FOLDERS = ("vilt", "bridgetower", "blip2-itm")
_made: dict = {}


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


# -------------------------------------------------------------------------------------------------------- odd input


@pytest.mark.parametrize(("bad", "error"), [("", ValueError), ("  \n", ValueError), (None, TypeError)])
def test_prompts_without_words_are_refused(explainer, bad, error):
    with pytest.raises(error):
        explainer.maps(picture(), ["a dog", bad])
    with pytest.raises(error):
        explainer.score([picture()], [bad])


def test_long_prompts_are_cut_with_a_warning(explainer):
    with pytest.warns(UserWarning, match="truncated to"):
        found = explainer.maps(picture(), [" ".join(["dog"] * 60), "the dog"])
    assert bool(torch.isfinite(found).all())
    near(found[1], explainer.maps(picture(), ["the dog"])[0])


def test_lists_are_lists(explainer):
    with pytest.raises(TypeError):
        explainer.maps(picture(), "a dog")
    with pytest.raises(ValueError):
        explainer.maps_batch([picture(), picture()], [["a dog"]])
    grid = explainer.maps(picture(), ["a dog"]).shape[1:]
    assert explainer.maps(picture(), []).shape == (0, *grid) and explainer.maps_batch([], []) == []
    assert explainer.score([], ["a dog"]).shape == (0, 1) and explainer.score([picture()], []).shape == (1, 0)


@pytest.mark.parametrize("image", [picture(size=(1, 1)), picture(size=(1, 200)), picture(size=(300, 2)),
                                   *map(picture().convert, ("L", "RGBA", "P", "CMYK"))],
                         ids=["1x1", "200 wide", "300 high", "grey", "RGBA", "palette", "CMYK"])
def test_any_picture_has_a_map(explainer, image):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maps = explainer.maps(image, ["the dog"])
    assert bool(torch.isfinite(maps).all()) and min(maps.shape) >= 1
    near(explainer.maps(image.convert("RGB"), ["the dog"]), maps)


def test_what_is_no_picture_is_refused(explainer, tmp_path):
    with pytest.raises(TypeError, match="image"):
        explainer.maps(np.zeros((4, 4, 3)), ["the dog"])
    (tmp_path / "half.png").write_bytes(b"\x89PNG")
    with pytest.raises(ValueError, match=r"half\.png"):
        explainer.maps(tmp_path / "half.png", ["the dog"])
    picture().save(tmp_path / "whole.png")
    near(explainer.maps(tmp_path / "whole.png", ["the dog"]), explainer.maps(picture(), ["the dog"]))


@pytest.mark.parametrize("options", [{"block": 99}, {"precision": "float16"}, {"device": "abacus"}, {"tokens": "mean"}])
def test_wrong_options_are_refused(explainer, options):
    name, given = CASES[[key for key, one in _made.items() if one is explainer][0]]
    with pytest.raises(ValueError, match=next(iter(options))):
        load_model(name, "random", **given, **options)


def test_bfloat16_is_near(explainer):
    name, given = CASES[[key for key, one in _made.items() if one is explainer][0]]
    half = load_model(name, "random", seed=4, **given, precision="bfloat16")
    both = torch.stack([one.maps(picture(), PHRASES[:1]).flatten() for one in (explainer, half)])
    assert both.dtype == torch.float32 and torch.corrcoef(both)[0, 1] > 0.9


# ---------------------------------------------------------------------------------------------------------- loading


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


def test_missing_and_damaged_weights_are_named(saved):
    from safetensors.torch import load_file, save_file

    name, _, folder = saved
    path = folder / "model.safetensors"
    state = load_file(path)
    head = next(key for key in state if key.startswith(("rank_output", "itm_score", "itm_head")) and "weight" in key)
    save_file({key: value for key, value in state.items() if key != head}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=head):
        load_model(name, folder)
    save_file({**state, "second_head.weight": torch.zeros(2)}, path, metadata={"format": "pt"})
    assert load_model(name, folder).card["unused_keys"] == 1
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises((ValueError, FileNotFoundError), match="weights:"):
        load_model(name, folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="weights"):
        load_model(name, folder)


@pytest.mark.parametrize("name", FOLDERS)
def test_published_weights_out_of_reach_say_what_to_do(name, monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match=MODELS[name].checkpoint.removeprefix("https://huggingface.co/")):
        load_model(name, "official")
    monkeypatch.setattr(sources, "zoo_folder", lambda: tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match="make zoo" if MODELS[name].mini else "mini"):
        load_model(name, "mini")


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
