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
from qgcam_lib.data.referring.expressions import Expression, Expressions, candidate_counts, of_split, with_candidates
from qgcam_lib.data.referring.files import category_kinds, hard_originals, join, read_ref_adv, refcocog
from qgcam_lib.data.referring.splits import (
    REASONS,
    RELATIONS_FILE,
    adversarial_targets,
    agreement,
    category_shares,
    judge,
    length_distribution,
    relation_frequency,
    relation_words,
    relations_in,
    rule_differences,
    rule_table,
    shipped_choices,
    split_by_people,
    split_by_text,
    split_counts,
    validated,
    votes_right,
    words_of,
)
from qgcam_lib.errors import ExampleError

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

@pytest.mark.parametrize("wrong", [
    {"box": (60, 30, 40, 52)}, {"box": (0, 0, float("nan"), 1)}, {"box": (0, 0, 1)}, {"box": None},
    {"candidates": [(4, 4, 4, 9)]}, {"candidates": [("a", 0, 1, 1)]}, {"candidates": 3}, {"text": " \n"}, {"id": ""},
    {"group": 254}, {"split": None}, {"shipped": {"shuffle": 3}}])
def test_a_record_refuses_what_cannot_be_right_and_names_it(wrong):
    with pytest.raises(ExampleError, match=f"field '{list(wrong)[0]}") as caught:
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


def test_a_half_counts():
    half = replace(CUP, box=(0, 0, 10, 10), candidates=[(0, 0, 10, 5), (0, 0, 10, 4.9), (0, 0, 10, 5.1)])
    assert half.right().tolist() == [True, False, True]


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


def published(one, form):
    """An expression as a row of a published file, with its types."""
    boxes = {str(n): [x0, y0, round(x1 - x0, 6), round(y1 - y0, 6)]
             for n, (x0, y0, x1, y1) in enumerate(one.candidates, 1)}
    number = str(one.candidates.index(one.box) + 1)
    if form == "raw":
        shipped = {name: json.loads(value) if name == "assigns" else value for name, value in one.shipped.items()}
        return {**shipped, "most_confused_bbox_GT_desc": one.text, "raw_str": one.original, "refID": one.ref,
                "annID": one.annotation, "imgID": one.group, "img_file_name": one.image,
                "bbox_candidates_map": json.dumps(boxes), "most_confused_bbox_number": number}
    row = {"label": one.split, "expression": one.text, "img_file_name": one.image}
    if one.split == "adv":
        return row | {"annID": one.annotation, "gt_bbox": number, "bboxes": json.dumps(boxes)}
    name = one.image.replace(".jpg", f"_{one.annotation}.jpg")
    return row | {"annID": int(one.annotation), "gt_bbox": int(number), "bboxes": boxes, "img_file_name": name}


@given(st.lists(records("adv"), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_the_raw_form_gives_back_everything(tmp_path_factory, some):
    some = [replace(one, id=f"task{n}_batch1") for n, one in enumerate(some)]
    path = tmp_path_factory.mktemp("raw") / "adv.json"
    path.write_text(json.dumps({one.id: published(one, "raw") for one in some}))
    again = read_ref_adv(path)
    assert [one.id for one in again] == [one.id for one in some]
    for one, other in zip(some, again):
        same(one, other)
        choices = shipped_choices([other])[other.id]
        assert choices == [int(row["dropdownselect"]) - 1 if row["dropdownselect"] != "0" else None
                           for row in json.loads(one.shipped["assigns"])]


@given(st.lists(st.one_of(records("easy"), records("hard"), records("adv")), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_the_labelled_form_gives_back_what_it_has_fields_for(tmp_path_factory, some):
    path = tmp_path_factory.mktemp("labelled") / "rows.json"
    path.write_text(json.dumps({"annotations": [published(one, "labelled") for one in some]}))
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
    ({"bboxes": "not JSON"}, "field 'bboxes'"), ({"bboxes": {}}, "field 'bboxes'"),
    ({"bboxes": '{"1": [0, 0, 4, 4], "1": [9, 9, 1, 1]}'}, "field 'bboxes'"),
    ({"bboxes": {"1": [0, 0, 4]}}, "field 'bboxes.1.3' is missing"),
    ({"bboxes": {"1": [0, 0, 4, 4], "3": [0, 0, 4, 4]}}, "boxes"),
    ({"bboxes": {"1": [9, 9, -4, 4]}}, "field 'bboxes.1.2'"),
    ({"gt_bbox": 3}, "target"), ({"gt_bbox": True}, "field 'gt_bbox'"), ({"label": "Hard"}, "field 'label'"),
    ({"expression": " "}, "field 'text'"), ({"annID": [7]}, "field 'annID'"),
    ({"img_file_name": ""}, "field 'img_file_name'")])
def test_a_bad_row_is_named(tmp_path, wrong, reason):
    (tmp_path / "rows.json").write_text(json.dumps({"annotations": [ROW, ROW | wrong, ROW]}))
    with pytest.raises(ExampleError, match=reason):
        read_ref_adv(tmp_path / "rows.json")


def test_the_target_is_the_confused_box_not_that_of_the_original(tmp_path):
    (tmp_path / "raw.json").write_text(json.dumps({"t_b": RAW_ROW}))
    adv, = read_ref_adv(tmp_path / "raw.json")
    assert adv.box == (5, 8, 30, 60) and hard_originals([adv])[0].box == (40, 30, 60, 52)
    (tmp_path / "raw.json").write_text(json.dumps({"t_b": RAW_ROW | {"most_confused_bbox_number": "9"}}))
    with pytest.raises(ExampleError, match="example t_b, .*raw.json: target: "):
        read_ref_adv(tmp_path / "raw.json")


def test_the_catalog_finds_and_verifies_a_folder(tmp_path):
    rows = {"t_b": RAW_ROW, "bad": RAW_ROW | {"annID": None}}
    (tmp_path / "refcocog_adv_annotations.json").write_text(json.dumps(rows))
    assert recognise(tmp_path) == "Ref-Adv, raw"
    faults = verify_dataset(tmp_path)
    assert faults["severity"].tolist() == ["error"] and faults["id"].tolist() == ["bad"]
    with pytest.raises(ExampleError, match="read_ref_adv"):
        load_dataset(tmp_path)


# --- the real files --------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def raw():
    return read_ref_adv(ADV / RAW)


@pytest.fixture(scope="module")
def labelled():
    return {label: read_ref_adv(ADV / LABELLED.format(part)) for label, part in PARTS.items()}


@needs_adv
def test_real_files_are_read_whole(raw, labelled):
    def plain(rows, name):
        return [{**row, name: json.loads(row[name]) if isinstance(row[name], str) else row[name]} for row in rows]

    assert [len(raw), *(len(found) for found in labelled.values())] == [500, 1500, 400, 500]
    for file, some, form in ((RAW, raw, "raw"), *((LABELLED.format(PARTS[label]), found, "labelled")
                                                  for label, found in labelled.items())):
        before = json.loads((ADV / file).read_text())
        after = [published(one, form) for one in some]
        assert form != "raw" or list(before) == [one.id for one in some]
        before = before.values() if form == "raw" else before["annotations"]
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
    table = votes_right(judge(raw, shipped_choices(raw), 2)).loc["adv"]
    assert table[table > 0].to_dict() == dict(literal["iou"]) and len(validated(raw)) == 500


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


def test_refcocog_with_all_objects_as_candidates(folder):
    fair = refcocog(folder)
    assert [(one.id, one.text, one.category, one.group, one.image) for one in fair] == [
        ("31/1", "Cup on it.", "cup", "254", CUP.image), ("31/2", "the cup", "cup", "254", CUP.image)]
    assert fair[0].candidates == ((40, 30, 60, 52), (5, 8, 30, 60), (90, 10, 140, 40))  # the last is cut to the picture
    assert category_kinds(folder) == {"cup": "kitchen", "person": "person"}
    assert [one.split for one in refcocog(folder, "train")] == ["train"]
    with pytest.raises(ExampleError, match="there is no split 'testA'"):
        refcocog(folder, "testA")


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
    with pytest.raises(ValueError, match="candidates: expected"):
        join(released, folder, "every")


@pytest.mark.parametrize(("wrong", "reason"), [
    ({"annotation": "99", "ref": ""}, "unknown id"), ({"annotation": "", "ref": ""}, "unknown id"),
    ({"annotation": "9"}, "ids do not match"), ({"ref": "77"}, "unknown id"), ({"ref": "32"}, "ids do not match"),
    ({"group": "255"}, "ids do not match"), ({"box": (5, 8, 30, 60)}, "boxes do not match")])
def test_what_does_not_fit_refcocog_is_named(folder, wrong, reason):
    with pytest.raises(ExampleError, match=f"example cup: {reason}"):
        join([replace(CUP, **wrong)], folder)


# --- people -----------------------------------------------------------------------------------------------------------

def literal_judgement(one, votes, needed):
    right = 0
    wrong = {}
    for vote in votes:
        if vote is None:
            continue
        if literal_iou(one.candidates[vote], one.box) >= 0.5:
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


@given(st.data(), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_judging_equals_a_literal_count(data, n_boxes, n_votes):
    small = st.tuples(*[st.integers(0, 4)] * 2, *[st.integers(1, 4)] * 2).map(corner)
    boxes = data.draw(st.lists(small, min_size=n_boxes, max_size=n_boxes))
    one = replace(CUP, box=data.draw(st.sampled_from(boxes)), candidates=boxes)
    votes = data.draw(st.lists(st.none() | st.integers(0, n_boxes - 1), min_size=n_votes, max_size=n_votes))
    needed = n_votes // 2 + 1
    row = judge([one], {"cup": votes}, needed).iloc[0]
    right, verdict, confused, most, ties, same_ = literal_judgement(one, votes, needed)
    counts = row[["right", "confused_votes", "confused_ties", "no_box"]].tolist()
    assert counts == [right, most, ties, votes.count(None)]
    assert (None if np.isnan(row["located"]) else row["located"]) == verdict
    assert (None if pd.isna(row["confused"]) else row["confused"]) == confused
    assert row["agreement"] == pytest.approx(np.nan if same_ is None else same_, nan_ok=True)
    split = split_by_people([one], {"cup": votes}, needed)
    assert [found.split for found in split] == ([] if verdict is None else ["easy" if verdict else "hard"])
    targets = adversarial_targets([one], judge([one], {"cup": votes}, needed))
    assert targets == ({"cup": tuple(map(float, boxes[confused]))} if verdict == 0 and confused is not None else {})


@pytest.mark.parametrize(("votes", "needed", "words"), [
    ({}, 3, "choices: expected the choices of at"), ({"cup": []}, 3, "choices: expected"),
    ({"cup": [4]}, 1, "index, 0 to 3"),
    ({"cup": [-1]}, 1, "index, 0 to 3"), ({"cup": ["1"]}, 1, "index, 0 to 3"),
    ({"cup": [0, 1, 2, 3]}, 2, "more than half"),
    ({"cup": [0], "tea": [1]}, 1, "1 ids belong to none")])
def test_choices_that_cannot_be_judged(votes, needed, words):
    with pytest.raises(ExampleError, match=words):
        judge([CUP], votes, needed)


def test_undecided_and_one_annotator():
    assert split_by_people([CUP], {"cup": [0, 0, 1, None]}).left_out == {"undecided": 1}
    table = agreement(judge([CUP], {"cup": [0]}, 1)).loc["easy"]
    assert table["unanimous"] == table["located"] == 1 and np.isnan(table["agreement"]) and table["by_chance"] == 0.25
    for shipped in ({}, {"assigns": "no JSON"}, {"assigns": '[{"dropdownselect": "a"}]'}):
        with pytest.raises(ExampleError, match="assigns"):
            shipped_choices([replace(CUP, shipped=shipped)])


# --- the two rules ----------------------------------------------------------------------------------------------------

@given(st.lists(st.tuples(st.sampled_from(["A cup", "a cup ", "the man", "dog"]), st.booleans(), st.booleans()),
                max_size=8))
@settings(max_examples=30, deadline=None)
def test_the_rules_part_for_two_reasons_alone(rows):
    """rows: text, hard for people, an adversarial expression was made from it (only a hard one can have one)."""
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
    with pytest.raises(ValueError, match="Read them from the raw file"):
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
