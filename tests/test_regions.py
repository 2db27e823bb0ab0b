"""Regions: where boxes lie, and what crops look like to a network."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_models import BOXES, MeanColours, clip_matcher, noise

from qgcam_lib.models import load_model
from qgcam_lib.models.common.device import MEAN, STD, cut_box
from qgcam_lib.models.regions import vilbert
from qgcam_lib.models.regions.batch import box_geometry, candidate_boxes
from qgcam_lib.models.regions.vilbert import CropEncoder, load_encoder, load_resnet
from qgcam_lib.models.roles import RegionEncoder, RegionRanker, as_ranker

# --- geometry ---------------------------------------------------------------------------------------------------------

corner = st.floats(0, 0.99)
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


@pytest.mark.parametrize("boxes", [[[5, 5, 5, 9]], [[np.nan, 0, 1, 1]], [[1, 2, 3]], [[200, 0, 210, 5]]])
def test_boxes_that_are_no_candidates_are_refused(boxes):
    with pytest.raises(ValueError, match="boxes"):
        candidate_boxes(boxes, (90, 60))


def test_candidates_are_cut_at_the_border():
    assert candidate_boxes(BOXES, (90, 60)).max() == 90 and BOXES.max() == 95  # the argument stays


# --- crops through networks -------------------------------------------------------------------------------------------

def test_clip_features_equal_open_clips_own_forward_crop_by_crop():
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor

    clip, image = clip_matcher(["a photo of a red ball"]), noise()
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

    images, image = load_resnet("random", seed=5, size=64, batch=3), noise()
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
    assert isinstance(encoder, RegionEncoder) and encoder.encode(noise(), BOXES).shape[0] == 4
    assert encoder.encode(noise(), []).shape == (0, 0) and encoder.card["margin"] == 0.2


# --- the role ---------------------------------------------------------------------------------------------------------

def test_a_function_is_accepted_where_a_ranker_is():
    def rank(image, boxes, expression):
        return [len(expression) - x0 for x0, *_ in boxes]

    mine = as_ranker(rank, licence="mine")
    assert isinstance(mine, RegionRanker) and mine.card == {"name": "rank", "licence": "mine"}
    assert mine.rank(noise(), BOXES, "dog").tolist() == [-1, -27, 3, -67]
    for model in ("rank", 3, MeanColours):
        with pytest.raises(TypeError, match="RegionRanker"):
            as_ranker(model)


# --- trained rankers by name ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["vilbert", "cmn", "mattnet", "groundnet"])
def test_trained_rankers_load_by_name(name, monkeypatch, tmp_path):
    small = {"vilbert": vilbert.MINI.to_dict()}.get(name, {"words": 16, "hidden": 16})
    ranker = load_model(name, "random", encoder=MeanColours(), feature_size=3, config=small, seed=4)
    assert isinstance(ranker, RegionRanker) and ranker.card["name"] == name and ranker.card["seed"] == 4
    monkeypatch.setattr("qgcam_lib.models.common.sources.zoo_folder", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match=f"{name}-mini"):
        load_model(name)
    with pytest.raises(FileNotFoundError):
        load_model(name, "official")
