"""Stores, caches, archives, checkpoints, features and the zoo, on damaged and hostile files."""

import io
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from harness import Target
from hypothesis import strategies as st
from inputs import any_bytes, built, near, zip_bytes, zipped
from safetensors.numpy import save
from targets_data import js
from targets_scores import FRAME, MAPS, arrays, npy

from qgcam_lib.data.sources import unpack
from qgcam_lib.grounding.map_files import open_maps
from qgcam_lib.models.common.checkpoints import read_card, read_state
from qgcam_lib.models.common.zoo import card_markdown, load_zoo, zoo_table
from qgcam_lib.models.regions.feature_files import open_features
from qgcam_lib.storage.files import file_sha256
from qgcam_lib.storage.fingerprints import fingerprint
from qgcam_lib.storage.maps import MapStore
from qgcam_lib.storage.rows import RecordStore


def files_of(make) -> dict[str, bytes]:
    """The files that `make(folder)` writes, by name."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }


def _fill_rows(folder):
    store = RecordStore(folder, config={"model": "a"})
    store.append(pd.DataFrame(FRAME[:3]))
    store.append(pd.DataFrame(FRAME[3:]))


def _fill_maps(folder):
    MapStore(folder, config={"model": "a"}).append(list(MAPS), list(MAPS.values()))


def _fill_cache(folder):
    (folder / "data.txt").write_text("a")
    with closing(sqlite3.connect(folder / "fingerprints.sqlite")) as table, table:
        table.execute(
            "CREATE TABLE files (path TEXT PRIMARY KEY, size INTEGER, mtime INTEGER, ctime INTEGER, sha256 TEXT)"
        )
        table.execute("INSERT INTO files VALUES ('a', 1, 2, 3, 'b')")


def _rows(folder):
    store = RecordStore(folder, config={"model": "a"})
    store.check()
    store.done()
    assert store.read().columns[0] == "id"


def _named_rows(folder):
    """A store whose part has the checksum of what is in it, whatever that is: the name is no proof of the content."""
    part = folder / "part.parquet"
    if part.is_file():
        part.rename(folder / f"part-000003-{file_sha256(part)[:32]}.parquet")
    _rows(folder)


def _map_store(folder):
    store = MapStore(folder)
    store.check()
    store.frame()
    assert all(np.isfinite(one).all() for one in store.maps())


def _map_store_maps(folder):
    found = open_maps(folder)
    found.load(found.ids)


def _fingerprint(folder):
    assert fingerprint(folder / "data.txt", cache=folder / "fingerprints.sqlite") == file_sha256(folder / "data.txt")


def _unpack(name):
    def call(folder):
        unpack(folder / name, folder / "out", max_bytes=2**20, max_files=50)
        assert sum(path.stat().st_size for path in (folder / "out").rglob("*") if path.is_file()) <= 2**20
        assert not any(path.is_symlink() for path in (folder / "out").rglob("*"))

    return call


def _tar(kind: str):
    def make(entries) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=f"w:{kind}") as archive:
            for entry in entries:
                info = tarfile.TarInfo(str(entry["name"]))
                info.type = {
                    "file": tarfile.REGTYPE,
                    "link": tarfile.SYMTYPE,
                    "hard": tarfile.LNKTYPE,
                    "dir": tarfile.DIRTYPE,
                    "fifo": tarfile.FIFOTYPE,
                }.get(entry["type"], tarfile.CHRTYPE)
                data = str(entry["data"]).encode("utf-8", "surrogatepass")
                info.linkname, info.size, info.mode = (
                    str(entry["to"]),
                    len(data) if info.type == tarfile.REGTYPE else 0,
                    int(entry["mode"]),
                )
                archive.addfile(info, io.BytesIO(data))
        return out.getvalue()

    return make


ENTRIES = [
    {"name": "a/b.txt", "type": "file", "data": "hello", "to": "../../outside.txt", "mode": 420},
    {"name": "a", "type": "dir", "data": "", "to": "a", "mode": 493},
    {"name": "c.txt", "type": "file", "data": "x", "to": "", "mode": 4095},
]


def _zip(entries) -> bytes:
    import warnings
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for entry in entries:
            info = zipfile.ZipInfo(str(entry["name"]))
            info.external_attr = (int(entry["mode"]) | {"link": 0o120000, "fifo": 0o10000}.get(entry["type"], 0)) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, str(entry["data"]))
    return out.getvalue()


ENTRIES_ZIP = [{**one, "name": one["name"] + "/" * (one["type"] == "dir")} for one in ENTRIES]
_HOSTILE_NAMES = st.sampled_from(
    [
        "../x",
        "/abs",
        "a/../../x",
        "..",
        ".",
        "",
        "a//b",
        "C:/x",
        "a\\..\\x",
        "a" * 300,
        "a/" * 200 + "b",
        "a\0b",
        "\ud800",
        "aux",
        "a/b.txt",
        "A/B.txt",
        "a/b.txt/c",
        "é",
        "e\u0301",
        "a.txt ",
        "-rf",
        "~",
        "\n",
    ]
)
_names = st.lists(
    st.tuples(_HOSTILE_NAMES, st.sampled_from(["file", "link", "hard", "dir", "fifo", "device"])),
    min_size=1,
    max_size=3,
)


def _named(make):
    def build(found):
        entries = [
            {"name": name, "type": kind, "data": "x", "to": "../../outside.txt", "mode": 420} for name, kind in found
        ]
        try:
            return make(entries)
        except Exception:
            return make(ENTRIES)

    return _names.map(build)


def archive(name, make, base=ENTRIES):
    return Target(
        f"archive {name}",
        {name: make(base)},
        _unpack(name),
        st.one_of(_named(make), built(base, make)).map(lambda data: {name: data}),
    )


def _torch(value) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


STATE = {"model": {"a.weight": torch.zeros(2, 3), "b": torch.ones(4)}}


def _as_state(document):
    return _torch({key: torch.tensor(value) if isinstance(value, list) else value for key, value in document.items()})


def _state(folder):
    found = read_state(next(folder.iterdir()))
    assert all(isinstance(one, torch.Tensor) for one in found.values())


CARD = {
    "name": "a-mini",
    "class": "Blip",
    "role": "explainer",
    "task": "t",
    "limits": "l",
    "supervision": "s",
    "licence": "x",
    "parameters": 3,
    "steps": 4,
    "seconds": 5,
    "block": 1,
    "tokens": "all",
    "protocol": "paper",
    "data": {"a": 1},
    "recipe": {"b": 2},
    "choice_on_val": [],
    "scores_on_test": {
        "all": [
            {"model": "trained", "metric": "pg_hit", "value": 0.5, "ci_low": 0.4, "ci_high": 0.6, "n": 5, "n_groups": 5}
        ]
    },
}
_ZOO = {
    "a-mini/model.safetensors": save({"a": np.zeros(3, np.float16)}),
    "a-mini/config.json": js({"size": 3}),
    "a-mini/vocab.txt": b"[PAD]\n[UNK]\n",
}


def _sums(files):
    import hashlib

    return {**CARD, "files": {name.split("/")[1]: hashlib.sha256(data).hexdigest() for name, data in files.items()}}


ZOO = {**_ZOO, "a-mini/card.json": js(_sums(_ZOO)), "a-mini/log.csv": b"step,loss\n1,0.5\n"}


def _zoo(folder):
    found = load_zoo("a-mini", folder)
    found.state()
    found.log()
    card_markdown(read_card(folder / "a-mini"))
    zoo_table(folder)


FEATURES = {
    "features.npy": npy(np.ones((2, 8), np.float32)),
    "norm_bb.npy": npy(np.array([[0, 0, 0.5, 0.5, 0.5, 0.5, 0.2]] * 2, np.float32)),
}


def _npz_features(folder):
    found = open_features(folder).find(["30"])
    assert np.isfinite(found.boxes_in(40, 30)).all()


def _tsv() -> bytes:
    import base64

    box, rows = (base64.b64encode(np.ones((2, n), np.float32).tobytes()).decode() for n in (4, 8))
    return f"30\t40\t30\t2\t{box}\t{rows}\n".encode()


def _tsv_features(folder):
    found = open_features(folder / "f.tsv").find(["30"])
    assert found is None or np.isfinite(found.boxes_in(40, 30)).all()


_STORE, _MAPS, _CACHE = files_of(_fill_rows), files_of(_fill_maps), files_of(_fill_cache)
_PART = next(name for name in _STORE if name.endswith("parquet"))


def _part(rows) -> bytes:
    """A part as the store writes it, of any rows."""
    from qgcam_lib.storage.files import sha256_of
    from qgcam_lib.storage.rows import _canonical, _part_bytes

    return bytes(_part_bytes(pd.DataFrame(rows), sha256_of(_canonical({"model": "a"})), []))


TARGETS = [
    Target("record store", _STORE, _rows, near(_STORE)),
    Target(
        "record store part",
        {"store.json": _STORE["store.json"], "part.parquet": _part(FRAME)},
        _named_rows,
        built(FRAME, _part).map(lambda data: {"store.json": _STORE["store.json"], "part.parquet": data}),
    ),
    Target("map store", _MAPS, _map_store, near(_MAPS)),
    Target("map store as maps", _MAPS, _map_store_maps, near(_MAPS)),
    Target(
        "fingerprint cache",
        _CACHE,
        _fingerprint,
        any_bytes(_CACHE["fingerprints.sqlite"]).map(lambda data: {**_CACHE, "fingerprints.sqlite": data}),
    ),
    archive("a.zip", _zip, ENTRIES_ZIP),
    archive("a.tar", _tar("")),
    archive("a.tar.gz", _tar("gz")),
    archive("a.tar.xz", _tar("xz")),
    archive("a.tar.bz2", _tar("bz2")),
    Target(
        "checkpoint safetensors",
        {"a.safetensors": save({"a": np.zeros(3, np.float32)})},
        _state,
        any_bytes(save({"a": np.zeros(3, np.float32)})).map(lambda data: {"a.safetensors": data}),
    ),
    Target(
        "checkpoint torch",
        {"a.pth": _torch(STATE)},
        _state,
        st.one_of(any_bytes(_torch(STATE)), built({"a": [1.0, 2.0], "b": [3.0]}, _as_state)).map(
            lambda data: {"a.pth": data}
        ),
    ),
    Target("zoo", ZOO, _zoo, near(ZOO)),
    Target(
        "features npz",
        {"30.npz": zip_bytes(FEATURES)},
        _npz_features,
        zipped(FEATURES, lambda name, data: arrays | any_bytes(data)).map(lambda data: {"30.npz": data}),
    ),
    Target("features tsv", {"f.tsv": _tsv()}, _tsv_features, near({"f.tsv": _tsv()})),
]
