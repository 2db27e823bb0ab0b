"""The training loop on a net of four weights: what a recipe brings, checkpoints, and stopping anywhere."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from two_processes import both_end_well

from qgcam_lib.errors import FileFault, ParameterError
from qgcam_lib.finetune.batches import Recipe
from qgcam_lib.finetune.loop import Training, adamw, train
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


# --- several processes ------------------------------------------------------------------------------------------------

class QuietTraining(LineTraining):
    def losses(self, batch):
        error = ((self.model(batch) - self.recipe.slope * batch[:, :1]) ** 2).mean()
        return {"error": error, "total": error} | ({"seldom": error.detach()} if self.step == 9 else {})


class WholeTraining(QuietTraining):
    """In one process what two do: both shares of a batch, one after the other."""

    def draw(self, step):
        rows = [self.recipe.random(step) if rank == 0 else replace(self.recipe, seed=1_000_003).random(step)
                for rank in range(2)]
        size = self.recipe.batch // 2
        return torch.cat([torch.from_numpy(rng.normal(size=(size, 3))).float() for rng in rows])


def quiet(recipe, kind=QuietTraining):
    with drawn_from(recipe.seed):
        return kind(torch.nn.Linear(3, 1), recipe, "line")


IN_A_GROUP = """
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
rank, meet, tests = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
sys.path.insert(0, tests)
import pytest, torch
import torch.distributed as dist
from qgcam_lib.errors import ParameterError
from qgcam_lib.finetune.loop import first_alone, launched, train
from test_loop import LineRecipe, quiet
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2, timeout=timedelta(seconds=60))
folder = meet.with_name(f"work-{rank}")
with launched() as place:  # in a group there is nothing to do
    assert place == (rank, 2)
    found = train(partial(quiet, LineRecipe()), folder, progress=False)
    torch.save([list(found.model.state_dict().values()), found.rows], meet.with_name(f"{rank}.pt"))
    with pytest.raises(ParameterError, match="multiple of the number of processes"):
        train(partial(quiet, LineRecipe(batch=7)), progress=False)
assert first_alone("draws", lambda: 5) == (None if rank else 5)
with pytest.raises(RuntimeError if rank else ZeroDivisionError):
    first_alone("fails", lambda: 1 / 0)
print("fine")
"""


def test_two_processes_do_what_one_does_with_both_shares_and_the_first_writes(tmp_path, capfd):
    both_end_well(IN_A_GROUP, tmp_path / "meet")
    (one, rows), (two, same_rows) = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two))
    whole = train(partial(quiet, LineRecipe(), WholeTraining), progress=False)
    for a, b in zip(one, whole.model.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    logs = (pd.DataFrame(some).drop(columns="seconds") for some in (rows, same_rows, whole.rows))
    first, second, wanted = logs
    pd.testing.assert_frame_equal(first, second)
    pd.testing.assert_frame_equal(first, wanted, rtol=1e-5)
    assert (tmp_path / "work-0" / "checkpoint.pt").is_file() and not (tmp_path / "work-1").exists()
    with pytest.raises(FileFault, match="number of processes"):
        train(partial(quiet, LineRecipe()), tmp_path / "work-0", progress=False)


def test_losses_are_read_once_in_twenty_steps(monkeypatch):
    """On a GPU each reading waits for it."""
    reads, model = [], torch.nn.Linear(3, 1)
    for name in ("item", "tolist"):
        own = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, own=own: reads.append(self.shape) or own(self))
    recipe = LineRecipe(steps=100, log_every=50)
    plain = torch.optim.SGD(model.parameters(), 0.01)  # AdamW reads its counters, which are on the CPU
    train(lambda: QuietTraining(model, recipe, "line", optimizer=plain), progress=False)
    assert len(reads) == 6  # after 20, 40, 50 (a row of the log), 60, 80 and 100 steps


@pytest.mark.nightly
@pytest.mark.parametrize("launch", [["torch.distributed.run", "--nproc-per-node", "2", "--master-port"],
                                    ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
                                     "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
                                     "--main_process_port"]], ids=["torchrun", "accelerate"])
def test_a_mini_is_made_by_two_launched_processes(tmp_path, launch):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    words = "clip-vit-mini --steps 12 --looking 6 --batch 16 --images 60 --data scenes --out zoo --work kept".split()
    done = subprocess.run([sys.executable, "-m", *launch, port, "-m", "qgcam_lib.finetune", *words], cwd=tmp_path,
                          capture_output=True, text=True, timeout=1500, check=False,
                          env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1",
                                            "PYTHONPATH": str(Path(__file__).parents[1])})
    assert done.returncode == 0, done.stderr[-3000:]
    card = json.loads((tmp_path / "zoo" / "clip-vit-mini" / "card.json").read_text())
    assert card["processes"] == 2 and card["steps"] == 12 and card["data"]["training_images"] == 60
    for what in ("draws the miniworld", "decodes the pictures", "scores the model and writes it"):
        assert done.stderr.count(f"process 1 of 2 waits while process 0 {what}") == 1, what
    assert len(list((tmp_path / "scenes" / "images").iterdir())) == 60 + 500 + 2000  # drawn once
