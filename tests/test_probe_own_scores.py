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
from qgcam_lib.storage.tables import read_table

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
    for name in ("mine.csv", "mine.tsv", "mine.parquet", "mine.json"):
        path = tmp_path / name
        if path.suffix == ".parquet":
            frame.to_parquet(path)
        elif path.suffix == ".json":
            frame.to_json(path, orient="records")
        else:
            frame.to_csv(path, index=False, sep="," if path.suffix == ".csv" else "\t")
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


@pytest.mark.parametrize("name", ["relation_eval_subject", "data_compositional_switch", "data_object_switch",
                                  "background_context_dataset", "object_context_dataset"])
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
    summary = summarize_probe(found, blind=found, n_bootstrap=20)
    assert np.allclose(summary["blind"], summary["value"], equal_nan=True)


def test_pictures_may_be_known_by_number(realdata, tmp_path):
    groups = read_groups(realdata / "probe" / "data_compositional_switch.readme_example.json")
    rows = [(int(image[-16:-4]), prompt, len(image + prompt)) for image, prompts in prompts_by_picture(groups).items()
            for prompt in prompts]
    table = pd.DataFrame(rows, columns=["image", "prompt", "score"])
    assert len(score_files(table, groups, image_ids="number")) == len(groups)
    with pytest.raises(ExampleError, match="image_ids='number'"):
        score_files(table, groups)
    with pytest.raises(ValueError, match="image_ids"):
        score_files(table, groups, image_ids="position")
    same = list(groups)
    object.__setattr__(same[0], "images", ("a_42.jpg", "b_42.jpg"))
    with pytest.raises(ValueError, match="number of its own"):
        score_files(table, same, image_ids="number")


@pytest.mark.parametrize(("content", "message"), [
    ("c0_i0,c0_i1,c1_i0\n1,2,3\n", "c1_i1 lack"), ("c0_i0,c0_i1,c1_i0,c1_i1\n1,2,3,high\n", "row 0, column c1_i1"),
    ("c0_i0,c0_i1,c1_i0,c1_i1\n1,2,,4\n", "row 0, column c1_i0"),
    ("id,c0_i0,c0_i1,c1_i0,c1_i1\na,1,2,3,4\na,1,2,3,4\n", "'a' twice")])
def test_tables_of_pairs_that_are_none_are_refused(tmp_path, content, message):
    (tmp_path / "mine.csv").write_text(content)
    with pytest.raises(FormatError, match=message):
        score_files(tmp_path / "mine.csv")


def test_files_that_are_no_tables_are_refused(tmp_path):
    for name, content in (("a.xlsx", b""), ("a.parquet", b"no"), ("a.json", b"{"), ("a.csv", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError, match=name):
            read_table(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no such file of scores"):
        read_table(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="file of the groups"):
        score_files(pd.DataFrame({"image": [1], "prompt": ["a"], "score": [1]}))


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
    code, out, err = qgcam("probe run clip-rn50 groups.json --images . --scores scores.parquet --out rows.csv --quiet "
                           "--bootstrap 20 --json --blind captions.txt --by category", capsys)
    assert code == 0, err
    first = json.loads(out)
    assert first["groups"] == "2 of groups.json" and first["failed_pictures"] == 0 and len(first["summary"]) == 5
    assert {row["category"] for row in first["summary"]} == {"color"}
    code, out, _ = qgcam("probe score scores.parquet groups.json --bootstrap 20 --json --by category "
                         "--blind captions.txt", capsys)
    again = json.loads(out)
    assert code == 0 and again["summary"] == first["summary"] and again["options"]["average"] == "logits"
    assert len(pd.read_csv("rows.csv")) == 2
    code, out, _ = qgcam("probe score scores.parquet groups.json --bootstrap 0", capsys)
    assert code == 0 and "chance" in out and "0.2500" in out and "rows: 2" in out


@pytest.mark.parametrize(("line", "code", "message"), [
    ("probe score nowhere.csv groups.json", 2, "no such file of scores"),
    ("probe score scores.csv", 2, "file of the groups"),
    ("probe score scores.csv groups.json", 1, "'blue.png'"),
    ("probe score scores.csv groups.json --by predicate --missing undefined", 2, "predicate"),
    ("probe score scores.csv groups.json --ties unstable", 2, "ties"),
    ("probe score scores.csv groups.json --out rows.txt", 2, "rows.txt"),
    ("probe score scores.csv groups.json --blind nowhere.txt --missing undefined", 2, "nowhere.txt"),
    ("probe score scores.csv empty.json", 1, "expected groups"),
    ("probe run mdetr-enb5 groups.json --images .", 2, "matcher"),
    ("probe run clip-rn50 groups.json --images nowhere --quiet", 2, "nowhere"),
    ("probe run clip-rn50 lost.json --images . --quiet", 1, "lost.png")])
def test_a_fault_is_one_line_that_names_it(files, capsys, line, code, message):
    (files / "scores.csv").write_text("image,prompt,score\nred.png,A photo of a red ball.,1\n"
                                      "red.png,A photo of a blue ball.,0\n")
    (files / "empty.json").write_text("[]")
    (files / "lost.json").write_text((files / "groups.json").read_text().replace("grey.png", "lost.png"))
    found, _, err = qgcam(line, capsys)
    assert found == code and message in err and "Traceback" not in err


def test_what_is_missing_may_be_counted(files, capsys):
    (files / "scores.csv").write_text("image,prompt,score\n" + "".join(
        f"{image}.png,A photo of a {word} ball.,{n}\n" for n, image in enumerate(("red", "blue")) for word in
        ("red", "blue")))
    code, out, _ = qgcam("probe score scores.csv groups.json --missing undefined --json --bootstrap 0", capsys)
    assert code == 0 and {row["n_undefined"] for row in json.loads(out)["summary"]} == {1}
