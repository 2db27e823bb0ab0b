"""The miniworld as RefCOCO, RefCOCO+ and RefCOCOg: the official layout, and expressions true of one thing only."""

import json
import pickle
import pickletools
import re
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools.coco import COCO

from qgcam_lib.miniworld import ensure_refer, vocabulary
from qgcam_lib.miniworld.art.draw import Dice
from qgcam_lib.miniworld.scenes.crowd import SPLITS, make_crowd, rivals
from qgcam_lib.miniworld.words.expressions import MANNERS, expressions, identifies
from qgcam_lib.miniworld.words.words import FITS
from qgcam_lib.miniworld.writers.refer import (
    annotated_things,
    instances,
    rectangles,
    references,
)

LISTS = {"refcoco": ["refs(unc).p"], "refcoco+": ["refs(unc).p"], "refcocog": ["refs(umd).p", "refs(google).p"]}
FORBIDDEN = set(
    "left right middle center centre top bottom upper lower front behind back above below over under beneath beside "
    "near next between side corner edge far close closest nearest farthest first second third last end on at".split()
)
PLAIN = {
    *("PROTO STOP MARK EMPTY_LIST EMPTY_DICT APPEND APPENDS SETITEM SETITEMS BINUNICODE BINPUT LONG_BINPUT".split()),
    *("BINGET LONG_BINGET BININT BININT1 BININT2".split()),
}


@pytest.fixture(scope="module")
def crowds():
    return {s: [make_crowd(i, s, seed=2026) for i in range(30)] for s in ("testA", "testB")}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return ensure_refer(tmp_path_factory.mktemp("refer") / "w", n_test=8, n_train=3, n_val=3, progress=False)


def load(path):
    return pickle.loads(path.read_bytes())


# ---------------------------------------------------------------- crowds


def test_every_reference_has_a_rival_and_the_right_sort(crowds):
    for split, pictures in crowds.items():
        for p in pictures:
            things = annotated_things(p.scene)
            for manner in MANNERS:
                for ref in references(p.scene, manner):
                    t = things[ref["ann_id"]]
                    assert (t.category in ("people", "animals")) == (split == "testA")
                    sort = [a["category_id"] for a in instances(p)]
                    assert rivals(p.scene, t.id) and sort.count(ref["category_id"]) >= 2


# ---------------------------------------------------------------- truth: an independent reading of the words

SIZES = {"small": "small", "little": "small", "large": "large", "big": "large"}
MARKS = {"striped": "striped", "dotted": "dotted", "spotted": "dotted", "checked": "checked", "checkered": "checked"}
COLOUR = set("red orange yellow green blue purple pink brown black white gray blond".split())
STUFF = {"wooden", "metal", "woolen", "glass"}
PLACE_WORDS = re.compile(
    r" (on the beach|on the sand|at the beach|on a sandy beach|on the road|in the street|on a gray road|on the grass"
    r"|in a field|in a green meadow|in the snow|in a snowy field|on the snow|in a room|on the floor|in a living room)$"
)
SIDES = re.compile(r"(?:^| )(?:(?:on|in)(?: the)? )?(left|right|middle)(?= |$)")
LINK = re.compile(
    r" (?:standing |that is )?((?:to the )?left of|(?:to the )?right of|behind|in front of|holding|carrying) "
)


def noun_phrase(words):
    "A noun phrase as (noun or None, {attribute: value})."
    noun, facts = None, {}
    for w in words:
        if w in ("a", "an", "the"):
            continue
        for key, table in (("size", SIZES), ("pattern", MARKS)):
            if w in table:
                facts[key] = table[w]
        if w in COLOUR:
            facts["colour"] = w
        elif w in STUFF:
            facts["material"] = w
        elif w not in SIZES and w not in MARKS:
            assert w in FITS and noun is None, (w, words)
            noun = w
    return noun, facts


def fits(t, phrase):
    noun, facts = phrase
    named = t.category == "clothing" if noun is None else t.noun in FITS[noun]
    return named and all(getattr(t, k) == v for k, v in facts.items())


def centre(t):
    return (t.box[0] + t.box[2]) / 2


def meet(p, q):
    return all(min(p[k + 2], q[k + 2]) > max(p[k], q[k]) for k in (0, 1))


def related(scene, t, link, phrase):
    "Whether the words can be true of a thing, read from boxes and from who holds what."
    for o in scene.top_level():
        if o.id == t.id or not fits(o, phrase):
            continue
        if link in ("holding", "carrying", "with"):
            if any((r.subject, r.predicate, r.object) == (t.id, "holding", o.id) for r in scene.relations):
                return True
        elif "left" in link or "right" in link:
            if (centre(t) < centre(o)) == ("left" in link):
                return True
        elif (t.depth <= o.depth) == (link == "behind") and meet(t.box, o.box):
            return True
    return False


def read(words, scene):
    "All top-level things of which an expression can be true."
    words = PLACE_WORDS.sub("", words)
    conditions = []
    while found := list(LINK.finditer(words)):
        link = found[-1]
        conditions.append((link.group(1), noun_phrase(words[link.end() :].split())))
        words = words[: link.start()]
    side = SIDES.search(words)
    words = SIDES.sub("", words, count=1).strip()
    head, *worn = re.split(r" (?:in|wearing|and|(?=with ))", " " + words)
    for part in worn:
        part = part.strip()
        if part.startswith("with "):
            phrase = noun_phrase(part.split()[1:])
            conditions.append(("wearing" if phrase[0] == "hair" else "with", phrase))
        else:
            conditions.append(("wearing", noun_phrase(part.split())))
    left = [t for t in scene.top_level() if t.box is not None and fits(t, noun_phrase(head.split()))]
    for link, phrase in conditions:
        if link == "wearing":
            left = [t for t in left if any(g.parent == t.id and fits(g, phrase) for g in scene.things)]
        else:
            left = [t for t in left if related(scene, t, link, phrase)]
    if side:
        row = sorted(left, key=centre)
        assert len(row) == 3 or side.group(1) != "middle"
        left = [row[{"left": 0, "right": -1, "middle": 1}[side.group(1)]]]
    return [t.id for t in left]


def test_every_sentence_is_true_of_its_target_and_of_nothing_else(crowds):
    checked = Counter()
    for p in (p for ps in crowds.values() for p in ps):
        things = annotated_things(p.scene)
        for manner in MANNERS:
            for ref in references(p.scene, manner):
                for s in ref["sentences"]:
                    assert read(s["sent"], p.scene) == [things[ref["ann_id"]].id], (s["sent"], p.scene.index)
                    checked[manner] += 1
    assert all(checked[m] > 150 for m in MANNERS)


def test_the_reader_can_say_no(crowds):
    "The check above is worth something: sentences about rivals, and swapped sides, are read as such."
    swapped = {"left": "right", "right": "left"}
    wrong = 0
    for p in crowds["testB"]:
        for ref in references(p.scene, "refcoco"):
            target = annotated_things(p.scene)[ref["ann_id"]].id
            for s in ref["sentences"]:
                side = re.search("left|right", s["sent"])
                if side:
                    said = s["sent"].replace(side.group(), swapped[side.group()])
                    assert read(said, p.scene) != [target]
                    wrong += 1
    assert wrong > 10


def test_refcoco_plus_has_no_location_words_and_refcoco_has(crowds):
    seen = defaultdict(Counter)
    for p in (p for ps in crowds.values() for p in ps):
        for manner in ("refcoco", "refcoco+"):
            for ref in references(p.scene, manner):
                seen[manner].update(w for s in ref["sentences"] for w in s["tokens"])
    assert not FORBIDDEN & set(seen["refcoco+"])
    assert {"left", "right", "middle"} <= set(seen["refcoco"])
    # all but the middle of a row are words of the training sentences
    assert set(seen["refcoco"]) | set(seen["refcoco+"]) <= {*vocabulary(), "middle"}


def test_twins_have_sides_but_no_look_of_their_own():
    from dataclasses import replace

    p = make_crowd(9, "testB", seed=2026)
    a, b = p.scene.top_level()[:2]
    b = replace(b, colour=a.colour, size=a.size, pattern=a.pattern, material=a.material, height=a.height)
    scene = replace(p.scene, things=tuple(b if t.id == b.id else t for t in p.scene.things))
    assert expressions(scene, a.id, "refcoco+", 3, Dice(2)) == []
    said = expressions(scene, a.id, "refcoco", 3, Dice(2))
    assert said and all(e.side and identifies(scene, e, a.id) for e in said)


# ---------------------------------------------------------------- masks as polygons


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.randoms(use_true_random=False))
def test_rectangles_cover_a_mask_once(height, width, random):
    mask = np.array([[random.random() < 0.5 for _ in range(width)] for _ in range(height)])
    again = np.zeros((height, width), int)
    for x0, y0, x1, _, _, y1, _, _ in rectangles(mask):
        assert x0 < x1 and y0 < y1
        again[y0:y1, x0:x1] += 1
    assert np.array_equal(again, mask)


def test_pycocotools_reads_boxes_areas_and_masks(root, capsys):
    for name in MANNERS:
        coco = COCO(str(root / name / "instances.json"))
        assert coco.getAnnIds()
        for ann in coco.loadAnns(coco.getAnnIds()):
            image = coco.imgs[ann["image_id"]]
            mask = coco.annToMask(ann).astype(bool)
            assert mask.shape == (image["height"], image["width"]) and mask.sum() == ann["area"]
            ys, xs = np.nonzero(mask)
            assert ann["bbox"] == [xs.min(), ys.min(), xs.max() + 1 - xs.min(), ys.max() + 1 - ys.min()]
            assert ann["category_id"] in coco.cats and ann["iscrowd"] == 0
    split = {n: s for s, n in SPLITS.items()}
    ann = coco.loadAnns(coco.getAnnIds())[0]
    base = ann["image_id"] // 100_000 * 100_000
    picture = make_crowd(ann["image_id"] - base, split[base], seed=2026)
    assert np.array_equal(coco.annToMask(ann), picture.mask(annotated_things(picture.scene)[ann["id"]].id))
    assert instances(picture)[0]["area"] > 0


# ---------------------------------------------------------------- the official layout


class OfficialIndex:
    "What the official REFER class builds from the two files, and how it picks references by split."

    def __init__(self, root, name, split_by):
        self.refs = load(root / name / f"refs({split_by}).p")
        data = json.loads((root / name / "instances.json").read_text())
        self.anns = {a["id"]: a for a in data["annotations"]}
        self.images = {i["id"]: i for i in data["images"]}
        self.cats = {c["id"]: c["name"] for c in data["categories"]}
        self.ref_to_ann = {r["ref_id"]: self.anns[r["ann_id"]] for r in self.refs}
        self.sents = {s["sent_id"]: s for r in self.refs for s in r["sentences"]}
        self.folder = root / "images/mscoco/images/train2014"

    def by_split(self, split):
        if split in ("testA", "testB"):
            return [r for r in self.refs if split[-1] in r["split"]]
        return [r for r in self.refs if ("test" in r["split"] if split == "test" else r["split"] == split)]


@pytest.mark.parametrize(("name", "split_by"), [("refcoco", "unc"), ("refcoco+", "unc"), ("refcocog", "umd")])
def test_the_official_index_holds(root, name, split_by):
    index = OfficialIndex(root, name, split_by)
    assert len(index.sents) == sum(len(r["sentences"]) for r in index.refs)
    assert len({r["ref_id"] for r in index.refs}) == len(index.refs) == len({r["ann_id"] for r in index.refs})
    for ref in index.refs:
        keys = {"sent_ids", "file_name", "ann_id", "ref_id", "image_id", "split", "sentences", "category_id"}
        assert set(ref) == keys
        ann, image = index.ref_to_ann[ref["ref_id"]], index.images[ref["image_id"]]
        assert ann["image_id"] == ref["image_id"] and ann["category_id"] == ref["category_id"]
        assert ref["file_name"] == image["file_name"].replace(".jpg", f"_{ref['ann_id']}.jpg")
        assert ref["sent_ids"] == [s["sent_id"] for s in ref["sentences"]]
        for s in ref["sentences"]:
            assert set(s) == {"tokens", "raw", "sent", "sent_id"}
            assert s["tokens"] == s["sent"].split() and s["raw"].lower().rstrip(".") == s["sent"] == s["sent"].lower()
        with Image.open(index.folder / image["file_name"]) as picture:
            assert picture.size == (image["width"], image["height"]) and picture.format == "JPEG"
    splits = ("train", "val", "test") if name == "refcocog" else ("train", "val", "testA", "testB")
    parts = [index.by_split(s) for s in splits]
    assert all(parts) and sum(map(len, parts)) == len(index.refs)
    pictures = [{r["image_id"] for r in part} for part in parts]
    assert sum(map(len, pictures)) == len(set.union(*pictures))


def test_test_halves_hold_creatures_and_things(root):
    creatures = set("person bird cat dog horse sheep cow elephant giraffe rabbit".split())
    for name in ("refcoco", "refcoco+"):
        index = OfficialIndex(root, name, "unc")
        assert {index.cats[r["category_id"]] for r in index.by_split("testA")} <= creatures
        assert not {index.cats[r["category_id"]] for r in index.by_split("testB")} & creatures


def test_googles_split_divides_objects(root):
    umd, google = (load(root / "refcocog" / f) for f in LISTS["refcocog"])
    assert {r["split"] for r in google} == {"train", "val"}
    assert [{**r, "split": ""} for r in umd] == [{**r, "split": ""} for r in google]


def test_the_first_references_come_from_different_pictures(root):
    refs = load(root / "refcoco" / "refs(unc).p")
    first = refs[: len({r["image_id"] for r in refs})]
    assert len({r["image_id"] for r in first}) == len(first)


def test_the_pickles_hold_plain_containers_only(root):
    for name, files in LISTS.items():
        for file in files:
            codes = {op.name for op, _, _ in pickletools.genops((root / name / file).read_bytes())}
            assert codes <= PLAIN, codes - PLAIN
