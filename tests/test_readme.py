"""The README tells what is there: its numbers come from a run, its code runs, its links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest
from PIL import Image

from qgcam_lib.data.probes.files import write_groups
from qgcam_lib.data.probes.groups import RelCompGroup
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
    if first_run.FOLDER.is_dir():
        assert shown == first_run.stored_block()
        assert "miniworld" in shown and (first_run.FOLDER / "panels.png").stat().st_size < 600_000
    else:
        assert shown == f"{begin}\n{end}"  # no run, no picture, no number


def example(word):
    """The one Python example in which a word stands."""
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", README, flags=re.S) if word in code]
    return code


def test_python_example_of_fine_tuning_runs_and_gives_a_matcher(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    colours, groups = ["red", "blue", "green", "white"], []
    for colour, other in zip(colours, colours[1:] + colours[:1]):
        Image.new("RGB", (32, 32), colour).save(tmp_path / "images" / f"{colour}.png")
        texts = (f"The {one} box." for one in (colour, colour, other))
        groups.append(RelCompGroup(colour, f"{colour}.png", *texts, "composition"))
    write_groups(groups, tmp_path / "relcomp_train.json")
    names = {}
    exec(compile(example("finetune_relcomp"), "README.md", "exec"), names)
    scores = names["patched"].score(sorted((tmp_path / "images").iterdir()), ["a red box"])
    assert scores.shape == (4, 1) and names["tuned"].step == 10 and (tmp_path / "training" / "checkpoint.pt").is_file()
    assert not scores.equal(names["clip"].score(sorted((tmp_path / "images").iterdir()), ["a red box"]))


def test_python_example_runs_and_gives_one_row_a_map():
    code, names = example("score_maps"), {}
    exec(compile(code, "README.md", "exec"), names)
    assert len(names["scores"]) == 2 and names["scores"].loc[0, "io_ratio"] > 0


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
