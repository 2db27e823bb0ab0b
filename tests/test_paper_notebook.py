"""The Q-GroundCAM notebook, end to end through the strict runner, on scenes and on photographs."""

import json
from dataclasses import replace

import nbformat
import pandas as pd
import pytest

from qgcam_lib.data.catalog import load_dataset
from qgcam_lib.finetune.albef import MINI
from qgcam_lib.grounding.run import score_store
from qgcam_lib.miniworld import ensure
from qgcam_lib.models import load_model
from qgcam_lib.models.common.checkpoints import save_model
from qgcam_lib.models.common.vocabulary import build_vocabulary
from qgcam_lib.papers.q_groundcam.runs import stored_maps
from qgcam_lib.papers.q_groundcam.splits import SCORES, run_records
from qgcam_lib.runs.runner import run_notebook
from qgcam_lib.settings import ROOT

NOTEBOOK = ROOT / "nbs" / "papers" / "q_groundcam.ipynb"
PHOTOS = ROOT / ".." / "shared" / "realdata" / "photos"
def table(run, name):
    return pd.read_parquet(run.folder / "tables" / f"{name}.parquet")


def texts(run):
    """All text a reader of the executed notebook sees: Markdown cells and text outputs."""
    cells = nbformat.read(run.folder / "run.ipynb", 4).cells
    shown = [cell.source for cell in cells if cell.cell_type == "markdown"]
    for cell in cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            shown += [str(data.get(kind, "")) for kind in ("text/markdown", "text/html", "text/plain")]
    return "\n".join(shown)


# ---------------------------------------------------------------- on scenes, with a small untrained model


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """The mini model's class and size with random weights, in the form of the zoo: quick, and never a result."""
    config = replace(MINI, vocab_size=640)
    model = load_model("blip-base", "random", config=config, seed=5).model
    card = {"name": "blip-untrained", "block": 1, "tokens": "amc", "licence": "Apache-2.0"}
    folder = tmp_path_factory.mktemp("zoo") / "blip-untrained"
    return save_model(folder, model, config.to_dict(), build_vocabulary(), card)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    ensure(root, n_test=12, progress=False)
    broken = sorted((root / "images").iterdir())[0]
    broken.write_bytes(broken.read_bytes()[:200])
    return root, broken.name


@pytest.fixture(scope="module")
def scene_run(small_model, scenes, tmp_path_factory):
    parameters = {"dataset": str(scenes[0]), "weights": str(small_model), "limit": 0, "n_bootstrap": 50}
    return run_notebook(NOTEBOOK, parameters, outputs=tmp_path_factory.mktemp("outputs"))


def test_the_broken_picture_is_listed_and_the_rest_scored(scene_run, scenes):
    failed, summary = table(scene_run, "failed"), table(scene_run, "summary")
    assert len(failed) and failed["error"].str.contains(scenes[1]).all()
    assert (summary["n_failed"] * 3).iloc[0] == len(failed) and (summary["n"] > 20).all()
    assert scenes[1] in " ".join(table(scene_run, "data_problems")["file"])


def test_no_verdict_is_drawn_on_the_miniworld(scene_run):
    verdicts = table(scene_run, "paper_vs_ours")["verdict"]
    assert set(verdicts) == {"not comparable: miniworld"} and len(verdicts) == 9
    assert "This is the miniworld" in texts(scene_run)


def test_its_result_says_what_the_tables_say(scene_run):
    box = json.loads((scene_run.folder / "run.json").read_text())["results"]["result_box"]
    mean = table(scene_run, "summary").set_index(["model", "metric"]).loc[("blip-base, checkpoint weights", "pg_hit")]
    assert f"{100 * mean['value']:.1f} %" in box["answer"] and any("miniworld" in line for line in box["differs"])


def test_the_maps_are_kept_and_give_the_same_scores(scene_run, scenes):
    records = run_records(scene_run.folder)
    scored = records[records["error"].isna()].set_index("id")
    again = score_store(stored_maps(scene_run.folder), load_dataset(scenes[0], boxes="union", on_error="record"))
    again = again.set_index("id").loc[scored.index]
    assert again.columns.name == "protocol paper"
    pd.testing.assert_frame_equal(again[list(SCORES)], scored[list(SCORES)], check_names=False)


def test_the_score_table_shows_what_the_records_say(scene_run):
    (folder,) = [path for path in (scene_run.folder / "records").iterdir() if path.name == "centre-guess"]
    records = pd.concat([pd.read_parquet(path) for path in folder.glob("*.parquet")])
    shown = table(scene_run, "score_table").set_index("score").loc["IO ratio ↑", "centre guess"]
    assert shown.startswith(f"{records.loc[records['error'].isna(), 'io_ratio'].mean():.2f} [")


# ---------------------------------------------------------------- on photographs, full size


@pytest.mark.nightly
@pytest.mark.skipif(not PHOTOS.is_dir(), reason="the six photographs (../shared/realdata/photos) are not here")
def test_it_runs_on_photographs_at_full_size(tmp_path):
    parameters = {"dataset": str(PHOTOS.resolve()), "weights": "random", "limit": 4, "n_bootstrap": 50}
    run = run_notebook(NOTEBOOK, parameters, outputs=tmp_path)
    assert run.status == "ok"
    comparison, summary = table(run, "paper_vs_ours"), table(run, "summary")
    assert set(comparison["verdict"]) == {"not comparable: random weights"}
    assert set(summary["model"]) == {"blip-base, random weights", "centre guess"} and set(summary["n"]) == {4}
    assert "The weights are random" in texts(run) and "This is the miniworld" not in texts(run)
    card = table(run, "model_card").set_index("field")["value"]
    assert int(card["parameters"].replace(",", "")) > 200_000_000
