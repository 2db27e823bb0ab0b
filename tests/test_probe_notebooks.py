"""The notebooks of the conceptual probes: their form, and small runs through the strict runner and plain papermill."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest

from qgcam_lib import miniworld
from qgcam_lib.data.probes.files import write_groups
from qgcam_lib.data.probes.groups import RelationGroup
from qgcam_lib.errors import ParameterError
from qgcam_lib.papers.probes.data import joined, open_context, open_pairs, open_relation, open_swaps
from qgcam_lib.papers.probes.description import MODELS
from qgcam_lib.runs.parameters import read_parameters
from qgcam_lib.runs.runner import run_notebook
from qgcam_lib.settings import ROOT

FOLDER = ROOT / "nbs" / "papers"
ASKED = ["clip-rn50", "blip-base"]


@pytest.mark.parametrize("name", ["probe_relation", "probe_composition", "probe_background", "probes_audit"])
def test_their_models_are_the_one_list_of_the_paper(name):
    """Only the background asks one more: the twin without the planted biases."""
    asked = [one for one in read_parameters(FOLDER / f"{name}.ipynb")["models"].default if one != "clip-vit-unbiased"]
    assert tuple(asked) == MODELS


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("probes")
    miniworld.ensure_visual_genome(root / "vg", 150, progress=False)
    miniworld.ensure_coco(root / "coco", n_train=20, n_val=60, progress=False)
    miniworld.ensure_swaps(root / "swaps", 12, progress=False)
    miniworld.ensure_fillers(root / "fillers", 2)
    return root


def table(folder, name):
    return pd.read_parquet(folder / "tables" / f"{name}.parquet")


def record(folder):
    return json.loads((folder / "run.json").read_text())


def common(world):
    return {"captions": str(world / "coco"), "models": [*ASKED, "otter-rn50"], "n_bootstrap": 20}


@pytest.mark.nightly
def test_relations_through_the_strict_runner(world, tmp_path):
    given = common(world) | {"dataset": str(world / "vg"), "limit": 12, "features": 6}
    run = run_notebook(FOLDER / "probe_relation.ipynb", given, outputs=tmp_path, progress=False)
    assert run.status == "ok"
    records, summary = table(run.folder, "records"), table(run.folder, "summary")
    assert set(records["model"]) == set(ASKED) and records["confidence"].between(0, 1).all()
    assert (records.groupby(["model", "comparison"]).size() == 12).all() and records["comparison"].nunique() == 4
    assert set(summary["chance"].dropna()) == {0.5} and summary["blind"].notna().any()
    verdicts = table(run.folder, "paper_vs_ours")
    assert verdicts["paper"].isna().all() and set(verdicts["verdict"]) == {"not comparable: miniworld"}


@pytest.mark.nightly
def test_compositions_with_plain_papermill(world, tmp_path):
    given = common(world) | {"dataset": [str(world / "coco")], "swaps": [str(world / "swaps")], "limit": 6}
    texts = [part for name, value in given.items() for part in ("-y", f"{name}: {json.dumps(value)}")]
    done = subprocess.run([sys.executable, "-m", "papermill", "--no-progress-bar",
                           str(FOLDER / "probe_composition.ipynb"), str(tmp_path / "out.ipynb"), *texts], cwd=tmp_path,
                          text=True, capture_output=True, env=_environment(tmp_path), timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    (folder,) = (tmp_path / "outputs" / "interactive" / "probe_composition").glob("*/")
    assert record(folder)["finished"] and record(folder)["results"]["models"] == ASKED
    records = table(folder, "records")
    assert set(records["kind"]) == {"composition", "object", "attribute", "relation"}
    assert not (records["group_score"] & ~(records["text_score"] & records["image_score"])).any()
    summary = table(folder, "summary").query("metric == 'group_score'")
    assert (summary["blind"] == 0).all() and (summary["chance"] == 1 / 6).all()  # blind: one picture is like the other


def _environment(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QGCAM_")}
    return kept | {"QGCAM_OUTPUTS": str(tmp_path / "outputs"), "QGCAM_CACHE": str(tmp_path / "cache"),
                   "PYTHONPATH": str(ROOT)}


# ---------------------------------------------------------------- the data of a run


def test_a_limit_counts_groups_of_each_kind_and_pictures_of_the_background(world, tmp_path):
    pairs = joined([open_pairs([str(world / "coco")], limit=3), open_swaps(str(world / "swaps"), limit=3)])
    kinds = pd.Series([pair.kind for pair in pairs.part]).value_counts()
    assert kinds.to_dict() == dict.fromkeys(("composition", "object", "attribute", "relation"), 3)
    assert len({pair.id for pair in pairs.groups}) == len(pairs.groups)
    everything = open_relation(str(world / "vg"))
    some = open_relation(str(world / "vg"), limit=5)
    assert len(some.part) == 5 and {group.id for group in some.part} < {group.id for group in everything.part}
    edited = open_context(str(world / "coco"), folder=tmp_path, scenes=[str(world / "fillers")], limit=2,
                          fillers=["gray"])
    assert len([group for group in edited.part if group.kind == "background"]) == 2 and edited.beyond > 0
    assert all(edited.picture(name).is_file() for group in edited.part for name in group.pictures.values())


def test_published_files_open_with_their_pictures_and_not_without(tmp_path):
    group = RelationGroup("7", "7.jpg", "A photo of a dog on a mat.", "A photo of a dog in a mat.",
                          "A photo of a cup on a mat.", "dog", "cup", ("8.jpg",), ("9.jpg",))
    file = write_groups([group], tmp_path / "relation_eval_subject.json")
    opened = open_relation(str(file), [str(tmp_path)])
    assert opened.part == [group] and not opened.is_miniworld and opened.where == file.name
    assert opened.not_comparable("official") == "the paper's number is not available"
    with pytest.raises(ParameterError, match="images"):
        open_relation(str(file))
