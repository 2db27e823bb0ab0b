"""Settings, parameters, the engine's configuration, notebooks and records of runs, on hostile texts."""

import json

import nbformat
from harness import Target
from hypothesis import strategies as st
from inputs import encoded, js, near, words
from targets_data import of_file

from qgcam_lib.runs.config import check_config
from qgcam_lib.runs.gather import run_line, run_page
from qgcam_lib.runs.parameters import coerce, read_cell, read_parameters, resolve_parameters
from qgcam_lib.runs.record import changed_outputs, find_runs, read_run
from qgcam_lib.runs.stored import unfit_outputs
from qgcam_lib.settings import load_settings, read_environment

SETTINGS = (b"[qgcam]\ndata_root = data\ncache = data/cache\ndevice = cpu\nprecision = float32\nbatch_size = 8\n"
            b"threads = 0\nseed = 3\n")
ENVIRONMENT = (b"QGCAM_SEED=3\nQGCAM_BATCH_SIZE=4\nQGCAM_DEVICE=cpu\nQGCAM_DATA_ROOT=data\nQGCAM_PRECISION=float32\n"
               b"PATH=/bin")
CELL = '''"""What."""
from typing import Literal

model: str = "blip"  # which one
limit: int = 40
tau: float = 0.7
quiet: bool = False
names: list[str] = ["a", "b"]
more: dict[str, float] = {"a": 1.0}
kind: Literal["a", "b"] = "a"
size: tuple[int, int] = (3, 4)
some: int | None = None
any = 3
'''
GIVEN = (b'model=blip-large\nlimit=60\ntau=0.5\nquiet=yes\nnames=["x"]\nmore={"a": 2}\nkind=b\nsize=3,4\nsome=none\n'
         b"any=7\n")
RUN = {
    "run_id": "0123456789ab", "notebook": "nbs/papers/q_groundcam.ipynb", "notebook_sha256": "00", "code_sha256": "00",
    "status": "ok", "error": None, "parameters": {"model": "blip", "limit": 40, "data": ""}, "seed": 0,
    "settings": {"precision": "float32"}, "git": {"commit": "abcdef0", "dirty": False},
    "versions": {"python": "3.11", "torch": "2.11"}, "platform": "Linux", "device": "cpu",
    "machine": {"platform": "Linux", "cpu": "a", "cores": 2, "gpu": None},
    "data": [{"kind": "data set", "path": "miniworld", "sha256": "00"}],
    "weights": [{"kind": "mini", "path": "data/zoo/blip-mini", "sha256": "00"}], "attempts": 1,
    "started": "2026-01-01T00:00:00+00:00", "seconds": 3.5,
    "results": {"result_box": {"question": "Does it?", "answer": "yes", "effect": ["0.4"], "differs": ["data"]},
                "n": 3},
    "outputs": [{"path": "tables/scores.csv", "sha256": "00", "kind": "table", "caption": "Scores"}],
}
CONFIG = {"data": "", "models": ["blip"], "splits": ["a"], "only": "", "parameters": {"limit": 3}, "threads": 2,
          "weights": "mini", "device": "cpu", "limit": 4}
KNOWN = read_cell(CELL, "a notebook")


def notebook(cell: str = CELL) -> dict:
    shown = [nbformat.v4.new_output("stream", text="3\n"),
             nbformat.v4.new_output("display_data", data={"text/plain": "a", "image/png": "aaaa"})]
    return json.loads(nbformat.writes(nbformat.v4.new_notebook(cells=[
        nbformat.v4.new_markdown_cell("# A"), nbformat.v4.new_code_cell(cell, metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("print(limit)", outputs=shown)])))


def text_of(path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def environment(path):
    environ = dict(line.partition("=")[::2] for line in text_of(path).split("\n"))
    read_environment(environ)
    found = load_settings(path.with_name("none.ini"), environ=environ)
    assert found.batch_size >= 1 and 0 <= found.seed < 2**32 and found.threads >= 0


def cell(path):
    assert all(name.isidentifier() for name in read_cell(text_of(path), "a notebook"))


def given(path):
    """Values of -p: each is text."""
    pairs = [line.partition("=")[::2] for line in text_of(path).split("\n") if line]
    if len(pairs) == 1 and pairs[0][0] in KNOWN:
        coerce(KNOWN[pairs[0][0]], pairs[0][1])
    json.dumps(resolve_parameters(KNOWN, dict(pairs)))


def typed(path):
    """Parameters as programs give them, and as --config does: values of JSON."""
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError):  # it comes from a program, or from the engine's own reader
        return
    values = values if isinstance(values, dict) else {"limit": values}
    check_config(values, {"a": KNOWN}, splits=["a", "b"])
    resolve_parameters(KNOWN, values, text=False)


def run_records(folder):
    place = folder / "q_groundcam" / "0123456789ab"
    for _, record in find_runs(folder, status=None):
        run_line(record), run_page(record)
    read_run(place)
    changed_outputs(place)


def one_given(name, value):
    return {"p.txt": encoded(f"{name}={value}")}


RECORD = {"q_groundcam/0123456789ab/run.json": js(RUN)}
TARGETS = [
    of_file("settings file", "settings.ini", SETTINGS, lambda path: load_settings(path, environ={})),
    of_file("settings environment", "e.txt", ENVIRONMENT, environment),
    of_file("parameters cell", "c.txt", CELL.encode(), cell),
    Target("parameters given", {"p.txt": GIVEN}, lambda folder: given(folder / "p.txt"),
           st.one_of(st.builds(one_given, st.sampled_from(sorted(KNOWN)), words), near({"p.txt": GIVEN}))),
    Target("parameters typed", {"p.json": js({"limit": 3})}, lambda folder: typed(folder / "p.json"),
           near({"p.json": js(CONFIG)})),
    of_file("notebook", "a.ipynb", notebook(), lambda path: (unfit_outputs(path), read_parameters(path))),
    Target("run record", RECORD, run_records, near(RECORD)),
]
