"""The training loop on a net of four weights: what a recipe brings, checkpoints, and stopping anywhere."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from qgcam_lib.errors import FileFault, ParameterError
from qgcam_lib.finetune.loop import Training, adamw, train
from qgcam_lib.finetune.recipe import Recipe
from qgcam_lib.models.common.device import drawn_from


@dataclass(frozen=True)
class LineRecipe(Recipe):
    steps: int = 20
    batch: int = 8
    warmup: int = 2
    log_every: int = 4
    slope: float = 2.0


class LineTraining(Training):
    columns = ("error", "seldom")

    def draw(self, step):
        return torch.from_numpy(self.recipe.random(step).normal(size=(self.recipe.batch, 3))).float()

    def losses(self, batch):
        noise = 0.1 * torch.randn(len(batch), 1)  # as dropout would draw
        error = ((self.model(batch) + noise - self.recipe.slope * batch[:, :1]) ** 2).mean()
        return {"error": error, "total": error} | ({"seldom": error.detach()} if self.step == 9 else {})


def start(recipe, fingerprint="line"):
    with drawn_from(recipe.seed):
        return LineTraining(torch.nn.Linear(3, 1), recipe, fingerprint)


def weights(training):
    return torch.cat([p.flatten() for p in training.model.state_dict().values()])


@pytest.mark.parametrize("stops", [(1,), (7, 13), (19, 20)])
def test_a_training_stopped_anywhere_ends_at_the_same_bits(tmp_path, stops):
    recipe = LineRecipe()
    whole = train(partial(start, recipe), progress=False)
    for stop in stops:
        assert train(partial(start, recipe), tmp_path, stop_at=stop, progress=False).step == stop
    again = train(partial(start, recipe), tmp_path, progress=False)
    assert torch.equal(weights(whole), weights(again)) and not again.model.training
    logs = (training.log.drop(columns="seconds") for training in (whole, again))
    pd.testing.assert_frame_equal(*logs, check_exact=True)
    assert again.log.step.tolist() == [4, 8, 12, 16, 20] and again.log.seldom.notna().tolist() == [0, 0, 1, 0, 0]
    assert len(pd.read_csv(tmp_path / "log.csv")) == 5


@pytest.mark.parametrize("changed, said", [(dict(slope=1.0), "slope"), (dict(steps=21), "steps"),
                                           (dict(seed=1, batch=4), "batch, seed")])
def test_a_checkpoint_of_another_recipe_is_refused(tmp_path, changed, said):
    train(partial(start, LineRecipe(cooldown=0.9)), tmp_path, stop_at=10, progress=False)
    with pytest.raises(ValueError, match=said):
        train(partial(start, LineRecipe(cooldown=0.9, **changed)), tmp_path, progress=False)
    with pytest.raises(ValueError, match="data"):
        train(partial(start, LineRecipe(cooldown=0.9), "other"), tmp_path, progress=False)


def test_a_damaged_checkpoint_is_one_documented_error(tmp_path):
    train(partial(start, LineRecipe()), tmp_path, progress=False)
    file = tmp_path / "checkpoint.pt"
    whole = file.read_bytes()
    for content in (b"", b"<html>", whole[:200], whole[:-9]):
        file.write_bytes(content)
        with pytest.raises(FileFault, match="checkpoint.pt is damaged"):
            train(partial(start, LineRecipe()), tmp_path, progress=False)
    for value in ([1], {"recipe": 5}, {"a": torch.ones(1)}):
        torch.save(value, file)
        with pytest.raises(FileFault, match="no checkpoint of a training"):
            train(partial(start, LineRecipe()), tmp_path, progress=False)


def test_decay_can_spare_vectors():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    plain = adamw(model.parameters(), Recipe()).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in plain] == [(0.05, 4)]
    spared = adamw(model.parameters(), Recipe(), vectors_decay=False).param_groups
    axes = {group["weight_decay"]: [p.ndim for p in group["params"]] for group in spared}
    assert axes == {0.05: [2], 0.0: [1, 1, 1]}


def test_the_rate_rises_stays_and_falls():
    recipe = Recipe(steps=100, warmup=10, cooldown=0.5)
    rates = np.array([recipe.rate(step) for step in range(100)]) / recipe.learning_rate
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10)
    np.testing.assert_allclose(rates[10:51], 1)
    np.testing.assert_allclose(rates[50:], np.arange(50, 0, -1) / 50)


def test_a_loss_that_is_no_longer_finite_stops_the_training(tmp_path):
    recipe = LineRecipe(learning_rate=1e30, clip=0.0, warmup=1)
    with pytest.raises(ParameterError, match="learning_rate"):
        train(partial(start, recipe), tmp_path, progress=False, save_every=1)
    kept = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert 0 < kept["step"] < 20 and all(torch.isfinite(value).all() for value in kept["model"].values())
