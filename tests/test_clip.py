"""CLIP: sizes, words, the reading of weights, and the loader."""

import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import noise

from qgcam_lib.models import load_model
from qgcam_lib.models.clip import vit as clip_loading
from qgcam_lib.models.clip.network import (
    bpe_tokenizer,
    build_clip,
    cell_size,
    clip_config,
    word_tokenizer,
    word_vocabulary,
)
from qgcam_lib.models.clip.vit import load_clip, read_clip_state
from qgcam_lib.models.common.checkpoints import save_model
from qgcam_lib.models.registry import find_model
from qgcam_lib.models.roles import Explainer, Matcher

NAME = "clip-rn50x16-gscorecam"
PHRASES = ["a red ball", "the small dog", "a ball on the grass"]
WORDS = word_vocabulary(PHRASES)
SIZES = {"embed_dim": 16, "quick_gelu": True,
         "vision_cfg": {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64, "patch_size": None},
         "text_cfg": {"context_length": 10, "width": 16, "heads": 2, "layers": 1}}
VIT = {**SIZES, "vision_cfg": {"layers": 2, "width": 32, "head_width": 16, "image_size": 32, "patch_size": 8}}


@pytest.fixture(scope="module")
def picture():
    return noise(70, 50)


@pytest.fixture(scope="module")
def tiny():
    return load_clip(NAME, "random", config=SIZES, vocab=WORDS, n_channels=20)


# words


@pytest.fixture(scope="module")
def bpe():
    return bpe_tokenizer()


def test_bpe_works_without_a_hub_and_ends_with_the_largest_number(bpe):
    rows = bpe(["a photo of a cat", "A  Photo of a cat "])
    assert rows[0, :7].tolist() == [49406, 320, 1125, 539, 320, 2368, 49407]  # OpenAI's published numbers
    assert torch.equal(rows[0], rows[1]) and rows.argmax(1).tolist() == [6, 6]


def test_sixty_words_fit_the_published_row_and_a_hundred_are_cut_with_a_warning(bpe):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = bpe([" ".join(["ball"] * 60)])
    assert rows[0, 61] == 49407
    with pytest.warns(UserWarning, match="75"):
        rows = bpe([" ".join(["ball"] * 100)])
    assert rows.shape == (1, 77) and rows[0, -1] == 49407 and (rows[0, 1:-1] == rows[0, 1]).all()


@pytest.mark.parametrize("make", [bpe_tokenizer, lambda: word_tokenizer(WORDS)])
def test_texts_without_words_are_errors(make):
    tokenize = make()
    for text, error in (([""], ValueError), ([" \n\t"], ValueError), ("a ball", TypeError), ([None], TypeError)):
        with pytest.raises(error):
            tokenize(text)
    assert tokenize([]).shape == (0, 77)


@given(st.lists(st.text("abcde fg", max_size=20).filter(str.strip), min_size=1, max_size=5), st.integers(3, 12))
@settings(max_examples=50, deadline=None)
def test_rows_of_the_word_tokenizer(texts, length):
    tokenize = word_tokenizer(word_vocabulary(texts), length)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = tokenize(texts)
    ends = rows.argmax(1)
    for row, end, text in zip(rows, ends.tolist(), texts):
        words = text.split()
        assert row[0] == tokenize.start and row[end] == tokenize.end and (row[end + 1:] == 0).all()
        assert [tokenize.words[i] for i in row[1:end]] == words[:length - 2]


def test_unknown_words_are_named():
    with pytest.warns(UserWarning, match="zeppelin"):
        row = word_tokenizer(WORDS)(["a zeppelin"])[0]
    assert row[2] == 1


@pytest.mark.parametrize("vocab", [WORDS[:-1], WORDS[1:], [*WORDS[:3], *WORDS[2:]], []])
def test_wrong_vocabularies_are_refused(vocab):
    with pytest.raises(ValueError, match="vocab"):
        word_tokenizer(vocab)


# sizes


@pytest.mark.parametrize(("name", "size", "grid"), [("RN50", 224, 7), ("RN50x16", 384, 12), ("ViT-B-16", 224, 14)])
def test_published_sizes_are_openais(name, size, grid):
    config = clip_config(name)
    assert config["quick_gelu"] and config["vision_cfg"]["image_size"] == size == grid * cell_size(config)


@pytest.mark.parametrize("config", [SIZES, VIT])
def test_build_is_repeatable_and_leaves_the_random_state(config):
    state = torch.get_rng_state()
    first, second, other = (build_clip(config, WORDS, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    pairs = zip(first.model.state_dict().values(), second.model.state_dict().values())
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.model.token_embedding.weight, other.model.token_embedding.weight)
    assert not first.model.training and "vocab_size" not in config["text_cfg"]


@pytest.mark.parametrize("options", [
    {"config": {"embed_dim": 3}}, {"config": "RN49"}, {"config": VIT},  # gScoreCAM needs a ResNet
    {"config": {**SIZES, "vision_cfg": {**SIZES["vision_cfg"], "image_size": 70}}},
    {"config": {**SIZES, "text_cfg": {**SIZES["text_cfg"], "vocab_size": 4}}},
    {"config": SIZES, "block": "layer3"}, {"config": SIZES, "tokens": "lavis"},
    {"config": SIZES, "precision": "float16"},
])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError):
        load_clip(NAME, "random", vocab=WORDS, **options)


# the adapter


def test_roles_and_card(tiny, picture):
    assert isinstance(tiny, Explainer) and isinstance(tiny, Matcher)
    assert tiny.card["grid"] == (2, 2) and tiny.card["block"] == "layer4" and tiny.card["n_channels"] == 20
    assert tiny.card["weights"] == "random" and tiny.card["name"] == NAME and tiny.protocol == "gscorecam"
    maps = tiny.maps(picture, PHRASES)
    assert maps.shape == (3, 2, 2) and maps.dtype == torch.float32 and maps.min() >= 0
    assert tiny.maps(picture, []).shape == (0, 2, 2)
    several = tiny.maps_batch([picture, picture], [PHRASES, PHRASES[:1]])
    assert torch.equal(several[0], maps) and torch.allclose(several[1], maps[:1], rtol=1e-4)


def test_scores_are_open_clips_logits(tiny, picture):
    model, pixels = tiny.clip.model, tiny.pixels([picture, picture.rotate(90)])
    with torch.no_grad():
        expected = model.get_logits(pixels, tiny.clip.tokenize(PHRASES))[0]
    assert torch.allclose(tiny.score([picture, picture.rotate(90)], PHRASES), expected, rtol=1e-4, atol=1e-5)
    assert torch.allclose(tiny.explain(picture, PHRASES)[1], expected[0], rtol=1e-4, atol=1e-5)
    assert tiny.score([], PHRASES).shape == (0, 3) and tiny.score([picture], []).shape == (1, 0)


# weights


def test_checkpoint_files_in_every_safe_form(tiny, picture, tmp_path):
    from safetensors.torch import save_file

    state = tiny.clip.model.state_dict()
    save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pt")
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, tmp_path / "c.pt")
    expected = tiny.maps(picture, PHRASES)
    for name in ("a.safetensors", "b.pt", "c.pt"):
        model = load_model(NAME, tmp_path / name, config=SIZES, vocab=WORDS, seed=5, n_channels=20)
        assert torch.allclose(model.maps(picture, PHRASES), expected, rtol=1e-4)
        assert model.card["weights"] == name and len(model.card["sha256"]) == 64


def test_a_folder_of_the_zoo(tiny, picture, tmp_path):
    card = {"name": "small", "block": "layer4", "tokens": "none", "n_channels": 20}
    save_model(tmp_path / "small", tiny.clip.model, tiny.clip.config, WORDS, card)
    model = load_clip(NAME, tmp_path / "small")
    assert model.n_channels == 20 and model.maps(picture, PHRASES).shape == (3, 2, 2)
    assert torch.allclose(model.score([picture], PHRASES), tiny.score([picture], PHRASES), atol=0.1)


def _archive(state: dict, path: Path) -> Path:
    """A TorchScript archive with a state's tensors, in the form of OpenAI's files: half precision and three numbers."""
    root = torch.nn.Module()
    for key, value in {**state, "input_resolution": torch.tensor(64), "vocab_size": torch.tensor(9)}.items():
        *folders, name = key.split(".")
        at = root
        for folder in folders:
            if folder not in at._modules:
                at.add_module(folder, torch.nn.Module())
            at = at._modules[folder]
        at.register_buffer(name, value.half() if value.is_floating_point() else value)
    torch.jit.script(root).save(str(path))
    return path


def test_only_openais_own_archives_are_opened(tiny, picture, tmp_path, monkeypatch):
    path = _archive(tiny.clip.model.state_dict(), tmp_path / "RN50x16.pt")
    opened = []
    load = torch.jit.load
    monkeypatch.setattr(torch.jit, "load", lambda *a, **k: opened.append(a) or load(*a, **k))
    with pytest.raises(ValueError, match="OpenAI"):
        read_clip_state(path)
    assert not opened
    known = f"https://example.org/{clip_loading.file_sha256(path)}/RN50x16.pt"
    monkeypatch.setattr(clip_loading, "published_address", lambda name: known)
    model = load_clip(NAME, path, config=SIZES, vocab=WORDS, n_channels=20)
    assert opened and model.model.visual.conv1.weight.dtype == torch.float32
    assert torch.allclose(model.score([picture], PHRASES), tiny.score([picture], PHRASES), atol=0.1)


def test_the_official_file_is_checked_by_its_address():
    from open_clip.pretrained import get_pretrained_url

    for name in ("RN50x16", "ViT-B-16", "RN50"):
        assert len(clip_loading.published_address(name).split("/")[-2]) == 64
    assert find_model(NAME).checkpoint == get_pretrained_url("RN50x16", "openai")


# how a picture is squashed


@pytest.mark.parametrize("size", [(120, 70), (40, 90), (64, 64), (1, 300)])
def test_bilinear_squashing_is_gscorecams_own(tiny, size):
    """Its load_clip puts torchvision's Resize((n, n)), bilinear, before CLIP's own bicubic resize and crop."""
    from torchvision import transforms as T

    from qgcam_lib.models.common.device import MEAN, STD

    image, n = noise(*size), 64
    clips_own = [T.Resize(n, T.InterpolationMode.BICUBIC), T.CenterCrop(n), T.ToTensor(), T.Normalize(MEAN, STD)]
    theirs = T.Compose([T.Resize((n, n)), *clips_own])(image)
    published = load_clip(NAME, "random", config=SIZES, vocab=WORDS, n_channels=20, squash="bilinear")
    torch.testing.assert_close(published.pixels([image])[0], theirs, rtol=0, atol=1e-6)
    assert (published.card["squash"], tiny.card["squash"]) == ("bilinear", "bicubic")
    gap = float((tiny.pixels([image])[0] - theirs).abs().max())
    assert gap == 0 if size == (64, 64) else gap > 0.1
