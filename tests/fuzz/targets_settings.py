"""Settings, parameters, the engine's configuration, notebooks, records of runs and the schema, on hostile texts."""

import json

import nbformat
from harness import Target
from hypothesis import strategies as st
from inputs import near, words
from targets_data import js

from qgcam_lib.cli.schemas import schema_of
from qgcam_lib.data.sources import manual_steps, read_fetched, read_sources
from qgcam_lib.runs.compare import example_rows
from qgcam_lib.runs.config import check_config
from qgcam_lib.runs.gather import run_line, run_page
from qgcam_lib.runs.parameters import coerce, read_cell, read_parameters, resolve_parameters
from qgcam_lib.runs.record import changed_outputs, find_runs, read_run
from qgcam_lib.runs.stored import unfit_outputs
from qgcam_lib.settings import load_settings, read_environment, settings_table

SETTINGS = (
    "[qgcam]\ndata_root = data\ncache = data/cache\ndevice = cpu\nprecision = float32\nbatch_size = 8\n"
    "threads = 0\nseed = 3\n"
)
CELL = (
    '"""What."""\nfrom typing import Literal\n\nmodel: str = "blip"  # which one\n'
    'limit: int = 40\ntau: float = 0.7\nquiet: bool = False\n'
    'names: list[str] = ["a", "b"]\nmore: dict[str, float] = {"a": 1.0}\n'
    'kind: Literal["a", "b"] = "a"\nsize: tuple[int, int] = (3, 4)\n'
    "some: int | None = None\nany = 3\n"
)
SOURCES = """[spatialsense]
kind = "data set"
what = "relations"
address = "https://a.invalid/b.zip"
place = "raw/spatialsense"
bytes = 10
sha256 = ""
licence = "CC"
gated = false
needs = ["other"]
steps = ["open it", "take it"]
"""
FETCHED = (
    '[a]\naddress = "https://a.invalid/b.zip"\nfile = "b.zip"\nbytes = 10\nsha256 = "00"\nfetched = "2026-01-01"\n'
)
RUN = {
    "run_id": "0123456789ab",
    "notebook": "nbs/papers/q_groundcam.ipynb",
    "notebook_sha256": "00",
    "code_sha256": "00",
    "status": "ok",
    "error": None,
    "parameters": {"model": "blip", "limit": 40, "data": ""},
    "seed": 0,
    "settings": {"precision": "float32"},
    "git": {"commit": "abcdef0", "dirty": False},
    "versions": {"python": "3.11", "torch": "2.11"},
    "platform": "Linux",
    "device": "cpu",
    "machine": {"platform": "Linux", "cpu": "a", "cores": 2, "gpu": None},
    "data": [{"kind": "data set", "path": "miniworld", "sha256": "00"}],
    "weights": [{"kind": "mini", "path": "data/zoo/blip-mini", "sha256": "00"}],
    "attempts": 1,
    "started": "2026-01-01T00:00:00+00:00",
    "seconds": 3.5,
    "results": {
        "result_box": {"question": "Does it?", "answer": "yes", "effect": ["0.4"], "differs": ["data"]},
        "n": 3,
    },
    "outputs": [{"path": "tables/scores.csv", "sha256": "00", "kind": "table", "caption": "Scores"}],
}
CONFIG = {
    "data": "",
    "models": ["blip"],
    "splits": ["a"],
    "only": "",
    "parameters": {"limit": 3},
    "threads": 2,
    "weights": "mini",
    "device": "cpu",
    "limit": 4,
}


def notebook(cell: str = CELL) -> dict:
    made = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# A"),
            nbformat.v4.new_code_cell(cell, metadata={"tags": ["parameters"]}),
            nbformat.v4.new_code_cell(
                "print(limit)",
                outputs=[
                    nbformat.v4.new_output("stream", text="3\n"),
                    nbformat.v4.new_output("display_data", data={"text/plain": "a", "image/png": "aaaa"}),
                ],
            ),
        ]
    )
    return json.loads(nbformat.writes(made))


def _settings(folder):
    settings_table(folder / "settings.ini", environ={})


def _environment(folder):
    text = (folder / "e.txt").read_bytes().decode("utf-8", "surrogateescape")
    environ = dict(line.partition("=")[::2] for line in text.split("\n"))
    read_environment(environ)
    found = load_settings(folder / "none.ini", environ=environ)
    assert found.batch_size >= 1 and 0 <= found.seed < 2**32 and found.threads >= 0


def _cell(folder):
    found = read_cell((folder / "c.txt").read_bytes().decode("utf-8", "surrogateescape"), "a notebook")
    assert all(name.isidentifier() for name in found)


_KNOWN = read_cell(CELL, "a notebook")
GIVEN = (
    'model=blip-large\nlimit=60\ntau=0.5\nquiet=yes\nnames=["x"]\nmore={"a": 2}\nkind=b\nsize=3,4\nsome=none\nany=7\n'
)


def _given(folder):
    """-p values: each is text."""
    text = (folder / "p.txt").read_bytes().decode("utf-8", "surrogateescape")
    pairs = [line.partition("=")[::2] for line in text.split("\n") if line]
    for name, value in pairs:
        if name in _KNOWN:
            try:
                coerce(_KNOWN[name], value)
            except ValueError as error:
                if len(pairs) == 1:
                    raise
                kept = error
    found = resolve_parameters(_KNOWN, dict(pairs))
    json.dumps(found)
    if pairs and "kept" in locals():
        raise kept


def _typed(folder):
    """Parameters as programs give them, and as --config does: values of JSON."""
    try:
        given = json.loads((folder / "p.json").read_bytes())
    except (ValueError, RecursionError):  # it comes from a program, or from the engine's own reader
        return
    given = given if isinstance(given, dict) else {"limit": given}
    errors = []
    for use in (
        lambda: resolve_parameters(_KNOWN, given, text=False),
        lambda: check_config(given, {"a": _KNOWN}, splits=["a", "b"]),
    ):
        try:
            use()
        except ValueError as error:
            errors.append(error)
    if errors:
        raise errors[-1]


def _notebook(folder):
    unfit_outputs(folder / "a.ipynb")
    read_parameters(folder / "a.ipynb")


def _run(folder):
    place = folder / "q_groundcam" / "0123456789ab"
    found = find_runs(folder, status=None)
    for _where, record in found:
        run_line(record), run_page(record)
    read_run(place)
    changed_outputs(place)


def _rows(folder):
    place = folder / "q_groundcam" / "0123456789ab"
    changed_outputs(place)
    example_rows(place)


def _schema(folder):
    schema_of((folder / "s.txt").read_bytes().decode("utf-8", "surrogateescape"))


def _sources(folder):
    found = read_sources(folder / "s.toml")
    for one in found.values():
        steps = manual_steps(one, folder)
        assert (
            all(isinstance(step, str) for step in steps) and isinstance(one.bytes, int) and one.by_hand in (True, False)
        )


_RUN_FILE = {"q_groundcam/0123456789ab/run.json": js(RUN)}
_SINGLE = st.builds(
    lambda name, value: f"{name}={value}".encode("utf-8", "surrogatepass"), st.sampled_from(sorted(_KNOWN)), words
)
TARGETS = [
    Target("settings file", {"settings.ini": SETTINGS.encode()}, _settings, near({"settings.ini": SETTINGS.encode()})),
    Target(
        "settings environment",
        {"e.txt": b"QGCAM_SEED=3\nQGCAM_DEVICE=cpu\nPATH=/bin"},
        _environment,
        near(
            {
                "e.txt": b"QGCAM_SEED=3\nQGCAM_BATCH_SIZE=4\nQGCAM_DEVICE=cpu\n"
                b"QGCAM_DATA_ROOT=data\nQGCAM_PRECISION=float16\nPATH=/bin"
            }
        ),
    ),
    Target("parameters cell", {"c.txt": CELL.encode()}, _cell, near({"c.txt": CELL.encode()})),
    Target(
        "parameters given",
        {"p.txt": GIVEN.encode()},
        _given,
        st.one_of(_SINGLE.map(lambda data: {"p.txt": data}), near({"p.txt": GIVEN.encode()})),
    ),
    Target("parameters typed", {"p.json": js({"limit": 3})}, _typed, near({"p.json": js(CONFIG)})),
    Target("notebook", {"a.ipynb": js(notebook())}, _notebook, near({"a.ipynb": js(notebook())})),
    Target("run record", _RUN_FILE, _run, near(_RUN_FILE)),
    Target("sources", {"s.toml": SOURCES.encode()}, _sources, near({"s.toml": SOURCES.encode()})),
    Target(
        "fetched",
        {"raw/fetched.toml": FETCHED.encode()},
        lambda folder: read_fetched(folder),
        near({"raw/fetched.toml": FETCHED.encode()}),
    ),
    Target("schema", {"s.txt": b"tricd evaluate"}, _schema, near({"s.txt": b"tricd evaluate"})),
]
