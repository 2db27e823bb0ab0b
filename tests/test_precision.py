"""The settings of how a model computes act, and a run records what was done: both are looked at inside the network."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook
from PIL import Image

from qgcam_lib.cli.main import main
from qgcam_lib.models import registry
from qgcam_lib.models.common import device
from qgcam_lib.models.common.device import use_device
from qgcam_lib.models.named import as_model, load_source
from qgcam_lib.models.registry import load_model
from qgcam_lib.runs import read_run
from qgcam_lib.runs.runner import plan_run
from qgcam_lib.settings import Settings, models_used, on_use

PICTURES = [Image.fromarray(np.random.default_rng(k).integers(0, 255, (60, 80, 3), dtype=np.uint8)) for k in range(7)]
ASK = {
    "blip-base": lambda model: model.maps_batch(PICTURES, [["a dog", "a red ball"]] * 7),
    "vilt": lambda model: model.maps(PICTURES[0], ["a dog"]),
    "clip-vit-b32": lambda model: model.score(PICTURES, ["a dog"]),
    "mdetr-like": lambda model: model.detect(PICTURES[0], "a dog", [[(0, 5)]]),
    "vilbert": lambda model: model.rank(PICTURES[0], np.array([[0, 0, 30, 30], [9, 9, 60, 50.0]]), "the dog"),
    "blip-base-as-answerer": lambda model: model.answer(PICTURES[0], "is there a dog?"),
}  # fmt: skip


def network(model):
    """The adapter's network, also of a model that is made of another one."""
    while not isinstance(getattr(model, "model", None), torch.nn.Module):
        model = model.matcher
    return model.model


def inside(model, ask):
    """What the network's layers see: types of products, matrix precisions, and pictures at once."""
    seen = SimpleNamespace(types=set(), matmul=set(), batch=0)

    def look(layer, given, found):
        seen.types.add(found.dtype)
        seen.matmul.add(torch.get_float32_matmul_precision())
        if isinstance(layer, torch.nn.Conv2d) and layer.in_channels == 3:
            seen.batch = max(seen.batch, len(given[0]))

    kinds = torch.nn.Linear | torch.nn.Conv2d
    hooks = [layer.register_forward_hook(look) for layer in network(model).modules() if isinstance(layer, kinds)]
    seen.found = ask(model)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("name", ASK)
@pytest.mark.parametrize("by", ["argument", "setting"])
def test_precision_and_batch_reach_every_role(name, by, monkeypatch):
    for precision, kind, matmul in (("float32", torch.float32, "highest"), ("tf32", torch.float32, "high"),
                                    ("bfloat16", torch.bfloat16, "highest")):
        given = {"precision": precision, "batch_size": 3}
        if by == "setting":
            monkeypatch.setattr(registry, "settings", Settings(**given))
            given = {}
        on_use(lambda models: None)
        model = load_source(name, registry.MODELS[name].role, **given)
        with torch.autocast("cpu", torch.bfloat16):  # what holds around the call does not matter
            seen = inside(model, ASK[name])
        assert (seen.types, seen.matmul) == ({kind}, {matmul})
        assert {weight.dtype for weight in network(model).parameters()} == {torch.float32}
        assert seen.batch == (3 if name in ("blip-base", "clip-vit-b32") else min(seen.batch, 1))
        used = models_used()
        assert {one["precision"] for one in used} == {precision} and {one["device"] for one in used} == {"cpu"}
        assert max(one["batch"] for one in used) == seen.batch or name == "vilbert"
        assert model.card["precision" if precision != "float32" else "name"]
    assert torch.get_float32_matmul_precision() == "highest"


def test_float32_is_bit_for_bit_the_same_beside_the_other_precisions():
    model, half = load_model("blip-base"), load_model("blip-base", precision="bfloat16")
    alone = model.maps(PICTURES[0], ["a dog"])
    near = half.maps(PICTURES[0], ["a dog"])
    assert torch.equal(model.maps(PICTURES[0], ["a dog"]), alone) and near.dtype == torch.float32
    assert 0 < (near - alone).abs().max() < 0.05 * alone.max()


def test_a_network_that_is_used_past_its_adapter_cannot_make_the_record_say_what_was_not_done():
    on_use(lambda models: None)
    model = load_model("clip-vit-b32", precision="bfloat16")
    model.model.encode_image(torch.zeros(2, 3, 96, 96))
    assert models_used() == [{"model": "clip-vit-b32", "device": "cpu", "precision": "float32", "batch": 2}]


@pytest.mark.parametrize("option", [{"precision": "float16"}, {"precision": "half"}, {"device": "abacus"}])
def test_what_cannot_be_held_is_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        load_model("clip-vit-b32", **option)


def test_a_factory_gets_what_it_has_parameters_for(monkeypatch, tmp_path):
    (tmp_path / "takes_options.py").write_text("class Left:\n    card = {'name': 'left'}\n    maps = print\n\n"
                                         "    def __init__(self, precision, batch_size):\n"
                                         "        self.given = precision, batch_size\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert as_model("takes_options:Left", "explainer", precision="tf32").given == ("tf32", 8)


def test_a_network_of_a_user_is_listed_with_what_it_computed_with(monkeypatch, tmp_path):
    (tmp_path / "own_network.py").write_text("""
import torch
class Mine:
    card = {"name": "mine"}
    def __init__(self): self.net = torch.nn.Conv2d(3, 1, 4, stride=4)
    def maps(self, image, phrases):
        with torch.autocast("cpu", torch.bfloat16):
            return self.net(torch.zeros(len(phrases), 3, 8, 8))[:, 0].float()
""")
    monkeypatch.syspath_prepend(tmp_path)
    on_use(lambda models: None)
    load_source("own_network:Mine", "explainer").maps(None, ["a", "b"])
    assert models_used() == [{"model": "mine", "device": "cpu", "precision": "bfloat16", "batch": 2}]


@pytest.mark.parametrize("name", ["q_groundcam", "tricd_vqa", "ref_adv_train"])
def test_an_empty_device_is_the_setting_and_a_given_one_is_not(name, monkeypatch):
    plan = partial(plan_run, f"nbs/papers/{name}.ipynb", here=False, progress=False)
    monkeypatch.delenv("QGCAM_DEVICE", raising=False)
    here = plan()
    monkeypatch.setenv("QGCAM_DEVICE", "cuda:7")
    there = plan()
    assert (here.parameters["device"], there.parameters["device"]) == ("cpu", "cuda:7") and here.run_id != there.run_id
    assert plan({"device": "cpu"}).run_id == here.run_id
    monkeypatch.setattr(device, "settings", Settings(device="cuda:7"))
    with pytest.raises(ValueError, match="cuda:7"):
        use_device("")
    assert use_device("cpu").type == "cpu"


def test_the_command_line_says_it_too(tmp_path):
    on_use(lambda models: None)
    line = f"evaluate blip-base --tasks q_groundcam --precision bfloat16 --batch-size 3 --limit 60 --out {tmp_path}"
    assert main([*line.split(), "--bootstrap", "0", "--quiet"]) == 0
    assert models_used() == [{"model": "blip-base", "device": "cpu", "precision": "bfloat16", "batch": 3}]
    assert json.loads((tmp_path / "evaluate.json").read_text())["precision"] == "bfloat16"


CELL = """from qgcam_lib.runs import open_run
run = open_run('n', globals())
from PIL import Image
from qgcam_lib.models.registry import load_model
if model:
    load_model(model).score([Image.new('RGB', (80, 60), (k, 0, 0)) for k in range(9)], ['a dog'])
"""


@pytest.mark.nightly
def test_the_record_of_a_run_has_what_its_models_did(tmp_path):
    cells = [new_code_cell('model: str = ""', metadata={"tags": ["parameters"]}), new_code_cell(CELL)]
    nbformat.write(new_notebook(cells=cells), tmp_path / "n.ipynb")
    said = {"QGCAM_PRECISION": "bfloat16", "QGCAM_BATCH_SIZE": "4", "QGCAM_CACHE": str(tmp_path / "cache")}
    code = ("from qgcam_lib.runs.runner import run_notebook\n"
            "for name in ('', 'clip-vit-b32'):\n"
            "    print(run_notebook('n.ipynb', {'model': name}, progress=False, outputs='o').folder)")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                          env=os.environ | said)
    assert done.returncode == 0, done.stderr[-2000:]
    without, of_clip = map(read_run, map(Path, done.stdout.split()))
    assert without["models"] == [] and not {"precision", "batch_size", "device", "settings"} & set(without)
    assert of_clip["models"] == [{"model": "clip-vit-b32", "device": "cpu", "precision": "bfloat16", "batch": 4}]
