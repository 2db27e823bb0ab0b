"""JupyterLab as `make lab` opens it: the start page, a run from its form, an explorer with its kernel."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def lab(tmp_path, request):
    """JupyterLab with the project's settings and none of the user's, in a folder (the project's, or the parameter's);
    the address of a notebook there is this address with its path in it."""
    folder = getattr(request, "param", ROOT)
    names = "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "QGCAM_OUTPUTS"
    own = {name: str(tmp_path / name) for name in names}
    environment = os.environ | own | {"JUPYTER_CONFIG_PATH": str(ROOT / ".ci" / "jupyter"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.token=t",
               "--ServerApp.port=0", "--notebook-dir", str(folder or tmp_path)]
    log = (tmp_path / "log").open("w+")
    server = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, stdout=log)
    try:
        for _ in range(240):
            time.sleep(0.5)
            if found := re.search(r"http://127\.0\.0\.1:\d+/", (tmp_path / "log").read_text()):
                break
        yield f"{found[0]}lab/tree/{{}}?token=t".format
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.nightly
def test_a_run_is_started_from_the_start_page(browser, lab):
    before = (ROOT / "nbs" / "00_start.ipynb").read_bytes()
    page, hosts = browser.new_page(viewport={"width": 1280, "height": 1000}), set()
    page.set_default_timeout(120_000)
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.goto(lab("nbs/00_start.ipynb"))
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_selector("text=/ \\| Idle/")  # before its kernel is there, Run All asks for one
    page.click("text=Run >> nth=0")
    page.click("text=/^Run All Cells$/")
    limit = page.locator(".widget-text:has(label:text-is('limit')) input")
    limit.scroll_into_view_if_needed()
    page.wait_for_function("document.body.innerText.includes('Q-GroundCAM')")
    assert not page.locator(".jp-Notification, .Toastify__toast").count()  # no news, no question
    limit.fill("many")
    limit.press("Enter")
    page.wait_for_selector("text=/limit.*expected a count/")
    limit.fill("20")
    limit.press("Enter")
    page.locator(".widget-text:has(label:text-is('baselines')) input").fill("[]")
    page.click("button:text-is('Run')")
    page.wait_for_selector("text=/The page of run [0-9a-f]{12}/")
    assert page.locator("a:has-text('The page of run')").get_attribute("href").endswith("run.html")
    page.close()
    assert len(hosts) == 1 and (ROOT / "nbs" / "00_start.ipynb").read_bytes() == before


WIDGET = """
import json
import numpy as np
from qgcam_lib.teach.map_scores import explore_scores
heat = np.zeros((6, 6))
heat[1:3, 1:3] = [[0.9, 0.6], [1.0, 0.6]]
widget = explore_scores(heat, (1, 1, 3, 3), delta=2).widget()
widget
"""
PRINTED = "print('STATE' + json.dumps([widget.box, widget.threshold, dict(widget.scores)]))"


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [None], indirect=True, ids=["a folder of the user's"])
def test_an_explorer_and_its_kernel_follow_each_other(browser, lab, tmp_path):
    sources = [WIDGET, PRINTED, "widget.box = [4, 4, 5, 6]"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources],
                                   metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    nbformat.write(book, tmp_path / "widget.ipynb")
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    page.set_default_timeout(120_000)
    page.goto(lab("widget.ipynb"))

    def run(cell):
        """Run a cell as a reader does: click into it, Ctrl+Enter."""
        page.locator(".jp-CodeCell .jp-InputArea-editor").nth(cell).click()
        page.keyboard.press("Control+Enter")

    page.wait_for_selector(".jp-CodeCell >> nth=2")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")  # the kernel is there
    run(0)
    root = page.locator(".explorer")
    root.locator(".frame").wait_for()
    root.locator(".frame").focus()
    page.keyboard.press("ArrowRight")
    root.locator(".threshold").fill("0.85")
    page.wait_for_timeout(1000)
    run(1)
    line = page.locator(".jp-OutputArea-output:has-text('STATE')")
    line.wait_for()
    box, threshold, scores = json.loads(line.inner_text().split("STATE")[1])
    shown = json.loads(root.get_attribute("data-values"))
    assert (box, threshold) == ([2, 1, 4, 3], 0.85)
    assert shown == pytest.approx(scores, abs=1e-6)  # the script's values on the page, and Python's
    assert page.locator("[data-python='io_ratio']").inner_text() == page.locator("[data-here='io_ratio']").inner_text()
    run(2)
    page.wait_for_function("() => document.querySelector('.explorer').state.box[0] === 4")
    assert root.evaluate("root => root.state.box") == [4, 4, 5, 6]
    page.close()
