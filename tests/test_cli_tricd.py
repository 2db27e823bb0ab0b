"""`qgcam tricd`: numbers equal to the library's, exit codes, messages that name the record, for people and machines."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from qgcam_lib.cli.main import main
from qgcam_lib.data.tricd.pairs import SUBSETS, load_tricd, tricd_content
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.prediction_files import synthetic_predictions, synthetic_tricd, write_predictions

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tricd")
    data = synthetic_tricd(8, 2, subsets=SUBSETS[:2])
    (folder / "a.json").write_text(json.dumps(tricd_content(data)))
    write_predictions(folder / "p.json", synthetic_predictions(data, 2))
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
    code, out, err = qgcam("tricd evaluate p.json a.json --bootstrap 20 --subsets-90 10 --recall-at 1,3 "
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


def test_other_forms_with_their_options(folder, qgcam):
    data = load_tricd(folder / "a.json")
    texts = sorted({phrase.text for phrase in data.phrases})
    records = [{"image_id": pair.file_name, "category_id": texts.index(phrase.text), "score": 0.5,
                "bbox": [0, 0, 50, 50]} for pair in data.pairs for phrase in pair.phrases]
    (folder / "detic.json").write_text(json.dumps([*records, {**records[0], "image_id": "other.jpg"}]))
    (folder / "words.txt").write_text("\n".join(texts))
    code, out, _ = qgcam("tricd evaluate detic.json a.json --image-ids file --phrases words.txt "
                         "--bootstrap 0")
    assert code == 0 and "1 boxes left out" in out


def test_a_record_at_fault_is_named(folder, qgcam):
    predictions = json.loads((folder / "p.json").read_text())
    predictions["3"]["scores"][0] = float("nan")
    (folder / "broken.json").write_text(json.dumps(predictions))
    code, out, err = qgcam("tricd evaluate broken.json a.json")
    assert code == 1 and out == "" and err.count("\n") == 1
    assert err.startswith("qgcam: ") and "broken.json" in err and "image 3" in err


@pytest.mark.parametrize(("name", "content"), [("cut.json", '{"1": {"sco'), ("list.json", "[3]"), ("glip.pth", "no")])
def test_a_file_at_fault_is_named(folder, qgcam, name, content):
    (folder / name).write_text(content)
    code, out, err = qgcam(f"tricd evaluate {name} a.json")
    assert code == 1 and out == "" and name in err


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
    assert done.returncode == 2 and "qgcam data fetch tricd" in done.stderr


def test_check(folder, qgcam):
    assert qgcam("tricd check a.json --predictions p.json")[0] == 0
    (folder / "wrong.json").write_text('{"AP": {"all": 0.123}}')
    assert qgcam("tricd check a.json --predictions p.json --expected wrong.json")[0] == 1
    code, out, _ = qgcam("tricd check --json")
    rows = json.loads(out)
    assert code == 0 and {row["ok"] for row in rows} == {True} and rows[0]["check"] == "perfect"
