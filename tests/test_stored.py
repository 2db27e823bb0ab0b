"""What a paper notebook stores belongs to today's notebook and library and is fit for a page. If not: make papers."""

import tomllib
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from qgcam_lib.errors import RunError
from qgcam_lib.runs.runner import notebook_sha256, run_notebook
from qgcam_lib.runs.stored import MAX_BYTES, store_run, stored_problems, unfit_outputs

ROOT = Path(__file__).resolve().parents[1]
PAPERS = sorted((ROOT / "nbs" / "papers").glob("*.ipynb"))
STORED = [path for path in PAPERS if "qgcam" in nbformat.read(path, as_version=4).metadata]
MEASURED = "benchmarks"  # times of one machine at one commit; only its sources must be those that were run


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_page_belongs_to_today(path):
    problems = stored_problems(path)
    if path.stem == MEASURED:
        problems = [line for line in problems if "changed since" not in line or "changed since: notebook" in line]
    assert not problems, "make papers (benchmarks: make bench)\n" + "\n".join(problems)


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_a_paper_notebook_shows_a_run(path):
    assert path in STORED, f"{path.name} stores no run: make papers (benchmarks: make bench)"


OUTPUTS = {
    "path": new_output("stream", name="stdout", text="read /home/user/x.png"),
    "stderr": new_output("stream", name="stderr", text="hello"),
    "warning": new_output("stream", name="stdout", text="x.py:3: UserWarning: careful"),
    "bar": new_output("stream", name="stdout", text="50%|#####     | 1/2"),
    "dictionary": new_output("execute_result", {"text/plain": "{'limit': 3}"}),
    "list of dictionaries": new_output("execute_result", {"text/plain": "[{'limit': 3}]"}),
    "frame": new_output("execute_result", {"text/html": '<table border="1" class="dataframe">', "text/plain": " a"}),
    "address": new_output("execute_result", {"text/plain": "<Axes at 0x7f1234567890>"}),
    "picture": new_output("display_data", {"image/png": "iVBO", "text/plain": "words"}),
    "error": new_output("error", ename="ValueError", evalue="no", traceback=[]),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_unfit_outputs_are_named_by_cell(name):
    found = unfit_outputs(new_notebook(cells=[new_code_cell("1"), new_code_cell("show(it)", outputs=[OUTPUTS[name]])]))
    assert found and all(line.startswith("cell 1 (show(it)): ") for line in found)


def test_fit_outputs_are_fit():
    fit = [new_output("display_data", {"image/png": "iVBO"}, metadata={"image/png": {"alt": "Two bars."}}),
           new_output("execute_result", {"text/html": "<details><pre>{&quot;limit&quot;: 3}</pre></details>",
                                         "text/plain": "limit: 3"}),
           new_output("stream", name="stdout", text="and/or 3/4 of https://example.org/home/page")]
    assert unfit_outputs(new_notebook(cells=[new_code_cell("1", outputs=fit)])) == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A notebook, and a run of it whose limit is not the notebook's own."""
    folder = tmp_path_factory.mktemp("stored")
    path = folder / "demo.ipynb"
    cells = [new_code_cell("limit: int = 3  # how many", metadata={"tags": ["parameters"]}),
             new_code_cell("import sys\nprint('10%|#  | 1/10', file=sys.stderr)\nlimit * 2")]
    nbformat.write(new_notebook(cells=cells), path)
    return path, run_notebook(path, {"limit": 5}, outputs=folder / "outputs", progress=False).folder


def test_a_run_is_stored_and_sources_stay(finished, tmp_path):
    path, folder = finished
    before = nbformat.read(path, as_version=4)
    sha256 = notebook_sha256(path)
    store_run(folder, path)
    after = nbformat.read(path, as_version=4)
    assert [cell.source for cell in after.cells] == [cell.source for cell in before.cells]
    assert [cell.id for cell in after.cells] == [cell.id for cell in before.cells] and notebook_sha256(path) == sha256
    assert after.cells[1].outputs == [new_output("execute_result", {"text/plain": "10"}, execution_count=None)]
    assert after.metadata["qgcam"]["parameters"] == {"limit": 5} and after.metadata["qgcam"]["run_id"] == folder.name
    assert stored_problems(path) == []


def test_stored_pages_survive_nbdev_clean(finished):
    from nbdev.clean import clean_nb

    path, folder = finished
    store_run(folder, path)
    allowed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["nbdev"]
    made = nbformat.read(path, as_version=4)
    made.cells[1].outputs.append(nbformat.from_dict(
        new_output("display_data", {"image/png": "iVBO"}, metadata={"image/png": {"alt": "Two bars."}})))
    cleaned = nbformat.from_dict(made)
    clean_nb(cleaned, **{name: allowed[name] for name in allowed if name.startswith("allowed_")})
    assert cleaned.metadata["qgcam"] == made.metadata["qgcam"]
    assert cleaned.cells[1].outputs[-1].metadata["image/png"]["alt"] == "Two bars."


def test_a_changed_notebook_is_found_and_not_stored(finished):
    path, folder = finished
    store_run(folder, path)
    changed = nbformat.read(path, as_version=4)
    changed.cells[1].source += "  # other"
    other = path.with_name("other") / "demo.ipynb"
    other.parent.mkdir()
    nbformat.write(changed, other)
    assert ["changed since: notebook" in line for line in stored_problems(other)] == [True]
    before = other.read_bytes()
    with pytest.raises(RunError, match="make papers"):
        store_run(folder, other)
    assert other.read_bytes() == before


def test_a_large_notebook_is_not_stored(tmp_path):
    path = tmp_path / "large.ipynb"
    cells = [new_code_cell("limit: int = 3  # how many", metadata={"tags": ["parameters"]}),
             new_code_cell(f"'x' * {MAX_BYTES}")]
    nbformat.write(new_notebook(cells=cells), path)
    folder = run_notebook(path, outputs=tmp_path / "outputs", progress=False).folder
    with pytest.raises(RunError, match="allowed are"):
        store_run(folder, path)
