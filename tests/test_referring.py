"""Referring expressions: perturbations against their definitions, scores a slow literal one, the loss, files."""

import json
from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from qgcam_lib.cli.calls import call
from qgcam_lib.cli.main import app
from qgcam_lib.data.referring.expressions import Expression
from qgcam_lib.data.referring.files import hard_originals, read_ref_adv
from qgcam_lib.data.taggers import load_tagger
from qgcam_lib.errors import ExampleError, FormatError, StoreError
from qgcam_lib.miniworld.scenes.crowd import make_doubles
from qgcam_lib.miniworld.scenes.render import SEED
from qgcam_lib.miniworld.words.listener import OUTCOMES, Listener, judge
from qgcam_lib.miniworld.writers.refcocog import told
from qgcam_lib.papers.ref_adv.listeners import meaning_table
from qgcam_lib.referring import ContrastiveHinge, perturb, refer
from qgcam_lib.referring.hinge import draw_negatives
from qgcam_lib.referring.perturb import HOW, expression_words, head_swapped, noun_places, perturb_expressions, shuffled
from qgcam_lib.referring.run import ask_expressions, expression_boxes, score_file, take_expressions
from qgcam_lib.referring.score import CHOICE_SCORES, score_choices
from qgcam_lib.referring.summary import (
    compare_choices,
    compare_splits,
    implied_easy_share,
    summarize_choices,
    threshold_effect,
    truncation,
)

WORDS = st.lists(st.sampled_from("the a man dog red left on chair giraffe and".split()), min_size=1, max_size=9)
QUICK = settings(max_examples=40, deadline=None)


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


def test_seeds_shuffle_apart_and_the_same_in_every_process():
    text = "the first table of the picture on which pizzas are there"
    assert len({perturb(text, "shuffle", seed=seed) for seed in range(50)}) == 50
    assert perturb(text, "shuffle", seed=7) == "the the of which pizzas are there table first picture on"


def test_expressions_without_a_noun_and_very_long_ones():
    assert perturb("the one over there", "nouns_adjectives", tagger="hanta") == ""
    assert head_swapped("the one over there".split(), tagger="hanta") == "the one over there".split()
    assert noun_places("in front of the left one".split(), "hanta") == []
    long = " ".join(["a man next to a red dog"] * 12)[:-1]
    assert len(expression_words(long)) == 84 and perturb(long, "shuffle") != long
    assert len(perturb(long, "nouns_adjectives", tagger="hanta").split()) >= 24


@pytest.mark.parametrize("text, how, message", [("", "plain", "word"), (None, "shuffle", "word"),
                                                ("a dog", "sort", "how")])
def test_what_perturb_refuses(text, how, message):
    with pytest.raises(ValueError, match=message):
        perturb(text, how)


def test_perturbed_expressions_keep_all_but_their_words():
    shipped = {"shuffle": "cup red the"}
    some = [Expression("1", "a.jpg", "a", "The red cup.", BOX, (BOX,), "hard", ref="7", shipped=shipped),
            Expression("2", "a.jpg", "a", "The one over there.", BOX)]
    found = perturb_expressions(some, "nouns_adjectives", tagger="hanta")
    assert found == [replace(some[0], text="red cup")] and found[0].shipped == shipped
    assert found.left_out == {"no noun and no adjective": 1}
    assert perturb_expressions(some[:1], "shipped")[0].text == "cup red the"
    with pytest.raises(ExampleError, match="example 2: no shuffled text"):
        perturb_expressions(some, "shipped")


def test_the_shipped_strings_go_with_the_hard_expression_that_they_distort():
    adv = Expression("1", "a.jpg", "a", "a plate by a cup", FAR, (BOX, FAR), "adv", original="a cup by a plate",
                     shipped={"shuffle": "by cup a plate a", "GT_bbox_number": "1"})
    hard = perturb_expressions(hard_originals([adv]), "shipped")
    assert [(one.text, one.box, one.split) for one in hard] == [("by cup a plate a", BOX, "hard")]


# --- choices ----------------------------------------------------------------------------------------------------------

BOX, FAR = (0, 0, 10, 10), (50, 50, 60, 60)
EDGE = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 4), st.integers(1, 4)).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))


def table_of(given):
    """{id: scores} as the tidy table."""
    return pd.DataFrame([(id, k, s) for id, row in given.items() for k, s in enumerate(row)],
                        columns=["id", "candidate", "score"]).astype({"candidate": int, "score": float})


def literal_iou(a, b):
    pixels = [{(x, y) for x in range(int(c[0]), int(c[2])) for y in range(int(c[1]), int(c[3]))} for c in (a, b)]
    return len(pixels[0] & pixels[1]) / len(pixels[0] | pixels[1])


def literal_choice(one, scores, threshold, strict):
    best = 0
    for k, score in enumerate(scores):
        if score > scores[best]:
            best = k
    overlaps = [literal_iou(box, one.box) for box in one.candidates]
    right = [overlap > threshold if strict else overlap >= threshold for overlap in overlaps]
    return best, overlaps[best], right[best], sum(right) / len(right), scores.count(scores[best]) - 1


@QUICK
@given(st.data(), st.integers(1, 5), st.sampled_from([0.25, 0.5, 1.0]), st.booleans())
def test_choices_equal_a_slow_literal_reading(data, size, threshold, strict):
    some, given_ = [], {}
    for n in range(size):
        boxes = data.draw(st.lists(EDGE, min_size=1, max_size=5))
        target = data.draw(st.one_of(EDGE, st.sampled_from(boxes)))
        given_[str(n)] = data.draw(st.lists(st.integers(-2, 2).map(float), min_size=len(boxes), max_size=len(boxes)))
        some.append(Expression(str(n), "a.jpg", "a", "the cup", target, tuple(boxes)))
    table = table_of(given_).sample(frac=1, random_state=0)
    before = table.copy()
    found = score_choices(some, table, threshold=threshold, strict=strict)
    assert table.equals(before)
    columns = found[["predicted", "iou", "correct", "random", "ties"]].itertuples(index=False)
    for one, row in zip(some, columns):
        assert tuple(row) == pytest.approx(literal_choice(one, given_[one.id], threshold, strict))
    assert found["n_candidates"].tolist() == [len(one.candidates) for one in some]
    later = score_choices(some[::-1], table, threshold=threshold, strict=strict)[::-1].reset_index(drop=True)
    pd.testing.assert_frame_equal(later, found)
    for name, metric in CHOICE_SCORES.items():
        values = found[name].astype(float)
        assert values.between(*metric.range).all()


def test_odd_candidate_sets():
    long = " ".join(["left"] * 80)
    some = [Expression("none", "a.jpg", "a", "the cup", BOX), Expression("one", "a.jpg", "a", "the cup", BOX, (FAR,)),
            Expression("twice", "a.jpg", "a", long, BOX, (FAR, BOX, BOX))]
    found = score_choices(some, table_of({"one": [3], "twice": [0, 1, 1]})).set_index("id")
    assert found.correct.tolist() == [False, False, True] and found.n_words["twice"] == 80
    assert found.random.tolist() == pytest.approx([0, 0, 2 / 3])
    assert found.loc["none", ["predicted", "iou", "ties"]].isna().all() and found.n_candidates["none"] == 0
    with pytest.raises(ValueError, match="no expression has candidate boxes"):
        score_choices(some[:1], table_of({}))


def test_missing_scores_are_named_or_undefined():
    some = [Expression(str(k), "a.jpg", "a", "the cup", BOX, (BOX, FAR)) for k in range(3)]
    table = table_of({"0": [1, 0], "1": [1, np.nan], "2": [1]})
    with pytest.raises(ExampleError, match="example 1, scores"):
        score_choices(some, table)
    found = score_choices(some, table, missing="undefined")
    assert found.correct.isna().tolist() == [False, True, True] and found.random.tolist() == [0.5] * 3
    assert found.loc[1:, ["predicted", "iou", "ties"]].isna().all(axis=None)


@pytest.mark.parametrize("column, values", [
    ("score", ["high", 1.0]), ("score", [np.inf, 1.0]), ("candidate", [0.5, 1]), ("candidate", [-1, 1]),
    ("candidate", [0, 2]), ("candidate", [1, 1]), ("id", ["1", "unknown"])])
def test_tables_that_are_refused(column, values):
    some = [Expression("1", "a.jpg", "a", "the cup", BOX, (BOX, FAR))]
    table = table_of({"1": [1, 0]}).astype({"score": object, "candidate": object})
    with pytest.raises(FormatError, match=column if column != "id" else "unknown"):
        score_choices(some, table.assign(**{column: values}))
    with pytest.raises(ExampleError, match="twice"):
        score_choices([*some, *some], table)


# --- running a ranker -------------------------------------------------------------------------------------------------

class Widest:
    """Likes wide boxes, and says what it was asked."""

    card = {"name": "widest"}

    def __init__(self, batch=True, fails=""):
        self.calls, self.fails = [], fails
        if batch:
            self.rank_batch = self._several

    def rank(self, image, boxes, expression):
        self.calls.append((image.size, len(boxes), expression))
        if expression == self.fails:
            raise RuntimeError("no idea")
        return torch.tensor(boxes[:, 2] - boxes[:, 0])

    def _several(self, images, boxes, texts):
        before = len(self.calls)
        found = [np.stack([self.rank(image, b, text).numpy() for text in said])
                 for image, b, said in zip(images, boxes, texts)]
        self.calls[before:] = [tuple(self.calls[before:])]
        return found


@pytest.fixture
def world(tmp_path):
    for n in range(3):
        Image.new("RGB", (80, 60 + n)).save(tmp_path / f"{n}.png")
    sets = [(BOX, (0, 0, 30, 10)), (FAR, BOX)]
    some = [Expression(f"{k}", f"{k % 3}.png", str(k % 3), f"cup {k}", sets[k % 2][0], sets[k % 2]) for k in range(12)]
    return tmp_path, some


def test_a_picture_is_opened_once_and_its_expressions_are_asked_together(world, monkeypatch):
    folder, some = world
    opened, real = [], Image.open
    monkeypatch.setattr(Image, "open", lambda *a, **k: opened.append(a[0]) or real(*a, **k))
    model = Widest()
    found = refer(model, some, folder, progress=False)
    assert len(opened) == 3 and len(model.calls) == 1 and len(model.calls[0]) == 12
    alone = refer(Widest(batch=False), some, folder, progress=False)
    pd.testing.assert_frame_equal(found, alone, check_flags=False)
    assert found.predicted.tolist() == [1, 0] * 6 and found.text.tolist() == [one.text for one in some]
    assert found.id.tolist() == [one.id for one in some] and found.error.isna().all()


def test_failures_are_rows_and_a_run_resumes(world, tmp_path):
    folder, some = world
    (folder / "2.png").unlink()
    some = [*some, Expression("bare", "0.png", "0", "no boxes", BOX)]
    run = dict(store=tmp_path / "store", on_error="record", batch_images=1, progress=False)
    found = refer(Widest(fails="cup 4"), some, folder, **run)
    lost = found[found.error.notna()]
    assert lost.id.tolist() == ["2", "4", "5", "8", "11"] and lost.correct.isna().all() and lost.random.notna().all()
    assert "no idea" in lost.error.iloc[1] and "2.png" in lost.error.iloc[0]
    assert found.correct[12] is not pd.NA and not found.correct[12]
    Image.new("RGB", (80, 62)).save(folder / "2.png")
    model = Widest()
    again = refer(model, some, folder, **run)
    assert again.error.isna().all() and sum(map(len, model.calls)) == 5
    with pytest.raises(StoreError, match="dataset"):
        refer(Widest(), perturb_expressions(some, "reverse"), folder, **run)
    with pytest.raises(ExampleError, match="cup"):
        refer(Widest(), [Expression("1", "../cup.png", "1", "cup", BOX, (BOX,))], folder, progress=False)


@pytest.mark.parametrize("scores", [[1.0], [1.0, float("nan")], [[1.0, 2.0]], [float("-inf"), 1.0]])
def test_a_model_that_gives_something_else_is_refused(world, scores):
    folder, some = world
    model = Widest(batch=False)
    model.rank = lambda *_: np.array(scores)
    with pytest.raises(ValueError, match="finite scores"):
        ask_expressions(model, some, folder, progress=False)


def test_a_limit_takes_whole_pictures_and_grows(world):
    _, some = world
    for seed in range(3):
        parts = [[one.id for one in take_expressions(some, limit, seed)] for limit in (3, 6, 0)]
        assert [len(part) for part in parts] == [3, 6, 12] and set(parts[0]) < set(parts[1])
        assert len({int(id) % 3 for id in parts[0]}) == 1 and parts[2] == [one.id for one in some]


# --- tables -----------------------------------------------------------------------------------------------------------

def run_of(seed, size=200, boxes=(2, 9)):
    """Made-up choices: two splits, some undefined."""
    dice = np.random.default_rng(seed)
    n = np.random.default_rng(1).integers(*boxes, size)
    correct = pd.array(dice.random(size) < 0.6, "boolean")
    correct[dice.random(size) < 0.1] = pd.NA
    return pd.DataFrame({"id": [str(k) for k in range(size)], "group": [str(k // 3) for k in range(size)],
                         "split": ["easy", "adv"] * (size // 2), "category": "", "n_candidates": n, "random": 1 / n,
                         "correct": correct, "ties": pd.array(dice.integers(0, 2, size), "Int64")})


def test_tables_hold_the_means_that_one_counts_by_hand():
    frame = run_of(0)
    table = summarize_choices(frame, n_bootstrap=200).set_index("split")
    for split, cell in frame.groupby("split"):
        made, row = cell[cell.correct.notna()], table.loc[split]
        assert row.value == pytest.approx(made.correct.mean()) and row.ci_low < row.value < row.ci_high
        assert row.random == pytest.approx(made.random.mean())
        assert row.candidates == pytest.approx(made.n_candidates.mean())
        assert (row.n, row.n_undefined, row.n_groups) == (len(made), len(cell) - len(made), made.group.nunique())
        assert (row.n_ties, row.n_no_target) == ((cell.ties > 0).sum(), 0)
    whole = summarize_choices(frame, (), n_bootstrap=0)
    assert len(whole) == 1 and whole.n_no_target[0] == 0 and whole.random[0] == pytest.approx(
        frame.random[frame.correct.notna()].mean())
    assert summarize_choices(frame, "n_candidates", n_bootstrap=0).n.sum() == table.n.sum()


def test_two_runs_are_compared_expression_by_expression():
    a, b = run_of(0), run_of(1)
    found = compare_choices(a, b[10:], n_bootstrap=200, n_permutations=99).set_index("split")
    for split, cell in a.groupby("split"):
        other = b[10:].set_index("id").correct.reindex(cell.id).to_numpy(float, na_value=np.nan)
        apart = cell.correct.to_numpy(float, na_value=np.nan) - other
        assert found.difference[split] == pytest.approx(np.nanmean(apart)) and found.n_unmatched[split] == 5
    same = compare_choices(a, a, (), n_bootstrap=100, n_permutations=99)
    assert same.difference[0] == 0 and same.p_value[0] == 1
    with pytest.raises(ValueError, match="expression '0'"):
        compare_choices(a, b.assign(n_candidates=b.n_candidates + 1))


def literal_fall(frame, a, b):
    sides = [frame[(frame.split == split) & frame.correct.notna()] for split in (a, b)]
    weighted, total = np.zeros(2), 0
    for n in sorted(set(sides[0].n_candidates) & set(sides[1].n_candidates)):
        cells = [side[side.n_candidates == n] for side in sides]
        weighted += len(cells[0]) * np.array([cell.correct.astype(float).mean() for cell in cells])
        total += len(cells[0])
    return weighted / total


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 99), st.integers(1, 12))
def test_splits_at_equal_candidates_equal_a_slow_reading(seed, widest):
    frame = run_of(seed, boxes=(1, 1 + widest))
    row = compare_splits(frame, "easy", "adv", n_bootstrap=20).iloc[0]
    expected = literal_fall(frame, "easy", "adv")
    assert (row.value_a, row.value_b) == pytest.approx(tuple(expected)) and row.difference == pytest.approx(
        expected[0] - expected[1])
    assert row.random_a == pytest.approx(row.random_b)
    assert row.n_a + row.n_b + row.n_left_out + row.n_undefined == len(frame)
    plain = compare_splits(frame, "easy", "adv", equal=None, n_bootstrap=0).iloc[0]
    means = frame[frame.correct.notna()].astype({"correct": float}).groupby("split").correct.mean()
    assert plain.difference == pytest.approx(means["easy"] - means["adv"]) and plain.n_left_out == 0


# --- files and the command line ---------------------------------------------------------------------------------------

SHARED = Path(__file__).resolve().parents[2] / "shared" / "realdata" / "ref_adv"


@pytest.fixture
def files(tmp_path):
    boxes = {"1": [10.0, 10.0, 40.0, 40.0], "2": [60.0, 10.0, 40.0, 40.0], "3": [0.0, 50.0, 9.0, 9.0]}
    rows = []
    for k, label in enumerate(("easy", "hard", "adv") * 4):
        strings = label == "adv"
        rows.append({"annID": str(k) if strings else k, "label": label, "gt_bbox": "2" if strings else 1,
                     "bboxes": json.dumps(boxes) if strings else boxes, "expression": f"the cup number {k}",
                     "img_file_name": f"COCO_train2014_{k % 4:012d}{'' if strings else f'_{k}'}.jpg"})
    path = tmp_path / "labelled.json"
    path.write_text(json.dumps({"annotations": rows}))
    form = expression_boxes(read_ref_adv(path))
    scores = form.assign(score=np.where(form.candidate == 1, 1.0, 0.0))
    return tmp_path, path, scores


def test_a_file_of_scores_is_scored_like_its_rows_and_an_unknown_id_is_found_in_each_split(files):
    folder, path, scores = files
    mine = folder / "scores.csv"
    scores.to_csv(mine)
    found = score_file(mine, path)
    assert found.groupby("split").correct.mean().to_dict() == {"adv": 1, "easy": 0, "hard": 0}
    for name in ("ref-adv", "Ref-Adv", "adv"):
        assert score_file(mine, path, split=name).id.tolist() == found.id[found.split == "adv"].tolist()
    assert score_file(mine, read_ref_adv(path), split="all").equals(found)
    with pytest.raises(FormatError, match="nobody"):
        score_file(pd.concat([scores, scores[:1].assign(id="nobody")]), path, split="ref-adv")


def test_the_command_line(files, capsys, monkeypatch):
    folder, path, scores = files
    monkeypatch.chdir(folder)
    scores.to_parquet("mine.parquet")
    line = "refer score mine.parquet labelled.json --json --out rows.csv --by split,n_candidates"
    assert call(app, line.split()) == 0 and len(pd.read_csv("rows.csv")) == 12
    rows = json.loads(capsys.readouterr().out)["summary"]
    assert [(row["split"], row["value"], row["n"]) for row in rows] == [
        ("adv", 1, 4), ("easy", 0, 4), ("hard", 0, 4)] * 2  # all candidates, then by their number
    assert [row["n_candidates"] for row in rows[:3]] == ["all"] * 3
    assert call(app, "refer splits labelled.json --out form.csv".split()) == 0 and len(pd.read_csv("form.csv")) == 36
    scores.assign(score=np.nan).to_csv("lost.csv")
    assert call(app, "refer score lost.csv labelled.json".split()) == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/realdata")
def test_the_published_records_are_scored():
    for path in sorted(SHARED.glob("*first*.json")):
        some = read_ref_adv(path)
        found = score_file(expression_boxes(some).assign(score=0.0), some)
        assert (found.predicted == 0).all() and (found.ties == found.n_candidates - 1).all()
        assert found.random.between(0, 1).all() and len(found) == len(some)


# --- the audit --------------------------------------------------------------------------------------------------------

@QUICK
@given(st.floats(0.05, 0.95), st.floats(0, 60), st.floats(5, 40))
def test_the_implied_share_gives_the_share_back_within_its_rounding(share, hard, gap):
    rows = pd.DataFrame({"easy": [hard + gap], "hard": [hard], "test": [share * (hard + gap) + (1 - share) * hard]})
    assert implied_easy_share(rows).share[0] == pytest.approx(share)
    found = implied_easy_share(rows.round(2)).iloc[0]
    assert found.lowest - 1e-9 <= share <= found.highest + 1e-9


@pytest.mark.parametrize("length, cut", [(20, 1), (82, 0)])
def test_truncation_counts_special_tokens(length, cut):
    some = [Expression(str(n), "a", "a", " ".join(["left"] * n), BOX, split="adv") for n in (5, 18, 19, 80)]
    assert truncation(some, length).cut.tolist() == [cut]


def test_only_an_iou_of_exactly_one_half_separates_the_rules():
    half = (0, 0, 10, 5)
    some = [Expression("1", "a", "a", "a cup", BOX, (half, BOX)), Expression("2", "a", "a", "a cup", BOX, (FAR, BOX))]
    found = threshold_effect(some).iloc[0]
    assert (found.at_threshold, found.near_duplicates) == (1, 1)


def test_a_listener_hears_the_same_in_plain_words_and_the_shares_add_up():
    scenes = [make_doubles(k, "test", seed=SEED).scene for k in (3, 4, 7)]
    said = [(scene, told(scene)) for scene in scenes]
    table = meaning_table(said, ("plain", "swap_head"), tagger="hanta").set_index(["how", "split"])
    assert (table.loc["plain", "same"] == 1).all() and (table.loc["plain", "reworded"] == 0).all()
    assert table[list(OUTCOMES)].sum(axis=1).to_numpy() == pytest.approx(1)
    assert (table.loc["swap_head", "same"] < 1).all()
    adversaries = [(scene, one["adversary"]) for scene, several in said for one in several if "adversary" in one]
    another = [judge(Listener(scene), perturb(one["text"], "swap_head", tagger="hanta"), one["thing"]) == "another"
               for scene, one in adversaries]
    assert another and table.loc[("swap_head", "adv"), "another"] == pytest.approx(np.mean(another))
    assert table.loc[("plain", "adv"), "expressions"] == len(adversaries)
    assert meaning_table([]).empty


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
        with pytest.raises(ValueError, match="scores"):
            ContrastiveHinge()(bad)
    with pytest.raises(ValueError, match="usable"):
        ContrastiveHinge()(S, torch.ones(8, 8))
    for options in (dict(margin=float("nan")), dict(reduction="mean"), dict(negatives=0)):
        with pytest.raises(ValueError, match=next(iter(options))):
            ContrastiveHinge(**options)
