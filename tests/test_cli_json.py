"""Every command with --json prints JSON, and a wrong value is refused by its option."""

import json

import nbformat
import numpy as np
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from readme import blocks

from qgcam_lib.cli.main import main
from qgcam_lib.data.tricd.pairs import tricd_content
from qgcam_lib.miniworld import ensure_coco
from qgcam_lib.phrase_detection.prediction_files import synthetic_tricd
from qgcam_lib.runs.record import register_output, write_run
from qgcam_lib.storage.rows import RecordStore

CELL = """from qgcam_lib.runs import open_run
import pandas as pd
run = open_run("n", globals())
run.save_table(pd.DataFrame({"metric": ["io_ratio"], "value": [limit / 10]}), "score_table", "A score.")
run.record(n=limit)"""


class _Left:
    """A ranker that likes boxes on the left, and a matcher that is not asked."""

    card = {"name": "left"}

    def rank(self, image, boxes, expression):
        return -np.asarray(boxes)[:, 0]

    def score(self, images, texts):
        raise AssertionError("nobody asks")


# ---- places where the commands have something to do -----------------------------------------------------------------


def tricd(folder):
    blocks.own_detections(folder)
    data = synthetic_tricd(4, 2)
    asked = [{"image_id": pair.id, "question": pair.caption, "question_id": pair.id, "file_name": pair.file_name}
             for pair in data.pairs]
    answers = [{"image_id": pair.id, "source": pair.source, "answer_type": "yes/no", "answer": int(pair.positive),
                "answer_id": pair.id, "coco_type": "object"} for pair in data.pairs]
    (folder / "vqa.json").write_text(json.dumps({"questions": asked, "annotations": answers}))
    (folder / "said.json").write_text(json.dumps({pair.id: "yes" for pair in data.pairs}))
    (folder / "grounding.json").write_text(json.dumps(tricd_content(data)))


def runs(folder):
    cells = [new_code_cell("limit: int = 4  # how many", metadata={"tags": ["parameters"]}), new_code_cell(CELL)]
    nbformat.write(new_notebook(cells=cells), folder / "small.ipynb")
    for run_id in ("aaaa", "bbbb"):
        place = folder / "two" / "q_groundcam" / run_id
        write_run(place, {"run_id": run_id, "notebook": "q_groundcam.ipynb", "status": "ok", "outputs": [], "data": [],
                          "started": run_id, "results": {}, "parameters": {"model": run_id, "split": "test"}})
        rows = pd.DataFrame({"id": list("abcdef"), "group": list("uuvvww"), "io_ratio": np.arange(6) / 9})
        register_output(place, RecordStore(place / "records" / "model").append(rows), "records")


def maps(folder):
    blocks.own_maps(folder)
    boxes = pd.read_csv(folder / "boxes.csv")
    boxes.assign(kind=["thing", "animal"]).to_csv(folder / "kinds.csv", index=False)


def data(folder):
    """A small COCO with a picture that is cut short."""
    ensure_coco(folder / "COCO", n_train=2, n_val=2, progress=False)
    sorted((folder / "COCO").rglob("*.jpg"))[0].write_bytes(b"cut")


PLACES = {"maps": maps, "tricd": tricd, "refer": blocks.expressions, "probe": blocks.probes, "runs": runs,
          "data": data}
TRICD = "predictions.json TRICD_grounding_val.json"
LINES = [  # place, command, the rest of the line, exit code
    ("maps", "score", "maps.safetensors boxes.csv", 0),
    ("maps", "score", "maps.safetensors kinds.csv --by kind --negatives relu", 0),
    ("tricd", "tricd evaluate", f"{TRICD} --bootstrap 5", 0),
    ("tricd", "tricd evaluate", f"{TRICD} --bootstrap 0 --subsets-90 3", 0),
    ("tricd", "tricd questions", "said.json vqa.json --annotations grounding.json --bootstrap 5", 0),
    ("tricd", "tricd check", "", 0),
    ("probe", "probe score", "scores.csv groups.json --bootstrap 5 --by category", 0),
    ("probe", "probe score", "winoground.csv --bootstrap 0", 0),
    ("probe", "probe run", "clip-rn50 groups.json FOLDER --weights random --quiet --bootstrap 5", 0),
    ("probe", "probe build composition", "COCO OUT -o tagger=hanta", 0),
    ("probe", "probe build background", "COCO OUT --part MR -o limit=1 -o fillers=black --quiet", 0),
    ("probe", "probe build relcomp", "x OUT --list-options", 0),
    ("refer", "refer score", "scores.csv adv_easy_hard_annotations.json --bootstrap 5", 0),
    ("refer", "refer score", "scores.csv adv_easy_hard_annotations.json --bootstrap 0 --by n_words,split", 0),
    ("refer", "refer run", "left refcocog_adv_annotations.json IMAGES --perturb swap_head --quiet", 0),
    ("refer", "refer run", "left refcocog_adv_annotations.json IMAGES --perturb shipped --quiet", 0),
    ("refer", "refer splits", "adv_easy_hard_annotations.json", 0),
    ("runs", "run", "small.ipynb --show", 0),
    ("runs", "run", "small.ipynb --outputs out --quiet", 0),
    ("runs", "runs", "--outputs out", 0),
    ("runs", "table", "--outputs out", 0),
    ("runs", "compare", "aaaa bbbb --outputs two --bootstrap 5", 0),
    ("maps", "models", "", 0),
    ("maps", "data list", "", 0),
    ("data", "data verify", "COCO", 1),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    made = {}

    def place(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            PLACES[name](made[name])
        return made[name]
    return place


@pytest.mark.parametrize("place,name,rest,code", LINES, ids=[f"{name} {rest[:30]}" for _, name, rest, _ in LINES])
def test_what_is_printed_is_json(place, name, rest, code, places, monkeypatch, capsys):
    monkeypatch.chdir(places(place))
    if name == "refer run":
        monkeypatch.setattr("qgcam_lib.models.named.load_source", lambda *a, **k: _Left())
    capsys.readouterr()
    assert main([*name.split(), *rest.split(), "--json"]) == code
    shown = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
    rows = shown if isinstance(shown, list) else shown.get("summary", shown.get("scores", [{}]))
    assert shown and all(isinstance(row, dict) for row in rows)


@pytest.mark.parametrize("place,line,option", [
    ("maps", "score maps.safetensors boxes.csv", "--tau=many"), ("maps", "score maps.safetensors boxes.csv", "--by=no"),
    ("tricd", f"tricd evaluate {TRICD}", "--metrics=no"), ("tricd", f"tricd evaluate {TRICD}", "--bootstrap=-7"),
    ("tricd", "tricd questions said.json vqa.json", "--missing=no"),
    ("probe", "probe score scores.csv groups.json", "--ties=no"),
    ("probe", "probe run clip-rn50 groups.json FOLDER --quiet", "--weights=no"),
    ("probe", "probe build background COCO OUT", "--part=no"), ("runs", "compare aaaa bbbb --outputs two", "--level=7"),
    ("probe", "probe build relation COCO OUT", "-o=spared=2"), ("runs", "compare aaaa zzzz", "--outputs=two"),
    ("tricd", "tricd evaluate predictions.json", "no.json"),
    ("refer", "refer score scores.csv adv_easy_hard_annotations.json", "--threshold=-7"),
    ("refer", "refer run no refcocog_adv_annotations.json IMAGES", "--quiet"),
    ("runs", "run small.ipynb --quiet", "--parameter=limit=many")])
def test_a_wrong_value_is_refused_by_its_option(place, line, option, places, monkeypatch, capsys):
    monkeypatch.chdir(places(place))
    assert main([*line.split(), option]) == 2
    said = capsys.readouterr().err
    name, _, value = option.partition("=")
    assert (name in said or value.rpartition("=")[2] in said) and "Traceback" not in said
