"""A run is what it reads: another content is another run, and a finished run is compared with its record.

The runs here are made by the command `qgcam run` on a small notebook and on the audit of TRICD with few draws.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from qgcam_lib import miniworld
from qgcam_lib.errors import ParameterError, RunError
from qgcam_lib.models import registry
from qgcam_lib.papers.q_groundcam.splits import run_records
from qgcam_lib.runs import find_runs, inputs, read_run
from qgcam_lib.runs.gather import gather_run
from qgcam_lib.runs.inputs import fetch_weights, find_inputs
from qgcam_lib.runs.record import changed_outputs
from qgcam_lib.runs.runner import plan_run, run_notebook

ROOT = Path(__file__).resolve().parents[1]
CALL = "import sys; from qgcam_lib.cli.main import main; sys.exit(main())"


@pytest.fixture(autouse=True)
def outside_a_run(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("QGCAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QGCAM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Small data sets in the official layouts: flickr, tricd, vg, coco, and folders of drawn pairs and empty places."""
    root = tmp_path_factory.mktemp("worlds")
    miniworld.make_flickr30k(root / "flickr", n_test=3, n_train=0, n_val=0, progress=False)
    miniworld.ensure_tricd(root / "tricd", n_test=2, n_val=2, progress=False)
    miniworld.ensure_visual_genome(root / "vg", 3, progress=False)
    miniworld.ensure_coco(root / "coco", n_train=2, n_val=3, progress=False)
    miniworld.ensure_swaps(root / "swaps", 2, progress=False)
    miniworld.ensure_fillers(root / "fillers", 1)
    return root


@pytest.fixture
def world(worlds, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(worlds, tmp_path / "worlds")


def swap(path, old, new):
    """Replace the first `old` in a file; the same length keeps the file's size."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def qgcam(*arguments, folder, expected=0):
    """What a command says, run as a user would in `folder`: its errors, then its output."""
    done = subprocess.run([sys.executable, "-c", CALL, *map(str, arguments)], cwd=folder, text=True,
                          capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=300)
    assert done.returncode == expected, done.stderr
    return done.stderr + done.stdout


# ---- another content, another run ------------------------------------------------------------------------------------

SMALL = ('dataset: str = "worlds/flickr"\nsplit: str = "test"\nmodel: str = "blip-base"\nweights: str = "mini"\n'
         'models: list[str] = ["predictions:mine.json"]')


def write_small(folder):
    """A notebook that reads a data set and names a file of predictions; it writes a table, records and its colophon."""
    cells = [new_code_cell(SMALL, metadata={"tags": ["parameters"]}), new_code_cell(
        "import pandas as pd\nfrom qgcam_lib.data.catalog import load_dataset\nfrom qgcam_lib.runs import open_run\n"
        "run, examples = open_run(\"small\", globals()), load_dataset(dataset, split=split)"), new_code_cell(
        'frame = pd.DataFrame({"id": [e.id for e in examples], "x0": [e.boxes[0, 0] for e in examples]})\n'
        'run.save_table(frame, "scores", "Left edges.")\nstore = run.store("model")\n'
        'store.done() or store.append(frame)\nrun.colophon()')]
    nbformat.write(new_notebook(cells=cells), folder / "small.ipynb")
    (folder / "mine.json").write_text('{"1": {"scores": [0.5], "boxes": [[0, 0, 9, 9]], "phrase_ids": [1]}}')
    return folder / "small.ipynb"


def test_runs_of_a_small_notebook_follow_what_it_reads(world, tmp_path):
    write_small(tmp_path)

    def run(how):
        said = qgcam("run", "small.ipynb", "--outputs", "out", "--quiet", folder=tmp_path)
        assert how in said, said
        return re.search(r"run ([0-9a-f]{12})", said)[1]

    ids = [run("ok in")]
    assert run("finished before") == ids[0]
    annotation = sorted((world / "flickr" / "Annotations").glob("*.xml"))[0]
    x = re.search(r"<xmin>(\d+)</xmin>", annotation.read_text())[1]
    swap(annotation, f"<xmin>{x}</xmin>", f"<xmin>{int(x) + 1}</xmin>")
    ids.append(run("ok in"))
    (tmp_path / "mine.json").write_text("{}")
    ids.append(run("ok in"))
    assert len(set(ids)) == 3
    swap(annotation, f"<xmin>{int(x) + 1}</xmin>", f"<xmin>{x}</xmin>")
    write_small(tmp_path)
    assert run("finished before") == ids[0]  # the old content is the old run

    record = read_run(tmp_path / "out" / "small" / ids[0])
    assert [(one["kind"], one["path"]) for one in record["data"]] == [
        ("data set", "worlds/flickr, test"), ("file", "predictions:mine.json")]
    assert [(one["kind"], one["path"]) for one in record["weights"]] == [("mini", "data/zoo/blip-mini")]
    shown = json.dumps(nbformat.read(tmp_path / "out" / "small" / ids[0] / "run.ipynb", 4).cells[-1].outputs)
    for one in record["data"] + record["weights"]:
        assert re.fullmatch("[0-9a-f]{64}", one["sha256"]) and f"{one['path']} ({one['sha256'][:12]})" in shown


def test_runs_of_the_audit_of_tricd_follow_its_annotations(world, tmp_path):
    notebook = ROOT / "nbs" / "papers" / "tricd_audit.ipynb"
    grounding = world / "tricd" / "TRICD_grounding_val.json"

    def run(how):
        few = [part for name in ("n_groups", "n_orders", "n_resamples") for part in ("-p", name, 4)]
        said = qgcam("run", notebook, "-p", "annotations", grounding, *few, "--outputs", "out", "--quiet",
                     folder=tmp_path)
        assert how in said, said
        return re.search(r"run ([0-9a-f]{12})", said)[1]

    before = run("ok in")
    content = json.loads(grounding.read_text())
    content["annotations"][0]["bbox"][0] += 1
    grounding.write_text(json.dumps(content))
    after = run("ok in")
    assert before != after and run("finished before") == after


def change(path):
    """Change one byte of a file and nothing of its size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


READ = {  # notebook, data -> files that its run reads, each of which makes another run; files that it does not read
    ("q_groundcam", "flickr"): (["flickr/test.txt", "flickr/Sentences/*.txt", "flickr/Annotations/*.xml",
                                 "flickr/images/*.png"], ["flickr/miniworld.json", "tricd/TRICD_grounding_val.json"]),
    ("tricd_detection", "tricd"): (["tricd/TRICD_grounding_test.json", "tricd/TRICD_VQA_test.json", "tricd/images/8*"],
                                   ["tricd/TRICD_grounding_val.json"]),
    ("tricd_vqa", "tricd"): (["tricd/TRICD_grounding_test.json", "tricd/TRICD_VQA_val.json",
                              "tricd/TRICD_grounding_val.json"], ["flickr/test.txt"]),
    ("probe_relation", "vg"): (["vg/relationships.json", "vg/objects.json", "vg/object_alias.txt", "vg/VG_100K/*.jpg",
                                "coco/annotations/captions_train2014.json"],
                               ["vg/miniworld.json", "coco/annotations/captions_val2014.json", "swaps/swaps.json"]),
    ("probe_composition", "coco"): (["coco/annotations/captions_val2014.json", "coco/val2014/*.jpg", "swaps/swaps.json",
                                     "coco/annotations/captions_train2014.json", "swaps/images/*.png"],
                                    ["coco/annotations/instances_train2014.json", "vg/relationships.json"]),
    ("probe_background", "coco"): (["coco/annotations/instances_val2014.json", "coco/val2014/*.jpg",
                                    "fillers/indoor/*.png", "coco/annotations/captions_train2014.json"],
                                   ["coco/annotations/instances_train2014.json", "swaps/swaps.json"]),
}


@pytest.mark.parametrize("notebook, data", READ)
def test_each_file_that_is_read_counts_and_no_other(notebook, data, world, tmp_path):
    read, others = READ[notebook, data]
    given = {"data" if data != "flickr" else "dataset": str(world / data)}
    if notebook.startswith("probe_"):
        given["captions"] = str(world / "coco")
    if notebook == "probe_composition":
        given |= {"data": [given["data"]], "swaps": [str(world / "swaps")]}
    if notebook == "probe_background":
        given["scenes"] = [str(world / "fillers")]

    def run_id():
        return plan_run(ROOT / "nbs" / "papers" / f"{notebook}.ipynb", given).run_id

    seen = [run_id()]
    for pattern in read:
        path = sorted(world.glob(pattern))[0]
        if path.suffix in (".json", ".txt") and path.name != "test.txt":
            path.write_text(path.read_text() + "\n")
        elif path.name == "test.txt":
            path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
        else:
            change(path)
        seen.append(run_id())
    assert len(set(seen)) == len(seen)
    for path in others:
        (world / path).write_text((world / path).read_text() + "\n")
    assert run_id() == seen[-1]


def test_a_run_without_thresholds_from_val_does_not_read_val(world):
    notebook = ROOT / "nbs" / "papers" / "tricd_vqa.ipynb"
    found = [[one["path"] for one in plan_run(notebook, {"data": str(world / "tricd"), "threshold": how}).inputs["data"]
              if one["kind"] == "data set"] for how in ("val", "default")]
    assert [len(paths) for paths in found] == [2, 1] and found[0][1].endswith(", val")


def test_exactly_the_minis_that_a_run_names_count(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "data" / "zoo", tmp_path / "zoo")
    monkeypatch.setattr(registry, "zoo_folder", lambda: tmp_path / "zoo")
    asked = {"models": ["blip-base", "albef-amc", "blip2-itm", "predictions:none.json"], "weights": "mini"}
    before = find_inputs(asked, tmp_path)
    assert [one["path"] for one in before["weights"]] == ["data/zoo/blip-mini", "data/zoo/albef-amc-mini"]
    assert find_inputs(asked | {"weights": "random"}, tmp_path)["weights"] == []
    for name in ("model.safetensors", "config.json", "vocab.txt", "card.json"):
        change(tmp_path / "zoo" / "blip-mini" / name)
        now = find_inputs(asked, tmp_path)
        assert now["weights"][0] != before["weights"][0] and now["weights"][1] == before["weights"][1]
        before = now
    for name in ("clip-rn-mini/model.safetensors", "blip-mini/README.md", "zoo.json"):
        change(tmp_path / "zoo" / name)
    assert find_inputs(asked, tmp_path) == before

    recipe = ROOT / "nbs" / "papers" / "amc_recipe.ipynb"
    plan = plan_run(recipe, {"zoo": str(tmp_path / "zoo"), "dataset": str(_tiny(tmp_path))})
    assert [Path(one["path"]).name for one in plan.inputs["weights"]] == ["albef-mini", "albef-amc-mini"]
    change(tmp_path / "zoo" / "albef-mini" / "log.csv")
    assert plan_run(recipe, {"zoo": str(tmp_path / "zoo"), "dataset": str(_tiny(tmp_path))}).run_id != plan.run_id


def _tiny(folder):
    return miniworld.make_flickr30k(folder / "tiny", n_test=1, n_train=0, n_val=0, progress=False)


def test_published_checkpoints_count_where_they_lie_and_are_brought_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "face"))
    place = tmp_path / "torch" / "hub" / "checkpoints"
    place.mkdir(parents=True)
    asked = {"model": "albef-amc", "weights": "official", "checkpoint": ""}
    fetched = []

    def load(name, weights, **options):
        fetched.append((name, weights, options))
        (place / "model_base_retrieval_coco.pth").write_bytes(b"fetched")

    monkeypatch.setattr(registry, "load_model", load)
    (place / "best_flickr.pth").write_bytes(b"one")
    flickr = find_inputs(asked, tmp_path)["weights"]
    assert [one["path"] for one in flickr] == ["albef-amc"] and fetch_weights(asked) == []
    assert find_inputs(asked | {"checkpoint": "best-refcoco"}, tmp_path)["weights"] == []
    (place / "best_flickr.pth").write_bytes(b"two")
    assert find_inputs(asked, tmp_path)["weights"] != flickr
    snapshot = tmp_path / "face" / "hub" / "models--dandelin--vilt-b32-finetuned-coco" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    several = {"models": ["blip-base", "vilt"], "weights": "official"}
    assert find_inputs(several, tmp_path)["weights"] == []
    (snapshot / "model.safetensors").write_bytes(b"one")
    assert fetch_weights(several) == ["blip-base"] and fetched == [("blip-base", "official", {})]
    assert [one["path"] for one in find_inputs(several, tmp_path)["weights"]] == ["blip-base", "vilt"]
    with pytest.raises(ParameterError, match="parameter `weights`: .*best_refcoco.pth"):
        monkeypatch.undo()
        monkeypatch.setenv("TORCH_HOME", str(tmp_path / "empty"))
        fetch_weights(asked | {"checkpoint": "best-refcoco"})


def test_a_published_table_counts_for_the_notebooks_of_its_paper(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "data" / "published", tmp_path / "data" / "published")
    monkeypatch.setattr(inputs, "project_file", lambda name: (
        tmp_path / name if (tmp_path / name).exists() else ROOT / name))
    notebooks = {name: ROOT / "nbs" / "papers" / f"{name}.ipynb" for name in ("tricd_audit", "benchmarks")}
    before = {name: plan_run(path).run_id for name, path in notebooks.items()}
    change(tmp_path / "data" / "published" / "tricd_table3.csv")
    now = {name: plan_run(path).run_id for name, path in notebooks.items()}
    assert now["tricd_audit"] != before["tricd_audit"] and now["benchmarks"] == before["benchmarks"]
    change(tmp_path / "data" / "published" / "q_groundcam_table1.csv")
    assert plan_run(notebooks["tricd_audit"]).run_id == now["tricd_audit"]


def test_a_list_of_words_counts_for_code_that_reads_it(tmp_path, monkeypatch):
    sources = {name: f"from qgcam_lib.{name} import {what}" for name, what in (
        ("probes.build.composition", "swap_objects"), ("probes.score", "pair_scores"))}
    mine = shutil.copytree(ROOT / "data" / "words", tmp_path / "data" / "words") / "attributes.toml"
    monkeypatch.setattr(inputs, "project_file", lambda name: (
        tmp_path / name if (tmp_path / name).exists() else ROOT / name))
    before = {name: find_inputs({}, tmp_path, source=source)["data"] for name, source in sources.items()}
    assert [one["path"] for one in before["probes.build.composition"]] == ["data/words/attributes.toml"]
    assert not before["probes.score"]
    change(mine)
    assert find_inputs({}, tmp_path, source=sources["probes.build.composition"])["data"] != before[
        "probes.build.composition"]
    counting = find_inputs({}, tmp_path, source="from qgcam_lib.data.referring.counts import words_of")["data"]
    assert [one["path"] for one in counting] == ["data/words/relations.toml"]


def test_the_miniworld_is_drawn_when_a_run_is_planned_and_grows_without_a_new_id(tmp_path, monkeypatch):
    monkeypatch.setenv("QGCAM_DATA_ROOT", str(tmp_path / "data"))
    asked = {"dataset": "miniworld-spatialsense", "split": "subjects"}
    before = find_inputs(asked, tmp_path)
    assert (tmp_path / "data" / "miniworld_spatialsense" / "annotations.json").is_file()
    assert find_inputs(asked, tmp_path) == before
    shutil.rmtree(tmp_path / "data")
    assert find_inputs(asked, tmp_path) == before
    monkeypatch.setattr(miniworld, "ensure", lambda root, splits, natural: miniworld.make_flickr30k(
        root, n_test=2 * (splits == "test"), n_val=2 * (splits == "val"), n_train=0, progress=False))
    test = find_inputs({"dataset": "", "split": "test"}, tmp_path)
    assert find_inputs({"dataset": "miniworld", "split": "val"}, tmp_path) != test
    again = find_inputs({"dataset": "miniworld", "split": "test"}, tmp_path)
    assert again["data"][0]["sha256"] == test["data"][0]["sha256"]


@pytest.mark.parametrize("given", [{"dataset": "nowhere"}, {"dataset": "flickr30k-entities"}, {"split": "testA"},
                                   {"weights": "best.pth"}], ids=str)
def test_what_is_not_there_stops_a_run_before_it_starts(given, world, tmp_path, monkeypatch):
    monkeypatch.setenv("QGCAM_DATA_ROOT", str(tmp_path / "data"))
    write_small(tmp_path)
    pairs = [part for name, value in given.items() for part in ("-p", name, value)]
    said = qgcam("run", "small.ipynb", *pairs, "--outputs", "out", folder=tmp_path, expected=2)
    assert said.startswith("qgcam: parameter `") and said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_parameters_of_other_kinds_are_not_taken_for_names(tmp_path):
    odd = {"dataset": 3, "models": 5, "model": None, "runs": 7, "data": {"a": 1}, "split": "test", "zoo": 0.5}
    assert find_inputs(odd, tmp_path) == {"data": [], "weights": []}
    with pytest.raises(ParameterError, match="parameter `vocab`: expected an existing file"):
        find_inputs({"vocab": "words.txt"}, tmp_path)


def test_a_gathering_run_without_ids_depends_on_every_finished_run(tmp_path, monkeypatch):
    monkeypatch.setenv("QGCAM_OUTPUTS", str(tmp_path / "out"))

    def finished(name, **parameters):
        folder = tmp_path / "out" / "one" / name
        folder.mkdir(parents=True)
        record = {"run_id": name, "status": "ok", "parameters": parameters, "outputs": []}
        (folder / "run.json").write_text(json.dumps(record))

    seen = [find_inputs({"runs": []}, tmp_path)["data"]]
    for name in ("a", "b"):
        finished(name)
        seen.append(find_inputs({"runs": []}, tmp_path)["data"])
    assert len({json.dumps(one) for one in seen}) == 3
    finished("c", runs=[])
    (tmp_path / "out" / "one" / "d").mkdir()
    (tmp_path / "out" / "one" / "d" / "run.json").write_text("{")
    (tmp_path / "out" / "one" / "e").mkdir()
    (tmp_path / "out" / "one" / "e" / "run.json").write_text("{}")
    assert find_inputs({"runs": []}, tmp_path)["data"] == seen[-1]
    assert find_inputs({"runs": ["a"]}, tmp_path)["data"] == []


# ---- a finished run is compared with its record ----------------------------------------------------------------------


def test_a_changed_file_of_a_finished_run_is_said_kept_and_computed_again(world, tmp_path):
    write_small(tmp_path)
    command = ("run", "small.ipynb", "--outputs", "out", "--quiet")
    run_id = re.search(r"run ([0-9a-f]{12})", qgcam(*command, folder=tmp_path))[1]
    folder = tmp_path / "out" / "small" / run_id
    table = folder / "tables" / "scores.csv"
    right = table.read_text()
    recorded = {item["path"]: item["sha256"] for item in read_run(folder)["outputs"]}["tables/scores.csv"]
    assert changed_outputs(folder) == []

    table.write_text("id,x0\nmine,1\n")
    said = qgcam("table", "small", "--outputs", "out", folder=tmp_path, expected=1)
    assert f"run {run_id}: tables/scores.csv has changed (sha256 " in said and f"recorded {recorded[:12]})" in said
    with pytest.raises(RunError, match="scores.csv has changed"):
        gather_run(folder, tmp_path / "page")
    said = qgcam(*command, folder=tmp_path)
    kept = folder.with_name(f"{run_id}-changed-1")
    assert said.startswith(f"run {run_id}: tables/scores.csv has changed") and str(kept) in said and "ok in" in said
    assert (kept / "tables" / "scores.csv").read_text() == "id,x0\nmine,1\n" and table.read_text() == right
    assert [path for path, _ in find_runs(tmp_path / "out")] == [folder]
    assert f"Run {run_id} of small.ipynb" in qgcam("table", "small", "--outputs", "out", folder=tmp_path)

    table.unlink()
    qgcam("table", "small", "--outputs", "out", folder=tmp_path, expected=1)
    said = qgcam(*command, folder=tmp_path)
    assert said.startswith(f"run {run_id}: tables/scores.csv is gone. It is computed again.\n") and "ok in" in said
    assert table.read_text() == right and sorted(path.name for path in folder.parent.glob("[0-9a-f]*")) == [
        run_id, kept.name]


def test_records_of_a_run_are_read_only_when_they_are_the_runs(world, tmp_path):
    write_small(tmp_path)
    result = run_notebook(tmp_path / "small.ipynb", outputs=tmp_path / "out", progress=False)
    before = run_records(result.folder)
    part = next((result.folder / "records" / "model").glob("*.parquet"))
    shutil.copyfile(part, part.with_name("part-9.parquet"))
    with pytest.raises(RunError, match="part-9.parquet is not in the record"):
        run_records(result.folder)
    part.with_name("part-9.parquet").unlink()
    assert run_records(result.folder).equals(before)
    change(part)
    with pytest.raises(RunError, match="has changed"):
        run_records(result.folder)
    said = []
    again = run_notebook(tmp_path / "small.ipynb", outputs=tmp_path / "out", progress=False, say=said.append)
    assert again.status == "ok" and len(said) == 1 and run_records(again.folder).equals(before)
    with pytest.warns(UserWarning, match="is gone. It is computed again"):
        (again.folder / "run.ipynb").unlink()
        run_notebook(tmp_path / "small.ipynb", outputs=tmp_path / "out", progress=False)


@pytest.mark.parametrize("name, given", [
    ("q_groundcam", {"model": "mdetr-like"}), ("q_groundcam_audit", {"models": ["blip-base", "owl-vit-b32"]}),
    ("q_groundcam_table1", {"models": ["mdetr-like"]}), ("tricd_detection", {"models": ["blip-base"]}),
    ("tricd_vqa", {"models": ["glip-like"]}), ("probe_relation", {"models": ["mdetr-like"]}),
    ("probe_composition", {"models": ["clip-rn50", "owl-vit-b32"]}), ("probe_background", {"models": ["blip-vqa"]})])
def test_a_model_in_the_wrong_role_stops_every_paper_notebook_before_it_starts(name, given):
    with pytest.raises(ParameterError, match="model"):
        plan_run(ROOT / "nbs" / "papers" / f"{name}.ipynb", given)
