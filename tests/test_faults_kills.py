"""kill -9 at random moments over paper notebooks: the records are those of a run that nobody stopped."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from qgcam_lib.runs import read_run
from qgcam_lib.storage.rows import MapStore, RecordStore

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = {"q_groundcam": {"limit": 40, "verify": "false"}, "tricd_detection": {"limit": 10},
             "probe_relation": {"limit": 12, "models": '["clip-rn50", "vilt"]', "features": 8},
             "ref_adv_evaluate": {"limit": 30, "models": '["vilbert", "reclip"]'}}


def start(name, outputs):
    """The run of a notebook, in a process of its own."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("QGCAM_")}
    pairs = [f"-p{name}={value}" for name, value in ({"n_bootstrap": 20} | NOTEBOOKS[name]).items()]
    command = [sys.executable, "-m", "qgcam_lib.cli", "run", name, *pairs, "--outputs", str(outputs), "--quiet"]
    return subprocess.Popen(command, cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def to_the_end(name, outputs):
    """The folder of the run, brought to its end, and the seconds that took."""
    began, process = time.monotonic(), start(name, outputs)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err[-2000:]
    folder, = (path.parent for path in outputs.glob("*/*/run.json"))
    assert read_run(folder)["status"] == "ok"
    return folder, time.monotonic() - began


def below(pid):
    """The processes that a process has started, and theirs: the kernel has a session of its own."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue
    todo, found = [pid], []
    while todo:
        found += (more := parents.get(todo.pop(), []))
        todo += more
    return found


def kill(process, also_children):
    for pid in [process.pid, *(below(process.pid) if also_children else [])]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(30)
    process.stderr.close()


def kept(folder):
    """Every store of a run, wherever the notebook keeps it: its rows by id, or its maps by id."""
    found = {}
    for marker in folder.rglob("store.json"):
        rows = RecordStore(marker.parent).read().set_index("id", verify_integrity=True)
        found[marker.parent.relative_to(folder)] = rows.sort_index().sort_index(axis="columns")
    for marker in folder.rglob("maps.json"):
        store = MapStore(marker.parent)
        found[marker.parent.relative_to(folder)] = {id: store[id] for id in store}
    return found


def assert_same(now, right):
    """Two answers of `kept`: no row or map lost, doubled or different."""
    assert set(now) == set(right)
    for name, one in right.items():
        if isinstance(one, dict):
            assert set(now[name]) == set(one) and all(np.array_equal(now[name][id], one[id]) for id in one)
        else:
            assert now[name].equals(one), name


@pytest.mark.nightly
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_no_record_of_a_paper_notebook_is_lost_or_doubled(name, tmp_path):
    """Kills of its runs (KILLS, ten), up to three a run, each run brought to its end."""
    kills, todo, draw = 0, int(os.environ.get("KILLS", 10)), random.Random(0)
    folder, seconds = to_the_end(name, tmp_path / "whole")
    right = kept(folder)
    assert right and all(map(len, right.values()))
    for series in range(3 * todo):
        outputs = tmp_path / f"series{series}"
        for _ in range(min(3, todo - kills)):
            process = start(name, outputs)
            try:
                process.wait(draw.uniform(0.2, 0.9) * seconds)
                process.stderr.close()
                break  # it ended before; the next series tries again
            except subprocess.TimeoutExpired:
                kill(process, also_children=kills % 2 == 0)
                kills += 1
        ended, took = to_the_end(name, outputs)
        seconds = min(seconds, took + 1)  # a busy machine is quiet again, and moments stay within a run
        assert_same(kept(ended), right)
        if kills == todo:
            return
    pytest.fail(f"only {kills} kills met a running process")
