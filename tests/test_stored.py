"""A stored page is what its code cells gave, with its numbers kept, and fit to show. If not: make papers."""

import re
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from qgcam_lib.cli import main as cli
from qgcam_lib.errors import RunError
from qgcam_lib.runs.record import update_run
from qgcam_lib.runs.reference import read_reference
from qgcam_lib.runs.runner import notebook_sha256, run_notebook
from qgcam_lib.runs.stored import MAX_BYTES, store_run, stored_problems, unfit_outputs

ROOT = Path(__file__).resolve().parents[1]
PAPERS = sorted((ROOT / "nbs" / "papers").glob("*.ipynb"))


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_a_paper_notebook_shows_a_run(path):
    problems = stored_problems(path)
    assert not problems, "make papers (benchmarks: make bench)\n" + "\n".join(problems)


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_a_page_opens_with_its_answer_and_one_figure(path):
    """A title and a sentence, then the first screen: question, answer and effect in at most 60 words, a picture."""
    title, opening = nbformat.read(path, 4).cells[:2]
    assert title.source.startswith("# ") and len(title.source.split()) <= 60
    assert "first_screen(" in opening.source and len(opening.source.splitlines()) <= 4
    box, *figures = opening.outputs
    seen = re.sub(r"<[^>]+>", " ", box.data["text/html"].partition("<details>")[0])
    words = [word for word in seen.split() if word not in ("Question", "Answer", "Effect")]
    assert 15 <= len(words) <= 60 and not seen.count("Being computed"), seen
    assert any(kind.startswith("image/") for figure in figures for kind in figure.get("data", {}))


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
    """A notebook, and a run of it whose limit is not the notebook's own, as computed at a commit."""
    folder = tmp_path_factory.mktemp("stored")
    path = folder / "demo.ipynb"
    cells = [new_code_cell("limit: int = 3  # how many", metadata={"tags": ["parameters"]}),
             new_markdown_cell("Twice."),
             new_code_cell("import sys\nprint('10%|#  | 1/10', file=sys.stderr)\nlimit * 2")]
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


def test_stored_pages_survive_nbdev_clean(finished):
    from nbdev.clean import clean_nb

    path, folder, references = finished
    store_run(folder, path, references)
    allowed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["nbdev"]
    made = nbformat.read(path, as_version=4)
    made.cells[2].outputs.append(nbformat.from_dict(
        new_output("display_data", {"image/png": "iVBO"}, metadata={"image/png": {"alt": "Two bars."}})))
    cleaned = nbformat.from_dict(made)
    clean_nb(cleaned, **{name: allowed[name] for name in allowed if name.startswith("allowed_")})
    assert cleaned.metadata["qgcam"] == made.metadata["qgcam"]
    assert cleaned.cells[2].outputs[-1].metadata["image/png"]["alt"] == "Two bars."


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
    from qgcam_lib.runs import provenance

    monkeypatch.setattr(provenance, "uncommitted", lambda: ["qgcam_lib/maps.py"])
    assert cli.main(["papers", "--check"]) == cli.main(["papers", "q_groundcam"]) == 1
    assert "not committed: qgcam_lib/maps.py" in capsys.readouterr().err
    assert (ROOT / "Makefile").read_text().split("\npapers:")[1].splitlines()[1] == "\t@qgcam papers --check"


@pytest.fixture
def papers(finished, monkeypatch):
    """`qgcam papers` for the notebook, in a committed tree; returns its exit code."""
    from qgcam_lib.runs import provenance, runner, stored

    path, folder, references = finished
    monkeypatch.setattr(provenance, "uncommitted", lambda: [])
    monkeypatch.setattr(runner, "git_state", lambda: {"commit": "e" * 40, "dirty": False})
    monkeypatch.setattr(stored, "store_run", lambda run, notebook: store_run(run, notebook, references))
    monkeypatch.setattr(cli, "_notebook_path", lambda name: path)
    return lambda *runs: cli.main(["papers", *runs, "--outputs", str(folder.parents[1])])


def test_a_page_that_fails_does_not_lose_the_others(finished, papers, capsys):
    path, folder, _ = finished
    assert papers("demo/000000000000", f"demo/{folder.name}") == 1
    said = capsys.readouterr()
    assert "demo/000000000000 is not stored" in said.err and f"run {folder.name}" in said.out


def test_a_run_with_uncommitted_changes_is_computed_again_at_its_commit(finished, papers, capsys):
    path, folder, _ = finished
    update_run(folder, git={"commit": "f" * 40, "dirty": True})
    assert papers(f"demo/{folder.name}") == 0
    assert "it is computed again" in capsys.readouterr().err
    assert nbformat.read(path, as_version=4).metadata["qgcam"]["commit"] == "e" * 40


def test_a_large_notebook_is_not_stored(tmp_path):
    path = tmp_path / "large.ipynb"
    cells = [new_code_cell("limit: int = 3  # how many", metadata={"tags": ["parameters"]}),
             new_code_cell(f"'x' * {MAX_BYTES}")]
    nbformat.write(new_notebook(cells=cells), path)
    folder = run_notebook(path, outputs=tmp_path / "outputs", progress=False).folder
    update_run(folder, git={"commit": "f" * 40, "dirty": False})
    with pytest.raises(RunError, match="allowed are"):
        store_run(folder, path, tmp_path / "reference")
    assert not (tmp_path / "reference").exists()
