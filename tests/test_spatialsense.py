"""SpatialSense: the real example and relations, three splits, and relations broken in every way."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qgcam_lib.data import catalog
from qgcam_lib.data.catalog import load_dataset, recognise, verify_dataset
from qgcam_lib.data.records import Dataset
from qgcam_lib.data.spatialsense import SpatialSense, image_place
from qgcam_lib.errors import ExampleError
from qgcam_lib.grounding import ground

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


def test_ground_takes_it(root):
    class Centre:
        card = {"name": "centre"}

        def maps(self, image, phrases):
            return np.ones((len(phrases), 3, 4), np.float32)

    frame = ground(Centre(), SpatialSense(root, "objects"), progress=False)
    assert frame["id"].tolist() == ["a", "c"] and frame["image"].tolist() == ["images/flickr/1.jpg", "images/nyu/2.jpg"]


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


def broken(kind):
    content = records()
    first = content[0]["annotations"][0] = json.loads(json.dumps(content[0]["annotations"][0]))
    changes = {
        "no box": lambda: first["subject"].pop("bbox"), "box of three": lambda: first["subject"].update(bbox=[1, 2, 3]),
        "box as x, y": lambda: first["subject"].update(bbox=[30, 10, 25, 5]),
        "box outside": lambda: first["subject"].update(bbox=[61, 70, 5, 25]),
        "box not a number": lambda: first["subject"].update(bbox=[float("nan"), 30, 5, 25]),
        "no name": lambda: first["subject"].update(name=" "), "no predicate": lambda: first.update(predicate=""),
        "no subject": lambda: first.pop("subject"), "no label": lambda: first.pop("label"),
        "label as text": lambda: first.update(label="true"),
        "no size": lambda: content[0].update(height=None), "size of zero": lambda: content[0].update(width=0),
        "two sizes": lambda: content.append({**content[0], "height": 61, "annotations": []}),
    }
    changes[kind]()
    return content


WORDS = {"no box": "subject has no box", "box of three": "subject has no box", "box as x, y": "empty or inverted",
         "box outside": "wholly outside", "box not a number": "finite", "no name": "the subject has no name",
         "no predicate": "the predicate has no name", "no subject": "the subject has no name",
         "no label": "label must be true or false", "label as text": "label must be true or false",
         "no size": "a height and width", "size of zero": "a height and width", "two sizes": "one height and width"}


@pytest.mark.parametrize("kind", WORDS)
def test_what_is_broken_costs_only_its_own_relation(root, kind):
    write(root, broken(kind))
    patient = SpatialSense(root, on_error="record")
    (problem,) = patient.problems
    assert WORDS[kind] in problem.problem and problem.id == ("flickr/1.jpg/*" if "size" in kind else "a")
    assert [e.id for e in patient] == ["c"] and problem.file == "annotations.json"
    for ask in (list, lambda data: data.example("a")):
        with pytest.raises(ExampleError, match=WORDS[kind]):
            ask(SpatialSense(root))
    assert SpatialSense(root).example("c").prompt == "sofa behind wifi router"


def test_ids_that_are_missing_or_used_twice(root):
    content = records()
    content[1]["annotations"] += [relation(id, CAT, "on", SOFA) for id in ("a", "c", "")] + ["nonsense"]
    write(root, content)
    data = SpatialSense(root, on_error="record")
    assert [e.id for e in data] == ["a", "c"]
    assert [(p.id, p.severity) for p in data.problems] == [("a#2", "error"), ("c#2", "error"), ("nyu/2.jpg/*", "error"),
                                                           ("nyu/2.jpg/*", "error")]


def test_a_predicate_is_only_needed_in_a_triplet(root):
    write(root, broken("no predicate"))
    assert SpatialSense(root, "subjects")["a"].prompt == "wifi router"


def test_a_picture_listed_twice_is_one_picture(root):
    content = records()
    content.append({**content[0], "annotations": [relation("z", SOFA, "near", CAT)]})
    write(root, content)
    assert [e.id for e in SpatialSense(root)] == ["a", "z", "c"]


@pytest.mark.parametrize("text, words", [
    ("[", "usable as JSON"), ("{}", "expected a list of pictures, got a dict"), ("[" * 100_000, "usable as JSON"),
    ('[{"url": 1}]', "no usable url, split, annotations"),
    ('[{"url": "http://x/..", "split": "test", "annotations": []}]', "plain file name"),
])
def test_a_file_that_is_none(root, text, words):
    (root / "annotations.json").write_text(text)
    with pytest.raises(ExampleError, match=words):
        len(SpatialSense(root, on_error="record"))


def test_where_pictures_lie(root, tmp_path):
    assert image_place("https://a/b/c.jpg") == "flickr/c.jpg" and image_place("b/c.jpg") == "nyu/c.jpg"
    (root / "images").rename(root / "elsewhere")
    assert SpatialSense(root).verify().problem.tolist()[:2] == ["the picture is missing"] * 2
    assert SpatialSense(root, images=root / "elsewhere").verify().problem.str.contains("missing").sum() == 0


def test_layout_counts_and_options(root, tmp_path):
    assert recognise(root) == "SpatialSense" and len(load_dataset(root, "objects", boxes="union")) == 2
    counts = verify_dataset(root).attrs["counts"]
    assert [(row["split"], row["examples"], row["expected"]) for row in counts] == [(s, 2, 1811) for s in SPLITS]
    assert "2 examples; 1,811 are expected" in SpatialSense(root).verify().problem.iloc[-1]
    with pytest.raises(ValueError, match="split: expected one of 'triplets', 'subjects', 'objects', got 'test'"):
        load_dataset(root)
    with pytest.raises(ValueError, match="part: expected one of"):
        SpatialSense(root, part="dev")
    with pytest.raises(ExampleError, match="expected annotations.json, found"):
        SpatialSense(root / "images")


def test_the_miniworld_is_read(tmp_path, monkeypatch):
    from qgcam_lib import miniworld

    monkeypatch.setattr(catalog, "settings", catalog.settings.model_copy(update={"data_root": tmp_path}))
    small, few = miniworld.ensure_spatialsense, dict(n_test=4, n_train=0, n_valid=0, progress=False)
    monkeypatch.setattr("qgcam_lib.miniworld.writers.spatialsense.ensure_spatialsense",
                        lambda root, anew: small(root, **few))
    for split in SPLITS:
        data = load_dataset("miniworld-spatialsense", split)
        assert data.is_miniworld and data.name == "miniworld-spatialsense"
        assert len(data) > 0 and len(data.verify()) == 0
