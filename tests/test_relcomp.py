"""RelComp: the losses against slow literal ones and other libraries', and weights between two models."""

import math
from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.loss import ClipLoss

from qgcam_lib.errors import ParameterError
from qgcam_lib.finetune import interpolate
from qgcam_lib.finetune.relcomp.losses import (
    Minimise,
    SecondNegative,
    contrastive_loss,
    matching_loss,
    relcomp_losses,
)

# --- losses -----------------------------------------------------------------------------------------------------------


def features(seed, rows=5, width=6):
    rng = torch.Generator().manual_seed(seed)
    return [F.normalize(torch.randn(rows, width, generator=rng, dtype=torch.float64), dim=-1) for _ in range(4)]


def literal_matching(pictures, captions, positives, negatives, second, margins, distance, same):
    """Row by row, as one would say it."""
    if distance == "euclidean":  # torch adds 1e-6 to every difference
        far = lambda a, b: math.sqrt(sum((x - y + 1e-6) ** 2 for x, y in zip(a.tolist(), b.tolist())))  # noqa: E731
    else:
        far = lambda a, b: 1 - sum(x * y for x, y in zip(a.tolist(), b.tolist()))  # noqa: E731
    first, other, n = [], [], len(pictures)
    for k in range(n):
        first.append(max(0, far(pictures[k], positives[k]) - far(pictures[k], negatives[k]) + margins[0]))
        rest = [(k + step) % n for step in range(1, n) if not same[k][(k + step) % n]]
        if second == "negative_text":
            rival = negatives[k]
        elif not rest:
            continue
        elif second == "next_picture":
            rival = pictures[rest[0]]
        else:
            rival = pictures[max(rest, key=lambda row: float(captions[k] @ pictures[row]))]
        other.append(max(0, far(captions[k], pictures[k]) - far(captions[k], rival) + margins[1]))
    return (sum(first) / n + (sum(other) / len(other) if other else 0)) / 2


@pytest.mark.parametrize("second, distance", product(get_args(SecondNegative), ("euclidean", "cosine")))
def test_matching_is_the_mean_of_two_literal_triplets(second, distance):
    for seed, margins in ((0, (1.0, 1.0)), (1, (0.2, 0.5))):
        same = torch.eye(5, dtype=torch.bool)
        same[0, 3] = same[3, 0] = True
        same[4] = same[:, 4] = True  # no other picture at all
        found = matching_loss(*features(seed), second=second, margins=margins, distance=distance, same=same)
        wanted = literal_matching(*features(seed), second, margins, distance, same.tolist())
        assert found.item() == pytest.approx(wanted, abs=1e-9)


def test_matching_of_one_group_has_no_second_triplet_and_no_nan():
    given = [each.requires_grad_() for each in features(3, rows=1)]
    loss = matching_loss(*given)
    loss.backward()
    assert loss.item() == pytest.approx(literal_matching(*given, "hardest_picture", (1, 1), "euclidean", [[True]]))
    assert all(each.grad is None or torch.isfinite(each.grad).all() for each in given)


def test_contrast_is_open_clips_and_the_negatives_come_in_as_said():
    pictures, captions, positives, negatives = features(5)
    clip = ClipLoss()
    plain = contrastive_loss(pictures, captions, negatives, 7.0, minimise="none")
    assert torch.allclose(plain, clip(pictures, captions, torch.tensor(7.0, dtype=torch.float64)))
    cosine = contrastive_loss(pictures, captions, negatives, 7.0, minimise="cosine") - plain
    target = -torch.ones(5)
    assert torch.allclose(cosine, F.cosine_embedding_loss(pictures, negatives, target))
    for minimise in ("own", "all"):
        rows = []
        for k in range(5):
            rivals = [negatives[k]] if minimise == "own" else list(negatives)
            scores = [7 * float(pictures[k] @ text) for text in [*captions, *rivals]]
            rows.append(math.log(sum(map(math.exp, scores))) - scores[k])
        columns = [math.log(sum(math.exp(7 * float(picture @ captions[k])) for picture in pictures))
                   - 7 * float(pictures[k] @ captions[k]) for k in range(5)]
        found = contrastive_loss(pictures, captions, negatives, 7.0, minimise=minimise)
        assert found.item() == pytest.approx((np.mean(rows) + np.mean(columns)) / 2, abs=1e-12)


def test_pairs_that_are_the_same_are_no_negatives():
    pictures, captions, _, negatives = features(6, rows=3)
    same = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.bool)
    found = contrastive_loss(pictures, captions, negatives, 5.0, minimise="none", same=same)
    scores = 5 * pictures @ captions.T
    def part(table):
        kept = [[0, 2], [1, 2], [0, 1, 2]]
        return sum(table[k, rows].logsumexp(0) - table[k, k] for k, rows in enumerate(kept)) / 3
    assert found.item() == pytest.approx(((part(scores) + part(scores.T)) / 2).item())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 6), minimise=st.sampled_from(get_args(Minimise)))
def test_the_order_of_the_batch_changes_nothing(seed, rows, minimise):
    given, order = features(seed, rows), torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    options = {"minimise": minimise, "weights": (0.5, 2.0)}
    one = relcomp_losses(*given, 9.0, **options)
    two = relcomp_losses(*(each[order] for each in given), 9.0, **options)
    for name, value in one.items():
        assert torch.allclose(value, two[name]) and torch.isfinite(value), name
    assert one["total"].item() == pytest.approx(0.5 * one["matching"].item() + 2 * one["contrast"].item())


def test_a_tie_is_wrong_and_unknown_readings_are_named():
    pictures, captions, positives, _ = features(8)
    assert relcomp_losses(pictures, captions, positives, positives, 3.0)["right"] == 0
    for options in ({"second": "hardest"}, {"distance": "l2"}, {"minimise": "both"}):
        with pytest.raises(ParameterError, match=next(iter(options))):
            relcomp_losses(pictures, captions, positives, positives, 3.0, **options)


# --- interpolation ----------------------------------------------------------------------------------------------------


def small(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 4))
    model[1].num_batches_tracked.fill_(seed)
    return model


@settings(max_examples=30, deadline=None)
@given(alpha=st.floats(-2, 3))
def test_interpolation_is_the_usual_dictionary(alpha):
    zero, one, into = small(1), small(2), small(3)
    given = {key: value.clone() for key, value in zero.state_dict().items()}
    assert interpolate(zero, one, alpha, into=into) is into
    for key, value in into.state_dict().items():
        wanted = (1 - alpha) * given[key] + alpha * one.state_dict()[key] if value.is_floating_point() else given[key]
        torch.testing.assert_close(value, wanted, atol=2e-6, rtol=0)
        assert torch.equal(zero.state_dict()[key], given[key])
    assert interpolate(zero, one, alpha, into=zero) is zero
    assert all(torch.equal(value, into.state_dict()[key]) for key, value in zero.state_dict().items())


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_any_floating_type_ends_exactly_at_both_ends(kind):
    zero, one = ({"w": torch.randn(7, 3).to(kind), "n": torch.tensor(k)} for k in (1, 2))
    for alpha, end in ((0, zero), (1, one)):
        found = interpolate(zero, one, alpha)
        assert found["w"].dtype == kind and torch.equal(found["w"].double(), end["w"].double()) and found["n"] == 1
    middle = interpolate(zero, one, 0.3)["w"]
    wanted = (0.7 * zero["w"].double() + 0.3 * one["w"].double()).to(kind).double()
    assert (middle.double() - wanted).abs().max() <= wanted.abs().max() * 2.0 ** (0 if kind.itemsize == 1 else -7)
    mixed = interpolate(zero, {"w": one["w"].double(), "n": one["n"]}, 0.3)["w"]
    assert mixed.dtype == kind


def test_tied_weights_and_other_layouts_in_place():
    def tied(seed):
        model = small(seed)
        model[2].weight = torch.nn.Parameter(model[0].weight.detach().T)  # the same numbers in another shape
        model.append(torch.nn.Linear(3, 4))
        model[3].weight = model[2].weight
        return model
    zero, one = tied(1), tied(2)
    wanted = torch.lerp(zero[2].weight, one[2].weight, 0.25)
    interpolate(zero, one, 0.25, into=zero)
    assert torch.equal(zero[2].weight, wanted) and zero[3].weight is zero[2].weight


def test_what_does_not_fit_is_named_and_nothing_is_written():
    zero, one = small(1), small(2)
    state = {key: value for key, value in one.state_dict().items() if key != "0.bias"} | {"head": torch.zeros(2)}
    before = {key: value.clone() for key, value in zero.state_dict().items()}
    with pytest.raises(ParameterError, match="theta_1.*it lacks 0.bias; it has besides head"):
        interpolate(zero, state, 0.5, into=zero)
    with pytest.raises(ParameterError, match=r"into.*0.weight \(2, 4\) instead of \(3, 4\)"):
        interpolate(zero, one, 0.5, into={**before, "0.weight": torch.zeros(2, 4)})
    for alpha in (math.nan, math.inf):
        with pytest.raises(ParameterError, match="alpha"):
            interpolate(zero, one, alpha, into=zero)
    assert all(torch.equal(value, before[key]) for key, value in zero.state_dict().items())
