"""The page of Ref-Adv's trainings: choice on dev, paired gains against literal ones, Tables 9 and 10, the notebook."""

import json

import numpy as np
import pandas as pd
import pytest

from qgcam_lib.errors import FileFault
from qgcam_lib.finetune.referring.study import ARMS
from qgcam_lib.papers.ref_adv.claims import TRAINING_CLAIMS
from qgcam_lib.papers.ref_adv.training import (
    TABLE9,
    answers_summary,
    arm_summary,
    arms_table,
    beside,
    chosen_arms,
    gains,
    picked,
    read_study,
    study_claims,
)
from qgcam_lib.report.published import published

SPLITS = ("dev", "easy", "hard", "adv")


def write_arm(folder, name, right, seed=0, answers=None):
    """An arm of made-up choices; right: share on dev, easy, hard and adv; answers: share right on GQA-Rel."""
    rng, n = np.random.default_rng(seed), 50
    place = folder / name
    place.mkdir(parents=True)
    ids = [f"{split}-{k}" for split in SPLITS for k in range(n)]
    pd.DataFrame({"id": ids, "group": [f"g{k % 20}" for k in range(4 * n)], "split": np.repeat(SPLITS, n),
                  "n_candidates": 5, "predicted": 0, "correct": rng.random(4 * n) < np.repeat(right, n), "random": 0.2,
                  "ties": 0}).to_parquet(place / "choices.parquet")
    if answers is not None:
        pd.DataFrame({"id": [f"q{k}" for k in range(120)], "group": [f"p{k % 15}" for k in range(120)],
                      "split": ["dev", "test"] * 60, "semantic": ["rel", "rel", "attr"] * 40,
                      "correct": rng.random(120) < answers, "known": True}).to_parquet(place / "answers.parquet")
    pd.DataFrame({"step": [10, 20, 20], "total": [2.0, 1.0, np.nan], "dev": [np.nan, np.nan, right[0]]}).to_csv(
        place / "log.csv", index=False)
    (place / "arm.json").write_text(json.dumps(vars(ARMS[name]) | {
        "name": name, "steps": 20, "seconds": 30, "data": {"expressions": 100, "questions": 0}}))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    for k, (name, right) in enumerate({"plain": (0.5, 0.6, 0.5, 0.4), "max-0.1": (0.9, 0.6, 0.5, 0.95),
                                       "max-0.4": (0.4, 0.9, 0.9, 0.9), "max-0.2-at-once": (1.0, 0.2, 0.2, 0.2),
                                       "sum-0.2": (0.5, 0.6, 0.5, 0.05), "tl-rel": (0.5, 0.6, 0.5, 0.5),
                                       "mtl-other-1": (0.5, 0.6, 0.5, 0.5)}.items()):
        write_arm(folder, name, right, k)
    write_arm(folder, "mtl-rel-1", (0.8, 0.9, 0.9, 0.9), 11, answers=0.9)
    write_arm(folder, "questions-rel", (0.5, 0.5, 0.5, 0.5), 12, answers=0.3)
    (folder / "questions-rel" / "choices.parquet").unlink()
    return read_study(folder)


@pytest.fixture(scope="module")
def summary(study):
    return arm_summary(study, n_bootstrap=50)


def test_the_test_split_is_easy_and_hard_and_dev_is_apart(study, summary):
    value = summary.set_index(["model", "split"])["value"]
    for name, frame in study.choices.items():
        for split in SPLITS:
            assert value[name, split] == pytest.approx(frame.loc[frame.split == split, "correct"].mean())
        assert value[name, "test"] == pytest.approx(frame.loc[frame.split.isin(["easy", "hard"]), "correct"].mean())
    assert len(summary) == 5 * len(study.choices)


def test_margin_and_ratio_are_chosen_on_dev_whatever_test_says(summary):
    table = chosen_arms(summary)
    assert picked(table) == {"sum-h": "sum-0.2", "max-h": "max-0.1", "mtl": "mtl-rel-1"}
    assert set(table["arm"]) == {"max-0.1", "max-0.4", "sum-0.2", "mtl-rel-1"}  # one that hinges at once is no margin
    other = summary.copy()
    other.loc[other.split != "dev", "value"] = np.random.default_rng(0).random((other.split != "dev").sum())
    assert picked(chosen_arms(other)) == picked(table)
    tied = summary.assign(value=0.5)
    assert picked(chosen_arms(tied))["max-h"] == "max-0.1"


def test_gains_are_literal_and_judged_by_the_papers_sign(study, summary):
    arms = picked(chosen_arms(summary))
    found = gains(study, arms, n_bootstrap=300).set_index(["arm", "split"])
    plain = study.choices["plain"].set_index("id")["correct"]
    for name, frame in study.choices.items():
        if name == "plain":
            continue
        own = frame.set_index("id")["correct"].astype(int) - plain.astype(int)
        adv = own[own.index.str.startswith("adv")]
        assert found.loc[(name, "adv"), "difference"] == pytest.approx(100 * adv.mean())
        test = own[own.index.str.match("easy|hard")]
        assert found.loc[(name, "test"), "difference"] == pytest.approx(100 * test.mean())
        assert found.loc[(name, "test"), "n"] == len(test) == 100
    assert found.loc[("max-0.1", "adv"), "paper"] == pytest.approx(73.35 - 70.90)
    assert found.loc[("max-0.1", "adv"), "hypothesis"] == "supported"
    assert found.loc[("sum-0.2", "adv"), "hypothesis"] == "against"
    assert found.loc[("sum-0.2", "test"), "paper"] < 0 and found.loc[("max-0.4", "adv"), "hypothesis"] == ""
    assert found.loc[("tl-rel", "test"), "paper"] == pytest.approx(83.12 - 83.63)
    assert np.isnan(found.loc[("tl-rel", "hard"), "paper"])


def test_table_9_asks_the_same_questions_before_and_after(study):
    summary, apart = answers_summary(study, "mtl-rel-1", n_bootstrap=200)
    before, after = (study.answers[name].set_index("id") for name in ("questions-rel", "mtl-rel-1"))
    for line, part in (("gqa-rel-dev", (before.split == "dev") & (before.semantic == "rel")),
                       ("gqa-dev", before.split == "dev"), ("gqa-test", before.split == "test")):
        row = apart.set_index("split").loc[line]
        assert row["difference"] == pytest.approx(100 * (after.correct[part].mean() - before.correct[part].mean()))
        assert row["n"] == part.sum() and row["hypothesis"] == "supported"
        mine = summary[summary.split == line].set_index("when")["value"]
        assert mine["before"] == pytest.approx(before.correct[part].mean())
    table = beside(summary, TABLE9, "drawn")
    assert table["paper"].tolist() == published("ref_adv_table9")[["before", "after"]].to_numpy().ravel().tolist()
    assert table["verdict"].str.startswith("not comparable").all() and table["ours"].notna().all()
    nothing = answers_summary(study, "mtl-rel-2")
    assert all(frame.empty for frame in nothing) and len(beside(nothing[0], TABLE9, "drawn")) == 6


def test_sentences_are_counted_on_the_study_and_open_where_intervals_include_zero(study, summary):
    arms = picked(chosen_arms(summary))
    _, apart = answers_summary(study, arms["mtl"], n_bootstrap=50)
    found = gains(study, arms, n_bootstrap=50)
    counted = study_claims(study, arms, found, apart, n_bootstrap=50).set_index("claim")
    assert len(counted) == len(TRAINING_CLAIMS)
    assert (counted.loc["answers to GQA are better after multi-task training", ["holds", "of"]] == [3, 3]).all()
    assert counted.loc["transfer from VQA is above ViLBERT", "result"].startswith("not testable here")
    assert (counted.loc["Sum-H and Max-H are above ViLBERT on Ref-Adv", ["holds", "of"]] == [1, 2]).all()
    assert counted.loc["Sum-H and Max-H are below ViLBERT on test", ["undecided", "result"]].tolist() == [2, "open"]
    few = study_claims(study, {}, found[:0], apart[:0], n_bootstrap=50)
    assert few["result"].str.startswith("not testable here").all()


def test_a_folder_that_is_no_study_is_named(tmp_path, study):
    with pytest.raises(FileFault, match="--missing"):
        read_study(tmp_path)
    assert "mtl-rel-2" in study.lacks and "plain" not in study.lacks
    assert arms_table(study).set_index("arm").loc["max-0.1", "best on dev"] == 90
