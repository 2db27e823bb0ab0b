"""Scores of a probe against other programs, a slow literal reading, and properties."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax
from sklearn.metrics import label_ranking_average_precision_score

from qgcam_lib.probes import pair_scores, ranking_average_precision
from qgcam_lib.probes.score import (
    TIES,
    chance_average_precision,
    change,
    choice_scores,
    class_confidences,
    first_is_present,
    pair_ties,
    present_confidence,
    relative_robustness,
)

few = st.integers(-3, 3).map(float)  # few values, so that ties are frequent
tables = arrays(float, st.tuples(st.integers(1, 6), st.just(2), st.just(2)), elements=few)


def literal_pair(s):
    """The equations as they are written, one pair."""
    (a, b), (c, d) = s
    text, image, ties = int(a > b and d > c), int(a > c and d > b), sum(map(int, (a == b, d == c, a == c, d == b)))
    confidence = (softmax([a, b])[0] + softmax([d, c])[0]) / 2
    return text, image, int(text == 1 and image == 1), confidence, ties


@given(tables)
def test_pairs_equal_the_equations_read_literally(S):
    found = pair_scores(S)
    assert list(found) == ["text", "image", "group", "confidence"]
    assert [found[name].dtype for name in ("text", "image", "group")] == [bool] * 3
    expected = np.array([literal_pair(s) for s in S])
    assert np.array_equal(found[["text", "image", "group"]].to_numpy(float), expected[:, :3])
    assert np.allclose(found["confidence"], expected[:, 3], atol=1e-15)
    assert np.array_equal(pair_ties(S), expected[:, 4])


@given(tables, few, st.randoms(use_true_random=False))
def test_pairs_keep_their_scores_when_moved_shifted_or_renamed(S, shift, random):
    found, order = pair_scores(S), list(range(len(S)))
    random.shuffle(order)
    assert pair_scores(S[order]).equals(found.iloc[order].reset_index(drop=True))
    assert pair_scores(S + shift).round(12).equals(found.round(12))
    assert pair_scores(S[:, ::-1, ::-1]).round(12).equals(found.round(12))  # the pair's second first
    turned = pair_scores(S.transpose(0, 2, 1))  # images for texts
    assert turned["text"].equals(found["image"]) and turned["image"].equals(found["text"])
    assert turned["group"].equals(found["group"]) and np.array_equal(pair_ties(S.transpose(0, 2, 1)), pair_ties(S))


@given(tables)
def test_a_scorer_that_ignores_the_image_has_no_pair_right(S):
    blind = pair_scores(np.repeat(S[:, :1], 2, axis=1))
    assert not blind[["text", "image", "group"]].to_numpy().any() and np.allclose(blind["confidence"], 0.5)


@pytest.mark.parametrize("S", [np.zeros((3, 2, 3)), [[[0, 1], [np.nan, 0]]]])
def test_pairs_that_are_none_are_refused(S):
    with pytest.raises(ValueError):
        pair_scores(S)
    with pytest.raises(ValueError):
        choice_scores([1.0], [np.nan])


def test_no_pairs_and_tensors():
    import torch

    assert len(pair_scores(np.zeros((0, 2, 2)))) == 0
    S = torch.arange(8.0).reshape(2, 2, 2).requires_grad_()
    assert pair_scores(S).equals(pair_scores(S.detach().numpy()))


# --- two prompts ------------------------------------------------------------------------------------------------------

@given(arrays(float, st.tuples(st.integers(1, 5), st.integers(1, 10)), elements=few), st.data())
def test_choices_equal_the_equations_and_do_not_see_a_constant(right, data):
    wrong = data.draw(arrays(float, right.shape, elements=few))
    logits, probabilities = choice_scores(right, wrong), choice_scores(right, wrong, average="probabilities")
    both = np.stack([right, wrong], -1)
    assert np.allclose(logits["confidence"], softmax(both.mean(1), -1)[:, 0])
    assert np.allclose(probabilities["confidence"], softmax(both, -1)[..., 0].mean(1))
    assert np.array_equal(logits["correct"], right.sum(1) > wrong.sum(1))
    assert np.array_equal(logits["tie"], right.sum(1) == wrong.sum(1))
    assert choice_scores(right + 2, wrong + 2).equals(logits)
    other = choice_scores(wrong, right)
    assert np.allclose(other["confidence"] + logits["confidence"], 1) and other["tie"].equals(logits["tie"])
    assert not (other["correct"] & logits["correct"]).any()
    one = right.shape[1] == 1
    assert not one or np.allclose(logits["confidence"], probabilities["confidence"])
    assert not one or logits.equals(choice_scores(right[:, 0], wrong[:, 0]))


def test_the_two_averages_can_disagree():
    right, wrong = np.array([[9.0, 0, 0]]), np.array([[0.0, 2, 2]])
    assert choice_scores(right, wrong)["correct"].all()
    assert not choice_scores(right, wrong, average="probabilities")["correct"].any()


# --- ranking ----------------------------------------------------------------------------------------------------------

@st.composite
def rankings(draw, widest=6):
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, widest)))
    return draw(arrays(float, shape, elements=few)), draw(arrays(bool, shape))


def literal_ap(order, present):
    hits = [present[c] for c in order]
    return np.mean([sum(hits[:k + 1]) / (k + 1) for k, hit in enumerate(hits) if hit]) if any(hits) else np.nan


@given(rankings(5))
def test_ap_is_the_mean_and_the_bounds_over_every_order_of_ties(case):
    scores, present = case
    found = {ties: ranking_average_precision(scores, present, ties=ties) for ties in TIES}
    for n, (row, there) in enumerate(zip(scores, present)):
        legal = [order for order in permutations(range(len(row))) if all(np.diff(row[list(order)]) <= 0)]
        every = [literal_ap(order, there) for order in legal]
        expected = {"expected": np.mean(every), "pessimistic": min(every), "optimistic": max(every)}
        for ties, value in expected.items():
            assert np.isclose(found[ties][n], value, equal_nan=True), ties
    good = present.any(1)
    assert ((found["pessimistic"][good] > 0) & (found["optimistic"][good] <= 1 + 1e-12)).all()


@given(rankings(8))
def test_ap_equals_scikit_learn(case):
    scores, present = case
    scores, present = scores[present.any(1)], present[present.any(1)]
    if not len(scores):
        return
    theirs = label_ranking_average_precision_score(present, scores)
    assert np.isclose(ranking_average_precision(scores, present, ties="block").mean(), theirs)
    apart = scores + np.linspace(0, 0.5, scores.shape[1])  # no ties: every rule is theirs
    theirs = label_ranking_average_precision_score(present, apart)
    for ties in TIES:
        assert np.isclose(ranking_average_precision(apart, present, ties=ties).mean(), theirs)


@given(rankings(), st.sampled_from(TIES), st.randoms(use_true_random=False))
def test_ap_sees_ranks_only_and_no_order_of_columns(case, ties, random):
    scores, present = case
    found, order = ranking_average_precision(scores, present, ties=ties), list(range(scores.shape[1]))
    random.shuffle(order)
    same = ranking_average_precision(scores[:, order], present[:, order], ties=ties)
    assert np.allclose(found, same, equal_nan=True)
    assert np.array_equal(found, ranking_average_precision(np.exp(scores), present, ties=ties), equal_nan=True)


@given(rankings(), st.data())
def test_a_class_that_was_not_asked_is_as_if_it_were_not_there(case, data):
    scores, present = case
    asked = data.draw(arrays(bool, scores.shape)) | present
    whole = np.where(asked, scores, np.nan)  # what stands there is not looked at
    for score in (ranking_average_precision, present_confidence, first_is_present):
        for n, rows in enumerate(asked):
            alone = score(scores[n:n + 1, rows], present[n:n + 1, rows])
            assert np.allclose(score(whole, present, queried=asked)[n], alone[0], equal_nan=True), score.__name__
    assert not class_confidences(whole, queried=asked)[~asked].any()


def test_many_rows_are_scored_in_parts_alike():
    rng = np.random.default_rng(0)
    scores, present = rng.integers(0, 9, (30_000, 80)).astype(float), rng.random((30_000, 80)) < 0.05
    found = ranking_average_precision(scores, present)
    assert np.array_equal(found[-50:], ranking_average_precision(scores[-50:], present[-50:]), equal_nan=True)


def test_chance_is_what_random_rankings_give():
    rng = np.random.default_rng(0)
    present = np.arange(20)[None] < 3
    drawn = ranking_average_precision(rng.random((20_000, 20)), np.repeat(present, 20_000, 0)).mean()
    assert abs(chance_average_precision(present)[0] - drawn) < 4e-3


@given(rankings())
def test_confidence_is_softmax_over_the_classes(case):
    scores, present = case
    expected = [row[there].mean() if there.any() else np.nan for row, there in zip(softmax(scores, -1), present)]
    assert np.allclose(present_confidence(scores, present), expected, equal_nan=True)
    best = [row[there].max() > row[~there].max(initial=-np.inf) if there.any() else np.nan
            for row, there in zip(scores, present)]
    assert np.array_equal(first_is_present(scores, present), np.array(best, float), equal_nan=True)


@pytest.mark.parametrize(("scores", "present", "asked"), [
    ([[1.0, 2.0]], [[1]], None), ([[1.0, np.nan]], [[1, 0]], None), ([[1.0, 2.0]], [[1, 0]], [[0, 1]])])
def test_rankings_that_are_none_are_refused(scores, present, asked):
    with pytest.raises(ValueError):
        ranking_average_precision(scores, present, queried=asked)


# --- change -----------------------------------------------------------------------------------------------------------

@given(arrays(float, 5, elements=st.floats(0, 1)), arrays(float, 5, elements=st.floats(0, 1)))
def test_robustness_is_the_share_that_is_left(reference, other):
    found, good = relative_robustness(reference, other), reference > 0
    assert np.isnan(found[~good]).all()
    left = np.divide(other, reference, out=np.zeros(5), where=good)
    assert np.allclose(found[good], left[good], rtol=1e-9, atol=1e-9 * (1 + left[good]).max(initial=0))
    assert np.array_equal(change(reference, other), -change(other, reference))
    assert np.isnan(relative_robustness([np.nan], [1.0])).all()
