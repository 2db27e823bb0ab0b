"""What the command line says: tables that fit, messages that name options, help with examples."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer.main
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.cli.calls import in_options
from qgcam_lib.cli.main import app, join_pairs, main
from qgcam_lib.cli.tables import table_text, terminal_width
from qgcam_lib.data.catalog import dataset_folder, load_dataset
from qgcam_lib.data.coco.folder import Coco
from qgcam_lib.data.probes.groups import Groups
from qgcam_lib.data.tricd.files import tricd_files
from qgcam_lib.data.tricd.pairs import load_tricd, tricd_content
from qgcam_lib.data.visual_genome.folder import VisualGenome
from qgcam_lib.metrics import score_maps
from qgcam_lib.phrase_detection.prediction_files import read_predictions, write_predictions
from qgcam_lib.phrase_detection.score import match_predictions
from qgcam_lib.phrase_detection.synthetic import synthetic_predictions, synthetic_tricd
from qgcam_lib.settings import settings as data_settings

ROOT = Path(__file__).parents[1]


def leaves(command, path=()):
    """(words, command) of every command of the line."""
    for name, one in getattr(command, "commands", {}).items():
        yield from leaves(one, (*path, name)) if getattr(one, "commands", None) else [((*path, name), one)]


COMMANDS = dict(leaves(typer.main.get_command(app)))

# ---- tables -------------------------------------------------------------------------------------------------------

WORDS = st.text("abcdefgh ijklm,", max_size=90)
NUMBERS = st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(-10**9, 10**9))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(0, 7), st.integers(1, 4), st.integers(40, 200), st.data())
def test_a_table_fits_and_no_number_is_cut(n_texts, n_numbers, n_rows, width, data):
    columns = {f"text {k}": data.draw(st.lists(WORDS, min_size=n_rows, max_size=n_rows)) for k in range(n_texts)}
    numbers = st.lists(NUMBERS, min_size=n_rows, max_size=n_rows)
    columns |= {f"a long name {k}": data.draw(numbers) for k in range(n_numbers)}
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    shown = table_text(frame, width)
    assert max(map(len, shown.splitlines())) <= width
    for value in frame[[name for name in frame if name.startswith("a")]].to_numpy(object).ravel():
        if value is not None:
            assert re.search(rf"(?<![\d.]){re.escape(f'{value:.3f}' if isinstance(value, float) else str(value))}"
                             r"(?![\d.…])", shown)
    whole = table_text(frame)
    assert "…" not in whole and all(" ".join(text.split()) in whole for text in columns["text 0"])


def test_texts_are_cut_with_an_ellipsis_and_missing_is_empty():
    frame = pd.DataFrame({"name": ["x" * 50, None], "value": [0.123456, np.nan], "interval": ["0.412 to 0.581", ""]})
    assert table_text(frame, 40).splitlines() == [
        f"name{' ' * 13}  value        interval", f"{'x' * 16}…  0.123  0.412 to 0.581"]
    assert table_text(frame.iloc[:0], 40) == "no rows"


def test_the_width_is_that_of_columns_and_a_pipe_has_none(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "83")
    assert terminal_width() == 83
    monkeypatch.delenv("COLUMNS")
    assert terminal_width() is None


@pytest.mark.parametrize("columns", ["80", "200", None])
@pytest.mark.parametrize("line", ["models", "data list"])
def test_printed_tables_fit_a_real_process(columns, line):
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    environment |= {"PYTHONPATH": str(ROOT)} | ({"COLUMNS": columns} if columns else {})
    code = f"import sys; from qgcam_lib.cli.main import main; sys.exit(main({line.split()!r}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    table = [text for text in shown.stdout.splitlines() if not text.startswith("any folder with")]
    assert shown.returncode == 0 and table and not shown.stderr
    if columns:
        assert max(map(len, table)) <= int(columns)
    else:
        assert "…" not in shown.stdout


# ---- help ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_that_parses(words, tmp_path, monkeypatch):
    command = COMMANDS[words]
    monkeypatch.chdir(tmp_path)
    assert command.epilog.startswith(f"Example: qgcam {' '.join(words)}") and command.help
    arguments = join_pairs(command.epilog.removeprefix("Example: ").split()[1 + len(words):])
    for word in arguments:  # some options want what they name to be there
        if re.fullmatch(r"[A-Z]+", word):
            Path(word).mkdir(exist_ok=True)
        elif re.fullmatch(r"\w+\.json", word):
            Path(word).touch()
    command.make_context("qgcam", arguments, resilient_parsing=False).close()


def test_help_lists_every_command_under_a_heading_and_the_exit_codes(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for part in ("Notebooks and their results:", "Score what you have:", "Models and data:"):
        assert part in shown
    assert {name for name, *_ in COMMANDS} <= set(re.findall(r"^  (\w+) ", shown, re.M))
    assert "Exit code: 0 it worked; 1 the work failed" in " ".join(shown.split())
    assert "..." not in shown.split("Notebooks")[1]
    assert max(map(len, shown.splitlines())) <= 80


# ---- messages -----------------------------------------------------------------------------------------------------


def test_arguments_become_options_and_nothing_else_does():
    score = COMMANDS[("score",)].params
    for text, expected in {
        "on_error: expected 'raise' or 'record', got 'x'": "--on-error: expected 'raise' or 'record', got 'x'",
        "tau, delta: expected a number": "--tau, --delta: expected a number",
        "b.csv: record 'a': size: expected two": "b.csv: record 'a': --size: expected two",
        "say which by box_format, one of": "say which by --box-format, one of",
        "Use protocol='native' or `tau`": "Use --protocol native or --tau",
        "maps: expected files": "MAPS: expected files",
        "see /elsewhere/on_error/box_format.csv": "see /elsewhere/on_error/box_format.csv",
        "the size of a map, by its ties": "the size of a map, by its ties",
        "limit: expected 0": "limit: expected 0",
    }.items():
        assert in_options(text, score) == expected
    assert in_options("n_bootstrap: expected", COMMANDS[("probe", "score")].params) == "--bootstrap: expected"
    assert in_options("`-o seed=1`: wrong", COMMANDS[("probe", "run")].params) == "`-o seed=1`: wrong"


def test_a_run_that_is_not_there_is_a_wrong_call_that_names_what_is_like_it(tmp_path, capsys):
    for notebook, run_id in (("q_groundcam", "aaaa00000001"), ("tricd_vqa", "bbbb00000002")):
        folder = tmp_path / notebook / run_id
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(f'{{"run_id": "{run_id}", "status": "ok", "notebook": "{notebook}.ipynb", '
                                         '"parameters": {}, "results": {}, "outputs": [], "started": "2026"}')
    for name, near in (("q_grundcam", "q_groundcam"), ("aaaa00000007", "aaaa00000001"), ("nosuch", "")):
        assert main(["table", name, "--outputs", str(tmp_path)]) == 2
        shown = capsys.readouterr()
        assert f"no finished run '{name}'" in shown.err and "See: qgcam runs" in shown.err and not shown.out
        assert (f"Did you mean {near}" in shown.err) == bool(near)
    assert main(["runs", "--outputs", str(tmp_path)]) == 0
    assert "aaaa00000001" in capsys.readouterr().out


# ---- inverted boxes -----------------------------------------------------------------------------------------------


def test_an_inverted_box_of_own_maps_is_recorded_or_stops_with_its_id_and_the_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("m.npz", **{name: rng.random((6, 6)) for name in "abc"})
    rows = {"a": [0, 0, 9, 9], "b": [9, 9, 2, 2], "c": [1, 1, 6, 6]}
    csv = [",".join(map(str, (name, *box, 20, 20))) for name, box in rows.items()]
    Path("b.csv").write_text("\n".join(["id,x0,y0,x1,y1,width,height", *csv]))
    Path("b.json").write_text(json.dumps({name: {"boxes": [box], "size": [20, 20]} for name, box in rows.items()}))
    for file in ("b.csv", "b.json"):
        assert main(["score", "m.npz", file]) == 1
        said = capsys.readouterr().err
        assert "record 'b'" in said and "inverted" in said and "--on-error record" in said
        assert main(["score", "m.npz", file, "--on-error", "record", "--out", "o.parquet"]) == 0
        assert "1 records could not be scored" in capsys.readouterr().out
        found = pd.read_parquet("o.parquet").set_index("id")
        assert "inverted" in found.loc["b", "error"] and np.isnan(found.loc["b", "io_ratio"])
        boxes = [[rows[name]] for name in "ac"]
        expected = score_maps([np.load("m.npz")[name] for name in "ac"], boxes, image_sizes=(20, 20), protocol="paper")
        assert found.loc[["a", "c"], "io_ratio"].tolist() == expected["io_ratio"].tolist()
    assert main(["score", "m.npz", "b.csv", "--on-error", "skip"]) == 2


def test_an_inverted_box_of_detections_is_left_out_and_named_or_stops(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = synthetic_tricd(4, seed=1)
    Path("a.json").write_text(json.dumps(tricd_content(data)))
    names = ("x0", "y0", "x1", "y1")
    rows = [{"image_id": id, "phrase_id": int(phrase), "score": float(score), **dict(zip(names, box))}
            for id, one in synthetic_predictions(data, seed=2).items()
            for phrase, score, box in zip(one["phrase_ids"], one["scores"], np.asarray(one["boxes"]).tolist())]
    pd.DataFrame(rows[1:]).to_csv("sound.csv", index=False)
    pd.DataFrame([rows[0] | {"x0": 90.0, "x1": 3.0}, *rows[1:]]).to_csv("p.csv", index=False)
    line = ["tricd", "evaluate", "p.csv", "--annotations", "a.json", "--bootstrap", "0"]
    assert main(line) == 1
    assert "row 0" in capsys.readouterr().err
    assert main([*line, "--on-error", "record"]) == 0
    shown = capsys.readouterr().out
    assert "1 boxes left out: inverted" in shown and "row 0, image" in shown
    assert main([*line, "--on-error", "record", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["tricd", "evaluate", "sound.csv", *line[3:], "--json"]) == 0
    assert found["scores"] == json.loads(capsys.readouterr().out)["scores"] and len(found["faults"]) == 1


# ---- what is shown of data ----------------------------------------------------------------------------------------


def test_what_loaders_give_is_shown_short(tmp_path):
    made = synthetic_tricd(200, seed=1)
    predictions = synthetic_predictions(made, seed=2)
    write_predictions(tmp_path / "p.parquet", predictions)
    (tmp_path / "a.json").write_text(json.dumps(tricd_content(made)))
    shown = [load_tricd(tmp_path / "a.json"), match_predictions(made, predictions),
             read_predictions(tmp_path / "p.parquet", made), Groups(range(300), form="pairs")]
    shown += [load_dataset(name, split) for name, split in (
        ("miniworld", "test"), ("miniworld-refcoco+", "testA"), ("miniworld-spatialsense", "triplets"))]
    coco, genome = Coco(dataset_folder("miniworld-coco"), "val2014"), dataset_folder("miniworld-visual-genome")
    shown += [coco, coco.instances, coco.captions, VisualGenome(genome), VisualGenome(genome).triplets, tricd_files()]
    for one in shown:
        assert len(repr(one)) < 1000 and type(one).__name__ in repr(one), repr(one)[:300]
    assert "800 pairs in 200 groups" in repr(shown[0])


def test_every_paper_has_its_data_in_the_list_and_can_be_asked_to_verify(capsys):
    assert main(["data", "list", "--json"]) == 0
    names = {row["name"] for row in json.loads(capsys.readouterr().out)["names"]}
    assert {"tricd", "flickr30k-entities", "refcoco+", "spatialsense", "coco", "visual-genome", "ref-adv"} <= names
    assert main(["data", "verify", "miniworld-tricd"]) == 0
    assert "test: " in capsys.readouterr().out
    if not (data_settings.data_root / "raw" / "tricd").is_dir():
        assert main(["data", "verify", "tricd"]) == 1
        assert "qgcam data fetch tricd" in capsys.readouterr().err
