"""Scores of a probe and of expressions that look like a known mistake are named once; honest ones never are."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.cli.main import main
from qgcam_lib.data.probes.groups import RelationGroup
from qgcam_lib.data.referring.expressions import Expression
from qgcam_lib.errors import FormatError, SuspiciousInput
from qgcam_lib.probes.own_scores import PAIR_COLUMNS, score_files
from qgcam_lib.referring.own_scores import score_file

N = 60
GROUPS = [RelationGroup(f"g{k}", f"{k}.png", "a man on a horse", "a man under a horse", "a dog on a horse",
                        "man", "dog", (f"p{k}.png",), (f"n{k}.png",)) for k in range(N)]
TRUE = {"a man on a horse": 2.0, "a man under a horse": 0.0, "a dog on a horse": 0.0, "A photo of man.": 1.0,
        "A photo of dog.": 0.0}


def probe_rows(seed=0, lift=1.5, prompts=tuple(TRUE)):
    """Scores of a model that is right more often than not, in the order picture by picture."""
    rng = np.random.default_rng(seed)
    pictures = [name for k in range(N) for name in (f"{k}.png", f"p{k}.png", f"n{k}.png")]
    rows = [(image, prompt, lift * TRUE[prompt] * (1 if image[0] != "n" else -1) + rng.normal())
            for image in pictures for prompt in prompts]
    return pd.DataFrame(rows, columns=["image", "prompt", "score"])


def pairs(seed=0, lift=1.0):
    values = np.random.default_rng(seed).normal(size=(N, 4)) + lift * np.array([1, 0, 0, 1])
    return pd.DataFrame(values, columns=list(PAIR_COLUMNS))


def expressions(seed=0):
    rng, found = np.random.default_rng(seed), []
    for k in range(N):
        boxes = tuple((float(20 * j), 0.0, 20.0 * j + 10, 10.0) for j in range(int(rng.integers(3, 6))))
        found.append(Expression(f"e{k}", f"{k // 3}.png", str(k // 3), "the cup", boxes[int(rng.integers(len(boxes)))],
                                boxes, "easy"))
    return found


def referring_rows(seed=0, lift=2.0):
    rng = np.random.default_rng(seed)
    rows = [(one.id, j, lift * (box == one.box) + rng.normal()) for one in expressions(seed)
            for j, box in enumerate(one.candidates)]
    return pd.DataFrame(rows, columns=["id", "candidate", "score"])


def softmaxed(frame):
    shares = np.exp(frame["score"])
    return frame.assign(score=shares / shares.groupby(frame["image"]).transform("sum"))


def shifted(frame):
    return frame.assign(score=np.roll(frame["score"].to_numpy(), 1))


PROBES = {
    "equal scores": probe_rows().assign(score=0.5),
    "constant prompt": probe_rows().assign(score=lambda f: f["score"].where(f["prompt"] != "A photo of dog.", 0.0)),
    "probabilities": softmaxed(probe_rows()),
    "reversed scores": probe_rows(lift=6).assign(score=lambda f: -f["score"]),
}


def told(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in seen if one.category is SuspiciousInput]


@pytest.mark.parametrize("name", PROBES)
def test_scores_of_a_probe_that_look_misread_are_named_once(name):
    said = told(lambda: score_files(PROBES[name], GROUPS))
    assert len(said) == 1 and said[0].startswith(f"{name}: ") and f"allow=('{name}',)" in said[0]
    assert told(lambda: score_files(PROBES[name], GROUPS, allow=name)) == []


def test_a_column_that_slipped_by_a_row_is_found_and_guessing_is_not():
    rng, order = np.random.default_rng(1), np.random.default_rng(2).permutation(3 * N * len(TRUE))
    rows = probe_rows(lift=8).iloc[order].reset_index(drop=True)
    said = told(lambda: score_files(shifted(rows), GROUPS))
    assert len(said) == 1 and said[0].startswith("shifted rows: ")
    assert told(lambda: score_files(rows.assign(score=rng.normal(size=len(rows))), GROUPS)) == []


@pytest.mark.parametrize("name, values", [("equal scores", np.ones((N, 4))), ("reversed scores", -pairs(lift=9)),
                                          ("probabilities", None)])
def test_pairs_that_look_misread_are_named(name, values):
    if values is None:
        p, q = 1 / (1 + np.exp(-pairs()["c0_i0"])), 1 / (1 + np.exp(-pairs()["c0_i1"]))
        values = np.column_stack([p, q, 1 - p, 1 - q])
    frame = pd.DataFrame(np.asarray(values), columns=list(PAIR_COLUMNS))
    said = told(lambda: score_files(frame))
    assert len(said) == 1 and said[0].startswith(f"{name}: ")
    assert told(lambda: score_files(frame, allow=(name,))) == []


def test_scores_of_expressions_that_look_misread_are_named():
    rows, some = referring_rows(), expressions()
    wrong = {"equal scores": rows.assign(score=1.0),
             "reversed scores": rows.assign(score=-10 * rows["score"].gt(0.0) - referring_rows(lift=9)["score"]),
             "same candidate": rows.assign(score=-rows["candidate"])}
    for name, frame in wrong.items():
        said = told(lambda: score_file(frame, some))  # noqa: B023
        assert len(said) == 1 and said[0].startswith(f"{name}: "), (name, said)
        assert told(lambda: score_file(frame, some, allow=name)) == []  # noqa: B023


def test_candidates_counted_from_one_are_refused_with_the_remedy():
    rows = referring_rows()
    with pytest.raises(FormatError, match="counted from 0, these begin at 1, and 60 of .* subtract 1"):
        score_file(rows.assign(candidate=rows["candidate"] + 1), expressions())


@given(st.integers(0, 999), st.sampled_from([0.0, 0.5, 2.0]))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_honest_scores_are_never_named(seed, lift):
    with warnings.catch_warnings():
        warnings.simplefilter("error", SuspiciousInput)
        score_files(probe_rows(seed, lift), GROUPS)
        score_files(pairs(seed, lift))
        score_file(referring_rows(seed, lift), expressions(seed))


def test_the_command_line_warns_once_and_takes_the_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(np.ones((N, 4)), columns=list(PAIR_COLUMNS)).to_csv("s.csv", index=False)
    assert main("probe score s.csv --bootstrap 0".split()) == 0
    said = capsys.readouterr().err
    assert said.startswith("Warning: equal scores: ") and said.count("\n") == 1 and "--allow 'equal scores'" in said
    assert main(["probe", "score", "s.csv", "--bootstrap", "0", "--allow", "equal scores"]) == 0
    assert capsys.readouterr().err == ""
