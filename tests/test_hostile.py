"""Paper notebooks run on hostile data; a browser opens every page made of the runs and must find text alone."""

import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import nbformat
import numpy as np
import pytest
from hostile import GATHERS, NASTY, hostile_runs, hostile_world

from qgcam_lib.runs.gather import gather_run
from qgcam_lib.runs.parameters import read_parameters
from qgcam_lib.runs.report import write_report
from qgcam_lib.runs.runner import run_notebook
from qgcam_lib.runs.stored import with_outputs
from qgcam_lib.settings import ROOT
from qgcam_lib.teach.map_scores import explore_scores
from qgcam_lib.teach.probe_scores import edited_scenes, explore_pair_scores
from qgcam_lib.teach.word_order import explore_word_order, said_scene

sys.path.insert(0, str(ROOT / "docs"))
import pages

THEME = re.compile(r': (<(script|input|form|a )|<button [^>]*onclick="toggle|console Got invalid theme)|cut off')
FOREIGN = """() => ({
  hit: window.hit ?? null, foot: !!document.querySelector("footer"),
  bad: [...document.querySelectorAll(`script, iframe, object, embed, base, form, input, meta[http-equiv], img[src="x"],
    svg[onload], [onerror], [onload], [onclick], a[href^="javascript:"], a[href*="://"]`)].map(
      e => e.outerHTML.slice(0, 200))})"""


def faults_of(browser, file: Path, root: Path) -> list[str]:
    """What a browser finds on a page that should not be there: elements, dialogs, errors, requests outside `root`."""
    found, page = [], browser.new_page()
    page.on("dialog", lambda dialog: (found.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("pageerror", lambda error: found.append(f"error {error}"))
    page.on("console", lambda said: found.append(f"console {said.text}") if said.type == "error" else None)
    page.on("request", lambda asked: found.append(f"request {asked.url}") if not asked.url.startswith(
        (root.as_uri(), "data:")) else None)
    page.on("requestfailed", lambda asked: found.append(f"not there: {asked.url}"))
    page.goto(file.as_uri())
    seen = page.evaluate(FOREIGN)
    page.close()
    return [f"{file.name}: {one}" for one in (*found, *seen["bad"], *["window.hit"] * (seen["hit"] is not None),
                                              *["cut off"] * (not seen["foot"]))]


@pytest.fixture(scope="module")
def runs_of(tmp_path_factory):
    """notebook -> its finished runs on hostile data, each made once."""
    root = tmp_path_factory.mktemp("hostile")
    world, made = hostile_world(root), {}

    def runs(notebook):
        if notebook in GATHERS:
            runs(GATHERS[notebook])
        if notebook not in made:
            made[notebook] = [run_notebook(ROOT / "nbs" / "papers" / f"{notebook}.ipynb", given, outputs=root / "runs",
                                           progress=False).folder for given in hostile_runs(world)[notebook]]
        return made[notebook]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QGCAM_OUTPUTS", str(root / "runs"))
        yield runs


NOTEBOOKS = list(hostile_runs(defaultdict(str)))


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_pages_of_a_run_on_hostile_data_hold_text_alone(browser, runs_of, tmp_path, notebook):
    report, gathered = tmp_path / "report <img src=x> #1?", []
    for k, folder in enumerate(runs_of(notebook)):
        gathered.append(report / notebook / f"javascript:{k} <b>" / folder.name)
        gather_run(folder, gathered[-1])
    write_report(gathered, report / "index.html")
    pages = sorted(report.rglob("*.html"))
    assert len(pages) > 4 and [one for page in pages for one in faults_of(browser, page, report)] == []
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert "&lt;script&gt;window.hit=1" in shown or "&lt;img src=x onerror" in shown  # it did reach the pages
    assert "\x1b" not in shown and "\u202e" not in shown


def test_pages_of_the_documentation_hold_text_alone(browser, runs_of, tmp_path):
    """Notebooks with the outputs of hostile runs, as `make papers` stores them, and their pages."""
    source, target = tmp_path / "docs", tmp_path / "html"
    (source / "generated").mkdir(parents=True)
    for name in NOTEBOOKS:
        path = ROOT / "nbs" / "papers" / f"{name}.ipynb"
        made = with_outputs(path, runs_of(name)[0] / "run.ipynb")
        parameters = {one: f"{bad} ` | <b>" for one, bad in zip(read_parameters(path), NASTY)}
        made.metadata["qgcam"] = {"run_id": "0" * 12, "parameters": parameters, "commit": "0" * 40}
        nbformat.write(pages.page(made, path), source / "generated" / f"{name}.ipynb")
    tree = pages.toctree("All", [f"generated/{name}" for name in NOTEBOOKS])
    (source / "index.md").write_text(f"# Hostile\n\n{tree}")
    command = [sys.executable, "-m", "sphinx", "-q", "-c", str(ROOT / "docs"), str(source), str(target)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    for name in NOTEBOOKS:
        file = target / "generated" / f"{name}.html"
        found = [one for one in faults_of(browser, file, target) if not THEME.search(one)]  # its own
        assert found == [] and "&lt;script&gt;window.hit=1" in file.read_text()


def test_explorers_hold_text_alone(show):
    scenes, said = edited_scenes(), said_scene()
    bad = [text for text in NASTY if len(text) < 100]
    states, prompts = scenes.truth.shape
    scenes = replace(scenes, prompts=[f"{one} {text}" for one, text in zip(scenes.prompts, cycle(bad))],
                     choices={f"{name} {text}": [f"{value} {text}" for value in values]
                              for (name, values), text in zip(scenes.choices.items(), bad)})
    said = replace(said, names=[f"{name} {text}" for name, text in zip(said.names, cycle(bad))])
    random = np.random.default_rng(0).random
    page = show(explore_pair_scores(scenes, {text: random((states, prompts)) for text in bad[:3]}, title=bad[0]),
                explore_word_order(said, {text: random((len(said.texts), len(said.names))) for text in bad[:3]},
                                   title=bad[1]), explore_scores(np.eye(6), [1, 1, 4, 4], title=bad[0]))
    seen = page.evaluate(FOREIGN)
    own = ("<script>(() =>", "<input type", '<input class="')
    assert seen["hit"] is None and [one for one in seen["bad"] if not one.startswith(own)] == []
    assert page.inner_text("body").count(bad[0]) > 3
