"""SpatialSense: the real example and relations, three splits, and relations broken in every way."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qgcam_lib.data.records import Dataset
from qgcam_lib.data.spatialsense import SpatialSense, image_place
from qgcam_lib.errors import ExampleError
from qgcam_lib.grounding.run import ground

SHARED = Path(__file__).parents[1] / ".." / "shared" / "realdata" / "spatialsense"
needs_real = pytest.mark.skipif(not SHARED.is_dir(), reason="no real SpatialSense files (../shared/realdata)")
SPLITS = ("triplets", "subjects", "objects")


def thing(name, *box):
    return {"name": name, "x": 1, "y": 1, "bbox": list(box)}


def relation(id, subject, predicate, object, label=True):
    return {"_id": id, "subject": subject, "predicate": predicate, "object": object, "label": label}


CAT, SOFA = thing("wifi router", 10, 30, 5, 25), thing("sofa", 20, 62, 40, 80)


def records():
    def record(url, split, *relations):
        return {"url": url, "nsid": "n", "height": 60, "width": 80, "split": split, "annotations": list(relations)}

    return [record("https://farm4.staticflickr.com/3543/1.jpg", "test", relation("a", CAT, "to the left of", SOFA),
                   relation("b", SOFA, "on", CAT, label=False)),
            record("some/where/2.jpg", "test", relation("c", SOFA, "behind", CAT)),
            record("http://x/3.jpg", "valid", relation("d", CAT, "under", SOFA)),
            record("http://x/4.jpg", "test", relation("e", CAT, "in", SOFA, label=False))]


def write(root, content):
    (root / "annotations.json").write_text(json.dumps(content))


@pytest.fixture
def root(tmp_path):
    for name in ("flickr/1.jpg", "nyu/2.jpg", "flickr/3.jpg", "flickr/4.jpg"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((60, 80, 3), 90, np.uint8)).save(tmp_path / "images" / name)
    write(tmp_path, records())
    return tmp_path


def test_three_splits_of_the_same_relations(root):
    data = {split: SpatialSense(root, split) for split in SPLITS}
    assert all(isinstance(d, Dataset) and [e.id for e in d] == ["a", "c"] for d in data.values())
    assert [d["a"].prompt for d in data.values()] == ["wifi router to the left of sofa", "wifi router", "sofa"]
    subject, object = [[5, 10, 25, 30]], [[40, 20, 80, 60]]  # the object's box is cut at the picture's edge
    assert [d["a"].boxes.tolist() for d in data.values()] == [subject, subject, object]
    assert data["triplets"]["a"].group == "flickr/1.jpg" and data["triplets"]["c"].group == "nyu/2.jpg"
    assert data["objects"]["a"].category == "to the left of" and data["objects"]["a"].meta["truth"] == "object"
    card = data["objects"].describe()
    assert (card["relations"], card["examples"], card["skipped"]) == (4, 2, {"label False": 2})
    assert card["clipped_boxes"] == 1
    assert len({d.fingerprint() for d in data.values()}) == 3
    assert len(SpatialSense(root, part="val")) == 1 and len(SpatialSense(root, part="all")) == 3


@needs_real
def test_the_real_example(tmp_path):
    content = json.loads((SHARED / "annotation_readme_example.json").read_text())
    write(tmp_path, content)
    assert len(SpatialSense(tmp_path)) == 0, "it belongs to the training part"
    on, left = SpatialSense(tmp_path, part="train")
    assert (on.prompt, left.prompt) == ("cat on ground", "cat to the left of mirror")
    assert on.boxes.tolist() == [[31, 230, 264, 434]] and on.size == (500, 281)
    assert SpatialSense(tmp_path, "objects", "train")[on.id].boxes.tolist() == [[3, 196, 278, 500]]
    assert on.image == tmp_path / "images/flickr/5704634119_8b8ccf3229.jpg"


@needs_real
def test_real_boxes_are_rows_first(tmp_path):
    """In real relations the words agree with the boxes as the loader reads them: what is under lies lower."""
    rows = [row for path in sorted(SHARED.glob("vsd_v1_*_rows.json")) for row in json.loads(path.read_text())]
    content = {}
    for number, row in enumerate(rows):
        new = {"url": f"http://x/{row['img_id']}", "split": "test", "height": 9000, "width": 9000, "annotations": []}
        for k, t in enumerate(row["triple_list"]):
            parts = thing(t["s"], *t["s_bbox"]), t["p"], thing(t["o"], *t["o_bbox"])
            content.setdefault(row["img_id"], new)["annotations"].append(relation(f"{number}-{k}", *parts))
    write(tmp_path, list(content.values()))
    subjects, objects = (SpatialSense(tmp_path, split, on_error="record") for split in ("subjects", "objects"))
    assert len(rows) >= 536 and len(subjects) > 0.95 * sum(len(r["annotations"]) for r in content.values())
    middles = {e.id: (e.category, e.boxes[0].reshape(2, 2).mean(0)) for e in subjects}
    pairs = [(*middles[e.id], e.boxes[0].reshape(2, 2).mean(0)) for e in objects if e.id in middles]
    for predicate, sign in (("above", -1), ("under", 1)):  # "left" is also meant as the person in the picture sees it
        agrees = [sign * (subject - object)[1] > 0 for name, subject, object in pairs if name == predicate]
        assert len(agrees) > 40 and np.mean(agrees) > 0.8, predicate


BROKEN = {  # what is done to the first relation, the field that is told
    "no box": (lambda first: first["subject"].pop("bbox"), "subject.bbox"),
    "box as x, y": (lambda first: first["subject"].update(bbox=[30, 10, 25, 5]), "inverted"),
    "box outside": (lambda first: first["subject"].update(bbox=[61, 70, 5, 25]), "outside"),
    "box not a number": (lambda first: first["subject"].update(bbox=[float("nan"), 30, 5, 25]), "finite"),
    "no name": (lambda first: first["subject"].update(name=" "), "subject.name"),
    "label as text": (lambda first: first.update(label="true"), "label"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_broken_costs_only_its_own_relation(root, kind):
    content = json.loads(json.dumps(records()))
    change, words = BROKEN[kind]
    change(content[0]["annotations"][0])
    write(root, content)
    patient = SpatialSense(root, on_error="record")
    (problem,) = patient.problems
    assert words in problem.problem and problem.id == "a"
    assert [e.id for e in patient] == ["c"] and problem.file == "annotations.json"
    for ask in (list, lambda data: data.example("a")):
        with pytest.raises(ExampleError, match=words):
            ask(SpatialSense(root))
    assert SpatialSense(root).example("c").prompt == "sofa behind wifi router"


class Centre:
    card = {"name": "centre"}

    def maps(self, image, phrases):
        return np.ones((len(phrases), 3, 4), np.float32)


def test_an_id_that_is_missing_or_used_twice(root):
    content = records()
    content[1]["annotations"] += [relation(id, CAT, "on", SOFA) for id in ("a", "")]
    write(root, content)
    data = SpatialSense(root, on_error="record")
    assert [e.id for e in data] == ["a", "c", "a"] and [(p.id, p.severity) for p in data.problems] == [("", "error")]
    with pytest.raises(ExampleError, match="used twice"):
        ground(Centre(), data, progress=False)


def test_a_picture_listed_twice_is_one_picture(root):
    content = records()
    content.append({**content[0], "annotations": [relation("z", SOFA, "near", CAT)]})
    write(root, content)
    assert [e.id for e in SpatialSense(root)] == ["a", "z", "c"]


def test_where_pictures_lie(root, tmp_path):
    assert image_place("https://a/b/c.jpg") == "flickr/c.jpg" and image_place("b/c.jpg") == "nyu/c.jpg"
    (root / "images").rename(root / "elsewhere")
    assert SpatialSense(root).verify().problem.tolist()[:2] == ["the picture is missing"] * 2
    assert SpatialSense(root, images=root / "elsewhere").verify().problem.str.contains("missing").sum() == 0
