"""A stored page is what its code cells gave, with its numbers kept, and fit to show. If not: make papers."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from qgcam_lib.cli import main as cli
from qgcam_lib.cli import results
from qgcam_lib.errors import RunError
from qgcam_lib.runs.parameters import read_notebook
from qgcam_lib.runs.record import update_run
from qgcam_lib.runs.reference import REFERENCES, read_reference
from qgcam_lib.runs.runner import notebook_sha256, notebook_source, run_notebook
from qgcam_lib.runs.stored import MAX_BYTES, store_run, unfit_outputs
from qgcam_lib.storage.files import sha256_of

ROOT = Path(__file__).resolve().parents[1]
PAPERS = sorted((ROOT / "nbs" / "papers").glob("*.ipynb"))


def stored_problems(notebook, references=REFERENCES):
    """Why the outputs that a paper notebook stores cannot be shown, a line each; empty when they can.

    Its code cells must be those that ran, the numbers of that run must be in references/NOTEBOOK, and the page must be
    fit to show (`unfit_outputs`) and not larger than `MAX_BYTES`. If not: make papers.
    """
    notebook, found = Path(notebook), []
    about = read_notebook(notebook).metadata.get("qgcam")
    if about is None:
        return [f"{notebook.name} stores no run"]
    if about.get("code_cells_sha256") != sha256_of(notebook_source(notebook)):
        found.append(f"{notebook.name}: its code cells are not those of run {about['run_id']}, whose outputs it stores")
    kept = read_reference(Path(references) / notebook.stem).get("run_id", "none")
    if kept != about["run_id"]:
        found.append(f"{notebook.name} stores run {about['run_id']}, its reference is of run {kept}")
    if (size := notebook.stat().st_size) > MAX_BYTES:
        found.append(f"{notebook.name} has {size:,} bytes, allowed are {MAX_BYTES:,}")
    return found + [f"{notebook.name}: {fault}" for fault in unfit_outputs(notebook)]


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_a_paper_notebook_shows_a_run(path):
    problems = stored_problems(path)
    assert not problems, "make papers (benchmarks: make bench, make bench-gpu)\n" + "\n".join(problems)


OUTPUTS = {
    "path": new_output("stream", name="stdout", text="read /home/user/x.png"),
    "stderr": new_output("stream", name="stderr", text="hello"),
    "frame": new_output("execute_result", {"text/html": '<table border="1" class="dataframe">', "text/plain": " a"}),
    "picture": new_output("display_data", {"image/png": "iVBO", "text/plain": "words"}),
    "error": new_output("error", ename="ValueError", evalue="no", traceback=[]),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_unfit_outputs_are_named_by_cell(name):
    found = unfit_outputs(new_notebook(cells=[new_code_cell("1"), new_code_cell("show(it)", outputs=[OUTPUTS[name]])]))
    assert found and all(line.startswith("cell 1 (show(it)): ") for line in found)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A notebook, and a run of it whose limit is not the notebook's own, as computed at a commit."""
    folder = tmp_path_factory.mktemp("stored")
    path = folder / "demo.ipynb"
    cells = [new_code_cell("limit: int = 3  # how many", metadata={"tags": ["parameters"]}),
             new_markdown_cell("Twice."),
             new_code_cell("import sys\nprint('Compiling the scores ...\\r10%|#  | 1/10', file=sys.stderr)\nlimit * 2")]
    nbformat.write(new_notebook(cells=cells), path)
    run = run_notebook(path, {"limit": 5}, outputs=folder / "outputs", progress=False).folder
    update_run(run, git={"commit": "f" * 40, "dirty": False})
    return path, run, folder / "outputs" / "reference"


def test_a_run_is_stored_with_its_numbers_and_sources_stay(finished):
    path, folder, references = finished
    before, sha256 = nbformat.read(path, as_version=4), notebook_sha256(path)
    store_run(folder, path, references)
    after = nbformat.read(path, as_version=4)
    assert [cell.source for cell in after.cells] == [cell.source for cell in before.cells]
    assert [cell.id for cell in after.cells] == [cell.id for cell in before.cells] and notebook_sha256(path) == sha256
    assert after.cells[2].outputs == [new_output("execute_result", {"text/plain": "10"}, execution_count=None)]
    about = after.metadata["qgcam"]
    assert about["parameters"] == {"limit": 5} and about["commit"] == "f" * 40
    assert about["run_id"] == folder.name == read_reference(references / "demo")["run_id"]
    assert stored_problems(path, references) == []


def test_changed_code_is_found_and_not_stored_and_changed_words_are_free(finished, tmp_path):
    path, folder, references = finished
    store_run(folder, path, references)
    changed, other = nbformat.read(path, as_version=4), tmp_path / "demo.ipynb"
    changed.cells[1].source = "Two times."
    nbformat.write(changed, other)
    assert stored_problems(other, references) == []
    changed.cells[2].source += "  # other"
    nbformat.write(changed, other)
    assert ["its code cells are not those" in line for line in stored_problems(other, references)] == [True]
    before = other.read_bytes()
    with pytest.raises(RunError, match="has changed since"):
        store_run(folder, other, references)
    assert other.read_bytes() == before


def test_a_page_without_its_numbers_is_found(finished, tmp_path):
    path, folder, references = finished
    store_run(folder, path, references)
    assert stored_problems(path, tmp_path) == [f"demo.ipynb stores run {folder.name}, its reference is of run none"]


@pytest.mark.parametrize("git", [{"commit": "f" * 40, "dirty": True}, {"commit": None, "dirty": None}, None])
def test_a_run_that_no_commit_names_is_not_stored(finished, git):
    path, folder, references = finished
    update_run(folder, git=git)
    try:
        with pytest.raises(RunError, match="uncommitted changes"):
            store_run(folder, path, references)
    finally:
        update_run(folder, git={"commit": "f" * 40, "dirty": False})


def test_an_uncommitted_tree_is_refused_before_anything_runs(monkeypatch, capsys):
    from qgcam_lib.runs import record

    monkeypatch.setattr(record, "uncommitted", lambda: ["qgcam_lib/maps.py"])
    assert cli.main(["papers", "--check"]) == cli.main(["papers", "q_groundcam"]) == 1


@pytest.fixture
def papers(finished, monkeypatch):
    """`qgcam papers` for the notebook, in a committed tree; returns its exit code."""
    from qgcam_lib.runs import record, stored

    path, folder, references = finished
    monkeypatch.setattr(record, "uncommitted", lambda: [])
    monkeypatch.setattr(record, "git_state", lambda: {"commit": "e" * 40, "dirty": False})
    monkeypatch.setattr(stored, "store_run", lambda run, notebook: store_run(run, notebook, references))
    monkeypatch.setattr(results, "notebook_path", lambda name: path)
    return lambda *runs: cli.main(["papers", *runs, "--outputs", str(folder.parents[1])])


def test_a_run_with_uncommitted_changes_is_computed_again_at_its_commit(finished, papers, capsys):
    path, folder, _ = finished
    update_run(folder, git={"commit": "f" * 40, "dirty": True})
    assert papers(f"demo/{folder.name}") == 0
    assert "it is computed again" in capsys.readouterr().err
    assert nbformat.read(path, as_version=4).metadata["qgcam"]["commit"] == "e" * 40
