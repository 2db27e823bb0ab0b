"""A run in shards: the tables are those of one process, and no kill of a shard or of the gather loses or doubles a row.

The model sleeps, so several shards are under way at a time on any machine.
"""

import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from PIL import Image
from test_faults_kills import assert_same, below, kept, kill

from qgcam_lib.errors import RunError, StoreError
from qgcam_lib.runs import find_runs, read_run
from qgcam_lib.runs.runner import run_notebook
from qgcam_lib.runs.shards import run_parts
from qgcam_lib.storage.rows import RecordStore

ROOT = Path(__file__).resolve().parents[1]
MODEL = """
import time
import numpy as np
class Slow:
    card = {"name": "slow"}
def ask(model, pictures, seconds):
    time.sleep(sum(seconds))
    arrays = [np.asarray(picture, float) for picture in pictures]
    return [{"value": a.mean() / 3, "map": a[..., 0]} for a in arrays]
"""
CELLS = ("""
from model import Slow, ask
from qgcam_lib.data.picture_loop import Query, ask_pictures, folders_of
from qgcam_lib.runs import open_run
from qgcam_lib.storage.rows import MapStore
run = open_run("n", globals())
asked = [Query.within(folders_of("."), str(k), f"g{k // 3}", f"{k % 40}.png", what=sleep) for k in range(n)]""", """
frame = ask_pictures(Slow(), asked, ask, {"value": "float64"}, settings={}, store=run.store(), batch_images=2,
                     maps=MapStore(run.folder / "maps"), dataset={"name": "squares"}, progress=False)""", """
run.save_table(frame, "values")
run.record(mean=frame["value"].mean())""")


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("QGCAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QGCAM_CACHE", str(tmp_path / "cache"))
    draw = random.Random(0)
    for k in range(40):
        Image.new("RGB", (6, 4), (draw.randrange(256), k, 7)).save(tmp_path / f"{k}.png")
    (tmp_path / "model.py").write_text(MODEL)
    cells = [new_code_cell("n: int = 40\nsleep: float = 0.0", metadata={"tags": ["parameters"]})]
    cells += [new_code_cell(CELLS[0]), new_code_cell(CELLS[1], metadata={"tags": ["asks"]}), new_code_cell(CELLS[2])]
    nbformat.write(new_notebook(cells=cells), tmp_path / "n.ipynb")
    return tmp_path / "n.ipynb"


def tables(folder):
    return {path.name: path.read_bytes() for path in (folder / "tables").iterdir() if path.suffix != ".html"}


def start(notebook, outputs, *options):
    command = [sys.executable, "-m", "qgcam_lib.cli", "run", str(notebook), "--quiet", *options]
    return subprocess.Popen([*command, "--outputs", str(outputs)], env=os.environ | {"PYTHONPATH": str(ROOT)},
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def killed_and_continued(notebook, tmp_path, shards, kills, sleep):
    """Kill a run in shards so often at random moments, alone or with all its processes; then bring it to its end."""
    options = ("-psleep=" + str(sleep), "--shards", str(shards))
    right = run_notebook(notebook, {"sleep": sleep}, outputs=tmp_path / "whole", progress=False)
    draw, met, series = random.Random(1), 0, 0
    while met < kills:
        series += 1
        outputs = tmp_path / f"killed{series}"
        for _ in range(3):
            process = start(notebook, outputs, *options)
            try:
                process.wait(draw.uniform(1, 4 + 20 * sleep))
                process.stderr.close()
                break
            except subprocess.TimeoutExpired:
                children = below(process.pid)
                if met % 3 == 2 and children:  # one shard or its kernel alone: its run fails, and the next call goes on
                    os.kill(draw.choice(children), 9)
                    process.communicate(timeout=600)
                else:
                    kill(process, also_children=met % 3 == 0)
                met += 1
            if met == kills:
                break
        process = start(notebook, outputs, *options)
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err[-2000:]
        folder = outputs / "n" / right.run_id
        assert_same(kept(folder), kept(right.folder))
        assert tables(folder) == tables(right.folder)
        rows = [id for part in outputs.glob("shards/n/*/records/records")
                for id in RecordStore(part).read()["id"]]
        assert sorted(rows, key=int) == [str(k) for k in range(40)]  # of all shards together: 0 lost, 0 doubled


@pytest.mark.nightly
def test_ten_kills_lose_and_double_nothing(notebook, tmp_path):
    killed_and_continued(notebook, tmp_path, shards=3, kills=10, sleep=0.1)


@pytest.mark.nightly
@pytest.mark.parametrize("shards", [1, 2, 8])
def test_any_number_of_shards_gives_the_same_bytes(notebook, tmp_path, shards):
    whole = run_notebook(notebook, outputs=tmp_path / "whole", progress=False)
    parts = run_parts(notebook, shards=shards, outputs=tmp_path / "parts", progress=False)
    assert tables(parts.folder) == tables(whole.folder)
    assert find_runs(tmp_path / "parts")[0][0] == parts.folder and len(find_runs(tmp_path / "parts")) == 1


def test_what_changed_between_two_shards_stops_the_gather(notebook, tmp_path):
    """The model's file is no parameter, so both shards have the id of one run; the notebook is, and is named."""
    run_notebook(notebook, outputs=tmp_path, progress=False, shard="1/2")
    (tmp_path / "model.py").write_text(MODEL.replace("/ 3", "/ 4"))
    two = run_notebook(notebook, outputs=tmp_path, progress=False, shard="2/2")
    assert two.run_id.endswith("-2of2") and read_run(two.folder)["shard"] == "2/2"
    with pytest.raises(StoreError, match="own_code"):
        run_parts(notebook, shard="gather/2", outputs=tmp_path, progress=False)
    node = nbformat.read(notebook, 4)
    node.cells[2].source += "  # edited"
    nbformat.write(node, notebook)
    with pytest.raises(RunError, match="shard 1/2 of .*: an earlier shard was computed before a change of: notebook"):
        run_parts(notebook, shard="gather/2", outputs=tmp_path, progress=False)


def test_what_is_refused(notebook, tmp_path):
    for shard in ("3/2", "0/2", "half", "gather/0"):
        with pytest.raises(ValueError, match="K/N"):
            run_parts(notebook, shard=shard, outputs=tmp_path, progress=False)
    node = nbformat.read(notebook, 4)
    node.cells[2].metadata["tags"] = []
    nbformat.write(node, notebook)
    with pytest.raises(RunError, match="no cell tagged `asks`"):
        run_parts(notebook, shard="1/2", outputs=tmp_path, progress=False)


@pytest.mark.nightly
def test_what_a_shard_costs_beside_its_asking(notebook, tmp_path, capsys):
    """Start, plan, kernel and imports, in seconds of the processor: a model that costs nothing shows them alone."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert start(notebook, tmp_path, "--shard", "1/8").wait(300) == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with capsys.disabled():
        print(f"\na shard of a model that costs nothing: {seconds:.1f} s of the processor")
    assert seconds < 15
