"""Probe-R: what never occurs together, against a slow literal reading; and what every group must hold."""

import json
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.data.visual_genome.folder import VisualGenome
from qgcam_lib.probes.builders.relation import RelationOptions, Whereabouts, build_relation, spared_images
from qgcam_lib.probes.builders.triplets import (
    CoOccurrence,
    clean_triplets,
    distinct,
    kept_names,
    misspelt,
    one_edit_apart,
    strip_name,
    strip_predicate,
)

LOOSE = RelationOptions(min_names=1, min_predicates=1)
NAMES, PREDICATES = "man dog hat snow cup".split(), "on wearing holding under".split()
rows = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(PREDICATES), st.sampled_from(NAMES)), max_size=3)
genomes = st.dictionaries(st.integers(1, 30), rows, min_size=1, max_size=14)


def genome(root, told, listed=None, **texts):
    root.mkdir(exist_ok=True)
    entries = [{"image_id": k, "relationships": [{"subject": {"name": s}, "predicate": p, "object": {"names": [o]}}
                                                for s, p, o in found]} for k, found in told.items()]
    (root / "relationships.json").write_text(json.dumps(entries))
    images = [{"image_id": k, "url": f"https://x/VG_100K/{k}.jpg", "width": 2, "height": 2}
              for k in (told if listed is None else listed)]
    (root / "image_data.json").write_text(json.dumps(images))
    for name, text in texts.items():
        (root / f"{name}_alias.txt").write_text(text)
    return VisualGenome(root)


def together(told):
    """(subject, predicate, object) of all pictures."""
    return [row for found in told.values() for row in found]


@settings(max_examples=40, deadline=None)
@given(told=genomes)
def test_never_seen_together_is_what_a_slow_reading_finds(told, tmp_path_factory):
    clean = distinct(clean_triplets(genome(tmp_path_factory.mktemp("g") / "vg", told).triplets, {}, {}))
    tables, every = CoOccurrence(clean), together(told)
    for s, p, o in set(every):
        code = clean.names.index(s), clean.predicates.index(p), clean.names.index(o)
        slow = {q for _, q, _ in every} - {b for a, b, c in every if a == s or c == o}
        assert {clean.predicates[k] for k in tables.unlikely_predicates(code[0], code[2])} == slow
        slow = {n for n, _, _ in every if not any(a == n and (b == p or c == o) for a, b, c in every)}
        assert {clean.names[k] for k in tables.unlikely_subjects(code[1], code[2])} == slow


@settings(max_examples=40, deadline=None)
@given(told=genomes, n=st.integers(1, 3), seed=st.integers(0, 9))
def test_what_every_group_holds(told, n, seed, tmp_path_factory):
    options = replace(LOOSE, n_images=n, seed=seed)
    folder = tmp_path_factory.mktemp("g") / "vg"
    built = build_relation(genome(folder, told), options)
    assert build_relation(VisualGenome(folder), options).groups == built.groups
    every = together(told)
    shows = {f"{k}.jpg": {name for s, _, o in found for name in (s, o)} for k, found in told.items()}
    for group in built.groups:
        triplet, here = (group.positive_object, group.predicate, group.object), shows[group.image]
        assert triplet in told[int(group.image[:-4])]
        for s, p, o in every:  # never a swap that co-occurs
            assert p != group.other_predicate or (s != group.positive_object and o != group.object)
            assert s != group.negative_object or (p != group.predicate and o != group.object)
        assert group.negative_object not in here
        for subject, images in ((group.positive_object, group.positive_images),
                                (group.negative_object, group.negative_images)):
            assert len(images) == len(set(images)) == n and group.image not in images
            assert all(subject in shows[name] and not (here - {subject}) & shows[name] for name in images)
        assert group.positive_prompt == "A photo of a " + " ".join(triplet) + "."
    ids = [group.id for group in built.groups]
    assert len(set(ids)) == len(ids) == len({g.image for g in built.groups})
    table = built.steps.set_index("step")["left"]
    assert table["groups"] == len(ids) == table["… with enough negative pictures"]
    passed = [table[f"… with {test}"] for test in ("an unlikely predicate", "an unlikely subject",
                                                   "enough positive pictures", "enough negative pictures")]
    assert passed == sorted(passed, reverse=True)


def test_who_is_alone_is_what_a_slow_reading_finds():
    rng = np.random.default_rng(3)
    image, name = rng.integers(0, 20, 60), rng.integers(0, 6, 60)
    where, pairs = Whereabouts(np.arange(20), list("abcdef"), image, name), set(zip(image.tolist(), name.tolist()))
    for names in ([0, 1], [2, 3, 5], [4]):
        company = where.company(np.array(names))
        for one in range(6):
            slow = [k for k in range(20) if (k, one) in pairs and not any((k, n) in pairs for n in names if n != one)]
            assert where.alone(one, company, one in names).tolist() == slow


def herd(n=12, **more):
    kinds = [[("man", "wearing", "hat")], [("dog", "in", "snow")], [("man", "near", "tree")], [("dog", "on", "bed")]]
    return {k: kinds[k % 4] for k in range(1, n + 1)} | more


def test_spellings_are_brought_together(tmp_path):
    assert strip_predicate("Is standing  next to the.") == "standing next to" and strip_predicate("are") == ""
    assert strip_name("a  Dog,") == "dog" and strip_predicate("'s on") == "on"
    kept = kept_names({"over": "above", "atop": "over", "is atop": "atop", "": "x", "the": "on"}, strip_predicate)
    assert kept == {"over": "above", "atop": "above"}
    assert one_edit_apart("ab", "ba") and not one_edit_apart("ab", "ab") and not one_edit_apart("abcd", "badc")
    counts = {"standing": 300, "standnig": 1, "standings": 1, "stand": 2, "bandings": 1}
    assert misspelt(counts) == {"standnig": "standing"}
    told = {k: [("Man", "are ON", "a horse")] for k in (1, 2)}
    told |= {3: [("guy", "atop", "horse")], 4: [("man", "is", "red")]}
    built = genome(tmp_path / "vg", told, object="man,guy\n", relationship="on,atop,on top of\n")
    clean = clean_triplets(built.triplets, built.aliases("object"), built.aliases("relationship"))
    assert clean.predicates == ["on"] and clean.names == ["man", "horse", "red"]
    assert clean.predicate.tolist() == [0, 0, 0, -1]


def test_annotations_without_a_picture_are_counted_and_not_used(tmp_path):
    told = herd(16)
    found = genome(tmp_path / "vg", told, listed=[k for k in told if k != 1])
    (tmp_path / "vg" / "VG_100K").mkdir()
    for k in range(2, 17):
        (tmp_path / "vg" / "VG_100K" / f"{k}.jpg").touch()
    (tmp_path / "vg" / "VG_100K" / "2.jpg").unlink()
    options = replace(LOOSE, n_images=2)
    built = build_relation(VisualGenome(found.root), options)
    left = built.steps.set_index("step")["left"]
    assert [left[f"pictures {what}"] for what in ("with annotations", "listed in image_data.json",
                                                  "whose file is there")] == [16, 15, 14]
    assert built.groups and not {"1.jpg", "2.jpg"} & {name for g in built.groups for name in (
        g.image, *g.positive_images, *g.negative_images)}


def test_too_few_pictures_and_a_name_without_company(tmp_path):
    told = {**herd(8), 99: [("cup", "beside", "plate")]}  # cup and plate occur with nothing else
    found = genome(tmp_path / "vg", told)
    few = build_relation(found, replace(LOOSE, n_images=3))
    assert not few.groups and few.steps.set_index("step").loc["groups", "left"] == 0
    empty = build_relation(genome(tmp_path / "none", {1: []}), RelationOptions())
    assert not empty.groups and empty.steps.set_index("step").loc["anchors tried", "left"] == 0


def test_options_do_what_they_say(tmp_path):
    found, base = genome(tmp_path / "vg", herd(24)), replace(LOOSE, n_images=2)
    built = build_relation(found, base)
    assert len(built.groups) > 8 and built.options["min_names"] == 1
    assert len(build_relation(found, replace(base, limit=3)).groups) == 3
    spared = build_relation(found, replace(base, spared=0.5))
    out = {f"{k}.jpg" for k in range(1, 25) if spared_images(np.array([k]), 0.5, 0)[0]}
    assert spared.groups and 3 < len(out) < 20
    assert not out & {name for g in spared.groups for name in (g.image, *g.positive_images, *g.negative_images)}
    strict = build_relation(found, replace(base, min_predicates=7))
    assert not strict.groups
    assert build_relation(found, replace(base, seed=1)).groups != built.groups


def test_all_that_never_co_occurs_is_drawn_sooner_or_later(tmp_path):
    found = genome(tmp_path / "vg", herd(24) | {99: [("man", "holding", "cup")], 98: [("dog", "under", "cup")]})
    groups = [group for seed in range(40) for group in build_relation(
        found, replace(LOOSE, n_images=1, seed=seed)).groups if group.id == "1"]
    assert {group.positive_object for group in groups} == {"dog"} and groups[0].predicate == "in"
    assert {group.other_predicate for group in groups} == {"wearing", "near", "holding"}
    assert {group.negative_object for group in groups} == {"man"}
