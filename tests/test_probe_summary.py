"""Tables of a probe: intervals by image, chance and blind beside each score, categories, paired differences."""

import numpy as np
import pandas as pd
import pytest

from qgcam_lib.data.probes.groups import ContextGroup, RelationGroup, SwapPair
from qgcam_lib.probes.ask import prompts_by_picture
from qgcam_lib.probes.run import score_classes, score_groups
from qgcam_lib.probes.summary import NO_CATEGORY, compare_probe, layout_of, summarize_probe
from qgcam_lib.statistics import compare, summarize

TEN = tuple(f"{n}.png" for n in range(10))
RELATIONS = [RelationGroup(f"r{k}", f"{k % 7}.png", "on", "in", "under", "dog", "cat", TEN, ("8.png",))
             for k in range(30)]
PAIRS = [SwapPair(f"p{k}", (f"{k % 6}.png", f"{6 + k % 5}.png"), (f"a{k % 9}", f"b{k % 9}"), (word, "other"),
                  kind=("composition", "object")[k % 2], category=category)
         for k, (word, category) in enumerate([("red", ""), ("old", "age"), ("glassy", ""), ("red", "mine")] * 10)]
CLASSES = ("dog", "cat", "apple", "griffin", "sink")
CONTEXTS = [ContextGroup(f"b{k}-{filler}", f"{k}.png", filler, "background",
                         {"reference": f"{k}.png", "patch": f"{k + 1}.png", "edited": f"{k + 2}.png"},
                         CLASSES[k % 3:k % 3 + 1 + k % 2], CLASSES, CLASSES)
            for k in range(9) for filler in ("black", "gray")]


def drawn_scores(groups, seed):
    r = np.random.default_rng(seed)
    rows = [(image, prompt, r.normal()) for image, prompts in prompts_by_picture(groups).items() for prompt in prompts]
    return pd.DataFrame(rows, columns=["image", "prompt", "score"])


def scored(groups, seed=0):
    return score_groups(groups, drawn_scores(groups, seed))


def classes(seed=0):
    return score_classes(CONTEXTS, drawn_scores(CONTEXTS, seed))


@pytest.mark.parametrize("groups", [RELATIONS, PAIRS, CONTEXTS], ids=["relation", "pairs", "context"])
def test_values_and_intervals_are_those_of_the_shared_statistics(groups):
    frame = scored(groups)
    layout = layout_of(frame)
    table = summarize_probe(frame, n_bootstrap=100, seed=3)
    plain = summarize(frame, list(layout.metrics), by=list(layout.by), group=layout.group, n_bootstrap=100, seed=3)
    pd.testing.assert_frame_equal(table.drop(columns=["chance", "blind"]), plain)
    assert list(table)[len(layout.by):][:6] == ["metric", "value", "ci_low", "ci_high", "chance", "blind"]
    whole = summarize_probe(frame, (), metrics=layout.metrics[0], n_bootstrap=0)
    assert len(whole) == 1 and np.isclose(whole["value"][0], frame[layout.metrics[0]].mean())


def test_chance_stands_beside_each_score():
    table = summarize_probe(scored(PAIRS), n_bootstrap=0).groupby("metric")["chance"].first()
    assert np.allclose(table[["text_score", "image_score", "group_score", "confidence"]], [1 / 4, 1 / 4, 1 / 6, 1 / 2])
    assert np.isnan(table["n_ties"])
    table = summarize_probe(scored(RELATIONS), n_bootstrap=0)
    assert table.loc[table["metric"] == "correct", "chance"].eq(0.5).all()


def test_the_chance_of_probe_b_is_what_random_scores_give():
    tables = [summarize_probe(frame, (), n_bootstrap=0).set_index("metric") for seed in range(30)
              for frame in (scored(CONTEXTS, seed),)]
    by_class = [summarize_probe(classes(seed), (), n_bootstrap=0).set_index("metric") for seed in range(30)]
    for drawn, names in ((tables, ("ap_reference", "first_patch", "confidence_edited")),
                         (by_class, ("first_reference", "confidence_patch"))):
        for name in names:
            values = [table.loc[name, "value"] for table in drawn]
            assert abs(np.mean(values) - drawn[0].loc[name, "chance"]) < 4 * np.std(values) / 30 ** 0.5, name


def test_blind_is_taken_row_by_row_and_where_the_score_is_defined():
    frame, blind = scored(RELATIONS, 1), scored(RELATIONS, 2)
    frame.loc[[0, 4], ["confidence", "correct", "tie"]] = np.nan
    table = summarize_probe(frame, blind=blind.sample(frac=1, random_state=0), n_bootstrap=0).set_index(
        ["comparison", "metric"])
    seen = blind[(blind["comparison"] == "predicate") & frame["confidence"].notna()]
    assert np.isclose(table.loc[("predicate", "confidence"), "blind"], seen["confidence"].mean())
    assert table.loc[("predicate", "correct"), ["n", "n_undefined"]].tolist() == [28, 2]
    with pytest.raises(ValueError, match="blind"):
        summarize_probe(frame, blind=blind[1:])


def test_categories_are_given_looked_up_or_named_as_none():
    table = summarize_probe(scored(PAIRS), "category", metrics="text_score", n_bootstrap=0).set_index("category")
    assert table["n"].to_dict() == {NO_CATEGORY: 10, "age": 10, "color": 10, "mine": 10}
    table = summarize_probe(classes(), ["category", "class"], metrics="first_edited", n_bootstrap=0)
    assert set(zip(table["category"], table["class"])) == {
        ("animals", "dog"), ("animals", "cat"), (NO_CATEGORY, "apple"), (NO_CATEGORY, "griffin")}


def test_comparing_is_done_by_the_shared_statistics_cell_by_cell():
    a, b = scored(RELATIONS, 1), scored(RELATIONS, 2)
    found = compare_probe(a, b.sample(frac=1, random_state=1), metrics="correct", n_bootstrap=50, n_permutations=99)
    for row in found.itertuples():
        one = compare(*(x[x["comparison"] == row.comparison] for x in (a, b)), "correct", n_bootstrap=50,
                      n_permutations=99).iloc[0]
        assert (one.difference, one.ci_low, one.p_value) == (row.difference, row.ci_low, row.p_value)
    same = compare_probe(a, a, (), n_bootstrap=20, n_permutations=19)
    assert (same["difference"] == 0).all() and (same["p_value"] == 1).all() and len(same) == 3
    pairs = compare_probe(scored(PAIRS, 1), scored(PAIRS[:-4], 2), (), metrics="group_score", n_bootstrap=50)
    assert pairs["n_unmatched"][0] == 4 and pairs["n_groups"][0] == 11
    by_class = compare_probe(classes(1), classes(2), "category", metrics="first_edited", n_bootstrap=20)
    assert set(by_class["category"]) == {"animals", NO_CATEGORY}
    with pytest.raises(ValueError):
        compare_probe(a, scored(PAIRS))
