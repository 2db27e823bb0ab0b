"""`qgcam tricd`: numbers equal to the library's, exit codes, messages that name the record, for people and machines."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from qgcam_lib.cli.main import main
from qgcam_lib.cli.tricd import find_annotations
from qgcam_lib.data.tricd.pairs import SUBSETS, load_tricd, tricd_content
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.prediction_files import write_predictions
from qgcam_lib.phrase_detection.synthetic import synthetic_predictions, synthetic_tricd

ROOT = Path(__file__).parents[1]
REAL = ROOT / ".." / "shared" / "realdata" / "tricd"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no real TRICD files (../shared/realdata/tricd)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tricd")
    data = synthetic_tricd(8, 2, subsets=SUBSETS[:2])
    (folder / "a.json").write_text(json.dumps(tricd_content(data)))
    write_predictions(folder / "p.json", synthetic_predictions(data, 2))
    images = [{"image_id": pair.id, "question": f"is there {pair.caption}", "question_id": pair.id,
               "file_name": pair.file_name} for pair in data.pairs]
    answers = [{"image_id": pair.id, "source": pair.source, "answer_type": "yes/no", "answer": int(pair.positive),
                "answer_id": pair.id, "coco_type": {"coco_obj": "object", "coco_rel": "relation"}[pair.subset]}
               for pair in data.pairs]
    (folder / "vqa.json").write_text(json.dumps({"questions": images, "annotations": answers}))
    (folder / "said.json").write_text(json.dumps({pair.id: "yes" if pair.id % 3 else "No." for pair in data.pairs}))
    return folder


@pytest.fixture
def qgcam(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)

    def call(line):
        code = main(line.split())
        said = capsys.readouterr()
        return code, said.out, said.err
    return call


def test_json_is_what_evaluate_gives(folder, qgcam):
    code, out, err = qgcam("tricd evaluate p.json --annotations a.json --bootstrap 20 --subsets-90 10 --recall-at 1,3 "
                           "--json")
    said = json.loads(out)
    assert code == 0 and err == "" and said["form"] == "tricd" and said["pairs"] == 32 and said["groups"] == 8
    data = load_tricd(folder / "a.json")
    table = evaluate(data, json.loads((folder / "p.json").read_text()), (1, 3), 20, n_subsets=10)
    frame = pd.DataFrame(said["scores"])
    assert frame[["metric", "subset"]].equals(table[["metric", "subset"]])
    for name in ("value", "ci_low", "ci_high", "sd_90", "bootstrap_sd"):
        pd.testing.assert_series_equal(frame[name].astype(float), table[name].astype(float), atol=1e-12)
    assert set(frame[frame.value.isna()].subset) == {"winoground"}


def test_the_table_for_people(qgcam):
    code, out, err = qgcam("tricd evaluate p.json --annotations a.json --bootstrap 20 --metrics AP,group_recall "
                           "--subset all,coco_obj")
    lines = out.splitlines()
    assert code == 0 and err == ""
    assert lines[0].split() == ["metric", "subset", "value", "95%", "interval", "n", "groups", "notes"]
    assert [line.split()[0] for line in lines[1:6]] == ["AP", "AP50", "AP75", "group_recall@1", "group_recall@5"]
    assert {line.split()[1] for line in lines[1:11]} == {"all", "coco_obj"} and " to " in lines[1]
    assert "32 pairs in 8 groups of a.json" in out and "from p.json (form tricd)" in out and "20 bootstrap" in out
    code, out, _ = qgcam("tricd evaluate predictions:p.json --annotations a.json --bootstrap 0")
    assert code == 0 and "interval" not in out and "none of winoground" in out and "nan" not in out.lower()
    code, out, _ = qgcam("tricd evaluate p.json --annotations a.json --bootstrap 0 --subsets-90 5 --metrics AP")
    assert code == 0 and "sd of 90 %" in out


@pytest.mark.parametrize("name", ["s.csv", "s.parquet", "s.json"])
def test_scores_are_written(folder, qgcam, name):
    assert qgcam(f"tricd evaluate p.json --annotations a.json --bootstrap 0 --metrics AP --out {name}")[0] == 0
    read = {"csv": pd.read_csv, "parquet": pd.read_parquet, "json": pd.read_json}[name.split(".")[1]]
    assert len(read(folder / name)) == 12
    assert not list(folder.glob(".s*"))


def test_other_forms_with_their_options(folder, qgcam):
    data = load_tricd(folder / "a.json")
    texts = sorted({phrase.text for phrase in data.phrases})
    records = [{"image_id": pair.file_name, "category_id": texts.index(phrase.text), "score": 0.5,
                "bbox": [0, 0, 50, 50]} for pair in data.pairs for phrase in pair.phrases]
    (folder / "detic.json").write_text(json.dumps([*records, {**records[0], "image_id": "other.jpg"}]))
    (folder / "words.txt").write_text("\n".join(texts))
    (folder / "words.json").write_text(json.dumps(texts))
    said = [qgcam(f"tricd evaluate detic.json --annotations a.json --images file --phrases {words} --bootstrap 0")
            for words in ("words.txt", "words.json")]
    assert said[0] == said[1] and said[0][0] == 0
    assert "1 boxes left out: of pictures that the annotations do not have" in said[0][1]


BROKEN = {"nan": lambda p: p["3"]["scores"].__setitem__(0, float("nan")), "text": lambda p: p["3"].update(scores="x"),
          "box": lambda p: p["3"]["boxes"].__setitem__(0, [9, 9, 0, 0]),
          "phrase": lambda p: p["3"]["phrase_ids"].__setitem__(0, 10**6), "short": lambda p: p["3"]["scores"].pop(),
          "image": lambda p: p.update({"3000": p["3"]})}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_record_at_fault_is_named(folder, qgcam, fault):
    predictions = json.loads((folder / "p.json").read_text())
    BROKEN[fault](predictions)
    (folder / "broken.json").write_text(json.dumps(predictions))
    code, out, err = qgcam("tricd evaluate broken.json --annotations a.json")
    assert code == 1 and out == "" and err.count("\n") == 1
    assert err.startswith("qgcam: ") and "broken.json" in err and "image 3" in err


@pytest.mark.parametrize(("name", "content", "words"), [
    ("cut.json", '{"1": {"sco', ["cut.json", "JSON"]), ("list.json", "[3]", ["list.json", "no known form"]),
    ("glip.pth", "nothing", ["glip.pth", "torch"])])
def test_a_file_at_fault_is_named(folder, qgcam, name, content, words):
    (folder / name).write_text(content)
    code, out, err = qgcam(f"tricd evaluate {name} --annotations a.json")
    assert code == 1 and out == "" and all(word in err for word in words)


def test_annotations_at_fault_are_named(folder, qgcam):
    content = json.loads((folder / "a.json").read_text())
    content["annotations"][4]["bbox"] = [1, 2, -3, 4]
    (folder / "a_broken.json").write_text(json.dumps(content))
    for line in ("evaluate p.json --annotations a_broken.json", "check a_broken.json"):
        code, out, err = qgcam(f"tricd {line}")
        assert code == 1 and out == "" and "a_broken.json" in err and "annotation 5" in err


@pytest.mark.parametrize(("line", "words"), [
    ("evaluate", "PREDICTIONS|predictions"), ("evaluate p.json --annotations no.json", "no.json: no such file"),
    ("evaluate no.json --annotations a.json", "no.json: no such file"),
    ("evaluate p.json --annotations a.json --recall-at 0", "recall-at"),
    ("evaluate p.json --annotations a.json --recall-at 1,1", "--recall-at: expected"),
    ("evaluate p.json --annotations a.json --recall-at one", "such as 1,5"),
    ("evaluate p.json --annotations a.json --metrics mAP", "mAP"),
    ("evaluate p.json --annotations a.json --subset coco", "coco"),
    ("evaluate p.json --annotations a.json --bootstrap -1", "--bootstrap: expected"),
    ("evaluate p.json --annotations a.json --bootstrap many", "bootstrap"),
    ("evaluate p.json --annotations a.json --ties luck", "luck"),
    ("evaluate p.json --annotations a.json --images name", "--images name"),
    ("evaluate p.json --annotations a.json --phrases words", "--phrases words"),
    ("evaluate p.json --annotations a.json --bootstrap 0 --out scores.xls", "scores.xls"),
    ("check no.json", "no.json: no such file"), ("check --official nowhere", "path 'nowhere' does not exist"),
    ("check --predictions p.json", "annotations"), ("questions no.json --questions vqa.json", "no.json: no such file"),
    ("questions said.json --questions vqa.json --missing maybe", "--missing maybe"), ("score p.json", "score"),
])
def test_called_wrongly(qgcam, line, words):
    code, out, err = qgcam(f"tricd {line}")
    assert code == 2 and any(word in err for word in words.split("|")), err


# --- where the annotations are ---------------------------------------------------------------------------------------

def test_annotations_are_looked_for_under_the_data_root(tmp_path):
    with pytest.raises(FileNotFoundError, match="_grounding_test.json and TRICD_grounding_val.json in .*raw/tricd"):
        find_annotations(root=tmp_path)
    inside = tmp_path / "raw" / "tricd" / "grounding" / "annotations"
    inside.mkdir(parents=True)
    val = inside / "TRICD_grounding_val.json"
    val.write_text("{}")
    assert find_annotations(root=tmp_path) == find_annotations("val", root=tmp_path) == val
    with pytest.raises(FileNotFoundError, match="TRICD_grounding_test.json in"):
        find_annotations("test", root=tmp_path)
    (tmp_path / "raw" / "tricd" / "TRICD_grounding_val.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="several files"):
        find_annotations("val", root=tmp_path)


def test_the_found_file_is_said(folder):
    """In a process of its own, since settings are read once."""
    place = folder / "root" / "raw" / "tricd"
    place.mkdir(parents=True, exist_ok=True)
    (place / "TRICD_grounding_val.json").write_text((folder / "a.json").read_text())
    start = "import sys; from qgcam_lib.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", start, "tricd", "evaluate", "p.json", "--bootstrap", "0", "--metrics", "AP"]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder), "QGCAM_DATA_ROOT": str(folder / "root")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environ, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "root/raw/tricd/TRICD_grounding_val.json" in done.stdout
    environ["QGCAM_DATA_ROOT"] = str(folder / "empty")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environ, check=False, timeout=300)
    assert done.returncode == 2 and "looked for TRICD_grounding_test.json" in done.stderr


def test_a_folder_or_a_name_is_enough(folder, qgcam):
    place = folder / "world"
    place.mkdir()
    (place / "TRICD_grounding_val.json").write_text((folder / "a.json").read_text())
    code, out, _ = qgcam("tricd evaluate p.json --annotations world --bootstrap 0 --metrics AP")
    assert code == 0 and "of world/TRICD_grounding_val.json" in out
    assert qgcam("tricd check world --predictions p.json")[0] == 0
    code, out, err = qgcam("tricd evaluate p.json --annotations world --split test")
    assert code == 1 and "no annotations of the split 'test'" in err
    code, out, err = qgcam("tricd questions said.json --questions world")
    assert code == 2 and "TRICD_VQA_val.json" in err
    (place / "TRICD_VQA_val.json").write_text((folder / "vqa.json").read_text())
    assert qgcam("tricd questions said.json --questions world --bootstrap 0")[0] == 0


# --- questions and checks --------------------------------------------------------------------------------------------

def test_questions(folder, qgcam):
    code, out, err = qgcam("tricd questions said.json --questions vqa.json --annotations a.json --bootstrap 20")
    assert code == 0 and err == "" and "macro_f1" in out and "95% interval" in out and "n_unparsable" in out
    code, out, _ = qgcam("tricd questions said.json --questions vqa.json --bootstrap 0 --json")
    rows = pd.DataFrame(json.loads(out)["scores"]).set_index(["metric", "subset"]).value
    said = json.loads((folder / "said.json").read_text())
    truth = {pair.id: pair.positive for pair in load_tricd(folder / "a.json").pairs}
    assert code == 0 and rows["accuracy", "all"] == pytest.approx(
        sum((said[str(id)] == "yes") == true for id, true in truth.items()) / len(truth))


@pytest.mark.parametrize(("answers", "word"), [('{"1": "yes"}', "none"), ('{"99999": "yes"}', "99999"), ("{", "JSON"),
                                               ("3", "answers.json"), ('{"1": [2]}', "1")])
def test_answers_at_fault(folder, qgcam, answers, word):
    (folder / "answers.json").write_text(answers)
    code, out, err = qgcam("tricd questions answers.json --questions vqa.json")
    assert code == 1 and out == "" and word in err and "answers.json" in err


def test_check(qgcam):
    code, out, err = qgcam("tricd check a.json --predictions p.json")
    assert code == 0 and err == "" and "9 passed, 0 failed, 2 not run" in out
    code, out, _ = qgcam("tricd check --json")
    rows = json.loads(out)
    assert code == 0 and {row["ok"] for row in rows} == {True, None} and rows[0]["check"] == "perfect"


def test_a_failed_check_is_exit_code_1(folder, qgcam):
    (folder / "wrong.json").write_text('{"AP": {"all": 0.123}}')
    code, out, _ = qgcam("tricd check a.json --predictions p.json --expected wrong.json")
    assert code == 1 and "FAILED given numbers" in out and "1 failed" in out


def test_help_names_the_commands(qgcam):
    code, out, _ = qgcam("tricd --help")
    assert code == 0 and all(name in out for name in ("evaluate", "questions", "check"))


@needs_real
def test_the_authors_numbers_from_the_command_line(qgcam, folder):
    real = REAL.resolve()
    code, out, _ = qgcam(f"tricd evaluate {real}/synthetic_predictions_seed0.json --annotations "
                         f"{real}/TRICD_grounding_val.json --metrics AP --bootstrap 0 --json")
    rows = {row["subset"]: row["value"] for row in json.loads(out)["scores"] if row["metric"] == "AP"}
    assert code == 0
    assert [round(rows[name], 6) for name in ("all", "coco_obj", "coco_rel")] == [0.302640, 0.359228, 0.287748]
