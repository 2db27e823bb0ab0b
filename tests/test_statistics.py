"""Bootstrap by group and paired comparison, against SciPy and by properties."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from qgcam_lib.statistics import compare, summarize


def frame(n_groups=40, per_group=5, seed=0, spread=0.08, shift=0.0):
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(n_groups), per_group)
    n = len(group)
    return pd.DataFrame(
        {
            "id": [f"e{k}" for k in range(n)],
            "group": [f"image{g:03d}" for g in group],
            "model": np.where(np.arange(n) % 2, "one", "two"),
            "io_ratio": 0.4 + shift + rng.normal(0, spread, n_groups)[group] + rng.normal(0, 0.04, n),
            "pg_uncertain": rng.random(n) < 0.2,
        }
    )


def test_interval_is_scipys_when_every_group_has_one_row():
    data = frame(60, 1)
    ours = summarize(data, "io_ratio", n_bootstrap=20_000, interval="percentile").iloc[0]
    theirs = stats.bootstrap(
        (data.io_ratio.to_numpy(),), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    width = theirs.high - theirs.low
    assert abs(ours.ci_low - theirs.low) < 0.05 * width and abs(ours.ci_high - theirs.high) < 0.05 * width
    assert np.isclose(ours.value, data.io_ratio.mean())


def test_p_value_is_scipys_permutation_test_when_every_group_has_one_row():
    a, b = frame(30, 1, seed=1), frame(30, 1, seed=2, shift=0.1)
    ours = compare(a, b, "io_ratio").iloc[0]
    theirs = stats.permutation_test(
        (a.io_ratio.to_numpy(), b.io_ratio.to_numpy()),
        lambda x, y: np.mean(x - y),
        permutation_type="samples",
        n_resamples=9999,
        rng=np.random.default_rng(3),
    )
    assert abs(ours.p_value - theirs.pvalue) < 0.03 and np.isclose(ours.difference, theirs.statistic)


def test_replicates_are_those_of_a_loop_over_drawn_groups():
    """The matrix product equals drawing groups with replacement and averaging all their rows."""
    data = frame(12, 4)
    data.loc[[0, 1, 2, 3, 17], "io_ratio"] = np.nan
    rng = np.random.default_rng(0)
    groups = [g.io_ratio.to_numpy() for _, g in data.groupby("group")]
    loop = [np.nanmean(np.concatenate([groups[k] for k in rng.integers(0, 12, 12)])) for _ in range(4000)]
    ours = summarize(data, "io_ratio", n_bootstrap=4000, interval="percentile").iloc[0]
    width = np.subtract(*np.quantile(loop, [0.975, 0.025]))
    assert np.allclose([ours.ci_low, ours.ci_high], np.quantile(loop, [0.025, 0.975]), atol=0.06 * width)
    assert ours.n == 43 and ours.n_undefined == 5 and ours.n_groups == 11


def test_clustering_widens_the_interval_and_repeating_rows_does_not_narrow_it():
    data = frame()
    width = lambda t: (t.ci_high - t.ci_low).iloc[0]  # noqa: E731
    assert width(summarize(data, "io_ratio")) > 1.5 * width(summarize(data, "io_ratio", group=None))
    repeated = pd.concat([data] * 10).drop(columns="id")
    again = summarize(repeated, "io_ratio")
    assert np.isclose(width(again), width(summarize(data, "io_ratio")), rtol=0.02)


@given(st.integers(0, 999))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_row_order_changes_nothing_and_the_seed_decides(seed):
    data = frame(15, 3)
    shuffled = data.sample(frac=1, random_state=seed)
    one, two = summarize(data, n_bootstrap=200), summarize(shuffled, n_bootstrap=200)
    pd.testing.assert_frame_equal(one, two)
    other = data.assign(io_ratio=data.io_ratio + 0.01)
    pd.testing.assert_frame_equal(
        compare(data, other, n_bootstrap=200, n_permutations=99),
        compare(shuffled, other, n_bootstrap=200, n_permutations=99),
    )
    drawn = [summarize(data, n_bootstrap=200, seed=s, interval="percentile").ci_low[0] for s in (seed, seed + 1)]
    assert drawn[0] != drawn[1] and one.ci_low[0] == summarize(data, n_bootstrap=1, seed=seed + 1).ci_low[0]


def test_columns_and_cells():
    data = frame()
    table = summarize(data, by="model", n_bootstrap=100)
    assert list(table.columns)[:8] == ["model", "metric", "value", "ci_low", "ci_high", "n", "n_undefined", "n_groups"]
    assert np.allclose(table.n_groups_effective, 100**2 / (20 * 2**2 + 20 * 3**2))
    assert (table.interval == "cluster").all()
    assert (
        table.metric.tolist() == ["io_ratio", "pg_uncertain"] * 2 and table.model.tolist() == ["one"] * 2 + ["two"] * 2
    )
    alone = summarize(data[data.model == "one"], n_bootstrap=100)
    pd.testing.assert_frame_equal(
        table[table.model == "one"].drop(columns="model"), alone
    )  # a cell does not depend on the others
    assert np.isclose(table.value[1], data[data.model == "one"].pg_uncertain.mean())
    assert (table.ci_low <= table.value).all() and (table.value <= table.ci_high).all() and (table.note == "").all()
    wide, narrow = (summarize(data, "io_ratio", level=level) for level in (0.99, 0.5))
    assert wide.ci_low[0] < narrow.ci_low[0] < narrow.ci_high[0] < wide.ci_high[0]


def test_degenerate_cases_say_why():
    one_group = pd.DataFrame(
        {"group": ["a"] * 3, "io_ratio": [0.1, 0.2, np.nan], "wdp_binary": [np.nan] * 3, "id": [1, 2, 3]}
    )
    table = summarize(one_group).set_index("metric")
    assert table.ci_low.isna().all() and table.ci_high.isna().all()
    assert table.note["io_ratio"].startswith("one group") and table.note["wdp_binary"].startswith("undefined")
    assert np.isnan(table.value["wdp_binary"]) and table.n_undefined.to_dict() == {"io_ratio": 1, "wdp_binary": 3}
    assert compare(one_group, one_group)[["ci_low", "p_value"]].isna().all(axis=None)
    nothing = summarize(one_group.iloc[:0])
    assert (nothing.n == 0).all() and nothing.value.isna().all()
    assert summarize(one_group.iloc[:0], by="id").empty
    two = pd.DataFrame({"group": ["a", "b"], "io_ratio": [0.5, 0.5]})
    assert summarize(two)[["value", "ci_low", "ci_high"]].eq(0.5).all(axis=None)
    assert summarize(two, n_bootstrap=0).note[0] and summarize(two, n_bootstrap=0).ci_low.isna().all()


def test_a_group_that_is_undefined_somewhere_leaves_no_nan():
    data = pd.DataFrame({"group": ["a", "b", "c"], "io_ratio": [0.2, np.nan, 0.8]})
    row = summarize(data).iloc[0]
    assert row.value == 0.5 and row.n_groups == 2 and 0 < row.ci_low < 0.2 and 0.8 < row.ci_high < 1


def test_kinds_of_columns():
    data = pd.DataFrame(
        {
            "group": ["a", "b", "b"],
            "pg_uncertain": [True, None, False],
            "pg_ties": pd.array([1, None, 2], dtype="Int64"),
            "pg_hit": [None, None, None],
        }
    )
    table = summarize(data).set_index("metric")
    assert table.value[["pg_uncertain", "pg_ties"]].tolist() == [0.5, 1.5] and np.isnan(table.value["pg_hit"])


def test_compare_counts_what_it_leaves_out():
    a, b = frame(20, 5), frame(20, 5, shift=-0.05)
    b.loc[[0, 1], "io_ratio"] = np.nan
    a.loc[[1, 2], "io_ratio"] = np.nan
    row = compare(a, b.iloc[:-4], "io_ratio").iloc[0]
    assert (row.n, row.n_undefined, row.n_unmatched, row.n_groups) == (93, 3, 4, 20)
    assert np.isclose(row.difference, 0.05) and np.isclose(row.a - row.b, row.difference)
    assert (
        row.ci_low - 1e-12 <= row.difference <= row.ci_high + 1e-12 and row.p_value < 0.001
    )  # the same noise: a difference without spread
    back = compare(b.iloc[:-4], a, "io_ratio").iloc[0]
    assert np.isclose(back.difference, -row.difference) and back.p_value == row.p_value


def test_a_run_does_not_differ_from_itself():
    data = frame()
    same = compare(data, data)
    assert (same.difference == 0).all() and (same.p_value == 1).all() and (same.ci_low == 0).all()


def test_p_values_of_no_difference_are_spread_evenly():
    p = [
        compare(
            frame(20, 2, seed=2 * s), frame(20, 2, seed=2 * s + 1), "io_ratio", n_bootstrap=2, n_permutations=199
        ).p_value[0]
        for s in range(60)
    ]
    assert stats.kstest(p, "uniform").pvalue > 0.01 and np.mean(np.array(p) < 0.05) <= 0.15


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda d: summarize(d, "iou"), "metrics.*iou"),
        (lambda d: summarize(d.drop(columns=["io_ratio", "pg_uncertain"])), "metrics"),
        (lambda d: summarize(d, by="split"), "by.*split"),
        (lambda d: summarize(d, group="image"), "group=None"),
        (lambda d: summarize(d.assign(group=None)), "missing"),
        (lambda d: summarize(d, level=1.5), "level"),
        (lambda d: summarize(d, n_bootstrap=-1), "n_bootstrap"),
        (lambda d: summarize(d.assign(io_ratio=np.inf)), "infinity"),
        (lambda d: compare(d, d.drop(columns="id")), "on.*b lacks"),
        (lambda d: compare(pd.concat([d, d]), d), "twice in a"),
        (lambda d: compare(d, d.assign(id=range(len(d)))), "same data"),
        (lambda d: compare(d, d.assign(group="x")), "group"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(frame(4, 2))


def test_rows_of_two_groups_count_with_the_product_of_their_weights():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"a": rng.integers(0, 9, 60), "b": rng.integers(0, 9, 60), "io_ratio": rng.random(60)})
    frame.loc[5, "io_ratio"] = np.nan
    found = summarize(frame, "io_ratio", group=("a", "b"), n_bootstrap=50, seed=4, interval="percentile").iloc[0]
    drawn, means = np.random.default_rng(4).multinomial(9, np.full(9, 1 / 9), 50), []
    for w in drawn:
        rows = [(w[r.a] * w[r.b], r.io_ratio) for r in frame.itertuples() if r.io_ratio == r.io_ratio]
        means.append(sum(k * x for k, x in rows) / sum(k for k, _ in rows))
    assert np.allclose([found.ci_low, found.ci_high], np.quantile(means, [0.025, 0.975]))
    assert (found.n, found.n_undefined, found.n_groups) == (59, 1, 9) and np.isclose(found.value, frame.io_ratio.mean())
    turned = summarize(frame.sample(frac=1, random_state=0), "io_ratio", group=["b", "a"], n_bootstrap=50, seed=4,
                       interval="percentile")
    assert np.isclose(turned.ci_low[0], found.ci_low)
    with pytest.raises(ValueError, match="or two"):
        summarize(frame, "io_ratio", group=("a", "c"))


def test_runs_over_pairs_of_groups_are_compared_by_students_t():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": range(80), "a": np.arange(80) % 20, "b": (np.arange(80) * 7 + 3) % 20,
                          "io_ratio": 0.1 + 0.9 * rng.random(80)})
    same, less = frame.copy(), frame.assign(io_ratio=0.9 * frame.io_ratio - rng.random(80) / 50 - 1e-3)
    none = compare(frame, same, group=("a", "b")).iloc[0]
    plain = compare(frame, less, group=("a", "b"), n_bootstrap=400).iloc[0]
    assert none.p_value == 1 and none.difference == 0
    assert plain.p_value < 1e-9 and 0 < plain.ci_low < plain.difference < plain.ci_high
    with pytest.raises(ValueError, match="the same"):
        compare(frame, same.assign(b=0), group=("a", "b"))


def test_an_interval_stays_in_what_was_observed_and_groups_in_the_rows():
    frame = pd.DataFrame({"id": ["a", "b"], "group": ["a", "b"], "pg_ties": [1503, 661]})
    row = summarize(frame, "pg_ties").iloc[0]
    assert (row.ci_low, row.ci_high) == (1, 1503) and row.value == 1082
    apart = compare(frame, frame.assign(pg_ties=[1, 1500]), "pg_ties").iloc[0]
    assert -1502 <= apart.ci_low <= apart.difference <= apart.ci_high <= 1502
    pairs = pd.DataFrame({"id": range(12), "one": range(12), "two": range(12, 24), "score": [0, 1] * 6})
    row = summarize(pairs, "score", group=("one", "two")).iloc[0]
    assert row.n_groups == 24 and row.n_groups_effective == 12 == row.n
