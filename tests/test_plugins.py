"""Another package adds a model and a data set; a broken or greedy one is named and left out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "tests" / "plugin_example"


def pretend(folder, name, version, points, module=""):
    """An installed distribution with entry points, as pip would leave it."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(points)
    (folder / f"{name.replace('-', '_')}.py").write_text(module)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the example package, installed by pip, and a data root with its data set."""
    place = tmp_path_factory.mktemp("plugins")
    tree = place / "tree"
    tree.mkdir()
    for file in EXAMPLE.glob("*.*"):
        (tree / file.name).write_bytes(file.read_bytes())
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
                    "--no-index", "--target", place / "site", tree], check=True, capture_output=True, timeout=200)
    spots = place / "data" / "raw" / "bright-spots"
    spots.mkdir(parents=True)
    picture = np.zeros((48, 60, 3), np.uint8)
    picture[8:24, 30:50] = 250
    Image.fromarray(picture).save(spots / "a.png")
    (spots / "spots.csv").write_text("file,phrase,x0,y0,x1,y1,height,width\na.png,the spot,30,8,50,24,48,60\n")
    return place


def python(place, code, *more):
    env = {name: value for name, value in os.environ.items() if not name.startswith("QGCAM_")}
    paths = os.pathsep.join(map(str, [ROOT, place / "site", *more]))
    done = subprocess.run([sys.executable, "-W", "default::UserWarning", "-c", code], capture_output=True, text=True,
                          env=env | {"PYTHONPATH": paths, "QGCAM_DATA_ROOT": str(place / "data"),
                                     "QGCAM_OUTPUTS": str(place / "out")}, cwd=place, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_example_package_is_listed_loaded_scored_and_known_to_a_run(installed):
    out, _ = python(installed, """if True:
        import json, sys
        from qgcam_lib.cli.main import main
        from qgcam_lib.data.catalog import load_dataset
        from qgcam_lib.grounding import ground
        from qgcam_lib.models import load_model
        from qgcam_lib.models.registry import name_in_role
        from qgcam_lib.runs.inputs import find_inputs, input_entries
        from qgcam_lib.runs.parameters import read_cell
        assert "qgcam_bright" not in sys.modules
        model = load_model("bright", "random")
        frame = ground(model, load_dataset("bright-spots"), progress=False)
        types = ("from qgcam_lib.data.inputs import DatasetSource\\n"
                 "from qgcam_lib.models.inputs import ExplainerSource")
        cell = 'dataset: DatasetSource = "bright-spots"\\nmodel: ExplainerSource = "bright"'
        known = read_cell(cell, "demo", [types])
        values = {"dataset": "bright-spots", "split": "test", "model": "bright", "weights": "random"}
        inputs = input_entries(find_inputs(known, values))
        assert name_in_role("explainer", "bright") == "bright"
        print(json.dumps({"hit": frame["pg_hit"].tolist(), "card": model.card, "inputs": inputs}))
        assert main(["models"]) == main(["data", "list"]) == 0""")
    first, *rest = out.splitlines()
    found = json.loads(first)
    assert found["hit"] == [1.0] and found["card"]["plugin"] == "qgcam-bright 1.2"
    assert any(line.strip().startswith("bright ") for line in rest) and any("bright-spots" in line for line in rest)
    for group in ("data", "weights"):
        (one,) = [entry for entry in found["inputs"][group] if entry["kind"] == "plug-in"]
        assert one["path"] == "qgcam-bright 1.2" and len(one["sha256"]) == 64


def test_broken_wrong_and_greedy_plugins_are_named_and_the_rest_works(installed, tmp_path):
    pretend(tmp_path, "zz-broken", "0.1", "[qgcam.models]\nzz = zz_broken:ENTRY\n", "1 / 0\n")
    pretend(tmp_path, "zz-wrong", "0.2", "[qgcam.models]\nww = zz_wrong:ENTRY\n", "ENTRY = 'no entry'\n")
    entry = "from qgcam_lib.models.registry import ModelEntry\nENTRY = ModelEntry('{}')\n"
    pretend(tmp_path, "zz-greedy", "0.3", "[qgcam.models]\ngg = zz_greedy:ENTRY\n", entry.format("blip-base"))
    pretend(tmp_path, "zz-second", "0.4", "[qgcam.models]\nss = zz_second:ENTRY\n", entry.format("bright"))
    _, err = python(installed, """if True:
        from qgcam_lib.models.registry import find_model, list_models
        names = set(list_models()["name"])
        assert {"bright", "blip-base"} <= names and find_model("blip-base").mini == "blip-mini\"""", tmp_path)
    problems = [line for line in err.splitlines() if "is left out" in line]
    assert len(problems) == 4
    for package in ("zz-broken 0.1", "zz-wrong 0.2", "zz-greedy 0.3", "zz-second 0.4"):
        assert any(package in problem for problem in problems), (package, problems)
