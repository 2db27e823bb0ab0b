"""The matcher's pass and losses, and the sentences that it learns from."""

from dataclasses import replace

import pytest
import torch
from tiny import BLIP

from qgcam_lib.finetune.albef import ItmRecipe, draw_batch, itm_losses, mini_model, start_itm, text_states
from qgcam_lib.finetune.batches import TokenTable, load_training_set
from qgcam_lib.finetune.texts import head_and_attributes, mirrored, read_texts, singular
from qgcam_lib.miniworld import ensure
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer

SHORT = ItmRecipe(steps=12, batch=6, texts=4, warmup=2, log_every=2, images=40)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return ensure(tmp_path_factory.mktemp("world"), "train", n_train=40, progress=False)


@pytest.fixture(scope="module")
def data(root, tmp_path_factory):
    return load_training_set(root, BLIP.image_size, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("phrase, head, attributes", [
    ("a striped red kite", "kite", {"striped", "red"}), ("two dogs", "dogs", set()), ("hair", "hair", set()),
    ("the small dog on the right", "dog", {"small", "right"}), ("a pair of black shoes", "shoes", {"black"}),
])
def test_a_phrase_is_a_head_and_attributes(phrase, head, attributes):
    found = head_and_attributes(phrase.split())
    assert (found[0], set(found[1])) == (head, attributes)


def test_plurals_and_mirrors():
    for plural, single in (("boxes", "box"), ("horses", "horse"), ("bus", "bus"), ("glass", "glass")):
        assert singular(plural) == single
    assert singular("children") == "child"
    said = "the left dog is to the right of a car".split()
    assert mirrored(mirrored(said)) == tuple(said) and mirrored(said)[1] == "right"


def test_sentences_are_read_without_annotations(root, tmp_path):
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Sentences").symlink_to(root / "Sentences")
    (tmp_path / "train.txt").write_text((root / "train.txt").read_text())
    assert read_texts(tmp_path) == read_texts(root)


def test_the_shared_pass_equals_lavis(data):
    tokenizer = make_tokenizer(build_vocabulary())
    model = mini_model(BLIP, tokenizer).eval()
    texts = ["a red ball", "two dogs on the grass", "a man", "a striped kite flies in the sky"]
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ids, mask = TokenTable(tokenizer, 48)([t.split() for t in texts])
    with torch.no_grad():
        seen = model.visual_encoder.forward_features(pixels)
        ours = model.itm_head(text_states(model.text_encoder, ids, mask, seen)[:, 0])
        theirs = model({"image": pixels.repeat_interleave(2, 0), "text_input": texts}, match_head="itm")
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_every_weight_is_trained(data):
    training = start_itm(data, SHORT, BLIP)
    batch = draw_batch(data, TokenTable(training.model.tokenizer, 48), replace(SHORT, sentences=1.0), 0)
    itm_losses(training.model, training.extra, batch, SHORT)["total"].backward()
    assert [name for name, p in training.model.named_parameters() if p.grad is None] == []
