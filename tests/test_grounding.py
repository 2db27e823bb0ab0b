"""`ground`: one row an example whatever breaks, the same rows after a kill, and maps scored as `score_maps` would."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from qgcam_lib.data import picture_loop
from qgcam_lib.data.catalog import load_dataset
from qgcam_lib.data.flickr30k.entities import Flickr30kEntities
from qgcam_lib.errors import ExampleError, StoreError
from qgcam_lib.grounding import ground
from qgcam_lib.metrics import SCORE_COLUMNS, score_maps
from qgcam_lib.models.registry import CentreGuess, RandomMap, UniformMap
from qgcam_lib.storage.closure import code_files
from qgcam_lib.storage.rows import RecordStore

ROOT = Path(__file__).parents[1]
PHOTOS = ROOT / ".." / "shared" / "realdata" / "photos"
N_IMAGES, N_EXAMPLES = 12, 36


def write_folder(root, n_images=N_IMAGES):
    for name in ("Sentences", "Annotations", "images"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for k in range(n_images):
        size = (48 + 4 * (k % 3), 64)
        pixels = np.random.default_rng(k).integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{k}.jpg")
        lines = ["[/EN#1/people A man] and [/EN#2/animals a dog] .", "[/EN#1/people A man] waits ."]
        (root / "Sentences" / f"{k}.txt").write_text("\n".join(lines))
        box = "<bndbox><xmin>{0}</xmin><ymin>{0}</ymin><xmax>{1}</xmax><ymax>{2}</ymax></bndbox>"
        boxes = [(name, box.format(x, x + 19 + k, x + 9)) for name, x in ((1, 5), (2, 31))]
        objects = "".join(f"<object><name>{name}</name>{text}</object>" for name, text in boxes)
        dims = f"<size><width>{size[1]}</width><height>{size[0]}</height></size>"
        (root / "Annotations" / f"{k}.xml").write_text(f"<annotation>{dims}{objects}</annotation>")
    (root / "test.txt").write_text("\n".join(map(str, range(n_images))))
    return root


@pytest.fixture
def root(tmp_path):
    return write_folder(tmp_path / "data")


class Noted(RandomMap):
    """Random maps, and a note of what was asked."""

    def __init__(self, **options):
        super().__init__(**options)
        self.asked = []

    def maps_batch(self, images, phrases_per_image):
        self.asked.append([list(phrases) for phrases in phrases_per_image])
        return super().maps_batch(images, phrases_per_image)


class OneByOne:
    """An explainer with nothing but `maps` and a card."""

    card = {"name": "one by one"}

    def maps(self, image, phrases):
        return RandomMap().maps(image, phrases)


def run(model, dataset, **options):
    return ground(model, dataset, **{"protocol": "pixel", "progress": False, **options})


# -- what comes back


def test_one_row_an_example_in_order_with_the_scores_of_score_maps(root):
    dataset, options = Flickr30kEntities(root), {"protocol": "paper", "tau": 0.6, "delta": 9, "ties": "first"}
    frame = run(RandomMap(), dataset, seed=3, **options)
    examples = list(dataset)
    assert frame.id.tolist() == [e.id for e in examples] and len(frame) == N_EXAMPLES
    maps = [RandomMap().maps(Image.open(e.image).convert("RGB"), [e.prompt])[0].numpy() for e in examples]
    sizes = np.array([e.size for e in examples])
    expected = score_maps(maps, [e.boxes for e in examples], image_sizes=sizes, **options)
    pd.testing.assert_frame_equal(frame[list(SCORE_COLUMNS)], expected[list(SCORE_COLUMNS)].astype(float))
    assert frame.image[0] == "images/0.jpg" and frame.error.isna().all() and (frame.n_boxes == 1).all()
    assert frame.box_share.between(0, 1).all() and frame.box_share[0] == pytest.approx(20 * 10 / (48 * 64))
    assert frame.attrs["dataset"]["examples"] == N_EXAMPLES and frame.attrs["problems"] == []
    assert (frame.attrs["seed"], frame.attrs["settings"]["tau"]) == (3, 0.6)
    json.dumps(frame.attrs)


def test_batch_size_and_interface_change_nothing(root):
    dataset, model = Flickr30kEntities(root), Noted()
    frames = [run(RandomMap(), dataset, batch_images=size) for size in (1, 100)]
    frames += [run(OneByOne(), dataset), run(model, dataset, batch_images=5)]
    for frame in frames[1:]:
        pd.testing.assert_frame_equal(frame, frames[0])
    assert [len(batch) for batch in model.asked] == [5, 5, 2]
    assert all(phrases == ["A man", "a dog"] for batch in model.asked for phrases in batch), "once a phrase"


def test_undefined_scores_are_not_errors(root):
    frame = run(UniformMap(), Flickr30kEntities(root), protocol="pixel")
    assert frame.io_ratio.isna().all() and frame.error.isna().all()


# -- a part of the data


def test_limit_is_exact_seeded_and_nested(root):
    dataset = Flickr30kEntities(root)
    sizes = {limit: run(CentreGuess(), dataset, limit=limit, seed=1).id.tolist() for limit in (1, 7, 20, 36, 99)}
    assert [len(found) for found in sizes.values()] == [1, 7, 20, 36, 36]
    assert set(sizes[1]) < set(sizes[7]) < set(sizes[20]) < set(sizes[36])
    everything = [e.id for e in dataset]
    for found in sizes.values():
        assert found == [id for id in everything if id in set(found)], "rows stay in the data set's order"
    assert run(CentreGuess(), dataset, limit=7, seed=2).id.tolist() != sizes[7]
    assert run(CentreGuess(), dataset, limit=0).id.tolist() == everything
    assert len({id.split("/")[0] for id in sizes[20]}) == 7, "whole pictures: six of three phrases and a part of one"


# -- stores


def test_a_store_grows_and_keeps_its_rows(root, tmp_path):
    dataset, model = Flickr30kEntities(root), Noted()
    small = run(model, dataset, limit=7, store=tmp_path / "s")
    images = sum(map(len, model.asked))
    full = run(model, dataset, store=RecordStore(tmp_path / "s"))
    again = run(model, dataset, store=tmp_path / "s")
    pd.testing.assert_frame_equal(full, run(RandomMap(), dataset))
    pd.testing.assert_frame_equal(full, again)
    assert full.set_index("id").loc[small.id].reset_index().equals(small)
    assert images == 3 and sum(map(len, model.asked)) == 3 + 10, "only the picture that was cut is asked again"
    assert run(model, dataset, limit=7, store=tmp_path / "s").equals(small)


def test_rows_of_other_code_are_never_continued(root, tmp_path, monkeypatch):
    dataset, roots = Flickr30kEntities(root), []
    true_code = picture_loop.code_fingerprint
    monkeypatch.setattr(picture_loop, "code_fingerprint", lambda *given: roots.extend(given) or true_code(*given))
    run(Noted(), dataset, limit=4, store=tmp_path / "s", save_maps=True)
    files = {path.relative_to(ROOT / "qgcam_lib").as_posix() for path in code_files(*roots)}
    assert {"data/picture_loop.py", "grounding/run.py", "metrics/kernels.py", "models/registry.py",
            "data/flickr30k/entities.py"} <= files and "phrase_detection/run.py" not in files
    monkeypatch.setattr(picture_loop, "code_fingerprint", lambda *given: "edited")
    for store in ({"store": tmp_path / "s"}, {"store": tmp_path / "new", "save_maps": tmp_path / "s-maps"}):
        with pytest.raises(StoreError, match="code"):
            run(Noted(), dataset, **store)


@pytest.mark.parametrize("change", [{"protocol": "paper"}, {"tau": 0.5}, {"ties": "first"}])
def test_a_store_of_other_settings_is_refused(root, tmp_path, change):
    dataset = Flickr30kEntities(root)
    run(CentreGuess(), dataset, limit=4, store=tmp_path / "s")
    with pytest.raises(StoreError, match="other settings"):
        run(CentreGuess(), dataset, store=tmp_path / "s", **change)
    with pytest.raises(StoreError, match="model"):
        run(CentreGuess(spread=0.3), dataset, store=tmp_path / "s")
    with pytest.raises(StoreError, match="dataset"):
        run(CentreGuess(), Flickr30kEntities(root, boxes="union"), store=tmp_path / "s")


WORKER = """
import sys, time
from qgcam_lib.data import picture_loop
from qgcam_lib.data.flickr30k.entities import Flickr30kEntities
from qgcam_lib.models.registry import RandomMap
from qgcam_lib.grounding import ground
quick = RandomMap.maps_batch
def slow(*given):
    time.sleep(float(sys.argv[3]))
    return quick(*given)
RandomMap.maps_batch = slow
picture_loop.PART_SECONDS = 0
dataset = Flickr30kEntities(sys.argv[1])
frame = ground(RandomMap(), dataset, protocol="pixel", store=sys.argv[2], batch_images=1, progress=False,
               on_error="record")
print(len(frame))
"""


@pytest.mark.nightly
def test_killed_in_the_middle_and_continued(root, tmp_path, monkeypatch):
    (root / "Annotations" / "1.xml").unlink()
    folder = tmp_path / "s"
    start = [sys.executable, "-c", WORKER, str(root), str(folder), "0.5"]
    worker = subprocess.Popen(start, cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while len(list(folder.glob("part-*.parquet"))) < 4 and time.monotonic() < deadline and worker.poll() is None:
        time.sleep(0.01)
    worker.send_signal(signal.SIGKILL)
    assert worker.wait(60) == -signal.SIGKILL, "the worker must be killed, not finished"
    kept = len(RecordStore(folder).done())
    assert 10 <= kept < N_EXAMPLES - 2
    dataset, asked, explain = Flickr30kEntities(root), [], RandomMap.maps_batch
    expected = run(RandomMap(), dataset, on_error="record")
    monkeypatch.setattr(RandomMap, "maps_batch", lambda *given: asked.append(given) or explain(*given))
    found = run(RandomMap(), dataset, store=folder, batch_images=1, on_error="record")
    pd.testing.assert_frame_equal(found, expected)
    assert len(asked) == N_IMAGES - 1 - (kept - 1) // 3, "finished pictures are not explained again"


# -- what breaks


def broken_folder(root):
    """Six pictures with one fault each; returns the words of each error by image."""
    picture, xml, text = root / "images", root / "Annotations", root / "Sentences"
    (picture / "0.jpg").write_bytes((picture / "0.jpg").read_bytes()[:900])
    (picture / "1.jpg").unlink()
    (picture / "2.jpg").write_text("429 Too Many Requests")
    bomb = '<!DOCTYPE b [<!ENTITY a "lol">]><annotation>&a;</annotation>'
    (xml / "3.xml").write_text(bomb)
    (xml / "4.xml").write_text((xml / "4.xml").read_text().replace("<name>2</name>", "<name>22</name>"))
    (text / "5.txt").write_text("[/EN#1/people A man and a dog .\n[/EN#1/people A man] waits .")
    return {"0": "cannot be decoded whole", "1": "missing", "2": "not a picture", "3": "EntitiesForbidden",
            "4": "entity 2 of the phrase 'a dog' is not in this file", "5": "sentence 0: a bracket is never closed"}


def test_each_broken_file_is_a_row_and_the_rest_is_scored(root):
    words = broken_folder(root)
    dataset = Flickr30kEntities(root)
    frame = run(RandomMap(), dataset, on_error="record", batch_images=4)
    lost = frame[frame.error.notna()]
    assert lost.id.tolist() == ["0/0/0", "0/0/1", "0/1/0", "1/0/0", "1/0/1", "1/1/0", "2/0/0", "2/0/1", "2/1/0", "3/*",
                                "4/0/1", "5/0/*"]
    assert all(words[row.group] in row.error for row in lost.itertuples())
    assert lost[list(SCORE_COLUMNS)].isna().all(axis=None)
    fine = frame[frame.error.isna()]
    assert len(fine) == 18 + 2 + 1 and fine.io_ratio.notna().all()
    assert [problem["id"] for problem in frame.attrs["problems"]] == lost.id.tolist()
    with pytest.raises(ExampleError, match=words["0"]):
        run(RandomMap(), dataset)


def test_recorded_failures_are_kept_in_the_store(root, tmp_path):
    broken_folder(root)
    dataset = Flickr30kEntities(root)
    first = run(Noted(), dataset, on_error="record", store=tmp_path / "s")
    model = Noted()
    size = len(RecordStore(tmp_path / "s").parts())
    second = run(model, dataset, on_error="record", store=tmp_path / "s")
    pd.testing.assert_frame_equal(first, second)
    assert model.asked == [] and len(RecordStore(tmp_path / "s").parts()) == size, "the same failure is no news"
    assert RecordStore(tmp_path / "s").done() == set(first.id)


def test_a_failure_is_asked_again_and_the_newer_row_counts(root, tmp_path):
    (root / "Sentences" / "6.txt").write_text("[/EN#1/people A man] and [/EN#2/animals a cat] .")
    dataset, model = Flickr30kEntities(root), Picky()
    run(model, dataset, on_error="record", store=tmp_path / "s")
    model.refused, model.asked = "", []
    found = run(model, dataset, store=tmp_path / "s")
    assert model.asked == [["a cat"]] and found.error.isna().all() and found.attrs["problems"] == []
    pd.testing.assert_frame_equal(found, run(RandomMap(), dataset))
    kept = RecordStore(tmp_path / "s").read()
    assert set(kept.id) == set(found.id) and kept.error.isna().all()


def test_a_picture_that_was_exchanged_is_refused(root, tmp_path):
    examples = list(Flickr30kEntities(root))
    run(RandomMap(), examples, store=tmp_path / "s")
    Image.new("RGB", (64, 52)).save(root / "images" / "1.jpg")
    with pytest.raises(StoreError, match="1.jpg had .* bytes; this file now has"):
        run(RandomMap(), examples, store=tmp_path / "s")


class Picky(RandomMap):
    """A model that cannot explain one phrase, as a tokenizer may not, and gives a NaN or too little for others."""

    refused, asked = "a cat", []

    def maps(self, image, phrases):
        if self.refused in phrases:
            raise RuntimeError("token 7 is out of range")
        self.asked.append(list(phrases))
        maps = super().maps(image, phrases)
        if "a horse" in phrases:
            maps[phrases.index("a horse"), 3, 3] = float("nan")
        return maps[:-1] if "a bird" in phrases else maps


@pytest.mark.parametrize("thing, error, said", [("cat", RuntimeError, "token 7"), ("horse", ValueError, "NaN"),
                                                ("bird", ValueError, "a map for each phrase")])
def test_a_model_that_fails_costs_its_own_example_only(root, thing, error, said):
    (root / "Sentences" / "6.txt").write_text(f"[/EN#1/people A man] and [/EN#2/animals a {thing}] .")
    dataset = Flickr30kEntities(root)
    with pytest.raises(error, match=said):
        run(Picky(), dataset)
    if thing != "bird":
        frame = run(Picky(), dataset, on_error="record")
        lost = frame[frame.error.notna()]
        assert lost.id.tolist() == ["6/0/1"] and said in lost.error.iloc[0]
        assert frame[frame.id != "6/0/1"].io_ratio.notna().all()


def test_memory_errors_are_never_recorded(root):
    class OutOfMemoryError(RuntimeError):
        pass

    class Full(RandomMap):
        def maps(self, image, phrases):
            raise OutOfMemoryError("8 GiB wanted")

    with pytest.raises(OutOfMemoryError):
        run(Full(), Flickr30kEntities(root), on_error="record")


def test_examples_without_boxes(root):
    examples = list(Flickr30kEntities(root))
    dataset = [replace(one, boxes=np.empty((0, 4))) if one.id == "3/0/0" else one for one in examples]
    dataset.append(replace(examples[0], id="other", size=(24, 32)))  # its picture is of another size
    frame = run(RandomMap(), dataset, on_error="record").set_index("id")
    assert "no boxes" in frame.error["3/0/0"] and frame.n_boxes["3/0/0"] == 0 and np.isnan(frame.box_share["3/0/0"])
    assert "32 x 24" in frame.error["other"] and frame.error.notna().sum() == 2
    with pytest.raises(ExampleError, match="example 3/0/0.*no boxes"):
        run(RandomMap(), dataset[:-1])
    assert len(run(RandomMap(), [])) == 0


@pytest.mark.parametrize("option", [{"on_error": "ignore"}, {"limit": -1}, {"batch_images": 0}, {"protocol": "papr"}])
def test_wrong_options_are_named(root, option):
    with pytest.raises(ValueError, match=next(iter(option))):
        run(RandomMap(), Flickr30kEntities(root), **option)


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="no real photographs (../shared/realdata/photos)")
def test_real_photographs_from_folder_to_frame():
    frame = run(CentreGuess(), load_dataset(PHOTOS, boxes="union"), protocol="paper")
    assert len(frame) == 23 and frame.error.isna().all() and frame[list(SCORE_COLUMNS)].notna().all(axis=None)
    hits = frame.set_index("id").pg_hit
    assert hits["185590/0/0"] == 1 and hits["324266/0/3"] == 0  # the giraffe stands in the middle, the bathtub does not
