"""Models of Hugging Face's libraries without a hub: a cache that was carried here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from test_prompted import write_llava

from qgcam_lib.models import load_model
from qgcam_lib.models.common.sources import hub_folder

SILENT = "http://127.0.0.1:9"  # nobody listens there
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
def test_a_cache_that_was_carried_here_is_read_without_a_hub(tmp_path, monkeypatch):
    one = load_model("prompted", "random", config=write_llava(tmp_path / "llava"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("transformers.utils.hub.TRANSFORMERS_CACHE", str(tmp_path))
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
