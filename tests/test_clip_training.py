"""The mini CLIP's training: what is known of a pair, the loss, a stop in the middle, and the entry in the zoo."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qgcam_lib.finetune.batches import load_training_set
from qgcam_lib.finetune.clip import (
    MINI_CLIP,
    ClipRecipe,
    channels,
    clip_sizes,
    contrast,
    image_cells,
    token_ids,
    train_clip,
)
from qgcam_lib.finetune.pairs import Truths, draw_pairs
from qgcam_lib.miniworld import ensure
from qgcam_lib.models.clip.network import build_clip, encode_texts, word_vocabulary

TINY = clip_sizes({
    **MINI_CLIP.model,
    "embed_dim": 16,
    "vision_cfg": {**MINI_CLIP.model["vision_cfg"], "image_size": 32, "width": 4},
    "text_cfg": {**MINI_CLIP.model["text_cfg"], "width": 16, "heads": 2, "layers": 1},
})
SHORT = ClipRecipe(steps=6, batch=8, texts=4, sentences=0.3, warmup=2, log_every=2, images=40, workers=1)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return ensure(tmp_path_factory.mktemp("world") / "world", "train", n_train=40, progress=False)


@pytest.fixture(scope="module")
def data(root, tmp_path_factory):
    return load_training_set(root, 32, cache=tmp_path_factory.mktemp("cache"))


def test_the_table_of_truths_is_the_slow_rule(data):
    phrases = sorted({mention.words for text in data.maker.texts for mention in text.mentions})
    phrases += [("a", "unicorn"), ("red", "striped", "unicorn")]
    slow = [[data.maker.may_be_true(words, text) for words in phrases] for text in data.maker.texts]
    np.testing.assert_array_equal(Truths(data.maker)(range(len(data.maker.texts)), phrases), slow)


@pytest.mark.parametrize("sentences", [0.0, 1.0])
def test_a_batch_calls_nothing_false_that_is_said_or_could_be_true(data, sentences):
    recipe = replace(SHORT, sentences=sentences)
    batch = draw_pairs(data, Truths(data.maker), recipe, 0)
    assert not (batch.own & batch.false).any() and batch.own.any(1).all() and batch.false.any(1).all()
    assert len(set(batch.texts)) == len(batch.texts)
    if not sentences:
        rng = np.random.default_rng([recipe.seed, 0])
        rng.random()
        rows = np.sort(rng.choice(len(data.pixels), recipe.batch, replace=False))
        for row, false in zip(rows, batch.false):
            for words, wrong in zip(batch.texts, false):
                assert bool(wrong) <= (not data.maker.may_be_true(words, data.maker.texts[row]))


def test_two_workers_share_the_batch_of_one(data):
    truths, two = Truths(data.maker), replace(SHORT, workers=2, sentences=0.0)
    whole = draw_pairs(data, truths, replace(two, workers=1), 3)
    parts = [draw_pairs(data, truths, two, 3, worker) for worker in (0, 1)]
    assert torch.equal(parts[0].pixels, whole.pixels[::2]) and torch.equal(parts[1].pixels, whole.pixels[1::2])
    assert set(whole.texts) == {text for part in parts for text in part.texts}


def test_the_contrast_is_clips_where_every_picture_has_one_text():
    scores, own = torch.randn(6, 6), torch.eye(6, dtype=torch.bool)
    target = torch.arange(6)
    usual = (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2
    torch.testing.assert_close(contrast(scores, own, ~own), usual)


def test_unknown_pairs_and_other_own_texts_do_not_reach_the_loss():
    scores = torch.randn(3, 5, requires_grad=True)
    own, false = torch.zeros(3, 5, dtype=torch.bool), torch.zeros(3, 5, dtype=torch.bool)
    own[0, 0] = True
    false[0, 3] = false[2, 0] = True
    contrast(scores, own, false).backward()
    touched = scores.grad != 0
    assert touched.nonzero().tolist() == [[0, 0], [0, 3], [2, 0]]
    assert scores.grad[0, 0] < 0 < scores.grad[0, 3]
    nothing = contrast(scores, torch.zeros_like(own), false)
    assert nothing == 0 and contrast(scores, own, torch.zeros_like(false)).abs() < 1e-6


def test_the_training_pass_is_open_clips():
    words = word_vocabulary(["a red ball", "the big dog on the left"])
    built = build_clip(TINY.model, words)
    texts = [("a", "red", "ball"), ("the", "big", "dog", "on", "the", "left")]
    ids, pixels = token_ids(built.tokenize, texts), torch.randn(2, 3, 32, 32)
    assert ids.shape == (2, 8) and built.grid == TINY.grid == (2, 2)
    with torch.no_grad():
        padded = built.tokenize([" ".join(text) for text in texts])
        torch.testing.assert_close(encode_texts(built.model, ids), built.model.encode_text(padded, normalize=True))
        cells = image_cells(built.model.visual, pixels)
        torch.testing.assert_close(built.model.visual.attnpool(cells), built.model.encode_image(pixels))
    assert cells.shape == (2, channels(TINY.model), 2, 2)


def test_a_training_goes_on_to_the_bit_and_refuses_another_recipe(root, tmp_path):
    whole = train_clip(root, recipe=SHORT, config=TINY, progress=False)
    train_clip(root, tmp_path, recipe=SHORT, config=TINY, stop_at=3, progress=False)
    resumed = train_clip(root, tmp_path, recipe=SHORT, config=TINY, progress=False)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    assert list(resumed.log.columns) == ["step", "seconds", "rate", "contrast", "found", "words", "scale"]
    assert np.isfinite(resumed.log[["contrast", "words"]]).all(axis=None)
    with pytest.raises(ValueError, match="word_weight"):
        train_clip(root, tmp_path, recipe=replace(SHORT, word_weight=0.5), config=TINY, progress=False)


def test_training_lowers_the_loss(root):
    recipe = replace(SHORT, steps=40, log_every=10, sentences=0.0)
    log = train_clip(root, recipe=recipe, config=TINY, progress=False).log
    assert log.contrast.iloc[-1] < log.contrast.iloc[0] and log.words.iloc[-1] < log.words.iloc[0]
