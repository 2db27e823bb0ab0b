"""Regions: where boxes lie, what crops look like to a network, kept features, and files of precomputed ones."""

import base64
import io
import pickle
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from qgcam_lib.errors import ExampleError, FormatError, SourceError, StoreError
from qgcam_lib.models.clip.network import build_clip, word_vocabulary
from qgcam_lib.models.common.images import MEAN, STD, cut_box
from qgcam_lib.models.dual.matcher import DualMatcher
from qgcam_lib.models.regions.encoders import CropEncoder, KeptEncoder, load_encoder, load_resnet
from qgcam_lib.models.regions.feature_files import TSV_COLUMNS, FileEncoder, read_lmdb_value
from qgcam_lib.models.regions.geometry import box_geometry, candidate_boxes
from qgcam_lib.models.roles import RegionEncoder, RegionRanker, as_ranker

SIZES = {"embed_dim": 32,
         "vision_cfg": {"layers": 2, "width": 48, "patch_size": 16, "image_size": 64, "head_width": 12},
         "text_cfg": {"context_length": 16, "width": 32, "heads": 2, "layers": 1}}
TEXTS = ["the red ball", "a dog to the left of the ball", "the leftmost dog", "the ball under the big chair"]
BOXES = np.array([[4.0, 6, 40.5, 50], [30, 10, 80, 44.2], [0, 0, 90, 60], [70, 30, 95, 60]])


def picture(seed=0, size=(90, 60)):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3), np.uint8))


def tiny_clip(seed=1):
    clip = build_clip(SIZES, word_vocabulary([*TEXTS, "a photo of chair"]), seed=seed)
    return DualMatcher("clip", clip.model, clip.tokenize, card={"name": "tiny", "weights": "random"})


# --- geometry ---------------------------------------------------------------------------------------------------------

corner = st.floats(0, 1, exclude_max=True)
share = st.tuples(corner, corner, st.floats(0.01, 1), st.floats(0.01, 1))


@settings(max_examples=60, deadline=None)
@given(st.lists(share, min_size=1, max_size=6), st.integers(2, 900), st.integers(2, 900), st.floats(0.5, 8))
def test_geometry_is_shares_of_the_picture(shares, width, height, zoom):
    boxes = np.array([[x * width, y * height, (x + w) * width, (y + h) * height] for x, y, w, h in shares])
    found = box_geometry(boxes, (width, height))
    assert found.shape == (len(boxes), 5) and found.dtype == np.float32
    assert (found >= 0).all() and (found <= 1).all() and (found[:, :2] <= found[:, 2:4]).all()
    np.testing.assert_allclose(found[:, 4], (found[:, 2] - found[:, 0]) * (found[:, 3] - found[:, 1]), atol=1e-6)
    np.testing.assert_allclose(box_geometry(boxes * zoom, (width * zoom, height * zoom)), found, atol=1e-6)
    mirrored = np.c_[width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]]
    mirrored = box_geometry(np.clip(mirrored, 0, [width, height] * 2), (width, height))
    np.testing.assert_allclose(mirrored[:, [0, 2, 4]], np.c_[1 - found[:, 2], 1 - found[:, 0], found[:, 4]], atol=1e-6)


def test_boxes_that_are_no_candidates_are_refused():
    for boxes, says in (([[5, 5, 5, 9]], "x0 < x1"), ([[np.nan, 0, 1, 1]], "finite"), ([[1, 2, 3]], "shape"),
                        ([[200, 0, 210, 5]], "wholly outside"), ([[-9, 0, -1, 5]], "wholly outside")):
        with pytest.raises(ValueError, match=says):
            candidate_boxes(boxes, (90, 60))
    with pytest.raises(ValueError, match="size: expected"):
        candidate_boxes([[0, 0, 1, 1]], (0, 60))
    assert candidate_boxes(BOXES, (90, 60)).max() == 90 and BOXES.max() == 95  # the argument stays


# --- crops through networks -------------------------------------------------------------------------------------------

def test_clip_features_equal_open_clips_own_forward_crop_by_crop():
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor

    clip, image = tiny_clip(), picture()
    theirs = Compose([Resize(64, InterpolationMode.BICUBIC), CenterCrop(64), ToTensor(), Normalize(MEAN, STD)])
    expected = []
    for x0, y0, x1, y1 in candidate_boxes(BOXES, image.size):
        crop = image.crop((int(x0), int(y0), int(np.ceil(x1)), int(np.ceil(y1))))
        with torch.no_grad():
            vector = clip.model.encode_image(theirs(crop)[None])[0]
        expected.append((vector / vector.norm()).numpy())
    np.testing.assert_allclose(CropEncoder(clip, margin=0).encode(image, BOXES), expected, atol=1e-5)


def test_resnet_features_equal_torchvisions_own_forward_crop_by_crop():
    from torchvision.models import resnet50

    images, image = load_resnet("random", seed=5, size=64, batch=3), picture()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        network = resnet50(weights=None).eval()
    network.fc = torch.nn.Identity()
    expected = []
    for box in candidate_boxes(BOXES, image.size):
        crop = cut_box(image, box, 0.4).resize((64, 64), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.asarray(crop, np.float32) / 255).permute(2, 0, 1)
        pixels = (pixels - torch.tensor([0.485, 0.456, 0.406])[:, None, None])
        with torch.no_grad():
            expected.append(network((pixels / torch.tensor([0.229, 0.224, 0.225])[:, None, None])[None])[0].numpy())
    found = CropEncoder(images, margin=0.4).encode(image, BOXES)
    assert found.shape == (4, 2048) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_encoders_by_name():
    encoder = load_encoder("clip-rn50", "mini", margin=0.2)
    assert isinstance(encoder, RegionEncoder) and encoder.encode(picture(), BOXES).shape[0] == 4
    assert encoder.encode(picture(), []).shape == (0, 0) and encoder.card["margin"] == 0.2
    with pytest.raises(FileNotFoundError, match="expected 'official', 'random' or a checkpoint"):
        load_encoder("resnet50", "/nowhere.pth")
    with pytest.raises(TypeError, match="encode_images"):
        CropEncoder(object())
    with pytest.raises(ValueError, match="margin"):
        CropEncoder(tiny_clip(), margin=-1)


# --- kept features ----------------------------------------------------------------------------------------------------

class Means:
    """A RegionEncoder of one's own."""

    def __init__(self, factor=1.0):
        self.card, self.factor, self.asked = {"name": "means"}, np.array(factor), 0

    def encode(self, image, boxes):
        self.asked += 1
        image = Image.open(image) if not isinstance(image, Image.Image) else image
        return self.factor * np.stack([np.asarray(cut_box(image.convert("RGB"), box), float).mean((0, 1))
                                       for box in boxes]).astype(np.float32)


def test_kept_features_follow_picture_boxes_weights_and_card(tmp_path):
    first = KeptEncoder(Means(), tmp_path)
    table = first.encode(picture(0), BOXES)
    assert np.array_equal(first.encode(picture(0), BOXES), table) and first.encoder.asked == 1
    table[:] = 0  # what a caller does with its copy is the caller's
    assert first.encode(picture(0), BOXES).any()
    for other, image, boxes in ((Means(), picture(1), BOXES), (Means(), picture(0), BOXES[::-1]),
                                (Means(2.0), picture(0), BOXES)):
        kept = KeptEncoder(other, tmp_path)
        np.testing.assert_array_equal(kept.encode(image, boxes), Means(other.factor).encode(image, boxes))
        assert kept.made == 1
    resumed = KeptEncoder(Means(), tmp_path)
    resumed.encode(picture(0), BOXES)
    assert resumed.made == 0 and len(list(tmp_path.rglob("*.npy"))) == 4
    path = tmp_path / "a.png"
    picture(0).save(path)
    resumed.encode(path, BOXES), KeptEncoder(Means(), tmp_path).encode(str(path), BOXES)
    assert resumed.made == 1  # a file is known by its bytes, whatever it is called
    assert KeptEncoder(Means(), half=True).encode(picture(), BOXES).dtype == np.float32


def test_kept_features_that_were_damaged_are_named(tmp_path):
    KeptEncoder(Means(), tmp_path).encode(picture(), BOXES)
    file = next(tmp_path.rglob("*.npy"))
    whole = file.read_bytes()
    for damage in (b"", whole[:-7], b"cos\nsystem\n(S'echo'\ntR."):
        file.write_bytes(damage)
        with pytest.raises(StoreError, match=f"{file.name}.*Delete the file"):
            KeptEncoder(Means(), tmp_path).encode(picture(), BOXES)
    np.save(file, np.zeros((2, 3)))
    with pytest.raises(StoreError, match="expected 4 rows"):
        KeptEncoder(Means(), tmp_path).encode(picture(), BOXES)
    with pytest.raises(ValueError, match="finite.*65504"):
        KeptEncoder(Means(1e6), tmp_path, half=True).encode(picture(), BOXES)


# --- the role ---------------------------------------------------------------------------------------------------------

def test_a_function_is_accepted_where_a_ranker_is():
    def rank(image, boxes, expression):
        return [len(expression) - x0 for x0, *_ in boxes]

    mine = as_ranker(rank, licence="mine")
    assert isinstance(mine, RegionRanker) and mine.card == {"name": "rank", "licence": "mine"}
    assert mine.rank(picture(), BOXES, "dog").tolist() == [-1, -27, 3, -67]
    for model in ("rank", 3, Means):
        with pytest.raises(TypeError, match="expected a RegionRanker"):
            as_ranker(model)


# --- files of features ------------------------------------------------------------------------------------------------

def text_of(array):
    return base64.b64encode(np.asarray(array, np.float32).tobytes()).decode()


THEIRS = np.array([[4, 6, 41, 50], [0, 0, 90, 60]], np.float32)
ROWS = np.arange(10, dtype=np.float32).reshape(2, 5)
ITEM = {"image_id": "7", "image_w": 90, "image_h": 60, "num_boxes": 2, "boxes": text_of(THEIRS),
        "features": text_of(ROWS)}


def tsv_line(**changes):
    return "\t".join(str({**ITEM, **changes}[name]) for name in TSV_COLUMNS[6]) + "\n"


def named(name="7.jpg"):
    image = picture()
    image.filename = name
    return image


def test_features_of_candidates_follow_the_boxes_of_the_file(tmp_path):
    (tmp_path / "a.tsv").write_text(tsv_line(image_id="6", features=text_of(-ROWS)) + tsv_line())
    for unmatched, third in (("nearest", ROWS[1]), ("zeros", np.zeros(5))):
        encoder = FileEncoder(tmp_path / "a.tsv", unmatched=unmatched)
        found = encoder.encode(named(), [[0, 0, 90, 59], [4, 6, 40, 50], [60, 0, 80, 20]])
        np.testing.assert_array_equal(found, [ROWS[1], ROWS[0], third])
        assert (encoder.asked, encoder.unmatched_boxes) == (3, 1) and isinstance(encoder, RegionEncoder)
    strict = FileEncoder(tmp_path / "a.tsv")
    with pytest.raises(ExampleError, match="7.jpg: 1 of 1 candidates overlap no box of a.tsv by 0.5"):
        strict.encode(named(), [[60, 0, 80, 20]])
    with pytest.raises(ExampleError, match="no features of this picture"):
        strict.encode(named("8.jpg"), BOXES)
    half = picture(size=(45, 30))
    half.filename = "7.jpg"  # the same picture at half the size: their boxes shrink with it
    np.testing.assert_array_equal(strict.encode(half, [[2, 3, 20, 25]]), ROWS[:1])


def test_pictures_are_found_by_the_name_of_their_file(tmp_path):
    from qgcam_lib.data.records import open_image

    (tmp_path / "a.tsv").write_text(tsv_line())
    picture().save(tmp_path / "7.png")
    encoder = FileEncoder(tmp_path / "a.tsv")
    for image in (tmp_path / "7.png", str(tmp_path / "7.png"), open_image(tmp_path / "7.png")):
        np.testing.assert_array_equal(encoder.encode(image, BOXES[2:3]), ROWS[1:])


@pytest.mark.parametrize(("changes", "says"), [
    ({"features": text_of(ROWS)[:-5]}, "no base64|not float32 rows"),
    ({"features": text_of(ROWS[:, :1])[:-4]}, "not float32 rows of 2 boxes"),
    ({"features": "!!!!"}, "no base64"),
    ({"boxes": text_of(THEIRS[:, :3])}, "boxes .M, 4."),
    ({"num_boxes": 0}, "not float32 rows of 0"),
    ({"num_boxes": -1}, "not float32 rows of -1"),
    ({"num_boxes": "two"}, "expected num_boxes"),
    ({"features": text_of(np.where(ROWS == 3, np.nan, ROWS))}, "NaN or infinity"),
    ({"boxes": text_of(THEIRS[:, [2, 3, 0, 1]])}, "x0 <= x1"),
    ({"image_w": 0}, "with an area"),
])
def test_hostile_lines_of_a_tsv_are_named(tmp_path, changes, says):
    (tmp_path / "a.tsv").write_text(tsv_line(**changes))
    with pytest.raises(FormatError, match=says) as caught:
        FileEncoder(tmp_path / "a.tsv").encode(named(), BOXES)
    assert "a.tsv, picture 7" in str(caught.value)


def test_a_tsv_that_was_cut_off_is_named(tmp_path):
    (tmp_path / "a.tsv").write_text("7\t90\t60\n")
    with pytest.raises(FormatError, match="columns, found 3 at picture 7"):
        FileEncoder(tmp_path / "a.tsv").encode(named(), BOXES)
    with pytest.raises(FormatError, match="expected a folder of npz"):
        FileEncoder(tmp_path)
    (tmp_path / "a.npy").write_bytes(b"")
    with pytest.raises(FormatError, match="Pickled .npy"):
        FileEncoder(tmp_path / "a.npy")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        FileEncoder(tmp_path / "b.tsv")


class Attack:
    def __reduce__(self):
        return open, ("stranger-was-here", "w")


def test_hostile_npz_are_named(tmp_path):
    file = tmp_path / "7.npz"
    good = {"features": ROWS, "norm_bb": np.c_[THEIRS / [90, 60, 90, 60], np.ones((2, 2))]}
    np.savez(file, **good)
    np.testing.assert_array_equal(FileEncoder(tmp_path).encode(named(), BOXES[:1]), ROWS[:1])
    whole = file.read_bytes()
    torn = whole[:60] + b"\xff" * 40 + whole[100:]
    for damage in (whole[:len(whole) // 2], whole[:-30], b"", b"PK" + whole[10:], torn):
        file.write_bytes(damage)
        with pytest.raises(FormatError, match="7.npz"):
            FileEncoder(tmp_path).encode(named(), BOXES[:1])
    bad = ({**good, "features": np.array([Attack(), 1], object)}, {"features": ROWS}, {**good, "features": ROWS[:1]},
           {**good, "norm_bb": np.zeros((2, 3))}, {**good, "features": ROWS * np.inf}, {**good, "norm_bb": np.zeros(2)},
           {"x": ROWS, "bbox": THEIRS, "image_w": np.array([1, 2]), "image_h": 5})
    for arrays in bad:
        np.savez(file, **arrays)
        with pytest.raises(FormatError, match="7.npz"):
            FileEncoder(tmp_path).encode(named(), BOXES[:1])


def test_npz_that_fuzzing_found_are_named(tmp_path):
    """Texts and fields where numbers belong, a header without an end, and more than a picture can have."""
    file, shares = tmp_path / "7.npz", np.c_[THEIRS / [90, 60, 90, 60], np.ones((2, 2))]
    fields = np.zeros(2, [("f0", "<f4"), ("f1", "<f4")])
    for arrays in ({"features": np.array(["a", "b"]), "norm_bb": shares}, {"features": fields, "norm_bb": shares},
                   {"features": ROWS.astype(complex), "norm_bb": shares},
                   {"features": ROWS, "norm_bb": shares, "more": np.zeros(2**25 + 1)},
                   {"x": ROWS, "bbox": THEIRS, "image_w": 1e400, "image_h": 5}):
        np.savez_compressed(file, **arrays)
        with pytest.raises(FormatError, match="7.npz"):
            FileEncoder(tmp_path).encode(named(), BOXES[:1])
    np.savez(file, features=ROWS, norm_bb=shares)
    file.write_bytes(file.read_bytes().replace(b"'shape': (", b"'shape': ["))
    with pytest.raises(FormatError, match="7.npz"):
        FileEncoder(tmp_path).encode(named(), BOXES[:1])


def test_values_of_an_lmdb_are_read_without_running_them():
    from srsly.msgpack import packb

    packed = io.BytesIO()
    shares = np.c_[THEIRS / [90, 60, 90, 60], np.ones((2, 2))]
    np.savez_compressed(packed, features=ROWS.astype(np.float16), norm_bb=shares)
    arrays = {"features": ROWS.astype(np.float16), "norm_bb": shares, "conf": ROWS}
    for value in (pickle.dumps(ITEM, 2), pickle.dumps({**ITEM, "boxes": ITEM["boxes"].encode()}, 4),
                  packed.getvalue(), packb(arrays, use_bin_type=True)):
        found = read_lmdb_value(value, "f")
        np.testing.assert_array_equal(found.features, ROWS)
        np.testing.assert_allclose(found.boxes_in(90, 60), THEIRS, atol=1e-5)
    attacks = {pickle.dumps(Attack()): "asks for", pickle.dumps({**ITEM, "features": ROWS}): "asks for",
               pickle.dumps([ITEM]): "expected a dictionary", pickle.dumps({"boxes": 1}): "expected num_boxes",
               pickle.dumps(ITEM)[:-9]: "cut off", b"": "cut off", packed.getvalue()[:-40]: "cut off",
               packb(arrays)[:-9]: "MessagePack", packb({"features": 1}): "MessagePack",
               packb({**arrays, "norm_bb": {b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": b"x"}},
                     use_bin_type=True): "MessagePack|array of numbers"}
    for value, says in attacks.items():
        with pytest.raises(FormatError, match=says):
            read_lmdb_value(value, "f")


def test_an_lmdb_without_the_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    (tmp_path / "data.mdb").write_bytes(b"")
    with pytest.raises(SourceError, match="pip install lmdb") as caught:
        FileEncoder(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_lmdb_is_read_by_the_names_of_its_pictures(tmp_path):
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "a.lmdb"), subdir=False) as base, base.begin(write=True) as writing:
        writing.put(b"380440", pickle.dumps(ITEM))
        writing.put(b"keys", pickle.dumps([b"380440"]))
    found = FileEncoder(tmp_path / "a.lmdb").encode(named("COCO_train2014_000000380440_491042.jpg"), BOXES[:1])
    np.testing.assert_array_equal(found, ROWS[:1])
    (tmp_path / "b.lmdb").write_bytes(b"no data base" * 1000)
    with pytest.raises(FormatError, match="no lmdb data base"):
        FileEncoder(tmp_path / "b.lmdb")


# --- trained rankers by name ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["vilbert", "cmn", "mattnet", "groundnet"])
def test_trained_rankers_load_by_name(name, monkeypatch, tmp_path):
    from qgcam_lib.models import load_model, registry
    from qgcam_lib.models.regions import vilbert

    small = {"vilbert": vilbert.MINI.to_dict()}.get(name, {"words": 16, "hidden": 16})
    ranker = load_model(name, "random", encoder=Means(), feature_size=3, config=small, seed=4)
    assert isinstance(ranker, RegionRanker) and ranker.card["name"] == name and ranker.card["seed"] == 4
    texts = ["the red ball", "the ball left of the dog"]
    table = ranker.rank_batch([picture()], [BOXES], [texts])[0]
    for text, row in zip(texts, table):
        np.testing.assert_allclose(ranker.rank(picture(), BOXES, text), row, atol=1e-5)
    monkeypatch.setattr(registry, "zoo_folder", lambda: tmp_path)
    monkeypatch.setattr("qgcam_lib.models.common.sources.zoo_folder", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match=f"{name}-mini"):
        load_model(name)
    with pytest.raises(FileNotFoundError, match="no library fetches"):
        load_model(name, "official")
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="encoder: the weights"):
        load_model(name, tmp_path / "a.pt")
