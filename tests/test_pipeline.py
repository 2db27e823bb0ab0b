"""The loop over pictures as a pipeline: the rows of a plain loop, few operations and waits, memory that runs out."""

import gc
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

from qgcam_lib.data import picture_loop
from qgcam_lib.data.picture_loop import Query, ask_pictures
from qgcam_lib.data.records import GroundingExample
from qgcam_lib.grounding import ground
from qgcam_lib.models.common.device import prepare_image, prepare_images
from qgcam_lib.models.registry import CentreGuess, load_model
from qgcam_lib.storage.rows import RecordStore

RNG = np.random.default_rng(0)
PICTURES = [Image.fromarray(RNG.integers(0, 255, (40 + k, 60, 3), dtype=np.uint8)) for k in range(32)]
WORDS = "the a red blue dog man ball left right of on grass".split()
PHRASES = [[" ".join(RNG.choice(WORDS, RNG.integers(1, 5))) for _ in range(14 if k else 0)] for k in range(32)]
VIEWS = ("view", "_unsafe_view", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice", "select",
         "split", "detach", "alias")


class Operations(TorchDispatchMode):
    """Counts what torch is asked to compute, by name."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["blip-base", "albef-amc"])
def test_a_batch_takes_few_operations_and_gives_the_maps_of_one_by_one(name):
    model = load_model(name, batch_size=32)
    with Operations() as counted:
        found = model.maps_batch(PICTURES, PHRASES)
    assert sum(n for key, n in counted.seen.items() if key not in VIEWS) / 32 < 20
    assert sum(counted.seen[key] for key in ("nonzero", "item", "_local_scalar_dense", "is_nonzero")) <= 2
    model.batch_size = 8  # one by one, as on every CPU where nothing else is said
    for one, other in zip(model.maps_batch(PICTURES[:6], PHRASES[:6]), found):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.max()) if len(other) else 0)


def test_a_pass_has_a_bounded_number_of_phrases(monkeypatch):
    from qgcam_lib.models.blip import explainer

    model = load_model("blip-base", batch_size=32)
    whole = model.maps_batch(PICTURES[:9], PHRASES[:9])
    monkeypatch.setattr(explainer, "MOST_PHRASES", 30)
    passes, tokenize = [], type(model).tokenize
    monkeypatch.setattr(type(model), "tokenize", lambda *given: passes.append(len(given[1])) or tokenize(*given))
    for one, other in zip(model.maps_batch(PICTURES[:9], PHRASES[:9]), whole):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert passes == [14, 28, 28, 28, 14] and model.maps_batch(PICTURES[:9], [[]] * 9)[8].shape == (0, 8, 8)


def test_pictures_prepared_together_or_ahead_are_the_same_bytes():
    alone = torch.stack([prepare_image(picture, 48) for picture in PICTURES[:5]])
    assert torch.equal(prepare_images(PICTURES[:5], 48), alone)
    model = load_model("blip-base")
    ahead = [model.shrink(picture) for picture in PICTURES[:5]]
    assert torch.equal(prepare_images(ahead, 96), prepare_images(PICTURES[:5], 96))


# ------------------------------------------------------------------------------------------------------------ the loop


@pytest.fixture
def asked(tmp_path):
    for k in range(20):
        PICTURES[k].save(tmp_path / f"{k}.png")
    items = [Query(f"{k}/{j}", str(k), f"{k}.png", tmp_path / f"{k}.png", what=j) for k in range(20) for j in range(3)]
    return [*items, Query("lost", "lost", "lost.png", tmp_path / "lost.png", what=0)]


def bright(model, pictures, whats):
    model.sizes.append(len({id(picture) for picture in pictures}))
    if len(pictures) > model.room:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return [{"value": float(np.asarray(picture, float).mean()) + what} for picture, what in zip(pictures, whats)]


def run(asked, ask=bright, room=999, **options):
    model = SimpleNamespace(card={"name": "bright"}, sizes=[], room=room)
    frame = ask_pictures(model, asked, ask, {"value": "float64"}, dataset={"name": "d"}, settings={}, progress=False,
                         on_error="record", **options)
    return frame, model.sizes


def test_rows_and_stores_are_those_of_a_plain_loop(asked, tmp_path, monkeypatch):
    plain = [np.asarray(Image.open(one.path), float).mean() + one.what for one in asked[:-1]]
    frames = [run(asked, batch_images=size, store=tmp_path / f"s{size}")[0] for size in (1, 8, 64)]
    halves = run(asked, lambda model, pictures, whats: [float(np.asarray(one, float).mean()) for one in pictures],
                 finish=lambda means, whats: [{"value": mean + what} for mean, what in zip(means, whats)])[0]
    for frame in (*frames, halves):
        pd.testing.assert_frame_equal(frame, frames[0])
    np.testing.assert_array_equal(frames[0].value[:-1], plain)
    assert "missing" in frames[0].error.iloc[-1] and len(RecordStore(tmp_path / "s1").parts()) == 1
    assert list(RecordStore(tmp_path / "s1").read().id) == [one.id for one in asked]
    monkeypatch.setattr(picture_loop, "PART_ROWS", 12)
    run(asked, batch_images=2, store=tmp_path / "parts")
    parts = RecordStore(tmp_path / "parts").parts()
    assert len(parts) == 6 and set(RecordStore(tmp_path / "parts").done()) == {one.id for one in asked}
    looks, look = [], picture_loop.file_length
    monkeypatch.setattr(picture_loop, "file_length", lambda path: looks.append(path.name) or look(path))
    backwards, sizes = run(asked[::-1], store=tmp_path / "parts")
    pd.testing.assert_frame_equal(backwards[::-1].reset_index(drop=True), frames[0])
    assert not sizes and sorted(looks) == sorted({one.image for one in asked})  # each file is looked at once


def test_memory_that_runs_out_halves_the_batch_once(asked):
    with pytest.warns(UserWarning, match="the batch size is now 4 images"):
        frame, sizes = run(asked, room=12, batch_images=8)
    assert sizes == [8, *[4] * 5] and frame.attrs["batch_halved_to"] == 4
    pd.testing.assert_frame_equal(frame, run(asked)[0])
    assert "batch_halved_to" not in run(asked)[0].attrs
    with pytest.warns(UserWarning), pytest.raises(torch.OutOfMemoryError):
        run(asked, room=9, batch_images=8)


def test_what_was_found_before_an_error_is_kept(asked, tmp_path):
    def stops(model, pictures, whats):
        if len(model.sizes) == 3:
            raise KeyboardInterrupt
        return bright(model, pictures, whats)

    with pytest.raises(KeyboardInterrupt):
        run(asked, stops, batch_images=2, store=tmp_path / "s")
    assert len(RecordStore(tmp_path / "s").done()) == 18


class Endless:
    """150 pictures with three examples each, made anew whenever they are read."""

    name, split, is_miniworld, problems = "endless", "all", False, []

    def __init__(self, folder):
        self.root = folder
        for k in range(150):
            PICTURES[0].save(folder / f"{k}.png")

    def images(self):
        return [str(k) for k in range(150)]

    def read_image(self, image_id):
        picture = self.root / f"{image_id}.png"
        return [GroundingExample(f"{image_id}/{j}", picture, f"thing {j}", [[1, 1, 9, 9]], image_id, (40, 60))
                for j in range(3)], []

    def describe(self):
        return {"name": self.name, "split": self.split, "fingerprint": "1"}


class Counting(CentreGuess):
    alive = 0

    def maps_batch(self, images, phrases_per_image):
        type(self).alive = max(self.alive, sum(type(one) is GroundingExample for one in gc.get_objects()))
        return super().maps_batch(images, phrases_per_image)


def test_examples_are_in_memory_only_around_their_batch(tmp_path):
    dataset = Endless(tmp_path)
    gc.collect()
    frame = ground(Counting(), dataset, store=tmp_path / "s", batch_images=8, progress=False)
    assert len(frame) == 450 and Counting.alive < 250  # two batches ahead, two behind, and those that other tests keep
    half = ground(Counting(), dataset, limit=225, store=tmp_path / "t", progress=False)
    assert len(half) == 225
    pd.testing.assert_frame_equal(ground(Counting(), dataset, store=tmp_path / "t", progress=False), frame)
