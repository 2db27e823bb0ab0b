"""Scores of one's own: Winoground's columns by its own formulas, published group files, the command line, bad input."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from qgcam_lib.cli.calls import call
from qgcam_lib.cli.main import app
from qgcam_lib.data.probes.files import read_groups
from qgcam_lib.errors import ExampleError, FormatError
from qgcam_lib.probes.ask import prompts_by_picture
from qgcam_lib.probes.own_scores import PAIR_COLUMNS, score_files, score_pair_table
from qgcam_lib.probes.summary import summarize_probe

REAL = Path(__file__).resolve().parents[2] / "shared" / "realdata"


@pytest.fixture
def realdata():
    if not REAL.is_dir():
        pytest.skip("needs ../shared/realdata")
    return REAL


def their_scores(row):
    """text_correct, image_correct, group_correct as Winoground's authors print them."""
    text = row["c0_i0"] > row["c1_i0"] and row["c1_i1"] > row["c0_i1"]
    image = row["c0_i0"] > row["c0_i1"] and row["c1_i1"] > row["c1_i0"]
    return text, image, text and image


@given(arrays(float, st.tuples(st.integers(1, 8), st.just(4)), elements=st.integers(-2, 2).map(float)))
def test_winogrounds_columns_are_scored_as_by_its_authors(values):
    frame = pd.DataFrame(values, columns=list(PAIR_COLUMNS))
    found = score_pair_table(frame)
    expected = [their_scores(row) for row in frame.to_dict("records")]
    assert list(found[["text_score", "image_score", "group_score"]].itertuples(index=False, name=None)) == expected


def test_a_table_of_pairs_keeps_its_labels_and_splits_by_them(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 4)), columns=list(PAIR_COLUMNS)).assign(tag=["Object", "Relation"] * 20)
    frame.to_csv(tmp_path / "mine.csv", index=False)
    frame.to_parquet(tmp_path / "mine.parquet")
    frame.to_json(tmp_path / "mine.json", orient="records")
    for path in tmp_path.iterdir():
        found = score_files(path)
        assert found["group_score"].equals(score_pair_table(frame)["group_score"]) and found["id"][3] == "3"
    table = summarize_probe(found, "tag", n_bootstrap=50)
    assert len(table) == 10 and (table["n_groups"] == 20).all()
    clustered = summarize_probe(score_pair_table(frame.assign(group=np.arange(40) // 4)), (), n_bootstrap=50)
    assert (clustered["n_groups"] == 10).all()


def test_the_rows_of_winoground_with_made_up_scores(realdata):
    captions = pd.read_csv(realdata / "winoground" / "winoground_langdata.first5.csv")
    rows = [[2, 1, 1, 2], [2, 2, 1, 1], [1, 2, 2, 1], [2, 1, 2, 3], [5, 1, 4, 2]]
    found = score_pair_table(captions.assign(**dict(zip(PAIR_COLUMNS, np.array(rows).T))))
    assert found["text_score"].tolist() == [True, False, False, False, True]
    assert found["image_score"].tolist() == [True, False, False, True, False]
    assert found["group_score"].sum() == 1 and found["n_ties"].tolist() == [0, 2, 0, 1, 0]
    assert summarize_probe(found, "collapsed_tag", n_bootstrap=0)["collapsed_tag"].nunique() == 2


@pytest.mark.parametrize("name", ["relation_eval_subject", "data_compositional_switch", "object_context_dataset"])
def test_every_published_form_is_scored_from_a_table(realdata, tmp_path, name):
    path = tmp_path / f"{name}.json"
    path.write_bytes((realdata / "probe" / f"{name}.readme_example.json").read_bytes())
    (tmp_path / "prompt_classes.csv").write_text("class,prompt\n" + "".join(
        f"{one},A photo of a {one}.\n" for one in ("person", "dog", "bed", "teddy bear", "giraffe", "cat")))
    groups, rng = read_groups(path), np.random.default_rng(0)
    asked = prompts_by_picture(groups)
    rows = [(image, prompt, rng.normal()) for image, prompts in asked.items() for prompt in prompts]
    table = pd.DataFrame(rows, columns=["image", "prompt", "score"])
    found = score_files(table, path)
    assert len(found) >= 2 and found.filter(regex="confidence$|^ap_").notna().all().all()
    numbered = table.assign(image=[int(image[-16:-4]) for image in table["image"]]) if "switch" in name else table
    if "switch" in name:
        assert score_files(numbered, groups, image_ids="number").equals(found)
        with pytest.raises(ExampleError, match="image_ids='number'"):
            score_files(numbered, groups)


@pytest.mark.parametrize(("name", "content"), [("a.xlsx", b""), ("a.parquet", b"no"), ("a.json", b"{"), ("a.csv", b""),
    ("a.csv", b"c0_i0,c0_i1,c1_i0,c1_i1\n1,2,,4\n"), ("a.csv", b"c0_i0,c0_i1\n1,2\n")])  # fmt: skip
def test_files_that_are_no_tables_of_pairs_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match="c[01]_i[01]" if b"c0" in content else name):
        score_files(tmp_path / name)


# --- the command line -------------------------------------------------------------------------------------------------

@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = {"img1_id": "red.png", "img1_prompt": "A photo of a red ball.", "img1_composition": "red",
              "img1_object": "ball", "img2_id": "blue.png", "img2_prompt": "A photo of a blue ball.",
              "img2_composition": "blue", "img2_object": "ball"}
    (tmp_path / "groups.json").write_text(json.dumps([record, {**record, "img2_id": "grey.png"}]))
    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200)), ("grey", (99, 99, 99))):
        Image.new("RGB", (96, 96), colour).save(tmp_path / f"{name}.png")
    (tmp_path / "captions.txt").write_text("A red ball.\nA blue box.\n")
    return tmp_path


def qgcam(line, capsys):
    code = call(app, line.split())
    out = capsys.readouterr()
    return code, out.out, out.err


def test_a_model_is_run_and_its_scores_are_scored_again_alike(files, capsys):
    code, out, err = qgcam("probe run clip-rn50 groups.json . --scores scores.parquet --out rows.csv --quiet "
                           "--bootstrap 20 --json --blind captions.txt --by category", capsys)
    assert code == 0, err
    first = json.loads(out)
    assert first["groups"] == "2 of groups.json" and first["failed_pictures"] == 0 and len(first["summary"]) == 10
    assert [row["category"] for row in first["summary"]] == ["all"] * 5 + ["color"] * 5
    code, out, _ = qgcam("probe score scores.parquet groups.json --bootstrap 20 --json --by category "
                         "--blind captions.txt", capsys)
    again = json.loads(out)
    assert code == 0 and again["summary"] == first["summary"] and again["options"]["average"] == "logits"
    assert len(pd.read_csv("rows.csv")) == 2
