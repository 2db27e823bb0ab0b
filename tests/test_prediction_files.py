"""Prediction files: every form gives the same boxes, every fault is named by file and record."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.data.tricd.pairs import load_tricd
from qgcam_lib.errors import ExampleError, FileFault
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.prediction_files import read_predictions, write_predictions
from qgcam_lib.phrase_detection.prediction_rows import FORMS
from qgcam_lib.phrase_detection.predictions import pack

CAPTIONS = [("a cat on a table", [(2, 5), (11, 16)]), ("a dog", [(2, 5)])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("predictions")


@pytest.fixture(scope="module")
def data(folder):
    """Two groups of four pairs; pair 11 has phrases 110 and 111, the pictures are 000000000139.jpg and so on."""
    images, annotations = [], []
    for n in range(8):
        group, side, which = n // 4, n % 2, (n % 4) // 2
        caption, spans = CAPTIONS[which]
        pair = 11 + n
        images.append({"id": pair, "file_name": f"{139 + 2 * group + side:012d}.jpg", "caption": caption,
                       "source": "coco_test2017", "coco_type": "object", "positive": side == which, "height": 100,
                       "width": 100, "original_id": f"{group}_{side}",
                       "phrases": {str(10 * pair + k): [list(span)] for k, span in enumerate(spans)}})
        for k in range(len(spans) * (side == which)):
            annotations.append({"id": len(annotations), "image_id": pair, "phrase_id": 10 * pair + k,
                                "bbox": [10 * k, 5, 40, 30]})
    (folder / "annotations.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    return load_tricd(folder / "annotations.json")


def rows_of(data, seed=0):
    """(pair id, place of the phrase, phrase id, text, score, box xyxy), sorted by pair and phrase."""
    rng = np.random.default_rng(seed)
    return [(pair.id, k, phrase.id, phrase.text, float(rng.random()), (rng.random(4) * 40 + [0, 0, 50, 50]).tolist())
            for pair in data.pairs for k, phrase in enumerate(pair.phrases) for _ in range(rng.integers(0, 4))]


def xywh(box):
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]


def written(folder, form, data, rows):
    """The rows as a file of a form, and the options that it needs."""
    path, options, content = folder / f"{form}.json", {}, None
    ids = list(dict.fromkeys(row[0] for row in rows))
    if form in ("tricd", "labels"):
        key = {"tricd": "phrase_ids", "labels": "labels"}[form]
        content = {id: {"scores": [r[4] for r in rows if r[0] == id], "boxes": [r[5] for r in rows if r[0] == id],
                        key: [r[2 if form == "tricd" else 1] for r in rows if r[0] == id]} for id in ids}
        options = {"phrases": 0} if form == "labels" else {}
    elif form.startswith("flickr"):  # as GLIP makes it: a last box without a score
        content = []
        for pair in data.pairs:
            mine = [[r for r in rows if r[0] == pair.id and r[1] == k] for k in range(len(pair.phrases))]
            end = [[0.0, 0.0, 0.0, 0.0]] if form == "flickr" else []
            content.append({"image_id": pair.id, "sentence_id": 0, "boxes": [[r[5] for r in m] + end for m in mine],
                            "scores": [[r[4] for r in m] for m in mine]})
    elif form in ("coco", "phrase_coco", "annotations", "vocabulary", "instances"):
        texts = sorted({r[3] for r in rows})
        label = {"phrase_coco": ("phrase_id", lambda r: r[2]), "vocabulary": (
            "category_id", lambda r: texts.index(r[3]))}.get(form, ("category_id", lambda r: r[1] + 1))
        content = [{"image_id": r[0], label[0]: label[1](r), "bbox": xywh(r[5]), "score": r[4]} for r in rows]
        options = {"phrase_coco": {}, "vocabulary": {"phrases": [t.upper() for t in texts]}}.get(form, {"phrases": 1})
        if form == "annotations":
            content = {"images": [], "annotations": [dict(record, area=1, iscrowd=0) for record in content]}
        if form == "instances":
            content = [{"image_id": id, "instances": [r for r in content if r["image_id"] == id]} for id in ids]
            path = path.with_suffix(".pth")
            torch.save(content, path)
            return path, options
    elif form in ("csv", "parquet", "xywh.csv"):
        path = folder / f"table.{form}"
        names, boxes = (list("xywh"), [xywh(r[5]) for r in rows]) if "xywh" in form else (
            ["x0", "y0", "x1", "y1"], [r[5] for r in rows])
        frame = pd.DataFrame(boxes, columns=names).assign(image_id=[r[0] for r in rows], score=[r[4] for r in rows],
                                                          phrase_id=[r[2] for r in rows])
        frame.to_parquet(path) if form == "parquet" else frame.to_csv(path, index=False)
        return path, {}
    path.write_text(json.dumps(content))
    return path, options


EVERY = ["tricd", "labels", "flickr", "flickr_bare", "coco", "phrase_coco", "annotations", "vocabulary", "instances",
         "csv", "parquet", "xywh.csv"]


@pytest.mark.parametrize("form", EVERY)
def test_every_form_gives_the_same_boxes(folder, data, form):
    rows = rows_of(data)
    path, options = written(folder, form, data, rows)
    found = read_predictions(path, data, **options)
    assert found.form in FORMS and found.file == str(path) and not found.left_out and found.n_boxes == len(rows)
    for id in {row[0] for row in rows}:
        mine = [row for row in rows if row[0] == id]
        assert found[id]["scores"].tolist() == [row[4] for row in mine]
        assert found[id]["phrase_ids"].tolist() == [row[2] for row in mine]
        np.testing.assert_allclose(found[id]["boxes"], [row[5] for row in mine], atol=1e-12)
    assert evaluate(data, found).value.notna().any()


@pytest.mark.parametrize("form", [form for form in EVERY if not form.endswith(("csv", "parquet", "instances"))])
def test_what_a_file_holds_is_read_as_well_without_the_file(folder, data, form):
    path, options = written(folder, form, data, rows_of(data, 1))
    found, packed = read_predictions(path, data, **options), pack(data, json.loads(path.read_text()), **options)
    ids = data.phrase_ids[packed.phrase]
    for name, column in (("scores", packed.score), ("boxes", packed.boxes), ("phrase_ids", ids)):
        assert np.array_equal(np.concatenate([entry[name] for entry in found.values()]), column)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_writing_and_reading_change_nothing(tmp_path_factory, data, seed):
    folder = tmp_path_factory.mktemp("round")
    path, _ = written(folder, "tricd", data, rows_of(data, seed))
    first = read_predictions(path, data)
    again = read_predictions(write_predictions(folder / "a" / "again.json", first), data)
    assert list(again) == list(first)
    for id in first:
        assert all(np.array_equal(again[id][key], first[id][key]) for key in ("scores", "boxes", "phrase_ids"))
    assert [file.name for file in (folder / "a").iterdir()] == ["again.json"]


def test_a_detector_of_pictures_serves_every_pair_of_the_picture(folder, data):
    records = [{"image_id": image, "category_id": category, "bbox": [0, 5, 40, 30], "score": 0.5}
               for image in (139, 140, 999) for category in (0, 1)]
    (folder / "detic.json").write_text(json.dumps(records))
    found = read_predictions(folder / "detic.json", data, image_ids="file", phrases={0: "dog", 1: "bird"})
    assert {id: entry["phrase_ids"].tolist() for id, entry in found.items()} == {11: [], 13: [130], 12: [], 14: [140]}
    assert found.left_out == {"of pictures that the annotations do not have": 2,
                              "of categories that are no phrase of the pair": 6}
    for images in ({139: [11, 13], 140: 14, "999": 15}, {"139": [11, 13], "140": [14], "999": [15]}):
        found = read_predictions(folder / "detic.json", data, image_ids=images, phrases=["dog", "bird"])
        assert list(found) == [11, 13, 14, 15] and found[13]["phrase_ids"].tolist() == [130]
    named = [dict(record, image_id=f"{record['image_id']:012d}.jpg") for record in records[:2]]
    (folder / "named.json").write_text(json.dumps(named))
    assert 13 in read_predictions(folder / "named.json", data, image_ids="file", phrases=["dog", "bird"])


def test_sentences_of_a_picture_can_be_mapped(folder, data):
    entries = [{"image_id": 139, "sentence_id": k, "boxes": [[[0, 0, 9, 9]]] * n, "scores": [[0.5]] * n}
               for k, n in ((0, 2), (1, 1))]
    (folder / "sentences.json").write_text(json.dumps(entries))
    found = read_predictions(folder / "sentences.json", data, image_ids={"139_0": 11, "139_1": 13})
    assert {id: entry["phrase_ids"].tolist() for id, entry in found.items()} == {11: [110, 111], 13: [130]}


def test_equal_phrases_of_a_pair_all_get_the_box(tmp_path):
    image = {"id": 1, "file_name": "1.jpg", "caption": "dog bites dog", "source": "winoground", "positive": True,
             "original_id": "0_0", "height": 9, "width": 9, "phrases": {"1": [[0, 3]], "2": [[10, 13]]}}
    (tmp_path / "a.json").write_text(json.dumps({"images": [image], "annotations": []}))
    record = {"image_id": 1, "category_id": 4, "bbox": [0, 0, 1, 1], "score": 1}
    (tmp_path / "p.json").write_text(json.dumps([record]))
    found = read_predictions(tmp_path / "p.json", load_tricd(tmp_path / "a.json"), phrases={"4": " Dog"})
    assert found[1]["phrase_ids"].tolist() == [1, 2]


@pytest.mark.parametrize("text", ["{}", "[]", '{"11": {"scores": [], "boxes": [], "phrase_ids": []}}'])
def test_a_silent_model_is_read(folder, data, text):
    (folder / "silent.json").write_text(text)
    found = read_predictions(folder / "silent.json", data)
    assert found.n_boxes == 0 and evaluate(data, found).query("metric == 'AP' and subset == 'all'").value.item() == 0


ENTRY = {"scores": [0.5, 0.4], "boxes": [[0, 0, 9, 9], [1, 1, 2, 2]], "phrase_ids": [110, 111]}
RECORD = {"image_id": 11, "phrase_id": 110, "bbox": [0, 0, 9, 9], "score": 0.5}


def detic(category):
    return {"image_id": 11, "category_id": category, "bbox": [0, 0, 1, 1], "score": 1}


FLICKR = {"image_id": 11, "sentence_id": 0, "boxes": [[[0, 0, 9, 9]], []], "scores": [[0.5], []]}


@pytest.mark.parametrize(("content", "options", "said"), [
    ({"99": ENTRY}, {}, "image 99"), ({"11": {**ENTRY, "phrase_ids": [110, 120]}}, {}, "image 11, box 1"),
    ({"11": {**ENTRY, "scores": [0.5, float("nan")]}}, {}, "image 11, box 1.*scores"),
    ({"11": {**ENTRY, "boxes": [[0, 0, 9, 9], [5, 5, 2, 8]]}}, {}, "image 11, box 1.*boxes"),
    ({"11": ENTRY, "011": ENTRY}, {}, "image 011"),
    ([RECORD, {**RECORD, "bbox": [0, 0, -1, 9]}], {}, "row 2, image 11.*bbox"), ([RECORD, 7], {}, "row 2"),
    ([{**RECORD, "image_id": 10**9}], {}, "image 1000000000"), ([detic(1)], {}, "category ids"),
    ([detic(2)], {"phrases": 0}, "row 1, image 11"), ([detic(2)], {"phrases": ["a"]}, "row 1"),
    ([detic(0)], {"phrases": ["a"]}, "expected boxes for the phrases"), ([RECORD], {"image_ids": {5: 11}}, "image 11"),
    ([FLICKR, FLICKR], {}, "entry 1.*a second entry"), ([{**FLICKR, "scores": [[0.5, 0.4], []]}], {}, "phrase 0"),
    ([1, 2], {}, "form"),
])
def test_faults_are_named(folder, data, content, options, said):
    path = folder / "fault.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ExampleError, match=said) as told:
        read_predictions(path, data, **options)
    assert "fault.json" in str(told.value)


@pytest.mark.parametrize(("name", "content"), [
    ("cut.json", b'{"11": {"scores": [0.1'), ("two.json", b'{"11": {}, "11": {}}'),
    ("bad.csv", b"image_id,score\n11,0.5\n"),
    ("empty.csv", b""), ("bad.parquet", b"PAR1"), ("bad.pth", b"nonsense"),
])
def test_broken_files_are_named(folder, data, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(FileFault, match=name):
        read_predictions(folder / name, data)


def test_a_torch_file_runs_no_code(folder, data):
    class Trap:
        def __reduce__(self):
            return (open, (str(folder / "sprung"), "w"))

    torch.save([Trap()], folder / "trap.pth")
    with pytest.raises(ExampleError, match="could run code"):
        read_predictions(folder / "trap.pth", data)
    assert not (folder / "sprung").exists()


def test_tensors_are_read(folder, data):
    torch.save([{"image_id": 11, "boxes": [[[0.0, 0, 9, 9], [0.0] * 4], [[0.0] * 4]],
                 "scores": [[torch.tensor(0.5)], []]}], folder / "glip.pth")
    found = read_predictions(folder / "glip.pth", data)
    assert found.n_boxes == 1 and found[11]["phrase_ids"].tolist() == [110]


# --- whatever a file holds, it is read or refused --------------------------------------------------------------------

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 200), st.floats(width=16), st.text(max_size=2))
THINGS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner,
                                                                                          max_size=2), max_leaves=6)
VALID = {"tricd": {"11": ENTRY}, "labels": {"11": {**ENTRY, "phrase_ids": [], "labels": [0, 1]}}, "flickr": [FLICKR],
         "coco": [RECORD, detic(0)], "annotations": {"annotations": [detic(0)]},
         "instances": [{"image_id": 11, "instances": [detic(1)]}]}


def places(value, path=()):
    """Every place in a nested value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


@settings(max_examples=150, deadline=None)
@given(draw=st.data())
def test_a_spoiled_file_is_read_or_refused(folder, data, draw):
    content = json.loads(json.dumps(VALID[draw.draw(st.sampled_from(sorted(VALID)))]))
    *path, last = draw.draw(st.sampled_from([place for place in places(content) if place]))
    holder = content
    for key in path:
        holder = holder[key]
    holder[last] = draw.draw(THINGS)
    (folder / "fuzz.json").write_text(json.dumps(content))
    phrases = draw.draw(st.sampled_from([None, 0, 1, "id", ["cat", "dog"], {"0": "cat"}]))
    try:
        found = read_predictions(folder / "fuzz.json", data, image_ids=draw.draw(st.sampled_from(["pair", "file"])),
                                 phrases=phrases)
    except ExampleError as error:
        assert "fuzz.json" in str(error)
    else:
        evaluate(data, found)


@pytest.mark.parametrize("wrong", [{"scores": [float("nan"), 0]}, {"scores": [0.5]}, {"phrase_ids": [1, 2.5]}])
def test_writing_refuses_and_leaves_the_old_file(tmp_path, wrong):
    path = write_predictions(tmp_path / "p.json", {11: ENTRY})
    before = path.read_bytes()
    with pytest.raises(ExampleError, match="image 11"):
        write_predictions(path, {11: {**ENTRY, **wrong}})
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
