"""The README tells what is there: its numbers come from a run, its code runs, its links lead somewhere."""

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from readme import blocks

from qgcam_lib.cli.main import main
from qgcam_lib.settings import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def first_run():
    spec = importlib.util.spec_from_file_location("first_run", ROOT / "docs" / "first_run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_numbers_come_from_the_stored_run(first_run):
    begin, end = first_run.MARKERS
    shown = README[README.index(begin):README.index(end) + len(end)]
    assert shown == first_run.stored_block()
    assert "miniworld" in shown and (first_run.FOLDER / "panels.png").stat().st_size < 600_000


# --- every block and command runs, or is listed with the reason why not ----------------------------------------------

PYTHON = [block for block in blocks.blocks() if block.language == "python"]
SHELL = [block for block in blocks.blocks() if block.language == "bash"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of a reader, with results and settings of its own."""
    monkeypatch.chdir(tmp_path)
    own = {name: str(tmp_path / ".own" / name) for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR",
                                                            "JUPYTER_DATA_DIR", "QGCAM_CACHE")}
    for name, value in {**own, "QGCAM_OUTPUTS": str(tmp_path / "out"), "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def why_not(command):
    """The reason why a command is not run, and the entry that says so; (None, None) for one that is."""
    return next(((why, start) for start, why in blocks.NOT_RUN.items() if command.startswith(start)), (None, None))


def prepare(block, place):
    if block.heading in blocks.FILES:
        blocks.FILES[block.heading](place)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.heading)
def test_python_block_runs(block, place, capsys):
    prepare(block, place)
    names = {"__name__": "reader"}
    exec(compile(block.text, block.file, "exec"), names)
    if "score_maps" in block.text:
        assert len(names["scores"]) == 2 and names["scores"].loc[0, "io_ratio"] > 0
        assert "io_ratio" in capsys.readouterr().out
    if "class Contrast" in block.text:
        assert len(names["frame"]) == 20 and names["frame"]["io_ratio"].gt(0).all()
        assert names["frame"].attrs["model"] == {"name": "contrast"}
    if "finetune_relcomp" in block.text:
        pictures = sorted((place / "images").iterdir())
        scores = names["patched"].score(pictures, ["a red box"])
        assert scores.shape == (4, 1) and names["tuned"].step == 10 and (place / "training" / "checkpoint.pt").is_file()
        assert not scores.equal(names["clip"].score(pictures, ["a red box"]))


def long(block):
    return pytest.mark.nightly if "qgcam run" in block.text else ()  # make reproduce runs notebooks on every push


@pytest.mark.parametrize("block", [pytest.param(block, id=f"{block.heading}: {block.commands[0][:30]}",
                                                marks=long(block)) for block in SHELL])
def test_commands_run(block, place, capsys):
    """Commands of qgcam in this process, others in one of their own. `--help` and a finished command give code 0."""
    commands = [command for command in block.commands if why_not(command)[0] is None]
    if commands:
        prepare(block, place)
    for command in commands:
        for part, instead in blocks.SMALLER.items():
            command = command.replace(part, instead)
        if command.startswith("qgcam ") and not command.startswith("qgcam run"):
            assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
            assert capsys.readouterr().out, command
        else:
            done = subprocess.run(["bash", "-ec", command], capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr


def test_the_table_of_models_is_what_the_registry_says():
    spec = importlib.util.spec_from_file_location("model_table", ROOT / "docs" / "model_table.py")
    model_table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model_table)
    assert model_table.block() in README, "Write it again: python docs/model_table.py"
