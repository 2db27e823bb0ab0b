"""`qgcam schema`: every command with --json has a schema, and prints what it says. Wrong values are refused by name."""

import copy
import json
import re
from functools import reduce
from operator import getitem

import nbformat
import numpy as np
import pandas as pd
import pydantic
import pytest
import typer.main
from nbformat.v4 import new_code_cell, new_notebook
from readme import blocks

from qgcam_lib.cli.main import app, main
from qgcam_lib.cli.schemas import SCHEMAS, checked, schema_of
from qgcam_lib.data.tricd.pairs import tricd_content
from qgcam_lib.miniworld import ensure_coco
from qgcam_lib.phrase_detection.synthetic import synthetic_tricd
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


def leaves(command, path=()):
    """(words, command) of every command of the line."""
    for name, one in getattr(command, "commands", {}).items():
        yield from leaves(one, (*path, name)) if getattr(one, "commands", None) else [(" ".join((*path, name)), one)]


COMMANDS = dict(leaves(typer.main.get_command(app)))

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
TRICD = "predictions.json --annotations TRICD_grounding_val.json"
LINES = [  # place, command, the rest of the line, exit code
    ("maps", "score", "maps.safetensors boxes.csv", 0),
    ("maps", "score", "maps.safetensors kinds.csv --by kind --negatives relu", 0),
    ("tricd", "tricd evaluate", f"{TRICD} --bootstrap 5", 0),
    ("tricd", "tricd evaluate", f"{TRICD} --bootstrap 0 --subsets-90 3", 0),
    ("tricd", "tricd questions", "said.json --questions vqa.json --annotations grounding.json --bootstrap 5", 0),
    ("tricd", "tricd check", "", 0),
    ("probe", "probe score", "scores.csv groups.json --bootstrap 5 --by category", 0),
    ("probe", "probe score", "winoground.csv --bootstrap 0", 0),
    ("probe", "probe run", "clip-rn50 groups.json --images FOLDER --weights random --quiet --bootstrap 5", 0),
    ("probe", "probe build composition", "COCO OUT -o tagger=hanta", 0),
    ("probe", "probe build background", "COCO OUT --part MR -o limit=1 -o fillers=black --quiet", 0),
    *(("probe", f"probe build {name}", "x OUT --options", 0) for name in ("relation", "composition", "background",
                                                                          "relcomp")),
    ("refer", "refer score", "scores.csv adv_easy_hard_annotations.json --bootstrap 5", 0),
    ("refer", "refer score", "scores.csv adv_easy_hard_annotations.json --bootstrap 0 --by n_words,split", 0),
    ("refer", "refer run", "refcocog_adv_annotations.json IMAGES --model left --perturb swap_head --quiet", 0),
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
def test_what_is_printed_is_what_the_schema_says(place, name, rest, code, places, monkeypatch, capsys):
    monkeypatch.chdir(places(place))
    if name == "refer run":
        monkeypatch.setattr("qgcam_lib.models.load_model", lambda *a, **k: _Left())
        monkeypatch.setattr("qgcam_lib.models.registry.name_in_role", lambda role, model: model)
    capsys.readouterr()
    assert main([*name.split(), *rest.split(), "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    found = checked(name, told)
    again = pydantic.TypeAdapter(SCHEMAS[name][0]).dump_python(found, mode="json", by_alias=True, exclude_unset=True)
    assert told and again == told
    assert set(schema_of(name)) >= {"$schema", "$id", "version", "title", "description"}


def fields(value, path=()):
    """The place of every field of an object, and of the first object of each list in it."""
    if isinstance(value, list):
        yield from fields(value[0], (*path, 0)) if value else ()
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield (*path, name)
            yield from fields(inner, (*path, name)) if isinstance(inner, list) else ()


@pytest.mark.parametrize("place,name,rest,free", [
    ("maps", "score", "maps.safetensors kinds.csv --by kind", {"kind"}), ("tricd", "tricd evaluate", TRICD, {"subset"}),
    ("probe", "probe score", "scores.csv groups.json --by category", {"category", "groups"}),
    ("runs", "compare", "aaaa bbbb --outputs two", set()), ("maps", "models", "", set())],
    ids=lambda value: value if isinstance(value, str) else "")
def test_a_field_that_goes_or_comes_is_seen(place, name, rest, free, places, monkeypatch, capsys):
    monkeypatch.chdir(places(place))
    assert main([*name.split(), *rest.split(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    for *path, field in fields(told):
        short = copy.deepcopy(told)
        inner = reduce(getitem, path, short)
        del inner[field]
        if field not in free:
            with pytest.raises(pydantic.ValidationError, match=field):
                checked(name, short)
        else:
            checked(name, short)
    with pytest.raises(pydantic.ValidationError):
        checked(name, {**told, "new": 1} if isinstance(told, dict) else [{**told[0], "new": 1}])


def test_every_command_with_json_has_a_schema_and_no_other():
    with_json = {name for name, one in COMMANDS.items() if any("--json" in param.opts for param in one.params)}
    assert with_json == set(SCHEMAS) and {name for _, name, _, _ in LINES} == with_json


def test_schemas_are_listed_printed_and_near_misses_said(capsys):
    assert main(["schema"]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == list(SCHEMAS)
    assert main(["schema", "tricd", "evaluate"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == schema_of("tricd evaluate") and shown["$id"] == "urn:qgcam:schema:tricd-evaluate:1"
    assert {"scores", "options", "left_out"} <= set(shown["required"])
    for words, near in ((["tricd", "evalute"], "tricd evaluate"), (["probe"], "probe score"), (["scoer"], "score")):
        assert main(["schema", *words]) == 2
        said = capsys.readouterr()
        assert near in " ".join(said.err.split()) and "See: qgcam schema" in said.err and not said.out

# ---- wrong values ---------------------------------------------------------------------------------------------------

FIRST = {name: (place, rest) for place, name, rest, _ in reversed(LINES)} | {
    "probe build relation": ("probe", "COCO OUT"), "probe build relcomp": ("probe", "COCO OUT"),
    "refer run": ("refer", "refcocog_adv_annotations.json IMAGES --model reclip --quiet"),
    "probe run": ("probe", "clip-rn50 groups.json --images FOLDER --quiet"),
    "runs": ("runs", "--outputs two"), "run": ("runs", "small.ipynb --quiet"),
    "tricd check": ("tricd", "TRICD_grounding_val.json")}
NOT_TRIED = {  # (command, option), or an option of all commands -> why its value cannot be wrong, or not before work
    "--outputs": "a folder that is made", "--store": "a folder that is made", "--gather": "a folder that is made",
    "--run": "no finished run of that name; see test_cli_words", "refer run --model": "says what is no model",
    "probe build composition --split": "exit code 1: the folder lacks it", "data verify --split": "as above",
    "probe build background --split": "as above", "probe build relcomp --split": "as above",
    "probe run --by": "its columns are known after the model was asked", "refer run --by": "as above",
    "probe run --average": "looked at after the model was asked", "probe run --ties": "as above"}
WRONG = {"int": ["many", "-7"], "float": ["many", "-7"], "str": ["nosuch"], "list[str]": ["nosuch"]}


def wrong_values():
    """(command, option with its spellings, value): one that this option cannot have."""
    for name in FIRST:
        for one in COMMANDS[name].params:
            if one.param_type_name == "option" and not getattr(one, "is_flag", False):
                option = max(one.opts, key=len)
                for value in WRONG.get(str(one.bare_type()), ["no/such.file"]):
                    if not {option, f"{name} {option}"} & set(NOT_TRIED):
                        yield pytest.param(name, option, one.opts, value, id=f"{name} {option}={value}")


@pytest.mark.parametrize("name,option,spellings,value", wrong_values())
def test_a_wrong_value_is_refused_by_its_option(name, option, spellings, value, places, monkeypatch, capsys):
    def work(*_, **__):
        raise AssertionError("the model is asked")

    place, rest = FIRST[name]
    monkeypatch.chdir(places(place))
    if option not in ("--device", "--weights"):
        monkeypatch.setattr("qgcam_lib.models.load_model", lambda *a, **k: _Left())
    if option != "--on-error":
        monkeypatch.setattr("qgcam_lib.probes.ask.ask_prompts", work)
        monkeypatch.setattr("qgcam_lib.referring.run.ask_expressions", work)
    words = rest.split()
    if option in words:
        del words[words.index(option):words.index(option) + 2]
    capsys.readouterr()
    assert main([*name.split(), *words, f"{option}={value}"]) == 2
    said = capsys.readouterr().err
    assert any(re.search(rf"(?<![\w-]){one}(?![\w-])", said) for one in spellings), said
    assert "Traceback" not in said
    python = {one.name for one in COMMANDS[name].params if "_" in one.name}
    assert not {word for word in python if re.search(rf"\b{word}\b", said)}, said


def test_what_is_not_tried_is_there():
    known = {f"{name} {text}" for name in FIRST for one in COMMANDS[name].params for text in one.opts}
    assert all(any(one == entry or one.endswith(f" {entry}") for one in known) for entry in NOT_TRIED)
