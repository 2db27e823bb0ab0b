"""Models of Hugging Face's libraries without a hub: what is said, how soon, and a cache that was carried here."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

from qgcam_lib.models import load_model
from qgcam_lib.models.common import sources
from qgcam_lib.models.common.sources import hub_answers, hub_folder
from qgcam_lib.models.registry import MODELS

SILENT = "http://127.0.0.1:9"  # nobody listens there
OFFICIAL = {name: entry.checkpoint.removeprefix("https://huggingface.co/") for name, entry in MODELS.items()
            if entry.checkpoint.startswith("https://huggingface.co/")}

ASK = """
import sys, time
import lavis.models, transformers  # the libraries take seconds to import, which is not what is measured
from qgcam_lib.models import load_model

for name in sys.argv[1:]:
    began = time.monotonic()
    try:
        load_model(name, "official")
    except FileNotFoundError as error:
        print(name, round(time.monotonic() - began, 1), str(error).replace(chr(10), " "), sep="\\t")
"""

READ = """
import time
import transformers
from PIL import Image
from qgcam_lib.models import load_model

began = time.monotonic()
model = load_model("prompted", "official", checkpoint="owner/name")
print(time.monotonic() - began, model.yes_score(Image.new("RGB", (40, 30), "red"), "is it red"))
"""


def run_online(script, *args, **environment):
    """A script in a process of its own, online by its settings, with a hub that cannot be reached."""
    told = {"HF_ENDPOINT": SILENT, "https_proxy": SILENT, "PYTHONPATH": str(Path(__file__).parents[1]), **environment}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    return subprocess.run([sys.executable, "-c", script, *args], env=kept | told, capture_output=True, text=True,
                          timeout=300)


@pytest.mark.nightly
def test_every_official_model_says_where_its_files_have_to_lie_and_soon(tmp_path):
    done = run_online(ASK, *OFFICIAL, "mdetr-enb5", HF_HOME=str(tmp_path), TORCH_HOME=str(tmp_path))
    said = {row[0]: row[1:] for row in (line.split("\t") for line in done.stdout.splitlines())}
    assert said.keys() == {*OFFICIAL, "mdetr-enb5"}, done.stderr[-2000:]
    mdetr = said.pop("mdetr-enb5")
    assert float(mdetr[0]) < 40 and "pretrained_EB5_checkpoint.pth" in mdetr[1] and "models--roberta-base" in mdetr[1]
    for name, (seconds, message) in said.items():
        assert float(seconds) < 40, (name, seconds)
        place = tmp_path / "hub" / f"models--{OFFICIAL[name].replace('/', '--')}"
        needed = "open_clip_model.safetensors" if name == "metaclip-b32" else "config.json"
        assert str(place) in message and needed in message, message
        assert f"huggingface-cli download {OFFICIAL[name]}" in message


@pytest.mark.nightly
def test_a_cache_that_was_carried_here_is_read_without_a_hub(tmp_path, monkeypatch):
    small = {"text_config": {"vocab_size": 1200, "hidden_size": 32, "num_hidden_layers": 1},
             "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "image_size": 64}}
    for part in small.values():
        part |= {"intermediate_size": 32, "num_attention_heads": 2}
    small["text_config"]["num_key_value_heads"] = 1
    one = load_model("prompted", "random", config=small)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("transformers.utils.hub.TRANSFORMERS_CACHE", str(tmp_path))
    monkeypatch.setattr(sources, "hub_answers", lambda: False)
    folder = hub_folder("owner/name") / "snapshots" / ("0" * 40)
    one.model.save_pretrained(folder)
    one.processor.save_pretrained(folder)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text(folder.name)
    again = load_model("prompted", "official", checkpoint="owner/name")
    for key, value in one.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[key]), key
    picture = Image.new("RGB", (40, 30), "red")
    assert again.yes_score(picture, "is it red") == one.yes_score(picture, "is it red")
    done = run_online(READ, HF_HUB_CACHE=str(tmp_path))
    seconds, score = done.stdout.split()
    assert float(seconds) < 40 and float(score) == pytest.approx(one.yes_score(picture, "is it red"), abs=1e-6)
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError, match="models--owner--name"):
        load_model("prompted", "official", checkpoint="owner/name")


@pytest.mark.parametrize("answer", ["refused", "slow"])
def test_the_hub_is_asked_once_and_not_for_long(answer, monkeypatch):
    asked = []

    def listen(request, timeout):
        asked.append(timeout)
        time.sleep(3 if answer == "slow" else 0)  # a name that is looked up for ever
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(sources, "urlopen", listen)
    hub_answers.cache_clear()
    began = time.monotonic()
    assert [hub_answers(0.2) for _ in range(5)] == [False] * 5
    assert len(asked) == 1 and time.monotonic() - began < 2
    hub_answers.cache_clear()
