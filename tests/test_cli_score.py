"""`qgcam score` and `score_files`: every form of file gives the scores of score_maps, every fault names its record."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from qgcam_lib.cli.main import main
from qgcam_lib.errors import FileFault
from qgcam_lib.grounding.map_files import open_maps, read_boxes
from qgcam_lib.grounding.own_maps import score_files
from qgcam_lib.metrics import SCORE_COLUMNS, score_maps
from qgcam_lib.storage.rows import MapStore

ROOT = Path(__file__).parents[1]
RNG = np.random.default_rng(0)
N = 9
IDS = [f"im{k // 3}/{k % 3}" for k in range(N)]
MAPS = {id: RNG.random((6, 8), dtype=np.float32) for id in IDS}
BOXES = {id: [[float(x), 2.0, x + 9.0, 12.0]] for id, x in zip(IDS, RNG.integers(0, 20, N))}
BOXES[IDS[4]].append([0.0, 0.0, 3.5, 5.5])
SIZE = (24, 32)
KINDS = dict(zip(IDS, "abcabcabc"))


def write_maps(folder, form, maps=MAPS):
    path = folder / f"maps{form}"
    if form == ".safetensors":
        save_file(maps, path)
    elif form == ".npz":
        np.savez(path, **maps)
    elif form == ".stack.npz":
        np.savez(path, maps=np.stack(list(maps.values())), ids=list(maps))
    elif form == ".folder":
        for id, a in maps.items():
            (path / id).parent.mkdir(parents=True, exist_ok=True)
            np.save(path / f"{id}.npy", a)
    elif form == ".store":
        MapStore(path).append(maps, maps.values())
    return path


def table():
    rows = [(id, *box, SIZE[1], SIZE[0], id.split("/")[0], KINDS[id]) for id in IDS for box in BOXES[id]]
    return pd.DataFrame(rows, columns=["id", "x0", "y0", "x1", "y1", "width", "height", "group", "kind"])


def write_boxes(folder, form):
    path = folder / f"boxes{form}"
    if form == ".csv":
        table().to_csv(path, index=False)
    elif form == ".parquet":
        table().to_parquet(path)
    elif form == ".object.json":
        path.write_text(json.dumps({id: {"boxes": BOXES[id], "size": SIZE, "group": id.split("/")[0],
                                         "kind": KINDS[id]} for id in IDS}))
    elif form == ".list.json":
        path.write_text(json.dumps([{"id": row.id, "bbox": [row.x0, row.y0, row.x1 - row.x0, row.y1 - row.y0],
                                     "image_id": row.group, "height": row.height, "width": row.width,
                                     "kind": row.kind} for row in table().itertuples()]))
    return path


EXPECTED = score_maps(list(MAPS.values()), list(BOXES.values()), image_sizes=SIZE)


def assert_expected(frame):
    assert frame.id.tolist() == IDS and frame.group.tolist() == [id.split("/")[0] for id in IDS]
    assert frame.n_boxes.tolist() == [2 if k == 4 else 1 for k in range(N)] and frame.error.isna().all()
    assert set(frame.protocol) == {"paper"}
    for name in SCORE_COLUMNS:
        np.testing.assert_array_equal(frame[name], EXPECTED[name].astype(float))


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_maps(tmp_path, ".npz")
    write_boxes(tmp_path, ".csv")
    return tmp_path


# -- the same scores from every form


@pytest.mark.parametrize("form", [".safetensors", ".npz", ".stack.npz", ".folder", ".store"])
def test_every_form_of_maps(tmp_path, form):
    frame = score_files(write_maps(tmp_path, form), write_boxes(tmp_path, ".csv"))
    assert_expected(frame)
    assert frame.kind.tolist() == list("abcabcabc") and frame.attrs["grouped"] and frame.attrs["n_maps"] == N


@pytest.mark.parametrize("form", [".csv", ".parquet", ".object.json", ".list.json"])
def test_every_form_of_boxes(tmp_path, form):
    frame = score_files(write_maps(tmp_path, ".npz"), write_boxes(tmp_path, form),
                        box_format="xywh" if form == ".list.json" else None)
    assert_expected(frame)
    assert frame.kind.tolist() == list("abcabcabc")


def test_stacks_are_numbered_and_bfloat16_is_read(tmp_path):
    stack = np.stack(list(MAPS.values()))
    np.save(tmp_path / "a.npy", stack)
    save_torch({"maps": torch.from_numpy(stack).bfloat16()}, tmp_path / "b.safetensors")
    for name, expected in (("a.npy", stack), ("b.safetensors", torch.from_numpy(stack).bfloat16().float().numpy())):
        file = open_maps(tmp_path / name)
        assert file.ids == tuple(map(str, range(N)))
        np.testing.assert_array_equal(np.stack(file.load(file.ids)), expected)


def test_orders_of_four_numbers_and_coco(tmp_path):
    path, expected = tmp_path / "b.json", [[2.0, 3.0, 12.0, 8.0]]
    for order, box in (("xyxy", [2, 3, 12, 8]), ("xywh", [2, 3, 10, 5]), ("yyxx", [3, 8, 2, 12])):
        path.write_text(json.dumps({"a": [box]}))
        assert read_boxes(path, order)["a"].boxes.tolist() == expected
    path.write_text(json.dumps({"images": [{"id": 5, "height": 20, "width": 30}],
                                "annotations": [{"id": 1, "image_id": 5, "bbox": [2, 3, 10, 5]}]}))
    record = read_boxes(path)["1"]
    assert (record.boxes.tolist(), record.size, record.group) == (expected, (20, 30), "5")
    (tmp_path / "b.csv").write_text("id,x,y,w,h,width,height\nNA,2,3,10,5,30,20\n007,1,1,1,1,30,20\n")
    found = read_boxes(tmp_path / "b.csv", "xywh")
    assert list(found) == ["NA", "007"] and found["NA"].boxes.tolist() == expected and found["NA"].size == (20, 30)


# -- options


def test_options_reach_the_scores(files):
    options = {"protocol": "gscorecam", "ties": "first", "tau": 0.3, "delta": 4.0}
    frame = score_files("maps.npz", "boxes.csv", **options)
    expected = score_maps(list(MAPS.values()), list(BOXES.values()), image_sizes=SIZE, **options)
    for name in SCORE_COLUMNS:
        np.testing.assert_array_equal(frame[name], expected[name].astype(float))


def test_sizes_for_all_and_none_at_all(files):
    table().drop(columns=["width", "height"]).to_csv("plain.csv", index=False)
    assert_expected(score_files("maps.npz", "plain.csv", size=SIZE))
    with pytest.raises(FileFault, match="record 'im0/0'"):
        score_files("maps.npz", "plain.csv")
    small = table().drop(columns=["width", "height"])
    small[["x0", "y0", "x1", "y1"]] /= 4
    small.to_csv("small.csv", index=False)
    native = score_files("maps.npz", "small.csv", protocol="native")
    expected = score_maps(list(MAPS.values()), [np.array(b) / 4 for b in BOXES.values()])
    np.testing.assert_array_equal(native.io_ratio, expected.io_ratio)


def test_common_and_record_go_on(files):
    maps = {**MAPS, "zz": MAPS[IDS[0]], IDS[1]: np.full((6, 8), np.nan), IDS[2]: np.stack([MAPS[IDS[2]]] * 2)}
    del maps[IDS[8]]
    write_maps(files, ".npz", maps)
    with pytest.raises(FileFault, match="'im2/2'.*'zz'"):
        score_files("maps.npz", "boxes.csv")
    with pytest.raises(FileFault, match="'im0/[12]'"):
        score_files("maps.npz", "boxes.csv", common=True)
    frame = score_files("maps.npz", "boxes.csv", common=True, on_error="record")
    assert frame.id.tolist() == IDS[:8] and frame.error.notna().tolist() == [False, True, True] + [False] * 5
    assert "NaN" in frame.error[1] and "(2, 6, 8)" in frame.error[2] and np.isnan(frame.io_ratio[1])
    np.testing.assert_array_equal(frame.io_ratio[3:], EXPECTED.io_ratio[3:8])


def test_boxes_that_stick_out_are_clipped_and_counted(files):
    wide = table()
    wide.loc[0, "x1"] = 400.0
    wide.to_csv("boxes.csv", index=False)
    with pytest.warns(UserWarning, match="1 records .* 'im0/0'"):
        frame = score_files("maps.npz", "boxes.csv")
    assert frame.attrs["clipped"] == ["im0/0"]


# -- faults


def change(**columns):
    def write(folder):
        frame = table().astype(object)
        for name, value in columns.items():
            frame.loc[3, name] = value
        frame.to_csv(folder / "boxes.csv", index=False)
    return write


@pytest.mark.parametrize("harm, words", [
    (lambda f: write_maps(f, ".npz", {**MAPS, "im1/0": MAPS["im1/0"] * np.nan}), "record 'im1/0'"),
    (lambda f: write_maps(f, ".npz", {**MAPS, "im1/0": np.zeros((0, 4))}), "'im1/0'"),
    (lambda f: write_maps(f, ".npz", {**MAPS, "im1/0": np.array([[None]])}), "'im1/0' holds Python objects"),
    (lambda f: np.savez(f / "maps.npz", maps=np.zeros((2, 4, 4)), ids=["a", "a"]), "two maps have the id 'a'"),
    (lambda f: (f / "maps.npz").write_bytes(b"PK"), "maps.npz"),
    (change(x1=0.0), "record 'im1/0'"),
    (change(x0=100, x1=120), "record 'im1/0'"),
    (change(y0="five"), "line 5, column y0"),
    (change(height=""), "record 'im1/0': size"),
    (change(id="im1/9"), "'im1/9'"),
    (change(group=""), "record 'im1/0' has no group"),
    (lambda f: pd.concat([table(), table()[3:4]]).to_csv(f / "boxes.csv"), "'im1/0'"),
    (lambda f: table().rename(columns={"kind": "io_ratio"}).to_csv(f / "boxes.csv"), "'io_ratio'"),
    (lambda f: table()[:0].to_csv(f / "boxes.csv"), "no record"),
])
def test_faults_of_a_file_name_it_and_the_record(files, harm, words):
    harm(files)
    with pytest.raises(FileFault, match=words):
        score_files("maps.npz", "boxes.csv", out="scores.csv")
    assert not (files / "scores.csv").exists()


@pytest.mark.parametrize("protocol", ["paper", "native"])
def test_negative_values_are_named(files, protocol):
    write_maps(files, ".npz", {**MAPS, "im1/0": MAPS["im1/0"] - 0.5, "im2/1": MAPS["im2/1"] - 0.5})
    with pytest.raises(FileFault, match=r"record 'im1/0': .*negative.* \(2 of 9 maps are signed\); choose"):
        score_files("maps.npz", "boxes.csv", protocol=protocol)
    kept = score_files("maps.npz", "boxes.csv", protocol=protocol, on_error="record")
    assert kept.error.notna().sum() == 2 and "n_negative" not in kept


def test_what_became_of_negative_values_is_counted(files, capsys):
    signed = MAPS["im1/0"] - 0.5
    write_maps(files, ".npz", {**MAPS, "im1/0": signed})
    frame = score_files("maps.npz", "boxes.csv", negatives="relu")
    n = int((signed < 0).sum())
    assert frame.attrs["negatives"] == {"rule": "relu", "n_maps": 1, "n_cells": n} and frame.n_negative.sum() == n > 0
    assert main(["score", "maps.npz", "boxes.csv", "--negatives", "relu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["negatives"] == frame.attrs["negatives"]


def test_maps_with_a_channel_axis_of_one(files):
    stack = np.stack(list(MAPS.values()))[:, None]
    np.savez(files / "deep.npz", maps=stack, ids=IDS)
    assert_expected(score_files("deep.npz", "boxes.csv"))
    np.savez(files / "named.npz", **{id: a[None] for id, a in MAPS.items()})
    assert_expected(score_files("named.npz", "boxes.csv"))
    np.savez(files / "deep.npz", maps=np.repeat(stack, 3, 1), ids=IDS)
    with pytest.raises(FileFault, match="one array of maps"):
        score_files("deep.npz", "boxes.csv")


@pytest.mark.parametrize("text, words", [
    ('{"a": [[0, 0, 1, 1]], "a": [[0, 0, 2, 2]]}', "'a' twice"),
    ('[{"id": 1, "bbox": [0, 0, 2, 2]}]', "box_format"),
    ('{"a": {"boxes": [[0, 0, 2]]}}', "record 'a'"),
    ('{"a": {"boxes": [[0, 0, NaN, 2]]}}', "record 'a'"),
    ('{"a": {"boxes": [[0, 0, 2, 2]], "size": [2]}}', "record 'a': size"),
    ("7", "b.json"),
])
def test_faults_of_json(tmp_path, text, words):
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(FileFault, match=words):
        read_boxes(tmp_path / "b.json")


def test_other_files_are_refused_unread(tmp_path):
    (tmp_path / "maps.pkl").write_bytes(b"")
    with pytest.raises(FileFault, match="maps are not read from"):
        open_maps(tmp_path / "maps.pkl")


# -- the command
