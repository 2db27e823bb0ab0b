"""The committed mini model: whole, refused when damaged, and as good as its card says."""

import shutil

import pandas as pd
import pytest
import torch

from qgcam_lib.models import load_model
from qgcam_lib.models.common.zoo import load_zoo
from qgcam_lib.storage.files import file_sha256


@pytest.fixture(scope="module")
def mini():
    return load_zoo("blip-mini")


@pytest.fixture
def copy(mini, tmp_path):
    return shutil.copytree(mini.folder, tmp_path / "blip-mini")


def points(card, examples, model):
    rows = pd.DataFrame(card["scores_on_test"][examples])
    return rows[(rows.metric == "pg_hit") & (rows.model == model)].iloc[0]


def test_checksums_are_those_of_the_card(mini):
    assert set(mini.card["files"]) == {"model.safetensors", "config.json", "vocab.txt"}
    for name, total in mini.card["files"].items():
        assert file_sha256(mini.folder / name) == total
    assert (mini.folder / "model.safetensors").stat().st_size < 8e6


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocab.txt"])
def test_a_changed_file_is_refused_by_name(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    for load in (lambda: load_zoo("blip-mini", copy.parent), lambda: load_model("blip-base", weights=copy)):
        with pytest.raises(ValueError, match=name):
            load()


def test_weights_are_float16_and_load_model_uses_them(mini):
    state = mini.state()
    assert {v.dtype for v in state.values() if v.is_floating_point()} == {torch.float16}
    model = load_model("blip-base", weights="mini")
    for name, value in model.model.state_dict().items():
        assert torch.equal(value, state[name].to(value.dtype)), name
    assert (model.block, model.tokens) == (mini.card["block"], mini.card["tokens"])
    assert list(model.config.grid) == mini.card["grid"]


@pytest.mark.parametrize("examples", ["500", "all"])
def test_the_card_shows_a_model_that_points_far_better_than_nothing(mini, examples):
    trained, untrained, centre = (points(mini.card, examples, m) for m in ("trained", "random weights", "centre guess"))
    assert trained.value >= 0.55
    assert trained.ci_low > max(untrained.ci_high, centre.ci_high)


@pytest.mark.nightly
def test_fresh_scenes_score_as_the_card_says(mini, tmp_path):
    """Sixty test scenes, scored here: the share of hits lies in a wide interval around the card's."""
    from qgcam_lib.data.flickr30k.entities import Flickr30kEntities
    from qgcam_lib.grounding import ground
    from qgcam_lib.miniworld import ensure

    root = ensure(tmp_path / "world", "test", n_test=60, progress=False)
    frame = ground(
        load_model("blip-base", weights="mini"),
        Flickr30kEntities(root, "test"),
        protocol=mini.card["protocol"],
        progress=False,
    )
    card = points(mini.card, "all", "trained").value
    assert abs(frame.pg_hit.mean() - card) < 0.09
