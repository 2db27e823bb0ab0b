"""The miniworld as TRICD: the official form, captions true of one picture and false of the other, one folder."""

import json
import re
from collections import Counter
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from speeds import some

from qgcam_lib.data.tricd.files import STATISTICS, tricd_files, tricd_folder, tricd_splits, tricd_statistics
from qgcam_lib.data.tricd.pairs import load_tricd
from qgcam_lib.errors import ExampleError
from qgcam_lib.miniworld import (
    ensure_tricd,
    make_picture,
)
from qgcam_lib.miniworld.art.draw import COLOURS, Dice
from qgcam_lib.miniworld.pairs.contradictions import PLANS, Loaded, holds
from qgcam_lib.miniworld.words.claims import Caption, Noun, certainly_false, certainly_true, denoted, question
from qgcam_lib.miniworld.words.words import LINKS, NAMES, SETTINGS, plural
from qgcam_lib.miniworld.writers.tricd import (
    SPLITS,
    contradiction_of,
    file_name,
    grounding,
    group,
    questions,
    records,
)
from qgcam_lib.phrase_detection.question_texts import caption_to_question
from qgcam_lib.phrase_detection.questions import load_tricd_vqa

REAL = Path(__file__).resolve().parents[1].parent / "shared" / "realdata" / "tricd"
SMALL = dict(n_test=15, n_val=5, progress=False)


@pytest.fixture(scope="module")
def groups():
    "Both splits whole, as `ensure_tricd` makes them."
    return {"val": [group(k, "val") for k in range(100)], "test": [group(k, "test") for k in range(668)]}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return ensure_tricd(tmp_path_factory.mktemp("tricd") / "w", **SMALL)


# ---------------------------------------------------------------- truth, read from the words again


LINK_WORDS = sorted({(w, p) for p, (loose, _) in LINKS.items() for w in loose if w != "with"}, key=lambda x: -len(x[0]))
NUMBERS = {"two": 2, "three": 3}
PLURALS = {plural(w): w for words in NAMES.values() for w in words}
GARMENTS = ("shirt", "jacket", "dress", "pants", "shorts", "skirt", "hat", "cap")
PATTERNS = ("striped", "dotted", "checked")


def read_phrase(words):
    "'two red balls' as (nouns it may be, colour, pattern, how many, is that exact)."
    words = words.split()
    number = NUMBERS.get(words[0], 1)
    bare = words[0] not in ("a", "an", *NUMBERS)
    words = words if bare else words[1:]
    head = words[-1]
    alone = {n for n, names in NAMES.items() if head in names}
    many = {n for n, names in NAMES.items() if PLURALS.get(head) in names}
    if number > 1 or not alone:
        alone, number = many, number if number > 1 else 2
    colour = next((w for w in words[:-1] if w in COLOURS), None)
    pattern = next((w for w in words[:-1] if w in PATTERNS), None)
    assert alone and len(words) - 1 == (colour is not None) + (pattern is not None), words
    return alone, colour, pattern, number, not bare and number > 1


def read_caption(caption, background):
    "Phrases in order, and links (from, relation, to) by number."
    tails = [f" {a} {b}" for a, b in SETTINGS[background]]
    caption = next((caption.removesuffix(t) for t in tails if caption.endswith(t)), caption)
    phrases, links = [], []
    for clause in caption.split(" and "):
        pattern = "|".join(f" {re.escape(w)} " for w, _ in LINK_WORDS)
        pieces, said = re.split(pattern, clause), re.findall(pattern, clause)
        first = len(phrases)
        phrases += [read_phrase(p) for p in pieces]
        for k, words in enumerate(said):
            target = first + k + 1
            means = {p for w, p in LINK_WORDS if w == words.strip()}
            worn = phrases[target][0] <= set(GARMENTS)
            means -= {"inside"} if worn else {"wearing"}
            means -= {"riding"} if words.strip() == "on" else set()
            assert len(means) == 1, (clause, means)
            links.append((first, means.pop(), target))
    return phrases, links


def true_link(scene, a, relation, b):
    "What the scene says; sides by the boxes alone."
    if relation in ("left of", "right of"):
        a, b = (a, b) if relation == "left of" else (b, a)
        return a.box[2] <= b.box[0] + 2
    if relation == "in front of":
        a, relation, b = b, "behind", a
    return any((r.subject, r.predicate, r.object) == (a.id, relation, b.id) for r in scene.relations)


def possible_link(scene, a, relation, b):
    "Sides: the middle is on that side, however little level the two are. Under: below it, and not held, in or on it."
    if relation in ("left of", "right of"):
        a, b = (a, b) if relation == "left of" else (b, a)
        width = min(a.box[2] - a.box[0], b.box[2] - b.box[0])
        return a.box[0] + a.box[2] < b.box[0] + b.box[2] - 0.17 * width
    if relation in ("on", "under", "inside", "holding", "riding"):
        tied = any({r.subject, r.object} == {a.id, b.id} and r.predicate not in ("left of", "right of", "behind")
                   for r in scene.relations)
        inside = all(max(a.box[i], b.box[i]) < min(a.box[i + 2], b.box[i + 2]) for i in (0, 1))
        if relation == "under" and a.box[1] + a.box[3] < b.box[1] + b.box[3]:
            inside = False
        return true_link(scene, a, relation, b) or (inside and not tied)
    return true_link(scene, a, relation, b)


def find(picture, caption, link):
    "For each phrase the boxes of everything it can mean, or None where the caption is false."
    scene = picture.scene
    phrases, links = read_caption(caption, scene.background)
    seen = [t for t in scene.things if t.box is not None]
    fits = [[t for t in seen if t.noun in nouns and colour in (None, t.colour) and pattern in (None, t.pattern)]
            for nouns, colour, pattern, _, _ in phrases]  # fmt: skip
    ways = [w for w in product(*fits) if len({t.id for t in w}) == len(w)]
    ways = [w for w in ways if all(link(scene, w[a], relation, w[b]) for a, relation, b in links)]
    found = [sorted({t.id: t.box for t in column}.values()) for column in zip(*ways)] if ways else None
    if found is None:
        return None
    for boxes, (_, _, _, number, _) in zip(found, phrases):
        if len(boxes) < number:
            return None
    return found


def check_pairs(content, pictures):
    "Every pair of a grounding file against its scene: the boxes where it is true, nothing where it is false."
    truth = {}
    for a in content["annotations"]:
        x, y, w, h = a["bbox"]
        truth.setdefault((a["image_id"], a["phrase_id"]), []).append((x, y, x + w, y + h))
    for p in content["images"]:
        picture = pictures[p["file_name"]]
        if p["positive"]:
            found = find(picture, p["caption"], true_link)
            assert found is not None, p
            assert found == [sorted(truth[p["id"], int(i)]) for i in p["phrases"]], p
            for phrase, boxes in zip(read_caption(p["caption"], picture.scene.background)[0], found):
                assert not phrase[4] or len(boxes) == phrase[3], p
        else:
            assert find(picture, p["caption"], possible_link) is None, p
            assert not any(key[0] == p["id"] for key in truth)


def pictures_of(groups, split):
    return {file_name(k, split, side): g.pictures[side] for k, g in enumerate(groups) for side in (0, 1)}


@pytest.mark.parametrize("split", some(["val", "test"], "val"))
def test_every_written_pair_is_what_it_says(groups, split):
    check_pairs(grounding(groups[split], split), pictures_of(groups[split], split))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**40), st.integers(0, 500))
def test_with_any_seed_too(seed, index):
    one = group(index, "test", seed=seed)
    assert holds(one)
    pairs, _ = records(one, index, "test")
    for p in pairs:
        picture = one.pictures[int(p["original_id"][-1])]
        assert (find(picture, p["caption"], true_link if p["positive"] else possible_link) is None) != p["positive"]


def test_boxes_are_of_visible_pixels_and_lie_in_the_picture(groups):
    for split in SPLITS:
        for g in groups[split]:
            for k in (0, 1):
                picture = g.pictures[k]
                for ids, boxes in zip(denoted(picture, g.captions[k]), g.boxes(k)):
                    assert len(ids) == len(boxes) > 0
                    for t, (x0, y0, x1, y1) in zip(sorted(ids), boxes):
                        rows, columns = np.nonzero(picture.mask(t))
                        assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (x0, y0, x1, y1)
                        assert 0 <= x0 < x1 <= 96 and 0 <= y0 < y1 <= 96 and min(x1 - x0, y1 - y0) >= 5


# ---------------------------------------------------------------- what contradicts what


def test_exactly_one_element_differs(groups):
    for g in groups["val"] + groups["test"]:
        (p, pl), (q, ql) = (read_caption(c.text, g.pictures[0].scene.background) for c in g.captions)
        phrases = sum(a != b for a, b in zip(p, q)) + abs(len(p) - len(q))
        links = sum(a != b for a, b in zip(pl, ql))
        if g.contradiction == "object":
            assert (phrases, links, len(p)) == (1, 0, 1)
        elif g.contradiction == "relation":
            assert (phrases, links) in ((1, 0), (0, 1)) and len(p) == 2
        elif g.contradiction == "attribute":
            a, b = next((a, b) for a, b in zip(p, q) if a != b)
            assert (phrases, links) == (1, 0) and a[0] == b[0] and sum(x != y for x, y in zip(a, b)) == 1
        else:
            words = [sorted(c.text.split()) for c in g.captions]
            assert words[0] == words[1] and g.captions[0].text != g.captions[1].text


def test_the_two_pictures_share_their_setting(groups):
    "The same background, and where no part stands the same pixels; the pictures still differ."
    for g in groups["test"][:60]:
        a, b = g.pictures
        same = (a.image == b.image).all(axis=2)
        assert a.scene.background == b.scene.background and 0.25 < same.mean() < 1.0
        free = (a.owner < 0) & (b.owner < 0)
        assert same[free].mean() > 0.75  # shadows move


def test_the_turns_give_the_proportions_of_table_1(groups):
    counts = Counter(g.contradiction for g in groups["test"])
    assert sum(counts.values()) >= 600 and 4 * sum(counts.values()) == 2672
    assert counts["who_does_what"] > counts["object"] > counts["relation"] + counts["attribute"]
    assert set(Counter(g.contradiction for g in groups["val"])) == {"object", "relation", "attribute"}
    assert {g.recipe for g in groups["test"]} == {n for kind, plans in PLANS.items() if kind != "plain" for n in plans}


def test_no_scene_is_one_of_the_training_scenes(groups):
    drawn = {p.image.tobytes() for gs in groups.values() for g in gs for p in g.pictures}
    assert not drawn & {make_picture(k, split).image.tobytes() for k in range(60) for split in ("train", "test")}
    numbers = {p.scene.index for gs in groups.values() for g in gs for p in g.pictures}
    assert min(numbers) >= 700_000 and len(numbers) == 768


# ---------------------------------------------------------------- the two readings of a caption


def test_doubt_is_neither_true_nor_false():
    seen = Counter()
    for k in range(30):
        picture = make_picture(k)
        tops = picture.scene.top_level()
        for a, b in product(tops, tops):
            for relation in ("on", "under", "inside", "holding", "riding", "left of", "behind", "in front of"):
                caption = Caption((Noun(a.noun), Noun(b.noun)), ((0, relation, 1),), (0, relation, 1))
                yes, no = certainly_true(picture, caption), certainly_false(picture, caption)
                assert not (yes and no)
                assert not yes or denoted(picture, caption) == denoted(picture, caption, kindly=True)
                seen[yes, no] += 1
    assert min(seen.values()) > 20 and len(seen) == 3


def test_spans_hold_the_phrases():
    nouns = (Noun("umbrella", (("colour", "red"),)), Noun("dog", count=2))
    caption = Caption(nouns, ((1, "behind", 0),), (1, "behind", 0))
    assert caption.text == "two dogs behind a red umbrella"
    assert [caption.text[a:b] for a, b in caption.spans] == ["a red umbrella", "two dogs"]
    assert question(caption) == "are there two dogs behind a red umbrella"


def test_loaded_dice_are_ordinary_without_a_wish():
    fair, loaded, wishing = Dice(4), Loaded(4), Loaded(4, wishes=("c", "b"))
    assert [d.unit() for d in (fair, loaded, wishing)] == [Dice(4).unit()] * 3
    assert [fair.pick("abc") for _ in range(20)] == [loaded.pick("abc") for _ in range(20)]
    assert [wishing.pick("ab"), wishing.pick("abc"), wishing.pick("abc")][1:] == ["c", "b"] and not wishing.wishes


# ---------------------------------------------------------------- the official form


PAIR = set("id license file_name caption source positive original_id coco_type phrases height width".split())
BOX = set("id image_id phrase_id category_id bbox area iscrowd".split())


@pytest.mark.parametrize("split", ["val", "test"])
def test_the_files_have_the_official_form(groups, split):
    content, vqa = grounding(groups[split], split), questions(groups[split], split)
    assert [c["id"] for c in content["categories"]] == [1]
    for name in ("images", "annotations"):
        assert [r["id"] for r in content[name]] == list(range(1, len(content[name]) + 1))
    phrases = [i for p in content["images"] for i in p["phrases"]]
    assert phrases == [str(k) for k in range(1, len(phrases) + 1)]
    for k, p in enumerate(content["images"]):
        assert set(p) == PAIR | {"contradiction", "made_by"} and p["made_by"] == "miniworld"
        assert (p["source"] == "winoground") == (p["contradiction"] == "who_does_what")
        assert (p["coco_type"] == "object") == (p["contradiction"] == "object")
        assert p["contradiction"] == contradiction_of(k // 4, split)
        assert p["original_id"] == f"{k // 4 + 1}_{k % 2}"
        assert p["positive"] == (k % 4 < 2)
        spans = sorted(s for spans in p["phrases"].values() for s in spans)
        assert all(a[1] < b[0] for a, b in pairwise(spans))
    assert all(set(a) == BOX for a in content["annotations"])
    assert [q["question_id"] for q in vqa["questions"]] == [p["id"] for p in content["images"]]
    assert [a["answer"] for a in vqa["annotations"]] == [int(p["positive"]) for p in content["images"]]
    for q, p in zip(vqa["questions"], content["images"]):
        assert q["file_name"] == p["file_name"] and p["caption"] in q["question"]
        assert q["question"] == caption_to_question(p["caption"])


@pytest.mark.skipif(not REAL.is_dir(), reason="no real TRICD (../shared/realdata)")
def test_keys_and_types_are_those_of_the_real_files(root):
    lists_of = {"grounding": ("categories", "images", "annotations"), "VQA": ("questions", "annotations")}
    for kind, lists in lists_of.items():
        real = json.loads((REAL / f"TRICD_{kind}_val.json").read_text())
        ours = json.loads((root / f"TRICD_{kind}_test.json").read_text())
        assert set(real) == set(ours) == set(lists)
        for name in lists:
            a, b = ({k: type(v).__name__ for k, v in content[name][0].items()} for content in (real, ours))
            assert a == {k: v for k, v in b.items() if k not in ("contradiction", "made_by")}
        if kind == "grounding":  # the order of the four pairs
            for content in (real, ours):
                four = [(p["positive"], p["original_id"][-1]) for p in content["images"][:4]]
                assert four == [(True, "0"), (True, "1"), (False, "0"), (False, "1")]


def test_the_loaders_of_the_real_data_read_both_splits(root):
    for split, n in (("val", 5), ("test", 15)):
        files = tricd_files(root, split)
        data, asked = load_tricd(files.grounding), load_tricd_vqa(files.questions)
        assert len(data) == len(asked) == len(files) == 4 * n and data.positive.sum() == 2 * n
        assert asked["answer"].tolist() == data.positive.tolist() and len(data.group_names) == n
        assert data.has_rival[data.positive[data.phrase_pairs]].all() and files.is_miniworld
        for pair in data.pairs:
            with Image.open(files.picture(pair.file_name)) as picture:
                assert picture.size == (96, 96) == pair.size and picture.format == "PNG" and picture.mode == "RGB"


# ---------------------------------------------------------------- statistics


def test_statistics_count_what_is_written(root):
    data = load_tricd(root / "TRICD_grounding_test.json")
    table = tricd_statistics(data)
    assert list(table.index) == list(STATISTICS)
    assert list(table.columns) == ["coco_obj", "coco_rel", "winoground", "all"]
    for name in ("image-caption pairs", "boxes"):
        assert table.loc[name, "all"] == table.loc[name].drop("all").sum()
    assert table.loc["boxes", "all"] == len(data.truth) and table.loc["unique images", "all"] == 30
    assert table.loc["phrases per image", "coco_obj"] == 1 and table.loc["phrases per image", "coco_rel"] == 2


def test_the_whole_test_set_looks_like_table_1(groups, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(grounding(groups["test"], "test")))
    table = tricd_statistics(load_tricd(tmp_path / "a.json"))
    words = table.loc["words per caption"]
    assert 1.0 < words["coco_obj"] < 1.8 and 4.5 < words["coco_rel"] < 6.5 and 8.5 < words["winoground"] < 11
    assert 2.0 < table.loc["phrases per image", "winoground"] < 3.0 and table.loc["boxes per phrase", "coco_obj"] > 1.3


@pytest.mark.skipif(not REAL.is_dir(), reason="no real TRICD (../shared/realdata)")
def test_the_real_validation_set_gives_table_7():
    "All but the unique words of relations and all, where the paper also counts the empty word after a last space."
    table = tricd_statistics(load_tricd(REAL / "TRICD_grounding_val.json"))
    paper = {"unique images": (40, 60, 99), "unique phrases": (43, 73, 114), "unique words": (64, 131 - 1, 188 - 1),
             "image-caption pairs": (84, 120, 204), "boxes": (83, 232, 315), "phrases per image": (1.0, 2.0, 1.6),
             "boxes per phrase": (1.9, 1.9, 1.9), "words per caption": (1.6, 5.0, 3.6)}  # fmt: skip
    assert {k: tuple(row.round(1)) for k, row in table.iterrows()} == paper
    captions = {p.caption for p in load_tricd(REAL / "TRICD_grounding_val.json").pairs if p.subset == "coco_rel"}
    assert len({w for c in captions for w in c.lower().split(" ")}) == 131


def test_statistics_without_a_true_pair(tmp_path, root):
    content = json.loads((root / "TRICD_grounding_val.json").read_text())
    content = {**content, "images": [p for p in content["images"] if not p["positive"]], "annotations": []}
    (tmp_path / "a.json").write_text(json.dumps(content))
    table = tricd_statistics(load_tricd(tmp_path / "a.json"))
    assert table.loc["boxes", "all"] == 0 and np.isnan(table.loc["boxes per phrase", "all"])


# ---------------------------------------------------------------- by name and folder


def test_the_empty_name_is_the_miniworld(tmp_path, monkeypatch):
    from qgcam_lib import miniworld
    from qgcam_lib.data import catalog
    from qgcam_lib.data.tricd import files as module

    few = miniworld.ensure_tricd
    monkeypatch.setattr("qgcam_lib.miniworld.writers.tricd.ensure_tricd",
                        lambda folder, anew, progress: few(folder, n_test=1, n_val=1, progress=False))
    for one in (module, catalog):
        monkeypatch.setattr(one, "settings", one.settings.model_copy(update={"data_root": tmp_path}))
    assert tricd_folder("") == tricd_folder("miniworld-tricd") == tmp_path / "miniworld_tricd"
    assert catalog.recognise(tricd_folder()) == "TRICD" and tricd_splits(tricd_folder()) == ["test", "val"]
    table = catalog.verify_dataset("miniworld-tricd")
    assert table.empty and [c["examples"] for c in table.attrs["counts"]] == [4, 4]
    with pytest.raises(ExampleError, match="load_tricd"):
        catalog.load_dataset("miniworld-tricd")


def test_a_clone_of_the_authors_repository_is_read(tmp_path, root):
    for part, kind in (("grounding", "grounding"), ("vqa", "VQA")):
        (tmp_path / part / "annotations").mkdir(parents=True)
        name = f"TRICD_{kind}_val.json"
        (tmp_path / part / "annotations" / name).write_bytes((root / name).read_bytes())
    files = tricd_files(tmp_path, "val")
    assert not files.is_miniworld and files.expected == 204 and files.images == () and files.questions is not None
    assert (files.verify().problem == "the picture is missing").sum() == 10
    (tmp_path / "val2017").symlink_to(root / "images")
    assert tricd_files(tmp_path, "val").verify().empty
    (tmp_path / "TRICD_grounding_val.json").write_text("{}")
    with pytest.raises(ExampleError, match="2 files"):
        tricd_files(tmp_path, "val")


@pytest.mark.parametrize(("name", "match"), [("nowhere", "no such folder"), ("", "no TRICD_grounding")])
def test_a_folder_without_tricd(tmp_path, name, match):
    with pytest.raises(ExampleError, match=match):
        tricd_folder(tmp_path / name)


def test_a_missing_split_names_those_there(root):
    with pytest.raises(ExampleError, match=r"expected one of \['test', 'val'\]"):
        tricd_files(root, "train")


def test_faults_are_found_one_by_one(tmp_path, root):
    copy = tmp_path / "w"
    (copy / "images").mkdir(parents=True)
    for path in [*root.glob("*.json"), *root.glob("images/*.png")]:
        (copy / path.relative_to(root)).write_bytes(path.read_bytes())
    content = json.loads((copy / "TRICD_grounding_test.json").read_text())
    content["annotations"][0]["bbox"] = [90, 90, 20, 20]
    (copy / "TRICD_grounding_test.json").write_text(json.dumps(content))
    vqa = json.loads((copy / "TRICD_VQA_test.json").read_text())
    vqa["annotations"][2]["answer"], vqa["questions"] = 1, vqa["questions"][:-1]
    (copy / "TRICD_VQA_test.json").write_text(json.dumps(vqa))
    (copy / "images" / content["images"][0]["file_name"]).write_bytes(b"no picture")
    found = tricd_files(copy).verify()
    assert found.severity.tolist().count("note") == 1 and (found.severity == "error").sum() == 3
    assert set(found.id) >= {"1", "3", "60"}
    (copy / "TRICD_VQA_test.json").write_text("[]")
    assert tricd_files(copy).verify().problem.str.contains("expected an object with the list").any()
    (copy / "TRICD_VQA_test.json").unlink()
    assert tricd_files(copy).verify().problem.str.contains("questions is missing").any()
    content["images"][0].pop("caption")
    (copy / "TRICD_grounding_test.json").write_text(json.dumps(content))
    assert tricd_files(copy).verify().problem.tolist() == ["field 'caption' is missing"]
