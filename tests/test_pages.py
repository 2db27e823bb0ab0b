"""The pages and the report: what the first page shows, what a search finds, nothing wide, all readable in the dark."""

import re
import shutil
import subprocess
import sys
import tomllib
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

import contents  # noqa: E402
import pages  # noqa: E402
import reference  # noqa: E402

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAPERS = ROOT / "nbs" / "papers"
HOSTILE = "<script>alert(1)</script>"


# --- contents and text ------------------------------------------------------------------------------------------------

def test_every_paper_notebook_has_a_place_and_papers_stand_as_in_the_readme():
    known = tomllib.loads((PAPERS / "contents.toml").read_text(encoding="utf-8"))
    named = [name for paper in known["paper"] for name in paper["notebooks"]]
    assert len(named) == len(set(named)) and {path.stem for path in PAPERS.glob("*.ipynb")} <= set(named)
    assert "More" not in [paper["name"] for paper in contents.papers()]
    table = README.partition("## What is reproduced")[2]
    papers = [paper["name"] for paper in known["paper"] if paper["name"] not in ("Intervals", "Speed")]
    places = [table.index(f"| {name} (") for name in papers]
    assert places == sorted(places)
    for one in [known["front"]["table"], *known["front"]["figures"]]:
        notebook, _, name = one.partition("/")
        assert f'"{name}"' in (PAPERS / f"{notebook}.ipynb").read_text(encoding="utf-8").replace('\\"', '"'), one


def test_the_front_page_is_the_readmes_picture_and_install():
    front, guide = pages.readme_pages(README)
    assert front.startswith("# qgcam\n") and "](first_run/panels.png)" in front
    assert re.search(r"make reproduce|pip install", front) and "score_maps(" in front
    assert "](nbs/" not in front + guide
    for section in re.findall(r"(?m)^## (.+)$", README):
        assert (f"## {section}\n" in front) != (f"## {section}\n" in guide), section


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


@pytest.mark.nightly
def test_the_reference_has_each_public_name_once_under_the_name_that_users_write(tmp_path):
    reference.write_reference(tmp_path)
    text = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.md")}
    long = r":canonical: qgcam_lib\.metrics\.score\.score_maps\n"
    assert re.search(r"py:function\} score_maps\(.*\n:module: qgcam_lib\.metrics\n" + long, text["metrics"])
    for room, name in (("grounding", "ground"), ("models", "load_model"), ("probes", "pair_scores")):
        assert re.search(rf"py:function\}} {name}\(.*\n:module: qgcam_lib\.{room}\n", text[room]), name
    found = re.findall(r"`````\{py:(?!module)\w+\} ([\w.]+).*\n:module: (\S+)\n", "\n".join(text.values()))
    assert len(found) == len(set(found)) > 1000


def test_docstrings_become_text():
    shown = reference.prose("a [N, 4] of *boxes*, `x_0` and <b>, $5, 1. first")
    assert shown == r"a \[N, 4\] of \*boxes\*, `x_0` and \<b\>, \$5, 1. first"


# --- a new score ------------------------------------------------------------------------------------------------------

TOY = """
import io, contextlib, sys
import numpy as np
import qgcam_lib.statistics as statistics
toy = statistics.Metric("toy", "$T$", "how much of it all", (0, 1e9), True, "never", "a test")
statistics.MAP_SCORES += (toy,)
statistics.METRICS["toy"] = toy
import qgcam_lib.metrics.score as score

def with_toy(parts, diagonal, options, old=score._scores_from_parts):
    score.SCORE_COLUMNS, names = score.SCORE_COLUMNS[:-1], score.SCORE_COLUMNS
    found = old(parts, diagonal, options) | {"toy": parts["mass"]}
    score.SCORE_COLUMNS = names
    return found
score._scores_from_parts = with_toy
maps, boxes = np.random.default_rng(0).random((3, 6, 6)).astype("float32"), [[[0, 0, 3, 3]]] * 3
frame = score.score_maps(maps, boxes)
print("frame", "toy" in frame)
print("summary", "toy" in set(statistics.summarize(frame.assign(group=["a", "b", "c"]))["metric"]))
from qgcam_lib.metrics.torchmetric import GroundingScores
metric = GroundingScores()
metric.update(maps, boxes)
print("torchmetric", "toy" in metric.compute())
from qgcam_lib.cli.main import main
np.savez("maps.npz", **{str(k): one for k, one in enumerate(maps)})
with open("boxes.csv", "w") as file:
    file.write("id,x0,y0,x1,y1,height,width\\n" + "".join(f"{k},0,0,3,3,6,6\\n" for k in range(3)))
shown = io.StringIO()
with contextlib.redirect_stdout(shown):
    main(["score", "maps.npz", "boxes.csv"])
print("terminal", "toy" in shown.getvalue(), shown.getvalue()[:0])
sys.path.insert(0, DOCS)
import pages
print("pages", "| `toy` | how much of it all |" in pages.scores_page())
"""


@pytest.mark.nightly
def test_a_new_score_shows_in_every_table_that_is_not_laid_out_by_hand(tmp_path):
    code = TOY.replace("DOCS", repr(str(ROOT / "docs")))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    shown = "frame True summary True torchmetric True terminal True pages True"
    assert done.stdout.split() == shown.split(), done.stderr


def test_the_lines_that_a_new_score_needs_are_where_contributing_says():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"\| `(\w+)` in `(nbs/[\w/]+\.ipynb)`", text)
    assert len(named) == 4
    for name, path in named:
        assert re.search(rf'"{name}(: [^=]+)? = ', (ROOT / path).read_text(encoding="utf-8")), (name, path)


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
    order = Contents({"First": ["alpha"], "Second": ["beta"]}, "alpha/main", ["alpha/picture"])
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


def test_the_page_of_a_run_says_what_made_it(report):
    text = (report / "alpha" / "one" / "ba9876543210" / "run.html").read_text(encoding="utf-8")
    for words in ("Parameters", "limit", "Models, data and weights", "1" * 64, "Tables", "Figures", "Colophon",
                  "ba9876543210", "notebook.html", "Yes, &lt;script"):
        assert words in text, words


def test_a_run_that_lies_elsewhere_is_refused(report, tmp_path):
    with pytest.raises(RunError, match="no run.json"):
        write_report([tmp_path], tmp_path / "index.html")
    with pytest.raises(RunError, match="NOTEBOOK/NAME/ID"):
        write_report([report / "alpha" / "one" / "ba9876543210"], tmp_path / "index.html")
    assert read_contents(tmp_path / "none.toml") == Contents()


# --- in a browser -----------------------------------------------------------------------------------------------------

WIDE = """() => [...document.querySelectorAll('body *')].filter(e => {
  if (!e.getClientRects().length || e.getBoundingClientRect().right <= innerWidth + 1) return false;
  for (let q = e.parentElement; q && q !== document.body; q = q.parentElement)
    if (getComputedStyle(q).overflowX !== 'visible' || getComputedStyle(q).position === 'fixed') return false;
  return getComputedStyle(e).position !== 'fixed';
}).map(e => e.tagName + '.' + e.className)"""
CONTRAST = """() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const linear = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = c.slice(0, 3).map(linear);
                       return .2126 * r + .7152 * g + .0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
                        if (c.length === 3 || c[3] > .9) return c; } return [255, 255, 255]; };
  return [...document.querySelectorAll('main td, main th, main caption, main p, main figcaption')].filter(
    e => e.textContent.trim() && e.getClientRects().length).map(e => {
      const a = light(parse(getComputedStyle(e).color)), b = light(ground(e));
      return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent.slice(0, 30)];
    }).filter(x => x[0] < 4.5); }"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A small part of the pages, built as `make docs` builds them all."""
    root = tmp_path_factory.mktemp("site")
    source, target = root / "docs", root / "html"
    for name in ("papers/q_groundcam_table1", "lessons/01_map_scores", "lib/metrics/05_score"):
        path = ROOT / "nbs" / f"{name}.ipynb"
        made = source / "generated" / f"{name}.ipynb"
        made.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(pages.page(nbformat.read(path, as_version=4), path), made)
    rooms = {room["path"]: room for room in contents.rooms()}
    (source / "generated" / "metrics.md").write_text(reference.reference_page(rooms["metrics"], reference.faces_of()))
    (source / "generated" / "scores.md").write_text(pages.scores_page())
    front = pages.readme_pages(README)[0]
    inside = ["papers/q_groundcam_table1", "lessons/01_map_scores", "lib/metrics/05_score", "metrics", "scores"]
    (source / "index.md").write_text(front + pages.toctree("All", [f"generated/{one}" for one in inside]))
    shutil.copytree(ROOT / "docs" / "first_run", source / "first_run")
    command = [sys.executable, "-m", "sphinx", "-q", "-c", str(ROOT / "docs"), str(source), str(target)]
    subprocess.run(command, check=True, capture_output=True, timeout=400)
    return target


def test_a_search_for_score_maps_finds_metrics_first(site, browser):
    page = browser.new_page()
    page.goto((site / "search.html").as_uri() + "?q=score_maps")
    first = page.wait_for_selector("ul.search li", timeout=60_000)
    page.wait_for_function("document.querySelectorAll('ul.search li').length > 2", timeout=60_000)
    first = page.query_selector("ul.search li")
    assert "qgcam_lib.metrics.score_maps" in first.inner_text() and "Metrics" in first.inner_text()
    page.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_its_window_and_each_has_one_search(site, report, browser, width):
    page, asked = browser.new_page(viewport={"width": width, "height": 900}), []
    page.on("request", lambda request: asked.append(request.url))
    kinds = ("index", "search", "genindex", "py-modindex", "generated/papers/q_groundcam_table1", "generated/metrics",
             "generated/lessons/01_map_scores", "generated/lib/metrics/05_score", "generated/scores")
    for file in [*(site / f"{kind}.html" for kind in kinds), *report.rglob("*.html")]:
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), file
        assert [one for one in page.evaluate(WIDE) if "bd-sidebar" not in one] == [], file
        if site in file.parents:
            boxes = page.evaluate("""[...document.querySelectorAll('.search-button__button, form.bd-search')].filter(
                e => e.checkVisibility({visibilityProperty: true}) && e.getBoundingClientRect().right > 0
                     && !e.closest('dialog')).length""")
            assert boxes == 1, file
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    page.close()


def test_tables_can_be_read_in_the_dark(site, report, browser):
    page = browser.new_context(color_scheme="dark").new_page()
    for file in (site / "index.html", site / "generated/papers/q_groundcam_table1.html", site / "generated/scores.html",
                 report / "index.html", report / "alpha/one/ba9876543210/run.html"):
        page.goto(file.as_uri())
        assert page.evaluate(CONTRAST) == [], file
    page.goto((site / "generated/papers/q_groundcam_table1.html").as_uri())
    ground = page.evaluate("""[...document.querySelectorAll('main .cell_output img')].map(
        e => getComputedStyle(e).backgroundColor + getComputedStyle(e).filter)""")
    assert set(ground) == {"rgb(255, 255, 255)none"}  # figures are drawn on white
    page.context.close()
