"""COCO: masks against pycocotools, on drawn regions and on a hundred real pictures; readers; bad input by name."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pycocotools import mask as coco_mask

from qgcam_lib.data.catalog import load_dataset, recognise, verify_dataset
from qgcam_lib.data.coco.files import mask_of, read_captions, read_instances, rle_counts
from qgcam_lib.data.coco.folder import Coco
from qgcam_lib.errors import ExampleError

REAL = Path(__file__).resolve().parents[2] / "shared" / "realdata" / "coco"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no real COCO files (../shared/realdata/coco)")


def runs_literal(mask):
    """Uncompressed RLE, pixel by pixel down the columns."""
    counts, value = [0], False
    for pixel in mask.T.ravel():
        if pixel != value:
            counts.append(0)
            value = pixel
        counts[-1] += 1
    return counts


@given(st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(lambda size: arrays(bool, size)))
def test_both_rle_forms_give_the_mask_back(mask):
    counts, packed = runs_literal(mask), coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    assert rle_counts(packed["counts"]) == counts
    forms = ({"size": list(mask.shape), "counts": counts}, packed, {**packed, "counts": packed["counts"].decode()})
    for form in forms:
        assert (mask_of(form, mask.shape) == mask).all()


corners = st.lists(st.tuples(st.floats(-30, 60), st.floats(-30, 60)), min_size=3, max_size=8)


@given(st.lists(corners, min_size=1, max_size=3))
def test_polygons_are_the_union_of_those_of_pycocotools_and_stay_inside(polygons):
    flat, size = [[value for corner in polygon for value in corner] for polygon in polygons], (24, 32)
    each = coco_mask.decode(coco_mask.frPyObjects(flat, *size))
    got = mask_of(flat, size)
    assert got.shape == size and got.dtype == bool and (got == each.any(2)).all()


@needs_real
def test_masks_of_real_annotations_equal_those_of_pycocotools():
    instances = read_instances(REAL / "instances_val2014_100.json")
    found = [one for objects in instances.objects.values() for one in objects]
    assert (len(found), len(instances.classes), sum(one.crowd for one in found)) == (839, 80, 9)
    assert instances.classes[0] == "person" and instances.classes[-1] == "toothbrush"
    for one in found:
        size = instances.images[one.image].size
        rle = coco_mask.frPyObjects(one.segmentation, *size)
        rle = coco_mask.merge(rle) if isinstance(rle, list) else rle
        mask = instances.mask(one)
        assert (mask == coco_mask.decode(rle).astype(bool)).all(), one.id
        assert mask_of(rle, size).sum() == coco_mask.area(rle) == mask.sum()
    assert len(read_captions(REAL / "captions_val2014_fakecap_results.json").captions) == 1000


# --- bad input --------------------------------------------------------------------------------------------------------

DOG = {"id": 1, "image_id": 7, "category_id": 18, "bbox": [4, 5, 10, 8], "area": 80, "iscrowd": 0,
       "segmentation": [[4, 5, 14, 5, 14, 13, 4, 13]]}


def coco_folder(folder, *annotations, **parts):
    content = {"images": [{"id": 7, "file_name": "a.jpg", "height": 40, "width": 60}],
               "categories": [{"id": 18, "name": "dog"}], "annotations": list(annotations), **parts}
    (folder / "annotations").mkdir(exist_ok=True)
    (folder / "annotations" / "instances_val2014.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("change, text", [
    ({"image_id": 8}, "image_id"), ({"category_id": 1}, "category_id"), ({"id": 1}, "id"),
    ({"segmentation": []}, "segmentation"),
    ({"bbox": [1, 2, -3, 4]}, "bbox.2"), ({"area": "big"}, "area"), ({"iscrowd": 2}, "iscrowd")])
def test_a_broken_annotation_is_named(tmp_path, change, text):
    file = coco_folder(tmp_path, DOG, {**DOG, "id": 2, **change}) / "annotations" / "instances_val2014.json"
    with pytest.raises(ExampleError, match=f"annotation [12], .*instances_val2014.json: field '{text}'"):
        read_instances(file)


@pytest.mark.parametrize("segmentation", [
    [[1, 2, 3, 4, 5]], [[1, 2, 3, 4, 5, 6, 7]], [[1, 2, 3, 4, 5, float("nan")]], [[1, 2, 3, 4, 5, 1e6]], [["a"] * 6],
    {"size": [60, 40], "counts": [2400]}, {"size": [40, 60], "counts": [5, 10]}, {"size": [40, 60], "counts": "54"},
    {"size": [40, 60], "counts": [5.0, 2395.0]}])
def test_a_region_that_is_none_names_file_annotation_and_field(tmp_path, segmentation):
    found = read_instances(coco_folder(tmp_path, {**DOG, "segmentation": segmentation}) / "annotations" /
                           "instances_val2014.json")
    with pytest.raises(ExampleError, match="annotation 1, .*instances_val2014.json: segmentation: "):
        found.mask(found.of(7)[0])


@pytest.mark.parametrize("region", [[[70, 5, 80, 5, 80, 9]], [[4, 5, 4, 5, 4, 5]],
                                    {"size": [40, 60], "counts": [2400]}])
def test_a_region_outside_or_without_area_is_empty_and_a_warning(tmp_path, region):
    coco = Coco(coco_folder(tmp_path, {**DOG, "segmentation": region}))
    assert not coco.instances.mask(coco.instances.of(7)[0]).any()
    faults = coco.verify()
    assert ("warning", "annotation 1") in set(zip(faults.severity, faults.id))


def test_a_crowd_keeps_its_flag_and_a_polygon_that_sticks_out_is_cut(tmp_path):
    crowd = {**DOG, "id": 2, "iscrowd": 1, "segmentation": {"size": [40, 60], "counts": [2000, 400]}}
    beyond = {**DOG, "id": 3, "segmentation": [[-20, -20, 10, -20, 10, 10, -20, 10]]}
    found = read_instances(coco_folder(tmp_path, crowd, beyond) / "annotations" / "instances_val2014.json")
    first, second = found.of(7)
    assert first.crowd and not second.crowd and found.mask(first).sum() == 400
    assert (np.argwhere(found.mask(second)) < 10).all() and found.mask(second).sum() == 100


def test_the_catalog_knows_the_layout(tmp_path):
    folder = coco_folder(tmp_path, DOG)
    assert recognise(folder) == "COCO"
    faults = verify_dataset(folder)
    assert list(faults.problem) and set(faults.file) == {"val2014/a.jpg"}
    assert faults.attrs["counts"] == [{"split": "val2014", "examples": 1, "expected": 40504}]
    with pytest.raises(ExampleError, match="no grounding examples"):
        load_dataset(folder)
