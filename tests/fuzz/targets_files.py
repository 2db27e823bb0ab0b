"""Stores, checkpoints and the zoo, on damaged and hostile files."""

import hashlib
import io
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from harness import Target
from hypothesis import strategies as st
from inputs import any_bytes, built, js, near
from safetensors.numpy import save
from targets_scores import FRAME, MAPS

from qgcam_lib.grounding.map_files import open_maps
from qgcam_lib.models.common.checkpoints import read_state
from qgcam_lib.models.common.zoo import load_zoo
from qgcam_lib.storage.rows import MapStore, RecordStore

# ---------------------------------------------------------------- stores


def files_of(make) -> dict[str, bytes]:
    """The files that `make(folder)` writes, by name."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(Path(folder).rglob("*"))
                if path.is_file()}


def fill_rows(folder):
    store = RecordStore(folder, config={"model": "a"})
    store.append(pd.DataFrame(FRAME[:3]))
    store.append(pd.DataFrame(FRAME[3:]))


def fill_maps(folder):
    MapStore(folder, config={"model": "a"}).append(list(MAPS), list(MAPS.values()))


def read_rows(folder):
    store = RecordStore(folder, config={"model": "a"})
    store.done()
    assert store.read().columns[0] == "id"


def read_maps(folder):
    store = MapStore(folder)
    assert all(np.isfinite(one).all() for one in store.maps())


def load_maps(folder):
    found = open_maps(folder)
    found.load(found.ids)


# ---------------------------------------------------------------- checkpoints and the zoo


def torch_bytes(value) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def state_of(document) -> bytes:
    return torch_bytes({key: torch.tensor(value) if isinstance(value, list) else value
                        for key, value in document.items()})


def read_weights(folder):
    found = read_state(next(folder.iterdir()))
    assert all(isinstance(one, torch.Tensor) for one in found.values())


STATE = torch_bytes({"model": {"a.weight": torch.zeros(2, 3), "b": torch.ones(4)}})
WEIGHTS = {"model.safetensors": save({"a": np.zeros(3, np.float16)}), "config.json": js({"size": 3}),
           "vocab.txt": b"[PAD]\n[UNK]\n"}
SCORE = {"model": "trained", "metric": "pg_hit", "value": 0.5, "ci_low": 0.4, "ci_high": 0.6, "n": 5, "n_groups": 5}
CARD = {"name": "a-mini", "class": "Blip", "role": "explainer", "task": "t", "limits": "l", "supervision": "s",
        "licence": "x", "parameters": 3, "steps": 4, "seconds": 5, "block": 1, "tokens": "all", "protocol": "paper",
        "data": {"a": 1}, "recipe": {"b": 2}, "choice_on_val": [], "scores_on_test": {"all": [SCORE]},
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in WEIGHTS.items()}}
ZOO = {**{f"a-mini/{name}": data for name, data in WEIGHTS.items()}, "a-mini/card.json": js(CARD)}


def zoo(folder):
    found = load_zoo("a-mini", folder)
    found.state()


STORE, MAP_STORE = files_of(fill_rows), files_of(fill_maps)
TARGETS = [
    Target("record store", STORE, read_rows, near(STORE)),
    Target("map store", MAP_STORE, read_maps, near(MAP_STORE)),
    Target("map store as maps", MAP_STORE, load_maps, near(MAP_STORE)),
    Target("checkpoint safetensors", {"a.safetensors": save({"a": np.zeros(3, np.float32)})}, read_weights,
           near({"a.safetensors": save({"a": np.zeros(3, np.float32)})})),
    Target("checkpoint torch", {"a.pth": STATE}, read_weights,
           st.one_of(any_bytes(STATE), built({"a": [1.0, 2.0], "b": [3.0]}, state_of)).map(
               lambda data: {"a.pth": data})),
    Target("zoo", ZOO, zoo, near(ZOO)),
]
