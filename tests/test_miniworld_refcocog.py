"""RefCOCOg of the miniworld: the exact listener against a literal one, bags against permutations, the files."""

import json
import pickle
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.boxes import box_iou, xywh_to_xyxy
from qgcam_lib.data.refer import Refer
from qgcam_lib.miniworld import ensure_refcocog
from qgcam_lib.miniworld.art.draw import Dice
from qgcam_lib.miniworld.scenes.crowd import DOUBLES_SPLITS as SPLITS
from qgcam_lib.miniworld.scenes.crowd import is_usable, make_doubles
from qgcam_lib.miniworld.scenes.scene import can_be_named
from qgcam_lib.miniworld.words.grammar import (
    ADJECTIVES,
    DETERMINERS,
    FORMS,
    NOUNS,
    content_words,
    orderings,
    readings,
)
from qgcam_lib.miniworld.words.listener import OUTCOMES, Listener, bag_share, is_so, judge
from qgcam_lib.miniworld.words.speaker import Speaker, retarget, say
from qgcam_lib.miniworld.writers.refcocog import references, scene_of, split_counts, told

SEED = 2026


@pytest.fixture(scope="module")
def scenes():
    return [make_doubles(k, split, seed=SEED).scene for split in SPLITS for k in range(14)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return ensure_refcocog(tmp_path_factory.mktemp("refcocog") / "w", n_train=4, n_val=3, n_test=16, progress=False)


def pictures(root):
    return json.loads((root / "scenes.json").read_text(encoding="utf-8"))["pictures"]


# ---------------------------------------------------------------- the listener against a literal one


def literal_size(scene, t, size, sure):
    others = [o.height for o in scene.things if o.parent < 0 and o.noun == t.noun and o.id != t.id]
    if sure:
        return t.size == size and all(t.height < .85 * h if size == "small" else t.height > 1.18 * h for h in others)
    return not any(t.height > 1.18 * h if size == "small" else t.height < .85 * h for h in others)


def literal(scene, one, sure):
    """The things a reading is true of: every thing is tried against every word and every other thing."""
    found = set()
    for t in scene.things:
        if t.box is None or t.noun not in NOUNS[one.noun] or (sure and not can_be_named(scene, t)):
            continue
        said = [ADJECTIVES[word] for word in one.adjectives]
        if any(getattr(t, kind) != value for kind, value in said if kind != "size"):
            continue
        if any(t.parent >= 0 or not literal_size(scene, t, value, sure) for kind, value in said if kind == "size"):
            continue
        for form, other in one.relations:
            pairs = [(scene.thing(y), t) if form.turned else (t, scene.thing(y)) for y in literal(scene, other, sure)]
            if not any(is_so(scene, x, form.relation, y, sure=sure) for x, y in pairs):
                break
        else:
            found.add(t.id)
    return found


def expressions_of(scene, seed=1):
    """Expressions as they are drawn, also those that single nothing out."""
    speaker = Speaker(Listener(scene), Dice(seed, scene.index))
    return [" ".join(speaker.describe(scene.thing(k))) for k in speaker.listener.candidates]


def test_the_listener_equals_a_literal_one(scenes):
    kinds = Counter()
    for scene in scenes:
        listener, tops = Listener(scene), {t.id for t in scene.top_level()}
        for text in expressions_of(scene):
            meaning, read = listener.hear(text), readings(text)
            assert read, text
            sure, possible = (set().union(*(literal(scene, one, s) for one in read)) & tops for s in (True, False))
            assert (meaning.sure, meaning.possible) == (sure, possible), text
            assert sure <= possible
            assert meaning.thing == (next(iter(sure)) if len(possible) == 1 and sure == possible else None)
            kinds[len(read) > 1, len(possible) > 1] += 1
    assert len(kinds) == 4, kinds  # one reading and several, one thing and several


def test_what_is_sure_is_possible_and_relations_have_their_converses(scenes):
    for scene in scenes[::3]:
        tops = scene.top_level()
        for x in tops:
            for y in tops:
                for one, other in (("left of", "right of"), ("behind", "in front of"), ("next to", "next to")):
                    assert is_so(scene, x, one, y) == is_so(scene, y, other, x)
                assert not is_so(scene, x, "on", y) or is_so(scene, y, "under", x)
                assert not is_so(scene, x, "next to", y) or is_so(scene, x, "next to", y, sure=False)


# ---------------------------------------------------------------- bags


@pytest.mark.parametrize("text", ["the cup on the red box", "the dog that the cat is under", "the small red dog",
                                  "the man in the hat", "the box that is in the box"])
def test_orderings_are_the_permutations_that_the_grammar_reads(text):
    tried = {" ".join(words) for words in permutations(text.split())}
    read = {words for words in tried if readings(words)}
    rank = ["size", "pattern", "colour", "material"]

    def in_order(words):
        pairs = zip(words.split(), words.split()[1:])
        both = [(ADJECTIVES[a][0], ADJECTIVES[b][0]) for a, b in pairs if a in ADJECTIVES and b in ADJECTIVES]
        return all(rank.index(a) < rank.index(b) for a, b in both)

    assert set(orderings(text)) == {words for words in read if in_order(words)}


def test_the_bag_has_the_things_that_orderings_mean_alone(scenes):
    checked = 0
    for scene in scenes[::2]:
        listener = Listener(scene)
        for text in (text for text in expressions_of(scene) if len(text.split()) <= 8):
            meant = {words: listener.hear(words).thing for words in orderings(text)}
            assert listener.orders(text) == {words: thing for words, thing in meant.items() if thing is not None}
            assert listener.bag(text) == Counter(thing for thing in meant.values() if thing is not None)
            checked += 1
    assert checked > 40


def test_the_share_of_a_bag():
    assert bag_share({4: 2, 1: 2}, 4) == .5 and bag_share({4: 1}, 4) == 1
    assert bag_share({4: 1}, 3) == 0 == bag_share({}, 3)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), index=st.integers(0, 400))
def test_moving_words_changes_nothing_for_a_bag(seed, index):
    scene = make_doubles(index, "test", seed=SEED).scene
    listener, dice = Listener(scene), Dice(seed)
    for text in (text for text in expressions_of(scene, seed) if len(text.split()) <= 9):
        moved = " ".join(dice.shuffled(text.split()))
        assert listener.bag(moved) == listener.bag(text)
        assert judge(listener, moved, listener.candidates[0]) in OUTCOMES


# ---------------------------------------------------------------- the speaker


def test_what_is_said_means_one_thing_and_a_retargeted_text_another(scenes):
    seen = Counter()
    for scene in scenes:
        listener, dice, known = Listener(scene), Dice(3, scene.index), set()
        for thing in listener.candidates:
            for text in say(Speaker(listener, dice), thing, 2, known):
                bag = listener.bag(text)
                assert judge(listener, text, thing) == "same" and thing in bag
                turned = retarget(listener, text, thing, dice, known)
                assert len(bag) > 1 or turned is None
                if turned:
                    seen[turned.kind] += 1
                    others = {other: n for other, n in bag.items() if other != thing}
                    assert others[turned.thing] == max(others.values()) and turned.text in known
                    assert judge(listener, turned.text, thing) == "another"
                    assert listener.hear(turned.text).thing == turned.thing and len(listener.bag(turned.text)) > 1
                    assert sorted(content_words(turned.text)) == sorted(content_words(text))
                    same = sorted(turned.text.split()) == sorted(text.split())
                    assert same == (turned.kind == "order")
    assert set(seen) == {"order", "converse"}


def test_judging_names_each_outcome(scenes):
    scene = next(s for s in scenes if {"holding"} <= {r.predicate for r in s.relations})
    relation = next(r for r in scene.relations if r.predicate == "holding")
    listener, held = Listener(scene), scene.thing(relation.object)
    person = scene.thing(relation.subject)
    assert judge(listener, f"red the {held.noun}", held.id) == "not understood"
    assert judge(listener, "the quickly dog", held.id) == judge(listener, "", held.id) == "not understood"
    assert judge(listener, f"the {held.noun} that holds the {person.noun}", held.id) == "nothing"
    texts = say(Speaker(listener, Dice(5)), held.id, 1, set(), draws=200)
    assert texts and judge(listener, texts[0], held.id) == "same" and judge(listener, texts[0], person.id) == "another"
    assert judge(listener, "THE " + texts[0].removeprefix("the ") + ".", held.id) == "same"
    twice = next(n for n, k in Counter(t.noun for s in scenes for t in s.top_level()).items() if k > 1)
    crowd = next(s for s in scenes if sum(t.noun == twice for t in s.top_level()) > 1)
    assert judge(Listener(crowd), f"the {twice}", Listener(crowd).candidates[0]) == "ambiguous"
    with pytest.raises(ValueError, match="target: expected the id of a candidate"):
        judge(listener, "the dog", 999)


# ---------------------------------------------------------------- scenes and files


def test_scenes_have_doubles_and_well_visible_candidates(scenes):
    assert all(map(is_usable, scenes))
    for scene in scenes:
        boxes = [t.box for t in scene.top_level()]
        overlap = box_iou(boxes, boxes)
        assert 3 <= len(boxes) <= 10 and sorted(overlap.ravel())[-len(boxes) - 1] < .5
    with pytest.raises(ValueError, match="split: expected one of"):
        make_doubles(0, "testA", seed=SEED)
    with pytest.raises(ValueError, match="index: expected 0 to 99999"):
        make_doubles(-1, "test", seed=SEED)


def test_the_loader_of_the_real_set_reads_it(root):
    for split in SPLITS:
        dataset = Refer(root, split=split)
        said = {one["text"] for p in pictures(root) if p["split"] == split for one in p["expressions"]}
        assert {example.prompt for example in dataset} == said and len(dataset) >= len(said)
        assert dataset.verify().empty


def test_no_text_comes_twice_in_a_picture_and_all_words_are_known(root):
    known = {*NOUNS, *ADJECTIVES, *DETERMINERS, "and"} | {word for form in FORMS for word in form.words}
    for picture in pictures(root):
        texts = [one["text"] for one in picture["expressions"]]
        texts += [one["adversary"]["text"] for one in picture["expressions"] if "adversary" in one]
        assert len(texts) == len(set(texts)) and all(text == text.lower() for text in texts)
        assert {word for text in texts for word in text.split()} <= known


def test_the_truth_is_that_of_the_stored_scene(root):
    for picture in (p for p in pictures(root) if p["split"] == "test"):
        scene = scene_of(picture)
        listener, things = Listener(scene), picture["things"]
        said = told(scene)
        assert [one["text"] for one in said] == [one["text"] for one in picture["expressions"]]
        for one in picture["expressions"]:
            assert listener.hear(one["text"]).thing == things[str(one["ann_id"])]
            assert (one["label"] == "easy") == (len(one["bag"]) == 1) and one["share"] == 1 / len(one["bag"])
            assert len(one["choices"]) == 5 and {str(n) for n in one["choices"]} <= set(one["bag"])
        assert {r["ann_id"] for r in references(scene, said)} == {one["ann_id"] for one in picture["expressions"]}


def test_both_published_forms_hold_the_same_adversarial_expressions(root):
    rows = json.loads((root / "adv_easy_hard_annotations.json").read_text())["annotations"]
    raw = json.loads((root / "refcocog_adv_annotations.json").read_text())
    refs = {ref["ref_id"]: ref for ref in pickle.loads((root / "refs(umd).p").read_bytes())}
    boxes = {a["id"]: a["bbox"] for a in json.loads((root / "instances.json").read_text())["annotations"]}
    adv = [row for row in rows if row["label"] == "adv"]
    assert [row["expression"] for row in adv] == [one["most_confused_bbox_GT_desc"] for one in raw.values()] and adv
    for row, one in zip(adv, raw.values()):
        assert all(isinstance(value, str) for key, value in one.items() if key != "assigns") and len(one) == 22
        assert row["bboxes"] == one["bbox_candidates_map"] and row["gt_bbox"] == one["most_confused_bbox_number"]
        candidates, ref = json.loads(row["bboxes"]), refs[int(one["refID"])]
        assert candidates[one["GT_bbox_number"]] == boxes[int(one["annID"])] and ref["ann_id"] == int(one["annID"])
        assert one["raw_str"] in [s["sent"] for s in ref["sentences"]] and one["hit_type_id"] == "SIMULATED"
        new, old = (xywh_to_xyxy([candidates[one[key]]]) for key in ("most_confused_bbox_number", "GT_bbox_number"))
        assert box_iou(new, old) < .5
        assert [a["dropdownselect"] for a in one["assigns"]].count(row["gt_bbox"]) >= 2
        assert sorted(one["shuffle"].split()) == sorted(one["raw_str"].split()) != one["shuffle"]
        assert one["noun_adj"].split() == content_words(one["raw_str"])
    for row in (row for row in rows if row["label"] != "adv"):
        assert row["bboxes"][str(row["gt_bbox"])] == boxes[row["annID"]] and row["label"] in ("easy", "hard")


def test_counts_say_what_a_bag_can_reach(root):
    table = split_counts(root)
    assert table.loc["easy", "bag"] == 1 and table.loc["hard", "bag"] <= .5 and table.loc["adv", "bag"] <= .5
    assert table.loc["easy", "expressions"] + table.loc["hard", "expressions"] == table.loc["test", "expressions"]
    assert (table["random"] < .34).all() and table.loc["adv", "expressions"] > 0
