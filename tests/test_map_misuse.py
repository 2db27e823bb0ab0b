"""Misuse of the map scores: what cannot be right is an error with a remedy, what looks wrong is one warning."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from qgcam_lib.cli.main import main
from qgcam_lib.data.records import GroundingExample
from qgcam_lib.errors import ExampleError, FileFault, SuspiciousInput
from qgcam_lib.grounding import ground
from qgcam_lib.grounding.box_files import read_boxes
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
    (np.ma.masked_less(FLAT, 0.5), "maps: expected a plain array, got a masked one"),
    ([np.ma.masked_less(a, 0.5) for a in FLAT], "maps: expected a plain array, got a masked one"),
    (FLAT + 0j, "expected numbers, got an array of complex64"),
    (FLAT.astype(object), "expected numbers, got an array of object"),
    ([[[0.1, 0.2], [0.3]]], "expected dense arrays"),
    (torch.from_numpy(FLAT).to_sparse(), "expected dense arrays"),
    ((FLAT.astype(np.float16) * np.float16(6e4)) * np.float16(6e4), "NaN or infinity in example 0"),
    (FLAT.astype(np.float64) * 1e300, "values from 0 to 1"),
    (np.moveaxis(FLAT, 0, -1), r"expected one entry a map, 6, got 60; the last axis has 60: .*moveaxis"),
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


@pytest.mark.parametrize(("boxes", "words"), [
    (CORNERS / 640, "normalised boxes: 100% of the boxes .* multiply .*allow="),
    (np.ma.masked_array(CORNERS, False), "boxes: expected a plain array"),
    (CORNERS + 0j, "boxes: expected real numbers, got an array of complex"),
    ([["1", "2", "30", "40"]] * 60, "boxes of example 0: expected real numbers"),
    ([[0, 0, 10**400, 5]] * 60, "boxes of example 0: expected real numbers"),
    (CORNERS.astype(np.int64) + 2**31, "wholly outside"),
    (XYWH, "inverted.*they fit as x, y, width, height"),
    (3, "boxes: expected one .* array a map, got a single int"),
])
def test_boxes_that_are_no_boxes_are_refused(boxes, words):
    with pytest.raises(ValueError, match=words):
        score_maps(FLAT, boxes, image_sizes=PICTURE)


@pytest.mark.parametrize(("name", "boxes", "sizes"), [
    ("small boxes", CORNERS / 10, PICTURE),
    ("small boxes", CORNERS, (4800, 6400)),
    ("boxes outside", np.minimum(CORNERS, 475), (640, 440)),
    ("one-based boxes", np.clip(CORNERS + [-80, -80, 80, 80], 1, [640, 480] * 2), PICTURE),
])
def test_what_looks_like_a_mistake_is_one_warning_that_an_argument_silences(name, boxes, sizes):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = score_maps(FLAT[:, :, :6], boxes, image_sizes=sizes)
    [said] = [one for one in caught if one.category is SuspiciousInput]
    assert name in str(said.message) and f"allow=({name!r},)" in str(said.message) and said.filename == __file__
    assert frame.attrs["suspicions"] == [name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", SuspiciousInput)
        again = score_maps(FLAT[:, :, :6], boxes, image_sizes=sizes, allow=name)
    pd.testing.assert_frame_equal(frame, again)
    assert again.attrs["suspicions"] == []


def test_shapes_of_maps_that_do_not_follow_their_pictures_are_said():
    turned = np.array([PICTURE, PICTURE[::-1]])[np.arange(60) % 2]
    maps = [np.ones(tuple(size // 40), np.float32) for size in turned]
    boxes = np.minimum(CORNERS, 470)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score_maps(maps, boxes, image_sizes=turned)
        score_maps(maps, boxes, image_sizes=turned[::-1], allow="map shapes")
    with pytest.warns(SuspiciousInput, match="map shapes: 100% of the maps lie across"):
        score_maps(maps, boxes, image_sizes=turned[::-1])


def test_normalised_boxes_can_be_insisted_on():
    assert score_maps(FLAT, CORNERS / 640, image_sizes=PICTURE, allow="normalised boxes").attrs["suspicions"] == []
    with pytest.raises(ValueError, match="allow: expected names from"):
        score_maps(FLAT, CORNERS, image_sizes=PICTURE, allow="everything")


def test_ids_are_given_once():
    with pytest.raises(ValueError, match="ids: expected each once, got 'a' 60 times; .* groups"):
        score_maps(FLAT, CORNERS, image_sizes=PICTURE, ids=["a"] * 60)


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
    assert code == 0 and said.err == "" and score_files("maps.npy", "boxes.csv").attrs["suspicions"] == []


@pytest.mark.parametrize(("harm", "words"), [
    (lambda: box_table(CORNERS / 640), "boxes.csv: normalised boxes: 100% of the boxes .*--allow 'normalised boxes'"),
    (lambda: box_table(XYWH),
     r"record '\d+': BOXES: expected x0 < x1 .*say the order of its numbers \(--box-format, here xyxy\)"),
    (lambda: box_table(CORNERS, (48, 64)), "wholly outside .*100% of the boxes are inverted or stick out"),
])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_files_that_cannot_be_right_are_refused(here, capsys, harm, words):
    harm().to_csv("boxes.csv", index=False)
    code, said = command(capsys)
    assert code == 1 and re.search(words, said.err) and "Traceback" not in said.err, said.err


def test_values_above_one_are_refused_or_recorded(here, capsys):
    maps = FLAT.copy()
    maps[7] *= 255
    np.save("maps.npy", maps)
    code, said = command(capsys, "--protocol", "native")
    assert code == 1 and "record '7': MAPS: expected values from 0 to 1" in said.err
    frame = score_files("maps.npy", "boxes.csv", protocol="native", on_error="record")
    assert np.flatnonzero(frame.error.notna()).tolist() == [7] and "from 0 to 1" in frame.error[7]
    assert command(capsys)[0] == 0


def test_faults_are_rows_and_their_share_is_said_of_the_whole_file(here, capsys):
    box_table(XYWH).to_csv("boxes.csv", index=False)
    code, said = command(capsys, "--on-error", "record", "--out", "scores.csv")
    words = "qgcam: boxes outside: .*they fit as x, y, width, height.*--allow 'boxes outside'"
    assert code == 0 and re.search(words, said.err), said.err
    lost = pd.read_csv("scores.csv").error.notna()
    assert lost.tolist() == (XYWH[:, 2:] <= XYWH[:, :2]).any(1).tolist() and 10 < lost.sum() < 60
    code, said = command(capsys, "--on-error", "record", "--allow", "boxes outside")
    assert code == 0 and said.err == ""


def test_a_suspicion_is_one_warning_for_many_parts(here, capsys):
    many = np.tile(CORNERS, (10, 1))
    np.save("maps.npy", np.tile(FLAT, (10, 1, 1)))  # scored in parts of 256
    box_table(many / 10).to_csv("boxes.csv", index=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = score_files("maps.npy", "boxes.csv")
    assert [(one.category, one.filename) for one in caught] == [(SuspiciousInput, __file__)]
    assert frame.attrs["suspicions"] == ["small boxes"]
    code, said = command(capsys, "--json")
    assert code == 0 and "small boxes: all 600 boxes" in said.err
    assert json.loads(said.out)["suspicions"] == ["small boxes"]
    assert command(capsys, "--allow", "big boxes")[0] == 2


@pytest.mark.parametrize("ids", [range(1, 61), range(1, 50), [f"{k + 5}" for k in range(60)]])
def test_shifted_ids_are_refused_also_of_what_is_common(here, capsys, ids):
    box_table(CORNERS[:len(ids)], ids=ids).to_csv("boxes.csv", index=False)
    for more in ((), ("--common",)):
        code, said = command(capsys, *more)
        assert code == 1 and re.search(r"shifted by -\d.*count from 0 .*--allow 'shifted ids'", said.err), said.err
    assert command(capsys, "--common", "--allow", "shifted ids")[0] == 0


def test_ids_that_only_the_shapes_betray(here):
    sizes = np.array([PICTURE, PICTURE[::-1]])[np.random.default_rng(1).integers(0, 2, 60)]
    maps = {str(k + 1): np.full(tuple(size // 40), 0.5, np.float32) for k, size in enumerate(sizes)}
    del maps["11"]
    np.savez("maps.npz", **maps)
    boxes = box_table(np.minimum(CORNERS, 470), sizes)
    boxes.to_csv("boxes.csv", index=False)
    with pytest.raises(FileFault, match="they fit when every id is shifted by -1.*allow="):
        score_files("maps.npz", "boxes.csv", common=True)
    with pytest.warns(SuspiciousInput, match="map shapes"):
        score_files("maps.npz", "boxes.csv", common=True, allow="shifted ids")
    boxes.assign(id=boxes.id + 1).to_csv("boxes.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score_files("maps.npz", "boxes.csv", common=True)


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
    with pytest.raises(ValueError, match="normalised boxes: 100%"):
        ground(Evenly(), examples(CORNERS / 640), progress=False)
    with pytest.warns(SuspiciousInput, match="small boxes") as caught:
        with pytest.raises(ExampleError):  # there is no picture
            ground(Evenly(), examples(CORNERS / 10), progress=False)
    assert len([one for one in caught if one.category is SuspiciousInput]) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = ground(Evenly(), examples(CORNERS / 10), on_error="record", progress=False, allow="small boxes")
    assert frame.attrs["suspicions"] == []


def test_batches_of_a_metric_say_it_once_and_refuse():
    metric = GroundingScores()
    with pytest.warns(SuspiciousInput, match="small boxes") as caught:
        for start in range(0, 60, 20):
            metric.update(FLAT[start:start + 20], CORNERS[start:start + 20] / 10, image_sizes=PICTURE)
    assert len(caught) == 1 and metric.compute()["n"] == 60
    with pytest.raises(ValueError, match="normalised boxes"):
        metric.update(FLAT, CORNERS / 640, image_sizes=PICTURE)
    with pytest.raises(ValueError, match="values from 0 to 1"):
        GroundingScores().update(FLAT * 255, CORNERS / 80)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GroundingScores(allow="small boxes").update(FLAT, CORNERS / 10, image_sizes=PICTURE)
