"""One model on every task: the numbers are the rooms' own, what a model cannot do is said, settings come from YAML."""

import json

import pandas as pd
import pytest
from readme import blocks

from qgcam_lib.cli.main import main
from qgcam_lib.data.records import GroundingExample
from qgcam_lib.errors import ExampleError
from qgcam_lib.grounding import ground
from qgcam_lib.probes import probe, summarize_probe
from qgcam_lib.referring import refer, summarize_choices
from qgcam_lib.statistics import summarize

MODULE = """def left(image, boxes, text):
    return -boxes[:, 0]

def right(image, boxes, text):
    return boxes[:, 0]

def letters(image, text):
    return len(text)
"""


def left(image, boxes, text):
    return -boxes[:, 0]


@pytest.fixture
def place(tmp_path, monkeypatch):
    blocks.expressions(tmp_path)
    (tmp_path / "of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_function_is_evaluated_as_its_room_does_it(place):
    line = "evaluate of_mine:left --tasks ref_adv,tricd --data ref_adv=world --out o --bootstrap 50 --quiet"
    assert main(line.split()) == 0
    frame = refer(left, "world/adv_easy_hard_annotations.json", "world/images", progress=False)
    pd.testing.assert_frame_equal(summarize(frame, n_bootstrap=50), summarize_choices(frame, n_bootstrap=50))
    rows = pd.read_csv("o/summary.csv").set_index("task")
    expected = summarize_choices(frame, n_bootstrap=50)
    assert rows.loc["ref_adv", "value"].tolist() == pytest.approx(expected["value"].tolist())
    assert rows.loc["ref_adv", "ci_low"].tolist() == pytest.approx(expected["ci_low"].tolist())
    assert rows.loc["tricd", "status"].startswith("not run") and set(rows.loc["ref_adv", "data"]) == {"miniworld"}
    record = json.loads((place / "o" / "evaluate.json").read_text())
    assert record["tasks"]["ref_adv"]["model"] == {"name": "of_mine:left"} and record["versions"]["qgcam_lib_sha256"]
    assert len(pd.read_csv("o/ref_adv.csv")) == len(frame)


@pytest.mark.parametrize("text, more, code", [
    ("tasks: [ref_adv]\ndata: {ref_adv: world}\n", "", 0), ("tasks: [ref_adv]\n", " --data ref_adv=nowhere", 1),
    ("taks: [ref_adv]\n", "", 2), ("tasks: [ref_adv\n", "", 1), ("tasks: tricd\n", "", 2),
])
def test_settings_come_from_a_file_and_what_is_typed_counts_more(place, text, more, code):
    (place / "s.yaml").write_text(text + "limit: 3\n")
    assert main(f"evaluate of_mine:left -f s.yaml --quiet --out o --limit 2{more}".split()) == code
    if not code:
        assert json.loads((place / "o" / "evaluate.json").read_text())["limit"] == 2


def test_run_commands_and_verbs_take_functions_and_paths(place):
    assert main("refer run of_mine:left refcocog_adv_annotations.json IMAGES --quiet".split()) == 0
    (place / "probe").mkdir()
    blocks.probes(place / "probe")
    assert main("probe run of_mine:letters probe/groups.json probe/FOLDER --quiet".split()) == 0
    frame = probe(lambda image, text: len(text), "probe/groups.json", "probe/FOLDER", progress=False)
    pd.testing.assert_frame_equal(summarize(frame, n_bootstrap=0), summarize_probe(frame, n_bootstrap=0))


def test_pictures_that_are_not_there_are_named_before_a_model_is_loaded(place, monkeypatch):
    monkeypatch.setattr("qgcam_lib.models.named.load_model", lambda *a, **k: pytest.fail("loaded"))
    example = GroundingExample("1", place / "gone.jpg", "a dog", [[3, 4, 30, 20]], "a", (40, 60))
    with pytest.raises(ExampleError, match="none of the 1 images exists.*gone.jpg"):
        ground("blip-base", [example], on_error="record")


def test_two_folders_are_compared_task_by_task(place, capsys):
    for name in ("left", "right"):
        assert main(f"evaluate of_mine:{name} --tasks ref_adv --data ref_adv=world --out {name} --quiet".split()) == 0
    capsys.readouterr()
    assert main("compare left right --json --bootstrap 50".split()) == 0
    shown = json.loads(capsys.readouterr().out)
    a, b = (pd.read_csv(f"{name}/ref_adv.csv") for name in ("left", "right"))
    assert {row["table"] for row in shown["scores"]} == {"ref_adv"}
    for row in shown["scores"]:
        mine, theirs = (one.loc[one["split"] == row["subset"], "correct"].mean() for one in (a, b))
        assert row["difference"] == pytest.approx(mine - theirs)
    assert main("compare left right --model-a nobody".split()) == 2
    assert "--model-a" in capsys.readouterr().err


def test_comparisons_of_one_group_are_told_apart(place):
    from qgcam_lib.cli.compare import compare_files

    rows = pd.DataFrame({"id": ["1", "1", "2", "2"], "group": list("aabb"), "comparison": ["x", "y"] * 2,
                         "correct": [1, 0, 1, 0]})
    rows.to_csv("a.csv", index=False)
    rows.assign(correct=[1, 1, 1, 0]).to_csv("b.csv", index=False)
    found = compare_files(place / "a.csv", place / "b.csv").set_index("subset")
    assert found["difference"].to_dict() == {"x": 0, "y": -0.5} and found["n"].tolist() == [2, 2]


def test_a_misspelt_model_is_one_error_with_the_nearest_name(place, capsys):
    assert main(["evaluate", "blip-bse"]) == 2
    shown = capsys.readouterr()
    assert not shown.out and "Did you mean 'blip-base'?" in shown.err and "not run" not in shown.err


def test_ties_of_a_probe_are_named_in_its_rows(place, capsys):
    (place / "flat.py").write_text("def flat(image, text):\n    return 0.0\n")
    assert main("evaluate flat:flat --tasks probe_relation --limit 4 --out o --bootstrap 0 --quiet".split()) == 0
    rows = pd.read_csv("o/summary.csv")
    assert rows.loc[rows["metric"] == "correct", "note"].str.contains("4 of the answers are ties").all()
