"""What comes from data reaches a page, a figure or a terminal as text: the rule in the code, and each door."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest
from hostile import NASTY

from qgcam_lib.errors import visible
from qgcam_lib.page.picture import ResultBox, page_picture
from qgcam_lib.page.table import Card, Notes, show
from qgcam_lib.report.style import use_style
from qgcam_lib.report.tables import MarkedTable
from qgcam_lib.runs.current import Run
from qgcam_lib.runs.gather import html_page, link, run_page, table_page
from qgcam_lib.runs.record import Colophon, update_run, write_run
from qgcam_lib.runs.start import run_list
from qgcam_lib.settings import ROOT

# ---------------------------------------------------------------- the rule

OWNERS = ("qgcam_lib/page/", "nbs/lib/page/")
STYLE = (*OWNERS, "qgcam_lib/report/tables.py", "nbs/lib/report/02_tables.ipynb",  # LaTeX, escaped as LaTeX
         "qgcam_lib/teach/explorer.py", "nbs/lib/teach/01_explorer.ipynb")  # a field of this name
REPRS = (*OWNERS, "qgcam_lib/report/tables.py", "nbs/lib/report/02_tables.ipynb", "qgcam_lib/teach/explorer.py",
         "nbs/lib/teach/01_explorer.ipynb", "qgcam_lib/runs/record.py", "nbs/lib/runs/03_record.ipynb",
         "qgcam_lib/runs/start.py", "nbs/lib/runs/13_start.ipynb")
MARKUP = ("nbs/lib/runs/06_gather.ipynb", "nbs/lib/runs/10_report.ipynb", "qgcam_lib/runs/start.py",
          "nbs/lib/runs/13_start.ipynb")  # show pages that the room itself made


def sources():
    """(place, tree) of every module and every code cell."""
    for path in sorted((ROOT / "qgcam_lib").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "nbs").rglob("*.ipynb")):
        if ".ipynb_checkpoints" not in path.parts:
            for cell in nbformat.read(path, 4).cells:
                if cell.cell_type == "code" and not cell.source.lstrip().startswith(("%", "!")):
                    yield path.relative_to(ROOT).as_posix(), ast.parse(cell.source)


def breaches(place, tree):
    """What in a source opens a way for markup from data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "style" and not place.startswith(STYLE):
            yield f"{place}:{node.lineno} .style (use page.table.show)"
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_repr_") and not place.startswith(REPRS):
            yield f"{place}:{node.lineno} {node.name} (use what page has)"
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in ("HTML", "Markdown", "SVG", "Javascript", "Latex", "Math", "display_html", "display_markdown") \
                    and not place.startswith(MARKUP):
                yield f"{place}:{node.lineno} {name}( (use page.text.Notes or page.table.show)"
            if place.startswith("qgcam_lib/cli/") and place != "qgcam_lib/cli/calls.py" and name in ("echo", "print"):
                yield f"{place}:{node.lineno} {name}( (use cli.calls.say)"


def test_no_way_around_the_rooms_that_escape():
    assert [one for place, tree in sources() for one in breaches(place, tree)] == []


# ---------------------------------------------------------------- the doors

BAD = [text for text in NASTY if len(text) < 100]
EVERY = " ".join(BAD)
RECORD = {"run_id": "0" * 12, "notebook": EVERY, "parameters": dict(zip(BAD, BAD)), "seconds": 1, "status": "ok",
          "started": BAD[0], "git": {"commit": BAD[0]}, "data": [{"path": EVERY, "sha256": "0" * 64}], "weights": [],
          "results": {"models": BAD, "one": BAD[0], "result_box": {"question": EVERY, "answer": EVERY, "effect": BAD,
                                                                  "differs": BAD}},
          "outputs": [{"kind": "table", "path": "tables/a.csv", "caption": EVERY},
                      {"kind": "figure", "path": "figures/a.png", "caption": EVERY}]}
FRAME = pd.DataFrame(dict.fromkeys(BAD[:4], BAD), index=pd.Index(BAD, name="model"))


def listed():
    """The list of runs, of one whose record is hostile."""
    with TemporaryDirectory() as outputs:
        folder = Path(outputs) / "demo" / RECORD["run_id"]
        outputs_of = [one | {"sha256": ""} for one in RECORD["outputs"]]
        write_run(folder, RECORD | {"outputs": outputs_of, "parameters": {}})
        return run_list(outputs, outputs)._repr_html_()


DOORS = {
    "runs": listed,
    "table": lambda: show(FRAME, index=True, caption=EVERY).to_html(),
    "no rows": lambda: show(FRAME.head(0), caption=EVERY)._repr_html_(),
    "marked": lambda: MarkedTable(FRAME, FRAME.map(lambda _: "best"), EVERY)._repr_html_(),
    "notes": lambda: Notes([*BAD, *(f"> {text}" for text in BAD)])._repr_html_(),
    "box": lambda: ResultBox(EVERY, EVERY, tuple(BAD), tuple(BAD))._repr_html_(),
    "card": lambda: Card(dict(zip(BAD, BAD)), EVERY, tuple(BAD), {"full": BAD})._repr_html_(),
    "colophon": lambda: Colophon(RECORD)._repr_html_(),
    "page": lambda: html_page(EVERY, "", EVERY),
    "run": lambda: run_page(RECORD),
    "table page": lambda: table_page(FRAME, EVERY, EVERY),
}


@pytest.mark.parametrize("door", DOORS)
def test_html_holds_no_element_no_comment_and_no_unseen_sign_from_data(door):
    page = DOORS[door]()
    assert not any(tag in page for tag in ("<script", "<img src=x", "<svg", "<!-- ", "</script")), door
    assert 'onerror="window' not in page and "javascript:alert(4)\"" not in page
    assert "\x1b" not in page and "\u202e" not in page and "\\x1b[31m" in page


def test_markdown_and_latex_hold_it_as_text():
    table = MarkedTable(FRAME, FRAME.map(lambda _: ""), EVERY)
    markdown, latex = table.to_markdown(), table.to_latex()
    assert "<script" not in markdown and "<img" not in markdown and "\\`tick" in markdown and "\x1b" not in markdown
    assert {line.count(" | ") for line in markdown.splitlines() if line.startswith("| ")} == {FRAME.shape[1]}
    assert r"\input{secret}" not in latex and "$5 # $6" not in latex and r"\$5 \# \$6" in latex


@pytest.mark.parametrize("address", ["javascript:alert(1)/run.html", 'a"b<c>/d e.html', "x?y#z%41", "a'&b"])
def test_an_address_is_a_path_and_nothing_else(address):
    shown = link("<b>", address)
    inside = shown.partition('href="')[2].partition('"')[0]
    assert not set(inside) & set(":?#<>'\"& ") and "<b>" not in shown


def test_unseen_signs_are_spelled_out_and_can_be_encoded():
    text = visible(EVERY + "\ud800\r\x00\x9b")
    assert text.encode() and text.isprintable() and "\\ud800\\r\\x00\\x9b" in text and "犬 🐕" in text
    assert visible("a\nb\tc") == "a\nb\tc"


# ---------------------------------------------------------------- figures

@pytest.mark.filterwarnings("error")
def test_any_figure_that_is_saved_or_shown_draws_captions_as_they_are(tmp_path):
    use_style()
    figure, axes = plt.subplots()
    axes.plot([1, 10], [0, 1], label=BAD[-1])
    axes.set(title=BAD[0], xlabel="$5 # $6", xscale="log", yticks=[0, 1], yticklabels=["$a_b$", "\x1b[31m red"])
    axes.annotate(r"$\frac{", (1, 0))
    axes.legend()
    update_run(tmp_path, run_id="0" * 12, outputs=[])
    file = Run(tmp_path, "0" * 12).save_figure(figure, "hostile", "A caption.")
    svg = ElementTree.parse(file.with_suffix(".svg"))
    said = "\n".join(one.text for one in svg.iter("{http://www.w3.org/2000/svg}text") if one.text)
    assert {"$5 # $6", "$a_b$", "\\x1b[31m red", r"$\frac{"} <= set(said.split("\n")) and BAD[0] in said
    assert "mathdefault" not in said  # matplotlib's own powers of ten are still drawn as such
    assert page_picture(figure, EVERY).alt == visible(EVERY)
    plt.close(figure)


# ---------------------------------------------------------------- the terminal

def test_a_terminal_is_not_steered_by_what_a_file_says(tmp_path):
    name = tmp_path / "no \x1b[2J such\nfile.npz"
    environment = os.environ | {"COLUMNS": "200"}
    code = "import sys; from qgcam_lib.cli.main import main; sys.exit(main(sys.argv[1:]))"
    found = subprocess.run([sys.executable, "-c", code, "score", str(name), str(name)], cwd=ROOT, env=environment,
                           capture_output=True, text=True, timeout=120)
    assert found.returncode and "\x1b" not in found.stdout + found.stderr and "\\x1b[2J" in found.stderr
