"""The miniworld for the conceptual probes: unbiased twins, COCO, Visual Genome, fillers, MiniNet and swaps."""

import json
from collections import Counter

import numpy as np
import pycocotools.mask
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from pycocotools.coco import COCO

from qgcam_lib import miniworld
from qgcam_lib.data import catalog
from qgcam_lib.data.catalog import recognise, verify_dataset
from qgcam_lib.data.probes.files import read_groups
from qgcam_lib.data.probes.rows import read_prompt_classes
from qgcam_lib.errors import ExampleError
from qgcam_lib.miniworld import ensure, ensure_coco, ensure_visual_genome, make_picture, read_card, vocabulary
from qgcam_lib.miniworld.scenes.sampler import draft_scene
from qgcam_lib.miniworld.scenes.scene import BACKGROUNDS
from qgcam_lib.miniworld.words.claims import certainly_false, certainly_true, linked
from qgcam_lib.miniworld.writers.flickr30k import annotated, image_id, sentences_text
from qgcam_lib.miniworld.writers.mininet import CLASSES, FILLERS, filler, mininet_picture
from qgcam_lib.miniworld.writers.spatialsense import PREDICATE_ALIASES, genome_picture
from qgcam_lib.miniworld.writers.swaps import prompt_of, swap
from qgcam_lib.miniworld.writers.tricd import coco_picture, packed, run_lengths

# ---------------------------------------------------------------- the unbiased twin


def test_the_unbiased_folder_holds_unbiased_training_scenes_and_the_usual_test_scenes(tmp_path):
    root = ensure(tmp_path / "w", ("train", "test"), n_train=4, n_test=2, natural=False, progress=False)
    assert read_card(root)["splits"] == {"test": 2, "train": 4, "val": 0}
    for i in range(4):
        _, sentences, _ = annotated(i, "train", natural=False)
        assert (root / "Sentences" / f"{image_id(i, 'train')}.txt").read_text() == sentences_text(sentences)
    assert [make_picture(i, "train", natural=False).scene.natural for i in range(2)] == [False, False]
    _, sentences, _ = annotated(1)
    assert (root / "Sentences" / f"{image_id(1, 'test')}.txt").read_text() == sentences_text(sentences)


@pytest.mark.parametrize("first", [True, False])
def test_neither_twin_continues_the_other(tmp_path, first):
    ensure(tmp_path / "w", n_test=1, natural=first, progress=False)
    with pytest.raises(ValueError, match="layout"):
        ensure(tmp_path / "w", n_test=1, natural=not first, progress=False)


def test_cows_stand_on_the_grass_in_natural_scenes_alone():
    places = {natural: Counter(scene.background for scene in (draft_scene(k, "train", 1, 96, natural)
                                                              for k in range(600))
                               for t in scene.things if t.noun == "cow") for natural in (True, False)}
    shares = {natural: found["grass"] / found.total() for natural, found in places.items()}
    assert shares[True] > 0.5 and 0.05 < shares[False] < 0.4


# ---------------------------------------------------------------- COCO


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    return ensure_coco(tmp_path_factory.mktemp("coco") / "w", n_train=30, n_val=20, progress=False)


@pytest.mark.parametrize("split", ["train", "val"])
def test_pycocotools_reads_exact_masks_in_all_three_forms(coco, split):
    read = COCO(coco / "annotations" / f"instances_{split}2014.json")
    forms = set()
    for index, number in enumerate(sorted(read.imgs)):
        picture = coco_picture(index, split)
        image = np.asarray(Image.open(coco / f"{split}2014" / read.imgs[number]["file_name"]).convert("RGB"))
        assert np.abs(image.astype(int) - picture.image).mean() < 4  # JPEG
        tops = [t for t in picture.scene.top_level() if t.box is not None]
        for t, one in zip(tops, read.loadAnns(read.getAnnIds(number)), strict=True):
            mask = read.annToMask(one).astype(bool)
            assert np.array_equal(mask, picture.mask(t.id)) and one["area"] == mask.sum()
            x, y, w, h = one["bbox"]
            assert (x, y, x + w, y + h) == t.box
            form = one["segmentation"]
            forms.add("polygons" if isinstance(form, list) else type(form["counts"]).__name__)
    assert forms == {"polygons", "list", "str"}


@given(arrays(bool, st.tuples(st.integers(1, 40), st.integers(1, 40))))
@settings(max_examples=60, deadline=None)
def test_run_lengths_are_those_of_pycocotools(mask):
    official = pycocotools.mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert packed(run_lengths(mask)).encode() == official["counts"]
    assert sum(run_lengths(mask)) == mask.size


def test_every_picture_has_five_captions_of_its_scene(coco):
    read = json.loads((coco / "annotations" / "captions_val2014.json").read_text())
    said = {}
    for one in read["annotations"]:
        said.setdefault(one["image_id"], []).append(one["caption"])
    assert list(said) == [image["id"] for image in read["images"]]
    assert all(len(captions) == 5 for captions in said.values())
    words = {w for captions in said.values() for c in captions for w in c.lower().rstrip(".").split()}
    assert words <= set(vocabulary()) and len({a["id"] for a in read["annotations"]}) == 100


# ---------------------------------------------------------------- Visual Genome


@pytest.fixture(scope="module")
def genome(tmp_path_factory):
    root = ensure_visual_genome(tmp_path_factory.mktemp("vg") / "w", n=80, progress=False)
    return root, {p.stem: json.loads(p.read_text()) for p in root.glob("*.json")}


def aliases(path):
    rows = [line.split(",") for line in path.read_text().splitlines()]
    names = [name.lower() for row in rows for name in row]
    assert len({(row[0].lower(), n.lower()) for row in rows for n in row}) == len({*names})
    return {name.lower(): row[0] for row in rows for name in row}


def test_relationships_are_true_of_the_pictures(genome):
    root, files = genome
    of = {name: key for key, row in PREDICATE_ALIASES.items() for name in row}
    predicates, forms = aliases(root / "relationship_alias.txt"), set()
    told = 0
    for index, entry in enumerate(files["relationships"]):
        picture = genome_picture(index)
        boxes = {t.box: t for t in picture.scene.things if t.box is not None}
        for r in entry["relationships"]:
            ends = [r["subject"], r["object"]]
            forms |= {"names" if "names" in end else "name" for end in ends}
            at = [tuple(float(v) for v in (e["x"], e["y"], e["x"] + e["w"], e["y"] + e["h"])) for e in ends]
            a, b = (boxes[box] for box in at)
            predicate = of[r["predicate"]]
            assert linked(picture, a.id, predicate, b.id), (index, r)
            assert predicates[r["predicate"].lower()] == PREDICATE_ALIASES[predicate][0]
            told += 1
    assert told > 100 and forms == {"name", "names"}


def test_alias_files_bring_every_name_back_to_its_noun(genome):
    root, files = genome
    names, spelt = aliases(root / "object_alias.txt"), 0
    for index, entry in enumerate(files["objects"]):
        boxes = {t.box: t for t in genome_picture(index).scene.things if t.box is not None}
        for o in entry["objects"]:
            t = boxes[tuple(float(v) for v in (o["x"], o["y"], o["x"] + o["w"], o["y"] + o["h"]))]
            assert names.get(o["names"][0], o["names"][0]) == t.noun
            spelt += o["names"][0] != t.noun
    assert spelt > 10


def test_the_five_files_speak_of_the_same_pictures_and_things(genome):
    root, files = genome
    ids = [entry["image_id"] for entry in files["image_data"]]
    assert all([e.get("image_id", e.get("id")) for e in files[name]] == ids for name in files if name != "miniworld")
    assert all((root / "VG_100K" / f"{number}.jpg").is_file() for number in ids)
    for objects, looks, regions in zip(files["objects"], files["attributes"], files["region_descriptions"]):
        assert [o["object_id"] for o in objects["objects"]] == [o["object_id"] for o in looks["attributes"]]
        assert all(0 <= r["x"] and r["x"] + r["width"] <= 96 and r["phrase"] for r in regions["regions"])
    numbers = [o["object_id"] for e in files["objects"] for o in e["objects"]]
    assert len(set(numbers)) == len(numbers)
    assert 0.6 < np.mean(["attributes" in o for e in files["attributes"] for o in e["attributes"]]) < 1


# ---------------------------------------------------------------- fillers


def test_fillers_are_empty_and_differ(tmp_path):
    root = miniworld.ensure_fillers(tmp_path / "w", n=4)
    for folder in FILLERS:
        pictures = [filler(k, folder) for k in range(4)]
        assert all((p.owner < 0).all() and not p.scene.things for p in pictures)
        assert len({p.image.tobytes() for p in pictures}) == 4
        for k, p in enumerate(pictures):
            assert np.array_equal(np.asarray(Image.open(root / folder / f"{k:04d}.png")), p.image)
    assert {filler(k, "landscape").scene.background for k in range(4)} == {*BACKGROUNDS} - {"indoor"}


# ---------------------------------------------------------------- MiniNet


def test_mininet_shows_one_thing_in_the_middle_and_no_class_has_a_background_of_its_own(tmp_path):
    backgrounds = Counter()
    for name in CLASSES:
        for k in range(5):
            p = mininet_picture(name, k)
            (one,) = p.scene.top_level()
            x0, y0, x1, y1 = one.box
            assert one.noun == name and abs((x0 + x1) / 2 - 48) < 14 and y0 < 55 and y1 > 48
            backgrounds[name, p.scene.background] += 1
    assert set(backgrounds.values()) == {1}
    root = miniworld.ensure_mininet(tmp_path / "w", n=1, progress=False)
    prompts = read_prompt_classes(root / "classes.csv")
    assert list(prompts) == list(CLASSES) == sorted(p.name for p in root.iterdir() if p.is_dir())
    assert {w for text in prompts.values() for w in text.lower().rstrip(".").split()} <= set(vocabulary())


# ---------------------------------------------------------------- swaps


def test_swaps_are_decidable_and_read_as_pairs_of_the_probes(tmp_path):
    root = miniworld.ensure_swaps(tmp_path / "w", n=60, progress=False)
    pairs = read_groups(root / "swaps.json")
    for index, pair in enumerate(pairs):
        group = swap(index)
        assert pair.prompts == tuple(prompt_of(c) for c in group.captions)
        for k, name in enumerate(pair.images):
            shown = np.asarray(Image.open(root / "images" / name))
            assert np.array_equal(shown, group.pictures[k].image)
            assert certainly_true(group.pictures[k], group.captions[k])
            assert certainly_false(group.pictures[k], group.captions[1 - k])
        if pair.kind == "attribute":
            said = [f" {p.lower().rstrip('.')} " for p in pair.prompts]
            assert all(f" {c} {o}" in s for c, o, s in zip(pair.compositions, pair.objects, said))
            assert pair.compositions[0] != pair.compositions[1] and pair.category in ("color", "pattern")
    assert Counter(p.kind for p in pairs).keys() == {"relation", "attribute"}
    assert min(Counter(p.kind for p in pairs).values()) > 15
    assert {w for p in pairs for text in p.prompts for w in text.lower().rstrip(".").split()} <= set(vocabulary())


# ---------------------------------------------------------------- the doors of the library


def test_the_readers_of_the_official_files_find_no_fault(coco, genome):
    for folder, layout, splits in ((coco, "COCO", {"train2014", "val2014"}), (genome[0], "Visual Genome", {"all"})):
        assert recognise(folder) == layout
        faults = verify_dataset(folder)
        assert faults.empty and {row["split"] for row in faults.attrs["counts"]} == splits


def test_a_name_makes_its_folder_and_says_what_opens_it(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "settings", catalog.settings.model_copy(update={"data_root": tmp_path}))
    makers = {"fillers": "ensure_fillers", "mininet": "ensure_mininet", "swaps": "ensure_swaps", "coco": "ensure_coco"}
    for name, maker in makers.items():
        make = getattr(miniworld, maker)
        few = {"n_train": 1, "n_val": 1} if name == "coco" else {"n": 1}
        monkeypatch.setattr(f"{make.__module__}.{maker}",
                            lambda root, anew, progress, make=make, few=few: make(root, **few))
        with pytest.raises(ExampleError, match="no grounding examples") as error:
            catalog.load_dataset(f"miniworld-{name}")
        assert error.value.remedy and (tmp_path / f"miniworld_{name}" / "miniworld.json").is_file()
