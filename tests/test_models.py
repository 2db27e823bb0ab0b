"""Names, vocabularies, checkpoints and BLIP's preprocessing: what loads must fit, what does not fit must be named."""

import hashlib
import json
import random
import shutil
import string
import struct
import subprocess
import sys
import urllib.error
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from qgcam_lib.errors import FormatError
from qgcam_lib.models import Explainer, Matcher, list_models, load_model
from qgcam_lib.models.blip.explainer import BlipExplainer
from qgcam_lib.models.blip.loading import load_weights
from qgcam_lib.models.blip.network import CONFIGS, BlipConfig, build_blip_itm
from qgcam_lib.models.clip.loading import read_clip_state
from qgcam_lib.models.common import sources
from qgcam_lib.models.common.checkpoints import load_state, read_card, read_state, resize_positions, save_model
from qgcam_lib.models.common.images import prepare_image
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer, write_vocabulary
from qgcam_lib.models.common.words import clean_phrase
from qgcam_lib.models.mdetr.loading import read_mdetr_state
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


def picture(seed=0, size=(50, 80)):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


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


@pytest.mark.parametrize(("call", "message"), [
    (lambda: load_model("blip_base"), "Did you mean 'blip-base'"),
    (lambda: load_model("albatross"), "expected one of"),
    (lambda: load_model("none-mini", "mini"), "no mini model"),
    (lambda: load_model("blip-base", "random", config=SMALL, block=5), "block: expected 0 to 1"),
    (lambda: load_model("blip-base", "random", config=SMALL, tokens="mean"), "tokens: expected one of"),
    (lambda: load_model("blip-base", "random", config=SMALL, precision="float16"), "precision: expected"),
    (lambda: load_model("blip-base", "random", config=SMALL, device="abacus"), "device: 'abacus'"),
    (lambda: load_model("blip-base", "random", config=SMALL, image_size=65), "image_size: expected a multiple"),
    (lambda: BlipConfig(text_width=30, text_heads=4), "text_width: expected a multiple of text_heads"),
])
def test_refusals_are_clear(call, message, monkeypatch):
    monkeypatch.setitem(MODELS, "none-mini", replace(MODELS["blip-base"], name="none-mini", mini=""))
    with pytest.raises(ValueError, match=message):
        call()


def test_missing_weights_say_what_to_do(monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match="Did you mean 'official'"):
        load_model("blip-base", "offical")
    monkeypatch.setattr(sources, "zoo_folder", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match="make zoo"):
        load_model("blip-base", "mini")


def test_official_weights_come_from_torchs_cache(monkeypatch, tmp_path):
    """A file that lies in torch's cache under the official name is taken; offline, the error names the place."""
    def unreachable(*args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", unreachable)
    entry = find_model("blip-base")
    with pytest.raises(FileNotFoundError, match="checkpoints/model_base_retrieval_coco.pth, or pass its path"):
        sources.published_file(entry)
    assert "official (download)" in list_models().set_index("name").loc["blip-base", "weights"]
    target = tmp_path / "hub" / "checkpoints" / "model_base_retrieval_coco.pth"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"not a checkpoint")
    assert sources.published_file(entry) == target
    assert "official (cached)" in list_models().set_index("name").loc["blip-base", "weights"]
    with pytest.raises(FileNotFoundError, match="pass vocab=PATH"):
        load_model("blip-base", "official")


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
    with pytest.raises(ValueError, match="lacks"):
        make_tokenizer(tmp_path / "vocab.txt")
    with pytest.raises(FileNotFoundError, match="vocab: expected"):
        make_tokenizer(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="at most vocab_size=100"):
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


@pytest.mark.parametrize(("damage", "message"), [
    (lambda s: s.pop("itm_head.weight"), "1 missing: itm_head.weight"),
    (lambda s: s.update({"itm_head.w": s.pop("itm_head.weight")}), "missing: itm_head.weight; 1 unexp.*: itm_head.w"),
    (lambda s: s.update({"decoder.bias": torch.zeros(3)}), "1 unexpected: decoder.bias"),
    (lambda s: s.update({"itm_head.bias": torch.zeros(3)}), r"itm_head.bias \(3,\) instead of \(2,\)"),
])
def test_every_key_is_checked_and_nothing_is_loaded_by_half(blip, state, tmp_path, damage, message):
    before = {key: value.clone() for key, value in blip.model.state_dict().items()}
    changed = {key: value + 1 if value.is_floating_point() else value for key, value in state.items()}
    damage(changed)
    with pytest.raises(ValueError, match=message):
        load_weights(blip.model, nested(changed, tmp_path / "damaged.pth"))
    assert all(torch.equal(value, before[key]) for key, value in blip.model.state_dict().items())


def test_unsafe_and_damaged_files_are_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return exec, ("open('ran', 'w')",)

    torch.save({"model": Evil()}, tmp_path / "evil.pth")
    (tmp_path / "cut.pth").write_bytes((tmp_path / "evil.pth").read_bytes()[:50])
    (tmp_path / "cut.safetensors").write_bytes(b"123")
    torch.save({"model": {"a": 1}}, tmp_path / "numbers.pth")
    for name, message in (("evil.pth", "more than tensors"), ("cut.pth", "damaged"), ("cut.safetensors", "damaged"),
                          ("numbers.pth", "no table of tensors")):
        with pytest.raises(ValueError, match=message):
            read_state(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"none\.pth"):
        read_state(tmp_path / "none.pth")
    assert not Path("ran").exists()


def zip_of(path, compressed=False, **changes):
    """A torch file with some entries exchanged, and all compressed or not."""
    with zipfile.ZipFile(path) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as new:
        for name, content in entries.items():
            new.writestr(name, changes.get(name.split("/")[-1].replace(".", "_"), content))


def hostile_checkpoints(folder):
    """name -> what the error says. Files that claim, ask or are what no checkpoint is."""
    def header(text, rest=b""):
        return struct.pack("<Q", len(text)) + text + rest

    def saved(name, value, **how):
        torch.save(value, folder / name, **how)
        return folder / name

    size = (10**12).to_bytes(6, "little")
    claim = zipfile.ZipFile(saved("whole.pth", {"a": torch.zeros(1000)})).read("whole/data.pkl")
    assert claim.count(b"M\xe8\x03") >= 1
    zip_of(saved("claims.pth", {"a": torch.zeros(1000)}), data_pkl=claim.replace(b"M\xe8\x03", b"\x8a\x06" + size))
    zip_of(saved("bomb.pth", {"a": torch.zeros(10**6)}), compressed=True)
    old = saved("old.pt", {"a": torch.zeros(1000)}, _use_new_zipfile_serialization=False)
    old.write_bytes(old.read_bytes().replace(b"M\xe8\x03", b"\x8a\x06" + size))
    saved("repeats.pth", {"a": torch.zeros(1).expand(10**12)})
    saved("sparse.pth", {"a": torch.eye(2).to_sparse()})
    saved("numbers.pth", {5: torch.ones(1)})
    saved("objects.pth", {"a": np.zeros(3)})
    one = b'{"a": {"dtype": "F32", "shape": [%s], "data_offsets": [0, %d]}}'
    files = {
        "elements.safetensors": header(one % (b"1000000000000", 4 * 10**12), bytes(100)),
        "product.safetensors": header(one % (b"1099511627776, 1099511627776", 4), bytes(4)),
        "header.safetensors": struct.pack("<Q", 10**15) + b"{}", "nested.safetensors": header(b"[" * 100_000),
        "text.safetensors": header(b"\xff\xfe\xfd\xfc"), "elf.pth": b"\x7fELF" + bytes(99), "empty.bin": b"",
        "page.pth": b"<html>404</html>", "pointer.bin": b"version https://git-lfs.github.com/spec/v1\n",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    whole = (folder / "whole.pth").read_bytes()
    for k in (1, 8, 60, len(whole) // 2, len(whole) - 9):
        (folder / f"cut{k}.pth").write_bytes(whole[:k])
    (folder / "whole.pth").unlink()
    said = {"bomb.pth": "claims 4,0.* bytes in a file of", "repeats.pth": "as large as they claim, found 1 others: 'a'",
            "sparse.pth": "found 1 others: 'a'", "numbers.pth": "found 1 others: 5", "page.pth": "begins with b'<html",
            "objects.pth": r"asks for numpy\._core\.multiarray\._reconstruct", "pointer.bin": "b'version http"}
    return {path.name: said.get(path.name, "is damaged") for path in folder.iterdir()}


def test_hostile_checkpoints_are_one_documented_error(tmp_path):
    wanted = hostile_checkpoints(tmp_path)
    assert len(wanted) == 21
    for name, message in wanted.items():
        for read in (read_state, read_clip_state, read_mdetr_state):
            with pytest.raises(FormatError, match=message) as error:
                read(tmp_path / name)
            text = str(error.value)
            assert name in text and len(text) < 500 and "weights_only" not in text and "fetch" in text.lower(), text


def hostile_folder(folder, config=None, **card):
    """A folder of the zoo's form whose config.json or card.json is another, with checksums that agree."""
    shutil.copytree(Path("data/zoo/clip-rn-mini"), folder)
    known = json.loads((folder / "card.json").read_text())
    if config is not None:
        (folder / "config.json").write_bytes(config)
        known["files"]["config.json"] = hashlib.sha256(config).hexdigest()
    (folder / "card.json").write_text(json.dumps({**known, **card}))
    return folder


@pytest.mark.parametrize("config, message", [
    (b"[" * 100_000, "config.json: not usable as JSON"), (b"[]", "config.json: expected an object"),
    (b"\xff\xfe", "config.json: not usable as JSON"), (b"", "config.json: not usable as JSON"),
    (b'{"a": 1, "a": 2}', "each key once"), (b'{"embed_dim": 1e400}', "config.json: not usable as JSON"),
    (b'{"embed_dim": 10000000000000}', "expected numbers up to 1,000,000, found 1e[+]13 at 'embed_dim'"),
    (b'{"embed_dim": 8, "vision_cfg": 5, "text_cfg": []}', "no clip-rn50x16-gscorecam can be built from"),
    (b'{"embed_dim": 8, "vision_cfg": {"layers": "x"}, "text_cfg": {}}', "no clip-rn50x16-gscorecam can be built"),
])
def test_a_hostile_config_is_one_documented_error(tmp_path, config, message):
    with pytest.raises(FormatError, match=message):
        load_model("clip-rn50x16-gscorecam", hostile_folder(tmp_path / "net", config))


def test_a_damaged_zoo_folder_is_one_documented_error(tmp_path):
    folder = hostile_folder(tmp_path / "cut")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(FormatError, match="model.safetensors differs from the checksum in its card"):
        load_model("clip-rn50x16-gscorecam", folder)
    for sums in (None, [], {"config.json": "0"}):
        with pytest.raises(FormatError, match='card.json: expected the checksums of .* under "files"'):
            read_card(hostile_folder(tmp_path / f"{sums!s:.4}", files=sums))
    (folder / "card.json").write_bytes(b'{"files": ')
    with pytest.raises(FormatError, match="card.json: not usable as JSON"):
        load_model("clip-rn50x16-gscorecam", folder)


def test_positions_are_resampled_as_in_lavis(blip, state, vocab, tmp_path, capsys):
    from lavis.models.vit import interpolate_pos_embed

    path = nested(state, tmp_path / "a.pth")
    larger = load_model("blip-base", path, config=SMALL, vocab=vocab, image_size=96, block=0)
    expected = interpolate_pos_embed(state["visual_encoder.pos_embed"], larger.model.visual_encoder)
    torch.testing.assert_close(larger.model.visual_encoder.pos_embed.detach(), expected)
    assert larger.maps(picture(), ["a dog"]).shape == (1, 6, 6) and larger.card["grid"] == (6, 6)
    with pytest.raises(ValueError, match="square grids"):
        resize_positions(torch.zeros(1, 12, 3), 16)


def test_zoo_folder_round_trip(blip, state, tmp_path):
    card = {"name": "blip-small", "block": 1, "tokens": "amc", "licence": "Apache-2.0", "seconds": 1}
    folder = save_model(tmp_path / "blip-small", blip.model, SMALL.to_dict(), build_vocabulary(), card)
    again = load_model("blip-base", folder)
    assert (again.block, again.tokens, again.card["licence"], again.card["seconds"]) == (1, "amc", "Apache-2.0", 1)
    assert json.loads((tmp_path / "zoo.json").read_text())["blip-small"]["block"] == 1
    for key, value in again.model.state_dict().items():
        expected = state[key].half().float() if state[key].is_floating_point() else state[key]
        assert torch.equal(value, expected), key
    with pytest.raises(ValueError, match="has its own"):
        load_model("blip-base", folder, config=SMALL)
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    with pytest.raises(ValueError, match=r"config\.json differs"):
        read_card(folder)
    (folder / "vocab.txt").unlink()
    (folder / "config.json").write_text(json.dumps(SMALL.to_dict(), indent=1) + "\n")
    with pytest.raises(FileNotFoundError, match=r"vocab\.txt is missing"):
        read_card(folder)
    (tmp_path / "odd.json").write_text('{"width": 3}')
    with pytest.raises(ValueError, match="unknown keys"):
        BlipConfig.from_file(tmp_path / "odd.json")


def test_weights_that_are_not_finite_are_not_kept(tmp_path):
    layer = torch.nn.Linear(2, 2)
    layer.weight.data.fill_(1e9)
    with pytest.raises(ValueError, match="not finite as float16"):
        save_model(tmp_path / "bad", layer, {}, ["[PAD]"], {"name": "bad"})
    assert not (tmp_path / "bad").exists()
    with pytest.raises(ValueError, match="1 missing: bias"):
        load_state(layer, {"weight": torch.zeros(2, 2)})


# -------------------------------------------------------------------------------------------------------- BLIP's way


def test_pictures_are_prepared_as_in_lavis(tmp_path):
    from lavis.processors.blip_processors import BlipImageEvalProcessor

    grey = Image.linear_gradient("L").resize((70, 31))
    for image in (picture(), grey, picture(1, (64, 64))):
        theirs = BlipImageEvalProcessor(image_size=48)(image.convert("RGB"))
        torch.testing.assert_close(prepare_image(image, 48), theirs)
    grey.save(tmp_path / "grey.png")
    assert torch.equal(prepare_image(tmp_path / "grey.png", 48), prepare_image(grey, 48))
    (tmp_path / "half.png").write_bytes((tmp_path / "grey.png").read_bytes()[:60])
    with pytest.raises(ValueError, match=r"half\.png"):
        prepare_image(tmp_path / "half.png", 48)
    with pytest.raises(TypeError, match="expected a PIL image"):
        prepare_image(np.zeros((3, 3, 3)), 48)


@given(st.text(alphabet='aZ9 .!"()*#:;~,?\'-\n', max_size=40))
@settings(max_examples=100, deadline=None)
def test_phrases_are_cleaned_as_in_lavis(text):
    from lavis.processors.blip_processors import BlipCaptionProcessor

    theirs = BlipCaptionProcessor()(text).split()
    if theirs:
        assert clean_phrase(text).split() == theirs
    else:
        with pytest.raises(ValueError, match="nothing is left"):
            clean_phrase(text)


def test_odd_prompts_have_a_defined_outcome(blip):
    with pytest.raises(ValueError, match="nothing is left of ''"):
        blip.maps(picture(), ["a dog", ""])
    with pytest.raises(TypeError, match="expected a list of texts"):
        blip.maps(picture(), "a dog")
    with pytest.raises(TypeError, match="expected texts, got None"):
        blip.score([picture()], [None])
    with pytest.raises(ValueError, match="expected 2 lists"):
        blip.maps_batch([picture(), picture()], [["a dog"]])
    long = " ".join(["dog"] * 60)
    with pytest.warns(UserWarning, match="cut to 50"), pytest.warns(UserWarning, match="cut to 35 tokens"):
        found = blip.maps(picture(), [long])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(found, blip.maps(picture(), [" ".join(["dog"] * 33)]))  # 35 with [ENC] and [SEP]
        assert blip.maps(picture(), []).shape == (0, 4, 4) and blip.score([picture()], []).shape == (1, 0)
        assert blip.maps_batch([], []) == [] and blip.score([], ["a dog"]).shape == (0, 1)


def test_contrastive_scores_are_those_of_lavis(blip):
    """BlipITM's own forward pass with match_head="itc", one text at a time and all together."""
    images, texts = [picture(0), picture(1)], ["a dog", "two women on a red bench", "grass"]
    pixels = torch.stack([prepare_image(image, blip.config.image_size) for image in images])
    with torch.no_grad():
        together = blip.model({"image": pixels, "text_input": texts}, match_head="itc")
        alone = torch.cat([blip.model({"image": pixels, "text_input": [text]}, match_head="itc") for text in texts], 1)
    found = blip.score(images, texts, head="itc")
    torch.testing.assert_close(found, together, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)
    assert found.shape == (2, 3) and found.abs().max() <= 1 + 1e-6 and blip.card["head"] == "itm"
    assert not torch.allclose(found, blip.score(images, texts), atol=0.01)
    assert blip.score([], texts, head="itc").shape == (0, 3) and blip.score(images, [], head="itc").shape == (2, 0)
    torch.testing.assert_close(blip.score([blip.encode(image) for image in images], texts, head="itc"), found)
    with pytest.raises(ValueError, match="head: expected one of"):
        blip.score(images, texts, head="itd")


def test_the_head_is_an_option_of_the_model():
    one, other = load_model("blip-base", head="itc"), load_model("blip-base")
    assert (one.card["head"], other.card["head"]) == ("itc", "itm")
    torch.testing.assert_close(one.score([picture()], ["a dog"]), other.score([picture()], ["a dog"], head="itc"))
    torch.testing.assert_close(one.maps(picture(), ["a dog"]), other.maps(picture(), ["a dog"]))
    with pytest.raises(ValueError, match="head: expected one of"):
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


def test_scores_are_lavis_matching_probabilities(blip):
    texts, images = ["a dog", "the red ball on the left", "grass"], [picture(0), picture(1)]
    pixels = torch.stack([prepare_image(image, 64) for image in images])
    pairs = [blip.model({"image": pixels, "text_input": [text] * 2}) for text in texts]
    expected = torch.stack([logits.softmax(1)[:, 1] for logits in pairs], 1)
    found = blip.score(images, texts)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(blip.score([blip.encode(image) for image in images], texts), found)
    torch.testing.assert_close(blip.explain(images[1], texts)[1], found[1])


def test_roles_seed_and_random_state(blip):
    assert isinstance(blip, Explainer) and isinstance(blip, Matcher)
    needed = {"name", "weights", "checkpoint", "sha256", "block", "tokens", "grid", "input_size", "parameters",
              "licence"}
    assert needed <= set(blip.card) and blip.card["seed"] == 3 and blip.protocol
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    same = load_model("blip-base", "random", seed=3, config=SMALL, block=0)
    assert torch.equal(torch.rand(1), expected), "loading must not move the global random state"
    maps = blip.maps(picture(), ["a dog"])
    assert torch.equal(same.maps(picture(), ["a dog"]), maps)
    other = load_model("blip-base", "random", seed=4, config=SMALL, block=0)
    assert not torch.equal(other.maps(picture(), ["a dog"]), maps)


def test_bfloat16_is_near(blip, state, vocab, tmp_path):
    path = nested(state, tmp_path / "a.pth")
    half = load_model("blip-base", path, config=SMALL, vocab=vocab, block=0, precision="bfloat16")
    fine, coarse = blip.maps(picture(), ["a dog"]), half.maps(picture(), ["a dog"])
    assert coarse.dtype == torch.float32 and half.card["precision"] == "bfloat16"
    assert torch.corrcoef(torch.stack([fine.flatten(), coarse.flatten()]))[0, 1] > 0.98


def test_real_photographs_do_not_break_it(blip):
    if not PHOTOS.is_dir():
        pytest.skip("the photographs of ../shared/realdata/photos are not on this machine")
    files = sorted(PHOTOS.glob("*.jpg"))
    rng = random.Random(0)
    phrases = [rng.sample(["a man", "the wooden bench", "two dogs", "a red umbrella"], 3) for _ in files]
    maps = blip.maps_batch(files, phrases)
    assert len(maps) == len(files) >= 6
    assert all(one.shape == (3, 4, 4) and bool(torch.isfinite(one).all()) for one in maps)
    assert isinstance(blip, BlipExplainer)


def test_a_shallow_model_explains_a_layer_whose_words_get_gradients():
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    model = load_model("blip-base", "random", seed=3, config=SMALL)
    assert model.block == 0 and model.maps(picture, ["a red ball"]).max() > 0
    last = load_model("blip-base", "random", seed=3, config=SMALL, block=1)
    assert last.maps(picture, ["a red ball"]).max() == 0  # the head reads the first token alone
