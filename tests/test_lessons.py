"""Lessons: their exercises, and what their stored pages show."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "nbs/lessons").glob("*.ipynb"))
SOLUTIONS = ROOT / "nbs/lessons/solutions"
TIES = next(path for path in LESSONS if path.name.startswith("02"))
everyone = pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)


def cells_of(path, kind=None):
    return [cell for cell in nbformat.read(path, as_version=4).cells if kind in (None, cell.cell_type)]


def prose_of(path):
    return "\n".join(cell.source for cell in cells_of(path, "markdown"))


def outputs_of(path, kind="text/html"):
    for cell in cells_of(path, "code"):
        for output in cell.outputs:
            if kind in output.get("data", {}):
                yield output.data[kind]


@everyone
def test_every_exercise_has_its_solution(lesson):
    asked = re.findall(r"\*\*Exercise (\d+)\.\*\*", prose_of(lesson))
    solved = re.findall(r"^## Exercise (\d+)", prose_of(SOLUTIONS / lesson.name), re.M)
    assert asked == solved == [str(k) for k in range(1, len(asked) + 1)] and len(asked) >= 3


@pytest.mark.parametrize("path", [*LESSONS, *SOLUTIONS.glob("*.ipynb")], ids=lambda path: str(path.relative_to(ROOT)))
def test_stored_pages_are_whole_and_small(path):
    for page in outputs_of(path):
        assert not re.search(r"\.\.\.</t[dh]>", page), "a table is cut"
    assert "widgets" not in nbformat.read(path, as_version=4).metadata, "the state of a widget is stored"
    assert path.stat().st_size < 500_000


_WITHOUT_MODELS = """if True:
    import json, os, sys
    from pathlib import Path
    from qgcam_lib.errors import EXTRAS
    for name in (*EXTRAS["models"], *EXTRAS["scipy"], *EXTRAS["parquet"], "lavis"):
        sys.modules[name] = None
    path, names = Path(sys.argv[1]), {"__name__": "__main__"}
    os.chdir(path.parent)
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)"""
_CORE = [path for folder in (LESSONS[0].parent, SOLUTIONS) for number in ("01", "02", "06", "07", "09")
         for path in folder.glob(f"{number}_*.ipynb")]


@pytest.mark.parametrize("path", [pytest.param(path, marks=() if path == TIES else pytest.mark.nightly)
                                  for path in _CORE], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_lesson_that_says_so_needs_no_model(path):
    """Imports of the extras models, scipy and parquet are blocked; figures and Jupyter are the extra notebooks."""
    if path.parent != SOLUTIONS:
        assert "The core installation with Jupyter is enough" in prose_of(path)
    done = subprocess.run([sys.executable, "-c", _WITHOUT_MODELS, str(path)], text=True, capture_output=True,
                          timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"})
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_explorers_of_the_lessons_are_those_of_today():
    """A stored page that was made by another script would say other things than the library."""
    from qgcam_lib.teach import answers, map_scores, probe_scores, word_order

    scripts = {"01": [map_scores._SCRIPT], "02": [map_scores._SCRIPT], "03": [answers._SCRIPT], "04": [answers._SCRIPT],
               "05": [probe_scores._SCRIPT, answers._SCRIPT], "06": [word_order._SCRIPT], "07": [map_scores._PR_SCRIPT],
               "08": [answers._SCRIPT] * 2, "09": [answers._SCRIPT]}
    for lesson in LESSONS:
        pages = [page for page in outputs_of(lesson) if 'class="explorer' in page]
        expected = scripts.get(lesson.name[:2], [])
        assert len(pages) == len(expected), lesson.name
        assert all(script in page for script, page in zip(expected, pages))


@everyone
def test_a_lesson_says_how_long_it_takes_and_where_one_may_stop(lesson):
    """150 words or two code cells a minute, eight minutes an exercise."""
    if lesson.name.startswith("how_to"):
        return
    prose = prose_of(lesson)
    said = int(re.search(r"\*\*Time:\*\* about (\d+) minutes; you may stop after exercise \d", prose)[1])
    asked = len(prose.split()) / 150 + len(cells_of(lesson, "code")) / 2 + 8 * prose.count("**Exercise ")
    assert 20 <= said <= 40 and abs(said - asked) <= 6


def test_where_no_script_runs_the_explorers_of_the_lessons_show_their_start(show):
    pages = [page for lesson in LESSONS for page in outputs_of(lesson) if 'class="explorer' in page]
    assert len(pages) >= 9
    for stored in pages:
        page = show(stored, java_script_enabled=False)
        assert page.locator("img:visible").count() >= 1 or 'class="curve' in stored  # of numbers alone
        values = page.locator("[data-python]").all_inner_texts()
        assert values and all(values)


def test_the_task_on_tau_can_be_solved_in_the_stored_page(show):
    """Exercise 2 of the second lesson: the lamp becomes a peak below its own height, and at 1 there is none."""
    page = show(next(page for page in outputs_of(TIES) if 'class="explorer' in page))
    root, seen = page.locator(".explorer"), {}
    for tau in (0.7, 0.61, 0.59, 1):
        page.locator(".tau").fill(str(tau))
        seen[tau] = int(root.get_attribute("data-peaks")), json.loads(root.get_attribute("data-values"))
    assert {tau: peaks for tau, (peaks, _) in seen.items()} == {0.7: 2, 0.61: 2, 0.59: 3, 1: 0}
    assert seen[0.59][1] == seen[0.7][1] and seen[0.7][1]["pg_uncertain"] == 1
    assert seen[1][1] == {**seen[0.7][1], "pg_uncertain": 0}
    page.get_by_role("button", name="start again").click()
    page.locator(".delta").fill("5")  # exercise 1
    assert json.loads(root.get_attribute("data-values"))["pg_uncertain"] == 0
