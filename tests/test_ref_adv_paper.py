"""Ref-Adv: its description and sentences, the audit against literal loops, and the notebook through the runner."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.boxes import box_iou
from qgcam_lib.data.catalog import expression_files
from qgcam_lib.data.referring.expressions import Expression
from qgcam_lib.errors import ExampleError
from qgcam_lib.miniworld import ensure_refcocog
from qgcam_lib.miniworld.words.grammar import NOUNS as WORDS_FOR_THINGS
from qgcam_lib.papers.ref_adv.audit import (
    candidate_sets,
    candidate_table,
    cut_falls,
    label_table,
    last_word_table,
    last_words,
    pairs_apart,
    random_falls,
    rules,
    rules_beside,
    share_table,
)
from qgcam_lib.papers.ref_adv.claims import CLAIMS, ROLES, claim_tables, printed_tables, with_test
from qgcam_lib.papers.ref_adv.data import open_ref_adv
from qgcam_lib.papers.ref_adv.gallery import choose_pairs, parallel
from qgcam_lib.papers.ref_adv.listeners import (
    LISTENERS,
    against_listeners,
    ask_listeners,
    both_right,
    listeners_of,
    meanings,
    order_effects,
    run_costs,
    what_decides,
)
from qgcam_lib.papers.ref_adv.runs import (
    drawn,
    remedy_gains,
    split_falls,
    summarize_rankers,
    word_costs,
    worded,
)
from qgcam_lib.report.claims import assign_roles, check_claims
from qgcam_lib.runs.runner import run_notebook
from qgcam_lib.settings import ROOT

NOTEBOOK = ROOT / "nbs" / "papers" / "ref_adv_audit.ipynb"
EVALUATE = NOTEBOOK.with_name("ref_adv_evaluate.ipynb")
REAL = ROOT.parent / "shared" / "realdata" / "ref_adv"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no real Ref-Adv files (../shared/realdata/ref_adv)")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return ensure_refcocog(tmp_path_factory.mktemp("world") / "w", n_train=0, n_val=0, n_test=12, progress=False)


@pytest.fixture(scope="module")
def data(world):
    return open_ref_adv(world)


# ---------------------------------------------------------------- the printed tables


def test_claims_are_counted_on_the_printed_tables():
    tables = printed_tables()
    found = check_claims(CLAIMS, tables, assign_roles(ROLES, tables["accuracy"].index)).set_index("claim")
    robust = found[found.index.str.startswith("robust, read")]
    assert robust["result"].tolist() == ["does not hold", "holds"] and robust["of"].tolist() == [6, 6]
    assert (found.loc["accuracy on Ref-Adv is 12 to 23 points below that on test", ["holds", "of"]] == [4, 4]).all()
    assert found.loc["shuffling costs a model that is not ViLBERT less than five points (our limit)", "result"] == (
        "does not hold")
    assert found.loc["people find 98, 95 and 96 of 100 targets", "result"] == "not testable here: people are not asked"


def test_only_the_papers_models_decide_its_claims_and_an_interval_with_zero_leaves_them_open(data):
    some = drawn(data)
    order = listener(some, "vilbert", lambda words, split: words == "original" or split == "easy")
    never = listener(some, "cmn", lambda words, split: False)
    frames = {"vilbert": order, "cmn": never, "detector-boxes": order}
    tables = claim_tables(frames, n_bootstrap=100)
    assert set(tables["differences"].index) == {"vilbert", "cmn"}
    found = check_claims(CLAIMS, tables, assign_roles(ROLES, list(frames))).set_index("claim")
    more = found.loc["a perturbation costs ViLBERT more on Ref-Hard and on Ref-Adv than on Ref-Easy"]
    assert (more["holds"], more["of"], more["result"]) == (4, 4, "holds")
    assert found.loc["ViLBERT is above each other model of Table 2", ["holds", "of"]].tolist() == [4, 4]
    below = found.loc["accuracy on Ref-Adv is below that on Ref-Hard"]
    assert (below["holds"], below["of"]) == (0, 2) and below["result"] == "does not hold"  # both are as right on both
    half = order.assign(correct=[k % 2 for k in range(len(order))])
    noisy = check_claims(CLAIMS, claim_tables({"vilbert": half, "cmn": half.assign(correct=1 - half["correct"])},
                                              n_bootstrap=100), {"vilbert": "vilbert"}).set_index("claim")
    assert noisy.loc["ViLBERT is above each other model of Table 2", "undecided"] > 0


def test_pairs_of_rows_are_apart_exactly_where_no_share_fits_both():
    shares, table, step = share_table(), printed_tables()["accuracy"], 0.005

    def fits(row, share):
        """Literal: do some unrounded numbers give this share?"""
        ends = [share * (row["easy"] + a) + (1 - share) * (row["hard"] + b) - row["test"] - c
                for a, b, c in product((-step, step), repeat=3)]
        return min(ends) <= 0 <= max(ends)

    grid = np.arange(0.74, 0.92, 0.00005)
    ok = {name: np.array([fits(row, share) for share in grid]) for name, row in table.iterrows()}
    apart = sum(not (ok[a] & ok[b]).any() for k, a in enumerate(ok) for b in list(ok)[k + 1:])
    assert pairs_apart(shares) == (apart, 21)
    max_h = shares.set_index("model").loc["vilbert-max-h"]
    assert max_h["test_at_stated"] == pytest.approx(0.837 * 86.58 + 0.163 * 70.46)


# ---------------------------------------------------------------- files and candidates


def test_the_data_are_found_by_name_folder_and_file(world, data, tmp_path):
    assert [file.name for file in expression_files(world)] == ["adv_easy_hard_annotations.json",
                                                              "refcocog_adv_annotations.json"]
    assert data.is_miniworld and set(data.choices) == {one.id for one in data.plain}
    alone = open_ref_adv(world / "refcocog_adv_annotations.json")
    assert {one.split for one in alone.expressions} == {"hard", "adv"} and len(alone.raw) == len(data.raw)
    with pytest.raises(ExampleError, match="no file of Ref-Adv"):
        open_ref_adv(tmp_path)


def test_candidates_are_the_objects_of_the_picture_each_once(data):
    sets = candidate_sets(data.expressions)
    for before, few, many in zip(data.expressions, sets["targets"], sets["all"]):
        same = [one for one in data.expressions if one.image == before.image]
        assert set(many.candidates) <= {box for one in same for box in one.candidates}
        assert set(few.candidates) <= {one.box for one in same if one.split != "adv"}
        assert before.box in many.candidates and (before.split == "adv" or before.box in few.candidates)
        if len(many.candidates) > 1:
            overlap = box_iou(many.candidates, many.candidates) - np.eye(len(many.candidates))
            assert overlap.max() < 0.9
    table = candidate_table(sets, n_bootstrap=0).set_index(["candidates", "split"])
    literal = np.mean([1 / len(one.candidates) for one in data.expressions if one.split == "easy"])
    assert table.loc[("released", "easy"), "value"] == pytest.approx(literal)


def test_a_fall_of_random_choice_needs_both_splits_and_is_none_for_equal_boxes():
    a, b = (0, 0, 9, 9), (20, 0, 29, 9)
    few = Expression("e", "1.jpg", "1", "cat", a, (a,), "easy")
    many = Expression("a", "1.jpg", "1", "dog", b, (a, b), "adv")
    other = Expression("f", "2.jpg", "2", "cat", a, (a,), "easy")
    falls = random_falls(candidate_sets([few, many, other]), mixed=True, n_bootstrap=0).set_index("candidates")
    assert falls["difference"].tolist() == [0.5, 0.0, 0.5] and falls["n"].tolist() == [3, 2, 3]
    assert random_falls(candidate_sets([few]), n_bootstrap=0).empty
    assert cut_falls([few], n_bootstrap=0).empty
    long = replace(many, text=" ".join(["dog"] * 20))
    assert cut_falls([few, long], n_bootstrap=0)["difference"].tolist() == [1.0]
    assert cut_falls([few, replace(many, text=" ".join(["dog"] * 19))], n_bootstrap=0)["difference"].tolist() == [0.0]


# ---------------------------------------------------------------- labels and strings


def test_labels_and_rules_are_those_of_a_literal_count(data):
    table = label_table(data).set_index("split")
    assert (table.loc["hard", "own"], table.loc["easy", "own"]) == (table.loc["hard", "expressions"], 0)
    found = rules(data)
    for row, one in zip(found.itertuples(), data.plain):
        votes = sum(bool(one.right()[place]) for place in data.choices[one.id])
        assert row.by_people == ("easy" if votes >= 3 else "hard")
        assert row.by_text == ("hard" if one.text in {raw.original for raw in data.raw} else "easy")
    assert rules_beside(found)["n"].sum() == len(data.plain)
    unknown = replace(data, choices={}, raw=[])
    assert rules(unknown).empty and rules_beside(rules(unknown)).empty and label_table(unknown).empty


NOUNS = ("cat", "dog", "table", "hat")


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(NOUNS), min_size=1, max_size=4), st.sampled_from(["", ".", " ."]), st.booleans())
def test_a_last_word_is_lost_where_the_shipped_string_ends_before_it(nouns, end, lose):
    text, shipped = "the " + " and the ".join(nouns), nouns[:-1] if lose else nouns
    one = Expression("1", "a.jpg", "1", "x", (0, 0, 9, 9), split="adv", annotation="1", original=text + end,
                     shipped={"noun_adj": " ".join(shipped)})
    found = last_words([one, replace(one, id="2")]).iloc[0]
    assert found["mark"] == bool(end) and found["content"]
    assert found["kept"] == (shipped[-1:] == nouns[-1:])
    table = last_word_table(last_words([one]), n_bootstrap=0)
    assert table["lost"].tolist() == [int(not found["kept"])] and table["strings"].tolist() == [1]


# ---------------------------------------------------------------- models


def listener(expressions, model, right):
    """Choices of a made-up model: right(words, split) says where it finds the target; else it takes another box."""
    from qgcam_lib.referring.score import score_choices

    asked = worded(expressions)
    rows = [(one.id, place, float((box == one.box) == right(one.id.split(":")[0], one.split)))
            for one in asked for place, box in enumerate(one.candidates)]
    frame = score_choices(asked, pd.DataFrame(rows, columns=["id", "candidate", "score"]))
    parts = frame["id"].str.split(":", n=1, expand=True)
    return frame.assign(id=parts[1], words=parts[0], model=model)


def test_falls_and_costs_are_those_of_a_model_that_needs_the_order(data):
    some = drawn(data)
    frames = {"bag": listener(some, "bag", lambda words, split: split == "easy"),
              "order": listener(some, "order", lambda words, split: words == "original" or split == "easy")}
    summary = summarize_rankers(frames, n_bootstrap=50).set_index(["model", "split", "words"])["value"]
    assert summary["bag", "adv", "original"] == 0 and summary["order", "hard", "original"] == 1
    easy = sum(one.split == "easy" for one in some)
    assert summary["bag", "test", "original"] == pytest.approx(easy / sum(one.split != "adv" for one in some))
    falls = split_falls(frames, n_bootstrap=50).set_index(["model", "a", "b"])
    assert falls.loc[("bag", "easy", "adv"), ["difference", "hypothesis"]].tolist() == [1, "supported"]
    assert falls.loc[("order", "easy", "adv"), ["difference", "hypothesis"]].tolist() == [0, "open"]
    costs = word_costs(frames, n_bootstrap=50, n_permutations=99).set_index(["model", "words", "split"])
    assert costs.loc[("order", "shuffled", "adv"), ["difference", "hypothesis"]].tolist() == [1, "supported"]
    assert (costs.loc["bag", "difference"] == 0).all()
    effects = order_effects(run_costs(frames), n_bootstrap=50).set_index(["model", "split"])
    assert effects.loc[("order", "adv"), ["cost", "cost_easy", "hypothesis"]].tolist() == [1, 0, "supported"]
    assert (effects.loc["bag", "difference"] == 0).all()
    assert order_effects(run_costs({"x": frames["bag"][frames["bag"]["words"] == "original"]})).empty
    pairs = parallel(data)
    chosen = choose_pairs(pairs, frames)
    assert chosen.loc[chosen["role"] == "both right", "strength"].tolist() == [0.5] and "neither" in set(chosen["role"])
    assert choose_pairs(pairs, {}).empty


def test_a_remedy_is_compared_with_vilbert_on_the_same_expressions_and_in_the_printed_direction(data):
    some = drawn(data)
    half = {one.id for one in some[::2]}
    plain = listener(some, "vilbert", lambda words, split: words == "original" and split == "easy")
    better = plain.assign(correct=plain["correct"] | plain["id"].isin(half))
    options = {"n_bootstrap": 50, "n_permutations": 99}
    gains = remedy_gains({"vilbert": plain, "vilbert-max-h": better, "vilbert-mtl": plain}, **options)
    found = gains.set_index(["model", "split"])
    literal = np.mean([one.id in half for one in some if one.split == "adv"])
    assert found.loc[("vilbert-max-h", "adv"), "difference"] == pytest.approx(literal)
    printed = {name: found.loc[("vilbert-max-h", name), "printed"] for name in ("test", "easy", "hard", "adv")}
    assert printed == pytest.approx({"test": -0.0093, "easy": 0.0065, "hard": -0.0154, "adv": 0.0245})
    assert found.loc["vilbert-max-h", "hypothesis"].to_dict() == {
        "test": "against", "easy": "open", "hard": "against", "adv": "supported"}
    assert (found.loc["vilbert-mtl", "hypothesis"] == "open").all()
    sum_h = remedy_gains({"vilbert": plain, "vilbert-sum-h": better}, **options).set_index("split")
    assert sum_h.loc["easy", "hypothesis"] == "no direction"
    assert remedy_gains({"vilbert-mtl": plain}).empty and list(remedy_gains({})) == list(gains)
    assert len(with_test(plain)) == len(plain) + (plain["split"] != "adv").sum()


def test_listeners_get_what_a_literal_lot_gets(data):
    some, known = drawn(data), listeners_of(data)
    heard = ask_listeners(data, some)
    for k, one in enumerate(some):
        knows = known[one.image]
        boxes = [knows.scene.thing(number).box for number in knows.candidates]
        target = knows.candidates[int(box_iou(boxes, one.box).argmax())]
        first = next(k for k, word in enumerate(one.text.split()) if word in WORDS_FOR_THINGS)
        named = set(knows.hear(" ".join(one.text.split()[:first + 1])).possible)
        bag = set(knows.bag(one.text))
        for name, things in zip(LISTENERS, (bag, named, bag & named), strict=True):
            assert heard[name]["correct"][k] == pytest.approx((target in things) / len(things))
            assert heard[name]["ties"][k] == len(things) - 1
    bag = heard["bag of words"].set_index("id")["correct"]
    assert {name: bag[name] for name in data.bags} == pytest.approx(data.bags)
    given = replace(data, is_miniworld=False)
    assert ask_listeners(given, some) == {} and meanings(given).empty
    meant = meanings(data, how=("plain", "shuffle")).set_index(["how", "split"])
    assert (meant.loc["plain", "same"] == 1).all() and (meant.loc["shuffle", "same"] < 0.2).all()
    assert meant.loc["plain", "expressions"].to_dict() == {
        name: sum(one.split == name for one in some) for name in ("easy", "hard", "adv")}


def test_candidates_that_lack_what_a_listener_names_leave_it_the_lot_among_all(data):
    one = next(one for one in data.expressions if one.split == "hard")
    bare = replace(one, candidates=((0.0, 0.0, 1.0, 1.0), (1.0, 0.0, 2.0, 1.0), one.box)[:2])
    none = replace(one, id="none", candidates=())
    heard = ask_listeners(data, [bare, none])
    assert [frame["correct"].tolist() for frame in heard.values()] == [[0.0]] * 3
    assert heard["bag of words"]["ties"].tolist() == [1]


def test_what_the_order_decides_is_what_is_left_by_every_listener(data):
    some = drawn(data)
    heard = ask_listeners(data, some)
    frames = {"exact": listener(some, "exact", lambda words, split: True),
              "easy": listener(some, "easy", lambda words, split: split == "easy")}
    decided = what_decides(frames, heard, n_bootstrap=20).set_index(["model", "split", "decided_by"])
    counts = decided.loc["exact"].groupby("split")["n"].sum()
    assert counts.to_dict() == {name: sum(one.split == name for one in some) for name in ("easy", "hard", "adv")}
    assert (decided.loc["exact", "value"] == 1).all() and (decided.loc["easy"].loc["hard", "value"] == 0).all()
    assert decided.loc["exact"].groupby("split")["share_of_right"].sum().tolist() == pytest.approx([1, 1, 1])
    left = decided.loc["exact"].reset_index().query("decided_by == 'the order of the rest'")
    assert (left["lot"] <= 0.5).all() and {"hard", "adv"} >= set(left["split"])
    options = {"n_bootstrap": 50, "n_permutations": 99}
    bars = against_listeners(frames, heard, **options).set_index(["model", "listener", "split", "rows"])
    bag = 1 - heard["bag of words"].query("split == 'hard'")["correct"].mean()
    assert bars.loc[("exact", "bag of words", "hard", "all"), "difference"] == pytest.approx(bag)
    assert bars.loc[("exact", "bag of words", "hard", "undecided"), "hypothesis"] == "supported"
    assert bars.loc[("easy", "bag of words", "hard", "all"), "hypothesis"] == "against"
    assert what_decides(frames, {}).empty and against_listeners(frames, {}).empty
    both = both_right(parallel(data), frames | heard, n_bootstrap=20).set_index("model")["value"]
    assert both["exact"] == 1 and both["easy"] == 0 and 0 < both["bag of words"] <= 0.25
    assert both_right(parallel(data), {}).empty
    others = parallel(data).assign(adv_text="other words altogether")
    assert both_right(others, frames).empty  # and no KeyError


def test_a_broken_picture_is_listed_and_none_at_all_is_an_error(data, tmp_path):
    from PIL import Image

    from qgcam_lib.papers.ref_adv.runs import ask_rankers

    some = drawn(data, limit=25)
    plan, images = pd.DataFrame({"model": ["map-mass"], "why": [""]}), sorted({one.image for one in some})
    for name in images:
        Image.open(data.folder / "images" / name).save(tmp_path / name)
    (tmp_path / images[0]).write_bytes(b"no picture")
    frames, _ = ask_rankers(plan, some, tmp_path, tmp_path / "kept")
    lost = frames["map-mass"][frames["map-mass"]["error"].notna()]
    assert set(lost["image"]) == {images[0]} and len(lost) == 3 * sum(one.image == images[0] for one in some)
    (tmp_path / "none").mkdir()
    with pytest.raises(ExampleError, match="map-mass failed on every picture"):
        ask_rankers(plan, some, tmp_path / "none", tmp_path / "kept2")


# ---------------------------------------------------------------- the authors' files, the notebook


@needs_real
def test_over_the_authors_files_candidates_differ_and_last_words_are_lost():
    real = open_ref_adv(REAL)
    sets = candidate_sets(real.expressions)
    table = candidate_table(sets, n_bootstrap=0).set_index(["candidates", "split"])
    assert table.loc[("released", "easy"), "boxes"] < 2.5 < 6.5 < table.loc[("released", "adv"), "boxes"]
    falls = random_falls(sets, n_bootstrap=0)["difference"]
    assert falls[0] > 0.3 and falls[1] < 0.05
    assert real.derived == ("hard",)  # these hard rows are ours, with the boxes of the adversarial records
    named = candidate_table(sets, real.derived, n_bootstrap=0).set_index(["candidates", "split"])["value"]
    assert named["derived", "hard"] < 0.25 and ("released", "hard") not in named
    lost = last_word_table(last_words(real.raw), n_bootstrap=0).set_index("ends")["value"]
    assert lost["in a mark"] > 0.95 and lost["in a word"] < 0.1


@pytest.mark.nightly
def test_the_notebook_runs_and_ends_in_effects(world, tmp_path):
    run = run_notebook(NOTEBOOK, {"dataset": str(world), "n_bootstrap": 20}, outputs=tmp_path, progress=False)
    assert run.status == "ok"
    folder = Path(run.folder)
    box = json.loads((folder / "run.json").read_text())["results"]["result_box"]
    assert "34 points" in box["answer"] and any("18 of 21 pairs" in line for line in box["effect"])
    effects = pd.read_parquet(folder / "tables" / "effects.parquet").set_index("measure")["points"]
    assert effects["drop of random choice, mixed: Easy targets, Adv all"] > 5
    assert {"first_screen", "lengths", "relations"} <= {path.stem for path in (folder / "figures").glob("*.png")}


@pytest.mark.nightly
def test_the_evaluation_runs_with_rows_that_say_why_others_did_not(world, tmp_path):
    given = {"dataset": str(world), "models": ["map-mass", "vilbert"], "limit": 25, "n_bootstrap": 20}
    run = run_notebook(EVALUATE, given, outputs=tmp_path, progress=False)
    assert run.status == "ok"
    results = json.loads((Path(run.folder) / "run.json").read_text())["results"]
    ran, not_run = set(results["models"]), set(results["not_run"])
    assert "map-mass" in ran and ran | not_run == {"map-mass", "vilbert"} and not ran & not_run
    rows = pd.read_parquet(Path(run.folder) / "tables" / "falls.parquet")
    assert set(rows["model"]) == {*ran, "largest box", *LISTENERS}
    assert set(rows["hypothesis"]) <= {"supported", "against", "open"}
    bars = pd.read_parquet(Path(run.folder) / "tables" / "against_listeners.parquet")
    assert set(bars["model"]) == ran and set(bars["listener"]) == {*LISTENERS}
