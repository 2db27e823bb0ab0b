"""The notebook of the fine-tuning: its form, a small run through the strict runner, and what it is made of."""

import ast
import json

import nbformat
import numpy as np
import pandas as pd
import pytest

from qgcam_lib import miniworld
from qgcam_lib.papers.probes.finetune import (
    SWEPT,
    open_relcomp,
    patched_alphas,
    shares,
    sweep_summary,
    text_alone_scores,
    tradeoff_figure,
)
from qgcam_lib.runs.runner import run_notebook
from qgcam_lib.settings import ROOT

NOTEBOOK = ROOT / "nbs" / "papers" / "relcomp_finetune.ipynb"


def cells():
    return [cell for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"]


def test_it_defines_nothing_and_has_small_cells():
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in cells()) == 1
    for cell in cells():
        assert len(cell.source.splitlines()) <= 35
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("relcomp")
    miniworld.ensure_visual_genome(root / "vg", 250, progress=False)
    miniworld.ensure_coco(root / "coco", n_train=40, n_val=40, progress=False)
    miniworld.ensure_mininet(root / "mininet", 1, progress=False)
    return root


@pytest.mark.nightly
def test_a_small_run_has_every_table_and_figure(world, tmp_path):
    given = {"coco": str(world / "coco"), "genome": str(world / "vg"), "classes": str(world / "mininet"),
             "model": "clip-rn50", "streams": ["T"], "train": 20, "test": 12, "probe_limit": 6, "class_limit": 1,
             "epochs": 1, "batch": 8, "alphas": [0.0, 0.5, 1.0], "n_bootstrap": 20}
    found = run_notebook(NOTEBOOK, given, outputs=tmp_path, progress=False)
    record = json.loads((found.folder / "run.json").read_text())
    assert record["status"] == "ok"
    read = {path.stem: pd.read_parquet(path) for path in (found.folder / "tables").glob("*.parquet")}
    summary = read["summary"]
    assert set(summary["metric"]) == set(SWEPT) and set(summary["alpha"]) == {0.0, 0.5, 1.0}
    text = read["records_T_relcomp"].groupby("alpha")["relcomp_text"].mean()
    values = summary[summary["metric"] == "relcomp_text"].set_index("alpha")["value"]
    pd.testing.assert_series_equal(text, values, check_names=False)
    assert {path.stem for path in (found.folder / "figures").glob("*.png")} >= {"tradeoff", "training_T"}
    assert read["paper_vs_ours"]["verdict"].str.contains("reproduced").sum() == 0


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
    assert patched_alphas(kept) == {"T": 0.6, "V": 0.6}
    figure = tradeoff_figure(summary.assign(ci_low=summary.value - 0.1, ci_high=summary.value + 0.1), title="points")
    titles = [ax.get_title("left") or ax.get_title() for ax in figure.axes]
    assert titles == [f"{name} learns, points: alpha" for name in "TV"]


def test_a_sweep_is_summarised_by_stream_and_alpha():
    frame = pd.DataFrame({"alpha": np.repeat([0.0, 1.0], 4), "id": [*"abcd"] * 2, "group": [*"aabb"] * 2,
                          "relcomp_text": [0, 0, 1, 1, 1, 1, 1, np.nan]})
    found = sweep_summary({"T": {"relcomp": frame}}, n_bootstrap=10, seed=0)
    assert found["value"].tolist() == [0.5, 1.0] and found["n_undefined"].tolist() == [0, 1]
    assert found["n_groups"].tolist() == [2, 2] and set(found["stream"]) == {"T"}
