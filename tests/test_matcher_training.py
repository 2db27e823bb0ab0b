"""Matchers for the probes: true and false texts, losses beside the libraries' own, a stop in the middle."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.loss import ClipLoss, SigLipLoss
from PIL import Image

from qgcam_lib.finetune.batches import Sizes, as_input, draw_pictures, load_training_set
from qgcam_lib.finetune.clip import ClipRecipe, clip_sizes, contrast
from qgcam_lib.finetune.joint import (
    MINI_BRIDGETOWER,
    MINI_FLAVA,
    MINI_VILT,
    BridgeTowerTraining,
    FlavaTraining,
    JointRecipe,
    ViltTraining,
    match_loss,
    start_joint,
    train_joint,
)
from qgcam_lib.finetune.pairs import Truths
from qgcam_lib.finetune.statements import (
    RELATIONS,
    MatcherRecipe,
    StatementMaker,
    draw_statements,
    draw_texts,
    excludes,
    phrases_of,
    sentence_parts,
    words_of,
)
from qgcam_lib.finetune.towers import (
    MINI_TOWERS,
    TowersRecipe,
    image_tokens,
    sigmoid_loss,
    start_towers,
    towers_config,
    train_towers,
)
from qgcam_lib.miniworld import ensure

SHORT = {"steps": 6, "looking": 2, "batch": 6, "warmup": 2, "log_every": 2, "images": 40, "workers": 1}
TOWERS = clip_sizes({
    **MINI_TOWERS.model, "embed_dim": 16,
    "vision_cfg": {**MINI_TOWERS.model["vision_cfg"], "image_size": 32, "patch_size": 16, "width": 32, "layers": 1},
    "text_cfg": {**MINI_TOWERS.model["text_cfg"], "width": 32, "heads": 2, "layers": 1},
})  # fmt: skip
LAYER = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 1}
SIDE = {"image_size": 32, "patch_size": 16}
TEXT = {**MINI_BRIDGETOWER.model["text_config"], **LAYER, "num_hidden_layers": 2}
JOINT = {
    ViltTraining: Sizes({**MINI_VILT.model, **LAYER, **SIDE}, 32, 16),
    BridgeTowerTraining: Sizes({"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
                                "text_config": TEXT,
                                "vision_config": {"hidden_size": 64, "num_hidden_layers": 2, **SIDE}}, 32, 16),
    FlavaTraining: Sizes({**MINI_FLAVA.model, "hidden_size": 64, "projection_dim": 64, "text_config": LAYER,
                          "image_config": {**LAYER, **SIDE, "vocab_size": 16}, "multimodal_config": LAYER}, 32, 16),
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return ensure(tmp_path_factory.mktemp("world") / "world", "train", n_train=120, progress=False)


@pytest.fixture(scope="module")
def data(root, tmp_path_factory):
    return load_training_set(root, 32, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def maker(data):
    return StatementMaker(Truths(data.maker))


def test_the_parts_of_a_sentence_are_the_sentence(data):
    for text in data.maker.texts:
        for number, words in enumerate(text.sentences):
            parts = sentence_parts(text, number)
            assert words_of(parts) == words
            kinds = [part.kind for part in parts]
            assert sum(kind in RELATIONS for kind in kinds) <= 1 and set(kinds) <= {"", "phrase", *RELATIONS}


def test_a_relation_denies_its_opposite_both_ways_and_never_itself():
    for a in RELATIONS:
        assert not excludes(a, a)
        assert all(excludes(a, b) == excludes(b, a) for b in RELATIONS)
    assert excludes("left of", "right of") and excludes("on", "under") and not excludes("in", "wearing")


@given(row=st.integers(0, 119), seed=st.integers(0, 10**6), sentence=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_false_text_differs_from_the_true_one_and_has_a_reason(data, maker, row, seed, sentence):
    """The oracle asks the sentences again, phrase by phrase, in the slow way."""
    recipe, text = MatcherRecipe(borrowed=0.2), data.maker.texts[row]
    true, false = draw_texts(maker, row, recipe, np.random.default_rng(seed), sentence)
    assert words_of(true) != words_of(false)
    assert all(data.maker.may_be_true(words, text) for words in phrases_of(true) if words)
    if not all(data.maker.may_be_true(words, text) for words in phrases_of(false)):
        return
    relation = [next((p.kind for p in parts if p.kind in RELATIONS), None) for parts in (true, false)]
    assert None not in relation and maker.certain(row, true)
    exchanged = phrases_of(true)[:2] == phrases_of(false)[:2][::-1]
    assert exchanged if relation[0] == relation[1] else maker.denied(true, relation[1])


def test_the_maker_denies_what_is_never_said_and_asks_nothing_unknown(maker, data):
    for linked in maker.linked:
        for parts in linked:
            said = next(part.kind for part in parts if part.kind in RELATIONS)
            assert not maker.denied(parts, said)
            if said in ("left of", "right of"):
                assert not maker.denied(parts, "behind") and not maker.denied(parts, "in front of")


def test_the_pictures_are_those_of_the_other_recipes_and_two_workers_share_them(data, maker):
    recipe = MatcherRecipe(batch=8, workers=1)
    assert np.array_equal(draw_pictures(data, recipe, 3, 0, recipe.sentences).rows,
                          draw_pictures(data, ClipRecipe(batch=8, workers=1), 3, 0, 0.15).rows)
    whole = draw_statements(data, maker, recipe, 3)
    parts = [draw_statements(data, maker, replace(recipe, workers=2), 3, worker) for worker in (0, 1)]
    assert torch.equal(parts[0].pixels, whole.pixels[::2]) and torch.equal(parts[1].pixels, whole.pixels[1::2])
    assert not (whole.own & whole.false).any() and set(whole.texts) == {t for part in parts for t in part.texts}
    rows = torch.arange(8)
    assert whole.own[rows, whole.true].all() and whole.false[rows, whole.wrong].all()


def test_the_losses_are_the_libraries_own_where_everything_is_known():
    one, scale, bias = torch.eye(5, dtype=torch.bool), torch.tensor(12.0), torch.tensor(-10.0)
    pictures, texts = (F.normalize(torch.randn(5, 7), dim=-1) for _ in range(2))
    alike = scale * pictures @ texts.T
    torch.testing.assert_close(contrast(alike, one, ~one), ClipLoss()(pictures, texts, scale))
    torch.testing.assert_close(sigmoid_loss(alike + bias, one, ~one), SigLipLoss()(pictures, texts, scale, bias))
    pairs = torch.randn(6, 2, 2)
    logits, labels = pairs.flatten(0, 1), torch.tensor([1, 0] * 6)
    match = pairs[..., 1] - pairs[..., 0]
    ranking = F.cross_entropy(match, torch.zeros(6, dtype=torch.long))
    torch.testing.assert_close(match_loss(match), (F.cross_entropy(logits, labels) + ranking) / 2)


def test_an_unknown_pair_does_not_reach_the_sigmoid_loss():
    scores = torch.randn(2, 3, requires_grad=True)
    own, false = torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.bool)
    own[0, 0] = false[0, 1] = True
    sigmoid_loss(scores, own, false).backward()
    assert (scores.grad != 0).nonzero().tolist() == [[0, 0], [0, 1]]
    with pytest.raises(ValueError, match="softmax"):
        towers_config({}, "hinge")


def test_the_two_towers_differ_in_their_loss_alone(data):
    clip, siglip = (start_towers(data, TowersRecipe(**SHORT, loss=loss), TOWERS) for loss in ("softmax", "sigmoid"))
    theirs = siglip.model.state_dict()
    assert [n for n, v in clip.model.state_dict().items() if not torch.equal(v, theirs[n])] == ["logit_scale"]
    assert theirs.keys() - clip.model.state_dict().keys() == {"logit_bias"}
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        seen, patches = image_tokens(clip.model.visual, pixels)
        torch.testing.assert_close(seen, clip.model.encode_image(pixels))
    assert patches.shape == (2, 4, 32)


@pytest.mark.parametrize("kind", JOINT)
def test_the_pass_gives_a_logit_a_text_whatever_else_is_asked(data, kind):
    training = start_joint(data, JointRecipe(**SHORT), JOINT[kind], kind=kind)
    pixels = torch.randn(2, 3, 32, 32)
    texts = [("a", "red", "ball"), ("a", "man", "riding", "a", "horse", "."), ("a", "dog")]
    with torch.no_grad():
        ids, mask = training.table(texts)
        together = training.family.look(training.model, pixels, ids, mask, torch.tensor([0, 1, 2, 0])).match
        ids, mask = training.table([texts[0]])
        alone = training.family.look(training.model, pixels, ids, mask, torch.tensor([0, 0, 0, 0])).match
    torch.testing.assert_close(together[[0, 1], [0, 1]], alone[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [*JOINT, "softmax", "sigmoid"])
def test_the_adapter_gives_the_logits_of_the_training(data, kind):
    asked, pictures = ["a photo of a red ball .", "a man riding a horse"], [Image.fromarray(p) for p in data.pixels[:2]]
    pixels, words = as_input(data.pixels[:2]), [text.split() for text in asked]
    if kind in JOINT:
        training = start_joint(data, JointRecipe(**SHORT), JOINT[kind], kind=kind)
        pairs, pixels = torch.tensor([0, 1, 0, 1]), training.family.pixels(pixels)
        with torch.no_grad():
            ours = training.family.look(training.model, pixels, *training.table(words), pairs).match
    else:
        training = start_towers(data, TowersRecipe(**SHORT, loss=kind), TOWERS)
        with torch.no_grad():
            ours = training.model(pixels, training.model.tokenizer(asked))
            ours = ours[2] * ours[0] @ ours[1].T + (ours[3] if len(ours) > 3 else 0)
    theirs = training.as_model(**training.readings["trained"]).score(pictures, asked)
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(training.as_model(False).score(pictures, asked), ours, atol=1e-3)


@pytest.mark.parametrize("kind", [*JOINT, "softmax", "sigmoid"])
def test_what_only_looks_learns_of_the_pictures_alone(data, kind):
    if kind in JOINT:
        training = start_joint(data, JointRecipe(**SHORT), JOINT[kind], kind=kind)
    else:
        training = start_towers(data, TowersRecipe(**SHORT, loss=kind), TOWERS)
    looked, read = training.losses(training.draw(1)), training.losses(training.draw(2))
    assert set(looked) == {"words", "total"} and {"found", "words", "total"} <= set(read)
    looked["total"].backward()
    learns = {name for name, value in training.model.named_parameters() if value.grad is not None and value.grad.any()}
    assert learns and not [name for name in learns if "text_model" in name or "token_embedding" in name]
    with torch.no_grad():
        drawn = draw_pictures(data, training.recipe, 1, 0, training.recipe.sentences)
        exact = replace(training.recipe, half=False)
        training.recipe = exact
        has = torch.from_numpy(data.has[drawn.rows]).float()
        states = training.patches(drawn.pixels(data))
        cells = training.extra(states)
        slow = sum(F.binary_cross_entropy_with_logits(torch.logsumexp(one, 0), told, reduction="sum")
                   for one, told in zip(cells, has)) / len(has)
    torch.testing.assert_close(training.losses(training.draw(1))["words"], slow)
    assert abs(looked["words"].item() / slow.item() - 1) < 0.05  # bfloat16 beside float32


@pytest.mark.parametrize(("kind", "stop"), zip([*JOINT, "softmax", "sigmoid"], (1, 2, 3, 2, 4)))
def test_a_training_goes_on_to_the_bit_and_refuses_another_recipe(root, tmp_path, kind, stop):
    if kind in JOINT:
        options, train = {"recipe": JointRecipe(**SHORT), "kind": kind, "config": JOINT[kind]}, train_joint
    else:
        options, train = {"recipe": TowersRecipe(**SHORT, loss=kind), "config": TOWERS}, train_towers
    whole = train(root, **options, progress=False)
    train(root, tmp_path, **options, stop_at=stop, progress=False)
    resumed = train(root, tmp_path, **options, progress=False)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    assert resumed.log["found"].isna().tolist() == [True, False, False]  # in the first two steps no text was read
    assert np.isfinite(resumed.log["words"]).all()
    with pytest.raises(ValueError, match="borrowed"):
        train(root, tmp_path, **options | {"recipe": replace(options["recipe"], borrowed=0.5)}, progress=False)
