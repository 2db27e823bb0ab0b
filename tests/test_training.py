"""What holds for every kind of training: a stop in the middle, no look at boxes, batches, the zoo's entries."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from qgcam_lib.finetune.amc import AmcRecipe
from qgcam_lib.finetune.batches import CaptionRecipe, draw_captions
from qgcam_lib.finetune.loop import train_step
from qgcam_lib.finetune.minis import MINIS, make_entry, make_mini
from qgcam_lib.models import load_model
from qgcam_lib.models.common.zoo import load_zoo
from qgcam_lib.models.registry import zoo_folder

pytestmark = pytest.mark.usefixtures("one_thread")


def equal(one, other):
    state = other.model.state_dict()
    return all(torch.equal(value, state[name]) for name, value in one.model.state_dict().items())


@pytest.mark.parametrize(("name", "stop"), zip(tiny.KINDS, (1, 2, 3, 4, 5, 3, 2, 4, 1, 2, 3, 4)))
def test_a_training_goes_on_to_the_bit_and_refuses_another_recipe(tmp_path, name, stop):
    kind = tiny.KINDS[name]
    whole = kind.train(tiny.world(), progress=False)
    kind.train(tiny.world(), tmp_path, stop_at=stop, progress=False)
    resumed = kind.train(tiny.world(), tmp_path, progress=False)
    assert equal(whole, resumed) and resumed.step == 6
    assert whole.log.drop(columns="seconds").equals(resumed.log.drop(columns="seconds"))
    assert list(whole.log)[3:] == list(whole.columns) and whole.log[whole.columns[0]].notna().any()
    with pytest.raises(ValueError, match="weight_decay"):
        replace(kind, recipe=replace(kind.recipe, weight_decay=0.5)).train(tiny.world(), tmp_path, progress=False)


@pytest.mark.parametrize("name", ["itm", "albef", "clip", "towers, softmax", "FlavaTraining"])
def test_matchers_read_no_boxes_and_another_seed_is_another_model(tmp_path, name):
    kind = replace(tiny.KINDS[name], recipe=replace(tiny.KINDS[name].recipe, steps=3))
    (tmp_path / "Annotations").mkdir()
    for part in ("Sentences", "images", "train.txt"):
        (tmp_path / part).symlink_to(tiny.world() / part)
    blind, seeing = kind.train(tmp_path, progress=False), kind.train(tiny.world(), progress=False)
    assert equal(blind, seeing)
    other = replace(kind, recipe=replace(kind.recipe, seed=1)).train(tiny.world(), progress=False)
    assert not equal(other, seeing)


@pytest.mark.parametrize("name", ["itm", "albef", "clip", "towers, sigmoid", "ViltTraining", "detector, sigmoid"])
def test_steps_on_one_batch_lower_the_loss(name):
    kind = tiny.KINDS[name]
    recipe = replace(kind.recipe, steps=1000, learning_rate=3e-3)
    training = kind.start(tiny.data(), recipe, kind.config)
    batch = training.draw(50)
    losses = [train_step(training, batch)["total"] for _ in range(40)]
    assert losses[-1] < 0.85 * losses[0]


def test_batches_depend_on_seed_and_step_and_their_pictures_on_nothing_else():
    recipe = CaptionRecipe(batch=6, texts=4)
    one, again, other = (draw_captions(tiny.data(), recipe, step) for step in (3, 3, 4))
    assert one.captions == again.captions and not torch.equal(one.pixels, other.pixels)
    assert torch.equal(one.pixels, draw_captions(tiny.data(), replace(recipe, texts=2, borrowed=0.1), 3).pixels)
    assert not torch.equal(one.pixels, draw_captions(tiny.data(), replace(recipe, seed=1), 3).pixels)


# --- the zoo ----------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def albef():
    return tiny.KINDS["albef"].train(tiny.world(), progress=False)


def test_an_entry_of_the_zoo_gives_the_maps_that_were_scored(albef, tmp_path):
    how = dict(name="albef-mini", val_limit=6, test_limits=(6,), progress=False)
    folder = make_entry(albef, tiny.world(), tmp_path, **how)
    loaded, card = load_model("albef-amc", weights=folder), load_zoo("albef-mini", tmp_path).card
    assert card["class"] == "lavis AlbefPretrain" and card["block"] in (2, 3) and loaded.block == card["block"]
    assert {row["block"] for row in card["choice_on_val"]} == {2, 3}
    assert loaded.cleaning == "blip" and loaded.tokens == card["tokens"]
    from qgcam_lib.data.flickr30k.entities import Flickr30kEntities

    example = next(iter(Flickr30kEntities(tiny.world(), "test")))
    scored = albef.as_model(block=card["block"], tokens=card["tokens"])
    wanted = scored.maps(example.image, [example.prompt])
    assert torch.equal(loaded.maps(example.image, [example.prompt]), wanted)
    blank = albef.as_model(False, block=card["block"], tokens=card["tokens"])
    assert not torch.equal(blank.maps(example.image, [example.prompt]), wanted)


@pytest.mark.nightly
def test_a_mini_is_made_from_another_of_the_same_zoo(albef, tmp_path, monkeypatch):
    mini = MINIS["albef-amc-mini"]
    monkeypatch.setitem(MINIS, "albef-amc-mini", replace(mini, kind=replace(mini.kind, config=tiny.ALBEF)))
    make_entry(albef, tiny.world(), tmp_path / "zoo", name="albef-mini", val_limit=6, test_limits=(6,), progress=False)
    recipe = AmcRecipe(steps=2, batch=2, texts=2, images=20, log_every=1)
    folder = make_mini("albef-amc-mini", tiny.world(), tmp_path / "work", tmp_path / "zoo", recipe, progress=False)
    card, start = load_zoo("albef-amc-mini", tmp_path / "zoo").card, load_zoo("albef-mini", tmp_path / "zoo").card
    assert card["starts_from"] == {"name": "albef-mini", "sha256": start["files"]["model.safetensors"]}
    models = {row["model"] for row in card["scores_on_test"]["500"]}
    assert models == {"trained", "before AMC", "random weights", "centre guess"}
    assert "boxes" in card["supervision"] and card["steps"] == 2 and (tmp_path / "work" / "checkpoint.pt").is_file()
    assert load_model("albef-amc", weights=folder).block == card["block"]


def test_every_committed_mini_has_the_numbers_of_its_recipe():
    made = [name for name in MINIS if (zoo_folder() / name / "card.json").is_file()]
    assert {"blip-mini", "albef-mini", "albef-amc-mini"} <= set(made)
    for name in made:
        assert MINIS[name].kind.recipe.differs(load_zoo(name).card["recipe"]) == [], name
        assert np.isfinite(load_zoo(name).log()["seconds"]).all()
    order = list(MINIS)
    assert all(mini.needs in order[: order.index(name)] for name, mini in MINIS.items() if mini.needs)
