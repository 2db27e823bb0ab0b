"""Long work says how long it takes: passes are counted where they are done, and nobody is told about short work."""

import numpy as np
import pytest
import torch
from PIL import Image

from qgcam_lib.data.picture_loop import Asked, ask_pictures
from qgcam_lib.explain import gscorecam as module
from qgcam_lib.models.clip.proposals import sliding_windows
from qgcam_lib.models.registry import load_model
from qgcam_lib.storage import progress as clock
from qgcam_lib.storage.progress import passed, passes


class Slow:
    """A model of 40 passes a picture; each takes some seconds of a clock that only it moves."""

    card = {"name": "slow"}

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds, self.batches = 0.0, seconds, []
        monkeypatch.setattr(clock.time, "perf_counter", lambda: self.now)

    def answers(self, pictures):
        self.batches.append(len(pictures))
        for _ in pictures:
            with passes(40):
                for _ in range(40):
                    self.now += self.seconds
                    passed()
        return [{"value": 1.0}] * len(pictures)


@pytest.fixture
def asked(tmp_path):
    for k in range(7):
        Image.new("RGB", (8, 8), (k, 0, 0)).save(tmp_path / f"{k}.png")
    return [Asked.within([tmp_path], str(k), "all", f"{k}.png") for k in range(7)]


def run(model, asked, **options):
    return ask_pictures(model, asked, lambda model, pictures, whats: model.answers(pictures), {"value": "float64"},
                        dataset={"name": "squares"}, settings={}, batch_images=3, **options)


def test_a_long_picture_is_told_of_once_and_early(asked, monkeypatch, capsys):
    model = Slow(monkeypatch, 12.0)  # 8 minutes a picture
    frame = run(model, asked)
    said = capsys.readouterr().err
    assert said.count("about 40 passes a picture") == 1
    assert "slow on squares: about 40 passes a picture, 8 min; 7 pictures, about 56 min" in said
    assert len(frame) == 7 and frame.error.isna().all()
    assert model.batches == [3, 1, 1, 1, 1], "a kill loses one long picture, not a batch"


@pytest.mark.parametrize("seconds, progress", [(0.2, True), (12.0, False)])
def test_short_work_and_quiet_work_say_nothing_of_passes(asked, monkeypatch, capsys, seconds, progress):
    model = Slow(monkeypatch, seconds)
    run(model, asked, progress=progress)
    said = capsys.readouterr().err
    assert "pass" not in said and (progress or not said)
    assert sum(model.batches) == 7


def test_without_a_loop_one_picture_says_it_too(monkeypatch, capsys):
    Slow(monkeypatch, 30.0).answers([None])
    assert "this picture: about 40 passes a picture, 20 min" in capsys.readouterr().err
    passed(3)  # nobody counts


def counted(monkeypatch, *modules):
    """The passes that these modules count, as (asked for, done)."""
    totals, done = [], []

    def noted(total):
        totals.append(total)
        return passes(total)

    for one in modules:
        if hasattr(one, "passes"):
            monkeypatch.setattr(one, "passes", noted)
        if hasattr(one, "passed"):
            monkeypatch.setattr(one, "passed", lambda count=1: done.append(count))
    return totals, done


def test_gscorecam_counts_its_masked_pictures(monkeypatch):
    model = load_model("clip-rn50x16-gscorecam", "mini")
    totals, done = counted(monkeypatch, module)
    pixels = model.pixels([Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8))])[0]
    found = model.scorecam(pixels, model.text_vectors(["a red ball", "a dog"]))
    assert totals == [sum(done)] == [found.shared.embedded] and max(done) <= model.chunk
    assert torch.isfinite(found.maps).all()


def test_proposals_count_their_crops(monkeypatch):
    from qgcam_lib.models.clip import explainer, proposals

    totals, done = counted(monkeypatch, proposals, explainer)
    load_model("clip-proposals", "mini").detect(Image.new("RGB", (60, 40)), "a dog", [[(0, 5)]])
    assert totals == [sum(done)] == [len(sliding_windows(60, 40))]
