"""What a store is bound to beside a card: the code that made its rows and the weights in memory."""

import importlib
import sys
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from qgcam_lib.data.records import GroundingExample
from qgcam_lib.errors import StoreError
from qgcam_lib.grounding import ground
from qgcam_lib.models import load_model
from qgcam_lib.storage.fingerprints import own_code, weights_fingerprint

MINE = """
import torch
from my_helper import corner

class Mine(torch.nn.Module):
    card, protocol = {{"name": "mine"}}, "pixel"

    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(weight))
        self.asked = []

    def maps(self, image, phrases):
        self.asked.append(image)
        found = torch.zeros(len(phrases), 8, 8)
        found[:, {row}, corner()] = float(self.weight)
        return found

    def maps_batch(self, images, phrases):
        return [self.maps(image, some) for image, some in zip(images, phrases)]
"""


@pytest.fixture
def examples(tmp_path):
    Image.new("RGB", (32, 24), (9, 9, 9)).save(tmp_path / "grey.png")
    return [GroundingExample(f"{k}", tmp_path / "grey.png", f"thing {k}", np.array([[0, 0, 9, 9]]), "g", (24, 32))
            for k in range(3)]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Writes the user's two files and imports the explainer anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(row=0, corner=0):
        (tmp_path / "my_explainer.py").write_text(MINE.format(row=row))
        (tmp_path / "my_helper.py").write_text(f"def corner(): return {corner}")
        for name in ("my_explainer", "my_helper"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("my_explainer").Mine

    yield load
    for name in ("my_explainer", "my_helper"):
        sys.modules.pop(name, None)


def test_a_users_explainer_under_the_same_card(examples, mine, tmp_path):
    kept = partial(ground, dataset=examples, store=tmp_path / "rows", save_maps=True, progress=False)
    first = kept(mine()())
    again = mine()()
    assert kept(again).equals(first) and again.asked == [], "unchanged: resumed"
    for changed, named in [(mine(row=7), "own_code"), (mine(corner=7), "own_code")]:
        with pytest.raises(StoreError, match=named) as caught:
            kept(changed())
        assert len(str(caught.value)) < 300
    with pytest.raises(StoreError, match="loaded_weights"):
        kept(mine()(weight=0.5))
    with pytest.raises(StoreError, match="own_code"):
        ground(mine(row=7)(), examples, store=tmp_path / "new", save_maps=tmp_path / "rows-maps", progress=False)
    assert kept(mine()()).equals(first)


def test_a_model_of_the_zoo_whose_weights_were_changed_in_memory(examples, tmp_path):
    model = load_model("blip-base")
    first = ground(model, examples, store=tmp_path / "rows", progress=False)
    assert ground(load_model("blip-base"), examples, store=tmp_path / "rows", progress=False).equals(first)
    with torch.no_grad():
        next(model.model.parameters()).view(-1)[0] += 1e-3
    with pytest.raises(StoreError, match="loaded_weights"):
        ground(model, examples, store=tmp_path / "rows", progress=False)


def test_a_wrapped_model_counts_with_what_it_wraps(mine):
    class Wrapper:
        def __init__(self, inner):
            self.inner = [inner]

    one, other = Wrapper(mine()()), Wrapper(mine()(weight=2.0))
    assert weights_fingerprint(one) != weights_fingerprint(other)
    before = own_code(Wrapper(mine()()))
    assert own_code(Wrapper(mine(row=3)())) != before
    assert own_code(load_model("blip-base")) == "", "the library is covered by its own fingerprint"


def test_a_class_without_a_file_is_continued_by_itself_alone(examples, tmp_path):
    def made():
        space = {}
        exec(MINE.format(row=0).replace("from my_helper import corner", "corner = int"), space)
        return partial(ground, space["Mine"](), examples, store=tmp_path / "rows", progress=False)

    first, kept = made(), made()
    assert first().error.isna().all() and first().equals(first())
    with pytest.raises(StoreError, match="own_code is 'no file of Mine") as caught:
        kept()
    assert len(str(caught.value)) < 300
