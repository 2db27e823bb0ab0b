"""What goes wrong around a run: broken records, full disks, changed data, several processes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from qgcam_lib.cli.main import main
from qgcam_lib.data.catalog import load_dataset
from qgcam_lib.errors import DiskError, RunError
from qgcam_lib.grounding import ground
from qgcam_lib.runs import find_runs, read_run
from qgcam_lib.runs.record import RUN_FILE, record_fault, update_run, write_run
from qgcam_lib.runs.runner import plan_run, run_notebook
from qgcam_lib.storage.files import file_sha256, write_whole
from qgcam_lib.storage.rows import RecordStore

ROOT = Path(__file__).resolve().parents[1]
LOOP = """import os, time, numpy as np, pandas as pd
from pathlib import Path
from qgcam_lib.runs import open_run
run = open_run("loop", globals())
store = run.store("rows")
for n in range(rows):
    if f"e{n:03d}" not in store.done():
        with open(run.folder / "computed.txt", "a") as file: print(f"e{n:03d}", file=file)
        time.sleep(pause)
        value = Path(data).read_text().strip() if data else n
        text = np.random.default_rng(n).bytes(size).hex()
        store.append(pd.DataFrame({"id": [f"e{n:03d}"], "value": [str(value)], "text": [text]}))
        if os.environ.get("DIE_AT") == str(n): os.kill(os.getpid(), 9)"""
TABLE = 'run.save_table(store.read().sort_values("id").drop(columns="text"), "scores", "Rows.")'


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("QGCAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QGCAM_CACHE", str(tmp_path / "cache"))


def write_notebook(path, *, last=TABLE):
    parameters = "rows: int = 4\npause: float = 0.0\nsize: int = 10\ndata: str = ''"
    cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]}), new_code_cell(LOOP), new_code_cell(last)]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells), path)
    return path


def values(folder):
    return pd.read_csv(folder / "tables" / "scores.csv", dtype=str)["value"].tolist()


# ---- records ----------------------------------------------------------------------------------------------------

RECORD = {"run_id": "0123456789ab", "notebook": "nbs/papers/demo.ipynb", "status": "ok", "parameters": {"limit": 3},
          "results": {}, "outputs": [], "data": [], "weights": [], "seconds": 1.0,
          "started": "2030-01-02T03:04:05+00:00"}
BROKEN = {"empty": b"", "another value": b"[1]", "no UTF-8": b"\x93{}", "no keys": b"{}",
          "outputs": RECORD | {"outputs": [{"path": "a"}]}, "data": RECORD | {"data": [[]]}}


@pytest.fixture
def outputs(tmp_path):
    """One good run, with a table."""
    folder = tmp_path / "out" / "demo" / "0123456789ab"
    table = write_whole(folder / "tables" / "score_table.csv", "metric,value\nio_ratio,0.5\n")
    pd.DataFrame({"metric": ["io_ratio"], "value": [0.5]}).to_parquet(table.with_suffix(".parquet"))
    items = [{"path": f"tables/score_table{kind}", "sha256": file_sha256(table.with_suffix(kind)), "kind": "table",
              "caption": "Scores."} for kind in (".csv", ".parquet")]
    write_run(folder, RECORD | {"outputs": items})
    return tmp_path / "out"


def lay(outputs, content):
    bad = outputs / "demo" / "ffffffffffff" / RUN_FILE
    bad.parent.mkdir()
    if isinstance(content, dict):
        content = json.dumps(content | {"run_id": bad.parent.name}).encode()
    bad.write_bytes(content)
    return bad.parent


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_record_is_named_and_stops_no_other(content, outputs, capsys):
    bad = lay(outputs, content)
    assert read_run(bad) == {} or record_fault(bad)
    for line in (["runs"], ["runs", "--status", "all", "--json"], ["table", "demo"]):
        assert main([*line, "--outputs", str(outputs)]) == 0
        out, err = capsys.readouterr()
        assert "0123456789ab" in out and "ffffffffffff" not in out
        assert err.count("\n") == 1 and "demo/ffffffffffff/run.json: " in err and len(err) < 500
    assert main(["table", str(bad), "--outputs", str(outputs)]) in (1, 2)


@pytest.mark.parametrize("content", [b"", b"[1]"])
def test_a_run_with_a_broken_record_is_computed_again(content, tmp_path):
    path = write_notebook(tmp_path / "n.ipynb", last="pass")
    plan = plan_run(path, outputs=tmp_path / "out")
    plan.folder.mkdir(parents=True)
    (plan.folder / RUN_FILE).write_bytes(content)
    assert run_notebook(path, outputs=tmp_path / "out", progress=False).status == "ok"
    assert read_run(plan.folder)["attempts"] == 1


def test_a_run_that_nobody_computes_any_more_counts_as_failed(outputs, capsys):
    update_run(outputs / "demo" / "0123456789ab", status="running")
    assert main(["runs", "--outputs", str(outputs), "--status", "failed"]) == 0
    assert "0123456789ab" in capsys.readouterr().out
    (_, record), = find_runs(outputs, status="failed")
    assert record["error"]["type"] == "Stopped" and not find_runs(outputs, status="running")
    elsewhere = outputs / "demo" / ".0123456789ab.lock"
    elsewhere.write_text("process 1 on another-machine")  # whose lock may not be seen here
    assert find_runs(outputs, status="running")


# ---- a full disk, a closed folder -------------------------------------------------------------------------------

IN_A_SMALL_DISK = """set -e
mount -t tmpfs -o size=1500k tmpfs {disk}
code=0; {qgcam} run n.ipynb -p rows 40 -p size 20000 --outputs {disk} --quiet 2> full.txt || code=$?
cp {disk}/n/*/run.json full.json; echo $code > full.code
mount -o remount,size=64m {disk}
{qgcam} run n.ipynb -p rows 40 -p size 20000 --outputs {disk} --quiet 2> room.txt
cp {disk}/n/*/computed.txt {disk}/n/*/run.json {disk}/n/*/tables/scores.csv .
"""


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """What happened on a file system of 1.5 MB that was filled and made larger, in a name space of its own."""
    folder = tmp_path_factory.mktemp("disk")
    write_notebook(folder / "n.ipynb")
    (folder / "small").mkdir()
    tried = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(folder / "small")],
                           capture_output=True, text=True, timeout=60) if shutil.which("unshare") else None
    if tried is None or tried.returncode:
        pytest.skip("needs unshare and the right to mount a tmpfs in a name space of one's own")
    script = IN_A_SMALL_DISK.format(disk="small", qgcam="./qgcam")
    write_whole(folder / "qgcam", f"#!/bin/sh\nexec {sys.executable} -m qgcam_lib.cli \"$@\"\n")
    (folder / "qgcam").chmod(0o755)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("QGCAM_")}
    environment = kept | {"PYTHONPATH": str(ROOT), "QGCAM_CACHE": str(folder / "cache")}
    done = subprocess.run(["unshare", "-rm", "bash", "-c", script], cwd=folder, env=environment, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.nightly
def test_a_full_disk_ends_the_run_and_after_room_is_made_the_same_command_goes_on(small_disk):
    assert (small_disk / "full.code").read_text() == "1\n" and "No space left" in (small_disk / "full.txt").read_text()
    computed = (small_disk / "computed.txt").read_text().split()
    assert sorted(set(computed)) == [f"e{n:03d}" for n in range(40)]
    assert len(computed) == 41  # the one that did not fit
    assert pd.read_csv(small_disk / "scores.csv", dtype=str)["value"].tolist() == [str(n) for n in range(40)]
    record = json.loads((small_disk / "run.json").read_text())
    assert (record["status"], record["attempts"]) == ("ok", 2)


def test_a_store_that_cannot_be_written_is_found_before_a_model_is_asked(tmp_path, monkeypatch):
    asked = []

    def closed(path, name=""):
        raise DiskError(f"{path}: cannot be written (EROFS)")

    monkeypatch.setattr("qgcam_lib.data.picture_loop.check_writable", closed)
    with pytest.raises(DiskError, match="EROFS"):
        ground(lambda image, text: asked.append(text), load_dataset("miniworld"), limit=2, store=tmp_path / "rows",
               progress=False)
    assert asked == []


# ---- data that changes, a part that is torn ----------------------------------------------------------------------

def test_data_that_changed_between_two_parts_is_another_run(tmp_path, monkeypatch):
    path, data = write_notebook(tmp_path / "n.ipynb"), write_whole(tmp_path / "data.txt", "old")
    given = {"data": str(data), "rows": 3}
    monkeypatch.setenv("DIE_AT", "1")
    with pytest.raises(RunError):
        run_notebook(path, given, outputs=tmp_path / "out", progress=False)
    monkeypatch.delenv("DIE_AT")
    (old, record), = find_runs(tmp_path / "out", status="failed")
    data.write_text("new")
    result = run_notebook(path, given, outputs=tmp_path / "out", progress=False)
    assert result.run_id != record["run_id"] and values(result.folder) == ["new"] * 3
    data.write_text("old")  # put back: the first run goes on with its own rows
    again = run_notebook(path, given, outputs=tmp_path / "out", progress=False)
    assert again.folder == old and values(old) == ["old"] * 3 and read_run(old)["attempts"] == 2


# ---- several processes ------------------------------------------------------------------------------------------

@pytest.mark.nightly
@pytest.mark.parametrize("number", [2, 4])
def test_processes_on_one_run_compute_it_once(number, tmp_path):
    path = write_notebook(tmp_path / "n.ipynb")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "qgcam_lib.cli", "run", str(path), "-ppause=0.1", "--outputs", "out", "--quiet"]
    there = [subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) for _ in range(number)]
    try:
        ended = [(*one.communicate(timeout=240), one.returncode) for one in there]
    finally:
        for one in there:
            one.kill()
    assert [code for *_, code in ended] == [0] * number, ended
    assert sorted("finished before" in out for out, *_ in ended) == [False] + [True] * (number - 1)
    folder, = (tmp_path / "out" / "n").glob("[0-9a-f]*")
    assert (folder / "computed.txt").read_text().split() == [f"e{n:03d}" for n in range(4)]
    assert RecordStore(folder / "records" / "rows").read()["id"].tolist() == [f"e{n:03d}" for n in range(4)]
