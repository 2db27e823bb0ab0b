"""Paths with every kind of letter, over commands that write: the file has that name, or a line refuses it."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from qgcam_lib.cli.main import main

NAMES = {
    "spaces": "two  words ", "unicode": "ünï 图 ✓", "percent": "100%d %s %20", "dash": "-p", "dashes": "--out",
    "colon": "a:b", "quotes": "it's \"so\"", "shell": "$HOME;`x`|&<>#*?[x]\\", "braces": "{name}", "equals": "a=b",
    "line": "new\nline", "tilde": "~", "dots": "...", "marks": "x\u202egnp", "long": "x" * 247,
    "no UTF-8": os.fsdecode(b"\xff\xfe"),
}  # fmt: skip
@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with what the commands read; the names are given as they are, relative to it."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("QGCAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QGCAM_CACHE", str(tmp_path / "cache"))
    np.savez("maps.npz", **{"a": np.random.default_rng(0).random((6, 8)), "b": np.random.default_rng(1).random((6, 8))})
    Path("boxes.csv").write_text("id,x0,y0,x1,y1,height,width\na,5,6,40,50,60,80\nb,1,2,30,40,60,80\n")
    return tmp_path


def test_every_letter_of_a_name_is_kept(here, capsys):
    for name in NAMES.values():
        folder = Path(name)
        folder.mkdir(exist_ok=True)
        for out in (Path(f"{name}.csv"), folder / "s.csv"):
            assert main(["score", "maps.npz", "boxes.csv", f"--out={out}"]) == 0, (name, capsys.readouterr().err)
            assert out.is_file() and out.stat().st_size, name
    left = [path for path in here.rglob("*") if ".tmp" in path.name]
    assert not left and "Traceback" not in capsys.readouterr().err


def test_what_is_read_may_have_any_name(here, capsys):
    for name in NAMES.values():
        maps, boxes = Path(f"{name}.npz"), Path(f"{name}.csv")
        maps.write_bytes(Path("maps.npz").read_bytes())
        boxes.write_bytes(Path("boxes.csv").read_bytes())
        assert main(["score", "--json", "--", str(maps), str(boxes)]) == 0, (name, capsys.readouterr().err)
        json.loads(capsys.readouterr().out)
