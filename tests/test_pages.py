"""The pages and the report: what made a run, and no text of data is run."""

import re
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from qgcam_lib.errors import RunError
from qgcam_lib.page.table import show
from qgcam_lib.runs.current import Run
from qgcam_lib.runs.gather import gather_run
from qgcam_lib.runs.record import register_output, update_run
from qgcam_lib.runs.report import Contents, read_contents, write_report

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import pages  # noqa: E402
import reference  # noqa: E402

PAPERS = ROOT / "nbs" / "papers"
HOSTILE = "<script>alert(1)</script>"


def test_a_paper_page_pins_its_run():
    path = PAPERS / "q_groundcam.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["qgcam"] |= {"started": "2030-01-02T03:04:05+00:00", "commit": "89abcdef0123456789",
                                   "parameters": {"limit": 77}}
    text = pages.page(notebook, path).cells[0].source
    run = notebook.metadata["qgcam"]["run_id"]
    assert f"run `{run}` of 2030-01-02" in text and "`89abcdef01`" in text
    assert "| `limit` | <code>77</code> | given |" in text
    assert "| `weights` | <code>&#34;mini&#34;</code> | default |" in text


def test_docstrings_become_text():
    shown = reference.prose("a [N, 4] of *boxes*, `x_0` and <b>, $5, 1. first")
    assert shown == r"a \[N, 4\] of \*boxes\*, `x_0` and \<b\>, \$5, 1. first"


# --- the report -------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of two made-up runs whose texts are hostile, and its folder."""
    import matplotlib.pyplot as plt

    root = tmp_path_factory.mktemp("report")
    folders = []
    for notebook, run_id in (("beta", "0123456789ab"), ("alpha", "ba9876543210")):
        run = Run(root / "outputs" / notebook / run_id, run_id)
        box = {"question": HOSTILE, "answer": f"Yes, {HOSTILE}."}
        update_run(run.folder, run_id=run_id, notebook=f"nbs/papers/{notebook}.ipynb", seconds=1.0, status="ok",
                   parameters={"limit": 20, "x": HOSTILE}, started="2030-01-02T03:04:05+00:00", weights=[],
                   machine={"cpu": "a secret processor"}, git={"commit": "89abcdef0123", "dirty": False},
                   data=[{"kind": "data set", "path": "d", "sha256": "1" * 64}],
                   results={"result_box": box, "models": ["m"], "n": 3})
        columns = {f"a long name of score {k}": ["1.0", "2.0"] for k in range(12)}
        frame = pd.DataFrame({"model": ["a", "b"], **columns})
        caption = f"Table 1 {HOSTILE}"
        run.save_table(frame, "main", caption)
        run.save_table(pd.DataFrame({"result": ["holds", "not asked: x"]}), "claims", "Claims.")
        figure, _ = plt.subplots()
        run.save_figure(figure, "picture", f"A picture {HOSTILE}")
        plt.close(figure)
        marks = frame.map(lambda _: "").assign(model=["best", ""])
        shown = show(frame, marks=marks, caption=caption).to_html()
        cells = [new_markdown_cell("# Alpha\n\n$$\\frac{a}{b}$$"),
                 new_code_cell("1", outputs=[new_output("execute_result", {"text/html": shown, "text/plain": ""})])]
        nbformat.write(new_notebook(cells=cells), run.folder / "run.ipynb")
        register_output(run.folder, run.folder / "run.ipynb", "notebook")
        folders.append(root / "gathered" / notebook / "one" / run_id)
        gather_run(run.folder, folders[-1])
    order = Contents({"alpha": "First", "beta": "Second"}, "alpha/main", ["alpha/picture"])
    return write_report(folders, root / "gathered" / "index.html", order).parent


def test_the_first_page_of_the_report(report):
    text = (report / "index.html").read_text(encoding="utf-8")
    assert "<b>a</b>" in text.partition("<h2>Table 1</h2>")[2]  # its mark
    assert 'src="alpha/one/ba9876543210/figures/picture.png"' in text
    assert "2030-01-02" in text and "89abcdef01" in text and "secret" not in text
    assert text.index(">alpha<") < text.index(">beta<")  # in the order of the papers, not of the folders
    row = re.search(r"alpha, one</a></td>(.*?)</tr>", text).group(1)
    assert re.findall(r"<td>(\d+)</td>", row) == ["1", "0", "0", "1"]
    assert HOSTILE not in text and "&lt;script&gt;" in text


def test_every_link_of_the_report_stays_in_its_folder_and_no_text_is_run(report):
    for page in report.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "<script" not in text and "http://" not in text.replace("http://www.w3.org/1998/Math/MathML", ""), page
        for address in re.findall(r'(?:href|src)="([^"#]+)"', text):
            target = (page.parent / address).resolve()
            inside = target.is_file() and target.is_relative_to(report.resolve())
            assert address.startswith("data:") or inside, address


def test_a_run_that_lies_elsewhere_is_refused(report, tmp_path):
    with pytest.raises(RunError, match="no run.json"):
        write_report([tmp_path], tmp_path / "index.html")
    with pytest.raises(RunError, match="NOTEBOOK/NAME/ID"):
        write_report([report / "alpha" / "one" / "ba9876543210"], tmp_path / "index.html")
    assert read_contents(tmp_path / "none.toml") == Contents()
