"""Records: what they refuse, and pictures that cannot be opened whole."""

import gc
import pickle
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from qgcam_lib.data.by_image import ByImage, ExampleList, ImageRead
from qgcam_lib.data.records import (
    Dataset,
    GroundingExample,
    box_share,
    checked_boxes,
    image_problems,
    open_image,
)
from qgcam_lib.errors import ExampleError
from qgcam_lib.storage.fields import MAX_PIXELS

REAL = Path(__file__).parents[1] / ".." / "shared" / "realdata" / "photos"


def example(id="7/0/0", boxes=((1, 2, 10, 20),), image="7.png", prompt="a dog", size=(30, 40), **more):
    return GroundingExample(id, Path(image), prompt, boxes, id.split("/")[0], size, **more)


@pytest.fixture
def noise(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    path = tmp_path / "noise.jpg"
    Image.fromarray(pixels).save(path, quality=95)
    return path


# -- the record


def test_values_are_coerced_and_read_only():
    found = example(boxes=[[1, 2, 10, 20]], image="pictures/7.png", size=(np.int64(30), 40.0))
    assert found.boxes.dtype == np.float64 and found.boxes.shape == (1, 4)
    assert found.size == (30, 40) and type(found.size[0]) is int
    assert isinstance(found.image, Path)
    with pytest.raises(ValueError, match="read-only"):
        found.boxes[0, 0] = 3
    with pytest.raises(AttributeError):
        found.prompt = "a cat"


def test_equality_compares_boxes_and_survives_pickle():
    assert example() == example() and hash(example()) == hash(example())
    assert example() != example(boxes=[[1, 2, 10, 21]])
    assert pickle.loads(pickle.dumps(example(meta={"types": ["people"]}))) == example(meta={"types": ["people"]})


@pytest.mark.parametrize("boxes", [[[10, 2, 1, 20]], [[10, 2, 10, 20]], [[1, 2, float("nan"), 20]],
                                   [[1, 2, float("inf"), 20]], [[1, 2, 41, 20]], [[-0.5, 2, 10, 20]],
                                   [[1, 2, 10]], "box"])
def test_bad_boxes_are_named(boxes):
    with pytest.raises(ExampleError) as error:
        example(boxes=boxes)
    assert error.value.example == "7/0/0" and error.value.file == "7.png"


@pytest.mark.parametrize("name, value", [("id", ""), ("prompt", "  "), ("prompt", None), ("size", (0, 40)),
                                         ("size", (30.5, 40)), ("size", (30, 40, 3)), ("size", 40)])
def test_bad_values_are_named(name, value):
    with pytest.raises(ExampleError, match=f"{name}: "):
        example(**{name: value})


# -- box share

box = st.tuples(st.integers(0, 18), st.integers(0, 18), st.integers(1, 12), st.integers(1, 12))


@settings(deadline=None)
@given(st.lists(box, max_size=5))
def test_box_share_equals_counting_pixels(found):
    size = (30, 30)
    boxes = np.array([[x, y, x + w, y + h] for x, y, w, h in found], float).reshape(-1, 4)
    mask = np.zeros(size, bool)
    for x0, y0, x1, y1 in boxes.astype(int):
        mask[y0:y1, x0:x1] = True
    assert box_share(boxes, size) == pytest.approx(mask.mean())


@settings(deadline=None)
@given(st.lists(box, min_size=1, max_size=4))
def test_checked_boxes_returns_what_it_was_given(found):
    boxes = [[x, y, x + w, y + h] for x, y, w, h in found]
    assert checked_boxes(boxes, (30, 30)).tolist() == boxes


# -- pictures


def test_grey_palette_and_alpha_become_rgb(tmp_path):
    for mode in ("L", "P", "RGBA", "LA", "1", "CMYK"):
        path = tmp_path / f"{mode}.tif"
        Image.new(mode, (8, 6)).save(path)
        assert open_image(path, (6, 8)).mode == "RGB"


def test_every_cut_of_a_jpeg_is_noticed(noise, tmp_path):
    data = noise.read_bytes()
    for length in range(1, len(data) - 2, max(1, len(data) // 40)):
        cut = tmp_path / "cut.jpg"
        cut.write_bytes(data[:length])
        with pytest.raises(ExampleError, match="cut.jpg"):
            open_image(cut)


def test_pillow_s_switch_for_torn_files_is_not_obeyed_and_not_changed(noise, tmp_path, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(noise.read_bytes()[:2000])
    assert Image.open(cut).convert("RGB").size == (80, 60), "without our guard half a picture passes for one"
    with pytest.raises(ExampleError, match="cannot be decoded whole"):
        open_image(cut)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True
    with pytest.raises(ExampleError):
        open_image(noise, (30, 40))  # another size than the annotation says


@pytest.mark.parametrize("content", [b"", b"<html>429", b"\xff\xd8\xff\xe0", None,
                                     b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"])
def test_a_file_that_is_no_picture(tmp_path, content):
    path = tmp_path / "a.jpg"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ExampleError) as error:
        open_image(path, example="7/0/0")
    assert error.value.file == str(path) and error.value.example == "7/0/0"


def png_header(width, height):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [9_500, 60_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path, side, monkeypatch):
    assert side * side > MAX_PIXELS
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(side, side))
    for limit in (Image.MAX_IMAGE_PIXELS, None):  # some libraries switch Pillow's own limit off
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(ExampleError, match="pixels"):
            open_image(path)


def test_exif_orientation_is_noted_not_applied(noise, tmp_path):
    turned, exif = tmp_path / "turned.jpg", Image.Exif()
    exif[0x0112] = 6
    Image.open(noise).save(turned, exif=exif)
    assert open_image(turned, (60, 80)).size == (80, 60)
    (problem,) = image_problems(turned, (60, 80), tmp_path)
    assert problem.severity == "note" and problem.file == "turned.jpg" and "orientation 6" in problem.problem


# -- a list as a data set


def test_a_list_is_a_data_set(noise):
    first, second, third = (example(id, image=str(noise), size=(60, 80)) for id in ("a/0", "b/0", "a/1"))
    found = ExampleList([first, second, third])
    assert isinstance(found, Dataset)
    assert len(found) == 3 and [e.id for e in found] == ["a/0", "b/0", "a/1"]
    assert found.images() == [str(noise)] and found.read_image(str(noise)) == ([first, second, third], [])
    assert found.example("a/1") is third
    assert len(found.verify()) == 0
    assert found.fingerprint() != ExampleList([first, second]).fingerprint()
    with pytest.raises(ExampleError):
        ExampleList([first, second, first])


class Counted(ByImage):
    """4,200 pictures, more than are kept unpacked, and how often one was read."""

    options, reads = {"on_error": "raise"}, 0
    _ids = [f"{k}" for k in range(4200)]

    def _read(self, image_id):
        self.reads += 1
        return ImageRead([example(id=f"{image_id}/0/0", meta={"words": [1]})])


def test_many_pictures_are_read_once_however_often_one_goes_through_them():
    loader = Counted()
    first, second = list(loader), list(loader)
    assert loader.reads == len(first) == 4200 and first == second
    assert not any(one.boxes.flags.writeable for one in second)


def test_examples_of_one_picture_are_brought_together():
    found = ExampleList([example("a/0", image="x.png"), example("b/0", image="y.png"), example("a/1", image="x.png")])
    assert [e.id for e in found] == ["a/0", "a/1", "b/0"]


@pytest.mark.skipif(not REAL.is_dir(), reason="real photographs are not on this machine (../shared/realdata/photos)")
def test_real_photographs_open_whole():
    pictures = sorted((REAL / "images").glob("*.jpg"))
    assert len(pictures) == 6
    assert [problem for path in pictures for problem in image_problems(path)] == []


def test_a_picture_leaves_no_file_open(tmp_path):
    Image.new("RGB", (4, 3)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no picture")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        open_image(tmp_path / "a.png")
        for name in ("b.png", "c.png"):
            with pytest.raises(ExampleError):
                open_image(tmp_path / name)
        gc.collect()
    assert not seen
