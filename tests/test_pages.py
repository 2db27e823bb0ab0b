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
from qgcam_lib.runs.report import FILTER, Contents, read_contents, write_report

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import conf  # noqa: E402
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


def test_shorter_markup_keeps_code_scripts_and_text():
    whole = '<pre>  k="v" \n\n  <b>x</b></pre><script>\n  a = "<li>" </script>'
    text = f'<ul class="a b">\n  <li id="x"><!-- no -->say k="v" </li>\n</ul>{whole}\n'
    assert conf._PART.sub(conf._shorter, text) == f'<ul class="a b">\n<li id=x>say k="v" \n</ul>{whole}\n'


def test_docstrings_become_text():
    shown = reference.prose("a [N, 4] of *boxes*, `x_0` and <b>, $5, 1. first")
    assert shown == r"a \[N, 4\] of \*boxes\*, `x_0` and \<b\>, \$5, 1. first"


def test_a_docstring_becomes_parameters_returns_and_raises():
    text = """Score maps [N, h, w]; returns one row a map.

    maps: an array. boxes, sizes (pixels): one a map; xyxy. other: no argument of this function.
    Undefined is NaN. Raises ValueError for NaN. TypeError for a text.
    """
    rest, fields = reference.fields_of(text, {"maps", "boxes", "sizes"})
    assert rest == [r"Score maps \[N, h, w\]."]
    assert fields["Returns"] == ["* One row a map."]
    assert [one.partition(":")[0] for one in fields["Parameters"]] == ["* **maps**", r"* **boxes, sizes** (pixels)"]
    assert "no argument" in fields["Parameters"][1]
    assert fields["Raises"] == ["* ValueError for NaN.", "* TypeError for a text."]


def test_the_first_names_exist_and_most_docstrings_have_fields():
    import importlib

    faces = reference.faces_of()
    for line in reference.first_names(faces).splitlines():
        module, _, name = re.search(r"`([\w.]+)`", line)[1].rpartition(".")
        assert hasattr(importlib.import_module(module), name), line
    assert len(reference.FIRST) == 12


@pytest.mark.parametrize("name", ["q_groundcam", "probes_audit", "ref_adv_evaluate"])
def test_a_teaser_shows_the_stored_answer_and_figure(tmp_path, name):
    path = PAPERS / f"{name}.ipynb"
    text = pages.teaser(path, "../papers", tmp_path).replace("\\", "")
    outputs = [one for cell in nbformat.read(path, 4).cells for one in cell.get("outputs", [])]
    texts = [one["data"].get("text/plain", "") for one in outputs if "data" in one]
    plain = next(text for text in texts if "Answer: " in text)
    for line in plain.splitlines()[:3]:  # as it is stored for a terminal, not the table that is read
        assert line.partition(": ")[2] in text
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_front_page_has_three_ways_and_every_link_of_it_leads_somewhere():
    text = pages.cards([("00_x", {"name": "X"})])
    assert re.findall(r"(?m)^\*\*(.+)\*\*$", text) == ["Learn", "Score my maps", "Read a paper"]
    for address in re.findall(r"\]\(generated/(lessons/\S+?|lib/\S+?)\)", text):
        assert (ROOT / "nbs" / address).is_file(), address


def test_links_of_the_front_page_and_of_the_written_pages_lead_to_pages():
    docs = ROOT / "docs"
    front = pages.front_page((ROOT / "README.md").read_text(encoding="utf-8"), "WAYS\n")
    assert "WAYS" in front and all(f"## {one}\n" in front for one in (*pages.LANDING, "What a run shows"))
    written = {pages.TARGET / f"{one}.md": pages.written_page(one) for one in pages.WRITTEN}
    for page, text in ({docs / "index.md": front} | written).items():
        addresses = [one.partition("#")[0] for one in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in one]
        assert addresses or page.stem == "models"
        for target in ((page.parent / one).resolve() for one in addresses):
            made = target.is_relative_to(pages.TARGET) and target.relative_to(pages.TARGET)
            known = target.stem in pages.WRITTEN or (ROOT / "nbs" / made).is_file() if made else target.is_file()
            assert known, f"{page.name}: {target}"


def test_each_word_of_the_glossary_is_defined_once():
    terms = re.findall(r"(?m)^(\w[\w -]*)$\n  ", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    assert len(terms) == len(set(terms))
    assert {"chance", "baseline", "miniworld", "mini", "protocol", "lift", "clear", "open", "peak", "group",
            "undefined"} <= set(terms)
    assert pages.words_of("Peaks, and what chance reaches.") == "*Terms:* {term}`chance`, {term}`peak`\n\n"


SEARCHES = {  # what is searched for: the pages of which one must be among the first three
    "Probe-B": ["papers/probe_background"], "tie": ["glossary", "lessons/"], "score my own maps": ["own_maps"],
    "pointing game": ["glossary", "lessons/01"], "GradCAM": ["explain/01_gradcam"], "papermill": ["guide", "runs/"],
    "score_maps": ["api/qgcam_lib.metrics"]}


@pytest.mark.nightly
@pytest.mark.parametrize("query", SEARCHES)
def test_the_search_of_the_built_pages_finds(browser, query):
    built = ROOT / "docs" / "_build" / "html"
    if not (built / "searchindex.js").is_file():
        pytest.skip("the pages are not built: make docs")
    page = browser.new_page()
    page.goto(f"{(built / 'search.html').as_uri()}?q={query}")
    page.wait_for_selector(".search li:nth-child(2)", timeout=30_000)
    page.wait_for_timeout(500)
    first = page.eval_on_selector_all(".search li a", "all => all.slice(0, 3).map(one => one.getAttribute('href'))")
    page.close()
    assert any(part in address for part in SEARCHES[query] for address in first), first


@pytest.mark.nightly
def test_the_built_pages_have_less_than_40_mb():
    built = ROOT / "docs" / "_build" / "html"
    if not built.is_dir():
        pytest.skip("the pages are not built: make docs")
    assert sum(file.stat().st_size for file in built.rglob("*")) < 40e6


# --- the report -------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of two made-up runs whose texts are hostile, and its folder."""
    import matplotlib.pyplot as plt

    root = tmp_path_factory.mktemp("report")
    folders = []
    for notebook, run_id in (("beta", "0123456789ab"), ("alpha", "ba9876543210")):
        run = Run(root / "outputs" / notebook / run_id, run_id)
        box = {"question": HOSTILE, "answer": f"Yes, {HOSTILE}.", "effect": [f"+1 {HOSTILE}", "more"]}
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


def test_the_report_opens_with_a_row_a_run_whose_picture_is_loaded_when_seen(report):
    text = (report / "index.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr><td>.*?</tr>", text.partition('class="runs"')[2].partition("</table>")[0])
    assert len(rows) == 2 and text.index("<h2>Runs") < text.index("<h2>Table 1")
    for row, name, run_id in zip(rows, ("alpha", "beta"), ("ba9876543210", "0123456789ab")):
        assert f'<img loading="lazy" width="200" height="120" alt="" src="{name}/one/{run_id}/figures/pic' in row
        assert "Yes, &lt;script" in row and "<br>+1 &lt;script" in row and "more" not in row
        assert f'href="{name}/one/{run_id}/run.html"' in row and "<td>ok<br>" in row and "data:" not in row
    assert len(text) < 30_000


@pytest.mark.nightly
def test_the_filter_of_the_report_hides_the_other_rows(report, browser):
    page = browser.new_page()
    page.goto((report / "index.html").as_uri())
    page.fill("#filter", "First OK")
    assert page.eval_on_selector_all(".runs tbody tr", "all => all.map(one => one.hidden)") == [False, True]
    page.fill("#filter", "")
    assert page.eval_on_selector_all(".runs tbody tr", "all => all.map(one => one.hidden)") == [False, False]
    page.close()


def test_every_link_of_the_report_stays_in_its_folder_and_no_text_is_run(report):
    for page in report.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        text = text.replace(FILTER, "", 1) if page.parent == report else text  # the one script: a constant
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


def test_the_page_of_a_lesson_with_a_live_model_ends_with_it():
    for stem, model in pages.LIVE.items():
        source = ROOT / "nbs" / "lessons" / f"{stem}.ipynb"
        last = pages.page(nbformat.read(source, 4), source).cells[-1].source
        assert f'data-model="{model}"' in last
        assert model in (ROOT / "docs" / "live_model.py").read_text(encoding="utf-8")
