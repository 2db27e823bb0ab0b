"""The engine after a hard stop: what a killed one left does not refuse the next, and no path is a command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from compendium import lay_compendium
from nbformat.v4 import new_code_cell, new_notebook

from qgcam_lib.errors import ParameterError
from qgcam_lib.runs import read_run
from qgcam_lib.runs.config import engine_path

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).resolve().parents[1]
ODD = "out put;touch PWNED $(touch PWNED) `touch PWNED` $HOME 'q\" #&|<>*?[x]%d:ü~"
CELLS = """import os, time, pandas as pd
from pathlib import Path
from qgcam_lib.runs import open_run
run = open_run("n", globals())
run.folder.joinpath("pid").write_text(str(os.getpid()))
store = run.store("rows")
for n in range(6):
    if f"e{n}" not in store.done():
        if Path("slow").exists(): time.sleep(0.5)
        store.append(pd.DataFrame({"id": [f"e{n}"], "value": [float(n)]}))
run.save_table(store.read(), "score_table", "Rows.")
import matplotlib.pyplot as plt
run.save_figure(plt.figure(figsize=(1, 1)), "blank", "An empty figure.")"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The package, the Snakefile and one small notebook that keeps rows."""
    folder = tmp_path_factory.mktemp("compendium")
    lay_compendium(folder)
    (folder / "nbs" / "papers").mkdir(parents=True)
    cells = [new_code_cell("seed: int = 0", metadata={"tags": ["parameters"]}), new_code_cell(CELLS)]
    nbformat.write(new_notebook(cells=cells), folder / "nbs" / "papers" / "ref_adv_audit.ipynb")
    return folder


def engine(folder, *arguments, **environment):
    there = {name: text for name, text in os.environ.items() if not name.startswith("QGCAM_")}
    environment = there | {"PYTHONPATH": str(folder), "QGCAM_DATA_ROOT": str(ROOT / "data"),
                           "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | environment
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--config", "only=ref_adv_audit", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, start_new_session=True)


def shown(process, seconds=300):
    text = process.communicate(timeout=seconds)[0]
    return process.returncode, text


def wait_for(what, seconds=120):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not begin"
        time.sleep(0.1)


def test_no_letter_of_an_outputs_folder_is_a_command(folder):
    outputs = str(folder / ODD)
    code, text = shown(engine(folder, "-n", "-p", QGCAM_OUTPUTS=outputs))
    assert code == 0 and "qgcam run" in text, text[-2000:]
    code, text = shown(engine(folder, QGCAM_OUTPUTS=outputs))
    assert code == 0, text[-2000:]
    assert (folder / ODD / "gathered" / "index.html").is_file() and not list(folder.rglob("PWNED"))


def test_what_the_engine_cannot_write_is_refused(folder):
    for name in ("a{b}", "new\nline", "bell\a"):
        with pytest.raises(ParameterError, match="outputs"):
            engine_path(folder / name)


def test_a_killed_engine_stops_nobody_and_two_do_not_run_at_once(folder):
    outputs = folder / "killed"
    (folder / "slow").touch()
    first = engine(folder, QGCAM_OUTPUTS=str(outputs))
    wait_for(lambda: list(outputs.glob("*/*/records/rows/part-*.parquet")))
    assert list((folder / ".snakemake" / "locks").glob("*.lock"))
    code, text = shown(engine(folder, QGCAM_OUTPUTS=str(outputs)), 60)  # a second one, beside the first
    assert code == 1 and f"another engine is computing in this folder (process {first.pid} on" in text
    os.kill(first.pid, signal.SIGKILL)
    first.wait(30)
    assert list((folder / ".snakemake" / "locks").glob("*.lock"))  # what refused every later call
    (folder / "slow").unlink()
    code, text = shown(engine(folder, QGCAM_OUTPUTS=str(outputs)))  # its job still runs, as an orphan
    first.stdout.close()
    assert code == 0, text[-2000:]
    run, = outputs.glob("ref_adv_audit/*/run.json")
    record = read_run(run.parent)
    assert record["status"] == "ok" and record["attempts"] == 1  # nothing was computed twice
    assert (outputs / "gathered" / "index.html").is_file()


def test_a_job_that_died_with_its_engine_goes_on(folder):
    outputs = folder / "died"
    (folder / "slow").touch()
    first = engine(folder, QGCAM_OUTPUTS=str(outputs))
    wait_for(lambda: list(outputs.glob("*/*/records/rows/part-*.parquet")))
    kernel = int(next(outputs.glob("*/*/pid")).read_text())
    os.killpg(first.pid, signal.SIGKILL)
    os.kill(kernel, signal.SIGKILL)
    first.wait(30)
    first.stdout.close()
    (folder / "slow").unlink()
    code, text = shown(engine(folder, QGCAM_OUTPUTS=str(outputs)))
    assert code == 0, text[-2000:]
    run, = outputs.glob("ref_adv_audit/*/run.json")
    assert read_run(run.parent)["attempts"] == 2
    frame = (run.parent / "tables" / "score_table.csv").read_text().split()
    assert frame == ["id,value", *(f"e{n},{float(n)}" for n in range(6))]
