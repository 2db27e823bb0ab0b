"""A run is what it reads: another content is another run, and a finished run is compared with its record.

The runs here are made by the command `qgcam run` on a small notebook and on the audit of TRICD with few draws.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
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
from qgcam_lib.runs import find_runs, open_run, read_run
from qgcam_lib.runs.gather import gather_run
from qgcam_lib.runs.inputs import fetch_weights, find_inputs, input_entries, recipes
from qgcam_lib.runs.parameters import read_cell
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


TYPES = """from qgcam_lib.data.inputs import DatasetSource, ExpressionsSource, TricdSource
from qgcam_lib.models.inputs import DetectorSource, ExplainerName, ExplainerSource, MatcherName, WeightsSource
from qgcam_lib.runs.inputs import RunId
from qgcam_lib.storage.fingerprints import FilePath, WeightsFile"""


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

    def planned():
        return plan_run(tmp_path / "small.ipynb", outputs=tmp_path / "out").run_id

    command = ("run", "small.ipynb", "--outputs", "out", "--quiet")
    ids = [re.search(r"run ([0-9a-f]{12})", qgcam(*command, folder=tmp_path))[1]]
    assert planned() == ids[0]
    annotation = sorted((world / "flickr" / "Annotations").glob("*.xml"))[0]
    x = re.search(r"<xmin>(\d+)</xmin>", annotation.read_text())[1]
    swap(annotation, f"<xmin>{x}</xmin>", f"<xmin>{int(x) + 1}</xmin>")
    ids.append(planned())
    (tmp_path / "mine.json").write_text("{}")
    ids.append(planned())
    assert len(set(ids)) == 3
    swap(annotation, f"<xmin>{int(x) + 1}</xmin>", f"<xmin>{x}</xmin>")
    write_small(tmp_path)
    said = qgcam(*command, folder=tmp_path)
    assert f"run {ids[0]}" in said and "finished before" in said  # the old content is the old run

    record = read_run(tmp_path / "out" / "small" / ids[0])
    assert [(one["kind"], one["path"]) for one in record["data"] + record["weights"]] == [
        ("data set", "worlds/flickr, test"), ("file", "predictions:mine.json"), ("mini", "data/zoo/blip-mini")]


def change(path):
    """Change one byte of a file and nothing of its size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


READ = {  # notebook, data -> files that its run reads, each of which makes another run; files that it does not read
    ("q_groundcam", "flickr"): (["flickr/test.txt", "flickr/Sentences/*.txt", "flickr/Annotations/*.xml",
                                 "flickr/images/*.png"], ["flickr/miniworld.json", "tricd/TRICD_grounding_val.json"]),
    ("tricd_vqa", "tricd"): (["tricd/TRICD_grounding_test.json", "tricd/TRICD_VQA_val.json",
                              "tricd/TRICD_grounding_val.json"], ["flickr/test.txt"]),
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
    given = {"dataset": str(world / data)}
    if notebook.startswith("probe_"):
        given["captions"] = str(world / "coco")
    if notebook == "probe_composition":
        given |= {"dataset": [given["dataset"]], "swaps": [str(world / "swaps")]}
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
    for name in ("clip-rn-mini/model.safetensors", "blip-mini/README.md"):
        change(tmp_path / "zoo" / name)
    assert weights() == before


def test_published_checkpoints_count_where_they_are_and_are_fetched_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
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
        return reads(tmp_path, models='list[MatcherName] = ["blip-base"]', weights='WeightsSource = "official"')

    monkeypatch.setattr(model_inputs, "load_model", load)
    (place / "best_flickr.pth").write_bytes(b"one")
    flickr = input_entries(amc())["weights"]
    assert [one["path"] for one in flickr] == ["albef-amc"] and fetch_weights(amc()) == []
    assert input_entries(amc("best-refcoco"))["weights"] == []
    (place / "best_flickr.pth").write_bytes(b"two")
    assert input_entries(amc())["weights"] != flickr
    assert input_entries(several())["weights"] == []
    assert fetch_weights(several()) == ["blip-base"] and fetched == [("blip-base", "official", {})]
    assert [one["path"] for one in input_entries(several())["weights"]] == ["blip-base"]
    monkeypatch.undo()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "empty"))
    with pytest.raises(ParameterError, match="parameter `weights`: .*best_refcoco.pth"):
        fetch_weights(amc("best-refcoco"))


def test_the_miniworld_is_known_by_its_recipe_drawn_when_it_is_used_and_then_checked(tmp_path, monkeypatch, capsys):
    root = tmp_path / "data"

    def spatial():
        [found] = reads(tmp_path, dataset='DatasetSource = "miniworld-spatialsense"', split='str = "subjects"')
        return found

    monkeypatch.setenv("QGCAM_DATA_ROOT", str(root))
    before = spatial().entry()
    assert not root.exists(), "nothing is drawn to plan"
    [recipe] = recipes([spatial()])
    folder = recipe.bring(progress=False)
    assert not capsys.readouterr().err, "a quiet run draws no bar"
    assert (folder / "annotations.json").is_file() and spatial().entry() == before and recipe.bring() == folder
    picture = sorted(folder.rglob("*.jpg"))[0]
    kept = picture.read_bytes()
    for damage in (picture.unlink, lambda: picture.write_bytes(kept + b" ")):
        damage()
        with pytest.raises(FileFault, match="since this data set was generated"):
            recipe.bring()
    monkeypatch.setattr(generated, "_code", lambda module: "edited")
    assert spatial().entry() != before
    recipe.bring()
    assert picture.read_bytes() == kept, "another recipe draws anew"


def test_splits_that_are_drawn_one_by_one_are_checked_one_by_one(tmp_path, monkeypatch):
    def few(root, splits, natural, anew, progress):
        counts = {f"n_{name}": 2 * (name == splits) for name in ("test", "val", "train")}
        return miniworld.make_flickr30k(root, **counts, natural=natural, anew=anew, progress=False)

    monkeypatch.setattr(flickr30k, "ensure", few)
    test, val = (generated.recipe_of("miniworld", split, tmp_path) for split in ("test", "val"))
    assert test.fingerprint() != val.fingerprint()
    test.bring()
    assert len(test.files()) == 7 and val.bring() == test.bring() and len(val.files()) == 7
    monkeypatch.setattr(generated, "_code", lambda module: "edited")
    assert val.bring() and test.bring() and len(test.files()) == 7


@pytest.mark.parametrize("given", [{"dataset": "nowhere"}, {"split": "testA"}, {"weights": "best.pth"}], ids=str)
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
    assert changed_outputs(folder) == []

    table.write_text("id,x0\nmine,1\n")
    said = qgcam("table", "small", "--outputs", "out", folder=tmp_path, expected=1)
    assert "tables/scores.csv has changed" in said
    with pytest.raises(RunError, match="scores.csv has changed"):
        gather_run(folder, tmp_path / "page")
    said = qgcam(*command, folder=tmp_path)
    kept = folder.with_name(f"{run_id}-changed-1")
    assert str(kept) in said
    assert (kept / "tables" / "scores.csv").read_text() == "id,x0\nmine,1\n" and table.read_text() == right
    assert [path for path, _ in find_runs(tmp_path / "out")] == [folder]


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
    again = run_notebook(tmp_path / "small.ipynb", outputs=tmp_path / "out", progress=False, say=lambda text: None)
    assert again.status == "ok" and run_records(again.folder).equals(before)


@pytest.mark.parametrize("name, given", [
    ("q_groundcam", {"model": "mdetr-like"}), ("tricd_detection", {"models": ["blip-base"]}),
    ("tricd_vqa", {"models": ["glip-like"]}), ("probe_composition", {"models": ["clip-rn50", "owl-vit-b32"]})])
def test_a_model_in_the_wrong_role_stops_a_paper_notebook_before_it_starts(name, given):
    with pytest.raises(ParameterError, match="model"):
        plan_run(ROOT / "nbs" / "papers" / f"{name}.ipynb", given)


FACTORIES = {"mine_a.py": "import numpy as np\nfrom mine_b import *\nfrom os.path import *\n",
             "mine_b.py": "def make(): ...\n"}


@pytest.mark.parametrize("name, given, words", [
    ("q_groundcam", {"split": "foo"}, "split: expected one of train, val, test.*'foo'"),
    ("q_groundcam", {"dataset": "miniworld-spatialsense"}, "split: expected one of triplets.*'test'"),
    ("q_groundcam", {"dataset": "miniworld-tricd"}, "no grounding examples"),
    ("q_groundcam", {"dataset": "bare"}, "bare: none of the 4 images.*[.]jpg.*`qgcam data verify .*bare`"),
    ("probe_background", {"subset": "foo"}, "subset: expected one of .*val2014.*'foo'"),
    ("q_groundcam", {"device": "cuda:99"}, "`device`.*cuda:99"),
    ("q_groundcam", {"model": "mine_a:make", "weights": "random"}, "weights.*'random'"),
    ("q_groundcam", {"model": "mine_a:maek"}, "defines no maek. Did you mean make"),
    ("ref_adv_train", {"check_arm": "mtl-rel-1"}, "`check_arm`.*'plain'"), ("ref_adv_train", {"anew": "mtl"}, "`anew`"),
], ids=str)
def test_a_wrong_value_is_refused_before_anything_loads_at_both_doors(name, given, words, tmp_path, monkeypatch):
    for file, source in FACTORIES.items():
        (tmp_path / file).write_text(source)
    if given.get("dataset") == "bare":
        miniworld.make_flickr30k(tmp_path / "bare", n_test=4, n_val=0, n_train=0, progress=False)
        shutil.rmtree(tmp_path / "bare" / "images")
        given = {"dataset": str(tmp_path / "bare")}
    monkeypatch.chdir(tmp_path)
    notebook = ROOT / "nbs" / "papers" / f"{name}.ipynb"
    for start in (plan_run, partial(open_run, outputs=tmp_path / "out")):
        with pytest.raises(ParameterError, match=words):
            start(notebook, given)
    assert not (tmp_path / "out").exists() and "mine_b" not in sys.modules, "planning runs nothing of the user's"
