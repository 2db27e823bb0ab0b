"""What users do wrong with scores of probes, pairs and expressions and with two runs, and what they are told."""

import json
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from qgcam_lib.data.probes.groups import RelationGroup
from qgcam_lib.data.referring.expressions import Expression
from qgcam_lib.data.referring.files import read_ref_adv
from qgcam_lib.errors import SuspiciousInput
from qgcam_lib.metrics import score_maps
from qgcam_lib.probes.own_scores import PAIR_COLUMNS, score_files
from qgcam_lib.referring.run import expression_boxes, score_file
from qgcam_lib.statistics import compare

REAL = Path(__file__).resolve().parents[2] / "shared" / "realdata"
N = 200
LINES = {"a man on a horse": 1.5, "a man under a horse": 0.0, "a dog on a horse": 0.0}
GROUPS = [RelationGroup(f"g{k}", f"{k}.png", *LINES, "man", "dog", (f"p{k}.png",), (f"n{k}.png",)) for k in range(N)]


def probes(seed=0):
    """Logits of a model that is right in about .85 of the choices. Pictures and prompts in an order of their own."""
    rng = np.random.default_rng(seed)
    pictures = [f"{kind}{k}.png" for k in range(N) for kind in ("", "p", "n")]
    prompts = [*LINES, "A photo of man.", "A photo of dog."]
    worth = {**LINES, "A photo of man.": 1.5, "A photo of dog.": 0.0}
    rows = [(one, text, 2 * ((worth[text] if one[0] != "n" else 1.5 - worth[text]) + rng.normal()))
            for one in pictures for text in prompts]
    return pd.DataFrame(rows, columns=["image", "prompt", "score"]).sample(frac=1, random_state=seed, ignore_index=True)


def pairs(seed=0):
    return pd.DataFrame(3 * (np.random.default_rng(seed).normal(size=(N, 4)) + np.array([1.2, 0, 0, 1.2])),
                        columns=list(PAIR_COLUMNS))


def expressions(seed=0):
    rng, found = np.random.default_rng(seed), []
    for k in range(N):
        low = rng.uniform(0, 300, (int(rng.integers(3, 8)), 2))
        boxes = tuple(map(tuple, np.concatenate([low, low + rng.uniform(20, 120, low.shape)], axis=1).tolist()))
        box = boxes[int(rng.integers(len(boxes)))]
        found.append(Expression(f"e{k}", f"{k // 3}.png", str(k // 3), f"the cup {k}", box, boxes, "easy"))
    return found


def referring(seed=0):
    rng, form = np.random.default_rng(seed), expression_boxes(expressions(seed))
    right = np.concatenate([[box == one.box for box in one.candidates] for one in expressions(seed)])
    return form[["id", "candidate"]].assign(score=2.2 * right + rng.normal(size=len(form)))


def run(protocol="paper", seed=0, n=60):
    """Scores of one run as they come back from CSV: what is not in the file is lost."""
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 10, (n, 2))
    frame = score_maps(rng.random((n, 8, 8)) + np.eye(8), np.concatenate([low, low + 9], axis=1)[:, None],
                       image_sizes=(20, 20), protocol=protocol, ids=[f"e{k}" for k in range(n)],
                       groups=[f"g{k // 2}" for k in range(n)]).copy()
    frame.attrs = {}
    return frame


def changed(change, name="score"):
    return lambda frame: frame.assign(**{name: change(frame[name].to_numpy())})


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(over, by="score"):
    def change(frame):
        shares = np.exp(frame[by])
        return frame.assign(**{by: shares / shares.groupby(frame[over]).transform("sum")})
    return change


def filled(share, value):
    return lambda s: np.where(np.random.default_rng(9).random(len(s)) < share, value, s)


def cells(change):
    """A change of the tables [N, caption, picture] of a frame of pairs."""

    def made(frame):
        values = frame[list(PAIR_COLUMNS)].to_numpy().reshape(-1, 2, 2)
        return frame.assign(**dict(zip(PAIR_COLUMNS, np.asarray(change(values)).reshape(-1, 4).T)))
    return made


def shares(axis):
    return cells(lambda v: np.exp(v) / np.exp(v).sum(axis, keepdims=True))


def places(order):
    """Candidates in an order of one's own."""
    def change(frame):
        new = {(one.id, int(old)): k for one in expressions() for k, old in enumerate(order(np.array(one.candidates)))}
        return frame.assign(candidate=[new[key] for key in zip(frame["id"], frame["candidate"])])
    return change


def boxes_beside(frame):
    """The reversed order, with the boxes of `expression_boxes` kept in the table."""
    form = expression_boxes(expressions())[["id", "candidate", "x0", "y0", "x1", "y1"]]
    return places(lambda boxes: np.arange(len(boxes))[::-1])(frame.merge(form, on=["id", "candidate"]))


def area(boxes):
    return np.argsort(-np.prod(boxes[:, 2:] - boxes[:, :2], axis=1))


def some(frame, share=0.7):
    return frame.sample(frac=share, random_state=1)


def unsure(frame):
    """No score where the model is less sure: a third of the expressions."""
    best = frame.groupby("id")["score"].transform("max")
    return frame.assign(score=frame["score"].where(best > best.quantile(0.3)))


ERROR, WARNING, SILENT = "error", "warning", "silent"
PROBES = [
    ("distance", changed(np.negative), {}, WARNING),
    ("distance, said", changed(np.negative), {"kind": "distance"}, SILENT),
    ("one less distance", changed(lambda s: 1 - sigmoid(s)), {}, WARNING),
    ("moved down", changed(lambda s: np.roll(s, 1)), {}, WARNING),
    ("moved up", changed(lambda s: np.roll(s, -1)), {}, WARNING),
    ("moved by three", changed(lambda s: np.roll(s, 3)), {}, SILENT),
    ("cosine", changed(lambda s: s / 100), {}, WARNING),
    ("cosine, said", changed(lambda s: s / 100), {"kind": "cosine"}, SILENT),
    ("cosine above 0", changed(lambda s: 0.25 + s / 100), {}, WARNING),
    ("sigmoid", changed(sigmoid), {}, WARNING), ("sigmoid, said", changed(sigmoid), {"kind": "probability"}, SILENT),
    ("log-sigmoid", changed(lambda s: np.log(sigmoid(s))), {}, WARNING),
    ("percent", changed(lambda s: 100 * sigmoid(s)), {}, WARNING),
    ("softmax over prompts", softmax("image"), {}, SILENT), ("softmax over pictures", softmax("prompt"), {}, WARNING),
    ("all equal", changed(lambda s: s * 0 + 1), {}, WARNING), ("True and False", changed(lambda s: s > 0), {}, WARNING),
    ("0 where it failed", changed(filled(0.15, 0.0)), {}, WARNING),
    ("NaN where it failed", changed(filled(0.15, np.nan)), {}, ERROR),
    ("given twice", lambda f: pd.concat([f, f]), {}, SILENT),
    ("twice with other scores", lambda f: pd.concat([f, changed(np.negative)(f)]), {}, ERROR),
    ("some rows", some, {}, ERROR),
]
REFERS = [
    ("distance", changed(np.negative), {}, WARNING),
    ("distance, said", changed(np.negative), {"kind": "distance"}, SILENT),
    ("moved down", changed(lambda s: np.roll(s, 1)), {}, WARNING),
    ("moved up", changed(lambda s: np.roll(s, -1)), {}, WARNING),
    ("ranks, 1 is best", changed(lambda s: (-s).argsort().argsort() + 1), {}, WARNING),
    ("by area", places(area), {}, WARNING),
    ("reversed", places(lambda boxes: np.arange(len(boxes))[::-1]), {}, WARNING),
    ("reversed, with its boxes", boxes_beside, {}, ERROR),
    ("left to right", places(lambda boxes: np.argsort(boxes[:, 0])), {}, WARNING),
    ("top to bottom", places(lambda boxes: np.argsort(boxes[:, 1])), {}, SILENT),
    ("from 1", lambda f: f.assign(candidate=f["candidate"] + 1), {}, ERROR),
    ("ids off by one", lambda f: f.assign(id=[f"e{int(id[1:]) + 1}" for id in f["id"]]), {}, ERROR),
    ("all equal", changed(lambda s: s * 0 + 1), {}, WARNING), ("True and False", changed(lambda s: s > 2), {}, WARNING),
    ("rounded", changed(lambda s: np.round(s / 2)), {}, WARNING),
    ("0 where it failed", changed(filled(0.15, 0.0)), {}, WARNING),
    ("NaN where it failed", changed(filled(0.15, np.nan)), {}, ERROR),
    ("some rows", some, {}, ERROR), ("hard ones undefined", unsure, {"missing": "undefined"}, SILENT),
    ("given twice", lambda f: pd.concat([f, f]), {}, ERROR), ("softmax", softmax("id"), {}, SILENT),
    ("another split", lambda f: f.assign(id="hard/" + f["id"]), {}, ERROR),
    ("threshold 50", lambda f: f, {"threshold": 50}, ERROR),
]
PAIRS = [
    ("captions exchanged", cells(lambda v: v[:, ::-1]), {}, WARNING), ("distance", cells(np.negative), {}, WARNING),
    ("softmax over captions", shares(1), {}, WARNING), ("softmax over pictures", shares(2), {}, WARNING),
    ("softmax over all", shares((1, 2)), {}, SILENT), ("cosine", cells(lambda v: v / 100), {}, WARNING),
    ("sigmoid", cells(sigmoid), {}, WARNING), ("all equal", cells(np.ones_like), {}, WARNING),
    ("rounded", cells(lambda v: np.round(v / 4)), {}, WARNING),
    ("captions taken for pictures", cells(lambda v: v.transpose(0, 2, 1)), {}, SILENT),
]
COMPARES = [
    ("another protocol", lambda f: run("pixel"), {}, ERROR), ("60 and 300 rows", lambda f: run(n=300), {}, WARNING),
    ("given twice", lambda f: pd.concat([f, f]), {}, ERROR),
    ("no id in common", lambda f: f.assign(id="x" + f["id"]), {}, ERROR),
    ("other groups", lambda f: f.assign(group="g"), {}, ERROR),
    ("percent", changed(lambda s: 100 * s, "io_ratio"), {}, WARNING),
    ("text", lambda f: f.assign(io_ratio="high"), {}, ERROR),
    ("infinite", changed(lambda s: s * np.inf, "io_ratio"), {}, ERROR),
    ("no such score", lambda f: f.drop(columns="io_ratio"), {}, ERROR),
    ("another data set", lambda f: f.assign(image="a"), {}, ERROR),
    ("rows in another order", lambda f: f.sample(frac=1, random_state=0), {}, SILENT),
    ("ids exchanged", lambda f: f.assign(id=np.roll(f["id"], 2), group=np.roll(f["group"], 2)), {}, SILENT),
    ("NaN dropped", lambda f: f[f["io_ratio"] > f["io_ratio"].median()], {}, SILENT),
]

CANNOT_BE_SEEN = {
    "probe: moved by three": "one of many shifts; what is left is near chance, as of a poor model",
    "refer: top to bottom": "one of many orders; a table that keeps its boxes is refused",
    "refer: hard ones undefined": "asked for, and n_undefined says it",
    "pair: captions taken for pictures": "both readings are honest tables, with text and image score exchanged",
    "compare: NaN dropped": "n_unmatched says how many rows are missing, which half may be by design",
}


def headline(rows, *names):
    return [rows[name].astype(float).mean() for name in names if name in rows]


def compared(frame, **options):
    a = run().assign(image="b", io_ratio=lambda f: f["io_ratio"] * 0.9)
    row = compare(a, frame, "io_ratio", n_bootstrap=50, n_permutations=50, **options).iloc[0]
    return pd.DataFrame({"b": [row["b"]]})


TASKS = {
    "probe": (PROBES, probes, lambda f, **o: score_files(f, GROUPS, **o), ("correct", "confidence")),
    "refer": (REFERS, referring, lambda f, **o: score_file(f, expressions(), **o), ("correct",)),
    "pair": (PAIRS, pairs, score_files, ("text_score", "image_score", "group_score", "confidence")),
    "compare": (COMPARES, run, compared, ("b",)),
}


@cache
def honest_headline(task):
    _, honest, score, names = TASKS[task]
    with warnings.catch_warnings():
        warnings.simplefilter("error", SuspiciousInput)
        return headline(score(honest()), *names)


def outcome(task, change, options):
    """What is told, and how far a headline score is from the honest one, as a share of it (NaN: undefined)."""
    _, honest, score, names = TASKS[task]
    right = honest_headline(task)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            found = headline(score(change(honest()), **options), *names)
        except ValueError:
            return ERROR, np.nan
    told = [one for one in seen if one.category is SuspiciousInput]
    assert len(told) <= 1, "one warning for all that is found"
    return WARNING if told else SILENT, np.nanmax(np.abs(np.subtract(found, right)) / right)


CASES = [(task, *case) for task, (cases, *_) in TASKS.items() for case in cases]


@pytest.mark.parametrize(("task", "name", "change", "options", "expected"), CASES,
                         ids=[f"{task}: {name}" for task, name, *_ in CASES])
def test_a_mistake_is_an_error_a_warning_or_known_to_be_silent(task, name, change, options, expected):
    told, moved = outcome(task, change, options)
    assert told == expected
    if told == SILENT:
        assert (moved > 0.05) == (f"{task}: {name}" in CANNOT_BE_SEEN), moved


def test_few_mistakes_cannot_be_seen():
    assert {task: len(cases) for task, (cases, *_) in TASKS.items()} == {"probe": 22, "refer": 23, "pair": 10,
                                                                       "compare": 13}
    assert len(CANNOT_BE_SEEN) <= 10 and set(CANNOT_BE_SEEN) <= {f"{task}: {name}" for task, name, *_ in CASES}


ODD = {
    "logits that are all below 0": ("probe", changed(lambda s: s - 30)),
    "logits of 0 to 100": ("probe", changed(lambda s: s + 30)),
    "a model no better than chance": ("probe", changed(lambda s: np.random.default_rng(4).normal(size=len(s)))),
    "whole numbers": ("probe", changed(lambda s: np.round(20 * s))),
    "an oracle of 0 and 1": ("refer", lambda f: f.assign(score=[
        float(one.candidates[k] == one.box) for one in expressions() for k in range(len(one.candidates))])),
    "a perfect ranker": ("refer", lambda f: f.assign(score=[
        k + 99.0 * (one.candidates[k] == one.box) for one in expressions() for k in range(len(one.candidates))])),
    "chance among boxes": ("refer", changed(lambda s: np.random.default_rng(4).normal(size=len(s)))),
    "cosines of boxes": ("refer", changed(lambda s: 0.2 + s / 100)),
    "no mass in a third of the boxes": ("refer", changed(lambda s: np.maximum(s + 0.3, 0))),
    "five pairs": ("pair", lambda f: f[:5]),
    "pairs by chance": ("pair", cells(lambda v: np.random.default_rng(4).normal(0, 3, v.shape))),
    "a bag of words": ("pair", cells(lambda v: v + 50)),
}


def test_odd_but_right_scores_are_silent():
    told = {}
    for name, (task, change) in ODD.items():
        _, honest, score, _ = TASKS[task]
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            score(change(honest()))
        if texts := [str(one.message) for one in seen if one.category is SuspiciousInput]:
            told[name] = texts
    assert set(told) <= {"no mass in a third of the boxes"}, told


@pytest.mark.skipif(not REAL.is_dir(), reason="no real annotations (../shared/realdata)")
@pytest.mark.parametrize("name", ["adv_easy_hard_annotations.adv.first500", "adv_easy_hard_annotations.easy.first1500",
                                  "refcocog_adv_annotations.first500"])
def test_corners_and_copies_in_a_file_of_expressions_are_warned_of_and_the_file_is_not(tmp_path, name):
    content = json.loads((REAL / "ref_adv" / f"{name}.json").read_text())
    rows = content["annotations"] if "annotations" in content else list(content.values())
    field = "bboxes" if "annotations" in content else "bbox_candidates_map"

    def told(changed):
        made = {"annotations": changed} if "annotations" in content else dict(enumerate(changed))
        (tmp_path / "made.json").write_text(json.dumps(made))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            read_ref_adv(tmp_path / "made.json")
        return [str(one.message) for one in seen]

    def corners(row):
        boxes = row[field] if isinstance(row[field], dict) else json.loads(row[field])
        return row | {field: {k: [x, y, x + w, y + h] for k, (x, y, w, h) in boxes.items()}}

    assert told(rows) == []
    assert "instead of x, y, width, height" in told([corners(row) for row in rows])[0]
    assert "duplicates" in told(rows * 2)[0]
