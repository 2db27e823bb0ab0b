"""Loaders of data sets: each format, on hostile files."""

import io
import json
import pickle

import numpy as np
from harness import Target
from inputs import built, js, near
from PIL import Image

from qgcam_lib.data.coco.files import mask_of, read_captions, read_instances
from qgcam_lib.data.flickr30k.entities import Flickr30kEntities
from qgcam_lib.data.flickr30k.format import parse_annotation, parse_sentence
from qgcam_lib.data.gqa import Gqa, scene_graphs
from qgcam_lib.data.probes.files import read_groups
from qgcam_lib.data.probes.rows import read_prompt_classes
from qgcam_lib.data.records import image_problems, open_image
from qgcam_lib.data.refer import Refer
from qgcam_lib.data.referring.files import read_ref_adv, refcocog
from qgcam_lib.data.referring.splits import judge, shipped_choices
from qgcam_lib.data.safe_pickle import read_plain_pickle
from qgcam_lib.data.spatialsense import SpatialSense
from qgcam_lib.data.tricd.pairs import load_tricd, tricd_content
from qgcam_lib.data.visual_genome.annotations import (
    read_aliases,
    read_images,
    read_presence,
    read_regions,
    read_triplets,
)
from qgcam_lib.phrase_detection.questions import load_tricd_vqa


def picture(kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), (200, 30, 30)).save(out, kind)
    return out.getvalue()


TRICD = {
    "categories": [{"id": 1, "name": "object"}],
    "images": [{"id": n + 2 * k + 1, "file_name": f"7_{n}.png", "caption": ("cats on a mat", "rabbits on it")[n ^ k],
                "positive": not k, "original_id": f"1_{n}", "coco_type": "object",
                "phrases": {str(n + 2 * k + 1): [[0, 4]]}, "height": 96, "width": 96, "source": "coco"}
               for k in (0, 1) for n in (0, 1)],
    "annotations": [{"id": n, "image_id": n, "phrase_id": n, "category_id": 1, "bbox": [24.0, 57.0, 18.0, 22.0]}
                    for n in (1, 2)],
}
VQA = {"questions": [{"image_id": 1, "question_id": 1, "question": "are there cats", "file_name": "7_0.png"}],
       "annotations": [{"image_id": 1, "answer_id": 1, "answer": 1, "answer_type": "yes/no", "source": "coco",
                        "coco_type": "object"}]}
IMAGES = [{"id": 30, "file_name": "COCO_val2014_000000000030.jpg", "height": 96, "width": 96}]
COCO = {
    "info": {}, "licenses": [], "images": IMAGES,
    "annotations": [
        {"id": 60, "image_id": 30, "category_id": 63, "bbox": [44.0, 40.0, 51.0, 28.0], "area": 1031.0, "iscrowd": 0,
         "segmentation": {"counts": [100, 20, 9096], "size": [96, 96]}},
        {"id": 61, "image_id": 30, "category_id": 63, "bbox": [4.0, 4.0, 5.0, 8.0], "area": 40.0, "iscrowd": 0,
         "segmentation": [[4, 4, 9, 4, 9, 12, 4, 12]]}],
    "categories": [{"id": 63, "name": "couch", "supercategory": "furniture"}],
}
CAPTIONS = {"info": {}, "licenses": [], "images": IMAGES,
            "annotations": [{"id": 15, "image_id": 30, "caption": "A ball sits on a sofa."}]}
ENDS = {"subject": {"name": "balloon", "bbox": [1, 9, 9, 24], "x": 12, "y": 5},
        "object": {"name": "table", "bbox": [20, 28, 8, 33]}}
SPATIAL = [{"url": "https://a.invalid/b/1_8c.jpg", "nsid": "x", "height": 30, "width": 40, "split": "test",
            "annotations": [{"_id": "b1e9", "predicate": "above", "label": True, **ENDS},
                            {"_id": "9fd2", "predicate": "under", "label": False, **ENDS}]}]
REFS = [{"ref_id": 1, "ann_id": 60, "image_id": 30, "split": "val", "category_id": 63, "file_name": "COCO_30.jpg",
         "sent_ids": [0, 1],
         "sentences": [{"sent_id": 0, "sent": "the sofa", "raw": "The sofa", "tokens": ["the", "sofa"]},
                       {"sent_id": 1, "sent": "red sofa", "raw": "Red sofa", "tokens": ["red", "sofa"]}]}]
ENTITIES = {
    "Annotations/30.xml": b"""<annotation><filename>30.png</filename>
<size><width>40</width><height>30</height><depth>3</depth></size>
<object><name>1</name><name>5</name><bndbox><xmin>5</xmin><ymin>3</ymin><xmax>20</xmax><ymax>17</ymax></bndbox></object>
<object><name>2</name><bndbox><xmin>25</xmin><ymin>4</ymin><xmax>38</xmax><ymax>16</ymax></bndbox></object>
<object><name>3</name><scene>1</scene><nobndbox>0</nobndbox></object></annotation>""",
    "Sentences/30.txt": b"[/EN#1/other A white house] stands behind [/EN#2/people a man] .\n"
    b"[/EN#2/people A [ man ]] in [/EN#3/scene a meadow] .\n",
    "test.txt": b"30\n",
    "images/30.png": picture(),
}
HORSE = {"object_id": 1, "x": 3, "y": 5, "w": 3, "h": 2, "names": ["horse"], "synsets": []}
RELATIONSHIPS = [{"image_id": 4, "relationships": [
    {"relationship_id": 1, "predicate": "in", "synsets": [], "subject": HORSE,
     "object": {"object_id": 2, "name": "box", "x": 1, "y": 2, "w": 3, "h": 4}}]}]
REGIONS = [{"id": 4, "regions": [{"region_id": 4, "image_id": 4, "x": 5, "y": 4, "width": 3, "height": 3,
                                  "phrase": "black rabbit"}]}]
IMAGE_DATA = [{"image_id": 4, "url": "https://a.invalid/VG_100K/4.jpg", "width": 96, "height": 96, "coco_id": None,
               "flickr_id": 3}]
GQA = {"07": {"imageId": "23", "question": "Is it?", "answer": "yes", "fullAnswer": "Yes, it is.", "isBalanced": True,
              "groups": {"global": None, "local": "06-x"},
              "types": {"detailed": "a", "semantic": "rel", "structural": "verify"},
              "semantic": [{"operation": "select", "argument": "cat (1)", "dependencies": []},
                           {"operation": "exist", "argument": "?", "dependencies": [0]}]}}
GRAPHS = {"23": {"width": 96, "height": 96, "objects": {
    "1": {"name": "cat", "x": 1, "y": 2, "w": 3, "h": 4, "attributes": ["red"],
          "relations": [{"object": "1", "name": "on"}]}}}}
RAW_ADV = {"A_1": {
    "most_confused_bbox_number": "2", "GT_bbox_number": "1", "most_confused_bbox_GT_desc": "the red ball",
    "raw_str": "the ball", "bbox_candidates_map": json.dumps({"1": [5.0, 6.0, 6.0, 4.0], "2": [5.0, 4.0, 2.0, 2.0]}),
    "annID": "1", "refID": "6", "imgID": "7", "img_file_name": "COCO_train2014_000000000007.jpg",
    "assigns": [{"dropdownselect": "2"}, {"dropdownselect": "0"}, {"dropdownselect": "2"}]}}
LABELLED_ADV = {"annotations": [
    {"annID": 3, "label": label, "gt_bbox": 2, "bboxes": {"1": [8.0, 7.0, 4.0, 7.0], "2": [6.0, 6.0, 4.0, 8.0]},
     "expression": "the kite", "img_file_name": "COCO_train2014_000000000007_3.jpg"} for label in ("easy", "hard")]}
RELATION = {"30": {"positive_image_ids": [1, 2], "negative_image_ids": [3], "positive_prompt": "a man on a horse",
                   "negative_prompt": "a dog on a", "negative_object": "dog", "positive_object": "man",
                   "negative_predicate_prompt": "a man under a horse"}}
SWAP = [{"img1_prompt": "a red ball", "img1_id": "1", "img1_composition": "red", "img1_object": "ball",
         "img2_prompt": "a blue ball", "img2_id": 2, "img2_composition": "blue", "img2_object": "ball", "id": "9",
         "kind": "attribute", "category": "color"}]
BACKGROUND = [{"image_id": 30, "image": "30.png", "annotations": {"dog": [[1, 2, 3, 4]]}}]
OBJECT = [{"image_id": 30, "object": "dog", "other_objects": ["cat"], "path": "dog_30.jpg"}]
RELCOMP = [{"id": "1", "image": 30, "caption": "a dog on a cat", "positive": "a dog on a cat",
            "negative": "a cat on a dog", "kind": "predicate"}]
CLASSES = b"class,prompt\ndog,a dog\ncat,a cat\nbird,a bird\n"


def pickled(value) -> bytes:
    return pickle.dumps(value, protocol=2)


def both_ways(read):
    """A reader, as it goes on at a fault, and as it stops."""
    return lambda where: (read(where, on_error="record"), read(where, on_error="raise"))


def whole(load):
    """All that a loader by picture gives: examples, problems, the data card."""

    def read(folder, on_error):
        dataset = load(folder, on_error)
        examples = list(dataset)
        for one in examples:
            (height, width), boxes = one.size, one.boxes
            assert len(boxes) and np.isfinite(boxes).all(), "a box that is not finite"
            assert (boxes >= 0).all() and (boxes <= [width, height] * 2).all(), "a box outside"
            assert (boxes[:, 2:] > boxes[:, :2]).all(), "a box without area"
        assert len(examples) == len(dataset)
        return dataset.describe(), dataset.verify()

    return both_ways(read)


def finite_pairs(data):
    assert np.isfinite(data.truth).all() and (data.truth[:, 2:] >= data.truth[:, :2]).all()
    assert len(data.rival_of) == len(data.phrases) == len(data.has_rival)
    tricd_content(data)


def masks(path):
    for one in sum(read_instances(path).objects.values(), ()):
        assert mask_of(one.segmentation, (96, 96)).shape == (96, 96)


def opened(path):
    found = image_problems(path, (30, 40), path.parent)
    image = open_image(path, (30, 40), "1")
    assert image.size == (40, 30) and not [one for one in found if one.severity == "error"]


def probes(path):
    found = read_groups(path)
    assert len({one.id for one in found}) == len(found)
    if path.with_name("prompt_classes.csv").is_file():
        read_groups(path, images=path.parent)


def adversarial(path):
    assert all(np.isfinite(one.box).all() for one in read_ref_adv(path))


def choices(path):
    found = read_ref_adv(path)
    judge(found, shipped_choices(found), 2)


def sentences(path):
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        parse_sentence(line)


def of_folder(name, files, call, **special):
    return Target(name, files, call, near(files, **special))


def of_file(name, file, data, call, **options):
    """A target that reads one file; call: with its path."""
    files = {file: data if isinstance(data, bytes) else js(data)}
    return Target(name, files, lambda folder: call(folder / file), near(files), **options)


REFER = {"refcoco/refs(unc).p": pickled(REFS), "refcoco/instances.json": js(COCO),
         "images/COCO_val2014_000000000030.jpg": picture("JPEG")}
COCOG = {"refs(umd).p": pickled(REFS), "instances.json": js(COCO)}
SPATIAL_FILES = {"annotations.json": js(SPATIAL), "images/flickr/1_8c.jpg": picture("JPEG")}
TARGETS = [
    of_file("tricd annotations", "a.json", TRICD, load_tricd, check=finite_pairs),
    of_file("tricd questions", "a.json", VQA, load_tricd_vqa),
    of_file("coco instances", "a.json", COCO, read_instances),
    of_file("coco captions", "a.json", CAPTIONS, read_captions),
    of_file("masks", "a.json", COCO, masks),
    of_folder("spatialsense", SPATIAL_FILES, whole(lambda root, on_error: SpatialSense(root, on_error=on_error))),
    of_folder("refer", REFER, whole(lambda root, on_error: Refer(root, "refcoco", "val", on_error=on_error)),
              **{"refcoco/refs(unc).p": built(REFS, pickled)}),
    of_folder("refcocog", COCOG, lambda root: refcocog(root, "val"),
              **{"refs(umd).p": built(REFS, pickled)}),
    of_folder("flickr30k entities", ENTITIES,
              whole(lambda root, on_error: Flickr30kEntities(root, "test", on_error=on_error))),
    of_file("flickr30k xml", "a.xml", ENTITIES["Annotations/30.xml"], lambda path: parse_annotation(path.read_bytes())),
    of_file("flickr30k sentence", "a.txt", ENTITIES["Sentences/30.txt"], sentences),
    of_file("visual genome relationships", "a.json", RELATIONSHIPS, lambda path: read_triplets(path).frame()),
    of_file("visual genome objects", "a.json", [{"image_id": 4, "objects": [HORSE]}], read_presence),
    of_file("visual genome regions", "a.json", REGIONS, lambda path: list(read_regions(path))),
    of_file("visual genome images", "a.json", IMAGE_DATA, read_images),
    of_file("visual genome aliases", "a.txt", b"man,guy\nwoman,lady\n", read_aliases),
    of_folder("gqa questions", {"val_balanced_questions.json": js(GQA), "val_sceneGraphs.json": js(GRAPHS)},
              lambda root: (list(Gqa(root)), list(scene_graphs(root, "val")))),
    of_file("ref-adv raw", "a.json", RAW_ADV, adversarial),
    of_file("ref-adv labelled", "a.json", LABELLED_ADV, adversarial),
    of_file("ref-adv choices", "a.json", RAW_ADV, choices),
    of_file("probe relcomp", "a.json", RELCOMP, probes), of_file("probe relation", "a.json", RELATION, probes),
    of_file("probe swap", "a.json", SWAP, probes),
    of_folder("probe background", {"a.json": js(BACKGROUND), "prompt_classes.csv": CLASSES},
              lambda root: probes(root / "a.json")),
    of_folder("probe object", {"a.json": js(OBJECT), "prompt_classes.csv": CLASSES},
              lambda root: probes(root / "a.json")),
    of_file("probe classes", "a.csv", CLASSES, read_prompt_classes),
    of_folder("plain pickle", {"a.p": pickled(REFS)}, lambda root: read_plain_pickle(root / "a.p"),
              **{"a.p": built(REFS, pickled)}),
    of_file("picture", "a.png", picture(), opened), of_file("picture jpeg", "a.png", picture("JPEG"), opened),
]
