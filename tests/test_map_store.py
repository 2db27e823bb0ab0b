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
from PIL import Image

from qgcam_lib.data import picture_loop
from qgcam_lib.data.records import GroundingExample
from qgcam_lib.errors import StoreError
from qgcam_lib.grounding import ground
from qgcam_lib.grounding.run import score_store
from qgcam_lib.metrics import SCORE_COLUMNS
from qgcam_lib.models.registry import CentreGuess, RandomMap
from qgcam_lib.storage.rows import MapStore, RecordStore

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
    assert list(store) == list(maps) and len(store) == len(maps)
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
    assert [id for ids, _ in store.chunks(size=5) for id in ids] == list(MAPS)
    assert "image0/0" in store and "image9/9" not in store and MapStore.is_store(store.folder)
    with pytest.raises(KeyError, match="image9/9"):
        store["image9/9"]


@pytest.mark.parametrize("ids, maps", [
    (["a"], [np.array([[np.nan]])]), (["a"], [np.array([[1e39]])]), (["a"], [np.zeros((0, 3))]),
    (["a"], [np.zeros((1, 3, 3))]), (["a", "a"], [np.ones((1, 1))] * 2), (["a"], [np.ones((1, 1))] * 2),
    (["image0/0"], [np.ones((1, 1))]),
])
def test_what_is_refused_leaves_the_store_as_it_was(store, ids, maps):
    before = sorted(path.name for path in store.folder.rglob("*"))
    with pytest.raises(ValueError, match="^(ids|maps): "), np.errstate(over="ignore"):
        store.append(ids, maps)
    assert sorted(path.name for path in store.folder.rglob("*")) == before
    assert_holds(store)


def test_maps_of_other_settings_are_refused(store):
    store.bind({"model": "a"})
    with pytest.raises(StoreError, match="model is 'a' in the store and 'b' now"):
        MapStore(store.folder).bind({"model": "b"})
    with pytest.raises(StoreError, match="other settings"):
        MapStore(store.folder, config={"model": "a", "layer": 8})


# -- kills and rot


def test_killed_while_writing(tmp_path):
    code = ("import sys, numpy as np\nfrom qgcam_lib.storage.rows import MapStore\n"
            "store = MapStore(sys.argv[1])\n"
            "for k in range(10**6):\n    store.append([f'{k}/{n}' for n in range(5)], [np.full((9, 9), k)] * 5)\n")
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "maps")], env=os.environ | {
        "PYTHONPATH": str(ROOT)})
    end = time.monotonic() + 120
    while len(list((tmp_path / "maps").glob("part-*"))) < 6 and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    store = MapStore(tmp_path / "maps")
    assert len(store) >= 30 and len(store) % 5 == 0
    for id, a in store.items():
        assert (a == int(id.split("/")[0])).all()


@pytest.mark.parametrize("harm", [lambda data: data[:-20], lambda data: b"", lambda data: pickle.dumps(MAPS)])
def test_a_broken_part_is_named(store, harm):
    path = store.parts()[1]
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(StoreError, match=path.name):
        MapStore(store.folder).maps()


def test_no_flipped_bit_comes_back_as_another_map(tmp_path):
    store = MapStore(tmp_path / "maps")
    path = store.append(MAPS, MAPS.values())
    data, rng = path.read_bytes(), np.random.default_rng(0)
    for bit in rng.integers(8 * len(data), size=200).tolist():
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(StoreError, match=path.name):
            MapStore(store.folder).maps()


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


def test_a_kill_between_maps_and_rows(examples, tmp_path, monkeypatch):
    monkeypatch.setattr(picture_loop, "PART_ROWS", 6)

    class Torn(RecordStore):
        def append(self, *_, **__):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(RandomMap(), examples, store=Torn(tmp_path / "scores"), save_maps=True)
    assert len(MapStore(tmp_path / "scores-maps")) in (6, 12) and len(RecordStore(tmp_path / "scores").done()) == 0
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
    with pytest.raises(ValueError, match="save_maps"):
        run(CentreGuess(), examples, save_maps=True)
    with pytest.raises(StoreError, match="no maps are stored here"):
        score_store(tmp_path / "nothing", examples)
    assert not (tmp_path / "nothing").exists()
    run(CentreGuess(), examples, save_maps=tmp_path / "maps")
    with pytest.raises(ValueError, match="got none for 3 of 18 maps, such as '0/0'"):
        score_store(tmp_path / "maps", examples[3:])
    assert score_store(tmp_path / "maps", examples, ids=["3/1", "0/2"]).id.tolist() == ["0/2", "3/1"]
