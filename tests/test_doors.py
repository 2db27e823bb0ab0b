"""The ways into a notebook without the runner, each with its real program: papermill, jupyter execute, JupyterLab."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from PIL import Image

from qgcam_lib.runs import find_runs

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
CHROMIUM = Path("/usr/bin/chromium")

# A paper notebook in small: an explainer that writes down each time that it is asked, a store, a table, a colophon.
CELLS = ["""import os
from pathlib import Path

import numpy as np
import torch
from qgcam_lib.data.records import GroundingExample
from qgcam_lib.grounding import ground
from qgcam_lib.models.registry import ExplainerName
from qgcam_lib.runs import current_run""", """class Hill:
    card, protocol = {"name": "hill"}, "pixel"

    def maps(self, image, phrases):
        with open(os.environ["ASKED"], "a") as file:
            file.write(f"{len(phrases)}\\n")
        return torch.eye(8).expand(len(phrases), 8, 8)

    def maps_batch(self, images, phrases):
        return [self.maps(image, some) for image, some in zip(images, phrases)]""",
         """limit: int = 3  # phrases
model: ExplainerName = "blip-base"  # only its name is used here
share: float = 0.5  # not used""",
         "run = current_run()",
         """box = np.array([[0, 0, 9, 9]])
examples = [GroundingExample(f"{k}", Path(f"{k % 3}.png"), f"thing {k}", box, f"{k % 3}", (24, 32)) for k in range(9)]
frame = ground(Hill(), examples, limit=limit, store=run.store("model"), progress=False)
assert len(frame) == limit
run.record(n=len(frame), io_ratio=frame["io_ratio"].mean())
_ = run.save_table(frame, "frame", caption="What was found")""",
         "run.colophon()"]


@pytest.fixture
def place(tmp_path):
    """A folder with the notebook and three pictures."""
    cells = [new_code_cell(source, id=f"cell{k}") for k, source in enumerate(CELLS)]
    cells[2].metadata["tags"] = ["parameters"]
    metadata = {"kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=metadata), tmp_path / "little paper.ipynb")
    for k in range(3):
        Image.fromarray(np.full((24, 32, 3), 40 * k, np.uint8)).save(tmp_path / f"{k}.png")
    return tmp_path


def environment(place):
    """No settings and start-up files of whoever runs the tests; the library of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QGCAM_", "JPY_", "JUPYTER_"))}
    own = {name: str(place / ".own" / name) for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR",
                                                         "JUPYTER_DATA_DIR", "QGCAM_CACHE")}
    return kept | own | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "ASKED": str(place / "asked.txt"),
                         "QGCAM_OUTPUTS": str(place / "out")}


def start(place, *command, **variables):
    done = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=place, env=environment(place) | variables,
                          capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def papermill(place, target, *parameters, notebook="little paper.ipynb"):
    return start(place, "papermill", "--no-progress-bar", notebook, target, *parameters)


def asked(place):
    """How many phrases the explainer was asked for, and forget it."""
    file = place / "asked.txt"
    text = file.read_text() if file.is_file() else ""
    file.unlink(missing_ok=True)
    return sum(map(int, text.split()))


def bytes_of(folder):
    """What lies in the folder of a run except its own record, whose times change."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != "run.json"}


def interactive(place, name="little_paper"):
    return {tuple(record["parameters"].values())[0]: (folder, record)
            for folder, record in find_runs(place / "out", notebook=name, status="interactive")}


def test_plain_papermill_three_times_and_the_first_again(place):
    for limit, asked_for in ((4, 4), (6, 6), (2, 2)):
        assert papermill(place, f"o{limit}.ipynb", "-p", "limit", str(limit))[0] == 0
        assert asked(place) == asked_for
    runs = interactive(place)
    assert set(runs) == {4, 6, 2} and len({folder for folder, _ in runs.values()}) == 3
    before = {folder: bytes_of(folder) for folder, _ in runs.values()}
    code, said = papermill(place, "again.ipynb", "-p", "limit", "4")
    assert code == 0, said
    assert asked(place) == 0, "the first run is continued: nobody is asked again"
    assert {folder: bytes_of(folder) for folder, _ in runs.values()} == before, "nothing is overwritten by another"
    again = interactive(place)
    assert set(again) == set(runs) and again[4][0] == runs[4][0]
    folder, record = again[4]
    assert record["parameters"] == {"limit": 4, "model": "blip-base", "share": 0.5} and record["attempts"] == 2
    assert record["finished"] and record["results"]["n"] == 4
    assert record["notebook"] == str(place / "little paper.ipynb")
    assert {item["kind"] for item in record["outputs"]} == {"table", "records"}
    assert find_runs(place / "out") == [] and find_runs(place / "out", status=None) == [], "no runner's runs"


REFUSED = [(["-p", "limti", "6"], "parameter `limti`: the notebook has no such parameter. Did you mean `limit`?"),
           (["-p", "limit", "many"], "parameter `limit`: expected int, given 'many' (str). Give a whole number"),
           (["-p", "model", "mdetr-like"], "'mdetr-like' is a detector. Give the name of an explainer: blip-base")]


@pytest.mark.parametrize("given, words", REFUSED)
def test_what_papermill_injects_is_checked_in_the_first_cell(place, given, words):
    code, said = papermill(place, "o.ipynb", *given)
    assert code == 1 and words in said and asked(place) == 0
    assert not (place / "out").exists()
    strict = start(place, "qgcam", "run", "little paper.ipynb", *given)
    assert strict[0] == 2 and words.split(", given")[0] in " ".join(strict[1].split()), "the runner says the same"


def test_jupyter_execute_takes_the_defaults_and_resumes_what_papermill_began(place):
    code, said = start(place, "jupyter", "execute", "little paper.ipynb")
    assert code == 0, said
    assert asked(place) == 3 and set(interactive(place)) == {3}
    assert papermill(place, "o.ipynb")[0] == 0
    assert asked(place) == 0 and set(interactive(place)) == {3}, "one notebook, one folder, whichever way"
