"""The training recipe: labels, determinism, resume, workers, and that a step learns."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from qgcam_lib.finetune.batches import TokenTable, draw_batch, load_training_set
from qgcam_lib.finetune.itm import MINI, ItmRecipe, itm_losses, mini_model, start_itm, text_states, train_itm
from qgcam_lib.finetune.loop import train_step
from qgcam_lib.finetune.texts import TextMaker, head_and_attributes, mirrored, read_texts, singular
from qgcam_lib.miniworld import ensure
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer

TINY = replace(
    MINI,
    image_size=32,
    patch_size=16,
    vision_width=32,
    vision_depth=1,
    vision_heads=2,
    text_width=32,
    text_depth=2,
    text_heads=2,
    text_mlp_width=64,
)
SHORT = ItmRecipe(steps=12, batch=6, texts=4, warmup=2, log_every=2, images=40, workers=1)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return ensure(tmp_path_factory.mktemp("world"), "train", n_train=40, progress=False)


@pytest.fixture(scope="module")
def data(root, tmp_path_factory):
    return load_training_set(root, TINY.image_size, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def equal(a, b):
    return all(torch.equal(value, b.state_dict()[name]) for name, value in a.state_dict().items())


@pytest.mark.parametrize(
    "phrase, head, attributes",
    [
        ("a striped red kite", "kite", {"striped", "red"}),
        ("two dogs", "dogs", set()),
        ("the left dog", "dog", {"left"}),
        ("the small dog on the right", "dog", {"small", "right"}),
        ("hair", "hair", set()),
        ("a pair of black shoes", "shoes", {"black"}),
    ],
)
def test_a_phrase_is_a_head_and_attributes(phrase, head, attributes):
    found = head_and_attributes(phrase.split())
    assert (found[0], set(found[1])) == (head, attributes)


def test_plurals_and_mirrors():
    assert [singular(w) for w in ("boxes", "horses", "bus", "glass", "children")] == [
        "box",
        "horse",
        "bus",
        "glass",
        "child",
    ]
    said = "the left dog is to the right of a car".split()
    assert mirrored(mirrored(said)) == tuple(said) and mirrored(said)[1] == "right"


def test_sentences_are_read_without_annotations(root, tmp_path):
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Sentences").symlink_to(root / "Sentences")
    (tmp_path / "train.txt").write_text((root / "train.txt").read_text())
    assert read_texts(tmp_path) == read_texts(root)


def test_false_texts_contradict_the_sentences_and_true_ones_are_said(data):
    rng = np.random.default_rng(0)
    for index, text in enumerate(data.maker.texts):
        words, labels = data.maker.phrases(index, 8, rng)
        assert labels == [1] * 4 + [0] * 4
        assert {w for w, label in zip(words, labels) if label} <= {m.words for m in text.mentions}
        assert not any(data.maker.may_be_true(w, text) for w, label in zip(words, labels) if not label)
        sentences, labels = data.maker.sentences(index, 4, rng)
        assert set(sentences[:2]) <= set(text.sentences) and not set(sentences[2:]) & set(text.sentences)


def test_kin_nouns_are_not_taken_for_false():
    from qgcam_lib.finetune.texts import ImageText, Mention

    both = ImageText(
        "0",
        (("a", "man"), ("a", "person")),
        (Mention(("a", "man"), "1", 0, 0, 2), Mention(("a", "person"), "1", 1, 0, 2)),
    )
    one = ImageText("1", (("a", "man"),), (Mention(("a", "tall", "man"), "2", 0, 0, 3),))
    maker = TextMaker([both, one])
    assert maker.may_be_true(("a", "person"), one) and not maker.may_be_true(("a", "dog"), one)


def test_batches_depend_on_seed_and_step_only(data):
    table = TokenTable(make_tokenizer(build_vocabulary(data.maker.captions)), 48)
    first, again, other = (draw_batch(data, table, SHORT, step) for step in (3, 3, 4))
    assert torch.equal(first.ids, again.ids) and torch.equal(first.pixels, again.pixels)
    assert not torch.equal(first.pixels, other.pixels)
    assert not torch.equal(first.pixels, draw_batch(data, table, replace(SHORT, seed=1), 3).pixels)


def test_workers_share_a_batch(data):
    table = TokenTable(make_tokenizer(build_vocabulary(data.maker.captions)), 48)
    recipe = replace(SHORT, sentences=0.0)
    whole = draw_batch(data, table, recipe, 0)
    parts = [draw_batch(data, table, replace(recipe, workers=2), 0, worker) for worker in (0, 1)]
    for worker, part in enumerate(parts):
        assert torch.equal(part.pixels, whole.pixels[worker::2]) and torch.equal(part.has, whole.has[worker::2])
        width = part.ids.shape[1]
        assert torch.equal(part.ids, whole.ids.unflatten(0, (6, 4))[worker::2].flatten(0, 1)[:, :width])


def test_the_shared_pass_equals_lavis(data):
    tokenizer = make_tokenizer(build_vocabulary())
    model = mini_model(TINY, tokenizer).eval()
    texts = ["a red ball", "two dogs on the grass", "a man", "a striped kite flies in the sky"]
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ids, mask = TokenTable(tokenizer, 48)([t.split() for t in texts])
    with torch.no_grad():
        ours = model.itm_head(
            text_states(model.text_encoder, ids, mask, model.visual_encoder.forward_features(pixels))[:, 0]
        )
        theirs = model({"image": pixels.repeat_interleave(2, 0), "text_input": texts}, match_head="itm")
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_steps_on_one_batch_lower_the_loss(data):
    training = start_itm(data, replace(SHORT, steps=1000, learning_rate=3e-3), TINY)
    batch = draw_batch(data, TokenTable(training.model.tokenizer, 48), replace(SHORT, sentences=0.0), 0)
    losses = [train_step(training, batch)["itm"] for _ in range(60)]
    assert losses[-1] < 0.6 * losses[0]


def test_every_weight_is_trained(data):
    training = start_itm(data, SHORT, TINY)
    batch = draw_batch(data, TokenTable(training.model.tokenizer, 48), replace(SHORT, sentences=1.0), 0)
    itm_losses(training.model, training.extra, batch, SHORT)["total"].backward()
    assert [name for name, p in training.model.named_parameters() if p.grad is None] == []


def test_kill_and_resume_give_the_same_weights(root, tmp_path):
    whole = train_itm(root, recipe=SHORT, config=TINY, progress=False)
    train_itm(root, tmp_path, recipe=SHORT, config=TINY, stop_at=5, progress=False)
    resumed = train_itm(root, tmp_path, recipe=SHORT, config=TINY, progress=False)
    assert resumed.step == SHORT.steps and equal(whole.model, resumed.model)
    pd.testing.assert_frame_equal(
        whole.log.drop(columns="seconds"), resumed.log.drop(columns="seconds"), check_exact=True
    )


def test_another_seed_gives_other_weights(root):
    a, b = (train_itm(root, recipe=replace(SHORT, seed=seed, steps=2), config=TINY, progress=False) for seed in (0, 1))
    assert not equal(a.model, b.model)


def test_a_run_cut_short_on_the_plateau_equals_one_planned_so(root, tmp_path):
    long, cut = replace(SHORT, steps=40, cooldown=0.5), replace(SHORT, steps=12, cooldown=0.5)
    train_itm(root, tmp_path, recipe=long, config=TINY, stop_at=5, progress=False)
    resumed = train_itm(root, tmp_path, recipe=cut, config=TINY, progress=False)
    assert equal(resumed.model, train_itm(root, recipe=cut, config=TINY, progress=False).model)


def test_a_checkpoint_of_another_training_is_refused(root, tmp_path):
    train_itm(root, tmp_path, recipe=SHORT, config=TINY, stop_at=2, progress=False)
    with pytest.raises(ValueError, match="batch"):
        train_itm(root, tmp_path, recipe=replace(SHORT, batch=4), config=TINY, progress=False)
    with pytest.raises(ValueError, match="data"):
        train_itm(root, tmp_path, recipe=replace(SHORT, images=40), config=replace(TINY, image_size=48), progress=False)


SCRIPT = """
import sys
from dataclasses import replace
import torch
from qgcam_lib.finetune.itm import MINI, ItmRecipe, train_itm
if __name__ == "__main__":
    tiny = replace(MINI, **eval(sys.argv[3]))
    recipe = ItmRecipe(steps=3, batch=6, texts=4, warmup=2, log_every=1, images=40, workers=2, sentences=0.0)
    train_itm(sys.argv[1], sys.argv[2], recipe=recipe, config=tiny, progress=False)
"""


@pytest.mark.nightly
def test_two_workers_take_the_steps_of_one(root, tmp_path):
    """Without sentence steps, whose contrast loss looks at a worker's own pictures, only rounding can differ."""
    sizes = {k: v for k, v in TINY.to_dict().items() if v != MINI.to_dict()[k]}
    (tmp_path / "run.py").write_text(SCRIPT)
    subprocess.run(
        [sys.executable, "-W", "ignore", "run.py", str(root), str(tmp_path / "work"), repr(sizes)],
        cwd=tmp_path,
        check=True,
        timeout=300,
    )
    two = pd.read_csv(tmp_path / "work" / "log.csv")
    one = train_itm(root, recipe=replace(SHORT, steps=3, log_every=1, sentences=0.0), config=TINY, progress=False).log
    np.testing.assert_allclose(two[["itm", "words"]], one[["itm", "words"]], rtol=1e-3)
