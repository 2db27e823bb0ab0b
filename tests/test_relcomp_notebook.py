"""The notebook of the fine-tuning: its form, a small run through the strict runner, and what it is made of."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from qgcam_lib import miniworld
from qgcam_lib.errors import FileFault
from qgcam_lib.models import load_model
from qgcam_lib.papers.probes.finetune import (
    SWEPT,
    open_relcomp,
    patched_alphas,
    shares,
    sweep_summary,
    text_alone_scores,
)
from qgcam_lib.papers.probes.study import RECIPE, Setup, check_study, kept_half, read_study, run_study
from qgcam_lib.runs.runner import run_notebook
from qgcam_lib.settings import ROOT
from qgcam_lib.statistics import summarize

NOTEBOOK = ROOT / "nbs" / "papers" / "relcomp_finetune.ipynb"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("relcomp")
    miniworld.ensure_visual_genome(root / "vg", 250, progress=False)
    miniworld.ensure_coco(root / "coco", n_train=40, n_val=40, progress=False)
    miniworld.ensure_mininet(root / "mininet", 1, progress=False)
    return root


@pytest.fixture(scope="module")
def study(world):
    setup = Setup(coco=str(world / "coco"), genome=str(world / "vg"), classes=str(world / "mininet"), train=20, test=12,
                  probe_limit=6, class_limit=1, alphas=(0.0, 0.5, 1.0))
    return run_study(world / "study", setup, replace(RECIPE, epochs=1, batch=8), streams=["T"], seeds=2, progress=False)


@pytest.mark.nightly
def test_a_small_run_has_every_table_and_figure(world, study, tmp_path):
    given = {"study": str(study), "coco": str(world / "coco"), "genome": str(world / "vg"),
             "classes": str(world / "mininet"), "anew": "T", "n_bootstrap": 20}
    found = run_notebook(NOTEBOOK, given, outputs=tmp_path, progress=False)
    record = json.loads((found.folder / "run.json").read_text())
    assert record["status"] == "ok"
    read = {path.stem: pd.read_parquet(path) for path in (found.folder / "tables").glob("*.parquet")}
    summary = read["summary"]
    assert set(summary["metric"]) == set(SWEPT) and set(summary["alpha"]) == {0.0, 0.5, 1.0}
    text = read_study(study).records["relcomp"].groupby("alpha")["relcomp_text"].mean()
    values = summary[summary["metric"] == "relcomp_text"].set_index("alpha")["value"]
    pd.testing.assert_series_equal(text, values, check_names=False)
    assert read["check"]["same"].all() and len(read["check"]) == 3 * len(SWEPT)
    anew = read["anew"].set_index(["stream", "seed"])
    assert anew.loc[("T, study", 0), "gain"] == pytest.approx(anew.loc[("T, this run", 0), "gain"], abs=0.05)
    assert {path.stem for path in (found.folder / "figures").glob("*.png")} >= {"first_screen", "losses"}
    assert read["paper_vs_ours"]["verdict"].str.contains("reproduced").sum() == 0


def test_a_study_of_other_groups_weights_or_a_damaged_file_is_refused(tmp_path):
    stored, before = read_study("relcomp"), load_model("clip-rn50", "mini")
    check_study(stored, SimpleNamespace(content=stored.about["content"]), before)
    with pytest.raises(FileFault, match="groups of this run"):
        check_study(stored, SimpleNamespace(content="0" * 64), before)
    with pytest.raises(FileFault, match="weights of this run"):
        check_study(stored, SimpleNamespace(content=stored.about["content"]), load_model("clip-rn50", "random"))
    shutil.copytree(stored.folder, tmp_path / "copy")
    file = tmp_path / "copy" / "T-0.safetensors"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(FileFault, match=file.name):
        kept_half(read_study(tmp_path / "copy"))


def test_an_interval_over_seeds_adds_their_spread_and_one_seed_adds_none():
    rng = np.random.default_rng(0)
    frame = pd.concat([pd.DataFrame({
        "seed": seed, "alpha": alpha, "id": range(200), "group": range(200),
        "relcomp_text": (rng.random(200) < 0.5 + alpha * (0.1 + 0.05 * seed)).astype(float)})
        for seed in range(3) for alpha in (0.0, 1.0)], ignore_index=True)
    frame.loc[frame["alpha"] == 0, "relcomp_text"] = np.tile([0.0, 1.0], 300)
    both, one = (sweep_summary({"T": {"relcomp": part}}, seed=0).set_index("alpha")
                 for part in (frame, frame[frame["seed"] == 0]))
    assert both["seeds"].tolist() == [3, 3] and one["seeds"].tolist() == [1, 1]
    means = frame[frame["alpha"] == 1].groupby("seed")["relcomp_text"].mean()
    assert both.loc[1.0, "value"] == pytest.approx(means.mean())
    assert both.loc[1.0, ["lowest", "highest"]].tolist() == [means.min(), means.max()]
    half = 4.302653 * means.std() / np.sqrt(3)  # Student's t, 2 degrees of freedom
    records = frame[frame["alpha"] == 1].groupby("id")["relcomp_text"].mean().reset_index()
    alone = summarize(records, "relcomp_text", group="id", seed=0).iloc[0]
    wide = np.hypot(alone["ci_high"] - alone["value"], half)
    assert both.loc[1.0, "ci_high"] - both.loc[1.0, "value"] == pytest.approx(wide, rel=1e-6)
    assert both.loc[0.0, "ci_high"] - 0.5 < 0.08  # no seed differs before the training


def test_relcomp_shares_no_picture_with_the_probes_nor_train_with_test(world):
    sets = open_relcomp(str(world / "coco"), str(world / "vg"), train=5, test=3, tagger="hanta")
    assert not {g.image for g in sets["train"].groups} & {g.image for g in sets["test"].groups}
    assert all(part.is_miniworld and part.where == "miniworld" for part in sets.values())
    kinds = pd.Series([group.kind for group in sets["train"].part]).value_counts()
    assert kinds.to_dict() == {"composition": 5, "predicate": 5}
    alone = text_alone_scores(sets["train"].part, sets["test"].part)
    assert all(set(frame["comparison"]) == {"rewording"} for frame in alone.values())


def test_the_alpha_between_is_the_one_whose_smaller_share_is_largest():
    points = [("T", alpha, name, value) for name, values in (("relcomp_text", (0.5, 0.6, 0.7, 0.7)), (
        "imagenet_top1", (0.8, 0.8, 0.7, 0.4))) for alpha, value in zip((0, 0.3, 0.6, 1), values)]
    points += [("V", alpha, name, 0.5) for name in ("relcomp_text", "imagenet_top1") for alpha in (0, 0.3, 0.6, 1)]
    summary = pd.DataFrame(points, columns=["stream", "alpha", "metric", "value"])
    kept = shares(summary)
    assert kept[kept.stream == "T"]["gain_kept"].tolist() == pytest.approx([0, 0.5, 1, 1])
    assert kept[kept.stream == "T"]["loss_spared"].tolist() == pytest.approx([1, 1, 0.75, 0])
    assert kept[kept.stream == "V"][["gain_kept", "loss_spared"]].isna().all(axis=None)
    assert patched_alphas(kept) == {"T": 0.6, "V": 0.3}
