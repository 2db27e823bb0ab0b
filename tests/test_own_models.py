"""A model of your own: a function, an object with a card, `package.module:factory`, `maps:PATH`; at every door."""

import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from qgcam_lib.data.probes.groups import SwapPair
from qgcam_lib.data.records import GroundingExample, box_share
from qgcam_lib.data.referring.expressions import Expression
from qgcam_lib.errors import ExampleError, FileFault, ParameterError, StoreError
from qgcam_lib.grounding import ground
from qgcam_lib.grounding.own_maps import load_explainer, score_files
from qgcam_lib.grounding.run import example_map
from qgcam_lib.maps import prepare_maps
from qgcam_lib.metrics import SCORE_COLUMNS, score_maps
from qgcam_lib.models import Explainer
from qgcam_lib.models.named import load_source
from qgcam_lib.models.roles import as_explainer
from qgcam_lib.probes import probe
from qgcam_lib.referring import refer
from qgcam_lib.runs.runner import plan_run
from qgcam_lib.settings import ROOT
from qgcam_lib.storage.closure import is_module, module_files

MODULE = '''
import numpy as np

NUMBER = 5


class Own:
    def __init__(self, **given):
        self.card = {"name": "own", **given}

    def maps(self, image, phrases):
        return np.random.default_rng(len(phrases[0])).random((len(phrases), 4, 4)).astype("float32")


class Bare:
    def maps(self, image, phrases):
        return None


class Deep(Own):
    def __init__(self, depth):
        super().__init__()


def make(weights="", device="cpu", seed=0):
    return Own(weights=weights, device=device, seed=seed)


def plain():
    return Own()


def bare():
    return Bare()


def classes():
    return Own
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's in a folder that Python looks in; its name."""
    (tmp_path / "code" / "pack").mkdir(parents=True)
    (tmp_path / "code" / "pack" / "own.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "code")
    yield "pack.own"
    for name in ("pack.own", "pack"):
        sys.modules.pop(name, None)


@pytest.fixture
def examples(tmp_path):
    Image.linear_gradient("L").resize((60, 40)).convert("RGB").save(tmp_path / "a.png")
    rows = (("1", "a dog", [[3, 4, 30, 20]]), ("2", "the sky", [[0, 0, 60, 10]]))
    return [GroundingExample(id, tmp_path / "a.png", text, boxes, "a", (40, 60)) for id, text, boxes in rows]


def quietly(model, examples, **options):
    return ground(model, examples, **{"protocol": "pixel", "progress": False, **options})


# -- functions and names


def brightness(image, text):
    return np.asarray(image.convert("L").resize((8, 6)), float) + len(text)


def test_a_function_of_image_and_text_is_scored_like_its_maps(examples):
    frame = quietly(brightness, examples)
    picture = Image.open(examples[0].image)
    expected = score_maps([brightness(picture, e.prompt) for e in examples], [e.boxes for e in examples],
                          image_sizes=(40, 60), protocol="pixel")
    names = list(SCORE_COLUMNS)
    pd.testing.assert_frame_equal(frame[names], expected[names].astype(float), rtol=1e-6)
    assert frame.attrs["model"] == {"name": "brightness"}


def test_tensors_are_taken_and_maps_of_a_wrong_shape_named(examples):
    torch = pytest.importorskip("torch")
    grown = as_explainer(lambda image, text: torch.ones(3, 5, requires_grad=True), "grown", by="hand")
    assert grown.maps(None, ["a", "b"]).shape == (2, 3, 5) and grown.card == {"name": "grown", "by": "hand"}
    assert isinstance(grown, Explainer) and grown.maps(None, []).shape[0] == 0
    for wrong in (np.ones((1, 3, 3)), np.ones((0, 3))):
        with pytest.raises(ValueError, match="expected one map"):
            as_explainer(lambda image, text, wrong=wrong: wrong).maps(None, ["a dog"])


def test_a_name_and_a_factory_are_models_too(examples, module):
    named = quietly("blip-base", examples)
    assert named.attrs["model"]["name"] == "blip-base" and named.attrs["model"]["weights"] == "mini"
    assert quietly(f"{module}:plain", examples).attrs["model"] == {"name": "own"}
    with pytest.raises(ParameterError, match="Did you mean 'blip-base'"):
        quietly("blip-bas", examples)


def test_models_and_data_sets_of_another_type_are_refused(examples):
    for model in (3, Explainer):
        with pytest.raises(TypeError, match="Explainer"):
            quietly(model, examples)
    with pytest.raises(TypeError, match="dataset"):
        quietly(brightness, "miniworld")


# -- package.module:factory


def test_a_factory_gets_what_it_has_parameters_for(module, tmp_path):
    assert load_source(f"{module}:make", "explainer", seed=4).card == {
        "name": "own", "weights": "", "device": "cpu", "seed": 4}  # fmt: skip
    given = load_source(f"{module}:make", "explainer", tmp_path / "w.pt", "cuda")
    assert given.card["weights"] == str(tmp_path / "w.pt") and given.card["device"] == "cuda"
    assert load_source(f"{module}:Own", "explainer").card == {"name": "own"}


@pytest.mark.parametrize("source, weights", [
    ("pack.nothing:make", "mini"), ("pack.own:mak", "mini"), ("pack.own:NUMBER", "mini"), ("pack.own:bare", "mini"),
    ("pack.own:classes", "mini"), ("pack.own:plain", "somewhere.pt"), ("pack.own:plain", "official"),
])
def test_what_is_wrong_with_a_factory_is_said(module, source, weights):
    with pytest.raises(ParameterError, match=source.split(":")[0]):
        load_source(source, "explainer", weights)


# -- the share of the boxes


def test_score_files_says_the_boxes_share(tmp_path):
    maps = {"a": np.full((6, 8), 0.5), "b": np.arange(48.0).reshape(6, 8) / 48, "c": np.full((6, 8), np.nan)}
    np.savez(tmp_path / "maps.npz", **maps)
    (tmp_path / "boxes.csv").write_text(
        "id,x0,y0,x1,y1,width,height\na,0,0,16,12,32,24\na,8,0,24,12,32,24\nb,-4,0,8,24,32,24\nc,0,0,8,8,32,24\n")
    with pytest.warns(UserWarning, match="extend beyond"):
        frame = score_files(tmp_path / "maps.npz", tmp_path / "boxes.csv", protocol="native", on_error="record")
    assert frame.columns[:4].tolist() == ["id", "group", "n_boxes", "box_share"]
    shares = [box_share([[0, 0, 16, 12], [8, 0, 24, 12]], (24, 32)), 8 / 32]
    assert frame.box_share[:2].tolist() == shares and np.isnan(frame.box_share[2])
    assert frame.io_ratio[0] == pytest.approx(shares[0])  # the floor: an even map


# -- maps of a file in a model's place


def heat_file(folder, examples, **more):
    maps = {e.id: np.outer(np.arange(4.0), np.arange(6.0)) + int(e.id) for e in examples} | more
    np.savez(folder / "heat.npz", **maps)
    return maps


def test_maps_of_a_file_are_scored_by_id_and_drawn_again(examples, tmp_path):
    maps = heat_file(tmp_path, examples, other=np.ones((2, 2)))
    stored = load_explainer(f"maps:{tmp_path}/heat.npz")
    frame = quietly(stored, examples)
    expected = score_maps([maps[e.id] for e in examples], [e.boxes for e in examples], image_sizes=(40, 60),
                          protocol="pixel")
    names = list(SCORE_COLUMNS)
    pd.testing.assert_frame_equal(frame[names], expected[names].astype(float))
    assert frame.attrs["model"]["maps"] == 3 and len(frame.attrs["model"]["sha256"]) == 64
    drawn = example_map(stored, examples[1], "pixel")
    assert drawn.shape == (40, 60) and np.array_equal(drawn, prepare_maps(maps["2"][None], (40, 60), "pixel")[0])


def test_maps_without_their_examples_are_named(examples, tmp_path):
    heat_file(tmp_path, examples[:1])
    stored = load_explainer(f"maps:{tmp_path}/heat.npz")
    with pytest.raises(ExampleError, match="example 2.*heat.npz has no map of this id"):
        quietly(stored, examples)
    assert quietly(stored, examples, on_error="record").error.notna().tolist() == [False, True]
    with pytest.raises(FileFault, match="such as '2'; the file's first id is '1'"):
        quietly(stored, examples[1:], on_error="record")


def test_other_maps_in_the_file_do_not_continue_a_store(examples, tmp_path):
    heat_file(tmp_path, examples)
    quietly(load_explainer(f"maps:{tmp_path}/heat.npz"), examples, store=tmp_path / "rows")
    heat_file(tmp_path, examples[:1], **{"2": np.eye(3)})
    with pytest.raises(StoreError, match="model.sha256"):
        quietly(load_explainer(f"maps:{tmp_path}/heat.npz"), examples, store=tmp_path / "rows")


# -- the notebook: what is asked, and what its run's id knows


NOTEBOOK = ROOT / "nbs" / "papers" / "q_groundcam.ipynb"


def test_the_files_behind_a_module_are_found_without_running_it(tmp_path):
    (tmp_path / "pack" / "inner").mkdir(parents=True)
    for name, source in {"pack/__init__.py": "raise SystemExit('imported')", "pack/inner/one.py": "from .. import two",
                         "pack/two.py": "import numpy, json\nimport beside", "beside.py": "", "apart.py": "",
                         "pack/inner/unused.py": ""}.items():
        (tmp_path / name).write_text(source)
    found = module_files("pack.inner.one", [tmp_path])
    assert list(found) == ["beside", "pack", "pack.inner.one", "pack.two"]
    assert module_files("nothing_there", [tmp_path]) == {} and not is_module("pack.inner.no", [tmp_path])
    assert is_module("pack.inner", [tmp_path]) and not is_module("pack.inner")


def test_a_run_id_knows_the_code_of_a_factory_and_what_it_imports(tmp_path, monkeypatch):
    (tmp_path / "mine_to_plan.py").write_text(f"import beside_to_plan\n{MODULE}")
    (tmp_path / "beside_to_plan.py").write_text("WIDTH = 3\n")
    monkeypatch.chdir(tmp_path)  # the folder of the caller, which is not on Python's path
    given = {"model": "mine_to_plan:make", "limit": 5}
    plan = plan_run(NOTEBOOK, given)
    (entry,) = [one for one in plan.inputs["weights"] if one["kind"] == "own model"]
    assert entry["path"] == "mine_to_plan:make" and plan_run(NOTEBOOK, given).run_id == plan.run_id
    (tmp_path / "beside_to_plan.py").write_text("WIDTH = 4\n")
    assert plan_run(NOTEBOOK, given).run_id != plan.run_id
    assert "mine_to_plan" not in sys.modules, "planning runs nothing of the user's"
    with pytest.raises(ParameterError, match="`model`.*names module 'mine_to_pla'"):
        plan_run(NOTEBOOK, given | {"model": "mine_to_pla:make"})


def test_a_run_id_knows_the_content_of_a_file_of_maps(examples, tmp_path, monkeypatch):
    heat_file(tmp_path, examples)
    monkeypatch.chdir(tmp_path)
    plan = plan_run(NOTEBOOK, {"model": "maps:heat.npz"})
    assert (plan.cwd / plan.parameters["model"].removeprefix("maps:")).resolve() == tmp_path / "heat.npz"
    assert [one["kind"] for one in plan.inputs["data"] if one["path"].startswith("maps:")] == ["file"]
    heat_file(tmp_path, examples[:1])
    assert plan_run(NOTEBOOK, {"model": "maps:heat.npz"}).run_id != plan.run_id
    for wrong in ("maps:other.npz", "maps:", "siglip-b16"):
        with pytest.raises(ParameterError, match="`model`"):
            plan_run(NOTEBOOK, {"model": wrong})


# -- what a model gives that it must not give


class Said:
    """A model that gives what it is told to, in every role."""

    card = {"name": "said"}

    def __init__(self, answer, *verbs):
        vars(self).update(dict.fromkeys(verbs, lambda *given: answer))


def test_another_number_or_shape_of_results_is_named(examples):
    folder, pairs = examples[0].image.parent, [SwapPair(id="s", images=("a.png", "b.png"), prompts=("a dog", "a cat"))]
    examples[0].image.with_name("b.png").write_bytes(examples[0].image.read_bytes())
    words = [Expression(id=f"{k}", image="a.png", group="a", text=f"dog {k}", box=(0, 0, 5, 5),
                        candidates=((0, 0, 5, 5), (3, 3, 9, 9))) for k in range(3)]
    asks = {"maps": lambda model: quietly(model, examples), "score": lambda model: probe(model, pairs, folder),
            "rank": lambda model: refer(model, words, folder)}
    for verb, answer, said in [
            ("maps", np.ones((1, 4, 4)), "maps: expected 2 results, a map for each phrase of a.png, got 1"),
            ("maps", None, "maps: expected 2 .*got a NoneType"), ("maps_batch", [], "maps_batch: expected 1 .*got 0"),
            ("score", np.ones((1, 2)), "score: expected 2 results, a row of scores for each picture, got 1"),
            ("score", np.ones((3, 2)), "score: .*got 3"), ("score", 1.0, "score: .*got a float"),
            ("score", np.ones((2, 3)), "2 finite scores"), ("score_batch", [np.ones(2)], "score_batch: .*got 1"),
            ("rank", np.ones(1), "rank: expected 2 finite"), ("rank_batch", None, "rank_batch: .*got a NoneType"),
            ("rank_batch", [np.ones((1, 2))], "rank_batch: expected 3 results, a row of scores for each expr.*got 1")]:
        role = verb.partition("_")[0]
        with pytest.raises(ValueError, match=said):
            asks[role](Said(answer, verb))


def test_a_class_that_needs_something_and_weights_of_others_are_refused(module):
    with pytest.raises(ParameterError, match=r"pack.own:Deep, whose __init__ needs depth.*def make"):
        load_source(f"{module}:Deep", "explainer")
    with pytest.raises(ParameterError, match="'random'"):
        load_source(f"{module}:make", "explainer", "random")
    with pytest.raises(TypeError, match="not a class"):
        as_explainer(Said)
