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
from qgcam_lib.data import generated
from qgcam_lib.errors import FileFault, ParameterError, RunError
from qgcam_lib.miniworld.writers import flickr30k
from qgcam_lib.models import inputs as model_inputs
from qgcam_lib.papers.q_groundcam.splits import run_records
from qgcam_lib.runs import find_runs, read_run
from qgcam_lib.runs.gather import gather_run
from qgcam_lib.runs.inputs import fetch_weights, find_inputs, input_entries, recipes
from qgcam_lib.runs.parameters import read_cell
from qgcam_lib.runs.record import changed_outputs
from qgcam_lib.runs.runner import plan_run, run_notebook
from qgcam_lib.storage import closure
from qgcam_lib.storage.closure import code_fingerprint

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


TYPES = """from qgcam_lib.data.inputs import DatasetSource, ExpressionsSource, TricdSource
from qgcam_lib.models.inputs import DetectorSource, ExplainerName, ExplainerSource, MatcherName, WeightsSource
from qgcam_lib.runs.inputs import RunId
from qgcam_lib.storage.inputs import FilePath, WeightsFile"""


def reads(folder, **parameters):
    """The inputs of a run in a folder; parameters: name="Type = default", as in a parameters cell."""
    known = read_cell("\n".join(f"{name}: {text}" for name, text in parameters.items()), "demo", [TYPES])
    return find_inputs(known, {name: one.default for name, one in known.items()}, folder)


def entries(folder, **parameters):
    return input_entries(reads(folder, **parameters))


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

SMALL = ('dataset: DatasetSource = "worlds/flickr"\nsplit: str = "test"\nmodel: ExplainerName = "blip-base"\n'
         'weights: WeightsSource = "mini"\n'
         'models: list[str] = ["predictions:mine.json"]')


def write_small(folder):
    """A notebook that reads a data set and names a file of predictions; it writes a table, records and its colophon."""
    cells = [new_code_cell(TYPES), new_code_cell(SMALL, metadata={"tags": ["parameters"]}), new_code_cell(
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
    monkeypatch.setattr(model_inputs, "zoo_folder", lambda: tmp_path / "zoo")

    def weights(which="mini"):
        found = entries(tmp_path, a='ExplainerSource = "blip-base"',
                        b='list[ExplainerName] = ["albef-amc", "blip2-itm"]',
                        c='list[DetectorSource] = ["predictions:none.json"]', weights=f'WeightsSource = "{which}"')
        return found["weights"]

    before = weights()
    assert [one["path"] for one in before] == ["data/zoo/blip-mini", "data/zoo/albef-amc-mini"]
    assert weights("random") == []
    for name in ("model.safetensors", "config.json", "vocab.txt", "card.json"):
        change(tmp_path / "zoo" / "blip-mini" / name)
        now = weights()
        assert now[0] != before[0] and now[1] == before[1]
        before = now
    for name in ("clip-rn-mini/model.safetensors", "blip-mini/README.md", "zoo.json"):
        change(tmp_path / "zoo" / name)
    assert weights() == before

    recipe = ROOT / "nbs" / "papers" / "amc_recipe.ipynb"
    plan = plan_run(recipe, {"zoo": str(tmp_path / "zoo"), "dataset": str(_tiny(tmp_path))})
    assert {"albef-mini", "albef-amc-mini"} <= {Path(one["path"]).name for one in plan.inputs["weights"]}
    change(tmp_path / "zoo" / "albef-mini" / "log.csv")
    assert plan_run(recipe, {"zoo": str(tmp_path / "zoo"), "dataset": str(_tiny(tmp_path))}).run_id != plan.run_id


def _tiny(folder):
    return miniworld.make_flickr30k(folder / "tiny", n_test=1, n_train=0, n_val=0, progress=False)


def test_published_checkpoints_count_where_they_are_and_are_fetched_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "face"))
    place = tmp_path / "torch" / "hub" / "checkpoints"
    place.mkdir(parents=True)
    fetched = []

    def load(name, weights, **options):
        fetched.append((name, weights, options))
        (place / "model_base_retrieval_coco.pth").write_bytes(b"fetched")

    def amc(checkpoint=""):
        return reads(tmp_path, model='ExplainerSource = "albef-amc"', weights='WeightsSource = "official"',
                     checkpoint=f'str = "{checkpoint}"')

    def several():
        return reads(tmp_path, models='list[MatcherName] = ["blip-base", "vilt"]', weights='WeightsSource = "official"')

    monkeypatch.setattr(model_inputs, "load_model", load)
    (place / "best_flickr.pth").write_bytes(b"one")
    flickr = input_entries(amc())["weights"]
    assert [one["path"] for one in flickr] == ["albef-amc"] and fetch_weights(amc()) == []
    assert input_entries(amc("best-refcoco"))["weights"] == []
    (place / "best_flickr.pth").write_bytes(b"two")
    assert input_entries(amc())["weights"] != flickr
    snapshot = tmp_path / "face" / "hub" / "models--dandelin--vilt-b32-finetuned-coco" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert input_entries(several())["weights"] == []
    (snapshot / "model.safetensors").write_bytes(b"one")
    assert fetch_weights(several()) == ["blip-base"] and fetched == [("blip-base", "official", {})]
    assert [one["path"] for one in input_entries(several())["weights"]] == ["blip-base", "vilt"]
    monkeypatch.undo()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "empty"))
    with pytest.raises(ParameterError, match="parameter `weights`: .*best_refcoco.pth"):
        fetch_weights(amc("best-refcoco"))


def test_a_file_that_the_code_names_counts_for_the_notebooks_that_reach_it(tmp_path, monkeypatch):
    mine = shutil.copytree(ROOT / "data" / "words", tmp_path / "data" / "words") / "attributes.toml"
    monkeypatch.setattr(closure, "project_file", lambda name: (
        tmp_path / name if (tmp_path / name).exists() else ROOT / name))
    sources = [f"from qgcam_lib.{name}" for name in ("probes.build.words import x", "probes.score import pair_scores")]
    closure._module.cache_clear()
    before = [code_fingerprint(source=source) for source in sources]
    change(mine)
    assert [code_fingerprint(source=source) == old for source, old in zip(sources, before)] == [False, True]
    closure._module.cache_clear()


def test_the_miniworld_is_known_by_its_recipe_drawn_when_it_is_used_and_then_checked(tmp_path, monkeypatch):
    root = tmp_path / "data"

    def spatial():
        [found] = reads(tmp_path, dataset='DatasetSource = "miniworld-spatialsense"', split='str = "subjects"')
        return found

    monkeypatch.setenv("QGCAM_DATA_ROOT", str(root))
    before = spatial().entry()
    assert not root.exists(), "nothing is drawn to plan"
    [recipe] = recipes([spatial()])
    folder = recipe.bring()
    assert (folder / "annotations.json").is_file() and spatial().entry() == before and recipe.bring() == folder
    picture = sorted(folder.rglob("*.jpg"))[0]
    kept = picture.read_bytes()
    picture.unlink()
    assert recipe.bring() == folder and picture.read_bytes() == kept, "what is missing is drawn again"
    picture.write_bytes(kept + b" ")
    with pytest.raises(FileFault, match="since this data set was drawn"):
        recipe.bring()
    monkeypatch.setattr(generated, "_code", lambda module: "edited")
    assert spatial().entry() != before
    recipe.bring()
    assert picture.read_bytes() == kept, "another recipe draws anew"


def test_splits_that_are_drawn_one_by_one_are_checked_one_by_one(tmp_path, monkeypatch):
    def few(root, splits, natural, anew):
        counts = {f"n_{name}": 2 * (name == splits) for name in ("test", "val", "train")}
        return miniworld.make_flickr30k(root, **counts, natural=natural, anew=anew, progress=False)

    monkeypatch.setattr(flickr30k, "ensure", few)
    test, val = (generated.recipe_of("miniworld", split, tmp_path) for split in ("test", "val"))
    assert test.fingerprint() != val.fingerprint()
    test.bring()
    assert len(test.files()) == 7 and val.bring() == test.bring() and len(val.files()) == 7
    monkeypatch.setattr(generated, "_code", lambda module: "edited")
    assert val.bring() and test.bring() and len(test.files()) == 7


@pytest.mark.parametrize("given", [{"dataset": "nowhere"}, {"dataset": "flickr30k-entities"}, {"split": "testA"},
                                   {"weights": "best.pth"}], ids=str)
def test_what_is_not_there_stops_a_run_before_it_starts(given, world, tmp_path, monkeypatch):
    monkeypatch.setenv("QGCAM_DATA_ROOT", str(tmp_path / "data"))
    write_small(tmp_path)
    pairs = [part for name, value in given.items() for part in ("-p", name, value)]
    said = qgcam("run", "small.ipynb", *pairs, "--outputs", "out", folder=tmp_path, expected=2)
    assert said.startswith("qgcam: parameter `") and said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_plain_text_counts_where_it_names_a_file_and_a_file_path_must(tmp_path):
    (tmp_path / "words.txt").write_text("a")
    assert entries(tmp_path, split='str = "test"', n="int = 3", more='dict = {"a": 1}') == {"data": [], "weights": []}
    assert [one["kind"] for one in entries(tmp_path, mine='str = "words.txt"')["data"]] == ["file"]
    assert [one["kind"] for one in entries(tmp_path, vocab='WeightsFile = "words.txt"')["weights"]] == ["file"]
    assert entries(tmp_path, given='FilePath = ""') == {"data": [], "weights": []}
    with pytest.raises(ParameterError, match="parameter `vocab`: expected an existing file"):
        reads(tmp_path, vocab='WeightsFile = "other.txt"')


def test_a_gathering_run_without_ids_depends_on_every_finished_run(tmp_path, monkeypatch):
    monkeypatch.setenv("QGCAM_OUTPUTS", str(tmp_path / "out"))

    def finished(name, **parameters):
        folder = tmp_path / "out" / "one" / name
        folder.mkdir(parents=True)
        record = {"run_id": name, "status": "ok", "parameters": parameters, "outputs": []}
        (folder / "run.json").write_text(json.dumps(record))

    seen = [entries(tmp_path, runs="list[RunId] = []")["data"]]
    for name in ("a", "b"):
        finished(name)
        seen.append(entries(tmp_path, runs="list[RunId] = []")["data"])
    assert len({json.dumps(one) for one in seen}) == 3
    finished("c", runs=[])
    (tmp_path / "out" / "one" / "d").mkdir()
    (tmp_path / "out" / "one" / "d" / "run.json").write_text("{")
    (tmp_path / "out" / "one" / "e").mkdir()
    (tmp_path / "out" / "one" / "e" / "run.json").write_text("{}")
    assert entries(tmp_path, runs="list[RunId] = []")["data"] == seen[-1]
    assert entries(tmp_path, runs='list[RunId] = ["a"]')["data"] == []


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
