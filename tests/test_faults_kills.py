"""kill -9 at random moments over three paper notebooks: the records are those of a run that nobody stopped."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from qgcam_lib.runs import read_run
from qgcam_lib.storage.maps import MapStore
from qgcam_lib.storage.rows import MARKER, RecordStore

ROOT = Path(__file__).resolve().parents[1]
CODE = "import sys; from qgcam_lib.cli.main import main; sys.exit(main())"


@dataclass
class Story:
    """What became of the kills of one notebook."""

    name: str
    kills: int = 0
    series: int = 0
    moments: list[float] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    differ: int = 0


def start(notebook, given, outputs):
    environment = {name: text for name, text in os.environ.items() if not name.startswith("QGCAM_")}
    pairs = [text for name, value in given.items() for text in ("-p", name, str(value))]
    command = [sys.executable, "-c", CODE, "run", str(notebook), *pairs, "--outputs", str(outputs), "--quiet"]
    return subprocess.Popen(command, cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)


def to_the_end(notebook, given, outputs, seconds=600):
    began, process = time.monotonic(), start(notebook, given, outputs)
    try:
        _, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, err[-2000:]
    folder, = (path.parent for path in outputs.glob("*/*/run.json"))
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
    children = below(process.pid) if also_children else []
    for pid in [process.pid, *children]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(30)
    process.stderr.close()


def kept(folder):
    """Every store of a run: rows by id, maps by id."""
    found = {}
    for marker in sorted((folder / "records").rglob(MARKER)):
        place = marker.parent
        if place.name == "index":
            store = MapStore(place.parent)
            assert not len(store.check()), store.check()
            found[place.parent.name] = {id: store[id] for id in store}
        else:
            found[place.name] = RecordStore(place).read()
    return found


def compare(story, folder, right):
    now = kept(folder)
    story.differ += set(now) != set(right)
    for name in set(right) & set(now):
        a, b = right[name], now[name]
        if isinstance(a, dict):
            story.lost += len(set(a) - set(b))
            story.differ += sum(not np.array_equal(a[key], b[key]) for key in set(a) & set(b))
            continue
        story.lost += len(set(a["id"]) - set(b["id"]))
        story.doubled += int(b["id"].duplicated().sum()) + len(set(b["id"]) - set(a["id"]))
        rows = [one.sort_values("id", ignore_index=True)[sorted(one)] for one in (a, b)]
        story.differ += not rows[0].equals(rows[1])


def stories(notebooks, kills, tmp, seed=0):
    """Kill runs of notebooks `kills` times in all, up to three times a run, and bring each to its end."""
    random.seed(seed)
    for index, (notebook, given) in enumerate(notebooks):
        story, mine = Story(Path(notebook).stem), kills // len(notebooks) + (index < kills % len(notebooks))
        folder, seconds = to_the_end(notebook, given, tmp / story.name / "whole")
        right = kept(folder)
        assert right and all(map(len, right.values()))
        while story.kills < mine:
            outputs, story.series = tmp / story.name / f"series{story.series}", story.series + 1
            for _ in range(min(3, mine - story.kills)):
                process, moment = start(notebook, given, outputs), random.uniform(0.2, 0.9) * seconds
                try:
                    process.wait(moment)
                    process.stderr.close()
                    break  # it ended before; the next series tries again
                except subprocess.TimeoutExpired:
                    kill(process, also_children=story.kills % 2 == 0)
                    story.kills += 1
                    story.moments.append(round(moment, 1))
            ended, took = to_the_end(notebook, given, outputs)
            seconds = min(seconds, took + 1)  # a busy machine is quiet again, and moments stay within a run
            assert read_run(ended)["status"] == "ok"
            compare(story, ended, right)
        yield story


PAPERS = [("q_groundcam", {"limit": 40, "n_bootstrap": 20, "verify": "false"}),
          ("tricd_detection", {"limit": 10, "n_bootstrap": 20}),
          ("ref_adv_evaluate", {"limit": 30, "n_bootstrap": 20})]  # fmt: skip


@pytest.mark.nightly
def test_no_record_of_a_paper_notebook_is_lost_or_doubled(tmp_path):
    notebooks = [(ROOT / "nbs" / "papers" / f"{name}.ipynb", given) for name, given in PAPERS]
    for one in stories(notebooks, 30, tmp_path):
        assert not (one.lost or one.doubled or one.differ), one
