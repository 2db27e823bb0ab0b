"""RefCOCO, RefCOCO+ and RefCOCOg: the real record and boxes, splits, and files broken in every way."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from qgcam_lib.boxes import box_iou, xywh_to_xyxy
from qgcam_lib.data import catalog
from qgcam_lib.data.catalog import load_dataset, recognise, verify_dataset
from qgcam_lib.data.records import Dataset
from qgcam_lib.data.refer import REFER_COUNTS, Refer, in_split
from qgcam_lib.errors import ExampleError, FileFault
from qgcam_lib.grounding import ground

SHARED = Path(__file__).parents[1] / ".." / "shared" / "realdata"
RECORD, DETECTIONS = SHARED / "ref_adv/refs_umd_record_example.json", SHARED / "refcoco"
needs_record = pytest.mark.skipif(not RECORD.is_file(), reason="no real refs record (../shared/realdata/ref_adv)")
needs_boxes = pytest.mark.skipif(not DETECTIONS.is_dir(), reason="no real RefCOCO boxes (../shared/realdata/refcoco)")


def sentence(number, text):
    return {"sent_id": number, "sent": text, "raw": text.upper(), "tokens": text.split()}


def ref(number, image_id, ann_id, split, *sentences):
    return {"ref_id": number, "image_id": image_id, "ann_id": ann_id, "category_id": 1, "split": split,
            "file_name": f"COCO_train2014_{image_id:012d}_{ann_id}.jpg", "sentences": list(sentences),
            "sent_ids": [s["sent_id"] for s in sentences]}


REFS = [ref(1, 11, 101, "testA", sentence(1, "left man"), sentence(2, "man in red")),
        ref(2, 12, 103, "testA", sentence(3, "woman")), ref(3, 11, 102, "testA", sentence(4, "boy")),
        ref(4, 13, 104, "testB", sentence(5, "cup"), sentence(6, "the cup")),
        ref(5, 14, 105, "val", sentence(7, "dog")), ref(6, 14, 105, "testAB", sentence(8, "it"))]
BOXES = {101: (11, [5, 5, 20, 30]), 102: (11, [40.5, 10.25, 39.5, 49.75]), 103: (12, [0, 0, 80, 60]),
         104: (13, [60, 40, 30, 30]), 105: (14, [1, 2, 3, 4])}


def instances():
    return {"info": {}, "images": [{"id": i, "file_name": f"COCO_train2014_{i:012d}.jpg", "height": 60, "width": 80,
                                    "coco_url": "http://x"} for i in (11, 12, 13, 14)],
            "annotations": [{"id": a, "image_id": i, "category_id": 1, "bbox": box, "segmentation": [[1.5] * 8],
                             "iscrowd": 0, "area": 5.0} for a, (i, box) in BOXES.items()],
            "categories": [{"id": 1, "name": "person", "supercategory": "person"}]}


def write(root, refs=REFS, content=None, name="refcoco+", by="unc", protocol=2):
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / f"refs({by}).p").write_bytes(pickle.dumps(refs, protocol=protocol))
    (root / name / "instances.json").write_text(json.dumps(content or instances()))


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "data")
    pictures = tmp_path / "data/images/mscoco/images/train2014"
    pictures.mkdir(parents=True)
    for i in (11, 12, 13, 14):
        Image.fromarray(np.full((60, 80, 3), 10 * i, np.uint8)).save(pictures / f"COCO_train2014_{i:012d}.jpg")
    return tmp_path / "data"


# -- real things


@needs_record
def test_the_real_record_of_refcocog(tmp_path):
    record = json.loads(RECORD.read_text())
    ann, image = record[0]["ann_id"], record[0]["image_id"]
    box = [228.98, 41.4, 141.95, 270.38]  # of this annotation, in the Ref-Adv files
    content = {"images": [{"id": image, "file_name": "COCO_train2014_000000380440.jpg", "height": 480, "width": 640}],
               "annotations": [{"id": ann, "image_id": image, "category_id": 1, "bbox": box}],
               "categories": [{"id": 1, "name": "person"}]}
    write(tmp_path, record, content, "refcocog", "umd", protocol=0)
    first, second = Refer(tmp_path, "refcocog", "test")
    assert (first.id, first.prompt, second.prompt) == ("0/8", "the man in yellow coat", "skiier in red pants")
    assert Refer(tmp_path, "refcocog", "test", text="raw")["0/9"].prompt == "Skiier in red pants."
    assert np.allclose(first.boxes, [[228.98, 41.4, 370.93, 311.78]])
    assert first.image.name == "COCO_train2014_000000380440.jpg" and first.category == "person"
    assert first.meta == {"ref_id": 0, "ann_id": 491042, "sent_id": "8", "split": "test"}


@needs_boxes
def test_real_boxes_are_x_y_width_height():
    """Each real ground truth, read as we read it, meets the best of its image's real detections, mostly closely."""
    rows = json.loads(next(DETECTIONS.glob("testA_*dets*.json")).read_text())
    best = [box_iou(xywh_to_xyxy([row["gt_box"]]), xywh_to_xyxy(row["pred_boxes"])).max() for row in rows]
    inverted = [row for row in rows if row["gt_box"][2] <= row["gt_box"][0] or row["gt_box"][3] <= row["gt_box"][1]]
    assert len(rows) == 50 and np.mean(best) > 0.75 and len(inverted) > 20, "as corners, many would be upside down"


# -- what comes out


def test_sentences_are_examples_and_pictures_stay_together(root):
    data = Refer(root, "refcoco+", "testA")
    assert isinstance(data, Dataset) and (data.name, data.layout, data.split_by) == ("refcoco+", "RefCOCO+", "unc")
    assert [e.id for e in data] == ["1/1", "1/2", "3/4", "2/3", "6/8"] and len(data) == 5
    assert data.images() == ["11", "12", "14"] and data["3/4"].group == "11"
    assert data["1/2"].boxes.tolist() == [[5, 5, 25, 35]] and data["3/4"].boxes.tolist() == [[40.5, 10.25, 80, 60]]
    assert [data[i].id for i in range(-1, 2)] == ["6/8", "1/1", "1/2"]
    assert data["1/1"].image == root / "images/mscoco/images/train2014/COCO_train2014_000000000011.jpg"
    with pytest.raises(KeyError, match="no example '4/5' in split 'testA'"):
        data.example("4/5")
    with pytest.raises(IndexError):
        data[5]
    card = data.describe()
    assert (card["sentences"], card["objects"], card["images"], card["types"]) == (5, 4, 3, {"person": 5})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(["train", "val", "test", "testA", "testB", "testC", "testAB", "testBC"]))
def test_splits_divide(label):
    assert in_split(label, "all")
    assert sum(in_split(label, split) for split in ("train", "val", "test")) == 1
    for letter in "ABC":
        assert in_split(label, f"test{letter}") == (letter in label[4:] and label.startswith("test"))


def test_splits(root):
    assert [len(Refer(root, split=s)) for s in ("testA", "testB", "test", "val", "all")] == [5, 3, 7, 1, 8]
    with pytest.raises(ExampleError, match=r"splits of the file \(objects\): testA \(3\), testB \(1\), val \(1\)"):
        Refer(root, split="testZ").images()


def test_who_split_the_data(root):
    write(root, REFS[:1], name="refcocog", by="google")
    assert Refer(root, "refcocog", "testA").split_by == "google", "the only one there"
    write(root, REFS[:2], name="refcocog", by="umd")
    assert Refer(root, "refcocog", "testA").split_by == "umd", "the usual one"
    assert len(Refer(root, "refcocog", "testA", "google")) == 2
    with pytest.raises(ExampleError, match="split_by: expected one of 'google', 'umd', .* got 'unc'"):
        Refer(root, "refcocog", "testA", "unc")


@pytest.mark.parametrize("folder", ["images/mscoco/train2014", "images/train2014", "images", "train2014",
                                    "refcoco+/images"])
def test_pictures_are_found_where_people_put_them(root, folder):
    (root / "images/mscoco/images/train2014").rename(root / "moved")
    for path in ("images/mscoco/images", "images/mscoco", "images"):
        (root / path).rmdir()
    (root / folder).parent.mkdir(parents=True, exist_ok=True)
    (root / "moved").rename(root / folder)
    assert Refer(root, split="testB").verify().problem.str.contains("missing").sum() == 0
    with pytest.raises(ExampleError, match="images: expected an existing folder"):
        Refer(root, images=root / "nowhere")


class Centre:
    card = {"name": "centre"}

    def maps(self, image, phrases):
        return np.ones((len(phrases), 3, 4), np.float32)


def test_fingerprint_follows_content_not_place(root, tmp_path):
    first = Refer(root).fingerprint()
    assert Refer(root, on_error="record", boxes="union").fingerprint() == first
    assert len({first, Refer(root, text="raw").fingerprint(), Refer(root, split="testB").fingerprint()}) == 3
    moved = root.rename(tmp_path / "moved")
    assert Refer(moved).fingerprint() == first
    write(moved, REFS[:-1])
    assert Refer(moved).fingerprint() != first, "a changed file is read again"


def test_counts_of_complete_splits(root, monkeypatch):
    counts = {row["split"]: row for row in verify_dataset(root / "refcoco+").attrs["counts"]}
    assert (counts["testB"]["expected"], counts["testB"]["examples"]) == (4889, 3)
    assert Refer(root, split="testB").verify().severity.iloc[-1] == "warning"
    assert Refer(root, split="test").expected == 5726 + 4889 and Refer(root, split="all").expected is None
    monkeypatch.setitem(REFER_COUNTS, ("refcoco+", "unc"), {"testB": 3})
    assert set(Refer(root, split="testB").verify().severity) == {"note"}, "the box that sticks out"
    (root / "miniworld.json").write_text("{}")
    data = Refer(root, split="testB")
    assert (data.is_miniworld, data.name, data.expected) == (True, "miniworld-refcoco+", None)


# -- broken things


def put(place, **values):
    place.update(values)


BOTH, ALL_11 = ["1/1", "1/2"], ["1/1", "1/2", "3/4"]
KINDS = {  # what is done to (refs, images, annotations); words of the problem; ids that are lost
    "annotation missing": (lambda r, i, a: a.pop(0), "101 is not in instances.json", BOTH),
    "picture missing": (lambda r, i, a: i.pop(0), "picture 11 is not in", ALL_11),
    "other picture": (lambda r, i, a: put(a[0], image_id=12), "belongs to picture 12, not to 11", BOTH),
    "box without area": (lambda r, i, a: put(a[0], bbox=[5, 5, 0, 9]), "empty or inverted", BOTH),
    "box not a number": (lambda r, i, a: put(a[0], bbox=[5, 5, float("nan"), 9]), "finite", BOTH),
    "box outside": (lambda r, i, a: put(a[0], bbox=[90, 5, 5, 5]), "wholly outside", BOTH),
    "no size": (lambda r, i, a: put(i[0], height=None), "field 'height'", ALL_11),
    "name climbs out": (lambda r, i, a: put(i[0], file_name="../../secret.jpg"), "plain file name", ALL_11),
    "empty sentence": (lambda r, i, a: put(r[0]["sentences"][1], sent="  "), "prompt: expected", ["1/2"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_broken_costs_only_its_own_sentences(root, kind):
    change, words, lost = KINDS[kind]
    refs, content = json.loads(json.dumps(REFS)), instances()
    change(refs, content["images"], content["annotations"])
    write(root, refs, content)
    patient = Refer(root, on_error="record")
    errors = [p for p in patient.problems if p.severity == "error"]
    assert [p.id for p in errors] == lost and all(words in p.problem for p in errors)
    assert {p.file for p in errors} == {"refcoco+/refs(unc).p"}
    assert len(patient) + len(errors) == 5 and len(list(patient)) == len(patient)
    strict = Refer(root)
    with pytest.raises(ExampleError) as error:
        list(strict)
    assert all(part in str(error.value) for part in (lost[0], "refs(unc).p", "on_error='record'"))
    with pytest.raises(ExampleError, match="on_error='record'"):
        strict.example(lost[0])
    frame = ground(Centre(), patient, progress=False, on_error="record")
    assert len(frame) == 5 and frame.set_index("id")["error"].notna().sum() == len(lost)


@pytest.mark.parametrize("data, words", [
    (b"cos\nsystem\n(S'touch canary'\ntR.", r"refs\(unc\).p asks for os.system"),
    (b"\x80\x02]", "truncated, damaged or not a pickle"), (b"", "truncated, damaged or not a pickle .EOFError"),
])
def test_a_pickle_that_is_not_plain_data(root, data, words):
    (root / "refcoco+/refs(unc).p").write_bytes(data)
    with pytest.raises(FileFault, match=words):
        len(Refer(root, on_error="record"))
    assert not Path("canary").exists()


# -- by name or path


def test_load_dataset_finds_the_layout(root):
    assert recognise(root) is None and recognise(root / "refcoco+") == "REFER"
    assert load_dataset(root / "refcoco+", "testB", boxes="union").name == "refcoco+"
    with pytest.raises(ExampleError, match=r"Did you mean its folder 'refcoco\+'"):
        load_dataset(root, "testB")
    table = verify_dataset(root / "refcoco+")
    assert [row["split"] for row in table.attrs["counts"]] == ["testA", "testB", "val", "testAB"]


def test_miniworld_names_make_what_is_missing(tmp_path, monkeypatch):
    from qgcam_lib import miniworld

    monkeypatch.setattr(catalog, "settings", catalog.settings.model_copy(update={"data_root": tmp_path}))
    small = miniworld.ensure_refer
    few = dict(n_test=3, n_train=0, n_val=0, progress=False)
    monkeypatch.setattr("qgcam_lib.miniworld.writers.refer.ensure_refer",
                        lambda root, anew, progress: small(root, **few))
    for name, split in (("refcoco", "testA"), ("refcoco+", "testB"), ("refcocog", "test")):
        data = load_dataset(f"miniworld-{name}", split)
        assert data.is_miniworld and data.name == f"miniworld-{name}" and len(data) > 0 and len(data.verify()) == 0
    assert (tmp_path / "miniworld_refer/refcoco+/refs(unc).p").is_file()
