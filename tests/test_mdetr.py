"""MDETR: its key map against the names of the authors' code, its geometry, its words, and bad checkpoints."""

import argparse
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from qgcam_lib.data.tricd.pairs import load_tricd
from qgcam_lib.models import load_model
from qgcam_lib.models.common.checkpoints import load_state, rename
from qgcam_lib.models.common.sources import hub_folder
from qgcam_lib.models.mdetr.detector import (
    OFFICIAL_NAMES,
    SPARE_NAMES,
    MdetrDetector,
    byte_tokenizer,
    mdetr_size,
    phrase_scores,
    read_mdetr_state,
    roberta_tokenizer,
    token_positions,
)
from qgcam_lib.models.mdetr.network import MDETR_CONFIGS, Backbone, ImagePatches, Mdetr, MdetrConfig, sine_places
from qgcam_lib.models.roles import Detector

REAL = Path(__file__).parents[2] / "shared" / "realdata" / "tricd" / "TRICD_grounding_val.json"
TINY = MdetrConfig("resnet18", width=32, heads=4, encoder_layers=2, decoder_layers=2, feedforward=64, queries=12,
                   align_width=8, text_words=300, text_width=32, text_layers=2, text_heads=4, text_feedforward=64,
                   text_positions=130, shorter=64, longest=100)
CAPTION = "A small dog  chases two zebras"
DOG, ZEBRAS = [(2, 11)], [(20, 30)]
SPARE = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer(["a small dog chases", "two zebras chase a dog"], 300)


@pytest.fixture(scope="module")
def detector(tokenizer):
    torch.manual_seed(0)
    model = Mdetr(TINY)
    with torch.no_grad():
        model.queries.mul_(5)  # so that untrained queries differ
    return MdetrDetector(model, tokenizer)


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(1)
    small = replace(TINY, backbone="tf_efficientnet_b0")
    return Mdetr(small).eval(), Mdetr(small).eval()


def picture(seed, width, height):
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def official_state(model):
    """A model's tensors as the authors' files name them, with what those hold besides."""
    width = model.config.text_width
    spare = (torch.arange(model.config.text_positions)[None], torch.zeros(width, width), torch.zeros(width))
    return {**{rename(key, OFFICIAL_NAMES): value.clone() for key, value in model.state_dict().items()},
            **{f"transformer.text_encoder.{name}": value for name, value in zip(SPARE, spare)}}


def load_official(model, state):
    return load_state(model, state, may_ignore=SPARE_NAMES, names=OFFICIAL_NAMES)


# -- the key map: names and shapes of the authors' modules, built from their code (its commit of 2023) with timm 0.4.5;
#    the position numbers, which transformers 4.5.1 stored, added: count, SHA-256 of the sorted lines "name 3x4x5"

PUBLISHED = {
    "mdetr-r101": (921, "e91a2ec4052c593505a97aba49e2b42a0fab8b561f61e35a712a21fbd9b39915"),
    "mdetr-enb3": (890, "dc299f1ad94e565677afb497b33386d01bd6fa636a6aca90d56ac14c9782683d"),
    "mdetr-enb5": (1132, "861df20563808b1d96c61b4c9ddb292591c9d28b8f3a3237cfbb7b62b4bdab6c"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_key_map_gives_all_published_names_and_shapes(name):
    with torch.device("meta"):
        state = official_state(Mdetr(MDETR_CONFIGS[name]))
    lines = sorted(f"{key} {'x'.join(map(str, value.shape))}" for key, value in state.items())
    assert (len(lines), hashlib.sha256("\n".join(lines).encode()).hexdigest()) == PUBLISHED[name]


def test_a_loaded_checkpoint_is_the_model_it_came_from(pair):
    one, other = pair
    assert load_official(other, official_state(one)) == [f"transformer.text_encoder.{name}" for name in SPARE]
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("named, change", [
    ("class_embed.bias", lambda s: s.pop("class_embed.bias")),
    ("token_head.bias", lambda s: s.update({"token_head.bias": torch.zeros(256)})),  # ours, not theirs
    ("query_embed.weight", lambda s: s.update({"query_embed.weight": torch.zeros(25, 32)})),
])
def test_what_does_not_fit_is_named_and_changes_nothing(pair, named, change):
    one, other = pair
    state = {key: value + 1 for key, value in official_state(one).items()}
    before = {key: value.clone() for key, value in other.state_dict().items()}
    change(state)
    with pytest.raises(ValueError, match=named):
        load_official(other, state)
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())


def test_the_layers_of_efficientnet_keep_their_activation():
    """Freezing must not swallow the activation that timm keeps in the same module; the eps is the authors' 1e-5."""
    torch.manual_seed(0)
    body = Backbone("tf_efficientnet_b0").eval()
    first, pixels = body.body.bn1, torch.randn(1, 3, 64, 64)
    first.running_var.fill_(3e-5)
    with torch.no_grad():
        before = body.body.conv_stem(pixels)
        expected = torch.nn.functional.silu(before / (3e-5 + 1e-5) ** 0.5)
        assert torch.allclose(first(before.clone()), expected, rtol=1e-4)


# -- files

def save(path, content):
    torch.save(content, path)
    return path


def test_the_average_is_taken_from_a_file_of_the_authors_form(tmp_path):
    """Their files hold both weights, the optimizer and the command line, with a path in it."""
    args = argparse.Namespace(backbone="resnet101", lr=1e-4, output_dir=Path("/experiments/%j"), masks=False)
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    content = {"model": {"a": torch.zeros(1)}, "model_ema": {"a": torch.ones(1)}, "optimizer": optimizer.state_dict(),
               "epoch": 39, "args": args}
    path = save(tmp_path / "c.pth", content)
    assert read_mdetr_state(path)["a"] == 1
    assert read_mdetr_state(save(tmp_path / "n.pth", {**content, "model_ema": None}))["a"] == 0
    assert read_mdetr_state(save(tmp_path / "p.pth", {"a": torch.ones(1)}))["a"] == 1
    save_file({"a": torch.ones(1)}, tmp_path / "s.safetensors")
    assert read_mdetr_state(tmp_path / "s.safetensors")["a"] == 1


def test_from_a_file_by_name(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "words")
    config = replace(TINY, text_words=len(tokenizer), backbone="tf_efficientnet_b0")
    model = Mdetr(config).eval()
    zeros = {key: torch.zeros_like(value) for key, value in official_state(model).items()}
    path = save(tmp_path / "own.pth", {"model": zeros, "model_ema": official_state(model)})
    found = load_model("mdetr-r101", path, vocab=tmp_path / "words", config=config)
    assert all(torch.equal(a, b) for a, b in zip(found.model.state_dict().values(), model.state_dict().values()))
    card = found.card
    assert (card["name"], card["weights"], card["ignored_keys"]) == ("mdetr-r101", "own.pth", 3)
    assert card["licence"].startswith("unknown") and len(card["sha256"]) == 64
    with pytest.raises(ValueError, match="301"):
        load_model("mdetr-r101", path, vocab=tmp_path / "words", config=replace(config, text_words=301))


# -- the picture

@pytest.mark.parametrize("size, seen", [((640, 480), (800, 1066)), ((480, 640), (1066, 800)), ((500, 500), (800, 800)),
                                        ((2000, 500), (333, 1332)), ((500, 2000), (1332, 333)),
                                        ((30, 20), (800, 1200)), ((1000, 800), (800, 1000)),
                                        ((1333, 800), (800, 1333)), ((333, 500), (1201, 800))])
def test_sizes_as_the_authors_code_gives_them(size, seen):
    assert mdetr_size(*size) == seen


@given(st.integers(1, 4000), st.integers(1, 4000))
def test_a_size_keeps_within_its_bounds_and_turns_with_the_picture(width, height):
    rows, columns = mdetr_size(width, height)
    assert 1 <= min(rows, columns) <= 800 and mdetr_size(height, width) == (columns, rows)
    ratio = max(width, height) / min(width, height)
    if ratio < 20:
        assert max(rows, columns) <= 1333 + ratio / 2  # the shorter side was rounded to the nearest
        assert rows / columns == pytest.approx(height / width, rel=0.02)


def test_boxes_follow_the_size_of_the_picture_as_given(detector):
    """The same picture, stored at twice the size, is the same input; its boxes are twice as large."""
    once = picture(0, 64, 64)
    twice = once.resize((128, 128), Image.Resampling.NEAREST)
    a, b = (detector.detect(image, CAPTION, [DOG]) for image in (once, twice))
    assert np.allclose(2 * a.boxes, b.boxes, atol=0.5) and a.boxes.max() > 1
    tall = detector.detect(picture(0, 50, 200), CAPTION, [DOG]).boxes
    centres = (tall[:, :2] + tall[:, 2:]) / 2
    assert (centres >= 0).all() and (centres <= [50, 200]).all() and centres[:, 1].max() > 50


# -- words, spans and scores

def test_a_phrase_has_the_highest_share_of_its_tokens():
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]]))
    assert torch.allclose(phrase_scores(logits, [[0, 1], [2]]), torch.tensor([[0.2, 0.7], [0.3, 0.1]]))


def test_spans_find_their_tokens_with_the_authors_fallback(tokenizer):
    encoding = tokenizer([CAPTION])
    words = tokenizer.convert_ids_to_tokens(encoding.input_ids[0])
    text = [CAPTION[slice(*span)] for span in encoding.encodings[0].offsets]
    expected = [k for k, (start, end) in enumerate(encoding.encodings[0].offsets) if start >= 2 and 2 < end <= 11]
    assert token_positions(encoding, 0, DOG) == expected and "".join(text[k] for k in expected) == "smalldog"
    assert token_positions(encoding, 0, [(1, 11)]) == expected      # starts on a space: one further
    assert token_positions(encoding, 0, [(2, 13)]) == expected      # ends on two spaces: two back
    assert token_positions(encoding, 0, [(11, 13)]) == []           # nothing but spaces
    both = token_positions(encoding, 0, [*ZEBRAS, *DOG])
    assert both == sorted({*expected, *token_positions(encoding, 0, ZEBRAS)}) and words[0] == "<s>" and 0 not in both
    assert token_positions(encoding, 0, DOG, last=expected[0]) == []
    assert token_positions(tokenizer(["x", CAPTION]), 1, DOG) == expected


@settings(deadline=None, max_examples=60)
@given(st.text("abcé漢🙂 ", min_size=1, max_size=20), st.data())
def test_a_phrase_of_any_script_gets_tokens_that_cover_it(tokenizer, text, data):
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    encoding = tokenizer([text])
    found = token_positions(encoding, 0, [(start, end)])
    if " " not in (text[start], text[end - 1]):
        assert found and found == list(range(found[0], found[-1] + 1))
        offsets = [encoding.encodings[0].offsets[position] for position in found]
        assert offsets[0][0] <= start and offsets[-1][1] >= end
    elif not text[start:end].strip():
        assert found == []


@pytest.mark.skipif(not REAL.is_file(), reason="no real TRICD files (../shared/realdata/tricd)")
def test_the_tokens_of_every_real_phrase_spell_it():
    data = load_tricd(REAL)
    tokenizer = byte_tokenizer(sorted({pair.caption for pair in data.pairs}))
    for pair in data.pairs:
        encoding = tokenizer([pair.caption])
        for phrase in pair.phrases:
            offsets = [encoding.encodings[0].offsets[k] for k in token_positions(encoding, 0, phrase.spans)]
            found, asked = ("".join(pair.caption[start:end] for start, end in part) for part in (offsets, phrase.spans))
            assert found.replace(" ", "") == asked.replace(" ", ""), (pair.id, phrase.id)


# -- the detector

def test_every_query_for_every_phrase(detector):
    assert isinstance(detector, Detector)
    found = detector.detect(picture(1, 90, 60), CAPTION, [DOG, ZEBRAS, DOG])
    assert found.phrases.tolist() == [0] * 12 + [1] * 12 + [2] * 12
    assert np.array_equal(found.boxes[:12], found.boxes[12:24]) and np.array_equal(found.scores[:12], found.scores[24:])
    assert len(np.unique(found.scores[:12])) == 12 and len(np.unique(found.boxes[:12], axis=0)) == 12
    assert (found.scores > 0).all() and (found.scores < 1).all()
    other = detector.detect(picture(2, 90, 60), CAPTION, [DOG])
    assert not np.allclose(other.scores, found.scores[:12], atol=1e-6)
    elsewhere = detector.detect(picture(1, 90, 60), CAPTION.replace("dog", "cat"), [DOG])
    assert not np.allclose(elsewhere.scores, found.scores[:12], atol=1e-6)


def test_a_batch_equals_one_by_one(detector, tmp_path):
    picture(1, 90, 60).save(tmp_path / "a.png")
    same = picture(2, 40, 100)
    images = [tmp_path / "a.png", same, same, str(tmp_path / "a.png"), picture(3, 64, 64), same]
    captions = [CAPTION, "a dog", "two zebras and a small dog behind a fence", CAPTION, "dog", ""]
    phrases = [[DOG, ZEBRAS], [[(0, 5)]], [[(0, 10)], [(15, 26), (34, 41)]], [], [[(0, 3)]], []]
    together = detector.detect_batch(images, captions, phrases)
    assert [len(found) for found in together] == [24, 12, 24, 0, 12, 0]
    for found, *one in zip(together, images, captions, phrases):
        alone = detector.detect(*one)
        assert np.allclose(found.scores, alone.scores, atol=1e-6) and np.allclose(found.boxes, alone.boxes, atol=1e-3)


def test_equal_pictures_are_encoded_once(detector, monkeypatch):
    calls, encode = [], detector.model.encode_image
    monkeypatch.setattr(detector.model, "encode_image", lambda pixels: calls.append(1) or encode(pixels))
    same = picture(1, 64, 64)
    detector.detect_batch([same, picture(2, 64, 64), same], ["a dog"] * 3, [[[(2, 5)]]] * 3)
    assert len(calls) == 2


def test_random_weights_come_from_the_seed_alone():
    before = torch.random.get_rng_state()
    models = [load_model("mdetr-r101", "random", config=TINY, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(before, torch.random.get_rng_state())
    one, two, other = (model.detect(picture(0, 64, 64), CAPTION, [DOG]).scores for model in models)
    assert np.array_equal(one, two) and not np.allclose(one, other)


def test_bad_questions(detector):
    for caption, phrases in (("a dog", [[(0, 6)]]), ("a dog", [[]]), ("a dog", [[(1, 2)]]), ("dog " * 200, [[(0, 3)]])):
        with pytest.raises(ValueError, match="caption|spans|token"):
            detector.detect(picture(0, 64, 64), caption, phrases)


def test_a_phrase_beyond_the_last_position_is_refused_not_scored_as_no_object(tokenizer):
    short = MdetrDetector(Mdetr(replace(TINY, positions=8)), tokenizer)
    caption = "a dog and a dog and a dog and a small dog"
    assert len(short.detect(picture(0, 64, 64), caption, [[(0, 5)]])) == 12
    with pytest.raises(ValueError, match="token"):
        short.detect(picture(0, 64, 64), caption, [[(30, 41)]])


# -- the network

def literal(model, image, ids):
    """MDETR for one pair, written out with plain matrix products: the reference for layers, masks and places."""
    def attend(part, asked, kept, carried):
        heads, width = part.num_heads, part.embed_dim
        weights = zip((asked, kept, carried), part.in_proj_weight.chunk(3), part.in_proj_bias.chunk(3))
        q, k, v = ((x @ w.T + b).view(len(x), heads, width // heads).transpose(0, 1) for x, w, b in weights)
        mixed = ((q @ k.mT) / (width // heads) ** 0.5).softmax(-1) @ v
        return mixed.transpose(0, 1).reshape(len(asked), width) @ part.out_proj.weight.T + part.out_proj.bias

    words = model.text_proj(model.text_encoder(ids).last_hidden_state[0])
    memory = torch.cat([image.patches, words])
    places = torch.cat([image.places, torch.zeros_like(words)])
    for layer in model.encoder:
        memory = layer.norm1(memory + attend(layer.self_attn, memory + places, memory + places, memory))
        memory = layer.norm2(memory + layer.feedforward(memory))
    states = torch.zeros_like(model.queries)
    for layer in model.decoder:
        asking = states + model.queries
        states = layer.norm1(states + attend(layer.self_attn, asking, asking, states))
        states = layer.norm2(states + attend(layer.cross_attn, states + model.queries, memory + places, memory))
        states = layer.norm3(states + layer.feedforward(states))
    states = model.decoder_norm(states)
    return model.token_head(states), model.box_head(states).sigmoid()


@torch.no_grad()
def test_the_network_equals_its_definition_written_out(detector):
    model = detector.model
    images = [model.encode_image(torch.randn(3, *size)) for size in ((64, 96), (96, 64), (160, 64))]
    ids = torch.tensor([[0, 9, 8, 7, 6, 2], [0, 20, 2, 1, 1, 1], [0, 30, 31, 32, 2, 1]])
    found = model(images, ids, (ids != 1).long())
    for k, image in enumerate(images):
        logits, boxes = literal(model, image, ids[k:k + 1, :int((ids[k] != 1).sum())])
        assert torch.allclose(found.logits[k], logits, atol=2e-5) and torch.allclose(found.boxes[k], boxes, atol=1e-5)
    assert torch.allclose(found.query_vectors.norm(dim=-1), torch.ones(3, 12))
    assert torch.allclose(found.token_vectors.norm(dim=-1), torch.ones(3, 6))


@torch.no_grad()
def test_the_order_of_patches_lies_in_their_places_alone(detector):
    image = detector.model.encode_image(torch.randn(3, 96, 96))
    order, ids = torch.randperm(9, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 9, 8, 2]])
    moved = ImagePatches(image.patches[order], image.places[order])
    swapped = ImagePatches(image.patches[order], image.places)
    one, two, three = (detector.model([each], ids, torch.ones_like(ids)).boxes for each in (image, moved, swapped))
    assert torch.allclose(one, two, atol=1e-5) and not torch.allclose(one, three, atol=1e-5)


def test_places_of_a_hand_sized_grid():
    """Two rows, one column, width 4: one wave a side; the row's angles are half a turn and a whole one."""
    half, whole = np.pi, 2 * np.pi
    expected = [[np.sin(half), np.cos(half), np.sin(whole), np.cos(whole)],
                [np.sin(whole), np.cos(whole), np.sin(whole), np.cos(whole)]]
    assert np.allclose(sine_places(2, 1, 4), expected, atol=1e-5)
    fast, slow = sine_places(1, 3, 8)[:, 4:6], sine_places(1, 3, 8)[:, 6:8]
    assert np.allclose(slow[:, 0], np.sin(np.array([1, 2, 3]) / 3 * whole / 100), atol=1e-5)
    assert np.allclose(fast[:, 0], np.sin(np.array([1, 2, 3]) / 3 * whole), atol=1e-5)


def test_all_that_is_missing_is_named_at_once(tmp_path, monkeypatch):
    """Without a network: the checkpoint and the tokenizer, each with the place where it has to lie, in one error."""
    def unreachable(*args, **options):
        raise OSError("no route")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("transformers.utils.hub.TRANSFORMERS_CACHE", str(tmp_path / "hub"))
    with pytest.raises(FileNotFoundError) as error:
        load_model("mdetr-enb5", "official")
    said = str(error.value)
    assert str(tmp_path / "torch" / "checkpoints" / "pretrained_EB5_checkpoint.pth") in said


def test_robertas_words_come_from_a_cache_that_was_carried_here(tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("transformers.utils.hub.TRANSFORMERS_CACHE", str(tmp_path))
    folder = hub_folder("roberta-base") / "snapshots" / ("0" * 40)
    tokenizer.save_pretrained(folder)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text(folder.name)
    for file in folder.iterdir():
        if file.name not in ("vocab.json", "merges.txt"):
            file.unlink()
    again = roberta_tokenizer()
    assert again(CAPTION).input_ids == tokenizer(CAPTION).input_ids and len(again) == len(tokenizer)
    (folder / "merges.txt").unlink()
    with pytest.raises(FileNotFoundError, match="merges.txt"):
        roberta_tokenizer()
