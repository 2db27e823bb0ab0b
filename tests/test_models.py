"""Names, vocabularies, checkpoints and BLIP's preprocessing: what loads must fit, what does not fit must be named."""

import hashlib
import json
import random
import shutil
import string
import subprocess
import sys
import urllib.error
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_models import picture

from qgcam_lib.errors import FormatError
from qgcam_lib.models import list_models, load_model
from qgcam_lib.models.blip.explainer import load_weights
from qgcam_lib.models.blip.network import CONFIGS, BlipConfig, build_blip_itm
from qgcam_lib.models.clip.vit import read_clip_state
from qgcam_lib.models.common import sources
from qgcam_lib.models.common.checkpoints import read_card, read_state, save_model
from qgcam_lib.models.common.device import prepare_image
from qgcam_lib.models.common.vocabulary import build_vocabulary, clean_phrase, make_tokenizer, write_vocabulary
from qgcam_lib.models.mdetr.detector import read_mdetr_state
from qgcam_lib.models.registry import MODELS, find_model

SMALL = BlipConfig(image_size=64, patch_size=16, vision_width=48, vision_depth=1, vision_heads=3, text_width=32,
                   text_depth=2, text_heads=2, text_mlp_width=64, vocab_size=700, embed_dim=16)
PHOTOS = Path(__file__).parents[1] / ".." / "shared" / "realdata" / "photos" / "images"


@pytest.fixture(scope="module")
def blip():
    return load_model("blip-base", "random", seed=3, config=SMALL, block=0)


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    return write_vocabulary(build_vocabulary(), tmp_path_factory.mktemp("vocab") / "vocab.txt")


@pytest.fixture
def state(blip):
    return {key: value.clone() for key, value in blip.model.state_dict().items()}


# ---------------------------------------------------------------------------------------------------------------- names


def test_listing_models_imports_no_model_library():
    code = ("import sys; from qgcam_lib.models import list_models; t = list_models(); print(','.join(t['name']), "
            "','.join(t.columns), any(m in sys.modules for m in ('torch', 'lavis', 'transformers')), sep=';')")
    names, columns, heavy = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                                           cwd=Path(__file__).parents[1], timeout=300).stdout.strip().split(";")
    assert set(names.split(",")) >= {"blip-base", "blip-large"} and heavy == "False"
    assert columns == "name,role,explainer,grid,block,tokens,checkpoint,licence,weights"


def test_registry_agrees_with_lavis():
    """Checkpoint addresses, sizes and vocabulary are the facts of LAVIS's own configuration files."""
    from lavis.models.blip_models.blip_image_text_matching import BlipITM
    from omegaconf import OmegaConf

    for name, kind in (("blip-base", "base"), ("blip-large", "large")):
        theirs = OmegaConf.load(BlipITM.default_config_path(kind)).model
        sizes = json.loads((Path(BlipITM.default_config_path(kind)).parents[2] / theirs.med_config_path).read_text())
        ours = CONFIGS[name]
        assert MODELS[name].checkpoint == theirs.finetuned and MODELS[name].grid == ours.grid == (24, 24)
        assert (ours.image_size, ours.embed_dim) == (theirs.image_size, theirs.embed_dim)
        assert (ours.text_width, ours.text_depth, ours.text_heads) == tuple(
            sizes[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
        assert (ours.vocab_size, ours.vision_width, ours.text_mlp_width, ours.max_positions) == tuple(
            sizes[key] for key in ("vocab_size", "encoder_width", "intermediate_size", "max_position_embeddings"))


@pytest.mark.parametrize(("call", "named"), [
    (lambda: load_model("blip_base"), "blip-base"),
    (lambda: load_model("none-mini", "mini"), "mini"),
    (lambda: load_model("blip-base", "random", config={**SMALL.to_dict(), "image_size": 65}), "image_size"),
    (lambda: BlipConfig(text_width=30, text_heads=4), "text_width"),
])
def test_refusals_are_clear(call, named, monkeypatch):
    monkeypatch.setitem(MODELS, "none-mini", replace(MODELS["blip-base"], name="none-mini", mini=""))
    with pytest.raises(ValueError, match=named):
        call()


def test_a_wrong_word_for_weights_is_answered_with_the_right_one():
    with pytest.raises(FileNotFoundError, match="official"):
        load_model("blip-base", "offical")


def test_official_weights_come_from_torchs_cache(monkeypatch, tmp_path):
    """A file that lies in torch's cache under the official name is taken; offline, the error names the place."""
    def unreachable(*args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", unreachable)
    entry = find_model("blip-base")
    with pytest.raises(FileNotFoundError, match="checkpoints/model_base_retrieval_coco.pth"):
        sources.published_file(entry)
    assert "official (download)" in list_models().set_index("name").loc["blip-base", "weights"]
    target = tmp_path / "hub" / "checkpoints" / "model_base_retrieval_coco.pth"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"not a checkpoint")
    assert sources.published_file(entry) == target
    assert "official (cached)" in list_models().set_index("name").loc["blip-base", "weights"]


@pytest.mark.parametrize(("address", "file", "place"), [
    ("https://huggingface.co/owner/name", "", "hf/hub/models--owner--name/snapshots/0123abcd/model.safetensors"),
    ("https://drive.google.com/drive/folders/1a2B?usp=sharing", "best.pth", "torch/hub/checkpoints/best.pth"),
    ("https://example.org/models/RN50.pt", "", ".cache/clip/RN50.pt"),
])
def test_available_weights_are_looked_for_where_their_library_keeps_them(monkeypatch, tmp_path, address, file, place):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("HOME", str(tmp_path))
    entry = replace(MODELS["blip-base"], name="other", checkpoint=address, file=file, mini="not-there")
    monkeypatch.setitem(MODELS, "other", entry)
    fetched = "by hand" if "drive.google" in address else "download"
    assert list_models().set_index("name").loc["other", "weights"] == f"random, official ({fetched})"
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_bytes(b"weights")
    assert list_models().set_index("name").loc["other", "weights"] == "random, official (cached)"


# ------------------------------------------------------------------------------------------------------------- words


@given(st.text(alphabet=string.printable, max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_ascii_text_has_a_spelling(words, text):
    tokens = words.tokenize(text)
    assert "[UNK]" not in tokens or max(map(len, text.split())) > 100
    assert "".join(token.removeprefix("##") for token in tokens) == "".join(text.lower().split()).replace("\x7f", "")


@pytest.fixture(scope="module")
def words():
    return make_tokenizer(build_vocabulary())


def test_tokens_are_those_of_lavis_tokenizer_class(words, vocab):
    """The slow tokenizer that LAVIS uses, with its two tokens added in its way, from the same file."""
    from transformers import BertTokenizer

    slow = BertTokenizer(str(vocab))
    slow.add_special_tokens({"bos_token": "[DEC]"})
    slow.add_special_tokens({"additional_special_tokens": ["[ENC]"]})
    texts = ["a man in a red hat", "two dogs' zeppelins, 1994", "çà et là", "[SEP] x", "the e-mail's T-shirt"]
    assert words(texts, padding="longest").input_ids == slow(texts, padding="longest").input_ids
    assert words.enc_token_id == slow.additional_special_tokens_ids[0]
    assert words.bos_token_id == slow.bos_token_id == words.enc_token_id - 1


def test_vocabulary_is_fixed_by_its_texts(tmp_path):
    texts = ["zebra crossing", "A zebra, a quagga"]
    first = build_vocabulary(texts)
    assert first == build_vocabulary(iter(texts)) and first[-2:] == ["crossing", "quagga"]
    assert first[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] and len(set(first)) == len(first)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match="vocab"):
        make_tokenizer(tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match="vocab_size"):
        build_blip_itm(BlipConfig(vocab_size=100), make_tokenizer(first))


# ------------------------------------------------------------------------------------------------------- checkpoints


def nested(state, path):
    torch.save({"model": state}, path)
    return path


def test_a_whole_checkpoint_loads_nested_or_plain(blip, state, vocab, tmp_path):
    path = nested(state, tmp_path / "nested.pth")
    torch.save(state, tmp_path / "plain.pt")
    maps = blip.maps(picture(), ["a dog"])
    for file in (path, tmp_path / "plain.pt"):
        again = load_model("blip-base", file, config=SMALL, vocab=vocab, block=0)
        assert torch.equal(again.maps(picture(), ["a dog"]), maps)
    assert again.card["checkpoint"] == "plain.pt" and len(again.card["sha256"]) == 64
    assert again.card["grid"] == (4, 4) and again.card["input_size"] == (64, 64)


def test_training_leftovers_are_passed_over_and_named(blip, state, tmp_path):
    extra = {"visual_encoder_m.norm.bias": torch.zeros(48), "text_encoder_m.encoder.x": torch.zeros(32),
             "vision_proj_m.bias": torch.zeros(16), "text_proj_m.bias": torch.zeros(16), "temp": torch.zeros(()),
             "image_queue": torch.zeros(4), "text_queue": torch.zeros(4), "idx_queue": torch.zeros(4),
             "ptr_queue": torch.zeros(1)}
    state.pop("text_encoder.embeddings.position_ids", None)
    assert sorted(load_weights(blip.model, nested({**state, **extra}, tmp_path / "a.pth"))) == sorted(extra)


@pytest.mark.parametrize(("damage", "named"), [
    (lambda s: s.pop("itm_head.weight"), "itm_head.weight"),
    (lambda s: s.update({"itm_head.w": s.pop("itm_head.weight")}), "itm_head.weight.*itm_head.w"),
    (lambda s: s.update({"decoder.bias": torch.zeros(3)}), "decoder.bias"),
    (lambda s: s.update({"itm_head.bias": torch.zeros(3)}), "itm_head.bias"),
])
def test_every_key_is_checked_and_nothing_is_loaded_by_half(blip, state, tmp_path, damage, named):
    before = {key: value.clone() for key, value in blip.model.state_dict().items()}
    changed = {key: value + 1 if value.is_floating_point() else value for key, value in state.items()}
    damage(changed)
    with pytest.raises(ValueError, match=named):
        load_weights(blip.model, nested(changed, tmp_path / "damaged.pth"))
    assert all(torch.equal(value, before[key]) for key, value in blip.model.state_dict().items())


def test_unsafe_and_damaged_files_are_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return exec, ("open('ran', 'w')",)

    torch.save({"model": Evil()}, tmp_path / "evil.pth")
    (tmp_path / "cut.pth").write_bytes((tmp_path / "evil.pth").read_bytes()[:50])
    (tmp_path / "cut.safetensors").write_bytes(b"123")
    (tmp_path / "page.pth").write_bytes(b"<html>404</html>")
    torch.save({"model": {"a": 1}}, tmp_path / "numbers.pth")
    torch.save({5: torch.ones(1)}, tmp_path / "unnamed.pth")
    files = [path.name for path in tmp_path.iterdir()]
    for name in files:
        for read in (read_state, read_clip_state, read_mdetr_state):
            with pytest.raises(FormatError, match=name):
                read(tmp_path / name)
    assert len(files) == 6 and not Path("ran").exists()


@pytest.mark.parametrize("config", [b"[]", b"{", b'{"embed_dim": 10000000000000}', b'{"embed_dim": 8}'])
def test_a_damaged_config_is_one_documented_error(tmp_path, config):
    folder = shutil.copytree(Path("data/zoo/clip-rn-mini"), tmp_path / "net")
    card = json.loads((folder / "card.json").read_text())
    card["files"]["config.json"] = hashlib.sha256(config).hexdigest()
    (folder / "config.json").write_bytes(config)
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(ValueError, match="config"):
        load_model("clip-rn50x16-gscorecam", folder)


def test_positions_are_resampled_as_in_lavis(blip, state, vocab, tmp_path, capsys):
    from lavis.models.vit import interpolate_pos_embed

    path = nested(state, tmp_path / "a.pth")
    larger = load_model("blip-base", path, config=replace(SMALL, image_size=96), vocab=vocab, block=0)
    expected = interpolate_pos_embed(state["visual_encoder.pos_embed"], larger.model.visual_encoder)
    torch.testing.assert_close(larger.model.visual_encoder.pos_embed.detach(), expected)
    assert larger.maps(picture(), ["a dog"]).shape == (1, 6, 6) and larger.card["grid"] == (6, 6)


def test_zoo_folder_round_trip(blip, state, tmp_path):
    card = {"name": "blip-small", "block": 1, "tokens": "amc", "licence": "Apache-2.0", "seconds": 1}
    folder = save_model(tmp_path / "blip-small", blip.model, SMALL.to_dict(), build_vocabulary(), card)
    again = load_model("blip-base", folder)
    assert (again.block, again.tokens, again.card["licence"], again.card["seconds"]) == (1, "amc", "Apache-2.0", 1)
    for key, value in again.model.state_dict().items():
        expected = state[key].half().float() if state[key].is_floating_point() else state[key]
        assert torch.equal(value, expected), key
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    with pytest.raises(ValueError, match=r"config\.json differs"):
        read_card(folder)


def test_weights_that_are_not_finite_are_not_kept(tmp_path):
    layer = torch.nn.Linear(2, 2)
    layer.weight.data.fill_(1e9)
    with pytest.raises(ValueError, match="not finite as float16"):
        save_model(tmp_path / "bad", layer, {}, ["[PAD]"], {"name": "bad"})
    assert not (tmp_path / "bad").exists()


# -------------------------------------------------------------------------------------------------------- BLIP's way


def test_pictures_are_prepared_as_in_lavis():
    from lavis.processors.blip_processors import BlipImageEvalProcessor

    grey = Image.linear_gradient("L").resize((70, 31))
    for image in (picture(), grey, picture(1, (64, 64))):
        theirs = BlipImageEvalProcessor(image_size=48)(image.convert("RGB"))
        torch.testing.assert_close(prepare_image(image, 48), theirs)


@given(st.text(alphabet='aZ9 .!"()*#:;~,?\'-\n', max_size=40))
@settings(max_examples=100, deadline=None)
def test_phrases_are_cleaned_as_in_lavis(text):
    from lavis.processors.blip_processors import BlipCaptionProcessor

    theirs = BlipCaptionProcessor()(text).split()
    if theirs:
        assert clean_phrase(text).split() == theirs
    else:
        with pytest.raises(ValueError, match="expected words"):
            clean_phrase(text)


def test_a_long_prompt_is_cut_to_what_is_read(blip):
    with pytest.warns(UserWarning, match="50"), pytest.warns(UserWarning, match="35"):
        found = blip.maps(picture(), [" ".join(["dog"] * 60)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(found, blip.maps(picture(), [" ".join(["dog"] * 33)]))  # 35 with [ENC] and [SEP]


def test_the_head_is_an_option_of_the_model():
    one, other = load_model("blip-base", head="itc"), load_model("blip-base")
    assert (one.card["head"], other.card["head"]) == ("itc", "itm")
    torch.testing.assert_close(one.score([picture()], ["a dog"]), other.score([picture()], ["a dog"], head="itc"))
    torch.testing.assert_close(one.maps(picture(), ["a dog"]), other.maps(picture(), ["a dog"]))
    with pytest.raises(ValueError, match="head"):
        load_model("blip-base", head="both")
    answerer = load_model("blip-base-as-answerer", head="itc")  # a cosine has no usual threshold
    assert answerer.card["threshold"] is None and answerer.card["head"] == "itc"
    albef, image = load_model("albef-amc", head="itc"), picture(3)
    with torch.no_grad():  # as ALBEF's retrieval computes it
        text = albef.model.tokenizer(["a dog"], return_tensors="pt")
        said = albef.model.text_encoder(text.input_ids, attention_mask=text.attention_mask, return_dict=True,
                                        mode="text").last_hidden_state[:, 0]
        seen = albef.model.visual_encoder.forward_features(prepare_image(image, albef.config.image_size)[None])[:, 0]
        expected = torch.cosine_similarity(albef.model.vision_proj(seen), albef.model.text_proj(said))
    torch.testing.assert_close(albef.score([image], ["a dog"])[0], expected, rtol=1e-4, atol=1e-5)


def test_random_weights_come_from_the_seed_alone(blip):
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    same = load_model("blip-base", "random", seed=3, config=SMALL, block=0)
    assert torch.equal(torch.rand(1), expected), "loading must not move the global random state"
    maps = blip.maps(picture(), ["a dog"])
    assert torch.equal(same.maps(picture(), ["a dog"]), maps)
    other = load_model("blip-base", "random", seed=4, config=SMALL, block=0)
    assert not torch.equal(other.maps(picture(), ["a dog"]), maps)


def test_real_photographs_do_not_break_it(blip):
    if not PHOTOS.is_dir():
        pytest.skip("the photographs of ../shared/realdata/photos are not on this machine")
    files = sorted(PHOTOS.glob("*.jpg"))
    rng = random.Random(0)
    phrases = [rng.sample(["a man", "the wooden bench", "two dogs", "a red umbrella"], 3) for _ in files]
    maps = blip.maps_batch(files, phrases)
    assert len(maps) == len(files) >= 6
    assert all(one.shape == (3, 4, 4) and bool(torch.isfinite(one).all()) for one in maps)


def test_a_shallow_model_explains_a_layer_whose_words_get_gradients():
    model = load_model("blip-base", "random", seed=3, config=SMALL)
    assert model.block == 0 and model.maps(picture(), ["a red ball"]).max() > 0
    last = load_model("blip-base", "random", seed=3, config=SMALL, block=1)
    assert last.maps(picture(), ["a red ball"]).max() == 0  # the head reads the first token alone
