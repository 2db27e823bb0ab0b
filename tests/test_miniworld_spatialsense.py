"""The miniworld as SpatialSense: the official form, true and false relations that are so, and a look of its own."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from qgcam_lib.miniworld import (
    ensure_spatialsense,
    make_picture,
)
from qgcam_lib.miniworld.art.draw import Dice
from qgcam_lib.miniworld.scenes.spatial_truth import PREDICATES9, is_false, is_true
from qgcam_lib.miniworld.scenes.strange import FAULTS, PLACES_FLICKR, PLACES_NYU, make_strange, paint_place, spoil
from qgcam_lib.miniworld.writers.spatialsense import record

REAL = Path(__file__).resolve().parents[1].parent / "shared" / "realdata" / "spatialsense"
OPPOSITE = {
    "to the left of": "to the right of",
    "above": "under",
    "behind": "in front of",
}
SMALL = dict(n_test=4, n_train=2, n_valid=2, progress=False)


@pytest.fixture(scope="module")
def records():
    return [record(i, "test") for i in range(60)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return ensure_spatialsense(tmp_path_factory.mktemp("spatial") / "w", **SMALL)


def rows(records, label=None):
    return [(a, p) for e, p in records for a in e["annotations"] if label in (None, a["label"])]


# ---------------------------------------------------------------- the official form


def test_entries_have_the_official_keys(records):
    for entry, picture in records:
        flickr = entry["url"].startswith("http")
        assert set(entry) == {"url", "height", "width", "split", "annotations"} | ({"nsid"} if flickr else set())
        assert (entry["height"], entry["width"]) == picture.image.shape[:2]
        for a in entry["annotations"]:
            assert set(a) == {"_id", "predicate", "subject", "object", "label"}
            assert a["predicate"] in PREDICATES9 and isinstance(a["label"], bool)
            assert re.fullmatch("[0-9a-f]{24}", a["_id"])
            for end in (a["subject"], a["object"]):
                assert set(end) == {"name", "bbox", "x", "y"}
                y0, y1, x0, x1 = end["bbox"]
                assert 0 <= y0 <= end["y"] < y1 <= entry["height"] and 0 <= x0 <= end["x"] < x1 <= entry["width"]
                assert all(isinstance(v, int) for v in (*end["bbox"], end["x"], end["y"]))
    ids = [a["_id"] for a, _ in rows(records)]
    assert len(set(ids)) == len(ids)


@pytest.mark.skipif(not REAL.is_dir(), reason="no real SpatialSense example (../shared/realdata)")
def test_keys_and_types_are_those_of_the_real_example(records):
    def shape(value):
        if isinstance(value, dict):
            return {k: shape(v) for k, v in sorted(value.items())}
        return [shape(v) for v in value[:1]] if isinstance(value, list) else type(value).__name__

    real = json.loads((REAL / "annotation_readme_example.json").read_text())[0]
    ours = next(e for e, _ in records if e["url"].startswith("http") and e["annotations"])
    assert shape(ours) == shape(real)


def test_boxes_and_points_belong_to_the_named_things(records):
    for a, p in rows(records):
        for end in (a["subject"], a["object"]):
            y0, y1, x0, x1 = end["bbox"]
            t = next(t for t in p.scene.things if t.box == (x0, y0, x1, y1) and p.mask(t.id)[end["y"], end["x"]])
            assert p.mask(t.id)[y0:y1, x0:x1].sum() == p.mask(t.id).sum()


def test_the_official_way_from_address_to_picture(root):
    entries = json.loads((root / "annotations.json").read_text())
    folders = Counter()
    for entry in entries:
        folder = "flickr" if entry["url"].startswith("http") else "nyu"
        with Image.open(root / "images" / folder / entry["url"].split("/")[-1]) as picture:
            assert picture.size == (entry["width"], entry["height"]) and picture.format == "JPEG"
        folders[folder] += 1
    assert folders["flickr"] and folders["nyu"]
    assert {e["split"] for e in entries} == {"train", "valid", "test"} and all(e["annotations"] for e in entries)


# ---------------------------------------------------------------- true and false, checked without the scene graph


def box(end):
    y0, y1, x0, x1 = end["bbox"]
    return x0, y0, x1, y1


def holds(a):
    "What boxes alone say of a relation: True or False where they decide it, else None."
    p, q = box(a["subject"]), box(a["object"])
    dx, dy = (p[0] + p[2] - q[0] - q[2]) / 2, (p[1] + p[3] - q[1] - q[3]) / 2
    apart = max(max(p[0], q[0]) - min(p[2], q[2]), max(p[1], q[1]) - min(p[3], q[3]))
    if a["predicate"] in ("to the left of", "to the right of"):
        return None if abs(dx) < 2 else (dx < 0) == (a["predicate"] == "to the left of")
    if a["predicate"] in ("above", "under"):
        return None if abs(dy) < 2 else (dy < 0) == (a["predicate"] == "above")
    return False if a["predicate"] in ("on", "in") and apart >= 2 else None


def test_true_relations_agree_with_the_boxes(records):
    decided = [holds(a) for a, _ in rows(records, True)]
    assert False not in decided and decided.count(True) > 30


def test_false_relations_disagree_with_the_boxes(records):
    for a, _ in rows(records, False):
        if holds(a):  # only where the two stand level, or nearly on the same spot
            p, q = box(a["subject"]), box(a["object"])
            level = min(p[3], q[3]) - max(p[1], q[1]) >= 0.5 * min(p[3] - p[1], q[3] - q[1])
            middle = abs(p[0] + p[2] - q[0] - q[2]) / 2 <= 0.08 * (p[2] - p[0]) + 1e-9
            assert level if a["predicate"] in ("above", "under") else middle, a


def test_contact_is_in_the_scene(records):
    for a, p in rows(records):
        if a["predicate"] in ("on", "in", "under"):
            ids = [
                next(t.id for t in p.scene.things if t.box == box(e) and p.mask(t.id)[e["y"], e["x"]])
                for e in (a["subject"], a["object"])
            ]
            graph = {(r.subject, r.predicate, r.object) for r in p.scene.relations}
            found = {
                "on": (ids[0], "on", ids[1]) in graph
                or (ids[0], "riding", ids[1]) in graph
                or (ids[1], "wearing", ids[0]) in graph,
                "in": (ids[0], "inside", ids[1]) in graph,
                "under": (ids[0], "under", ids[1]) in graph or p.scene.thing(ids[1]).pose == "flying",
            }[a["predicate"]]
            assert found == a["label"] or (a["predicate"] == "under" and not a["label"]), a


def test_no_relation_is_both_and_opposites_never_hold_together():
    seen = Counter()
    for p in [make_picture(i) for i in range(12)] + [make_strange(i, "test", seed=5, indoors=False) for i in range(12)]:
        numbers = [t.id for t in p.scene.top_level()]
        for a, b in ((a, b) for a in numbers for b in numbers if a != b):
            for predicate in PREDICATES9:
                yes, no = is_true(p, a, predicate, b), is_false(p, a, predicate, b)
                assert not (yes and no)
                seen["true" if yes else "false" if no else "open"] += 1
                if yes and predicate in OPPOSITE:
                    assert is_true(p, b, OPPOSITE[predicate], a) and is_false(p, a, OPPOSITE[predicate], b)
                if yes and predicate in ("on", "in"):
                    assert is_false(p, b, predicate, a)
    assert min(seen.values()) > 20


def test_names_single_out_one_thing(records):
    for entry, _ in records:
        by_name = {}
        for a in entry["annotations"]:
            for end in (a["subject"], a["object"]):
                by_name.setdefault(end["name"], set()).add(tuple(end["bbox"]))
        assert all(len(boxes) == 1 for boxes in by_name.values())


def test_falsehoods_are_tempting(records):
    "Most are about two things of which something else is true."
    same = total = 0
    for entry, _ in records:
        true = {frozenset((a["subject"]["name"], a["object"]["name"])) for a in entry["annotations"] if a["label"]}
        for a in entry["annotations"]:
            if not a["label"]:
                total += 1
                same += frozenset((a["subject"]["name"], a["object"]["name"])) in true
    assert same > 0.6 * total


# ---------------------------------------------------------------- the look


def test_every_place_and_fault_is_drawn_and_differs():
    places = {n: paint_place(n, 40, 50, 20, Dice(1)).pixels() for n in PLACES_FLICKR | PLACES_NYU}
    assert len({p.tobytes() for p in places.values()}) == 7 and all(p.shape == (40, 50, 3) for p in places.values())
    plain = make_picture(3).image
    spoiled = {n: spoil(plain, (n,), Dice(2)) for n in FAULTS}
    assert len({s.tobytes() for s in spoiled.values()} | {plain.tobytes()}) == len(FAULTS) + 1
    assert all(s.shape == plain.shape and s.dtype == np.uint8 and s.std() > 8 for s in spoiled.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 9), st.integers(3, 9), st.sampled_from(sorted(FAULTS)), st.integers(0, 255))
def test_a_fault_keeps_shape_and_range(height, width, name, level):
    image = np.full((height, width, 3), level, np.uint8)
    again = spoil(image, (name,), Dice(level))
    assert again.shape == image.shape and again.dtype == np.uint8
    assert np.array_equal(image, np.full_like(image, level))
