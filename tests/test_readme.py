"""README and the guide are true: their numbers come from a run, their code runs, their links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from readme import blocks

from qgcam_lib.cli.main import main
from qgcam_lib.settings import ROOT

sys.path.insert(0, str(ROOT / "docs"))

import first_run
import page_tables

PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{name}.md" for name in ("guide", "status", "models", "data_sets")))


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("script, page", [(one, page) for one in (first_run, page_tables) for page in one.BLOCKS])
def test_the_text_between_markers_is_what_its_script_writes(script, page):
    name, write = script.BLOCKS[page]
    assert page_tables.replaced(read(page), name, write()) == read(page), f"Write it: python docs/{script.__name__}.py"


def test_readme_is_short_and_says_what_its_numbers_are():
    assert read("README.md").count("\n") <= 120 and read("CONTRIBUTING.md").count("\n") <= 200
    assert "miniworld" in first_run.picture() and (first_run.FOLDER / "panels.png").stat().st_size < 600_000


def anchors(page):
    """The addresses of a page's headings, as the pages and the usual hosts write them."""
    titles = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", read(page)))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for address in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        file, _, anchor = address.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert "://" in address or target.exists(), address
        assert "://" in address or not anchor or anchor in anchors(target.resolve().relative_to(ROOT)), address


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
    return pytest.mark.nightly if "qgcam run" in block.text else ()  # other-processor runs one on every push


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
