"""A session in JupyterLab as `make lab` opens it: the start page, and a run from its form."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def lab(tmp_path):
    """JupyterLab with the project's settings and none of the user's; the address of the start page."""
    names = "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "QGCAM_OUTPUTS"
    own = {name: str(tmp_path / name) for name in names}
    environment = os.environ | own | {"JUPYTER_CONFIG_PATH": str(ROOT / ".ci" / "jupyter"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.token=t",
               "--ServerApp.port=0", "--notebook-dir", "."]
    log = (tmp_path / "log").open("w+")
    server = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, stdout=log)
    try:
        for _ in range(240):
            time.sleep(0.5)
            if found := re.search(r"http://127\.0\.0\.1:\d+/", (tmp_path / "log").read_text()):
                break
        yield f"{found[0]}lab/tree/nbs/00_start.ipynb?token=t"
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.nightly
def test_a_run_is_started_from_the_start_page(browser, lab):
    before = (ROOT / "nbs" / "00_start.ipynb").read_bytes()
    page, hosts = browser.new_page(viewport={"width": 1280, "height": 1000}), set()
    page.set_default_timeout(120_000)
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.goto(lab)
    page.wait_for_selector(".jp-Notebook .jp-Cell")
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
