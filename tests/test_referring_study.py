"""The study of remedies: its arms, what they share and leave, resuming, and the check of the first rows."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from qgcam_lib.data.referring.files import refcocog
from qgcam_lib.errors import FileFault
from qgcam_lib.finetune.referring import study as module
from qgcam_lib.finetune.referring.minis import expressions_folder
from qgcam_lib.finetune.referring.study import ARMS, KINDS, arm_recipe, first_pictures, first_rows, load_study, run_arm


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def data(place):
    return load_study(place / "w", place / "features", images=20, pictures=12, progress=False)


@pytest.fixture(scope="module")
def arms(place, data):
    """The folder of a study of five arms with ten steps each."""
    for name in ("plain", "max-0.2-at-once", "questions-rel", "mtl-rel-1", "tl-rel"):
        run_arm(name, data, place / "out", place / "work", steps=10, progress=False)
    return place / "out"


def test_no_test_picture_is_learned_from(data, place):
    folder = expressions_folder(place / "w", 20, progress=False)
    test = {one.group for one in refcocog(folder, "test")}
    first = list(dict.fromkeys(one.group for one in refcocog(folder, "train")))[:12]
    assert set(data.learned.pictures) <= set(first) and len(data.train.regions.first) - 1 == 12
    assert {one.group for one in first_pictures(refcocog(folder, "train"), 12)} == set(first)
    assert not set(data.asked["dev"].pictures) & test and set(data.asked["test"].pictures) <= test
    assert {one.group for said, _ in data.judged[1:] for one in said} <= test


def test_kinds_part_the_questions(data):
    parts = {kind: data.of_kind(data.learned, kind) for kind in KINDS}
    parted = sorted([*parts["rel"].names, *parts["other"].names])
    assert parted == sorted(data.learned.names) == sorted(parts["all"].names)
    assert {data.types[name] for name in parts["rel"].names} == {"rel"}
    row = len(parts["rel"]) // 2
    whole = data.learned.names.index(parts["rel"].names[row])
    for name in ("of", "lengths", "place"):
        assert getattr(parts["rel"], name)[row] == getattr(data.learned, name)[whole]
    np.testing.assert_array_equal(parts["rel"].ids[row], data.learned.ids[whole])


def test_an_arm_leaves_choices_that_are_its_models(arms, data, place):
    frame = pd.read_parquet(arms / "max-0.2-at-once" / "choices.parquet")
    told = json.loads((arms / "max-0.2-at-once" / "arm.json").read_text())
    again = module.train_arm("max-0.2-at-once", data, place / "work", steps=10, progress=False)
    assert again.step == 10 and told["dev_accuracy"] == [round(x, 5) for x in again.looks]
    for split, arrays in (("dev", data.dev), (None, data.judged[1][1])):
        part = frame[frame.split == split] if split else frame[frame.split != "dev"]
        assert len(part) == len(arrays) and part.correct.mean() == pytest.approx(again.accuracy(arrays))
    assert set(frame.split) == {"dev", "easy", "hard", "adv"} and frame.correct.notna().all()
    assert told["recipe"]["loss"] == "max" and told["first_weights"] == json.loads(
        (arms / "plain" / "arm.json").read_text())["first_weights"]


def test_answers_are_kept_where_questions_were_learned(arms, data):
    assert not (arms / "plain" / "answers.parquet").exists() and not (arms / "tl-rel" / "answers.parquet").exists()
    assert not (arms / "questions-rel" / "choices.parquet").exists()
    for name in ("questions-rel", "mtl-rel-1"):
        found = pd.read_parquet(arms / name / "answers.parquet")
        assert len(found) == sum(map(len, data.asked.values())) and set(found.split) == {"dev", "test"}
        assert (found.semantic == found.id.map(data.types)).all() and not (found.correct & ~found.known).any()


def test_a_transfer_begins_with_the_layers_that_learned_questions(arms, data, place):
    first = module.train_arm("questions-rel", data, place / "work", steps=10, progress=False)
    second = module.train_ranker(module.multitask.transfer(data.network, first.model), data.train, data.dev,
                                 recipe=arm_recipe("tl-rel", 10), progress=False)
    third = module.train_arm("tl-rel", data, place / "work", steps=10, progress=False)
    assert torch.equal(second.model.words.weight, third.model.words.weight)
    assert not torch.equal(second.model.words.weight, module.train_arm("plain", data, place / "work", steps=10,
                                                                       progress=False).model.words.weight)


def test_a_killed_arm_goes_on_to_the_same_log(arms, data, place):
    module.train_arm("plain", data, place / "killed", steps=10, progress=False, stop_at=4)
    folder = run_arm("plain", data, place / "again", place / "killed", steps=10, progress=False)
    for name in ("log.csv", "choices.parquet"):
        read = pd.read_csv if name.endswith("csv") else pd.read_parquet
        one, other = (read(where / name).drop(columns="seconds", errors="ignore") for where in (folder, arms / "plain"))
        pd.testing.assert_frame_equal(one, other)


def test_the_first_rows_are_those_of_the_same_code(arms, place, data):
    found = first_rows(arms, "max-0.2-at-once", 1, root=place / "w", cache=place / "features", progress=False)
    assert found.same.all() and set(found.loss) == {"total", "plain", "hinge"}
    assert found.now.iloc[0] == pytest.approx(found.now.iloc[1:3].sum(), rel=1e-6)  # total = plain + hinge


def test_a_study_of_other_code_or_data_is_found_out(arms, place, tmp_path):
    file = arms / "plain" / "arm.json"
    told = json.loads(file.read_text())
    for change, fault in (({"recipe": {**told["recipe"], "learning_rate": 1.0}}, None), ({"data": {**told["data"],
                          "train": "0" * 64}}, "other expressions")):
        folder = tmp_path / str(bool(fault)) / "plain"
        folder.mkdir(parents=True)
        (folder / "arm.json").write_text(json.dumps(told | change))
        (folder / "log.csv").write_bytes((arms / "plain" / "log.csv").read_bytes())
        (folder.parent / "vocabulary.txt").write_bytes((arms / "vocabulary.txt").read_bytes())
        if fault:
            with pytest.raises(FileFault, match=fault):
                first_rows(folder.parent, "plain", 1, root=place / "w", progress=False)
        else:
            assert not first_rows(folder.parent, "plain", 1, root=place / "w", progress=False).same.all()


def test_the_command_runs_what_is_missing_and_nothing_else(arms, data, place, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "load_study", lambda *args, **options: replace(data, seed=options["seed"]))
    monkeypatch.setattr(module, "run_arm", lambda name, *args, **options: asked.append((name, options["steps"])))
    module.main(["--missing", "--out", str(arms), "--work", str(place / "work"), "--steps", "10"])
    assert [name for name, _ in asked] == [name for name in ARMS if not (arms / name).is_dir()]
    assert {steps for _, steps in asked} == {10}
    with pytest.raises(SystemExit):
        module.main(["--arm", "sum"])
