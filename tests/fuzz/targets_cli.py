"""The command line, in this process: hostile arguments and hostile files behind good ones. No model is started."""

import contextlib
import io
import json
from pathlib import Path

from harness import Target
from hypothesis import strategies as st
from inputs import WORDS, edited, js, near, zip_bytes
from targets_data import LABELLED_ADV, RELATION, SPATIAL, TRICD, VQA, picture
from targets_scores import ANSWERS, BOXES, BY_IMAGE, CHOICES, FEW, PAIRS, PROBE, TABLE, csv
from targets_settings import RUN, notebook

from qgcam_lib.cli.main import main

FIRST, SECOND = ("out/q_groundcam/0123456789ab/run.json", "out/q_groundcam/111111111111/run.json")
FILES = {
    "m.npz": zip_bytes(FEW), "b.csv": csv(BOXES), "t.json": js(TRICD), "p.json": js(BY_IMAGE), "p.csv": csv(TABLE),
    "q.json": js(VQA), "a.json": js(ANSWERS), "g.json": js(RELATION), "s.csv": csv(PROBE), "w.csv": csv(PAIRS),
    "e.json": js(LABELLED_ADV), "c.csv": csv(CHOICES), "n.ipynb": js(notebook()), FIRST: js({**RUN, "outputs": []}),
    SECOND: js({**RUN, "run_id": "111111111111", "outputs": []}), "spatial/annotations.json": js(SPATIAL),
    "spatial/images/flickr/1_8c.jpg": picture("JPEG"),
}
COMMANDS = {  # name: what stands first and stays, so that no input starts a model or a run; more; files that are read
    "score": ("score", "m.npz b.csv --by kind --size 48x64 --tau 0.7", "m.npz b.csv"),
    "tricd evaluate": ("tricd evaluate", "p.json t.json --bootstrap 20 --recall-at 1,5", "p.json t.json"),
    "tricd evaluate csv": ("tricd evaluate", "p.csv t.json --bootstrap 0 --subset all --json",
                           "p.csv t.json"),
    "tricd questions": ("tricd questions", "a.json q.json --bootstrap 20", "a.json q.json"),
    "probe score": ("probe score", "s.csv g.json --bootstrap 20", "s.csv g.json"),
    "probe score pairs": ("probe score", "w.csv --json", "w.csv"),
    "refer score": ("refer score", "c.csv e.json --bootstrap 20 --threshold 0.5", "c.csv e.json"),
    "refer splits": ("refer splits", "e.json", "e.json"),
    "run show": ("run --show", "n.ipynb -p limit 3", "n.ipynb"),
    "runs": ("runs", "--outputs out", FIRST),
    "table": ("table", "111111111111 --outputs out", FIRST),
    "compare": ("compare --outputs out", "0123456789ab 111111111111", FIRST),
    "data verify": ("data verify spatial", "--json", "spatial/annotations.json"),
}


def called(folder: Path) -> tuple[int, str, bytes, int]:
    """The exit code of the command line in argv.json, called in this folder, and what it says on stderr and stdout."""
    argv = json.loads((folder / "argv.json").read_bytes())
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace"))
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    out.flush(), err.flush()
    return code, err.buffer.getvalue().decode("utf-8"), out.buffer.getvalue(), sum(map(len, argv)) * 10


def told(result) -> None:
    code, said, shown, given = result  # given: the parser of options repeats the arguments that it refuses
    assert code in (0, 1, 2, 3), f"exit code {code}"
    assert "Traceback" not in said and len(said) < 4000 + given, f"stderr: {len(said)} characters: {said[:300]}"
    assert code == 0 or said.strip() or shown.strip(), f"exit code {code} without a word"


def arguments(first: list[str], more: list[str]):
    """Command lines near this one: arguments behind the first ones replaced, dropped, doubled."""
    word = st.sampled_from([*WORDS, *more, "--json", "--help", "-1", "--no-such"]) | st.text(max_size=6)
    change = st.tuples(st.integers(1, len(more)), st.sampled_from(["put", "put", "drop", "many"]), word)
    return st.lists(change, min_size=1, max_size=3).map(lambda edits: [*first, *edited(more, edits)])


def target(name: str) -> Target:
    first, more, read = (text.split() for text in COMMANDS[name])
    folders = [one for one in ("out", "spatial") if one in first + more]
    files = {one: FILES[one] for one in FILES if one in read or one.split("/")[0] in folders}
    valid = {**files, "argv.json": js(first + more)}
    lines = arguments(first, more).map(lambda made: {**valid, "argv.json": js(made)})
    damaged = near({one: FILES[one] for one in read}).map(lambda found: {**valid, **found})
    return Target(f"command {name}", valid, called, st.one_of(lines, damaged), (), told, beside=True)


TARGETS = [target(name) for name in COMMANDS]
