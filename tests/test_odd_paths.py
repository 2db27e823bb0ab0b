"""Paths with every kind of letter, over commands that write: the file has that name, or a line refuses it."""

import json
import os
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from speeds import some

from qgcam_lib.cli.main import main

NAMES = {
    "spaces": "two  words ", "unicode": "ünï 图 ✓", "percent": "100%d %s %20", "dash": "-p", "dashes": "--out",
    "colon": "a:b", "quotes": "it's \"so\"", "shell": "$HOME;`x`|&<>#*?[x]\\", "braces": "{name}", "equals": "a=b",
    "line": "new\nline", "tilde": "~", "dots": "...", "marks": "x\u202egnp", "long": "x" * 247,
    "no UTF-8": os.fsdecode(b"\xff\xfe"),
}  # fmt: skip
TOO_LONG = "y" * 300


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with what the commands read; the names are given as they are, relative to it."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("QGCAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QGCAM_CACHE", str(tmp_path / "cache"))
    np.savez("maps.npz", **{"a": np.random.default_rng(0).random((6, 8)), "b": np.random.default_rng(1).random((6, 8))})
    Path("boxes.csv").write_text("id,x0,y0,x1,y1,height,width\na,5,6,40,50,60,80\nb,1,2,30,40,60,80\n")
    Path("scores.csv").write_text("c0_i0,c0_i1,c1_i0,c1_i1\n0.9,0.1,0.2,0.8\n0.7,0.3,0.4,0.6\n")
    return tmp_path


WRITERS = {  # the command, and the ending of what it writes
    "score": (["score", "maps.npz", "boxes.csv"], ".csv"), "score json": (["score", "maps.npz", "boxes.csv"], ".json"),
    "score parquet": (["score", "maps.npz", "boxes.csv"], ".parquet"),
    "probe": (["probe", "score", "scores.csv"], ".csv"),
}  # fmt: skip


@pytest.mark.parametrize("command", some(WRITERS, "score"))
def test_every_letter_of_a_name_is_kept(command, here, capsys):
    line, ending = WRITERS[command]
    for name in NAMES.values():
        folder = Path(name)
        folder.mkdir(exist_ok=True)
        for out in (Path(f"{name}{ending}"), folder / f"s{ending}"):
            assert main([*line, f"--out={out}"]) == 0, (name, capsys.readouterr().err)
            assert out.is_file() and out.stat().st_size, name
    left = [path for path in here.rglob("*") if ".tmp" in path.name]
    assert not left and "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("command", WRITERS)
def test_a_name_that_no_file_can_have_is_one_line(command, here, capsys):
    line, ending = WRITERS[command]
    for out in (f"{TOO_LONG}{ending}", f"{TOO_LONG}/s{ending}", f"{'z/' * 2100}s{ending}", f"nul\0{ending}",
                f"maps.npz/s{ending}"):
        assert main([*line, f"--out={out}"]) in (1, 2), out[:40]
        assert len(capsys.readouterr().err.splitlines()) <= 6, out[:40]


def test_what_is_read_may_have_any_name(here, capsys):
    for name in NAMES.values():
        maps, boxes = Path(f"{name}.npz"), Path(f"{name}.csv")
        maps.write_bytes(Path("maps.npz").read_bytes())
        boxes.write_bytes(Path("boxes.csv").read_bytes())
        assert main(["score", "--json", "--", str(maps), str(boxes)]) == 0, (name, capsys.readouterr().err)
        json.loads(capsys.readouterr().out)


@pytest.mark.nightly
def test_runs_lie_in_folders_of_any_name(here, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    source = "from qgcam_lib.runs import open_run\nrun = open_run('n', globals())\nrun.folder.joinpath('there').touch()"
    cells = [new_code_cell("data: str = ''", metadata={"tags": ["parameters"]}), new_code_cell(source)]
    odd = "ünï 100%d -p a:b it's $HOME;#{name}"
    notebook, outputs, data = Path(f"{odd}.ipynb"), Path(f"out {odd}"), Path(f"data {odd}")
    nbformat.write(new_notebook(cells=cells), notebook)
    data.touch()
    line = ["run", str(notebook), "-p", "data", f"./{data}", f"--outputs={outputs}", "--quiet", f"--gather=g {odd}"]
    assert main(line) == 0, capsys.readouterr().err
    assert len(list(outputs.glob("*/*/there"))) == 1 and (Path(f"g {odd}") / "run.html").is_file()
    assert main(line) == 0 and "finished before" in capsys.readouterr().out
    assert main(["runs", f"--outputs={outputs}"]) == 0 and odd in capsys.readouterr().out
    assert main(["run", str(notebook), f"--outputs={TOO_LONG}", "--quiet"]) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err
