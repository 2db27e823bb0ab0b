"""The ways into a notebook without the runner, each with its real program: papermill, jupyter execute, JupyterLab."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from PIL import Image

from qgcam_lib.errors import ParameterError
from qgcam_lib.runs import find_runs
from qgcam_lib.runs.runner import plan_run

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
CHROMIUM = Path("/usr/bin/chromium")

# A model in a file beside the notebook: rows of a class in a cell are not continued by another process.
HILL = """import os

import torch


class Hill:
    card, protocol = {"name": "hill"}, "pixel"

    def maps(self, image, phrases):
        with open(os.environ["ASKED"], "a") as file:
            file.write(f"{len(phrases)}\\n")
        return torch.eye(8).expand(len(phrases), 8, 8)

    def maps_batch(self, images, phrases):
        return [self.maps(image, some) for image, some in zip(images, phrases)]"""

# A paper notebook in small: an explainer that writes down each time that it is asked, a store, a table, a colophon.
CELLS = ["""from pathlib import Path

import numpy as np
from qgcam_lib.data.records import GroundingExample
from qgcam_lib.grounding import ground
from qgcam_lib.models.inputs import ExplainerName
from qgcam_lib.runs import open_run""", "from hill import Hill",
         """limit: int = 3  # phrases
model: ExplainerName = "blip-base"  # only its name is used here
share: float = 0.5  # not used""",
         "run = open_run('little_paper', globals())",
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
    nbformat.write(new_notebook(cells=cells, metadata=metadata), tmp_path / "little_paper.ipynb")
    (tmp_path / "hill.py").write_text(HILL)
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


def papermill(place, target, *parameters, notebook="little_paper.ipynb"):
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


def interactive(place):
    return {tuple(record["parameters"].values())[0]: (folder, record)
            for folder, record in find_runs(place / "out", notebook="little_paper", status="interactive")}


@pytest.mark.nightly
def test_plain_papermill_twice_and_the_first_again(place):
    for limit in (4, 2):
        assert papermill(place, f"o{limit}.ipynb", "-p", "limit", str(limit))[0] == 0
        assert asked(place) == limit
    runs = interactive(place)
    assert set(runs) == {4, 2} and len({folder for folder, _ in runs.values()}) == 2
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
    assert find_runs(place / "out") == [] and find_runs(place / "out", status=None) == [], "no runner's runs"


def test_what_papermill_injects_is_checked_in_the_first_cell(place):
    light = nbformat.read(place / "little_paper.ipynb", 4)
    light.cells = [new_code_cell("\n".join(CELLS[0].splitlines()[-2:])), *light.cells[2:4]]
    nbformat.write(light, place / "light.ipynb")
    code, said = papermill(place, "o.ipynb", "-p", "limti", "6", notebook="light.ipynb")
    assert code == 1 and "open_run(" in said and not (place / "out").exists()
    with pytest.raises(ParameterError, match="limti") as strict:
        plan_run(place / "light.ipynb", {"limti": "6"})
    assert str(strict.value) in said, "the runner says the same"


@pytest.mark.nightly
def test_jupyter_execute_takes_the_defaults_and_resumes_what_papermill_began(place):
    code, said = start(place, "jupyter", "execute", "little_paper.ipynb")
    assert code == 0, said
    assert asked(place) == 3 and set(interactive(place)) == {3}
    assert papermill(place, "o.ipynb")[0] == 0
    assert asked(place) == 0 and set(interactive(place)) == {3}, "one notebook, one folder, whichever way"


# ---- JupyterLab, in a browser


@pytest.fixture
def lab(place):
    """JupyterLab on the folder; gives the address of the notebook."""
    kept = place / ".own" / "settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"windowingMode": "none"}')  # all cells on the page, also those below
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(BIN / "jupyter-lab"), "--no-browser", "--allow-root", f"--port={port}", "--IdentityProvider.token=t",
               "--LabApp.news_url=", "--ServerApp.root_dir=."]
    own = {"JUPYTERLAB_SETTINGS_DIR": str(place / ".own" / "settings")}
    with open(place / ".own" / "lab.log", "w") as log:
        server = subprocess.Popen(command, cwd=place, env=environment(place) | own, stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/api/status?token=t"), 60, place / ".own" / "lab.log")
        yield f"http://127.0.0.1:{port}/lab/tree/little_paper.ipynb?token=t"
    finally:
        server.terminate()
        server.wait(30)


def answers(address):
    try:
        return urllib.request.urlopen(address, timeout=5).status == 200
    except OSError:
        return False


def wait_for(condition, seconds, log=None):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, log.read_text()[-2000:] if log else "took too long"
        time.sleep(0.2)


IDLE = '.jp-Notebook-ExecutionIndicator[data-status="idle"]'


def run_all(page, limit):
    """Change the line of the limit as a user does, with mouse and keyboard, and choose Run > Run All Cells."""
    line = page.locator(".cm-line", has_text="limit: int = ").first
    line.click()
    page.keyboard.press("Home")
    page.keyboard.press("Shift+End")
    page.keyboard.insert_text(f"limit: int = {limit}")
    assert line.inner_text() == f"limit: int = {limit}"
    usable = page.locator(".lm-Menu-item:not(.lm-mod-disabled)", has_text=re.compile("Run All Cells$"))
    for _ in range(40):
        page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
        if usable.count():
            break
        page.keyboard.press("Escape")
        page.wait_for_timeout(500)
    usable.first.click()


@pytest.mark.nightly
@pytest.mark.skipif(not CHROMIUM.is_file(), reason=f"no browser: {CHROMIUM} is not there (Debian's package chromium)")
def test_jupyterlab_edit_the_parameters_and_run_all(place, lab):
    from playwright.sync_api import sync_playwright

    def finished(limit, attempt):
        _, record = interactive(place).get(limit, (None, {}))
        return bool(record.get("finished")) and record["attempts"] == attempt

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(lab)
        page.locator(".cm-line", has_text="limit: int").first.wait_for(timeout=60_000)
        page.locator(IDLE).wait_for(timeout=60_000)
        for limit, attempt in ((3, 1), (5, 1), (3, 2)):
            run_all(page, limit)
            wait_for(partial(finished, limit, attempt), 180)
            page.locator(IDLE).wait_for(timeout=60_000)
        browser.close()
    assert asked(place) == 3 + 5, "the third run went on with the first one's rows"
