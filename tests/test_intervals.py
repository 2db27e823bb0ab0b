"""Intervals by group: against SciPy or slow literals, by properties, and by a small coverage study."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from qgcam_lib.papers import coverage
from qgcam_lib.papers.coverage import closed_ends, coverage_table, draw_world, drawn_ends, group_sizes, null_table
from qgcam_lib.statistics import compare, correlate, summarize
from qgcam_lib.statistics.intervals import (
    ASSUMED_DF,
    ASSUMED_ICC,
    cluster_interval,
    cluster_p,
    effective_groups,
    of_means,
    of_pairs,
    of_replicates,
    t_quantile,
    t_tails,
)
from qgcam_lib.statistics.summary import estimate_means, ranges_of


def rows_of(seed, n_groups=12, right=0.7, most=9):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most, n_groups)
    return [(rng.random(n) < rng.beta(right * 2, (1 - right) * 2)).astype(float) for n in sizes]


def estimate(rows):
    flat = np.concatenate(rows)
    return of_means(np.array([[part.sum()] for part in rows]), np.array([[len(part)] for part in rows]),
                    np.array([(flat**2).sum()]))


def literal(rows, low=0.0, high=1.0, level=0.95):
    """The interval, step by step, as its page describes it; the truths inside it are found by bisection."""
    flat = np.concatenate(rows)
    n, mean, sizes = len(flat), flat.mean(), np.array([len(part) for part in rows])
    pieces = np.array([(part - mean).sum() / n / np.sqrt(1 - len(part) / n) for part in rows])
    squares = pieces**2
    worth = n**2 / (sizes**2).sum()
    spread = (squares**2).sum() - squares.sum() ** 2 / len(rows)
    df = min(2 * squares.sum() ** 2 / spread, worth - 1) if squares.sum() > 0 else 0
    in_group = (sizes**2).sum() / n
    assumed = flat.var(ddof=1) / n * (1 + ASSUMED_ICC * (in_group - 1))
    variance = (df * squares.sum() + ASSUMED_DF * assumed) / (df + ASSUMED_DF)
    unit, width = (mean - low) / (high - low), high - low
    known = flat.var() / width**2 / (unit * (1 - unit)) / in_group**2
    t = stats.t.ppf((1 + level) / 2, (df + ASSUMED_DF) / (1 - known))
    scale = variance / width**2 / (unit * (1 - unit) / (n - 1)) / n  # the design effect over n
    ends = []
    for inside, outside in ((unit, 0.0), (unit, 1.0)):
        for _ in range(100):
            middle = (inside + outside) / 2
            held = (unit - middle) ** 2 <= t**2 * scale * middle * (1 - middle)
            inside, outside = (middle, outside) if held else (inside, middle)
        ends.append(low + (high - low) * inside)
    return ends


@pytest.mark.parametrize("seed", range(8))
def test_the_interval_is_that_of_its_page(seed):
    rows = rows_of(seed)
    assert np.allclose(cluster_interval(estimate(rows), ranges=[(0, 1)])[:, 0], literal(rows), atol=1e-8)
    wide = [3 * part - 1 for part in rows]
    assert np.allclose(cluster_interval(estimate(wide), 0.9, [(-1, 2)])[:, 0], literal(wide, -1, 2, 0.9), atol=1e-8)


def wilson(k, n):
    p, z = k / n, stats.norm.ppf(0.975)
    half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return np.array([(p + z**2 / (2 * n)) / (1 + z**2 / n) - half, (p + z**2 / (2 * n)) / (1 + z**2 / n) + half])


@pytest.mark.parametrize("n", [2, 5, 20, 100])
def test_with_one_row_a_group_it_is_wilsons_interval_and_no_count_lowers_an_end(n):
    k = np.arange(n + 1)
    for rows in (1, 2, 5, 20):
        sums = np.where(np.arange(n)[:, None] < k, float(rows), 0)
        ends = cluster_interval(of_means(sums, np.full(sums.shape, rows), sums.sum(0)), ranges=[(0, 1)] * (n + 1))
        assert (np.diff(ends) > 0).all() and np.allclose(ends, 1 - ends[::-1, ::-1])
        if rows == 1:
            assert np.allclose(ends, wilson(k, n), rtol=0, atol=1e-9)
            pairs = np.arange(2 * n).reshape(n, 2)  # no two pairs share a picture
            paired = of_pairs((np.arange(n)[:, None] < k).astype(float), pairs, 2 * n)
            assert np.allclose(cluster_interval(paired, ranges=[(0, 1)] * (n + 1)), ends, rtol=0, atol=1e-9)
    frame = pd.DataFrame({"group": np.arange(n), "pg_hit": np.arange(n) < n - 1})
    assert np.allclose(summarize(frame)[["ci_low", "ci_high"]].iloc[0].tolist(), wilson(n - 1, n), rtol=0, atol=1e-9)


@given(st.integers(0, 10**6), st.integers(2, 20), st.sampled_from([0.02, 0.5, 0.98]), st.booleans())
@settings(max_examples=20, deadline=None, derandomize=True)
def test_no_interval_leaves_the_range_of_its_score(seed, n_groups, right, binary):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, n_groups)
    hits = (rng.random((sizes.sum(), 2)) < right).astype(float)
    scores = hits if binary else np.clip(hits + rng.normal(0, 0.1, hits.shape), 0, 1)
    frame = pd.DataFrame({"id": range(len(hits)), "group": np.repeat(np.arange(n_groups), sizes),
                          "io_ratio": scores[:, 0], "pearson": 2 * scores[:, 1] - 1})
    for table, low in ((summarize(frame, ["io_ratio", "pearson"]), [0, -1]),
                       (compare(frame, frame.assign(io_ratio=scores[:, 1]), "io_ratio", n_permutations=1), [-1]),
                       (correlate(frame, "io_ratio", "pearson", n_bootstrap=50), [-1, -1])):
        ends = table[["ci_low", "ci_high"]].fillna(0).to_numpy()
        assert (ends >= np.array(low)[:, None]).all() and (ends <= 1).all()
        value = table["difference" if "difference" in table else "value"].fillna(0)
        assert ((ends[:, 0] <= value + 1e-12) & (value <= ends[:, 1] + 1e-12) | (ends == 0).all(1)).all()


def test_cr3_is_the_jackknife_and_cr2_that_of_matrices():
    rows = rows_of(3, 15)
    world = coverage.World(np.array([[len(part)] for part in rows]), np.array([[part.sum()] for part in rows]),
                           np.array([np.concatenate(rows).sum()]), 0.7)
    ends = {name: found[:, 0] for name, found in closed_ends(world)}
    flat, codes = np.concatenate(rows), np.repeat(np.arange(15), [len(part) for part in rows])
    without = [flat[codes != g].mean() for g in range(15)]
    error = np.sqrt(14 / 15 * np.square(flat.mean() - without).sum())
    assert np.allclose(ends["t, CR3"], flat.mean() + np.array([-1, 1]) * stats.t.ppf(0.975, 14) * error)
    hat = np.full((len(flat), len(flat)), 1 / len(flat))  # CR2 with matrices, as Bell and McCaffrey write it
    left, parts, total = np.eye(len(flat)) - hat, [], 0.0
    for g in range(15):
        at = np.flatnonzero(codes == g)
        values, vectors = np.linalg.eigh(left[np.ix_(at, at)])
        adjust = vectors @ np.diag(values**-0.5) @ vectors.T
        total += (adjust @ (flat[at] - flat.mean())).sum() ** 2 / len(flat) ** 2
        parts.append(left[at].T @ adjust @ np.ones(len(at)) / len(flat))
    g = np.array(parts)
    df = np.trace(g @ g.T) ** 2 / np.square(g @ g.T).sum()
    assert np.allclose(ends["t, CR2"], flat.mean() + np.array([-1, 1]) * stats.t.ppf(0.975, df) * np.sqrt(total))


def test_bca_and_percentile_are_scipys_when_every_group_has_one_row():
    y = np.random.default_rng(5).beta(2, 0.6, 40)
    world = coverage.World(np.ones((40, 1), int), y[:, None], np.array([(y**2).sum()]), 0.8)
    ours = {name: found[:, 0] for name, found in drawn_ends(world, np.random.default_rng(1), 20_000)}
    for name, method in (("BCa", "BCa"), ("percentile", "percentile"), ("basic", "basic")):
        theirs = stats.bootstrap((y,), np.mean, n_resamples=20_000, method=method, rng=np.random.default_rng(2)
                                 ).confidence_interval
        assert np.allclose(ours[name], [theirs.low, theirs.high], atol=0.04 * (theirs.high - theirs.low)), name


@given(st.lists(st.floats(1, 1e5), min_size=1, max_size=5), st.floats(0.01, 0.999))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_students_t_is_scipys(df, level):
    df = np.array(df)
    assert np.allclose(t_quantile(df, level), stats.t.ppf((1 + level) / 2, df), rtol=1e-6)
    assert np.allclose(t_tails(t_quantile(df, level), df), 1 - level, rtol=1e-6)


@given(st.integers(0, 10**6), st.integers(2, 25), st.sampled_from([0.05, 0.5, 0.95]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_order_and_scale_of_groups_change_nothing_and_the_value_is_held(seed, n_groups, right):
    rows = rows_of(seed, n_groups, right)
    low, high = cluster_interval(estimate(rows), ranges=[(0, 1)])[:, 0]
    assert 0 <= low <= np.concatenate(rows).mean() <= high <= 1
    order = np.random.default_rng(seed).permutation(n_groups)
    turned = cluster_interval(estimate([rows[k] for k in order]), ranges=[(0, 1)])[:, 0]
    assert np.allclose(turned, [low, high])
    scaled = cluster_interval(estimate([5 - 2 * part for part in rows]), ranges=[(3, 5)])[:, 0]
    assert np.allclose(scaled, [5 - 2 * high, 5 - 2 * low])
    wider = cluster_interval(estimate(rows), 0.99, [(0, 1)])[:, 0]
    assert wider[0] <= low and high <= wider[1]
    assert effective_groups(np.array([[len(part)] for part in rows]))[0] <= n_groups + 1e-9


def test_degenerate_groups():
    one, none = estimate([np.ones(4)]), of_means(np.zeros((3, 1)), np.zeros((3, 1)), np.zeros(1))
    assert np.isnan(cluster_interval(one, ranges=[(0, 1)])).all() and np.isnan(cluster_p(one)).all()
    assert np.isnan(cluster_interval(none, ranges=[(0, 1)])).all() and np.isnan(none.effective).all()
    right = cluster_interval(estimate([np.ones(4)] * 10), ranges=[(0, 1)])[:, 0]
    assert 0.6 < right[0] < 0.95 and right[1] == 1
    same = cluster_interval(estimate([np.full(4, 0.3)] * 10), ranges=[(0, 1)])[:, 0]
    assert np.allclose(same, 0.3)
    assert cluster_p(estimate([np.zeros(3)] * 4))[0] == 1
    outside = cluster_interval(estimate([part + 5 for part in rows_of(1)]), ranges=[(0, 1)])[:, 0]
    assert outside[0] < 6 and outside[1] > 5 and np.isfinite(outside).all()
    few = of_replicates(np.array([0.5]), np.full((3, 1), np.nan), 9, 9.0)
    assert np.isnan(cluster_interval(few, ranges=[(0, 1)])).all()


def test_pairs_against_the_sum_over_all_rows_that_share_a_group():
    rng = np.random.default_rng(2)
    codes = np.array([rng.choice(9, 2, replace=False) for _ in range(40)])
    y = rng.random((40, 1))
    apart = (y - y.mean())[:, 0] / 40
    shares = np.array([(codes == g).any(1).mean() for g in range(9)])
    total = 0.0  # each product belongs to the group that the two rows share, and is widened by its 1 - h
    for g in range(9):
        mine = apart[(codes == g).any(1)]
        total += (mine.sum() ** 2 - (mine**2).sum()) / (1 - shares[g]) ** 2
    alone = y.var(ddof=1) / 40
    total = alone + max(total, 0)
    found = of_pairs(y, codes, 9)
    df = found.df[0] - ASSUMED_DF
    alike = 1 + ASSUMED_ICC * (np.square(40 * shares).sum() / (40 * shares).sum() - 1)
    assert np.isclose(found.variance[0], (df * total + ASSUMED_DF * alone * alike) / (df + ASSUMED_DF))


def test_replicates_of_a_mean_come_to_its_variance():
    y = np.random.default_rng(0).random((80, 1))
    drawn = np.random.default_rng(1).multinomial(80, np.full(80, 1 / 80), 4000) @ y / 80
    found = of_replicates(y.mean(0), drawn, 80, 80.0)
    assert np.isclose(found.variance[0], y.var(ddof=1) / 80, rtol=0.06) and found.df[0] == 79


def test_a_summary_says_how_its_interval_was_made_and_on_what_it_rests():
    rows = rows_of(0, 40)
    frame = pd.DataFrame({"group": np.repeat(np.arange(40), [len(part) for part in rows]),
                          "pg_hit": np.concatenate(rows)})
    row = summarize(frame).iloc[0]
    assert np.allclose([row.ci_low, row.ci_high], literal(rows), atol=1e-8)
    sizes = np.array([len(part) for part in rows])
    assert np.isclose(row.n_groups_effective, sizes.sum() ** 2 / (sizes**2).sum()) and row.interval == "cluster"
    assert row.note == "" and "12 groups" in summarize(frame[frame.group < 12]).note[0]
    old = summarize(frame, interval="percentile").iloc[0]
    assert old.interval == "percentile" and old.value == row.value and old.ci_low != row.ci_low
    with pytest.raises(ValueError, match="cluster"):
        summarize(frame, interval="bca")
    other = frame.assign(id=range(len(frame)))
    both = compare(other, other.assign(pg_hit=1 - other.pg_hit)).iloc[0]
    assert both.n_groups_effective == row.n_groups_effective and both.interval == "cluster"
    frame["io_ratio"] = np.random.default_rng(0).random(len(frame)) / 2 + frame.pg_hit / 2
    related = correlate(frame)
    assert (related.ci_low < related.value).all() and (related.value < related.ci_high).all()


def test_ranges_come_from_contracts_or_from_a_column_of_0_and_1():
    values = np.array([[0.2, 1, 0.5, 0.1], [0.4, 0, 3, 0.7], [np.nan, 1, 4, 0.1]])
    ends = ranges_of(["wdp_soft_rel", "mine", "free", "correct"], values)
    assert ends == [(0, 0.5), (0.0, 1.0), (-np.inf, np.inf), (0.0, 1.0)]
    assert estimate_means(values[:, 1:2], np.arange(3), 3).value[0] == 2 / 3


def test_the_default_covers_where_percentiles_do_not():
    table = coverage_table((30, 10), ("varied", "heavy"), ("accuracy .60", "accuracy .95"), n_runs=400, n_bootstrap=200)
    ours, old = (table[table.method == name].coverage for name in ("cluster", "percentile"))
    assert ours.between(0.92, 0.99).all() and (old < 0.95).all() and old.min() < 0.75
    again = coverage_table((10,), ("heavy",), ("accuracy .95",), n_runs=400, n_bootstrap=200)
    same = table[(table.n_groups == 10) & (table.sizes == "heavy") & (table.score == "accuracy .95")]
    pd.testing.assert_frame_equal(again, same.reset_index(drop=True))


def test_worlds_have_the_truth_and_the_correlation_that_they_name():
    rng = np.random.default_rng(0)
    for score, truth in coverage.SCORES.items():
        sizes = group_sizes("equal", 400, 50, rng)
        world = draw_world(score, sizes, rng)
        rows = sizes.sum()
        assert np.isclose(world.sums.sum() / rows, truth, atol=0.01)
        if score != "continuous score":  # variance of a group's mean: p (1 - p) (1 + 7 icc) / 8
            icc = (np.var(world.sums / 8) / (truth * (1 - truth)) * 8 - 1) / 7
            assert np.isclose(icc, coverage.ICC, atol=0.04), score
    nulls = null_table((60,), ("varied",), (0.6,), n_runs=400, n_permutations=299)
    assert nulls[["by_p_value", "by_interval", "by_t"]].stack().between(0.01, 0.1).all()
