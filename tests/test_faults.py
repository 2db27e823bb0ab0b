"""What goes wrong around a run: broken records and caches, full and closed disks, changed data, several processes."""

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from speeds import some

from qgcam_lib.cli.main import main
from qgcam_lib.data.catalog import load_dataset
from qgcam_lib.errors import DiskError, RunError
from qgcam_lib.grounding import ground
from qgcam_lib.runs import find_runs, read_run
from qgcam_lib.runs.record import RUN_FILE, record_fault, update_run, write_run
from qgcam_lib.runs.runner import plan_run, run_notebook
from qgcam_lib.storage import files
from qgcam_lib.storage.files import check_writable, disk_errors, file_sha256, whole_file, write_whole
from qgcam_lib.storage.fingerprints import fingerprint
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
        if os.environ.get("DIE_AT") == str(n): os.kill(os.getpid(), 9)
        if os.environ.get("CHANGE_AT") == str(n): Path(data).write_text(os.environ["CHANGE_TO"])"""
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
OUT = {"path": "../../x.csv", "sha256": "0", "kind": "table", "caption": ""}
BROKEN = {
    "empty": b"", "not JSON": b"{", "another value": b"[1]", "a number": b"5", "null": b"null", "no UTF-8": b"\x93{}",
    "deep": b"[" * 100_000, "no keys": b"{}", "one key": b'{"run_id": "ffffffffffff"}', "digits": b"9" * 5000,
    "doubled": b'{"status": "ok", "status": "ok"}', "a folder": None,
    **{f"{name} is {value!r}": {**RECORD, name: value} for name, value in (
        ("notebook", ["n"]), ("parameters", None), ("parameters", 5), ("outputs", {}), ("outputs", [5]),
        ("outputs", [{"path": "a"}]), ("outputs", [OUT]), ("outputs", [{**OUT, "path": "/etc/passwd"}]), ("data", [[]]),
        ("results", 1), ("status", True), ("seconds", "long"), ("git", {"commit": 5}), ("machine", [1]))},
}  # fmt: skip


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
    if content is None:
        bad.mkdir()
    else:
        text = content if isinstance(content, bytes) else json.dumps(content | {"run_id": bad.parent.name}).encode()
        bad.write_bytes(text)
    return bad.parent


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_record_is_named_and_stops_no_other(content, outputs, capsys):
    bad = lay(outputs, content)
    assert read_run(bad) == {} or record_fault(bad)
    for line in (["runs"], ["runs", "--status", "all", "--json"], ["table", "demo"], ["table"]):
        assert main([*line, "--outputs", str(outputs)]) == 0
        out, err = capsys.readouterr()
        assert "0123456789ab" in out and "ffffffffffff" not in out
        assert err.count("\n") == 1 and "demo/ffffffffffff/run.json: " in err and len(err) < 500
    for line in (["table", str(bad)], ["compare", str(bad), "demo"]):
        assert main([*line, "--outputs", str(outputs)]) in (1, 2)
        assert "Traceback" not in capsys.readouterr().err


def test_a_broken_record_is_left_out_of_the_report(tmp_path, capsys):
    for name, text in (("a", None), ("b", "[1]")):
        folder = tmp_path / "demo" / name / "0123456789ab"
        write_run(folder, RECORD)
        if text:
            (folder / RUN_FILE).write_text(text)
    records = [str(path) for path in sorted(tmp_path.glob("*/*/*/run.json"))]
    assert main(["gather", *records, "--to", str(tmp_path / "index.html")]) == 0
    assert "left out of the report" in capsys.readouterr().err
    assert "1 runs of 1 notebooks" in (tmp_path / "index.html").read_text()
    assert main(["gather", records[1], "--to", str(tmp_path / "index.html")]) == 1


@pytest.mark.parametrize("content", some([b"", b"[1]", b'{"attempts": "x", "status": "ok"}'], b"[1]"))
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


# ---- the cache of checksums -------------------------------------------------------------------------------------

def torn(cache):
    cache.write_bytes(cache.read_bytes()[:5000])


def other_bytes(cache):
    cache.write_bytes(b"\x1e\x86 no database" * 999)


def other_table(cache):
    cache.unlink()
    with sqlite3.connect(cache) as connection:
        connection.execute("CREATE TABLE files (x)")
    connection.close()


def inner_page(cache):
    data = bytearray(cache.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    cache.write_bytes(data)


def a_folder(cache):
    cache.unlink()
    cache.mkdir()


def a_file_above(cache):
    shutil.rmtree(cache.parent)
    cache.parent.touch()


@pytest.mark.parametrize("harm", [torn, other_bytes, other_table, inner_page, a_folder, a_file_above])
def test_a_broken_cache_of_checksums_costs_a_second_reading(harm, tmp_path):
    data = tmp_path / "data"
    for number in range(40):
        os.utime(write_whole(data / f"{number}.txt", str(number)), ns=(10**18, 10**18))
    cache = tmp_path / "c" / "fingerprints.sqlite"
    right = fingerprint(data, cache=cache)
    harm(cache)
    assert fingerprint(data, cache=cache) == fingerprint(data, cache=cache) == right


def test_a_locked_cache_of_checksums_is_done_without(tmp_path, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda file, timeout: connect(file, timeout=0.1))
    data, cache = write_whole(tmp_path / "a.txt", "a"), tmp_path / "fingerprints.sqlite"
    os.utime(data, ns=(10**18, 10**18))
    right = fingerprint(data, cache=cache)
    holder = connect(cache)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        assert fingerprint(data, cache=cache) == right
    finally:
        holder.close()
    assert cache.is_file()


def test_a_wrong_checksum_in_the_cache_is_none(tmp_path):
    data, cache = write_whole(tmp_path / "a.txt", "a"), tmp_path / "fingerprints.sqlite"
    os.utime(data, ns=(10**18, 10**18))
    right = fingerprint(data, cache=cache)
    with sqlite3.connect(cache) as connection:
        connection.execute("UPDATE checksums SET sha256 = 5")
    connection.close()
    assert fingerprint(data, cache=cache) == right


# ---- a full disk, a closed folder -------------------------------------------------------------------------------

@pytest.mark.parametrize("error", [
    OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EDQUOT, "Disk quota exceeded"),
    RuntimeError("PytorchStreamWriter failed: No space left on device"), ValueError("I/O error (os error 28)"),
    sqlite3.OperationalError("database or disk is full")], ids=lambda error: type(error).__name__)
def test_every_word_for_a_full_disk_is_one_error(error, tmp_path):
    with pytest.raises(DiskError, match=r"a\.csv: the disk is full \(ENOSPC\), [\d,]+ bytes are free\. Make room"):
        with whole_file(tmp_path / "a.csv") as part:
            part.write_text("half")
            raise error
    assert list(tmp_path.iterdir()) == []


def test_the_bytes_that_were_needed_are_said(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(DiskError, match="1,234 bytes were needed"):
        write_whole(tmp_path / "a.bin", bytes(1234))


def test_other_errors_keep_their_name(tmp_path):
    for error in (ValueError("a wrong value"), KeyError("k"), PermissionError(errno.EACCES, "no", "/elsewhere/b.csv")):
        with pytest.raises(type(error)), disk_errors(tmp_path / "a.csv"):
            raise error
    with pytest.raises(DiskError, match="EACCES"), disk_errors(tmp_path / "a.csv"):
        raise PermissionError(errno.EACCES, "no", str(tmp_path / "a.csv"))


def test_a_file_where_a_folder_should_be_is_found_before(tmp_path):
    note = write_whole(tmp_path / "note.txt", "x")
    with pytest.raises(DiskError, match=r"outputs: .* cannot be made, because .*note\.txt is a file"):
        run_notebook(write_notebook(tmp_path / "n.ipynb"), outputs=note / "out")
    with pytest.raises(DiskError, match="is a file"):
        check_writable(note / "a" / "b")


IN_A_SMALL_DISK = """set -e
mount -t tmpfs -o size=1500k tmpfs {disk}
code=0; {qgcam} run n.ipynb -p rows 40 -p size 20000 --outputs {disk} --quiet 2> full.txt || code=$?
cp {disk}/n/*/run.json full.json; echo $code > full.code
mount -o remount,size=64m {disk}
{qgcam} run n.ipynb -p rows 40 -p size 20000 --outputs {disk} --quiet 2> room.txt
cp {disk}/n/*/computed.txt {disk}/n/*/run.json {disk}/n/*/tables/scores.csv .
mount -o remount,ro {disk}
for line in "run n.ipynb -p rows 3 --outputs {disk}" "run n.ipynb -p rows 3 --outputs out --gather {disk}/g" \\
    "score maps.npz boxes.csv --out {disk}/s.csv" "probe score t.csv --out {disk}/s.csv" \\
    "tricd evaluate p.json --annotations miniworld-tricd --split test --out {disk}/s.csv"; do
  code=0; {qgcam} $line 2>> closed.txt || code=$?
  echo $code >> closed.code
done
ls out > out.txt 2>&1 || true
"""


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """What happened on a file system of 1.5 MB that was filled, made larger, and closed, in a name space of its own."""
    folder = tmp_path_factory.mktemp("disk")
    write_notebook(folder / "n.ipynb")
    for name in ("maps.npz", "boxes.csv", "t.csv", "p.json"):
        (folder / name).touch()
    (folder / "small").mkdir()
    tried = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(folder / "small")],
                           capture_output=True, text=True, timeout=60) if shutil.which("unshare") else None
    if tried is None or tried.returncode:
        pytest.skip("needs unshare and the right to mount a tmpfs in a name space of one's own")
    script = IN_A_SMALL_DISK.format(disk="small", qgcam="./qgcam")
    code = f"#!{sys.executable}\nimport sys\nfrom qgcam_lib.cli.main import main\nsys.exit(main())\n"
    write_whole(folder / "qgcam", code)
    (folder / "qgcam").chmod(0o755)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("QGCAM_")}
    environment = kept | {"PYTHONPATH": str(ROOT), "QGCAM_CACHE": str(folder / "cache")}
    done = subprocess.run(["unshare", "-rm", "bash", "-c", script], cwd=folder, env=environment, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.nightly
def test_a_full_disk_is_said_and_ends_the_run(small_disk):
    assert (small_disk / "full.code").read_text() == "1\n"
    text, record = (small_disk / "full.txt").read_text(), json.loads((small_disk / "full.json").read_text())
    assert text.count("\n") == 1 and "the disk is full (ENOSPC)" in text and "bytes are free" in text
    assert (record["status"], record["error"]["type"]) == ("failed", "DiskError")


@pytest.mark.nightly
def test_after_room_is_made_the_same_command_goes_on(small_disk):
    computed = (small_disk / "computed.txt").read_text().split()
    assert sorted(set(computed)) == [f"e{n:03d}" for n in range(40)]
    assert len(computed) == 41  # the one that did not fit
    assert pd.read_csv(small_disk / "scores.csv", dtype=str)["value"].tolist() == [str(n) for n in range(40)]
    record = json.loads((small_disk / "run.json").read_text())
    assert (record["status"], record["attempts"]) == ("ok", 2)


@pytest.mark.nightly
def test_a_closed_folder_is_found_before_anything_is_computed(small_disk):
    lines = (small_disk / "closed.txt").read_text().splitlines()
    assert (small_disk / "closed.code").read_text() == "1\n" * 5
    assert len(lines) == 5 and all("cannot be written (EROFS)" in line for line in lines), lines
    assert [line.split(":")[1].strip() for line in lines] == ["--outputs", "--gather", "--out", "--out", "--out"]
    assert "No such file" in (small_disk / "out.txt").read_text()  # the second did not begin


def test_a_store_that_cannot_be_written_is_found_before_a_model_is_asked(tmp_path, monkeypatch):
    asked = []

    def closed(path, name=""):
        raise DiskError(f"{path}: cannot be written (EROFS)")

    monkeypatch.setattr("qgcam_lib.data.picture_loop.check_writable", closed)
    with pytest.raises(DiskError, match="EROFS"):
        ground(lambda image, text: asked.append(text), load_dataset("miniworld"), limit=2, store=tmp_path / "rows",
               progress=False)
    assert asked == []


# ---- data that changes ------------------------------------------------------------------------------------------

def test_data_that_changed_between_two_parts_is_another_run_and_is_said(tmp_path, monkeypatch):
    path, data = write_notebook(tmp_path / "n.ipynb"), write_whole(tmp_path / "data.txt", "old")
    given, said = {"data": str(data), "rows": 3}, []
    monkeypatch.setenv("DIE_AT", "1")
    with pytest.raises(RunError):
        run_notebook(path, given, outputs=tmp_path / "out", progress=False)
    monkeypatch.delenv("DIE_AT")
    (old, record), = find_runs(tmp_path / "out", status="failed")
    data.write_text("new")
    result = run_notebook(path, given, outputs=tmp_path / "out", progress=False, say=said.append)
    assert result.run_id != record["run_id"] and values(result.folder) == ["new"] * 3
    assert len(said) == 1 and f"{data} changed since" in said[0] and record["run_id"] in said[0]
    data.write_text("old")  # put back: the first run goes on with its own rows
    again = run_notebook(path, given, outputs=tmp_path / "out", progress=False)
    assert again.folder == old and values(old) == ["old"] * 3 and read_run(old)["attempts"] == 2


@pytest.mark.nightly
def test_data_that_changes_while_a_run_computes_makes_no_result(tmp_path, monkeypatch):
    path, data = write_notebook(tmp_path / "n.ipynb"), write_whole(tmp_path / "data.txt", "old")
    given = {"data": str(data), "rows": 3}
    monkeypatch.setenv("CHANGE_AT", "0")
    monkeypatch.setenv("CHANGE_TO", "new")
    with pytest.raises(RunError, match=r"data\.txt changed while the run was computing.*is kept as .*-changed-1"):
        run_notebook(path, given, outputs=tmp_path / "out", progress=False)
    assert find_runs(tmp_path / "out", status=None) == []
    data.write_text("old")
    monkeypatch.delenv("CHANGE_AT")
    assert values(run_notebook(path, given, outputs=tmp_path / "out", progress=False).folder) == ["old"] * 3


@pytest.mark.nightly
def test_a_corrupt_part_of_an_unfinished_run_is_named_and_not_read(tmp_path, monkeypatch):
    path = write_notebook(tmp_path / "n.ipynb")
    monkeypatch.setenv("DIE_AT", "2")
    with pytest.raises(RunError):
        run_notebook(path, outputs=tmp_path / "out", progress=False)
    monkeypatch.delenv("DIE_AT")
    (folder, _), = find_runs(tmp_path / "out", status="failed")
    part = sorted((folder / "records" / "rows").glob("part-*"))[1]
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(RunError, match="StoreError.*torn or changed.*Move it away"):
        run_notebook(path, outputs=tmp_path / "out", progress=False)
    part.unlink()
    result = run_notebook(path, outputs=tmp_path / "out", progress=False)
    assert values(result.folder) == [str(n) for n in range(4)]


# ---- several processes ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("number", some([2, 4], 2))
def test_processes_on_one_run_compute_it_once(number, tmp_path):
    path = write_notebook(tmp_path / "n.ipynb")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    code = "import sys; from qgcam_lib.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "run", str(path), "-p", "pause", "0.1", "--outputs", "out", "--quiet",
               "--wait"]
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
