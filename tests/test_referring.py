"""Referring expressions: perturbations against their definitions, scores a slow literal one, the loss, files."""

import subprocess
import sys
from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.data.taggers import load_tagger
from qgcam_lib.referring import ContrastiveHinge, perturb
from qgcam_lib.referring.hinge import draw_negatives
from qgcam_lib.referring.perturb import HOW, expression_words, head_swapped, noun_places, shuffled

WORDS = st.lists(st.sampled_from("the a man dog red left on chair giraffe and".split()), min_size=1, max_size=9)
QUICK = settings(max_examples=60, deadline=None)


# --- perturbations ----------------------------------------------------------------------------------------------------

@QUICK
@given(WORDS, st.integers(0, 5))
def test_each_perturbation_does_what_it_says(words, seed):
    text = " ".join(words).capitalize() + "."
    found = {how: perturb(text, how, seed=seed, tagger="hanta").split() for how in HOW if how != "shipped"}
    assert found["plain"] == words and found["reverse"] == words[::-1]
    for how in ("shuffle", "reverse", "swap_head"):
        assert Counter(found[how]) == Counter(words)
    assert (found["shuffle"] == words) == (len(set(words)) == 1)
    moved = [k for k, (a, b) in enumerate(zip(words, found["swap_head"])) if a != b]
    assert len(moved) in (0, 2) and set(moved) <= set(noun_places(words, "hanta"))
    assert not moved or moved[0] == noun_places(words, "hanta")[0]
    kinds = zip(words, load_tagger("hanta").kinds(words))
    wanted = ("noun", "plural noun", "adjective", "unknown")
    assert found["nouns_adjectives"] == [word for word, kind in kinds if kind in wanted]
    assert found == {how: perturb(text, how, seed=seed, tagger="hanta").split() for how in found}


@pytest.mark.parametrize("words", ["a b c", "a a b", "a b a b"])
def test_shuffling_reaches_every_other_order_equally_often(words):
    words = words.split()
    orders = Counter(tuple(shuffled(words, seed)) for seed in range(1500))
    others = set(permutations(words)) - {tuple(words)}
    assert set(orders) == others
    assert min(orders.values()) > 0.7 * 1500 / len(others) and max(orders.values()) < 1.3 * 1500 / len(others)


def test_seeds_and_texts_are_shuffled_apart_and_the_same_everywhere():
    text = "the first table of the picture on which pizzas are there"
    assert len({perturb(text, "shuffle", seed=seed) for seed in range(50)}) == 50
    assert perturb(text, "shuffle", seed=7) == "the the of which pizzas are there table first picture on"
    code = f"from qgcam_lib.referring import perturb; print(perturb({text!r}, 'shuffle', seed=7))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == perturb(text, "shuffle", seed=7)


def test_the_face_loads_no_torch_until_the_loss_is_asked_for():
    code = ("import sys; from qgcam_lib.referring import perturb; assert 'torch' not in sys.modules; "
            "from qgcam_lib.referring import ContrastiveHinge; assert 'torch' in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_expressions_without_a_noun_and_very_long_ones():
    assert perturb("the one over there", "nouns_adjectives", tagger="hanta") == ""
    assert head_swapped("the one over there".split(), tagger="hanta") == "the one over there".split()
    assert noun_places("in front of the left one".split(), "hanta") == []
    long = " ".join(["a man next to a red dog"] * 12)[:-1]
    assert len(expression_words(long)) == 84 and perturb(long, "shuffle") != long
    assert len(perturb(long, "nouns_adjectives", tagger="hanta").split()) >= 24


@pytest.mark.parametrize("given_, message", [
    (dict(text="", how="plain"), "at least one word"), (dict(text=None, how="shuffle"), "at least one word"),
    (dict(text="a dog", how="sort"), "how: expected one of"), (dict(text="a dog", how="shipped"), "published string"),
    (dict(text="a dog", how="swap_head", tagger="none"), "tagger"),
])
def test_what_perturb_refuses(given_, message):
    with pytest.raises(ValueError, match=message):
        perturb(**given_)


# --- the loss ---------------------------------------------------------------------------------------------------------

def literal(S, margin, reduction, drawn):
    total = 0.0
    for j in range(len(S)):
        costs = [[max(0.0, margin + S[j][k] - S[j][j]), max(0.0, margin + S[k][j] - S[j][j])]
                 for k in range(len(S)) if k != j and drawn[j][k]]
        for axis in zip(*costs):
            total += sum(axis) if reduction == "sum" else max(axis)
    return total


@QUICK
@given(st.integers(1, 9), st.integers(0, 99), st.sampled_from(["sum", "max"]), st.sampled_from([None, 1, 3, 64]),
       st.floats(0, 2), st.booleans())
def test_the_loss_equals_two_loops_and_its_gradient_small_steps(size, seed, reduction, negatives, margin, some):
    dice = torch.Generator().manual_seed(seed)
    S = torch.randn(size, size, dtype=torch.float64, generator=dice)
    usable = torch.rand(size, size, generator=dice) < 0.7 if some else torch.ones(size, size, dtype=torch.bool)
    drawn = draw_negatives(usable, negatives, torch.Generator().manual_seed(seed))
    loss = ContrastiveHinge(margin, reduction, negatives, torch.Generator().manual_seed(seed))
    expected = literal(S.tolist(), margin, reduction, drawn.tolist())
    assert loss(S, usable).item() == pytest.approx(expected, abs=1e-6)
    fixed = ContrastiveHinge(margin, reduction)
    assert torch.autograd.gradcheck(lambda s: fixed(s, drawn), (S.requires_grad_(),))


@QUICK
@given(st.integers(2, 12), st.integers(1, 12), st.integers(0, 99))
def test_negatives_are_drawn_without_replacement_from_what_is_usable(size, negatives, seed):
    usable = torch.rand(size, size, generator=torch.Generator().manual_seed(seed)) < 0.6
    drawn = draw_negatives(usable, negatives, torch.Generator().manual_seed(seed))
    allowed = usable & ~torch.eye(size, dtype=torch.bool)
    assert not (drawn & ~allowed).any()
    assert drawn.sum(1).tolist() == allowed.sum(1).clamp(max=negatives).tolist()


def test_every_negative_is_drawn_equally_often():
    dice = torch.Generator().manual_seed(0)
    usable = torch.ones(6, 6, dtype=torch.bool)
    share = sum(draw_negatives(usable, 2, dice).double() for _ in range(2000)) / 2000
    assert (share - 0.4 * (1 - torch.eye(6))).abs().max() < 0.05


def test_the_loss_in_half_precision_and_what_it_refuses():
    S = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    assert ContrastiveHinge()(S.half()).dtype == torch.float32
    assert ContrastiveHinge()(torch.eye(4) * 5).item() == 0
    for bad in (torch.zeros(2, 3), torch.zeros(0, 0), torch.zeros(4)):
        with pytest.raises(ValueError, match="scores: expected"):
            ContrastiveHinge()(bad)
    with pytest.raises(ValueError, match="usable: expected bool"):
        ContrastiveHinge()(S, torch.ones(8, 8))
    for options in (dict(margin=-1), dict(margin=float("nan")), dict(reduction="mean"), dict(negatives=0)):
        with pytest.raises(ValueError, match="expected"):
            ContrastiveHinge(**options)
