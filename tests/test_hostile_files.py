"""Each field of a small valid file of every data set, exchanged for thirty hostile values: only documented errors."""

import copy
import json
import math
import os
import pickle
import random
import re
import struct
import subprocess
import sys
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from speeds import some

from qgcam_lib.data.catalog import dataset_files, load_dataset, verify_dataset
from qgcam_lib.data.coco.files import read_instances
from qgcam_lib.data.coco.folder import Coco
from qgcam_lib.data.flickr30k.entities import Flickr30kEntities
from qgcam_lib.data.gqa import Gqa, scene_graphs
from qgcam_lib.data.probes.files import ProbeFiles, read_groups
from qgcam_lib.data.probes.groups import picture_file, shown
from qgcam_lib.data.records import box_share, image_problems, open_image
from qgcam_lib.data.refer import Refer
from qgcam_lib.data.referring.files import hard_originals, read_ref_adv
from qgcam_lib.data.referring.people import shipped_choices
from qgcam_lib.data.referring.refcocog import join, refcocog
from qgcam_lib.data.spatialsense import SpatialSense
from qgcam_lib.data.tricd.files import tricd_files
from qgcam_lib.data.tricd.pairs import load_tricd, tricd_content
from qgcam_lib.data.visual_genome.folder import VisualGenome
from qgcam_lib.errors import FormatError, QgcamError

HOSTILE = [None, True, False, 0, -1, 7, 2**63, 10**30, 10**400, 1.5, 1e308, math.nan, math.inf, -math.inf, "", " ",
           "..", "../x", "/etc/passwd", "a" * 300, "a\0b", "\ud800", "1/2", "1" * 5000, "²", "x", [], [[]], [5], [None],
           {}, {"a": 1}, [{}], ["x", "x"]]
GONE = object()


EVERY = int(os.environ.get("EVERY_MUTANT") or 9)  # all of them take minutes: make nightly sets 1


def mutants(content):
    """(where, value, content with this value there, or with nothing there) for every place in JSON-like content; only
    each ninth of them, so that each place gets four values and each value comes to many places."""
    def places(value, path=()):
        yield path
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, one in inner:
            yield from places(one, (*path, key))

    turn = 0
    for path in places(content):
        for value in [*HOSTILE, GONE] if path else HOSTILE:
            turn += 1
            if turn % EVERY:
                continue
            if not path:
                yield path, value, value
                continue
            new = copy.deepcopy(content)
            holder = new
            for key in path[:-1]:
                holder = holder[key]
            if value is GONE:
                del holder[path[-1]]
            else:
                holder[path[-1]] = value
            yield path, value, new


def documented(work, *about):
    """The result of the work, or the text of an error of the documented family; anything else is the test's failure."""
    try:
        work()
    except (QgcamError, FileNotFoundError) as error:
        text = str(error)
        assert len(text) < 3000, about
        text.encode()
        return text
    except Exception as error:
        raise AssertionError(f"{about}: {type(error).__name__}: {error!s:.200}") from error
    return ""


def whole(dataset):
    """All that a loader of grounding examples does."""
    list(dataset), len(dataset), dataset.fingerprint(), dataset.files()
    writable(dataset.describe(), dataset.verify().to_dict("list"), [(one.id, one.prompt, one.meta) for one in dataset])


def writable(*values):
    json.dumps(values, default=str).encode()
    repr(values).encode()


def picture(path, size=(32, 24)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "red").save(path)


COCO = {"images": [{"id": 1, "file_name": "a.png", "height": 24, "width": 32},
                   {"id": 2, "file_name": "b.png", "height": 24, "width": 32}],
        "categories": [{"id": 3, "name": "dog", "supercategory": "animal"}],
        "annotations": [{"id": 5, "image_id": 1, "category_id": 3, "bbox": [1, 2, 10, 12], "area": 60.0, "iscrowd": 0,
                         "segmentation": [[1, 2, 11, 2, 11, 14]]},
                        {"id": 6, "image_id": 2, "category_id": 3, "bbox": [1, 2, 10, 12], "area": 60.0, "iscrowd": 1,
                         "segmentation": {"size": [24, 32], "counts": [10, 5, 753]}}]}
CAPTIONS = {"images": COCO["images"], "annotations": [{"id": 1, "image_id": 1, "caption": "a dog"}]}
REFS = [{"ref_id": 1, "ann_id": 5, "image_id": 1, "split": "val", "category_id": 3, "sent_ids": [0],
         "file_name": "a.png", "sentences": [{"sent_id": 0, "sent": "a dog", "raw": "A dog", "tokens": ["a", "dog"]}]},
        {"ref_id": 2, "ann_id": 6, "image_id": 2, "split": "val", "category_id": 3, "sent_ids": [1],
         "file_name": "b.png", "sentences": [{"sent_id": 1, "sent": "the dog", "raw": "the dog"}]}]
SENSE = [{"url": "http://flickr/a.png", "nid": "0", "height": 24, "width": 32, "split": "test", "annotations": [
    {"_id": "r1", "predicate": "on", "label": True, "subject": {"name": "cup", "bbox": [2, 8, 3, 9], "x": 1, "y": 1},
     "object": {"name": "table", "bbox": [5, 20, 1, 30], "x": 1, "y": 1}}]},
    {"url": "b.png", "nid": "1", "height": 24, "width": 32, "split": "test", "annotations": [
        {"_id": "r2", "predicate": "in", "label": True, "subject": {"name": "cup", "bbox": [2, 8, 3, 9]},
         "object": {"name": "box", "bbox": [5, 20, 1, 30]}}]}]


def pair(id, caption, side, positive):
    return {"id": id, "file_name": f"{'ab'[side]}.png", "caption": caption, "source": "coco_test2017",
            "positive": positive, "original_id": f"1_{side}", "coco_type": "relation",
            "phrases": {str(id): [[0, 4]]}, "height": 24, "width": 32, "contradiction": "relation"}


TRICD = {"images": [pair(1, "dogs run", 0, True), pair(2, "dogs sit", 1, True), pair(3, "dogs sit", 0, False),
                    pair(4, "dogs run", 1, False)],
         "annotations": [{"id": 1, "image_id": 1, "phrase_id": 1, "bbox": [1, 2, 10, 12]},
                         {"id": 2, "image_id": 2, "phrase_id": 2, "bbox": [1, 2, 10, 12]}]}
ASKED = {"questions": [{"image_id": 1, "question": "do dogs run", "question_id": 1}],
         "annotations": [{"image_id": 1, "answer": 1, "question_id": 1}]}
GENOME = {"relationships.json": [{"image_id": 1, "relationships": [
    {"predicate": "on", "subject": {"name": "cup", "object_id": 1, "x": 0, "y": 0, "w": 4, "h": 4},
     "object": {"names": ["table"], "object_id": 2, "x": 0, "y": 0, "w": 4, "h": 4}}]}],
    "objects.json": [{"image_id": 1, "objects": [{"object_id": 1, "names": ["cup"], "x": 0, "y": 0, "w": 4, "h": 4}]}],
    "region_descriptions.json": [{"id": 1, "regions": [{"region_id": 1, "phrase": "a cup", "x": 0, "y": 0}]}],
    "image_data.json": [{"image_id": 1, "url": "https://x/VG_100K/1.jpg", "width": 32, "height": 24, "coco_id": None}]}
QUESTIONS = {"07": {"semantic": [{"operation": "select", "dependencies": [], "argument": "wall"},
                                 {"operation": "query", "dependencies": [0], "argument": "name"}],
                    "question": "What is on the wall?", "imageId": "a", "isBalanced": True, "answer": "pipe",
                    "groups": {"global": "", "local": "14"}, "fullAnswer": "The pipe.",
                    "types": {"detailed": "relS", "semantic": "rel", "structural": "query"}}}
GRAPHS = {"a": {"width": 32, "height": 24, "objects": {"1": {
    "name": "cup", "x": 1, "y": 1, "w": 4, "h": 4, "relations": [{"name": "on", "object": "1"}]}}}}
RELATION = {"11": {"positive_image_ids": [1, 2], "negative_image_ids": [3, "4"], "positive_prompt": "a cup on a table",
                   "negative_prompt": "a box on a table", "negative_predicate_prompt": "a cup under a table",
                   "positive_object": "cup", "negative_object": "box", "predicate": "on", "image": "11.jpg"}}
SWAP = [{"img1_prompt": "a red cup", "img1_id": "1", "img1_composition": "red", "img1_object": "cup", "img2_id": 2,
         "img2_prompt": "a blue cup", "img2_composition": "blue", "img2_object": "cup", "id": "s",
         "kind": "composition", "category": "colour"}]
BACKGROUND = [{"image_id": 1, "image": "a.png", "annotations": {"dog": [{"bbox": [1, 2, 3, 4]}]}, "classes": ["dog"],
               "fillers": {"black": {"id": "1/black", "patch": "p.png"}}}]
OBJECT = [{"image_id": 1, "object": "dog", "other_objects": ["cat"], "path": "dog_a.png", "classes": ["dog"]}]
RELCOMP = [{"id": "1", "image": "a.png", "caption": "a dog", "positive": "a dog", "negative": "a cat",
            "kind": "composition"}]
RAW = {"t1": {"most_confused_bbox_GT_desc": "the dog", "raw_str": "a dog", "refID": 1, "annID": 5, "imgID": 1,
              "img_file_name": "a.png", "bbox_candidates_map": '{"1": [1, 2, 10, 12], "2": [0, 0, 4, 4]}',
              "most_confused_bbox_number": "1", "GT_bbox_number": "2", "assigns": [{"dropdownselect": "1"}],
              "shuffle": "dog the"}}
LABELLED = {"annotations": [{"annID": 5, "label": "easy", "gt_bbox": 1, "bboxes": {"1": [1, 2, 10, 12]},
                             "expression": "a dog", "img_file_name": "a_5.png"},
                            {"annID": "6", "label": "adv", "gt_bbox": "1", "bboxes": '{"1": [1, 2, 10, 12]}',
                             "expression": "a dog", "img_file_name": "b.png"}]}


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, 2) if path.suffix == ".p" else json.dumps(content).encode())
    return path


def pictures(folder):
    for place in ("", "images", "images/flickr", "images/nyu", "val2014"):
        for name in ("a.png", "b.png"):
            picture(folder / place / name)


def refer(folder):
    put(folder / "refcocog" / "instances.json", COCO)
    put(folder / "refcocog" / "refs(umd).p", REFS)


def look_refer(folder):
    data = Refer(folder, "refcocog", "val", on_error="record")
    whole(data)
    for image in data.images():
        data.objects(image)
    documented(lambda: list(Refer(folder, "refcocog", "all")))
    documented(lambda: writable(list(refcocog(folder, "val", on_error="record")), data.kinds, data.splits()))


def look_coco(folder):
    data = Coco(folder, "val2014", "record")
    writable(data.verify().to_dict("list"), data.files(), len(data), data.instances.classes, data.captions.captions,
             data.instances.objects)
    documented(lambda: Coco(folder, "val2014").instances)


def look_tricd(folder):
    files = tricd_files(folder, "val")
    writable(files.verify().to_dict("list"))
    data = load_tricd(files.grounding)
    writable(tricd_content(data), data.rival_of.tolist(), files.files())


def look_genome(folder):
    data = VisualGenome(folder)
    writable(data.verify().to_dict("list"), data.describe(), data.files(), list(data.regions()), data.presence.names)


def look_gqa(folder):
    for balanced in (True,):
        data = Gqa(folder, "val", balanced=balanced)
        questions = list(data)
        writable(data.describe(), len(data), questions)
        for one in questions:
            data.picture(one)
    writable(list(scene_graphs(folder, "val")))


def look_probe(name):
    def look(folder):
        writable(ProbeFiles(folder).verify().to_dict("list"), len(ProbeFiles(folder)))
        groups = read_groups(folder / name)
        writable(groups.describe(), groups)
        for one in groups:
            for image in shown(one):
                picture_file(image, folder)
    return look


def look_adv(name):
    def look(folder):
        found = read_ref_adv(folder / name, on_error="record")
        writable(found, found.problems, found.left_out)
        documented(lambda: writable(hard_originals(found)))
        documented(lambda: shipped_choices(found))
        documented(lambda: writable(join(found, folder, on_error="record")))
        read_ref_adv(folder / name)
    return look


def build_probe(name, content):
    def build(folder):
        put(folder / name, content)
        (folder / "prompt_classes.csv").write_text("class,prompt\ndog,a dog\ncat,a cat\n")
    return build


def build_adv(name, content):
    def build(folder):
        put(folder / name, content)
        refer(folder)
    return build


def genome(folder):
    for name, content in GENOME.items():
        put(folder / name, content)


def gqa(folder):
    put(folder / "val_balanced_questions.json", QUESTIONS)
    put(folder / "val_sceneGraphs.json", GRAPHS)


def coco(folder):
    put(folder / "annotations" / "instances_val2014.json", COCO)
    put(folder / "annotations" / "captions_val2014.json", CAPTIONS)


def tricd(folder):
    put(folder / "TRICD_grounding_val.json", TRICD)
    put(folder / "TRICD_VQA_val.json", ASKED)


def sense(folder):
    put(folder / "annotations.json", SENSE)


CASES = {  # name: (what builds the folder, the file that is changed, its content, what looks at all of it)
    "coco instances": (coco, "annotations/instances_val2014.json", COCO, look_coco),
    "coco captions": (coco, "annotations/captions_val2014.json", CAPTIONS, look_coco),
    "refer instances": (refer, "refcocog/instances.json", COCO, look_refer),
    "refer refs": (refer, "refcocog/refs(umd).p", REFS, look_refer),
    "spatialsense": (sense, "annotations.json", SENSE, lambda folder: whole(SpatialSense(folder, on_error="record"))),
    "tricd": (tricd, "TRICD_grounding_val.json", TRICD, look_tricd),
    "tricd questions": (tricd, "TRICD_VQA_val.json", ASKED, look_tricd),
    **{f"genome {name}": (genome, name, content, look_genome) for name, content in GENOME.items()},
    "gqa": (gqa, "val_balanced_questions.json", QUESTIONS, look_gqa),
    "gqa graphs": (gqa, "val_sceneGraphs.json", GRAPHS, look_gqa),
    **{f"probe {name}": (build_probe(name, content), name, content, look_probe(name)) for name, content in (
        ("relation_eval_subject.json", RELATION), ("data_object_switch.json", SWAP),
        ("background_context_dataset.json", BACKGROUND), ("object_context_dataset.json", OBJECT))},
    "relcomp": (build_probe("relcomp.json", RELCOMP), "relcomp.json", RELCOMP, look_probe("relcomp.json")),
    "ref-adv raw": (build_adv("refcocog_adv_annotations.json", RAW), "refcocog_adv_annotations.json", RAW,
                    look_adv("refcocog_adv_annotations.json")),
    "ref-adv labelled": (build_adv("adv_easy_hard_annotations.json", LABELLED), "adv_easy_hard_annotations.json",
                         LABELLED, look_adv("adv_easy_hard_annotations.json")),
}


@pytest.mark.parametrize("name", some(CASES, "coco instances", "tricd questions"))
def test_a_hostile_value_in_any_field_gives_a_documented_error_or_none(name, tmp_path):
    build, file, content, look = CASES[name]
    build(tmp_path)
    pictures(tmp_path)
    assert documented(lambda: look(tmp_path)) == ""
    faults = []
    for place, value, changed in mutants(content):
        put(tmp_path / file, changed)
        try:
            documented(lambda: look(tmp_path), "/".join(map(str, place)), ascii(value)[:40])
        except AssertionError as error:
            faults.append(str(error))
    assert not faults, f"{len(faults)} undocumented:\n" + "\n".join(faults[:40])


# ---------------------------------------------------------------- the inputs that once ended in a traceback


def refer_with(folder, instances=None, refs=None):
    put(folder / "refcocog" / "instances.json", {**COCO, **(instances or {})})
    put(folder / "refcocog" / "refs(umd).p", refs or REFS)
    return Refer(folder, "refcocog", "val", on_error="record")


def test_a_category_that_is_a_number_is_left_out_and_no_more(tmp_path):
    data = refer_with(tmp_path, {"categories": [5, *COCO["categories"]]})
    assert [one.category for one in data] == ["dog", "dog"] and not data.problems


@pytest.mark.parametrize("change, said", [
    ({"category_id": []}, "category_id"), ({"image_id": {}}, "image_id"), ({"bbox": [10**400] * 4}, "bbox"),
    ({"area": "60"}, "area"), ({"id": True}, "id"), ({"bbox": [0, 0, True, 3]}, "bbox")])
def test_one_broken_annotation_of_coco_costs_one_row(tmp_path, change, said):
    first, second = COCO["annotations"]
    file = put(tmp_path / "instances.json", {**COCO, "annotations": [{**first, **change}, second]})
    found = read_instances(file, on_error="record")
    assert list(found.objects) == [2] and [one.problem.split(":")[0] for one in found.lost] == [said]
    with pytest.raises(FormatError, match=f"instances.json: annotation .*: {said}: "):
        read_instances(file)


@pytest.mark.parametrize("name", ["..", "../b.png", "/etc/passwd", "a" * 300, "a\0b", "", None])
def test_one_picture_of_coco_without_a_plain_name_costs_its_own_rows(tmp_path, name):
    one, two = COCO["images"]
    file = put(tmp_path / "instances.json", {**COCO, "images": [{**one, "file_name": name}, two]})
    found = read_instances(file, on_error="record")
    assert list(found.objects) == [2] and [(lost.id, lost.problem.split(":")[0]) for lost in found.lost] == [
        ("1", "file_name"), ("5", "image_id")]
    with pytest.raises(FormatError, match="image 1: file_name: expected a plain file name"):
        read_instances(file)


def test_a_ref_id_with_a_slash_costs_its_own_sentences(tmp_path):
    data = refer_with(tmp_path, refs=[{**REFS[0], "ref_id": "1/2"}, REFS[1]])
    assert [one.id for one in data] == ["2/1"]
    assert [(one.id, "'/'" in one.problem) for one in data.problems] == [("1/2/0", True)]


@pytest.mark.parametrize("side", [[], {}, 0, -1, 10**30, 10**400, 1.5, True, "24", math.nan, None])
def test_a_height_that_is_none_costs_one_picture(tmp_path, side):
    put(tmp_path / "annotations.json", [{**SENSE[0], "height": side}, SENSE[1]])
    data = SpatialSense(tmp_path, on_error="record")
    assert [one.id for one in data] == ["r2"] and [one.id for one in data.problems] == ["flickr/a.png/*"]
    data = refer_with(tmp_path, {"images": [{**COCO["images"][0], "height": side}, COCO["images"][1]]})
    assert [one.id for one in data] == ["2/1"] and len(data.problems) == 1


# ---------------------------------------------------------------- Flickr30k Entities: XML and marked sentences

XML = """<annotation><filename>a.jpg</filename><size><width>32</width><height>24</height><depth>3</depth></size>
<object><name>7</name><bndbox><xmin>2</xmin><ymin>3</ymin><xmax>12</xmax><ymax>14</ymax></bndbox></object>
<object><name>8</name><scene>1</scene><nobndbox>1</nobndbox></object></annotation>"""
SENTENCE = "[/EN#7/people A dog] in [/EN#8/scene a park] [ sic ] .\n"


def entities(folder, xml=XML, sentence=SENTENCE, listed="a\nb\n"):
    """Two pictures, of which the first has the files given."""
    for name, content in (("Sentences/a.txt", sentence), ("Sentences/b.txt", SENTENCE), ("Annotations/a.xml", xml),
                          ("Annotations/b.xml", XML), ("test.txt", listed)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return Flickr30kEntities(folder, on_error="record")


def look_entities(folder, **changed):
    def look():
        data = entities(folder, **changed)
        writable(list(data), data.problems, data.fingerprint())
        if "listed" not in changed:
            assert "b/0/0" in [one.id for one in data], "one broken file cost another picture"
    return look


@pytest.mark.nightly
def test_hostile_annotations_cost_one_picture(tmp_path):
    texts = ["", "nan", "1e400", "-5", "0", "9" * 5000, "1e30", "²"]
    parts = re.findall(r">([^<>\n]+)<", XML)
    made = [XML.replace(f">{part}<", f">{text}<", 1) for part in parts for text in texts]
    made += [re.sub(rf"<{tag}>.*?</{tag}>", new, XML, flags=re.S) for tag in re.findall(r"<(\w+)>", XML)[1:]
             for new in ("", f"<{tag}/>", f"<{tag}><{tag}/></{tag}>")]
    made += [XML[:cut] for cut in range(0, len(XML), 41)]
    made += ["<a>" * 50_000, XML.encode("utf-16"), b"\xff\xfe\0", b"\0" * 99]
    made += [f"<?xml version='1.0' encoding='{name}'?>{XML}".encode() for name in (
        "shift-jis", "utf-7", "x-none", "cp037", "utf-32", "rot13", "hex", "base64", "idna", "unicode_escape", "big5",
        "undefined", "punycode", "mbcs", "utf-8-sig", "\u00e9", "a" * 300)]
    made += ["<!DOCTYPE a [" + '<!ENTITY a "aaaaaaaaaa">' + "".join(
                 f'<!ENTITY {chr(98 + k)} "{f"&{chr(97 + k)};" * 10}">' for k in range(9)) + "]>" + XML.replace(
                     "a.jpg", "&j;"),
             f"<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>{XML}".replace(">7<", ">&x;<"),
             f"<!DOCTYPE a SYSTEM 'http://x.invalid/a.dtd'>{XML}"]
    faults = []
    for xml in made:
        try:
            documented(look_entities(tmp_path, xml=xml), ascii(xml)[:80])
        except AssertionError as error:
            faults.append(str(error))
    assert not faults, f"{len(faults)} of {len(made)}:\n" + "\n".join(faults[:20])


@pytest.mark.parametrize("sentence", [
    b"\xff\xfe", "[/EN#7/people", "[/EN#7 A dog]", "]" * 50, "[" * 101 + "x" + "]" * 101,
    "[/EN#" + "7" * 5000 + "/x A dog]",
    "[/EN#7/" + "x/" * 2000 + "y A dog]", "\0", "\ufeff" * 5, "[/EN#7/people ]", "\u2028[/EN#7/people A dog]",
    "[/EN#7/people A dog]" * 500], ids=lambda one: ascii(one)[:20])
def test_hostile_sentences_cost_one_picture(tmp_path, sentence):
    assert documented(look_entities(tmp_path, sentence=sentence)) == ""


@pytest.mark.parametrize("listed", ["9" * 5000, "../a", "/a", "a\0b", "a\na", b"\xff", "\u00e9" * 300])
def test_a_hostile_list_is_refused(tmp_path, listed):
    assert documented(look_entities(tmp_path, listed=listed))


def test_a_name_that_is_no_utf8_is_refused(tmp_path):
    entities(tmp_path)
    (tmp_path / "Sentences" / os.fsdecode(b"\xff.txt")).write_text(SENTENCE)
    assert "UTF-8" in documented(lambda: whole(Flickr30kEntities(tmp_path, "all")))


# ---------------------------------------------------------------- pictures


def test_hostile_pictures_give_the_documented_error(tmp_path):
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    picture(tmp_path / "small.png")
    bomb = bytearray((tmp_path / "small.png").read_bytes())
    bomb[16:33] = header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    made = {"bomb.png": bomb, "empty.png": b"", "page.png": b"<!doctype html>", "icon.png": b"\0\0\1\0" + b"\0" * 60}
    for suffix in ("png", "jpg", "gif", "webp", "bmp", "tiff", "ppm"):
        picture(tmp_path / f"whole.{suffix}")
        content = (tmp_path / f"whole.{suffix}").read_bytes()
        made |= {f"{cut}.{suffix}": content[:cut] for cut in range(1, len(content) - 8, max(len(content) // 12, 1))}
        rng = random.Random(7)
        for k in range(12):
            torn = bytearray(content)
            for place in rng.sample(range(len(torn)), 4):
                torn[place] = rng.randrange(256)
            made[f"torn{k}.{suffix}"] = bytes(torn)
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
        documented(partial(open_image, tmp_path / name, (24, 32), name), name)
        writable([one.problem for one in image_problems(tmp_path / name, (24, 32), tmp_path)])
    for name in ("bomb.png", "empty.png", "page.png", "icon.png"):
        assert documented(partial(open_image, tmp_path / name))
    assert "the limit is" in documented(lambda: open_image(tmp_path / "bomb.png"))


@pytest.mark.nightly
def test_paths_that_are_no_files_give_an_error_and_never_wait(tmp_path):
    """Folders, pipes, devices, loops of links, names that no disk has: in a process of its own, since it could hang."""
    program = f"""
import os
from pathlib import Path
from qgcam_lib.data.coco.files import read_captions, read_instances
from qgcam_lib.data.flickr30k.entities import Flickr30kEntities
from qgcam_lib.data.flickr30k.format import read_sentences, read_split, read_unrelated
from qgcam_lib.data.gqa import read_entries
from qgcam_lib.data.probes.files import read_groups
from qgcam_lib.data.probes.names import read_prompt_classes
from qgcam_lib.data.records import image_problems, open_image
from qgcam_lib.data.referring.files import read_ref_adv
from qgcam_lib.data.tricd.pairs import load_tricd
from qgcam_lib.data.visual_genome import annotations as genome
from qgcam_lib.errors import FormatError, QgcamError
from qgcam_lib.storage.json_reader import read_json

root = Path({str(tmp_path)!r})
os.mkfifo(root / "pipe")
(root / "folder").mkdir()
(root / "loop").symlink_to(root / "loop")
(root / "null").symlink_to("/dev/zero")
readers = [open_image, image_problems, read_instances, read_captions, read_groups, read_prompt_classes, read_ref_adv,
           load_tricd, read_json, read_split, read_sentences, read_unrelated, lambda path: list(read_entries(path)),
           genome.read_triplets, genome.read_presence, genome.read_images, lambda path: list(genome.read_regions(path)),
           genome.read_aliases]
for name in ("pipe", "folder", "loop", "null", "none", "a" * 300, "a\\0b", "\\ud800"):
    for reader in readers:
        try:
            found = reader(root / name)
            assert reader is image_problems and len(found) == 1, (name, reader)
        except (QgcamError, FileNotFoundError) as error:
            str(error).encode("utf-8", "backslashreplace")
for place in ("Sentences", "Annotations"):
    (root / place).mkdir()
    os.mkfifo(root / place / ("a.txt" if place == "Sentences" else "a.xml"))
data = Flickr30kEntities(root, "all", on_error="record")
assert len(data) == 0 and len(data.problems) == 2, data.problems
data.fingerprint(), data.verify()
print("read")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "read\n", done.stderr[-2000:]


# ---------------------------------------------------------------- linear time


@pytest.mark.nightly
def test_hostile_sizes_are_read_in_linear_time_or_refused(tmp_path):
    """Inputs that took a minute or more, each some seconds now; all in one process with a wide limit."""
    program = f"""
import json, pickle
from pathlib import Path
import numpy as np
from qgcam_lib.data.coco.masks import rle_counts
from qgcam_lib.data.flickr30k.entities import Flickr30kEntities
from qgcam_lib.data.flickr30k.format import parse_annotation, parse_sentence, read_split
from qgcam_lib.data.gqa import read_entries as read_object
from qgcam_lib.data.probes.names import asked_classes
from qgcam_lib.data.records import box_share
from qgcam_lib.data.referring.refcocog import refcocog
from qgcam_lib.data.visual_genome.entries import read_entries as read_list
from qgcam_lib.errors import FormatError, QgcamError

def refused(work, *given):
    try:
        work(*given)
    except (QgcamError, ValueError) as error:
        assert len(str(error)) < 500, str(error)[:500]
        return True

root, n = Path({str(tmp_path)!r}), 50_000
assert refused(parse_sentence, "[" * n + " dog " + "]" * n)
assert refused(parse_sentence, "[/EN#1/people " * n + "a dog " * n + "]" * n)
assert refused(parse_sentence, "a dog " * n + "[" * n)
assert len(parse_sentence("[/EN#1/people a dog] runs " * n)[1]) == n
assert len(parse_sentence("[ a ] " * n)[0]) == 6 * n - 1
(root / "list.txt").write_text("\\n".join(map(str, [*range(40_000), 39_999])))
assert refused(read_split, root / "list.txt")
box = "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>12</xmax><ymax>14</ymax></bndbox>"
xml = "<annotation><size><width>32</width><height>24</height></size>{{}}</annotation>"
assert refused(parse_annotation, xml.format("<object>" + "<name>7</name>" * 10_000 + box * 5_000 + "</object>"))
assert refused(parse_annotation, xml.format(("<object><name>7</name>" + box + "</object>") * 5_000))
assert refused(rle_counts, "o" * 500_000)
for place in ("Sentences", "Annotations", "refcocog"):
    (root / place).mkdir()
(root / "Sentences" / "a.txt").write_text("[/EN#7/people a dog] runs " * 9_000)
(root / "Annotations" / "a.xml").write_text(xml.format("<object><name>7</name>" + box + "</object>"))
assert len(Flickr30kEntities(root, "all", duplicates="drop")) == 1
ref = dict(ann_id=5, image_id=1, split="val", sentences=[dict(sent_id=0, sent="a dog", raw="a dog")])
(root / "refcocog" / "refs(umd).p").write_bytes(pickle.dumps([dict(ref, ref_id=k // 2) for k in range(40_000)], 2))
(root / "refcocog" / "instances.json").write_text(json.dumps(dict(categories=[], images=[dict(
    id=1, file_name="a.png", height=24, width=32)], annotations=[dict(id=5, image_id=1, bbox=[1, 2, 10, 12])])))
found = refcocog(root, "val", on_error="record")
assert len(found) == 20_000 and found.left_out == {{"its ref_id is used twice": 20_000}}
(root / "one.json").write_text('[{{"a": [' + "1, " * 3_000_000 + "1]}}]")
assert len(next(read_list(root / "one.json"))["a"]) == 3_000_001
(root / "two.json").write_text("{{" + ", ".join(f'"{{k // 2}}": 0' for k in range(100_000)) + "}}")
assert refused(lambda: list(read_object(root / "two.json")))
for text in ('[' * 100_000, '[{{"a": ' + '[' * 100_000, '[{{"a": ' + '1' * 5000 + '}}]', '[{{"a": 1, "a": 2}}]'):
    (root / "deep.json").write_text(text)
    assert refused(lambda: list(read_list(root / "deep.json")))
    (root / "deep.json").write_text(text.replace("[", '{{"b":', 1))
    assert refused(lambda: list(read_object(root / "deep.json")))
assert len(asked_classes(dict.fromkeys(map(str, range(n)), "x"), "object", tuple(map(str, range(n - 9))))) == 9
corners = np.random.default_rng(0).uniform(0, 900, (2000, 2))
share = box_share(np.concatenate([corners, corners + 60], axis=1), (1000, 1000))
assert 0.5 < share < 1
print("read")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.stdout == "read\n", done.stderr[-2000:]


def test_the_share_of_many_boxes_is_that_of_the_grid():
    rng = np.random.default_rng(3)
    corners = rng.integers(0, 60, (80, 2)).astype(float)
    boxes = np.concatenate([corners, corners + rng.integers(1, 30, (80, 2))], axis=1)
    covered = np.zeros((90, 90), bool)
    for x0, y0, x1, y1 in boxes.astype(int):
        covered[y0:y1, x0:x1] = True
    assert box_share(boxes, (90, 90)) == pytest.approx(covered.mean())


# ---------------------------------------------------------------- the door to every data set

HOLDERS = (["annotations.json"], ["relationships.json", "image_data.json"], ["TRICD_grounding_val.json"],
           ["relation_eval_subject.json"], ["refcocog_adv_annotations.json"], ["annotations/instances_val2014.json"],
           ["refs(umd).p", "instances.json"], ["data_object_switch.json"])


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path), Path.touch],
                         ids=["pipe", "folder", "loop", "empty"])
def test_a_data_set_of_pipes_folders_or_loops_is_refused(make, tmp_path):
    for number, names in enumerate(HOLDERS):
        for name in names:
            path = tmp_path / str(number) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path)
        documented(partial(verify_dataset, tmp_path / str(number)), names)
        documented(partial(dataset_files, tmp_path / str(number), "triplets"), names)
        documented(partial(load_dataset, tmp_path / str(number), "triplets"), names)


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "/etc/passwd", "/dev/null"])
def test_a_name_of_a_data_set_that_is_none_is_refused(name):
    for door in (load_dataset, verify_dataset, dataset_files, tricd_files):
        assert documented(partial(door, name))
