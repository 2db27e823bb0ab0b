"""The record store: what is refused, what survives a kill, and that resuming gives the same rows."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from speeds import some

from qgcam_lib.errors import DiskError, StoreError
from qgcam_lib.storage.files import sha256_of, write_whole
from qgcam_lib.storage.rows import MapStore, RecordStore

ROOT = Path(__file__).parents[1]


def rows(first, last):
    """Rows first..last-1, whose values depend on the key only."""
    keys = range(first, last)
    return pd.DataFrame(
        {"id": [f"i{k:04d}" for k in keys], "value": [k / 7 for k in keys], "error": [None] * len(keys)}
    )


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path / "scores", config={"model": "a", "protocol": {"name": "paper"}})


def test_rows_come_back_in_the_order_they_were_written(store):
    for first in (20, 0, 10):
        store.append(rows(first, first + 10))
    found = store.read()
    pd.testing.assert_frame_equal(found, pd.concat([rows(20, 30), rows(0, 10), rows(10, 20)], ignore_index=True))
    assert store.done() == {f"i{k:04d}" for k in range(30)}
    assert [path.name[:11] for path in store.parts()] == [f"part-00000{k}" for k in (1, 2, 3)]


LOOKS: list[str] = []  # folders listed and parts opened for reading while a test watches
WATCHES = [False]


def _watch(event, args):
    listed = event in ("os.listdir", "os.scandir")
    if WATCHES[0] and (listed or event == "open" and "part-" in str(args[0]) and "tmp" not in str(args[0])):
        LOOKS.append(f"{event} {args[0]}")


sys.addaudithook(_watch)  # which Python has no way to take back


@pytest.mark.parametrize("kind", [RecordStore, MapStore])
def test_an_append_does_not_look_at_what_is_there(tmp_path, kind):
    def append(store, k):
        store.append(rows(k, k + 1)) if kind is RecordStore else store.append([str(k)], [np.ones((2, 2))])

    store = kind(tmp_path / "store", {"model": "a"})
    append(store, 0)
    LOOKS.clear()
    WATCHES[0] = True
    try:
        for k in range(1, 20):
            append(store, k)
        many = list(LOOKS)
        again = kind(store.folder, {"model": "a"})
        LOOKS.clear()
        append(again, 20)
        first = list(LOOKS)
    finally:
        WATCHES[0] = False
    assert many == [] and len(first) == 1 and first[0].startswith("os.")
    store.bind({"model": "a"})  # another object has written: the next part is the newest again
    append(store, 21)
    assert [path.name[5:11] for path in store.parts()] == [f"{k:06d}" for k in range(1, 23)]


def test_a_new_store_is_empty(tmp_path):
    store = RecordStore(tmp_path / "new")
    assert store.done() == set() and len(store.read()) == 0
    assert store.append(rows(0, 0)) is None and store.parts() == []


def test_columns_that_are_empty_in_one_part_only(store):
    store.append(rows(0, 2))
    store.append(rows(2, 4).assign(error=["torn", None], value=[1, 2]))
    found = store.read()
    assert found["error"].isna().tolist() == [True, True, False, True] and found["error"][2] == "torn"
    assert found["value"].tolist() == [0, 1 / 7, 1, 2]


# -- keys


@pytest.mark.parametrize("frame", [
    pd.concat([rows(20, 22), rows(20, 21)]), rows(20, 22).assign(id=["x", None]),
    rows(20, 22).rename(columns={"id": "key"}),
])
def test_ids_must_be_present_and_distinct(store, frame):
    store.append(rows(0, 10))
    with pytest.raises(ValueError, match="^frame"):
        store.append(frame)
    assert len(store.read()) == 10, "a refused frame leaves nothing behind"


def test_of_two_rows_the_newer_counts(store):
    store.append(rows(0, 4))
    store.append(rows(2, 3).assign(value=9.0))
    found = store.read().set_index("id").value
    assert len(found) == 4 and found["i0002"] == 9.0


# -- settings


def test_rows_of_other_settings_are_refused(store):
    assert RecordStore(store.folder, config={"model": "b"}).config == {"model": "b"}, "an empty store can be bound anew"
    store.bind({"model": "a", "block": 7})
    store.append(rows(0, 4))
    RecordStore(store.folder, config={"block": 7, "model": "a"})  # the order of the keys does not matter
    with pytest.raises(StoreError, match="block is 7 in the store and 8 now"):
        RecordStore(store.folder, config={"model": "a", "block": 8})
    with pytest.raises(StoreError, match="protocol is 'missing' in the store and 'paper' now"):
        store.bind({"model": "a", "block": 7, "protocol": "paper"})
    assert len(RecordStore(store.folder).done()) == 4, "reading needs no settings"


def test_rows_without_settings_are_not_claimed_by_a_run(tmp_path):
    store = RecordStore(tmp_path)
    store.append(rows(0, 4))
    with pytest.raises(StoreError, match="settings were not recorded"):
        store.bind({"model": "a"})


def test_tuples_and_paths_in_settings_compare_by_value(tmp_path):
    config = {"grid": (24, 24), "path": Path("a/b"), "size": [1, 2]}
    RecordStore(tmp_path, config=config).append(rows(0, 1))
    assert RecordStore(tmp_path, config=config).done() == {"i0000"}


# -- torn and foreign files


@pytest.mark.parametrize("compression", some(["snappy", "none"], "snappy"))
def test_no_flipped_bit_comes_back_as_a_number(store, compression):
    path = store.append(pd.concat([rows(0, 300), rows(300, 301).assign(value=np.nan)]))
    if compression == "none":  # without compression nothing but the checksum notices
        sink = pa.BufferOutputStream()
        pq.write_table(pq.read_table(path), sink, compression="none")
        path.unlink()
        data = sink.getvalue().to_pybytes()
        path = path.with_name(f"part-000001-{hashlib.sha256(data).hexdigest()[:32]}.parquet")
        path.write_bytes(data)
    data = path.read_bytes()
    assert len(RecordStore(store.folder).read()) == 301
    for bit in np.random.default_rng(0).choice(8 * len(data), 500, replace=False).tolist():
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        for read in (RecordStore(store.folder).read, RecordStore(store.folder).done, store.read):
            with pytest.raises(StoreError, match=path.name):
                read()


@pytest.mark.parametrize("length", [0, -1])
def test_a_torn_part_is_named_by_every_reader(store, length):
    path = store.append(rows(0, 10))
    store.append(rows(10, 20))
    path.write_bytes(path.read_bytes()[:length])
    for read in (store.done, store.read, RecordStore(store.folder).done):
        with pytest.raises(StoreError, match=path.name):
            read()
    path.rename(store.folder.parent / "moved")
    assert len(store.done()) == 10, "the rows of the torn part are to be made again"


def test_a_part_that_is_no_table_is_named_and_other_files_do_not_matter(store):
    store.append(rows(0, 4))
    (store.folder / "notes.txt").write_text("mine")
    (store.folder / ".part-000002.77.tmp.parquet").write_bytes(b"half")
    assert len(store.read()) == 4, "a write that was cut short and a note do not matter"
    stranger = store.folder / f"part-000009-{sha256_of(b'x')[:32]}.parquet"
    stranger.write_bytes(b"x")
    with pytest.raises(StoreError, match="part-000009"):
        store.read()


def test_a_broken_description_is_named(store):
    store.append(rows(0, 4))
    for text in ("", "{", "[]", '{"key": "id"}'):
        (store.folder / "store.json").write_text(text)
        with pytest.raises(StoreError, match="store.json"):
            RecordStore(store.folder).bind({"model": "a"})


# -- writing


def test_a_name_never_stands_for_half_a_file(tmp_path, monkeypatch):
    path = tmp_path / "a"

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match="No space left"):
        write_whole(path, b"content", durable=True)
    assert list(tmp_path.iterdir()) == []


# -- kill -9

WORKER = """
import sys, time
import pandas as pd
from qgcam_lib.storage.rows import RecordStore
folder, pause = sys.argv[1], float(sys.argv[2])
store = RecordStore(folder, config={"model": "a"})
done = store.done()
todo = [f"i{k:04d}" for k in range(400) if f"i{k:04d}" not in done]
print(len(todo), flush=True)
for start in range(0, len(todo), 10):
    keys = todo[start:start + 10]
    store.append(pd.DataFrame({"id": keys, "value": [int(k[1:]) / 7 for k in keys]}))
    time.sleep(pause)
"""


def run_worker(folder, pause):
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), str(pause)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_killed_in_the_middle_and_continued(tmp_path):
    folder = tmp_path / "scores"
    rng = np.random.default_rng(0)
    for target in (3, 9):
        worker = run_worker(folder, 0.01)
        deadline = time.monotonic() + 300
        while len(list(folder.glob("part-*.parquet"))) < target and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.03)
        worker.send_signal(signal.SIGKILL)
        assert worker.wait(60) == -signal.SIGKILL, "the worker must be killed, not finished"
        worker.stdout.close()
    store = RecordStore(folder)
    kept = len(store.done())
    assert 90 <= kept < 400 and kept % 10 == 0
    last = run_worker(folder, 0)
    said, _ = last.communicate(timeout=600)
    assert last.returncode == 0 and int(said) == 400 - kept, "only what was missing is done again"
    found = RecordStore(folder).read().sort_values("id", ignore_index=True)
    pd.testing.assert_frame_equal(found, rows(0, 400)[["id", "value"]])
