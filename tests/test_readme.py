"""The README tells what is there: its numbers come from a run, its code runs, its links lead somewhere."""

import importlib.util
import os
import re
import shlex
import shutil
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


def test_the_list_of_what_is_not_run_has_no_dead_entry():
    """Only what installs, fetches, trains or serves; an entry that no command needs is an error."""
    used = {why_not(command)[1] for command in [c for block in SHELL for c in block.commands] + blocks.spoken()}
    assert set(blocks.NOT_RUN) <= used
    assert all(re.match("installs|fetches|trains|serves", why) for why in blocks.NOT_RUN.values())
    for part in blocks.SMALLER:
        assert any(part in command for block in SHELL for command in block.commands), part
    assert set(blocks.FILES) <= {block.heading for block in PYTHON + SHELL}


def test_one_way_of_calling_and_no_other_language():
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"\.venv/bin/(?!activate)|python -m qgcam_lib.cli", text), name
        fences = set(re.findall(r"^```(\w+)$", text, flags=re.M))
        assert fences <= {"python", "bash", "text", "toml"}, fences


@pytest.mark.parametrize("command", blocks.spoken())
def test_commands_of_the_running_text_exist(command, capsys):
    """`qgcam …`: such a command and such options; `make …`: such a target; others: such a program."""
    words = shlex.split(command)
    if words[0] == "qgcam":
        known = [word for word in words[1:] if re.fullmatch(r"[a-z][a-z-]*", word)]
        assert main([*known, "--help"]) == 0, command
        shown = capsys.readouterr().out
        assert all(option.split("=")[0] in shown for option in words if option.startswith("--")), command
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M), command
    else:
        beside = Path(sys.executable).parent / words[0]
        assert beside.exists() or (ROOT / words[0]).exists() or shutil.which(words[0]), command


def test_every_link_leads_to_a_file():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_metric_table_names_every_score_and_its_better_side():
    from qgcam_lib.metrics import METRICS
    from qgcam_lib.papers.q_groundcam.splits import SCORES

    rows = re.findall(r"^\| (`[a-z_`, ]+) \|.*\| (\w+) \|$", README, flags=re.M)
    shown = {name: better for names, better in rows for name in re.findall(r"`(\w+)`", names)}
    assert shown == {name: "higher" if METRICS[name].higher_is_better else "lower" for name in SCORES}


def test_commands_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in re.findall(r"^make (\w+)", README, flags=re.M):
        assert re.search(rf"^{command}:", makefile, flags=re.M), command
    for notebook in re.findall(r"qgcam run (\S+)", README):
        assert (ROOT / notebook).exists()
    given = set(re.findall(r"-p (\w+) ", README))
    from qgcam_lib.runs.parameters import read_parameters

    assert given <= set(read_parameters(Path(ROOT / "nbs/papers/q_groundcam.ipynb")))


def test_the_table_of_models_is_what_the_registry_says():
    spec = importlib.util.spec_from_file_location("model_table", ROOT / "docs" / "model_table.py")
    model_table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model_table)
    assert model_table.block() in README, "Write it again: python docs/model_table.py"
