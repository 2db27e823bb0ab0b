"""The map store: exact maps back, one shard lost by a kill, rot named, other settings refused, nothing unpickled."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from safetensors.numpy import load_file
from speeds import some

from qgcam_lib.data.records import GroundingExample
from qgcam_lib.errors import StoreError
from qgcam_lib.grounding import ground
from qgcam_lib.grounding.run import score_store
from qgcam_lib.metrics import SCORE_COLUMNS
from qgcam_lib.models.baselines import CentreGuess, RandomMap
from qgcam_lib.storage.maps import MapStore
from qgcam_lib.storage.rows import RecordStore

ROOT = Path(__file__).parents[1]
RNG = np.random.default_rng(0)
MAPS = {f"image{k // 3}/{k % 3}": RNG.random((5 + k % 2, 7), dtype=np.float32) for k in range(12)}


def fill(store, ids=tuple(MAPS), shard=4):
    for start in range(0, len(ids), shard):
        part = ids[start:start + shard]
        store.append(part, [MAPS[id] for id in part])
    return store


@pytest.fixture
def store(tmp_path):
    return fill(MapStore(tmp_path / "maps", config={"model": "a"}))


def assert_holds(store, maps=MAPS):
    assert list(store) == list(maps) and len(store) == len(maps) and store.done() == set(maps)
    for id, a in maps.items():
        np.testing.assert_array_equal(store[id], a)
    for found, a in zip(store.maps(), maps.values()):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, a)


def test_maps_come_back_to_the_bit_in_any_order_and_to_another_reader(store):
    assert_holds(store)
    assert_holds(MapStore(store.folder))
    wanted = list(MAPS)[::-2]
    for a, id in zip(store.maps(wanted), wanted):
        np.testing.assert_array_equal(a, MAPS[id])
    assert [id for ids, _ in store.chunks(max_bytes=300) for id in ids] == list(MAPS)
    assert "image0/0" in store and "image9/9" not in store and MapStore.is_store(store.folder)
    with pytest.raises(KeyError, match="image9/9"):
        store.read("image9/9")


def test_a_shard_is_an_ordinary_safetensors_file_and_the_index_an_ordinary_table(store):
    frame = store.frame()
    assert frame.columns.tolist() == ["id", "shard", "key", "row", "h", "w", "dtype", "scale", "digest"]
    for row in frame.itertuples():
        np.testing.assert_array_equal(load_file(store.folder / row.shard)[row.key][row.row], MAPS[row.id])
    parts = [pd.read_parquet(path) for path in sorted((store.folder / "index").glob("*.parquet"))]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), frame, check_dtype=False)


def test_a_new_store_is_empty(tmp_path):
    store = MapStore(tmp_path / "new")
    assert len(store) == 0 and store.maps() == [] and store.append([], []) is None and list(store.chunks()) == []
    store.compact()
    assert len(store.check()) == 0 and store.frame().empty


@pytest.mark.parametrize("ids, maps, words", [
    (["a"], [np.array([[np.nan]])], "finite numbers .* in 'a'"),
    (["a"], [np.array([[1e39]])], "float32 can hold"),
    (["a"], [np.zeros((0, 3))], "at least one cell, got shape \\(0, 3\\) for 'a'"),
    (["a"], [np.zeros((1, 3, 3))], "2-D"),
    (["a"], [np.array([[{}]], dtype=object)], "map 'a'"),
    (["a", "a"], [np.ones((1, 1))] * 2, "distinct ids, got 'a' twice"),
    (["a"], [np.ones((1, 1))] * 2, "one map an id"),
    ([""], [np.ones((1, 1))], "not empty"),
    (["image0/0"], [np.ones((1, 1))], "in the store already, such as 'image0/0'"),
])  # fmt: skip
def test_what_is_refused_leaves_the_store_as_it_was(store, ids, maps, words):
    before = sorted(path.name for path in store.folder.rglob("*"))
    with pytest.raises(ValueError, match=words):
        store.append(ids, maps)
    assert sorted(path.name for path in store.folder.rglob("*")) == before
    assert_holds(store)


def test_a_map_can_be_replaced_when_asked(store):
    store.append(["image0/1"], [np.full((2, 2), 7.0)], again=True)
    for reader in (store, MapStore(store.folder)):
        assert reader["image0/1"].tolist() == [[7, 7], [7, 7]] and len(reader) == len(MAPS)
    store.compact()
    assert MapStore(store.folder)["image0/1"].shape == (2, 2) and len(store.shards()) == 1
    assert len(list(store.folder.glob("*.safetensors"))) == 1 and len(store.check()) == 0


def test_compact_changes_nothing_but_the_number_of_files(store):
    store.compact(max_bytes=500)
    assert len(store.shards()) == 3  # already three: nothing to win
    store.compact()
    assert len(store.shards()) == 1
    assert_holds(store)
    assert_holds(MapStore(store.folder))


def test_maps_of_other_settings_are_refused(store):
    store.bind({"model": "a"})
    with pytest.raises(StoreError, match="model is 'a' there and 'b' here"):
        MapStore(store.folder).bind({"model": "b"})
    with pytest.raises(StoreError, match="other settings"):
        MapStore(store.folder, config={"model": "a", "layer": 8})
    with pytest.raises(StoreError, match="holds float32, not float16"):
        MapStore(store.folder, "float16")
    with pytest.raises(ValueError, match="dtype: expected one of"):
        MapStore(store.folder, "float8")


@settings(max_examples=25, deadline=None, derandomize=True)
@given(arrays(np.float32, (3, 4), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_float16_is_close_to_every_map(tmp_path_factory, a):
    store = MapStore(tmp_path_factory.mktemp("half"), "float16")
    store.append(["a"], [a])
    found, top = MapStore(store.folder)["a"], np.abs(a).max()
    assert np.all(np.abs(found - a) <= np.maximum(2.0**-11 * np.abs(a), 2.0**-24 * top))


# -- kills and rot


def test_an_interrupted_write_costs_one_shard(store, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(RecordStore, "append", stop)
    with pytest.raises(KeyboardInterrupt):
        store.append(["late"], [np.ones((2, 2))])
    monkeypatch.undo()
    again = MapStore(store.folder)
    assert_holds(again)
    faults = again.check()
    assert faults.file.tolist() == ["shard-000004.safetensors"] and "cut short" in faults.problem[0]
    again.append(["late"], [np.ones((2, 2))])
    again.compact()
    assert len(again.check()) == 0 and "late" in MapStore(store.folder)


def test_an_interrupted_compact_loses_nothing(store, monkeypatch):
    for name in ("append", "compact"):
        with monkeypatch.context() as patch:
            patch.setattr(RecordStore, name, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                MapStore(store.folder).compact()
        assert_holds(MapStore(store.folder))
    MapStore(store.folder).compact()
    assert_holds(MapStore(store.folder))
    assert len(list(store.folder.glob("*.safetensors"))) == 1


def test_killed_while_writing(tmp_path):
    code = ("import sys, numpy as np\nfrom qgcam_lib.storage.maps import MapStore\n"
            "store = MapStore(sys.argv[1])\n"
            "for k in range(10**6):\n    store.append([f'{k}/{n}' for n in range(5)], [np.full((9, 9), k)] * 5)\n")
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "maps")], env=os.environ | {
        "PYTHONPATH": str(ROOT)})
    end = time.monotonic() + 120
    while len(list((tmp_path / "maps" / "index").glob("part-*.parquet"))) < 6 and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    store = MapStore(tmp_path / "maps")
    assert len(store) >= 30 and len(store) % 5 == 0
    for id, a in store.items():
        assert (a == int(id.split("/")[0])).all()
    assert len(store.check()) <= 2  # a shard without rows, a temporary file
    store.compact()
    assert len(store.check()) == 0


@pytest.mark.parametrize("harm, words", [
    (lambda data: data[:-20], "cannot be read as it was written"),
    (lambda data: b"", "cannot be read as it was written"),
    (lambda data: data[:-2] + bytes([data[-2] ^ 1]) + data[-1:], "checksum of map"),
    (lambda data: pickle.dumps(MAPS), "cannot be read as it was written"),
])  # fmt: skip
def test_check_and_read_name_the_broken_shard(store, harm, words):
    path = store.folder / "shard-000002.safetensors"
    path.write_bytes(harm(path.read_bytes()))
    faults = MapStore(store.folder).check()
    assert faults.file.tolist() == [path.name]
    assert words in faults.problem[0] and "4 maps lie in it" in faults.problem[0]
    reader = MapStore(store.folder)
    with pytest.raises(StoreError, match="shard-000002.safetensors: this shard"):
        reader.maps()
    np.testing.assert_array_equal(reader["image0/0"], MAPS["image0/0"])  # the other shards are whole


@pytest.mark.parametrize("dtype", some(["float32", "float16"], "float16"))
def test_no_flipped_bit_comes_back_as_another_map(tmp_path, dtype):
    store = MapStore(tmp_path / "maps", dtype)
    path = store.append(MAPS, MAPS.values())
    before, data = MapStore(store.folder).maps(), path.read_bytes()
    rng, header = np.random.default_rng(0), 8 * (8 + int.from_bytes(data[:8], "little"))
    for bit in [*rng.integers(header, size=300).tolist(), *rng.integers(header, 8 * len(data), 200).tolist()]:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = MapStore(store.folder).maps()
        except StoreError as error:
            assert path.name in str(error) and len(str(error)) < 300
        else:  # a flipped space between the header's words changes nothing
            assert bit < header
            for a, b in zip(before, found, strict=True):
                np.testing.assert_array_equal(a, b)


def test_a_missing_shard_and_a_torn_index_are_named(store):
    (store.folder / "shard-000003.safetensors").unlink()
    faults = store.check()
    assert faults.file.tolist() == ["shard-000003.safetensors"] and "missing" in faults.problem[0]
    part = store.index.parts()[0]
    part.write_bytes(part.read_bytes()[:50])
    assert store.check().file.tolist() == [f"index/{part.name}"]
    (store.folder / "note.txt").write_text("hello")
    assert "note.txt" in store.check().file.tolist()


# -- ground(save_maps=...) and score_store


MADE_BY = ("model", "dataset", "code", "own_code", "loaded_weights")


@pytest.fixture
def examples(tmp_path):
    found = []
    for k in range(6):
        path = tmp_path / f"{k}.png"
        Image.fromarray(np.random.default_rng(k).integers(0, 255, (24, 32, 3), dtype=np.uint8)).save(path)
        found += [GroundingExample(f"{k}/{n}", path, f"thing {n}", np.array([[2, 3 + n, 20, 15]]), f"{k}", (24, 32))
                  for n in range(3)]
    return found


def run(model, examples, **options):
    return ground(model, examples, **{"protocol": "paper", "progress": False, "batch_images": 2, **options})


def test_saved_maps_are_those_that_were_scored(examples, tmp_path):
    frame = run(RandomMap(), examples, store=tmp_path / "scores", save_maps=True)
    assert frame.attrs["maps"] == str(tmp_path / "scores-maps")
    store = MapStore(frame.attrs["maps"])
    assert list(store) == frame.id.tolist() and set(store.config) == {*MADE_BY}
    for e in examples:
        picture = Image.open(e.image).convert("RGB")
        np.testing.assert_array_equal(store[e.id], np.asarray(RandomMap().maps(picture, [e.prompt])[0]))
    for protocol, options in (("paper", {}), ("pixel", {"tau": 0.5, "ties": "first"})):
        again = score_store(store, examples, protocol=protocol, **options)
        pd.testing.assert_frame_equal(again, run(RandomMap(), examples, protocol=protocol, **options))
    assert run(RandomMap(), examples).attrs["maps"] is None


def test_a_stopped_run_continues_with_its_maps(examples, tmp_path, monkeypatch):
    left, explain = [1, 2], RandomMap.maps_batch

    def tired(*given):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return explain(*given)

    places = {"store": tmp_path / "scores", "save_maps": tmp_path / "maps"}
    monkeypatch.setattr(RandomMap, "maps_batch", tired)
    with pytest.raises(KeyboardInterrupt):
        run(RandomMap(), examples, **places)
    monkeypatch.undo()
    assert len(MapStore(tmp_path / "maps")) == 12
    frame = run(RandomMap(), examples, **places)
    pd.testing.assert_frame_equal(frame, run(RandomMap(), examples))
    pd.testing.assert_frame_equal(score_store(tmp_path / "maps", examples, protocol="paper"), frame)
    with pytest.raises(StoreError, match="other settings"):
        run(CentreGuess(), examples, save_maps=tmp_path / "maps")


def test_rows_made_without_maps_are_filled_up(examples, tmp_path):
    run(RandomMap(), examples, store=tmp_path / "scores", limit=9)
    frame = run(RandomMap(), examples, store=tmp_path / "scores", save_maps=True)
    assert MapStore(tmp_path / "scores-maps").done() == set(frame.id) == {e.id for e in examples}
    pd.testing.assert_frame_equal(frame, run(RandomMap(), examples))


def test_a_kill_between_maps_and_rows(examples, tmp_path):
    class Torn(RecordStore):
        def append(self, *_, **__):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(RandomMap(), examples, store=Torn(tmp_path / "scores"), save_maps=True)
    assert len(MapStore(tmp_path / "scores-maps")) == 6 and len(RecordStore(tmp_path / "scores").done()) == 0
    frame = run(RandomMap(), examples, store=tmp_path / "scores", save_maps=True)
    pd.testing.assert_frame_equal(frame, run(RandomMap(), examples))
    assert len(MapStore(tmp_path / "scores-maps")) == len(examples)


def test_examples_that_failed_have_no_map(examples, tmp_path):
    class Holey(RandomMap):
        def maps(self, image, phrases):
            found = super().maps(image, phrases).numpy()
            found[[phrase == "thing 1" for phrase in phrases]] = np.nan
            return found

        def maps_batch(self, images, phrases_per_image):
            return list(map(self.maps, images, phrases_per_image))

    examples[0].image.write_bytes(b"no picture")
    frame = run(Holey(), examples, store=tmp_path / "s", save_maps=True, on_error="record")
    scored = frame[frame.error.isna()]
    assert list(MapStore(tmp_path / "s-maps")) == scored.id.tolist() and len(scored) == 10
    again = run(Holey(), examples, store=tmp_path / "s", save_maps=True, on_error="record")
    pd.testing.assert_frame_equal(again, frame)
    found = score_store(tmp_path / "s-maps", examples, protocol="paper")
    pd.testing.assert_frame_equal(found[list(SCORE_COLUMNS)], scored[list(SCORE_COLUMNS)].reset_index(drop=True))


def test_wrong_calls_say_what_to_do(examples, tmp_path):
    with pytest.raises(ValueError, match="save_maps: True .* expects `store`"):
        run(CentreGuess(), examples, save_maps=True)
    with pytest.raises(StoreError, match="no maps are stored here"):
        score_store(tmp_path / "nothing", examples)
    assert not (tmp_path / "nothing").exists()
    run(CentreGuess(), examples, save_maps=tmp_path / "maps")
    with pytest.raises(ValueError, match="got none for 3 of 18, such as '0/0'"):
        score_store(tmp_path / "maps", examples[3:])
    with pytest.raises(KeyError, match="0/9"):
        score_store(tmp_path / "maps", [*examples, GroundingExample("0/9", *(
            getattr(examples[0], name) for name in ("image", "prompt", "boxes", "group", "size")))], ids=["0/9"])
    with pytest.raises(ValueError, match="ties"):
        score_store(tmp_path / "maps", examples, ties="last")
    assert score_store(tmp_path / "maps", examples, ids=["3/1", "0/2"]).id.tolist() == ["0/2", "3/1"]


def test_a_doubled_id_among_many_is_named_in_linear_time(store):
    ids = [f"m{n}" for n in range(40_000)] + ["x" * 5000] * 2  # a look at all ids for each of them takes 1.6e9 steps
    with pytest.raises(ValueError, match="expected distinct ids, got 'xxx.*… twice") as found:
        store.append(ids, [None] * len(ids))
    assert len(str(found.value)) < 200
