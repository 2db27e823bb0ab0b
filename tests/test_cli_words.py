"""What the command line says: tables that fit, and boxes that are inverted."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.cli.calls import table_text
from qgcam_lib.cli.main import main
from qgcam_lib.data.tricd.pairs import tricd_content
from qgcam_lib.phrase_detection.prediction_files import synthetic_predictions, synthetic_tricd

WORDS = st.text("abcdefgh ijklm,", max_size=90)
NUMBERS = st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(-10**9, 10**9))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(0, 3), st.integers(1, 4), st.integers(1, 200), st.data())
def test_no_cell_is_cut_and_texts_fold_to_the_width(n_texts, n_numbers, n_rows, width, data):
    texts, numbers = (st.lists(kind, min_size=n_rows, max_size=n_rows) for kind in (WORDS, NUMBERS))
    columns = {f"text {k}": data.draw(texts) for k in range(n_texts)}
    columns |= {f"number {k}": data.draw(numbers) for k in range(n_numbers)}
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    shown = table_text(frame, width)
    words = [max([20, *map(len, " ".join(columns[f"text {k}"]).split())]) for k in range(n_texts)]  # none is broken
    assert max(map(len, shown.splitlines())) <= max(width, sum(words) + 20 * n_numbers)
    assert all(word in shown for text in columns["text 0"] for word in text.split() if len(word) < 20)
    for name in [name for name in frame if name.startswith("number")]:
        for value in frame[name].dropna():
            assert (f"{value:.3f}" if isinstance(value, float) else str(value)) in shown


def test_missing_is_empty_and_no_rows_are_said():
    frame = pd.DataFrame({"name": ["x", None], "value": [0.123456, np.nan], "interval": ["0.412 to 0.581", ""]})
    assert [line.split() for line in table_text(frame).splitlines()] == [
        ["name", "value", "interval"], ["x", "0.123", "0.412", "to", "0.581"]]
    assert table_text(frame.iloc[:0]) == "no rows"


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
    line = ["tricd", "evaluate", "p.csv", "a.json", "--bootstrap", "0"]
    assert main(line) == 1
    assert "row 1" in capsys.readouterr().err
    assert main([*line, "--on-error", "record", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["tricd", "evaluate", "sound.csv", *line[3:], "--json"]) == 0
    assert found["scores"] == json.loads(capsys.readouterr().out)["scores"] and len(found["faults"]) == 1
