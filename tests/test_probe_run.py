"""Running probes: every form against a slow literal reading, pictures and prompts asked once, what can go wrong."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.special import softmax

from qgcam_lib.data.probes.groups import ContextGroup, RelationGroup, RelCompGroup, SwapPair
from qgcam_lib.errors import ExampleError, FormatError, StoreError
from qgcam_lib.probes import probe, ranking_average_precision
from qgcam_lib.probes.ask import ask_prompts, choices_of, prompts_by_picture, take_groups
from qgcam_lib.probes.run import score_classes, score_groups
from qgcam_lib.probes.score import ScoreTable

PICTURES = [f"{k}.png" for k in range(12)]
CLASSES = tuple("abcdefgh")


def relation(k, n=10):
    few = tuple(PICTURES[(k + i) % 12] for i in range(n))
    prompts = f"{k} on", f"{k} in", f"{k + 1} on"
    return RelationGroup(f"r{k}", PICTURES[k], *prompts, f"s{k}", f"s{k + 1}", few, few[::-1])


def context(k, n=8):
    named = {"reference": PICTURES[k], "patch": PICTURES[k + 1], "edited": PICTURES[k + 2]}
    return ContextGroup(f"b{k}", PICTURES[k], "black", "background", named, CLASSES[k % 3:k % 3 + 2], CLASSES[:n],
                        tuple(f"a {name}" for name in CLASSES[:n]))


GROUPS = {
    "relation": [relation(k, n) for k, n in enumerate((10, 10, 9, 1, 10))],
    "relcomp": [RelCompGroup(f"c{k}", PICTURES[k], "a text", f"yes {k}", "no", "predicate") for k in range(4)],
    "pairs": [SwapPair(f"p{k}", (PICTURES[k], PICTURES[k + 1]), (f"x{k}", "y"), category="color") for k in range(5)],
    "context": [context(k, n) for k, n in enumerate((8, 8, 6, 7))],
}


class Drawn:
    """Scores by a hash of picture and text, on few levels; counts what it is asked."""

    card = {"name": "drawn"}

    def __init__(self, levels=4):
        self.levels, self.seen = levels, []

    def value(self, image, text):
        return (int(np.asarray(image)[0, 0, 0]) * 7 + sum(map(ord, text)) * 13) % self.levels / 2

    def score(self, images, texts):
        self.seen += [int(np.asarray(image)[0, 0, 0]) for image in images]
        return np.array([[self.value(image, text) for text in texts] for image in images])


class Batched(Drawn):
    def score_batch(self, images, texts):
        return [self.score([image], some)[0] for image, some in zip(images, texts)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    for k, name in enumerate(PICTURES):
        Image.new("RGB", (4, 4), (k, 0, 0)).save(root / name)
    return root


def lookup(folder, groups):
    table = ask_prompts(Drawn(), groups, folder, progress=False)
    return table, dict(zip(zip(table["image"], table["prompt"]), table["score"]))


@pytest.mark.parametrize("average", ["logits", "probabilities"])
@pytest.mark.parametrize("form", ["relation", "relcomp"])
def test_choices_equal_a_literal_reading(folder, form, average):
    table, s = lookup(folder, GROUPS[form])
    frame = score_groups(GROUPS[form], table, average=average)
    expected = []
    for group in GROUPS[form]:
        for comparison, pictures, right, wrong in choices_of(group):
            both = np.array([[s[one, right], s[one, wrong]] for one in pictures])
            p = softmax(both.mean(0))[0] if average == "logits" else softmax(both, 1).mean(0)[0]
            expected.append((group.id, group.image, comparison, len(pictures), round(p, 9), bool(p > 0.5 + 1e-12)))
    found = frame.assign(confidence=frame["confidence"].round(9))
    names = ["id", "group", "comparison", "n_images", "confidence", "correct"]
    assert list(found[names].itertuples(index=False, name=None)) == expected
    assert frame["tie"].tolist() == np.isclose(frame["confidence"], 0.5).tolist()


def test_another_number_of_pictures_is_allowed_and_counted(folder):
    frame = probe(Drawn(), GROUPS["relation"], folder, progress=False)
    only = frame[frame["comparison"] == "subject_only"]
    assert only["n_images"].tolist() == [10, 10, 9, 1, 10] and only["confidence"].notna().all()
    assert {n: count for (which, n), count in frame.attrs["n_images"].items() if which == "other_only"} == {
        10: 3, 9: 1, 1: 1}
    none = RelationGroup("r9", PICTURES[0], "a", "b", "c", "s", "t", (), ())
    rows = probe(Drawn(), [none], folder, progress=False).set_index("comparison")
    assert rows["confidence"].isna().tolist() == [False, False, True, True] and rows.loc["other_only", "n_images"] == 0


def test_pairs_equal_a_literal_reading(folder):
    table, s = lookup(folder, GROUPS["pairs"])
    frame = score_groups(GROUPS["pairs"], table)
    for row, pair in zip(frame.itertuples(), GROUPS["pairs"]):
        (a, b), (p, q) = pair.images, pair.prompts
        text, image = s[a, p] > s[a, q] and s[b, q] > s[b, p], s[a, p] > s[b, p] and s[b, q] > s[a, q]
        assert (row.text_score, row.image_score, row.group_score) == (text, image, text and image)
        assert (row.image_1, row.image_2, row.group, row.category) == (a, b, a, "color")


def test_rankings_equal_a_literal_reading_also_with_fewer_classes(folder):
    table, s = lookup(folder, GROUPS["context"])
    frame, classes = score_groups(GROUPS["context"], table), score_classes(GROUPS["context"], table)
    rows = iter(classes.itertuples())
    for row, group in zip(frame.itertuples(), GROUPS["context"]):
        there = [[name in group.present for name in group.classes]]
        ap, shares = {}, {}
        for name, picture in group.pictures.items():
            values = np.array([[s[picture, prompt] for prompt in group.prompts]])
            ap[name], shares[name] = ranking_average_precision(values, there)[0], softmax(values[0])
            assert np.isclose(getattr(row, f"ap_{name}"), ap[name])
            assert np.isclose(getattr(row, f"confidence_{name}"), shares[name][there[0]].mean())
        assert np.isclose(row.robustness_patch_edited, 1 - (ap["patch"] - ap["edited"]) / ap["patch"])
        assert np.isclose(row.change_reference_edited, ap["reference"] - ap["edited"])
        for name in group.present:
            one, place = next(rows), group.classes.index(name)
            assert classes.loc[one.Index, "class"] == name
            assert np.isclose(one.confidence_edited, shares["edited"][place])
            lost = shares["reference"][place] - shares["edited"][place]
            assert np.isclose(one.confidence_change_reference_edited, lost)


@pytest.mark.parametrize("form", list(GROUPS))
def test_each_picture_is_asked_once_with_each_of_its_prompts(folder, form):
    model, groups = Batched(), GROUPS[form]
    table = ask_prompts(model, groups, folder, progress=False, batch_images=5)
    wanted = prompts_by_picture(groups)
    assert sorted(model.seen) == sorted(PICTURES.index(name) for name in wanted)
    assert list(zip(table["image"], table["prompt"])) == [(i, p) for i, prompts in wanted.items() for p in prompts]
    plain = Drawn()
    assert ask_prompts(plain, groups, folder, progress=False).equals(table) and sorted(plain.seen) == sorted(model.seen)


def test_a_part_is_drawn_and_a_store_goes_on(folder, tmp_path):
    groups, model = GROUPS["relation"], Drawn()
    few = probe(model, groups, folder, limit=2, seed=1, store=tmp_path / "store", progress=False)
    assert sorted(set(few["id"])) == sorted(group.id for group in take_groups(groups, 2, 1))
    before = len(model.seen)
    probe(model, groups, folder, limit=2, seed=1, store=tmp_path / "store", progress=False)
    assert len(model.seen) == before
    all_of_them = probe(model, groups, folder, store=tmp_path / "store", progress=False)
    assert all_of_them.equals(probe(Drawn(), groups, folder, progress=False))
    with pytest.raises(StoreError):
        probe(model, GROUPS["pairs"], folder, store=tmp_path / "store", progress=False)


def test_a_missing_picture_stops_the_run_or_leaves_its_groups_undefined(folder):
    lost = SwapPair("lost", (PICTURES[0], "nowhere.png"), ("a", "b"))
    outside = SwapPair("outside", (PICTURES[0], "no/where.png"), ("a", "b"))
    with pytest.raises(ExampleError, match="nowhere.png"):
        probe(Drawn(), [lost], folder, progress=False)
    with pytest.raises(ExampleError):  # no picture of a data set lies outside
        probe(Drawn(), [SwapPair("out", (PICTURES[0], "../secret.png"), ("a", "b"))], folder, progress=False)
    with pytest.raises(ValueError, match="one probe"):
        probe(Drawn(), [*GROUPS["pairs"], *GROUPS["relation"]], folder, progress=False)
    flat = Drawn()
    flat.score = lambda images, texts: np.full((1, len(texts)), np.nan)
    with pytest.raises(ValueError, match="finite"):
        probe(flat, GROUPS["pairs"][:1], folder, progress=False, batch_images=1)
    frame = probe(Drawn(), [*GROUPS["pairs"], lost, outside], folder, on_error="record", progress=False)
    assert frame["group_score"].isna().tolist() == [False] * 5 + [True] * 2
    assert frame["n_ties"].isna().sum() == 2 and len(frame.attrs["problems"]) == 2
    nine = RelationGroup("r", PICTURES[0], "a", "b", "c", "s", "t", (*PICTURES[:9], "nowhere.png"), ("nowhere.png",))
    rows = probe(Drawn(), [nine], folder, on_error="record", progress=False).set_index("comparison")
    assert rows.loc["subject_only", ["n_images", "n_asked"]].tolist() == [9, 10]
    assert rows["confidence"].isna().tolist() == [False, False, False, True]
    lost_b = ContextGroup("b", PICTURES[0], "black", "object", {"reference": PICTURES[0], "patch": "nowhere.png",
                          "edited": PICTURES[1]}, ("a",), ("a", "b"), ("an a", "a b"))
    table = ask_prompts(Drawn(), [lost_b, context(0)], folder, on_error="record", progress=False)
    with pytest.raises(ExampleError, match="nowhere.png"):
        score_groups([lost_b, context(0)], table)
    frame = score_groups([lost_b, context(0)], table, missing="undefined")
    assert frame.filter(regex="^(ap|conf|first|robust|change)").iloc[0].isna().all() and frame["ap_edited"].notna()[1]
    assert score_classes([lost_b, context(0)], table, missing="undefined")["first_edited"].isna().sum() == 1


def test_a_table_that_lacks_something_says_what(folder):
    table, _ = lookup(folder, GROUPS["pairs"])
    with pytest.raises(ExampleError, match="p2.*'2.png'.*'x2'"):
        score_groups(GROUPS["pairs"], table[~((table["image"] == "2.png") & (table["prompt"] == "x2"))])
    with pytest.raises(FormatError, match="prompt"):
        score_groups(GROUPS["pairs"], table.rename(columns={"prompt": "text"}))
    for wrong in (np.inf, "high"):
        with pytest.raises(FormatError, match="finite number"):
            score_groups(GROUPS["pairs"], table.assign(score=[wrong, *[0] * (len(table) - 1)]))
    with pytest.raises(FormatError, match="one score"):
        ScoreTable(pd.concat([table, table.assign(score=9)]))
    assert score_groups(GROUPS["pairs"], pd.concat([table, table])).equals(score_groups(GROUPS["pairs"], table))
    some = score_groups(GROUPS["pairs"], table[table["image"] != "5.png"], missing="undefined")
    assert some["confidence"].isna().tolist() == [False] * 4 + [True]


def test_rows_and_groups_may_come_in_any_order(folder):
    table, _ = lookup(folder, GROUPS["context"])
    shuffled = table.sample(frac=1, random_state=0)
    assert score_groups(GROUPS["context"], shuffled).equals(score_groups(GROUPS["context"], table))
    turned = score_groups(GROUPS["context"][::-1], table)[::-1].reset_index(drop=True)
    assert turned.equals(score_groups(GROUPS["context"], table))
