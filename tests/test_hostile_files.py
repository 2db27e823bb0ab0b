"""Each field of a small valid file of every data set, exchanged for thirty hostile values: only documented errors."""

import copy
import json
import math
import os
import pickle
import random
import struct
import zlib
from functools import partial

import pytest
from PIL import Image
from speeds import some

from qgcam_lib.data.coco.folder import Coco
from qgcam_lib.data.gqa import Gqa, scene_graphs
from qgcam_lib.data.probes.files import ProbeFiles, read_groups
from qgcam_lib.data.probes.groups import picture_file, shown
from qgcam_lib.data.records import image_problems, open_image
from qgcam_lib.data.refer import Refer
from qgcam_lib.data.referring.files import hard_originals, join, read_ref_adv, refcocog
from qgcam_lib.data.referring.splits import shipped_choices
from qgcam_lib.data.spatialsense import SpatialSense
from qgcam_lib.data.tricd.files import tricd_files
from qgcam_lib.data.tricd.pairs import load_tricd, tricd_content
from qgcam_lib.data.visual_genome.folder import VisualGenome
from qgcam_lib.errors import QgcamError

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
    documented(lambda: writable(list(refcocog(folder, "val")), data.kinds, data.splits()))


def look_coco(folder):
    data = Coco(folder, "val2014")
    writable(data.verify().to_dict("list"), data.files(), len(data), data.instances.classes, data.captions.captions,
             data.instances.objects)


def look_tricd(folder):
    files = tricd_files(folder, "val")
    writable(files.verify().to_dict("list"))
    data = load_tricd(files.grounding)
    writable(tricd_content(data), data.rival_of.tolist(), files.files())


def look_genome(folder):
    data = VisualGenome(folder)
    writable(data.verify().to_dict("list"), data.files(), list(data.regions()), data.presence.names)


def look_gqa(folder):
    data = Gqa(folder, "val")
    writable(list(data), len(data), [data.picture(one) for one in data])
    writable(list(scene_graphs(folder, "val")))


def look_probe(name):
    def look(folder):
        writable(ProbeFiles(folder).verify().to_dict("list"), len(ProbeFiles(folder)))
        groups = read_groups(folder / name)
        writable(groups)
        for one in groups:
            for image in shown(one):
                picture_file(image, folder)
    return look


def look_adv(name):
    def look(folder):
        found = read_ref_adv(folder / name)
        writable(found, found.left_out)
        documented(lambda: writable(hard_originals(found)))
        documented(lambda: shipped_choices(found))
        documented(lambda: writable(join(found, folder)))
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
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    for name in ("bomb.png", "empty.png", "page.png", "icon.png", "pipe.png", "device.png"):
        assert documented(partial(open_image, tmp_path / name))
