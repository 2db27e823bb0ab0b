"""Runs of a detector over TRICD: in any order, with bad pictures and bad detectors."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qgcam_lib.data.picture_loop import choose_groups
from qgcam_lib.data.tricd.pairs import load_tricd
from qgcam_lib.errors import ExampleError, StoreError
from qgcam_lib.models.roles import Detections
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.prediction_files import Predictions, write_predictions
from qgcam_lib.phrase_detection.run import asked_checksum, detect_phrases, predictions_for, take_groups
from qgcam_lib.storage.rows import RecordStore

ROOT = Path(__file__).parents[1]
N_GROUPS = 5


def write_tricd(folder, n_groups=N_GROUPS):
    """n groups of four pairs about two phrases, with pictures of different noise; returns the annotation's path."""
    (folder / "pictures").mkdir(parents=True)
    rng, images, boxes = np.random.default_rng(0), [], []
    for group in range(n_groups):
        captions = [f"a cat {word} a dog {group}" for word in ("behind", "under")]
        for side in (0, 1):
            file, size = f"{group}_{side}.png", (30 + group, 40)
            Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(folder / "pictures" / file)
            for k, caption in enumerate(captions):
                id, spans = 100 * k + 2 * group + side + 1, [[[0, 5]], [[caption.index("a dog"), len(caption)]]]
                record = {"id": id, "file_name": file, "caption": caption, "source": "coco_val2017"}
                record |= {"coco_type": "relation", "positive": k == side, "original_id": f"{group}_{side}"}
                record |= {"height": size[0], "width": size[1], "phrases": {"7": spans[0], "9": spans[1]}}
                images.append(record)
                for phrase in (7, 9) if k == side else ():
                    place = [*rng.uniform(0, 10, 2), *rng.uniform(5, 15, 2)]
                    boxes.append({"id": len(boxes), "image_id": id, "phrase_id": phrase, "bbox": place})
    (folder / "tricd.json").write_text(json.dumps({"images": images, "annotations": boxes}))
    return folder / "tricd.json"


class Hashing:
    """Boxes that depend on the picture, the caption and the spans only; it notes what it was asked."""

    def __init__(self, n=6, name="hashing", fails=()):
        self.card, self.n, self.asked, self.fails = {"name": name, "n": n}, n, [], fails

    def detect(self, image, caption, phrases):
        if caption in self.fails:
            raise RuntimeError("token 7 is out of range")
        self.asked.append((image, caption))
        ends = [end for spans in phrases for span in spans for end in span]
        seed = int(np.asarray(image, np.int64).sum()) + sum(map(ord, caption)) + sum(ends)
        rng = np.random.default_rng(seed)
        corner = rng.uniform(0, 20, (self.n, 2))
        boxes = np.hstack([corner, corner + rng.uniform(1, 10, (self.n, 2))])
        return Detections(rng.normal(size=self.n), boxes, rng.integers(0, len(phrases), self.n))


class Batched(Hashing):
    """The same, several pairs at once."""

    def detect_batch(self, images, captions, phrases_per_image):
        return [self.detect(*asked) for asked in zip(images, captions, phrases_per_image)]


@pytest.fixture
def root(tmp_path):
    write_tricd(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def data(root):
    return load_tricd(root / "tricd.json")


def run(detector, data, root, **options):
    return detect_phrases(detector, data, root / "pictures", progress=False, **options)


def same(a, b):
    assert list(a) == list(b)
    for id in a:
        for name in ("scores", "boxes", "phrase_ids"):
            assert a[id][name].dtype == b[id][name].dtype
            np.testing.assert_array_equal(a[id][name], b[id][name])


# -- what comes out


def test_predictions_are_what_the_detector_said_and_can_be_scored(root, data):
    found = run(Hashing(), data, root)
    assert list(found) == data.pair_ids.tolist() and isinstance(found, Predictions)
    for pair in data.pairs:
        picture = Image.open(root / "pictures" / pair.file_name).convert("RGB")
        said = Hashing().detect(picture, pair.caption, [phrase.spans for phrase in pair.phrases])
        order = np.argsort(-said.scores)
        np.testing.assert_array_equal(found[pair.id]["scores"], said.scores[order])
        np.testing.assert_array_equal(found[pair.id]["boxes"], said.boxes[order])
        np.testing.assert_array_equal(found[pair.id]["phrase_ids"], np.array([7, 9])[said.phrases[order]])
    plain = {str(id): {name: a.tolist() for name, a in each.items()} for id, each in found.items()}
    left, right = evaluate(data, found), evaluate(data, json.loads(json.dumps(plain)))
    assert left.value.equals(right.value) and left.value.notna().any()


def test_a_picture_is_opened_once_for_all_its_captions(root, data):
    model = Hashing()
    run(model, data, root)
    assert len(model.asked) == len(data) == 4 * N_GROUPS
    assert len({id(image) for image, _ in model.asked}) == 2 * N_GROUPS


@pytest.mark.parametrize("batch_images", [1, 3, 100])
def test_batches_and_the_files_order_change_nothing(root, data, batch_images, tmp_path):
    expected = run(Hashing(), data, root)
    same(run(Batched(), data, root, batch_images=batch_images), expected)
    content = json.loads((root / "tricd.json").read_text())
    for key in ("images", "annotations"):
        content[key] = content[key][::-1]
    (tmp_path / "turned.json").write_text(json.dumps(content))
    same(run(Hashing(), load_tricd(tmp_path / "turned.json"), root, batch_images=batch_images), expected)


def test_only_the_best_boxes_are_kept(root, data, tmp_path):
    whole, few = run(Hashing(50), data, root), run(Hashing(50), data, root, max_boxes=3, store=tmp_path / "s")
    for id, each in few.items():
        assert (np.diff(each["scores"]) <= 0).all()
        for phrase in np.unique(whole[id]["phrase_ids"]):  # three of each phrase, so that no weak phrase goes without
            best = np.sort(whole[id]["scores"][whole[id]["phrase_ids"] == phrase])[::-1][:3]
            np.testing.assert_array_equal(each["scores"][each["phrase_ids"] == phrase], best)
    with pytest.raises(StoreError, match="max_boxes is 3 in the store and 4 now"):
        run(Hashing(50), data, root, max_boxes=4, store=tmp_path / "s")
    with pytest.raises(ValueError, match="max_boxes: expected at least 1"):
        run(Hashing(), data, root, max_boxes=0)


def test_a_silent_detector_has_entries_without_boxes(root, data, tmp_path):
    for _ in range(2):  # once made, once read from the store
        found = run(Hashing(0), data, root, store=tmp_path / "s")
        assert len(found) == len(data)
        assert all(each["boxes"].shape == (0, 4) and each["phrase_ids"].dtype == np.int64 for each in found.values())
    assert evaluate(data, found).query("metric == 'AP'").value.max() == 0


# -- limits


def test_a_limit_takes_whole_groups_and_a_larger_one_contains_it(root, data):
    few, more = take_groups(data, 2, seed=1), take_groups(data, 4, seed=1)
    assert len(few) == 8 and set(few.group_names) < set(more.group_names)
    found = run(Hashing(), data, root, limit=2, seed=1)
    assert list(found) == few.pair_ids.tolist()
    assert (found.attrs["limit"], found.attrs["seed"]) == (2, 1)
    assert len(take_groups(data, 0)) == len(take_groups(data, 99)) == len(data)
    assert len({tuple(choose_groups(data.group_names, 2, seed)) for seed in range(20)}) > 3
    scores = evaluate(few, found)
    assert scores[scores.metric == "group_recall@1"].value.notna().any(), "whole groups: group recall is defined"
    with pytest.raises(ValueError, match="limit: expected 0 or more"):
        run(Hashing(), data, root, limit=-1)


# -- resuming


def test_a_larger_limit_continues_a_smaller_one(root, data, tmp_path):
    first, second = Hashing(), Hashing()
    run(first, data, root, limit=2, store=tmp_path / "s")
    found = run(second, data, root, store=tmp_path / "s", batch_images=3)
    assert (len(first.asked), len(second.asked)) == (8, 4 * N_GROUPS - 8)
    same(found, run(Hashing(), data, root))


def test_a_store_belongs_to_one_model_one_question_and_its_pictures(root, data, tmp_path):
    run(Hashing(), data, root, store=tmp_path / "s", limit=2)
    with pytest.raises(StoreError, match="model"):
        run(Hashing(name="another"), data, root, store=tmp_path / "s")
    pairs = (replace(data.pairs[0], caption="a cat behind a cow 0"), *data.pairs[1:])
    with pytest.raises(StoreError, match="dataset"):
        run(Hashing(), replace(data, pairs=pairs), root, store=tmp_path / "s")
    truth = [replace(phrase, boxes=((0.0, 0.0, 9.0, 9.0),)) for phrase in data.pairs[0].phrases]
    corrected = replace(data, pairs=(replace(data.pairs[0], phrases=tuple(truth)), *data.pairs[1:]))
    assert asked_checksum(corrected) == asked_checksum(data)
    model = Hashing()
    run(model, corrected, root, store=tmp_path / "s", limit=2)
    assert model.asked == [], "another truth, the same predictions"
    picture = root / "pictures" / take_groups(data, 2).pairs[0].file_name
    Image.new("RGB", (40, 30)).save(picture)
    with pytest.raises(StoreError, match=picture.name):
        run(Hashing(), data, root, store=tmp_path / "s")
    picture.unlink()
    with pytest.raises(StoreError, match="missing"):
        run(Hashing(), data, root, store=tmp_path / "s")


# -- what breaks


def break_pictures(root):
    """Five pictures with a fault each; returns the words of each error by file name."""
    folder = root / "pictures"
    whole = (folder / "0_0.png").read_bytes()
    (folder / "0_0.png").write_bytes(whole[: len(whole) // 2])
    (folder / "0_1.png").unlink()
    (folder / "1_0.png").write_text("429 Too Many Requests")
    (folder / "1_1.png").write_bytes(b"")
    Image.new("RGB", (41, 32)).save(folder / "2_0.png")
    return {"0_0.png": "cannot be decoded whole", "0_1.png": "missing", "1_0.png": "not a picture", "1_1.png": "empty",
            "2_0.png": "the annotation says 40 x 32"}


def test_bad_pictures_are_recorded_and_counted_one_by_one(root, data, tmp_path):
    words = break_pictures(root)
    model = Batched()
    found = run(model, data, root, on_error="record", store=tmp_path / "s")
    errors = found.attrs["problems"]
    lost = {pair.id for pair in data.pairs if pair.file_name in words}
    assert len(errors) == len(lost) == 10 and {int(error["id"]) for error in errors} == lost
    assert all(words[error["image"]] in error["error"] for error in errors)
    assert not any(str(root) in error["error"] for error in errors)
    assert set(found) == set(data.pair_ids.tolist()) - lost
    stored = RecordStore(tmp_path / "s").read()
    assert set(stored.id[stored.error.isna()]) == {str(id) for id in found} and len(stored) == len(data)


@pytest.mark.parametrize("kind", [Hashing, Batched])
def test_a_pair_on_which_the_detector_fails_costs_only_itself(root, data, kind):
    caption = data.pairs[0].caption
    with pytest.raises(RuntimeError, match="token 7"):
        run(kind(fails=[caption]), data, root)
    found = run(kind(fails=[caption]), data, root, on_error="record", batch_images=3)
    lost = [pair.id for pair in data.pairs if pair.caption == caption]
    assert [int(error["id"]) for error in found.attrs["problems"]] == lost and len(found) == len(data) - len(lost)
    same(found, {id: each for id, each in run(Hashing(), data, root).items() if id not in lost})


class Wrong(Hashing):
    """A detector that answers amiss."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def detect(self, image, caption, phrases):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Detections([0.5], [[0, 0, 1, 1]], [2]), "expected phrase indices 0 to 1"),
        ({"scores": [], "boxes": [], "phrase_ids": []}, "expected Detections"),
        (None, "expected Detections"),
    ],
)
def test_answers_about_other_phrases_are_refused(root, data, answer, text):
    with pytest.raises(ValueError, match=text):
        run(Wrong(answer), data, root)


def test_pictures_may_lie_in_several_folders_and_names_may_not_leave_them(root, data, tmp_path):
    expected = run(Hashing(), data, root)
    (tmp_path / "more").mkdir()
    (root / "pictures" / "0_0.png").rename(tmp_path / "more" / "0_0.png")
    same(detect_phrases(Hashing(), data, [root / "pictures", tmp_path / "more"], progress=False), expected)
    bad = replace(data, pairs=(replace(data.pairs[0], file_name="../more/0_0.png"),))
    with pytest.raises(ExampleError, match="plain file name"):
        run(Hashing(), bad, root)


# -- a name or a file


def test_a_file_gives_what_the_run_gave(root, data, tmp_path):
    found = run(Hashing(), data, root)
    path = write_predictions(tmp_path / "found.json", found)
    read = predictions_for(f"predictions:{path}", data)
    assert isinstance(read, Predictions)
    same(read, found)
    assert evaluate(data, read).value.equals(evaluate(data, found).value)
    some = predictions_for(f"predictions:{path}", data, limit=2, seed=5)
    assert list(some) == take_groups(data, 2, seed=5).pair_ids.tolist()
    assert some.attrs["model"] == {"name": "predictions:found.json", "weights": "tricd"}
    with pytest.raises(FileNotFoundError, match="lost.json"):
        predictions_for(f"predictions:{tmp_path / 'lost.json'}", data)


def test_a_name_loads_a_detector_and_nothing_else(root, data, monkeypatch):
    from qgcam_lib.models import named
    from qgcam_lib.models.registry import MODELS, ModelEntry

    monkeypatch.setitem(MODELS, "hashing", ModelEntry("hashing", role="detector"))
    asked = []
    monkeypatch.setattr(named, "load_model", lambda *a, **k: asked.append((a, k)) or Hashing())
    found = predictions_for("hashing", data, root / "pictures", weights="random", seed=3, limit=2,
                            model_options={"threshold": 0.0}, progress=False)
    given = {"seed": 3, "precision": None, "batch_size": None, "threshold": 0.0}
    assert asked == [(("hashing", "random", None), given)]
    same(found, run(Hashing(), data, root, limit=2, seed=3))
    with pytest.raises(ValueError, match="'blip-base' is an explainer.* hashing"):
        predictions_for("blip-base", data, root / "pictures")
    with pytest.raises(ValueError, match="images: expected the folder"):
        predictions_for("hashing", data)
    with pytest.raises(ValueError, match="Did you mean 'hashing'"):
        predictions_for("hashin", data, root / "pictures")
