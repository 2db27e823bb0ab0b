"""RelComp: what its texts say, and that no picture and no caption of it is in the probes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.data.coco.files import CocoCaptions, CocoImage
from qgcam_lib.data.probes.groups import SwapPair, shown
from qgcam_lib.data.taggers import load_tagger, words_of
from qgcam_lib.data.visual_genome.annotations import plain
from qgcam_lib.data.visual_genome.folder import VisualGenome
from qgcam_lib.probes.builders.relation import RelationOptions, build_relation
from qgcam_lib.probes.builders.relcomp import (
    RelCompOptions,
    build_relcomp,
    coco_number,
    reworded,
    taken_by,
)
from qgcam_lib.probes.builders.words import attribute_words

LOOSE = RelationOptions(min_names=1, min_predicates=1)
OPTIONS = RelCompOptions(relation=LOOSE, tagger="hanta", test=0.4)
NOUNS, ATTRIBUTES = ("dog", "bus", "couch", "man"), ("big", "small", "old", "red", "wooden", "yellow", "sad")
sentences = st.lists(st.tuples(st.sampled_from(ATTRIBUTES), st.sampled_from(NOUNS)), min_size=1, max_size=3).map(
    lambda pairs: "A " + " and a ".join(f"{a} {n}" for a, n in pairs) + ".")
captions = st.dictionaries(st.integers(1, 40), st.lists(sentences, min_size=1, max_size=2), min_size=1, max_size=12)


def coco(told):
    images = {k: CocoImage(k, f"COCO_train2014_{k:012d}.jpg") for k in told}
    return CocoCaptions(Path("c.json"), images, {k: tuple(texts) for k, texts in told.items()})


def genome(root, n=20, coco_ids=()):
    kinds = [[("man", "riding", "horse")], [("dog", "on", "bed")], [("cup", "near", "plate")]]
    root.mkdir(exist_ok=True)
    told = [[{"subject": {"name": s}, "predicate": p, "object": {"name": o}} for s, p, o in some] for some in kinds]
    content = {
        "relationships": [{"image_id": k, "relationships": told[k % 3]} for k in range(n)],
        "region_descriptions": [{"id": k, "regions": [{"phrase": f"the {kinds[k % 3][0][0]} {k}"}, {"phrase": "sky"}]}
                                for k in range(n)],
        "image_data": [{"image_id": k, "url": f"https://x/VG_100K/{k}.jpg", "width": 9, "height": 9,
                        "coco_id": dict(coco_ids).get(k)} for k in range(n)]}
    for name, value in content.items():
        (root / f"{name}.json").write_text(json.dumps(value))
    return VisualGenome(root)


@settings(max_examples=20, deadline=None)
@given(told=captions, used=st.sets(st.integers(1, 40), max_size=4))
def test_no_picture_and_no_caption_of_probe_c_comes_back(told, used):
    prompts = "A photo of a red dog.", "A big bus."
    probes = [SwapPair(str(k), (f"COCO_val2014_{k:012d}.jpg", "x.jpg"), prompts) for k in used]
    sets = build_relcomp(coco(told), probes=probes, options=OPTIONS)
    again = build_relcomp(coco(told), probes=probes, options=OPTIONS)
    train, test = sets["train"].groups, sets["test"].groups
    assert (train, test) == (again["train"].groups, again["test"].groups)
    assert not {one.image for one in train} & {one.image for one in test}
    gone = {plain(text) for k in used & set(told) for text in told[k]} | ({"a big bus."} if used else set())
    for one in [*train, *test]:
        assert coco_number(one.image) not in used and plain(one.caption) not in gone
        assert len({one.caption, one.positive, one.negative}) == 3


@settings(max_examples=40, deadline=None)
@given(text=sentences, seed=st.integers(0, 9))
def test_attributes_become_words_that_mean_the_same_or_the_opposite(text, seed):
    table, words = attribute_words(), words_of(text)
    made = reworded(text, load_tagger("hanta").kinds(words), {one.lower() for one in words}, table,
                    np.random.default_rng(seed))
    if made is None:
        return
    for new, allowed in zip(made, (table.alike, table.opposites)):
        pairs = [(a.lower(), b.lower()) for a, b in zip(words, words_of(new))]
        changed = [(a, b) for a, b in pairs if a != b and a not in ("a", "an")]
        assert changed and all(b in allowed[a] for a, b in changed)
        assert allowed is table.alike or not {b for _, b in changed} & {one.lower() for one in words}


def test_pictures_of_probe_r_are_known_by_either_name(tmp_path):
    found = genome(tmp_path / "vg", 40, {k: 100 + k for k in range(40)})
    probe = build_relation(found, replace(LOOSE, n_images=2, limit=3)).groups
    files = {name for one in probe for name in shown(one)}
    free = coco({100 + k: [f"A big dog {k}."] for k in range(40)})
    sets = build_relcomp(free, found, probe, OPTIONS)
    every = [*sets["train"].groups, *sets["test"].groups]
    taken = taken_by(probe, free, found)
    assert {one.kind for one in every} == {"composition", "predicate"} and taken.files == files
    assert not taken.files & {one.image for one in every}
    numbers = {int(name[:-4]) + 100 for name in files}
    assert not {coco_number(one.image) or int(one.image[:-4]) + 100 for one in every} & numbers
    sides = [{coco_number(one.image) or int(one.image[:-4]) + 100 for one in built.groups} for built in sets.values()]
    assert not sides[0] & sides[1], "one photograph under two names is on one side"


def test_predicate_groups_say_the_relation_and_an_unlikely_one(tmp_path):
    found = genome(tmp_path / "vg", 30)
    sets = build_relcomp(None, found, (), OPTIONS)
    prompts = {"man": "man riding horse", "dog": "dog on bed", "cup": "cup near plate"}
    for one in [*sets["train"].groups, *sets["test"].groups]:
        said = next(text for name, text in prompts.items() if name in one.caption)
        assert one.positive == f"A photo of a {said}." and one.negative != one.positive
        subject, *_, thing = said.split()
        assert one.negative.startswith(f"A photo of a {subject} ") and one.negative.endswith(f" {thing}.")
    table = sets["test"].steps.set_index("step")["left"]
    assert table["train groups, predicate"] + table["test groups, predicate"] == 30
    one = build_relcomp(None, found, (), replace(OPTIONS, limit=5))
    assert len(one["train"].groups) + len(one["test"].groups) == 5


def test_nothing_is_left_of_pictures_that_a_probe_shows(tmp_path):
    found = genome(tmp_path / "vg", 12)
    probe = [SwapPair(str(k), (f"{k}.jpg", f"{k}.jpg"), ("a", "b")) for k in range(12)]
    sets = build_relcomp(None, found, probe, OPTIONS)
    left = sets["train"].steps.set_index("step")["left"]
    assert not sets["train"].groups and left["pictures that the probes do not show"] == 0
