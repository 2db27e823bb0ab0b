"""Referring expressions: records, both published forms, the join, candidates, people, counts."""

import itertools
import json
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.data.catalog import load_dataset, recognise, verify_dataset
from qgcam_lib.data.referring.candidates import candidate_counts, with_candidates
from qgcam_lib.data.referring.counts import (
    RELATIONS_FILE,
    category_shares,
    length_distribution,
    relation_frequency,
    relation_words,
    relations_in,
    split_counts,
    words_of,
)
from qgcam_lib.data.referring.expressions import Expression, Expressions, of_split
from qgcam_lib.data.referring.files import hard_originals, read_ref_adv, write_ref_adv
from qgcam_lib.data.referring.people import (
    READINGS,
    adversarial_targets,
    agreement,
    judge,
    shipped_choices,
    validated,
    votes_right,
)
from qgcam_lib.data.referring.refcocog import category_kinds, join, refcocog
from qgcam_lib.data.referring.splits import REASONS, rule_differences, rule_table, split_by_people, split_by_text
from qgcam_lib.errors import ExampleError, FormatError

REAL = Path(__file__).resolve().parents[2] / "shared" / "realdata"
ADV = REAL / "ref_adv"
needs_adv = pytest.mark.skipif(not ADV.is_dir(), reason="no real Ref-Adv files (../shared/realdata/ref_adv)")
REFCOCO = REAL / "refcoco"
needs_refcoco = pytest.mark.skipif(not REFCOCO.is_dir(), reason="no real RefCOCO (../shared/realdata/refcoco)")
RAW, LABELLED = "refcocog_adv_annotations.first500.json", "adv_easy_hard_annotations.{}.json"
PARTS = {"easy": "easy.first1500", "hard": "hard.first400", "adv": "adv.first500"}

BOXES = ((40.0, 30.0, 60.0, 52.0), (5.0, 8.0, 30.0, 60.0), (35.0, 48.0, 65.0, 58.0), (35.0, 48.0, 65.0, 59.0))
CUP = Expression("cup", "COCO_train2014_000000000254.jpg", "254", "the cup on the saucer", BOXES[0], BOXES, "easy",
                 "31", "7")


def corner(b):
    return (b[0], b[1], b[0] + b[2], b[1] + b[3])


def literal_iou(a, b):
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    inner = w * h if w > 0 and h > 0 else 0.0
    return inner / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inner)


# --- the record ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("wrong", "words"), [
    ({"box": (60, 30, 40, 52)}, "box: .*inverted"), ({"box": (0, 0, float("nan"), 1)}, "box: .*finite"),
    ({"box": (0, 0, float("inf"), 1)}, "finite"), ({"box": (0, 0, 1)}, "box: "), ({"box": None}, "box: "),
    ({"candidates": [(4, 4, 4, 9)]}, "candidates: .*empty"), ({"candidates": [("a", 0, 1, 1)]}, "candidates: "),
    ({"candidates": 3}, "candidates: "), ({"text": " \n"}, "text: expected a text that is not empty"),
    ({"id": ""}, "id: "),
    ({"group": 254}, "group: expected a text"), ({"split": None}, "split: expected a text"),
    ({"shipped": {"shuffle": 3}}, "shipped: expected texts, 'shuffle'")])
def test_a_record_refuses_what_cannot_be_right_and_names_it(wrong, words):
    with pytest.raises(ExampleError, match=words) as caught:
        replace(CUP, **wrong)
    assert caught.value.example == wrong.get("id", "cup")


def test_what_is_odd_is_kept():
    long = replace(CUP, text=" ".join(["word"] * 80))
    assert len(words_of(long.text)) == 80
    missing, one, none = replace(CUP, candidates=BOXES[1:2]), replace(CUP, candidates=BOXES[:1]), replace(
        CUP, candidates=())
    assert (missing.random_choice(), one.random_choice()) == (0, 1) and np.isnan(none.random_choice())
    twice = replace(CUP, candidates=BOXES[:2] + BOXES[:1])
    assert twice.right().tolist() == [True, False, True]
    cases = [replace(case, id=str(n)) for n, case in enumerate((missing, one, none, twice))]
    table = candidate_counts(cases).loc["easy"]
    assert table[["expressions", "no_box", "one_box", "same_box_twice", "target_missing", "most_boxes"]].tolist() == [
        4, 1, 2, 1, 1, 3]
    assert np.isclose(table["random"], (0 + 1 + 2 / 3) / 3) and table["boxes"] == 1.25


def test_a_half_counts_unless_strict():
    half = replace(CUP, box=(0, 0, 10, 10), candidates=[(0, 0, 10, 5), (0, 0, 10, 4.9), (0, 0, 10, 5.1)])
    assert half.right().tolist() == [True, False, True] and half.right(strict=True).tolist() == [False, False, True]


def test_lists_refuse_an_id_twice_and_an_unknown_split():
    with pytest.raises(ExampleError, match="example cup: the id is used twice"):
        Expressions([CUP, replace(CUP, text="other")])
    with pytest.raises(ValueError, match=r"split: expected one of \['easy'\], got 'hard'"):
        of_split([CUP], "hard")
    assert pickle.loads(pickle.dumps(CUP)) == CUP


# --- round trips -----------------------------------------------------------------------------------------------------

sides = st.integers(1, 40000).map(lambda n: n / 100)
corners = st.tuples(sides, sides, sides, sides).map(corner)
texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30).filter(str.strip)
numbers = st.integers(0, 10**7)


@st.composite
def records(draw, split):
    boxes = draw(st.lists(corners, min_size=1, max_size=6))
    image = draw(numbers)
    shipped = {"GT_bbox_number": str(draw(st.integers(1, len(boxes)))), "shuffle": draw(texts), "assigns": json.dumps(
        [{"dropdownselect": str(draw(st.integers(0, len(boxes))))} for _ in range(3)])} if split == "adv" else {}
    return Expression("x", f"COCO_train2014_{image:012d}.jpg", str(image), draw(texts), draw(st.sampled_from(boxes)),
                      boxes, split, str(draw(numbers)) if split == "adv" else "", str(draw(numbers)), "",
                      draw(texts) if split == "adv" else "", shipped)


def same(one, other, *, but=()):
    names = [name for name in Expression.__dataclass_fields__ if name not in ("id", "box", "candidates", *but)]
    assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
    assert np.abs(np.array([one.box, *one.candidates]) - np.array([other.box, *other.candidates])).max() < 1e-5


@given(st.lists(records("adv"), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_the_raw_form_gives_back_everything(tmp_path_factory, some):
    some = [replace(one, id=f"task{n}_batch1") for n, one in enumerate(some)]
    again = read_ref_adv(write_ref_adv(some, tmp_path_factory.mktemp("raw") / "adv.json", form="raw"))
    assert [one.id for one in again] == [one.id for one in some]
    for one, other in zip(some, again):
        same(one, other)
        choices = shipped_choices([other])[other.id]
        assert choices == [int(row["dropdownselect"]) - 1 if row["dropdownselect"] != "0" else None
                           for row in json.loads(one.shipped["assigns"])]


@given(st.lists(st.one_of(records("easy"), records("hard"), records("adv")), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_the_labelled_form_gives_back_what_it_has_fields_for(tmp_path_factory, some):
    path = write_ref_adv(some, tmp_path_factory.mktemp("labelled") / "rows.json")
    for row in json.loads(path.read_text())["annotations"]:  # the types of the published file
        kinds = [type(row[name]) for name in ("annID", "gt_bbox", "bboxes")]
        assert kinds == ([str, str, str] if row["label"] == "adv" else [int, int, dict])
        assert row["img_file_name"].endswith(f"_{row['annID']}.jpg") or row["label"] == "adv"
    again = read_ref_adv(path)
    assert len(again) == len(some) and len({one.id for one in again}) == len(some)
    for one, other in zip(some, again):
        same(one, other, but=("ref", "original", "shipped"))


# --- bad files -------------------------------------------------------------------------------------------------------

ROW = {"annID": 7, "label": "easy", "gt_bbox": 1, "bboxes": {"1": [40, 30, 20, 22], "2": [5, 8, 25, 52]},
       "expression": "a cup", "img_file_name": "COCO_train2014_000000000254_7.jpg"}
RAW_ROW = {"most_confused_bbox_GT_desc": "the saucer", "raw_str": "the cup", "refID": "31", "annID": "7",
           "imgID": "254",
           "img_file_name": "COCO_train2014_000000000254.jpg", "bbox_candidates_map": json.dumps(ROW["bboxes"]),
           "most_confused_bbox_number": "2", "GT_bbox_number": "1"}


@pytest.mark.parametrize(("wrong", "reason"), [
    ({"bboxes": "{1: [0, 0, 1, 1]}"}, "bboxes"), ({"bboxes": "not JSON"}, "bboxes"), ({"bboxes": {}}, "bboxes"),
    ({"bboxes": '{"1": [0, 0, 4, 4], "1": [9, 9, 1, 1]}'}, "bboxes"), ({"bboxes": {"1": [0, 0, 4]}}, "bboxes"),
    ({"bboxes": {"1": [0, 0, 4, 4], "3": [0, 0, 4, 4]}}, "bboxes"), ({"bboxes": {"1": [9, 9, -4, 4]}}, "box"),
    ({"bboxes": {"1": [0, 0, float("nan"), 4]}}, "bboxes"), ({"gt_bbox": 3}, "gt_bbox"), ({"gt_bbox": None}, "gt_bbox"),
    ({"gt_bbox": True}, "gt_bbox"), ({"label": "Hard"}, "label"), ({"expression": " "}, "text"),
    ({"annID": [7]}, "annID"),
    ({"img_file_name": ""}, "image")])
def test_a_bad_row_is_named_or_counted(tmp_path, wrong, reason):
    (tmp_path / "rows.json").write_text(json.dumps({"annotations": [ROW, ROW | wrong, ROW]}))
    with pytest.raises(ExampleError, match=reason):
        read_ref_adv(tmp_path / "rows.json")
    found = read_ref_adv(tmp_path / "rows.json", on_error="record")
    assert len(found) == 2 and found.left_out == {reason: 1} and len(found.problems) == 1


def test_the_target_is_the_confused_box_not_that_of_the_original(tmp_path):
    (tmp_path / "raw.json").write_text(json.dumps({"t_b": RAW_ROW}))
    adv, = read_ref_adv(tmp_path / "raw.json")
    assert adv.box == (5, 8, 30, 60) and hard_originals([adv])[0].box == (40, 30, 60, 52)
    (tmp_path / "raw.json").write_text(json.dumps({"t_b": RAW_ROW | {"most_confused_bbox_number": "9"}}))
    with pytest.raises(ExampleError, match="example t_b: most_confused_bbox_number: .*not among the candidates"):
        read_ref_adv(tmp_path / "raw.json")


@pytest.mark.parametrize("content", ["[1, 2", "[]", '{"a": 1}', '{"annotations": [3]}', '{"a": {"raw_str": "x"}}',
                                     '{"annotations": [], "annotations": []}'])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(FormatError, match="file.json: .*expected|file.json: not usable as JSON"):
        read_ref_adv(tmp_path / "file.json")


def test_what_the_forms_cannot_say_is_not_written(tmp_path):
    for bad, form, words in ((replace(CUP, candidates=BOXES[1:]), "labelled", "among the candidates"),
                             (CUP, "raw", "the raw form holds Ref-Adv alone"),
                             (replace(CUP, split="test"), "labelled", "split: expected one of easy, hard, adv")):
        with pytest.raises(ExampleError, match=words):
            write_ref_adv([bad], tmp_path / "x.json", form=form)
    with pytest.raises(ValueError, match="form: expected"):
        write_ref_adv([CUP], tmp_path / "x.json", form="new")
    assert not list(tmp_path.iterdir())


def test_the_catalog_finds_and_verifies_a_folder(tmp_path):
    rows = {"t_b": RAW_ROW, "bad": RAW_ROW | {"annID": None}}
    (tmp_path / "refcocog_adv_annotations.json").write_text(json.dumps(rows))
    assert recognise(tmp_path) == "Ref-Adv, raw"
    faults = verify_dataset(tmp_path)
    assert faults["severity"].tolist() == ["error", "note"] and faults["id"].tolist() == ["bad", ""]
    with pytest.raises(ExampleError, match="read_ref_adv"):
        load_dataset(tmp_path)


def test_a_folder_of_refcocog_that_holds_ref_adv_too_is_verified_as_both(tmp_path):
    from qgcam_lib.data.referring.files import LABELLED_FILE, RAW_FILE
    from qgcam_lib.miniworld import ensure_refcocog

    root = ensure_refcocog(tmp_path / "w", n_train=2, n_val=0, n_test=4, progress=False)
    assert recognise(root) == "REFER"
    found = verify_dataset(root)
    counts = {row["split"]: row["examples"] for row in found.attrs["counts"]}
    labelled, raw = (read_ref_adv(root / name) for name in (LABELLED_FILE, RAW_FILE))
    assert counts["Ref-Adv all"] == len(labelled) + len(raw) and {"train", "test"} < set(counts)
    assert set(found["severity"]) == {"note"} and set(found["split"]) == {"Ref-Adv all"}
    rows = json.loads((root / LABELLED_FILE).read_text())
    rows["annotations"][0]["bboxes"] = "broken"
    (root / LABELLED_FILE).write_text(json.dumps(rows))
    faults = verify_dataset(root).query("severity == 'error'")
    assert faults["file"].tolist() == [LABELLED_FILE] and faults["split"].tolist() == ["Ref-Adv all"]
    assert {row["split"] for row in verify_dataset(root, "train").attrs["counts"]} == {"train"}


# --- the real files --------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def raw():
    return read_ref_adv(ADV / RAW)


@pytest.fixture(scope="module")
def labelled():
    return {label: read_ref_adv(ADV / LABELLED.format(part)) for label, part in PARTS.items()}


@needs_adv
def test_real_files_read_whole_and_are_written_as_they_were(raw, labelled, tmp_path):
    def plain(rows, name):
        return [{**row, name: json.loads(row[name]) if isinstance(row[name], str) else row[name]} for row in rows]

    assert [len(raw), *(len(found) for found in labelled.values())] == [500, 1500, 400, 500]
    for file, some, form in ((RAW, raw, "raw"), *((LABELLED.format(PARTS[label]), found, "labelled")
                                                  for label, found in labelled.items())):
        before = json.loads((ADV / file).read_text())
        after = json.loads(write_ref_adv(some, tmp_path / file, form=form).read_text())
        if form == "raw":
            assert list(before) == list(after)
            before, after = before.values(), after.values()
        else:
            before, after = before["annotations"], after["annotations"]
        name = "bbox_candidates_map" if form == "raw" else "bboxes"
        assert plain(before, name) == plain(after, name)


@needs_adv
def test_all_real_records_pass_two_of_three_by_iou_and_only_by_iou(raw):
    records = json.loads((ADV / RAW).read_text())
    literal = {"iou": Counter(), "exact": Counter()}
    for record in records.values():
        boxes = {n: (x, y, x + w, y + h) for n, (x, y, w, h) in json.loads(record["bbox_candidates_map"]).items()}
        target, chosen = record["most_confused_bbox_number"], [row["dropdownselect"] for row in record["assigns"]]
        literal["exact"][sum(number == target for number in chosen)] += 1
        literal["iou"][sum(literal_iou(boxes[number], boxes[target]) >= 0.5 for number in chosen)] += 1
    assert literal == {"iou": {3: 335, 2: 165}, "exact": {3: 329, 2: 166, 1: 4, 0: 1}}
    for reading in READINGS:
        table = votes_right(judge(raw, shipped_choices(raw), 2, reading=reading)).loc["adv"]
        assert table[table > 0].to_dict() == dict(literal[reading])
    assert len(validated(raw)) == 500 and validated(raw, reading="exact").left_out == {"not located": 5}


@needs_adv
def test_real_targets_are_not_the_originals_and_their_originals_are_hard(raw, labelled):
    assert all(one.box != hard_originals([one])[0].box for one in raw)
    originals, hard = hard_originals(raw), {(one.annotation, one.text): one for one in labelled["hard"]}
    both = [(one, hard[one.annotation, one.text]) for one in originals if (one.annotation, one.text) in hard]
    assert len(originals) == 444 and len(both) == 242 and all(a.box == b.box and a.image == b.image for a, b in both)
    assert {one.split for one in split_by_text([b for _, b in both], raw)} == {"hard"}
    assert {one.split for one in split_by_text(labelled["easy"], raw)} == {"easy"}


@needs_adv
def test_real_candidate_sets_differ_between_the_splits(labelled):
    table = candidate_counts([one for found in labelled.values() for one in found])
    for label, found in labelled.items():
        shares = [np.mean([literal_iou(box, one.box) >= 0.5 for box in one.candidates]) for one in found]
        assert np.isclose(table.loc[label, "random"], np.mean(shares), atol=1e-12)
    assert table.loc["easy", "one_box"] == 336 and table.loc["adv", "one_box"] == 0
    assert np.allclose(table["boxes"], [3565 / 1500, 2782 / 400, 3406 / 500])
    assert table.loc["easy", "random"] > 2 * table.loc["adv", "random"]


@needs_adv
def test_real_counts_are_those_of_a_literal_count(labelled):
    every = [one for found in labelled.values() for one in found]
    table = split_counts(every)
    for label, found in labelled.items():
        lengths = [len(words_of(one.text)) for one in found]
        assert table.loc[label, ["expressions", "images"]].tolist() == [len(found), len({one.image for one in found})]
        assert table.loc[label, "vocabulary"] == len(set(itertools.chain(*(words_of(one.text) for one in found))))
        assert table.loc[label, "mean_words"] == np.mean(lengths)
        row = length_distribution(found).set_index("words")["n"]
        assert all(row[n] == lengths.count(n) for n in row.index) and row.sum() == len(found)
    assert table.loc[["adv", "hard", "easy"], "mean_words"].is_monotonic_decreasing  # Figure 6
    assert np.isnan(table.loc["adv", "share_of_test"]) and np.isclose(table["share_of_test"].sum(), 1)


@needs_refcoco
def test_real_detections_as_candidates():
    """50 sentences of RefCOCO testA with MAttNet's detections (x, y, width, height), which may miss the target."""
    rows = json.loads((REFCOCO / "testA_refcoco_unc_dets.clip-refcoco.json").read_text())
    images = [f"{n}.jpg" for n in range(len(rows))]
    some = [Expression(str(n), images[n], str(n), row["sent"], corner(row["gt_box"])) for n, row in enumerate(rows)]
    found = with_candidates(some, {image: [corner(b) for b in row["pred_boxes"]] for image, row in zip(images, rows)})
    shares = [np.mean([literal_iou(box, one.box) >= 0.5 for box in one.candidates]) for one in found]
    table = candidate_counts(found).loc[""]
    assert np.isclose(table["random"], np.mean(shares)) and table["target_missing"] == sum(s == 0 for s in shares)
    assert 0 < table["random"] < 1


# --- RefCOCOg ---------------------------------------------------------------------------------------------------------

def sentence(number, text):
    return {"sent_id": number, "sent": text.lower(), "raw": text, "tokens": text.lower().split()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two pictures, one object of three spoken of in the first; annotation 4 has no area and is no candidate."""
    place = tmp_path_factory.mktemp("x") / "refcocog"
    place.mkdir()
    boxes = {7: (254, [40, 30, 20, 22]), 8: (254, [5, 8, 25, 52]), 9: (254, [90, 10, 51, 30]), 4: (254, [3, 3, 0, 5]),
             12: (255, [1, 1, 20, 20])}
    refs = [{"ref_id": 31, "ann_id": 7, "image_id": 254, "category_id": 47, "split": "test", "sent_ids": [1, 2],
             "sentences": [sentence(1, "Cup on it."), sentence(2, "the cup")]},
            {"ref_id": 32, "ann_id": 12, "image_id": 255, "category_id": 1, "split": "train", "sent_ids": [3],
             "sentences": [sentence(3, "a man")]}]
    (place / "refs(umd).p").write_bytes(pickle.dumps(refs, protocol=2))
    (place / "instances.json").write_text(json.dumps({
        "images": [{"id": n, "file_name": f"COCO_train2014_{n:012d}.jpg", "height": 90, "width": 140}
                   for n in (254, 255)],
        "annotations": [{"id": n, "image_id": image, "bbox": box, "category_id": 1 if n == 12 else 47}
                        for n, (image, box) in boxes.items()],
        "categories": [{"id": 47, "name": "cup", "supercategory": "kitchen"},
                       {"id": 1, "name": "person", "supercategory": "person"}]}))
    return place


def test_refcocog_with_three_kinds_of_candidates(folder):
    fair, spoken = refcocog(folder), refcocog(folder, candidates="released")
    assert [(one.id, one.text, one.category, one.group, one.image) for one in fair] == [
        ("31/1", "Cup on it.", "cup", "254", CUP.image), ("31/2", "the cup", "cup", "254", CUP.image)]
    assert fair[0].candidates == ((40, 30, 60, 52), (5, 8, 30, 60), (90, 10, 140, 40))  # the last is cut to the picture
    assert spoken[0].candidates == ((40, 30, 60, 52),)
    given_ = refcocog(folder, candidates={CUP.image: [[0, 0, 9, 9]]})
    assert given_[0].candidates == ((0, 0, 9, 9),) and not given_[0].right().any()
    assert category_kinds(folder) == {"cup": "kitchen", "person": "person"}
    assert [one.split for one in refcocog(folder, "train")] == ["train"]
    with pytest.raises(ExampleError, match="there is no split 'testA'"):
        refcocog(folder, "testA")
    with pytest.raises(ValueError, match="candidates: expected"):
        refcocog(folder, candidates="every")


def test_the_join_gives_ref_category_and_equal_candidates(folder, tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps({"annotations": [
        ROW | {"bboxes": {"1": [40, 30, 20, 22]}},
        {**ROW, "annID": "7", "label": "adv", "gt_bbox": "2", "bboxes": json.dumps({"1": [40, 30, 20, 22], "2": [
            90, 10, 51, 30]}), "img_file_name": CUP.image}]}))
    released = read_ref_adv(tmp_path / "rows.json")
    easy, adv = join(released, folder)
    assert (easy.ref, easy.category, adv.ref, adv.category) == ("31", "cup", "31", "cup")
    assert easy.candidates == adv.candidates and adv.box == (90, 10, 140, 40)
    kept, _ = join(released, folder, "released")
    assert kept.candidates == ((40, 30, 60, 52),)
    elsewhere = replace(released[1], box=(0, 60, 20, 80))
    assert join([elsewhere], folder)[0].category == ""  # no annotated object there
    assert join(released, folder, {CUP.image: []})[1].candidates == ()


@pytest.mark.parametrize(("wrong", "reason"), [
    ({"annotation": "99"}, "unknown annotation id"), ({"annotation": ""}, "unknown annotation id"),
    ({"annotation": "9"}, "unknown annotation id"), ({"ref": "77"}, "unknown ref id"),
    ({"ref": "32"}, "ids do not fit"),
    ({"group": "255"}, "another picture"), ({"box": (5, 8, 30, 60)}, "another box")])
def test_what_does_not_fit_refcocog_is_named_or_counted(folder, wrong, reason):
    bad = replace(CUP, **wrong)
    with pytest.raises(ExampleError, match=f"example cup: {reason}"):
        join([bad], folder)
    found = join([bad, replace(CUP, id="good")], folder, on_error="record")
    assert [one.id for one in found] == ["good"] and found.left_out == {reason: 1}
    with pytest.raises(ValueError, match="on_error: expected 'raise' or 'record'"):
        join([bad], folder, on_error="skip")


# --- people -----------------------------------------------------------------------------------------------------------

def literal_judgement(one, votes, needed, reading):
    right = 0
    wrong = {}
    for vote in votes:
        if vote is None:
            continue
        box = one.candidates[vote]
        if box == one.box if reading == "exact" else literal_iou(box, one.box) >= 0.5:
            right += 1
        else:
            wrong[vote] = wrong.get(vote, 0) + 1
    verdict = 1 if right >= needed else 0 if len(votes) - right >= needed else None
    confused, most, ties = None, 0, 0
    for place in sorted(wrong):
        if wrong[place] > most:
            confused, most, ties = place, wrong[place], 0
        elif wrong[place] == most:
            ties += 1
    same_, pairs = 0, 0
    for i in range(len(votes)):
        for j in range(i):
            pairs += 1
            same_ += votes[i] is not None and votes[i] == votes[j]
    return right, verdict, confused, most, ties, same_ / pairs if pairs else None


@given(st.data(), st.integers(1, 6), st.integers(1, 5), st.sampled_from(READINGS))
@settings(max_examples=50, deadline=None)
def test_judging_equals_a_literal_count(data, n_boxes, n_votes, reading):
    small = st.tuples(*[st.integers(0, 4)] * 2, *[st.integers(1, 4)] * 2).map(corner)
    boxes = data.draw(st.lists(small, min_size=n_boxes, max_size=n_boxes))
    one = replace(CUP, box=data.draw(st.sampled_from(boxes)), candidates=boxes)
    votes = data.draw(st.lists(st.none() | st.integers(0, n_boxes - 1), min_size=n_votes, max_size=n_votes))
    needed = n_votes // 2 + 1
    row = judge([one], {"cup": votes}, needed, reading=reading).iloc[0]
    right, verdict, confused, most, ties, same_ = literal_judgement(one, votes, needed, reading)
    counts = row[["right", "confused_votes", "confused_ties", "no_box"]].tolist()
    assert counts == [right, most, ties, votes.count(None)]
    assert (None if np.isnan(row["located"]) else row["located"]) == verdict
    assert (None if pd.isna(row["confused"]) else row["confused"]) == confused
    assert row["agreement"] == pytest.approx(np.nan if same_ is None else same_, nan_ok=True)
    split = split_by_people([one], {"cup": votes}, needed, reading=reading)
    assert [found.split for found in split] == ([] if verdict is None else ["easy" if verdict else "hard"])
    targets = adversarial_targets([one], judge([one], {"cup": votes}, needed, reading=reading))
    assert targets == ({"cup": tuple(map(float, boxes[confused]))} if verdict == 0 and confused is not None else {})


@pytest.mark.parametrize(("votes", "needed", "words"), [
    ({}, 3, "choices: expected those of one"), ({"cup": []}, 3, "choices: expected"),
    ({"cup": [4]}, 1, "places 0 to 3"),
    ({"cup": [-1]}, 1, "places 0 to 3"), ({"cup": ["1"]}, 1, "places 0 to 3"),
    ({"cup": [0, 1, 2, 3]}, 2, "more than half"),
    ({"cup": [0], "tea": [1]}, 1, "1 of no given expression")])
def test_choices_that_cannot_be_judged(votes, needed, words):
    with pytest.raises(ExampleError, match=words):
        judge([CUP], votes, needed)


def test_readings_undecided_and_one_annotator():
    with pytest.raises(ValueError, match="reading: expected 'iou' or 'exact'"):
        judge([CUP], {"cup": [0]}, 1, reading="box")
    assert split_by_people([CUP], {"cup": [0, 0, 1, None]}).left_out == {"undecided": 1}
    table = agreement(judge([CUP], {"cup": [0]}, 1)).loc["easy"]
    assert table["unanimous"] == table["located"] == 1 and np.isnan(table["agreement"]) and table["by_chance"] == 0.25
    for shipped in ({}, {"assigns": "no JSON"}, {"assigns": '[{"x": 1}]'}, {"assigns": '[{"dropdownselect": "a"}]'}):
        with pytest.raises(ExampleError, match="example cup: assigns: expected a JSON list"):
            shipped_choices([replace(CUP, shipped=shipped)])
    with pytest.raises(ExampleError, match="places 0 to 3"):
        validated([replace(CUP, shipped={"assigns": '[{"dropdownselect": "9"}]'})])


# --- the two rules ----------------------------------------------------------------------------------------------------

@given(st.lists(st.tuples(st.sampled_from(["A cup", "a cup ", "the man", "dog"]), st.booleans(), st.booleans()),
                max_size=8))
@settings(max_examples=30, deadline=None)
def test_the_rules_part_for_two_reasons_alone(rows):
    """rows: text, hard for people, an adversarial expression of its own stands (only a hard one can have one)."""
    test = [replace(CUP, id=str(n), text=text, annotation=str(n), split="") for n, (text, _, _) in enumerate(rows)]
    votes = {str(n): [1] * 5 if hard else [0] * 5 for n, (_, hard, _) in enumerate(rows)}
    adv = [replace(one, split="adv", original=one.text.strip().lower())
           for one, (_, hard, own) in zip(test, rows) if hard and own]
    adv.append(replace(CUP, id="z", split="adv", original="zebra"))
    by_text, by_people = split_by_text(test, adv), split_by_people(test, votes)
    found = rule_differences(by_text, by_people, adv)
    texts_ = {one.original for one in adv}
    for row, (text, hard, own) in zip(found.itertuples(), rows):
        assert (row.by_text == "hard") == (text.strip().lower() in texts_) and (row.by_people == "hard") == hard
        assert row.own == (hard and own) and row.reason in REASONS
        assert (row.reason == REASONS[0]) == (row.by_text == row.by_people)
    assert rule_table(found)["n"].sum() == len(rows)


def test_originals_with_capitals_match_nothing_as_in_the_authors_program():
    adv = [replace(CUP, id="a", split="adv", original="The cup on the saucer")]
    assert split_by_text([CUP], adv)[0].split == "easy"
    with pytest.raises(ValueError, match="read the raw form"):
        split_by_text([CUP], [CUP])


# --- counts -----------------------------------------------------------------------------------------------------------

def test_relations_by_the_longest_spelling():
    assert relations_in("The man in front of a car, to the left of it, on top of it") == ["in front of", "left", "on"]
    assert relations_in("Right next to the box on the far right.") == ["next to", "right"]
    assert relations_in("") == relations_in("dog") == []
    spellings = relation_words()
    assert all(relations_in(" ".join(words)) == [name] for words, name in spellings.items())
    assert RELATIONS_FILE.read_text(encoding="utf-8").count("ours") >= 1 and len(set(spellings.values())) == 28


@given(st.lists(st.lists(st.sampled_from(["on", "top", "of", "in", "front", "dog", "left", "to", "the"]), max_size=8),
                max_size=5))
@settings(max_examples=30, deadline=None)
def test_relation_frequency_equals_a_literal_scan(rows):
    some = [replace(CUP, id=str(n), text=" ".join(words) or "dog") for n, words in enumerate(rows)]
    count, spellings = Counter(), {" ".join(words): name for words, name in relation_words().items()}
    for one in some:
        words = one.text.split()
        while words:
            size = max((n for n in range(1, len(words) + 1) if " ".join(words[:n]) in spellings), default=0)
            count.update([spellings[" ".join(words[:size])]] if size else [])
            words = words[size or 1:]
    table = relation_frequency(some).set_index("relation")
    assert table["n"].to_dict() == dict(count)
    assert not count or np.isclose(table["relative"].sum(), 1)


def test_category_shares_leave_the_unknown_beside():
    kinds = {"cup": "kitchen", "dog": "animal", "robot": "machine"}
    some = [replace(CUP, id=str(n), category=name) for n, name in enumerate(["cup", "cup", "dog", "", "unicorn"])]
    table = category_shares(some, kinds)
    assert table.loc["kitchen", "easy"] == 2 / 3 and table.attrs["unknown"] == {"easy": 2} and len(table) == 12
    assert category_shares([replace(CUP, category="robot")], kinds).index[-1] == "machine"
    assert category_shares([replace(CUP, category="")], kinds)["easy"].isna().all()
    assert split_counts([CUP]).loc["easy", "mean_words"] == 5 and split_counts([]).empty
    assert length_distribution([]).empty and relation_frequency([]).empty


def test_the_miniworlds_files_read_join_and_part_by_text(tmp_path):
    from qgcam_lib.miniworld import ensure_refcocog

    place = ensure_refcocog(tmp_path / "w", n_train=0, n_val=0, n_test=8, progress=False)
    labelled = read_ref_adv(place / "adv_easy_hard_annotations.json")
    raw = read_ref_adv(place / "refcocog_adv_annotations.json")
    joined = join(labelled, place)
    assert len(joined) == len(labelled) and all(one.category and one.box in one.candidates for one in joined)
    assert validated(raw) == raw and all(one.category for one in join(raw, place))
    hard = {one.text for one in labelled if one.split == "hard"}
    assert {one.text for one in split_by_text(refcocog(place), raw) if one.split == "hard"} == hard
