"""Models and a step of fine-tuning on a GPU, beside the same on the CPU. Scores on a GPU: tests/test_batched.py."""

import numpy as np
import pytest
import torch
from PIL import Image

from qgcam_lib.data.probes.groups import RelCompGroup
from qgcam_lib.finetune.loop import train_step
from qgcam_lib.finetune.relcomp.training import RelCompRecipe, start_relcomp
from qgcam_lib.metrics import score_maps
from qgcam_lib.models import list_models, load_model
from qgcam_lib.models.speed import NOT_RUN, explainer_speed, speed_row

ALLOWED = {"float32": 1e-3, "tf32": 0.03, "bfloat16": 0.2}  # largest difference, as a share of the largest value
PHRASES = ["a man", "a red ball"]
NAMES = [name for name, role, weights in list_models()[["name", "role", "weights"]].itertuples(index=False)
         if role == "explainer" and "mini" in weights]


def pictures(n, size=96):
    noise = np.random.default_rng(0).integers(0, 256, (n, size, size, 3), dtype=np.uint8)
    return [Image.fromarray(one) for one in noise]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ALLOWED)
@pytest.mark.parametrize("name", NAMES)
def test_maps_of_a_gpu_are_those_of_the_cpu(name, precision):
    given = pictures(3), [PHRASES] * 3
    wanted = load_model(name).maps_batch(*given)
    found = load_model(name, device="cuda", precision=precision).maps_batch(*given)
    for ours, theirs in zip(found, wanted):
        assert (ours.float().cpu() - theirs.float()).abs().max() <= ALLOWED[precision] * theirs.max()


@pytest.mark.gpu
def test_maps_stay_on_the_gpu_until_they_are_scored():
    maps = torch.rand(40, 24, 24, device="cuda")
    boxes = np.tile([[10.0, 10, 200, 220]], (40, 1))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    score_maps(maps, boxes, image_sizes=(384, 384))
    assert torch.cuda.max_memory_allocated() - before > 40 * 384 * 384 * 8  # they were resized there


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_step_of_fine_tuning(device, tmp_path):
    groups = []
    for number, picture in enumerate(pictures(4)):
        picture.save(tmp_path / f"{number}.png")
        groups.append(RelCompGroup(str(number), f"{number}.png", f"a man rides {number}", "a man on a horse",
                                   "a horse on a man", "composition"))
    losses = {}
    for place in {"cpu", device}:
        model = load_model("clip-vit-b32", device=place)
        training = start_relcomp(model, groups, tmp_path, RelCompRecipe(batch=4, steps=9, learning_rate=0.1))
        found = [train_step(training, training.draw(step))["total"] for step in range(3)]
        assert {one.device.type for one in found} == {place} and found[2] < found[0]
        losses[place] = torch.stack(found).cpu()
    torch.testing.assert_close(losses[device], losses["cpu"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_table_of_speeds_has_a_row_for_every_case(device):
    found = explainer_speed(["vilt"], pictures(2), PHRASES, device=device, batches=(1, 2), precisions=("float32",),
                            weights="mini", rounds=2)
    assert len(found) == 2 and (found["a second"] > 0).all() and (found["TFLOP a call"] > 0).all()
    assert found["peak MB"].notna().all() == (device == "cuda")


def test_without_a_gpu_every_row_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = explainer_speed(NAMES, [], PHRASES)
    assert len(found) == 9 * len(NAMES) and set(found.device) == {NOT_RUN} and found["a second"].isna().all()
    assert speed_row(None, "cuda")["device"] == NOT_RUN
