"""Misuse of the map scores: what cannot be right is an error with a remedy, what looks wrong is one warning."""

import json
import re
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from qgcam_lib.boxes import xywh_to_xyxy
from qgcam_lib.cli.main import main
from qgcam_lib.data.records import GroundingExample
from qgcam_lib.errors import ExampleError, FileFault, SuspiciousInput
from qgcam_lib.grounding import ground
from qgcam_lib.grounding.map_files import read_boxes
from qgcam_lib.grounding.own_maps import score_files
from qgcam_lib.maps import MapProtocol
from qgcam_lib.metrics import score_maps
from qgcam_lib.metrics.torchmetric import GroundingScores

PICTURE = (480, 640)
CORNERS = np.array([[x, y, x + w, y + h] for x, y, w, h in np.random.default_rng(0).integers(
    [0, 0, 40, 40], [400, 300, 240, 180], (60, 4))], dtype=np.float64)
XYWH = np.concatenate([CORNERS[:, :2], CORNERS[:, 2:] - CORNERS[:, :2]], axis=1)
FLAT = np.random.default_rng(0).random((60, 6, 8)).astype(np.float32)


@pytest.mark.parametrize(("maps", "words"), [
    (FLAT * 255, "values from 0 to 1 under protocol 'native'.*example 0; .*divide all maps by one number"),
    (np.where(np.arange(60)[:, None, None] == 7, FLAT + 0.01, FLAT / 2) * 1.9, "a larger one in example 7"),
    ((FLAT * 255).astype(np.uint8), "values from 0 to 1"),
    (list((FLAT * 9).astype(np.float64)), "values from 0 to 1"),
    (FLAT + 0j, "expected numbers, got an array of complex64"),
    (FLAT.astype(object), "expected numbers, got an array of object"),
    ([[[0.1, 0.2], [0.3]]], "expected dense arrays"),
    (torch.from_numpy(FLAT).to_sparse(), "expected dense arrays"),
    ((FLAT.astype(np.float16) * np.float16(6e4)) * np.float16(6e4), "NaN or infinity in example 0"),
    (FLAT.astype(np.float64) * 1e300, "values from 0 to 1"),
    (np.moveaxis(FLAT, 0, -1), r"expected one entry per map, 6, got 60; the last axis has 60: .*moveaxis"),
])
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_maps_that_are_no_maps_are_refused(maps, words, backend):
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=words):
        score_maps(maps, CORNERS / 80, backend=backend)


@pytest.mark.parametrize("protocol", ["pixel", "paper", "amc", "gscorecam", MapProtocol("share", before="max")])
def test_large_values_are_fine_where_the_protocol_normalises(protocol):
    small, large = (score_maps(a, CORNERS, image_sizes=PICTURE, protocol=protocol) for a in (FLAT, FLAT * 255))
    np.testing.assert_allclose(small.io_ratio, large.io_ratio, rtol=1e-5)
    assert large.iou_soft.max() <= 1
    for form in (FLAT > 0.5, FLAT.astype(np.float16), torch.from_numpy(FLAT).bfloat16(), (FLAT * 255).astype(np.uint8)):
        assert score_maps(form, CORNERS, image_sizes=PICTURE, protocol=protocol).io_ratio.notna().all()


LOW = np.random.default_rng(0).uniform(-0.3, 0.6, (60, 2))
INPUT = np.clip(np.concatenate([LOW, LOW + 0.6], axis=1), 0, 1) * 224  # boxes of a network's input, some at its border


@pytest.mark.parametrize(("words", "boxes", "sizes"), [
    ("end at pixel 224", INPUT, PICTURE),
    ("sizes are \\(height, width\\)", np.minimum(CORNERS, 475), (640, 440)),
])
def test_what_looks_like_a_mistake_is_one_warning(words, boxes, sizes):
    with pytest.warns(SuspiciousInput, match=words) as caught:
        frame = score_maps(FLAT[:, :, :6], boxes, image_sizes=sizes)
    [said] = [one for one in caught if one.category is SuspiciousInput]
    assert said.filename == __file__ and frame.attrs["warnings"] == [str(said.message)]


# -- a table of mistakes


REAL = Path(__file__).parents[2] / "shared" / "realdata" / "coco" / "instances_val2014_100.json"
HEADLINES = ["pg_hit", "io_ratio", "iou_binary"]


def bumps(boxes, sizes, seed=1):
    """Maps [n, 24, 24] of a model that is often right: a Gaussian bump near each box, and noise."""
    rng, (y, x) = np.random.default_rng(seed), np.mgrid[:24, :24] + 0.5
    centre, half = ((boxes[:, 2:] + sign * boxes[:, :2]) / 2 / sizes[:, ::-1] * 24 for sign in (1, -1))
    centre += rng.normal(0, 2.4, centre.shape) * np.where(rng.random((len(boxes), 1)) < 0.5, 0.3, 1)
    (cx, cy), (rx, ry) = (values.T[:, :, None, None] for values in (centre, np.maximum(half, 2)))
    maps = np.exp(-(((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2) / 2) + 0.15 * rng.random((len(boxes), 24, 24))
    return (maps / maps.max((1, 2), keepdims=True)).astype(np.float32)


@cache
def honest(kind):
    """Boxes, sizes, maps and groups: 300 boxes, made ones as annotators draw them, or COCO's."""
    rng = np.random.default_rng(0)
    if kind == "coco":
        data = json.loads(REAL.read_text())
        size = {image["id"]: (image["height"], image["width"]) for image in data["images"]}
        some = sorted(rng.permutation(data["annotations"])[:300], key=lambda one: one["image_id"])
        boxes, groups = xywh_to_xyxy([one["bbox"] for one in some]), np.array([one["image_id"] for one in some])
        sizes = np.array([size[id] for id in groups.tolist()])
    else:
        groups = np.repeat(np.arange(100), 3)
        sizes = np.repeat(np.array([(240, 320), (320, 240), (214, 320)])[rng.integers(0, 3, 100)], 3, axis=0)
        low, extent = rng.uniform(-0.1, 0.85, (300, 2)), rng.uniform(0.05, 0.4, (300, 2))
        boxes = np.clip(np.hstack([low, low + extent]), 0, 1) * np.tile(sizes[:, ::-1], 2)
        boxes = np.round(np.hstack([boxes[:, :2], np.maximum(boxes[:, 2:], boxes[:, :2] + 4)])).clip(
            0, np.tile(sizes[:, ::-1], 2))
    return boxes, sizes, bumps(boxes, sizes), groups


def of_boxes(change):
    return lambda b, s, m, g: (change(b, np.tile(s[:, ::-1], 2)), s, m, g)


def of_sizes(change):
    return lambda b, s, m, g: (b, change(s), m, g)


def of_maps(change):
    return lambda b, s, m, g: (b, s, change(m), g)


def resampled(window, into=lambda size: ((0, 24), (0, 24))):
    """Maps cut to a window of each picture and put into a part of the grid: two (from, to) of the 24 cells."""
    def change(b, s, m, g):
        maps = np.zeros_like(m)
        for n, size in enumerate(s):
            rows, columns = (np.linspace(*part(size)[k], end - start, endpoint=False).astype(int)
                             for part in (window,) for k, (start, end) in enumerate(into(size)))
            (top, bottom), (left, right) = into(size)
            maps[n, top:bottom, left:right] = m[n][np.ix_(rows, columns)]
        return b, s, maps, g
    return change


def middle(size, of):
    """The middle part of both axes, whose length is the smallest (of=min) side of each, or the share of the longest."""
    length = 24 * (of(size) / size if of is min else size / of(size))
    return tuple((int(12 - half), int(12 + half)) for half in np.maximum(np.round(length / 2), 1))


def fifth(value):
    return of_maps(lambda m: np.where(np.arange(len(m))[:, None, None] % 5 == 0, np.float32(value), m))


def exchanged(b, s, m, g):
    order = np.arange(len(g))
    for name in np.unique(g):
        order[g == name] = order[g == name][::-1]
    return b, s, m[order], g


def softmax(m, factor):
    shares = np.exp(factor * m)
    return shares / shares.sum((1, 2), keepdims=True)


def sized(b):
    return b[:, 2:] - b[:, :2]


SHUFFLED = np.random.default_rng(3).permutation(300)
MISTAKES = {
    "boxes x, y, width, height": ("error", of_boxes(lambda b, s: np.hstack([b[:, :2], sized(b)]))),
    "boxes centre, width, height": ("error", of_boxes(lambda b, s: np.hstack([b[:, :2] + sized(b) / 2, sized(b)]))),
    "boxes in shares": ("error", of_boxes(lambda b, s: b / s)),
    "boxes in percent": ("warning", of_boxes(lambda b, s: b / s * 100)),
    "boxes in thousandths": ("error", of_boxes(lambda b, s: b / s * 1000)),
    "boxes y before x": ("error", of_boxes(lambda b, s: b[:, [1, 0, 3, 2]])),
    "boxes y0, y1, x0, x1": ("error", of_boxes(lambda b, s: b[:, [1, 3, 0, 2]])),
    "boxes x0, x1, y0, y1": ("error", of_boxes(lambda b, s: b[:, [0, 2, 1, 3]])),
    "boxes of an input of 96": ("warning", of_boxes(lambda b, s: b / s * 96)),
    "boxes of an input of 168": ("warning", of_boxes(lambda b, s: b / s * 168)),
    "one of them sticks out": ("warning", of_boxes(lambda b, s: np.vstack([b[:1], (b / s * 168)[1:]]))),
    "boxes of an input, aspect kept": ("warning", of_boxes(lambda b, s: b / s.max(1, keepdims=True) * 128)),
    "boxes of half the size": ("warning", of_boxes(lambda b, s: b / 2)),
    "boxes of twice the size": ("error", of_boxes(lambda b, s: b * 2)),
    "boxes with the last pixel inside": ("silent", of_boxes(lambda b, s: b - [0, 0, 1, 1])),
    "boxes from 1": ("silent", of_boxes(lambda b, s: b + 1)),
    "boxes with NaN": ("error", of_boxes(lambda b, s: np.where(np.arange(300)[:, None] == 3, np.nan, b))),
    "a box too few": ("error", lambda b, s, m, g: (b[:-1], s, m, g)),
    "boxes padded with zeros": ("error", lambda b, s, m, g: ([np.vstack([one, [0, 0, 0, 0]]) for one in b], s, m, g)),
    "sizes (width, height)": ("error", of_sizes(lambda s: s[:, ::-1])),
    "some sizes (width, height)": ("error", of_sizes(lambda s: np.where(np.arange(300)[:, None] % 4, s, s[:, ::-1]))),
    "sizes of the next picture": ("error", of_sizes(lambda s: np.roll(s, 3, axis=0))),
    "sizes doubled": ("warning", of_sizes(lambda s: s * 2)),
    "sizes of the maps": ("error", of_sizes(lambda s: s * 0 + 24)),
    "one square size for all": ("silent", of_sizes(lambda s: np.full_like(s, s.max()))),
    "sizes that no picture has": ("error", of_sizes(lambda s: s * 0 + 65535)),
    "maps transposed": ("warning", of_maps(lambda m: m.transpose(0, 2, 1))),
    "maps mirrored": ("warning", of_maps(lambda m: m[:, :, ::-1])),
    "maps upside down": ("warning", of_maps(lambda m: m[:, ::-1])),
    "maps turned by 90 degrees": ("warning", of_maps(lambda m: np.rot90(m, 1, (1, 2)))),
    "maps turned by 180 degrees": ("warning", of_maps(lambda m: m[:, ::-1, ::-1])),
    "maps of the next record": ("warning", of_maps(lambda m: np.roll(m, -1, axis=0))),
    "maps of the record before": ("warning", of_maps(lambda m: np.roll(m, 1, axis=0))),
    "maps exchanged in a picture": ("warning", exchanged),
    "maps shuffled": ("silent", of_maps(lambda m: m[SHUFFLED])),
    "maps inverted": ("warning", of_maps(lambda m: 1 - m)),
    "maps negated": ("error", of_maps(np.negative)),
    "maps as logarithms": ("error", of_maps(lambda m: np.log(m + 1e-6))),
    "maps from 0 to 255": ("silent", of_maps(lambda m: m * 255)),
    "maps with NaN": ("error", of_maps(lambda m: np.where(np.arange(300)[:, None, None] == 3, np.nan, m))),
    "maps softmaxed over cells": ("silent", of_maps(lambda m: softmax(m, 3))),
    "maps mean-centred, then ReLU": ("silent", of_maps(lambda m: np.maximum(m - m.mean((1, 2), keepdims=True), 0))),
    "a fifth of the maps zero": ("warning", fifth(0)),
    "a fifth of the maps constant": ("warning", fifth(0.5)),
    "maps of the middle of the picture": ("silent", resampled(lambda size: middle(size, min))),
    "maps of the padded picture": ("silent", resampled(lambda size: ((0, 24), (0, 24)), lambda s: middle(s, max))),
}
UNSEEN = {  # silent, and a headline moves by more than 5 %: cannot be seen, because
    "one square size for all": "boxes that end at one height also stand on one floor",
    "maps shuffled": "undoing it needs an order that nobody has, and a weak model looks like that",
    "maps softmaxed over cells": "a model may give such maps",
    "maps mean-centred, then ReLU": "a model may give such maps",
    "maps of the middle of the picture": "a model may look at the middle",
    "maps of the padded picture": "a model may look at the middle",
}


def outcome(boxes, sizes, maps, groups):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            frame = score_maps(maps, boxes, image_sizes=sizes, groups=groups)
        except ValueError:
            return "error", None
    said = [one for one in caught if one.category is SuspiciousInput]
    assert len(said) <= 1
    return "warning" if said else "silent", frame[HEADLINES].mean()


@cache
def honest_scores(kind):
    said, scores = outcome(*honest(kind))
    assert said == "silent" and 0.4 < scores["pg_hit"] < 0.7
    return scores


KINDS = ["made", pytest.param("coco", marks=pytest.mark.skipif(not REAL.is_file(), reason="no ../shared/realdata"))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_an_error_a_warning_or_listed_as_unseen(name, kind):
    expected, change = MISTAKES[name]
    seen, scores = outcome(*change(*honest(kind)))
    assert seen == expected or {seen, expected} == {"error", "warning"} and kind == "coco"  # some pictures are tiny
    if seen == "silent":
        moved = np.abs(scores / honest_scores(kind) - 1).max()
        assert (moved > 0.05) == (name in UNSEEN), moved


def test_few_mistakes_are_unseen():
    assert len(MISTAKES) == 46 and len(UNSEEN) <= 6 and {MISTAKES[name][0] for name in UNSEEN} == {"silent"}


def placed(seed, place, extent, size=(480, 640), n=300):
    """n boxes whose corner is anywhere up to `place` and which are up to `extent` large, in pixels, and sizes."""
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, place, (n, 2))
    return np.hstack([low, low + rng.uniform(5, extent, (n, 2))]), np.tile(size, (n, 1))


PLACES = {
    "text lines": ((50, 300), (250, 20)), "small objects": ((300, 200), (20, 20)), "faces": ((200, 150), (100, 80)),
    "one corner": ((20, 20), (150, 150)), "a video's objects": ((280, 30), (60, 40)), "titles": ((10, 10), (300, 30)),
    "a left column": ((5, 400), (80, 60)), "stamps": ((1, 1), (90, 60)), "the sky": ((500, 20), (120, 100)),
    "a satellite's corner": ((90, 90), (10, 10), (1000, 1000)),
}
BORDER = np.zeros((300, 6, 8), np.float32)
BORDER[:, -1, -1] = 1  # all peaks at the lower right, as a network's artefact


def odd_inputs():
    rng = np.random.default_rng(0)
    boxes, sizes, maps, _ = honest("made")
    grey = rng.random((300, 6, 8)).astype(np.float32)
    for name, corner in PLACES.items():
        yield name, grey, *placed(1, *corner)
    yield "one corner, peaks in the other", BORDER, *placed(1, *PLACES["one corner"])
    yield "peaks in one place", BORDER, boxes, sizes
    yield "one map for all", np.repeat(maps[:1], 300, axis=0), boxes, sizes
    yield "maps at random", grey, boxes, sizes
    yield "all maps zero", grey * 0, boxes, sizes
    yield "maps 1 x 1", np.ones((1, 1, 1), np.float32), np.array([[0, 0, 1, 1.0]]), np.array([[1, 1]])
    yield "pictures 8 x 8", grey, np.tile([1.0, 1, 4, 5], (300, 1)), np.full((300, 2), 8)
    yield "one map", maps[:1], boxes[:1], sizes[:1]
    yield "nine maps", maps[:9, ::-1], boxes[:9], sizes[:9]
    yield "1,000 maps", rng.random((1000, 6, 8)).astype(np.float32), *placed(2, (500, 380), (130, 90), n=1000)
    yield "long pictures", grey, *placed(3, (3000, 20), (900, 18), (40, 4000))
    yield "high pictures", grey, *placed(3, (20, 3000), (18, 900), (4000, 40))
    yield "whole pictures", grey, np.hstack([sizes * 0, sizes[:, ::-1]]).astype(float), sizes
    yield "from 1 to width - 1", grey, np.clip(boxes, 1, np.tile(sizes[:, ::-1], 2) - 1) + [0, 0, 1e-3, 1e-3], sizes
    yield "one box for all", grey, np.tile([30.0, 40, 200, 160], (300, 1)), sizes
    yield "at every border", grey, np.hstack([boxes[:, :2] * (np.arange(300)[:, None] % 2), sizes[:, ::-1]]), sizes


@pytest.mark.parametrize(("maps", "boxes", "sizes"), [pytest.param(*one[1:], id=one[0]) for one in odd_inputs()])
def test_odd_but_right_input_is_silent(maps, boxes, sizes):
    assert outcome(boxes, sizes, maps, None)[0] == "silent"
    if len(maps) > 30:
        assert outcome(boxes, sizes, maps, np.zeros(len(maps), int))[0] == "silent"  # one group


# -- two files


def box_table(boxes, sizes=PICTURE, ids=None):
    rows = pd.DataFrame(boxes, columns=["x0", "y0", "x1", "y1"])
    sizes = np.broadcast_to(np.array(sizes), (len(rows), 2))
    return rows.assign(id=range(len(rows)) if ids is None else ids, width=sizes[:, 1], height=sizes[:, 0])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("maps.npy", FLAT)
    box_table(CORNERS).to_csv("boxes.csv", index=False)
    return tmp_path


def command(capsys, *arguments):
    code = main(["score", "maps.npy", "boxes.csv", *arguments])
    return code, capsys.readouterr()


def test_honest_files_are_silent(here, capsys):
    code, said = command(capsys)
    assert code == 0 and said.err == "" and score_files("maps.npy", "boxes.csv").attrs["warnings"] == []


def test_faults_are_rows_and_their_share_is_said_of_the_whole_file(here, capsys):
    box_table(XYWH).to_csv("boxes.csv", index=False)
    code, said = command(capsys, "--on-error", "record", "--out", "scores.csv")
    assert code == 0 and re.search("they fit as x, y, width, height", said.err), said.err
    lost = pd.read_csv("scores.csv").error.notna()
    assert lost.tolist() == (XYWH[:, 2:] <= XYWH[:, :2]).any(1).tolist() and 10 < lost.sum() < 60


def test_many_parts_give_one_warning(here, capsys):
    np.save("maps.npy", np.tile(FLAT, (10, 1, 1)))  # scored in parts of 256
    box_table(np.tile(INPUT, (10, 1))).to_csv("boxes.csv", index=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = score_files("maps.npy", "boxes.csv")
    assert [(one.category, one.filename) for one in caught] == [(SuspiciousInput, __file__)]
    code, said = command(capsys, "--json")
    assert code == 0 and "end at pixel 224" in said.err and json.loads(said.out)["warnings"] == frame.attrs["warnings"]


def test_maps_of_the_next_record_are_named(here, capsys):
    centre = (CORNERS[:, :2] + CORNERS[:, 2:]) / 2 / [640, 480] * [8, 6]
    maps = np.exp(-((np.arange(8) + 0.5 - centre[:, :1, None]) ** 2
                    + (np.arange(6)[:, None] + 0.5 - centre[:, 1:, None]) ** 2))
    np.save("maps.npy", maps)
    assert command(capsys)[1].err == ""
    np.save("maps.npy", np.roll(maps, 1, axis=0))
    assert "maps moved back by one record" in command(capsys)[1].err


COCO = {"images": [{"id": 1, "height": 48, "width": 64}],
        "annotations": [{"id": 1, "image_id": 1, "bbox": [1, 2, 9, 8]}]}


@pytest.mark.parametrize("harm", [
    {"images": [None]}, {"images": [{"id": 1, "height": 48}]}, {"images": [{"id": [], "height": 4, "width": 4}]},
    {"annotations": [{"id": 1, "image_id": [], "bbox": [1, 2, 9, 8]}]}, {"annotations": [[]]},
    {"images": [{"id": 1, "height": float("inf"), "width": 64}]}, {"images": [{"id": 1, "height": [], "width": 64}]},
    {"annotations": [{"id": 1, "image_id": 1, "bbox": [1, 2, [], 8]}]},
    {"annotations": [{"id": 1, "image_id": 1, "bbox": {"x": 1}}]},
    {"annotations": [{"id": 1, "image_id": 1, "bbox": [1, 2, "9", 8]}]},
])
def test_a_strange_coco_file_is_one_documented_error(tmp_path, harm):
    (tmp_path / "b.json").write_text(json.dumps(COCO | harm))
    for on_error in ("raise", "record"):
        try:
            found = read_boxes(tmp_path / "b.json", on_error=on_error)
        except FileFault as fault:
            assert str(fault).startswith(str(tmp_path / "b.json"))
        else:
            assert all(one.error or one.size is None for one in found.values())


# -- a data set, and batches


def examples(boxes, size=PICTURE):
    return [GroundingExample(str(k), Path(f"{k}.png"), "a dog", box[None], str(k), size) for k, box in enumerate(boxes)]


class Evenly:
    """Maps where a model is expected, so that no picture is opened."""

    card = {"name": "even", "weights": "none"}

    def maps_of(self, asked):
        return [np.full((6, 8), 0.5, np.float32)] * len(asked)


def test_boxes_of_a_data_set_are_judged_before_the_model_is_asked():
    with pytest.raises(ValueError, match="between 0 and 1"):
        ground(Evenly(), examples(CORNERS / 640), progress=False)
    with pytest.warns(SuspiciousInput, match="end at pixel 224") as caught:
        with pytest.raises(ExampleError):  # there is no picture
            ground(Evenly(), examples(INPUT), progress=False)
    assert len([one for one in caught if one.category is SuspiciousInput]) == 1 and caught[0].filename == __file__


def test_batches_of_a_metric_say_it_once_and_refuse():
    metric = GroundingScores()
    with pytest.warns(SuspiciousInput, match="end at pixel 224") as caught:
        for start in range(0, 60, 20):
            metric.update(FLAT[start:start + 20], INPUT[start:start + 20], image_sizes=PICTURE)
    assert len(caught) == 1 and metric.compute()["n"] == 60
    with pytest.raises(ValueError, match="between 0 and 1"):
        metric.update(FLAT, CORNERS / 640, image_sizes=PICTURE)
    with pytest.raises(ValueError, match="values from 0 to 1"):
        GroundingScores().update(FLAT * 255, CORNERS / 80)
