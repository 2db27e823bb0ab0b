"""Probe-B: what an edit keeps and replaces, pixel by pixel; folders that go on after a stop; filters; bad input."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from pycocotools import mask as coco_mask

from qgcam_lib.data.coco.files import read_instances
from qgcam_lib.data.coco.folder import Coco
from qgcam_lib.data.probes.files import read_groups, write_groups
from qgcam_lib.errors import ExampleError, StoreError
from qgcam_lib.probes.builders.context import ContextOptions, build_background, build_objects, union_mask
from qgcam_lib.probes.builders.edits import (
    draw_patch,
    filler_picture,
    find_scenes,
    fit_scene,
    keep_only,
    patch_places,
    png_bytes,
    put_patch,
    seeded,
)

SHARED = Path(__file__).resolve().parents[2] / "shared" / "realdata"
needs_real = pytest.mark.skipif(not SHARED.is_dir(), reason="no real files (../shared/realdata)")
sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
edits = sizes.flatmap(lambda size: st.tuples(arrays(np.uint8, (*size, 3)), arrays(bool, size),
                                             arrays(np.uint8, (*size, 3)), st.integers(1, size[0]),
                                             st.integers(1, size[1]), st.integers(0, 99)))


@given(edits)
def test_what_is_kept_stays_and_everything_else_is_filler(drawn):
    picture, keep, filler, h, w, seed = drawn
    before = picture.copy(), keep.copy(), filler.copy()
    if keep.any() and not keep.all():
        done = keep_only(picture, keep, filler)
        assert (done[keep] == picture[keep]).all() and (done[~keep] == filler[~keep]).all()
        assert (np.asarray(Image.open(io.BytesIO(png_bytes(done)))) == done).all(), "lossless"
    else:
        with pytest.raises(ValueError, match="empty|covers"):
            keep_only(picture, keep, filler)
    place = draw_patch(keep, (h, w), seeded(seed))
    literal = [(x, y) for y in range(keep.shape[0] - h + 1) for x in range(keep.shape[1] - w + 1)
               if not keep[y:y + h, x:x + w].any()]
    assert [(x, y) for y, x in np.argwhere(patch_places(keep, (h, w)))] == literal
    if place is None:
        assert not literal
    else:
        x0, y0, x1, y1 = place
        patched = put_patch(picture, place, filler)
        assert (x0, y0) in literal and (x1 - x0, y1 - y0) == (w, h)
        outside = np.ones(keep.shape, bool)
        outside[y0:y1, x0:x1] = False
        assert (patched[outside] == picture[outside]).all() and (patched[keep] == picture[keep]).all()
        assert (patched[~outside] == filler[~outside]).all()
    assert all((now == then).all() for now, then in zip((picture, keep, filler), before)), "arguments unchanged"


def test_every_place_for_a_patch_has_the_same_chance():
    objects = np.zeros((4, 6), bool)
    objects[0, 0] = objects[2, 4] = True
    places = [draw_patch(objects, (2, 2), seeded("chance", k)) for k in range(900)]
    counts = np.unique(places, axis=0, return_counts=True)[1]
    assert len(counts) == patch_places(objects, (2, 2)).sum() == 10 and counts.min() > 55 and counts.max() < 130


def test_fillers_are_seeded_and_as_they_are_described(tmp_path):
    one, same, other = (filler_picture("noise", (40, 50), seeded(seed, "a.jpg")) for seed in (1, 1, 2))
    assert (one == same).all() and (one != other).any() and len(np.unique(one.reshape(-1, 3), axis=0)) > 1900
    assert (filler_picture("gray", (3, 4), seeded(0)) == 208).all() and abs(one.mean() - 127.5) < 3
    for name, size in (("b/wide.png", (20, 200)), ("a/tall.JPG", (90, 30))):
        (tmp_path / name).parent.mkdir()
        Image.fromarray(np.full((*size, 3), 90, np.uint8)).save(tmp_path / name)
    scenes = find_scenes(tmp_path)
    assert [path.name for path in scenes] == ["tall.JPG", "wide.png"]
    assert {filler_picture("scene", (33, 44), seeded(k), scenes=scenes).shape for k in range(4)} == {(33, 44, 3)}
    ramp = Image.fromarray(np.tile(np.arange(200, dtype=np.uint8)[None, :, None], (20, 1, 3)))
    assert np.ptp(fit_scene(ramp, (20, 20))[10, :, 0].astype(int)) < 25, "cut, not squeezed"
    (tmp_path / "a" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(ExampleError, match="not a picture"):
        [filler_picture("scene", (5, 5), seeded(k), scenes=find_scenes(tmp_path)) for k in range(30)]


# --- folders ----------------------------------------------------------------------------------------------------------

def square(x, y, side):
    return [[x, y, x + side, y, x + side, y + side, x, y + side]]


def region(id, image, category, x, y, side, **change):
    return {"id": id, "image_id": image, "category_id": category, "bbox": [x, y, side, side], "area": side * side,
            "iscrowd": 0, "segmentation": square(x, y, side), **change}


def coco_folder(folder, annotations, images=3, size=(40, 60)):
    (folder / "annotations").mkdir(parents=True)
    (folder / "val2014").mkdir()
    listed = [{"id": k, "file_name": f"{k}.png", "height": size[0], "width": size[1]} for k in range(images)]
    for k in range(images):
        Image.fromarray(np.random.default_rng(k).integers(0, 256, (*size, 3), dtype=np.uint8)).save(
            folder / "val2014" / f"{k}.png")
    content = {"images": listed, "annotations": annotations, "categories": [
        {"id": 3, "name": "cell phone"}, {"id": 1, "name": "dog"}, {"id": 2, "name": "apple"}]}
    (folder / "annotations" / "instances_val2014.json").write_text(json.dumps(content))
    return Coco(folder)


GOOD = [region(1, 0, 1, 5, 5, 12), region(2, 0, 3, 40, 20, 10), region(3, 1, 1, 20, 10, 15), region(4, 2, 2, 1, 1, 20),
        region(5, 2, 1, 30, 20, 10)]
PLAIN = ContextOptions(fillers=("black", "noise"))


def pictures_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.png"))}


def test_files_keep_objects_and_replace_the_rest(tmp_path):
    coco, out = coco_folder(tmp_path / "coco", GOOD), tmp_path / "out"
    groups = [*build_background(coco, out, PLAIN).groups, *build_objects(coco, out, PLAIN).groups]
    assert len(groups) == 6 + 8
    for group in groups:
        number = int(group.image[:-4])
        shown = {part: np.asarray(Image.open(out / name)) for part, name in group.pictures.items()}
        original = np.asarray(Image.open(tmp_path / "coco" / "val2014" / group.image))
        objects = union_mask([one.segmentation for one in coco.instances.of(number)], (40, 60))
        only = union_mask([one.segmentation for one in coco.instances.of(number) if one.category in group.present],
                          (40, 60)) if group.kind == "object" else objects
        fill = filler_picture(group.filler, (40, 60), seeded(0, group.image, group.filler))
        changed = (shown["patch"] != original).any(2)
        assert changed.any() and not (changed & objects).any()
        assert (shown["edited"][only] == original[only]).all() and (shown["edited"][~only] == fill[~only]).all()
        if group.kind == "background":
            assert (shown["reference"] == original).all() and group.classes == ("dog", "apple", "cell phone")
        else:
            assert (shown["reference"][objects] == original[objects]).all()
            assert set(group.classes) | set(group.others) == {"dog", "apple", "cell phone"}
            assert group.present[0] in group.classes and not set(group.others) & set(group.classes)
    for kind in ("background", "object"):
        mine = [group for group in groups if group.kind == kind]
        again = read_groups(write_groups(mine, out / f"{kind}.json"), images=out)
        assert list(again) == mine and not again.left_out


def test_same_seed_same_bytes_in_any_order_and_number_of_processes(tmp_path):
    coco = coco_folder(tmp_path / "coco", GOOD)
    first = build_background(coco, tmp_path / "a", PLAIN)
    part = build_background(coco, tmp_path / "b", replace(PLAIN, limit=1))
    assert len(part.groups) == 2
    both = build_background(coco, tmp_path / "b", PLAIN, processes=2)
    assert pictures_of(tmp_path / "a") == pictures_of(tmp_path / "b") and both.groups == first.groups
    other = build_background(coco, tmp_path / "c", replace(PLAIN, seed=1))
    assert other.groups == first.groups and pictures_of(tmp_path / "c") != pictures_of(tmp_path / "a")


def test_a_stopped_build_goes_on_and_only_with_the_same_options(tmp_path):
    coco, out = coco_folder(tmp_path / "coco", GOOD), tmp_path / "out"
    built, before = build_background(coco, out, PLAIN), pictures_of(out)
    gone, kept = list(before)[0], list(before)[1]
    (out / gone).unlink()
    then = (out / kept).stat().st_mtime_ns
    assert build_background(coco, out, PLAIN).groups == built.groups
    assert pictures_of(out) == before and (out / kept).stat().st_mtime_ns == then
    with pytest.raises(StoreError, match="they were made with"):
        build_background(coco, out, replace(PLAIN, seed=1))
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "coco" / "scene.png")
    more = build_background(coco, out, ContextOptions((tmp_path / "coco",), ("scene",)))
    assert {group.filler for group in more.groups} == {"scene"}


def test_filters_count_what_they_take(tmp_path):
    crowd = {"size": [40, 60], "counts": [100, 400, 1900]}
    coco = coco_folder(tmp_path / "coco", [
        *GOOD, region(6, 3, 1, 2, 2, 38), region(7, 3, 2, 70, 2, 9),
        region(8, 4, 1, 0, 0, 8, iscrowd=1, segmentation=crowd),
        region(9, 4, 2, 30, 10, 9), region(10, 5, 1, 5, 5, 12), region(11, 5, 2, 10, 10, 12)], images=7)
    (tmp_path / "coco" / "val2014" / "1.png").unlink()
    (tmp_path / "coco" / "val2014" / "2.png").write_bytes(b"broken")
    built = build_background(coco, tmp_path / "out", PLAIN)
    left = built.steps.set_index("step").left
    assert [left[step] for step in ("pictures listed", "with objects", "enough background", "pictures")] == [7, 6, 5, 3]
    assert built.groups.left_out["a region without a pixel"] == 1 and sum(built.groups.left_out.values()) == 3
    assert {group.present for group in built.groups if group.image == "4.png"} == {("dog", "apple")}, "a crowd counts"
    single = build_objects(coco, tmp_path / "out", PLAIN)
    assert {(group.image, group.present[0]) for group in single.groups} == {
        ("0.png", "cell phone"), ("0.png", "dog"), ("4.png", "apple")}, "no crowd, no overlap, no lone class"


def test_options_out_of_range():
    with pytest.raises(ValueError, match="fillers"):
        ContextOptions(fillers=("pink",))


@needs_real
def test_real_regions_and_a_real_photograph(tmp_path):
    instances = read_instances(SHARED / "coco" / "instances_val2014_100.json")
    for image in list(instances.images)[:12]:
        size, regions = instances.images[image].size, [one.segmentation for one in instances.of(image)]
        mask = union_mask(regions, size)
        rles = [coco_mask.frPyObjects(one, *size) for one in regions]
        flat = [one for rle in rles for one in (rle if isinstance(rle, list) else [rle])]
        assert (mask == coco_mask.decode(coco_mask.merge(flat)).astype(bool)).all()
    photo = next((SHARED / "photos" / "images").glob("*.jpg"))
    picture = np.asarray(Image.open(photo).convert("RGB"))
    mask = np.zeros(picture.shape[:2], bool)
    mask[100:300, 150:400] = True
    done = keep_only(picture, mask, filler_picture("noise", mask.shape, seeded(0)))
    assert (done[mask] == picture[mask]).all() and (done[~mask] != picture[~mask]).any(1).mean() > 0.99
