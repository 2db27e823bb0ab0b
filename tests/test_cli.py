"""The command line: exit codes, one-line errors, and the commands over real folders. One kernel is started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import typer
from compendium import lay_compendium
from nbformat.v4 import new_code_cell, new_notebook

from qgcam_lib import errors
from qgcam_lib.cli.calls import call
from qgcam_lib.cli.main import join_pairs, main

ROOT = Path(__file__).resolve().parents[1]
CELLS = """from qgcam_lib.runs import open_run
import pandas as pd
run = open_run("n", globals())
if limit < 0: raise ValueError("limit is negative")
run.save_table(pd.DataFrame({"metric": ["io_ratio"], "value": [limit / 10]}), "score_table", "A *made-up* score.")
run.save_table(pd.DataFrame({"id": []}), "failed", "Nothing failed.")
import matplotlib.pyplot as plt
run.save_figure(plt.figure(figsize=(1, 1)), "blank", "An empty figure.")
run.record(n=limit, scores={"io_ratio": limit / 10})"""


def write_notebook(path, *more):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(["limit: int = 4  # how many", *more])
    cells = [new_code_cell(lines, metadata={"tags": ["parameters"]}), new_code_cell(CELLS)]
    nbformat.write(new_notebook(cells=cells), path)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with one small notebook, run once with limit=7."""
    folder = tmp_path_factory.mktemp("project")
    write_notebook(folder / "nbs" / "papers" / "q_groundcam.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", "nbs/papers/q_groundcam.ipynb", "-p", "limit", "7", "--outputs", "outputs", "--quiet"]) == 0
    return folder


def test_pairs_are_joined_only_behind_their_option():
    assert join_pairs(["run", "n", "-p", "a", "-1", "--force", "-p", "b=c=d", "--parameter", "e", ""]) == \
        ["run", "n", "-p", "a=-1", "--force", "-p", "b=c=d", "--parameter", "e="]
    assert join_pairs(["-p"]) == ["-p"] and join_pairs(["-p", "a"]) == ["-p", "a"]


@pytest.mark.parametrize("line, words", [("run nbs/papers/q_groundcam.ipynb -p limt 3", "`limit`"),
                                         ("run no.ipynb", "no.ipynb"), ("runn", "runn"),
                                         ("table --outputs nowhere", "nowhere"), ("data verify nowhere", "nowhere"),
                                         ("data verify miniwrld", "Did you mean miniworld?")])
def test_wrong_calls_are_one_line_and_exit_code_2(line, words, project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    assert main(line.split()) == 2
    shown = capsys.readouterr().err
    assert words in shown and "Traceback" not in shown


def test_the_exit_code_is_the_class_of_the_error_and_a_mistake_of_ours_keeps_its_traceback(capsys):
    def code_of(error):
        app = typer.Typer(pretty_exceptions_enable=False)

        @app.command()
        def fails() -> None:
            raise error
        return call(app, [])

    own = type("Own", (errors.FormatError,), {})  # also a class that is defined elsewhere
    codes = {errors.SettingsError: 2, errors.StoreError: 2, errors.SourceError: 1, errors.FileFault: 1, own: 1,
             errors.ExampleError: 1, FileNotFoundError: 2}
    assert {kind: code_of(kind("two\n  lines")) for kind in codes} == codes
    assert code_of(errors.RunError("failed", Path())) == 1
    assert set(capsys.readouterr().err.splitlines()) == {"qgcam: two lines", "qgcam: failed"}
    for mistake in (ValueError, KeyError, AttributeError, OSError):
        with pytest.raises(mistake):
            code_of(mistake("ours"))


def test_a_run_is_shown_skipped_and_listed(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    assert main(["run", "nbs/papers/q_groundcam.ipynb", "--show"]) == 0
    assert "limit: int = 4" in capsys.readouterr().out
    wanted = ["-p", "limit=7", "--outputs", "outputs", "--gather", "g/demo/x/1"]
    assert main(["run", "nbs/papers/q_groundcam.ipynb", *wanted]) == 0
    assert "finished before" in capsys.readouterr().out
    assert {"run.json", "run.html", "notebook.html", "score_table.csv"} < {path.name for path in Path("g").rglob("*.*")}
    assert main(["table", "--outputs", "outputs"]) == 0
    shown = capsys.readouterr().out
    assert "A *made-up* score." in shown and "0.700" in shown
    assert main(["gather", "g/demo/x/1/run.json", "--to", "g/index.html"]) == 0
    assert "demo/x/1/run.html" in Path("g/index.html").read_text() and Path("g/demo/index.html").is_file()


def test_a_failed_run_is_exit_code_1(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    assert main(["run", "nbs/papers/q_groundcam.ipynb", "-p", "limit=-1", "--outputs", "outputs", "--quiet"]) == 1
    shown = capsys.readouterr().err
    assert "ValueError: limit is negative" in shown and "run.error.ipynb" in shown and "Traceback" not in shown


def test_help_is_quick_because_nothing_heavy_is_imported():
    code = ("import sys; from qgcam_lib.cli.main import main; main(['--help']); "
            "print({'torch', 'pandas', 'numpy', 'papermill', 'pydantic', 'snakemake'} & set(sys.modules))")
    shown = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True, timeout=300)
    assert shown.splitlines()[-1] == "set()"


# ---- Snakemake --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compendium(tmp_path_factory):
    """The package, the Snakefile and one small notebook in a folder of their own, where nobody edits meanwhile."""
    folder = tmp_path_factory.mktemp("compendium")
    lay_compendium(folder)
    write_notebook(folder / "nbs" / "papers" / "q_groundcam.ipynb", *(f"{name}: str = ''" for name in (
        "dataset", "split", "model", "weights")), "verify: bool = True", "baselines: list[str] = []")
    return folder


def snakemake(project, *arguments):
    environment = os.environ | {"PYTHONPATH": str(project), "QGCAM_DATA_ROOT": str(ROOT / "data"),
                                "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
                                "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "snakemake"]
    return subprocess.run([*command, "--config", "parameters={limit: 7}", "weights=random", "models=blip-base",
                           "splits=test", *arguments], cwd=project, env=environment,
                          capture_output=True, text=True, timeout=600)


def test_snakemake_gathers_the_runs_and_its_report_needs_no_network(compendium):
    done = snakemake(compendium, "--cores", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "A *made-up* score." in done.stdout  # the first scores are on the screen
    base = compendium / "outputs" / "gathered" / "q_groundcam" / "flickr30k_test_blip_base"
    run_id, = [path.name for path in base.iterdir()]
    record = json.loads((compendium / "outputs" / "q_groundcam" / run_id / "run.json").read_text())
    given = record["parameters"]
    assert given["limit"] == 7 and given["dataset"] == "miniworld" and given["model"] == "blip-base"
    assert given["baselines"] == ["centre", "untrained"] and given["verify"] and record["attempts"] == 1

    report = compendium / "outputs" / "gathered" / "index.html"
    assert run_id in report.read_text()
    text = " ".join(page.read_text() for page in [report, *(base / run_id).rglob("*.html")])
    assert "An empty figure." in text
    for tag in ("<script src", 'src="http', '<link rel="stylesheet"', "@import url("):
        assert tag not in text


@pytest.mark.nightly
def test_snakemake_asks_for_a_run_whose_files_were_changed_and_for_no_other(compendium):
    assert snakemake(compendium, "--cores", "1").returncode == 0
    assert "Nothing to be done" in snakemake(compendium, "--cores", "1").stderr
    table = next((compendium / "outputs" / "q_groundcam").glob("*/tables/score_table.csv"))
    right = table.read_text()
    table.write_text(right.replace("0.", "1.") + "\n")
    done = snakemake(compendium, "--cores", "1")
    assert done.returncode == 0 and "tables/score_table.csv has changed" in done.stderr + done.stdout
    assert table.read_text() == right and list(table.parents[2].glob("*-changed-1"))
    assert snakemake(compendium, "--cores", "1").returncode == 0  # the change is gone: looked at once more
    assert "Nothing to be done" in snakemake(compendium, "--cores", "1").stderr
