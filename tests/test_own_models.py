"""A model of your own: a function, an object with a card, `package.module:factory`, `maps:PATH`; at every door."""

import os
import subprocess
import sys

import nbformat
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from qgcam_lib.data.records import ExampleList, GroundingExample, box_share
from qgcam_lib.errors import ExampleError, FileFault, ParameterError, StoreError
from qgcam_lib.grounding import ground
from qgcam_lib.grounding.explainers import load_explainer
from qgcam_lib.grounding.own_maps import score_files
from qgcam_lib.grounding.run import example_map
from qgcam_lib.maps import prepare_maps
from qgcam_lib.metrics import SCORE_COLUMNS, score_maps
from qgcam_lib.models import Explainer
from qgcam_lib.models.named import check_role, factory_source, file_source, load_source, source_in_role
from qgcam_lib.models.roles import as_explainer
from qgcam_lib.papers.q_groundcam.baselines import weights_origin, with_baselines
from qgcam_lib.report.cautions import source_name, why_not_runnable
from qgcam_lib.runs import read_run
from qgcam_lib.runs.runner import plan_run, run_notebook
from qgcam_lib.settings import ROOT
from qgcam_lib.storage.modules import is_module, module_files

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


def test_a_changed_function_does_not_continue_the_rows_of_another(examples, tmp_path):
    quietly(brightness, examples, store=tmp_path / "rows")
    with pytest.raises(StoreError):
        quietly(lambda image, text: np.ones((2, 2)), examples, store=tmp_path / "rows")


def test_tensors_are_taken_and_maps_of_a_wrong_shape_named(examples):
    torch = pytest.importorskip("torch")
    grown = as_explainer(lambda image, text: torch.ones(3, 5, requires_grad=True), "grown", by="hand")
    assert grown.maps(None, ["a", "b"]).shape == (2, 3, 5) and grown.card == {"name": "grown", "by": "hand"}
    assert isinstance(grown, Explainer) and grown.maps(None, []).shape[0] == 0
    for wrong in (np.ones((1, 3, 3)), 1.0, np.ones((0, 3))):
        with pytest.raises(ValueError, match="expected one map"):
            as_explainer(lambda image, text, wrong=wrong: wrong).maps(None, ["a dog"])


def test_a_name_and_a_factory_are_models_too(examples, module):
    named = quietly("blip-base", examples)
    assert named.attrs["model"]["name"] == "blip-base" and named.attrs["model"]["weights"] == "mini"
    assert quietly(f"{module}:plain", examples).attrs["model"] == {"name": "own"}
    with pytest.raises(ParameterError, match="Did you mean 'blip-base'"):
        quietly("blip-bas", examples)


@pytest.mark.parametrize("model, said", [(3, "got 3"), (Explainer, "not a class"), (object(), "got <object")])
def test_what_is_no_model_is_refused_with_a_sentence(examples, model, said):
    with pytest.raises(TypeError, match=f"expected an Explainer.*{said}"):
        quietly(model, examples)


def test_a_model_without_a_card_is_refused_before_any_picture(examples):
    class Bare:
        def maps(self, image, phrases):
            raise AssertionError("asked")

    with pytest.raises(TypeError, match="without a `card`"):
        quietly(Bare(), examples)


@pytest.mark.parametrize("wrong", [{"id": "1"}, ("1", "a.png", "a dog", [[0, 0, 5, 5]]), "1", None])
def test_an_example_of_another_type_is_refused_with_its_place(examples, wrong):
    with pytest.raises(TypeError, match=f"expected a GroundingExample.*{type(wrong).__name__} at 2.*Make one"):
        quietly(brightness, [*examples, wrong])
    with pytest.raises(TypeError, match="expected a GroundingExample"):
        ExampleList([wrong])


@pytest.mark.parametrize("wrong", [{"1": "a dog"}, "miniworld", pd.DataFrame({"id": [1]})])
def test_a_data_set_of_another_type_is_refused(wrong):
    with pytest.raises(TypeError, match="dataset: expected a data set.*load_dataset"):
        quietly(brightness, wrong)


# -- package.module:factory


def test_texts_are_read_as_name_factory_or_file():
    assert factory_source("pack.own:make") == ("pack.own", "make")
    assert factory_source("own:Own.load") == ("own", "Own.load")
    for other in ("blip-base", "maps:heat", "scores:one", "predictions:two", "own:", ":make", "a b:c", "own:f()"):
        assert factory_source(other) is None
    assert str(file_source("maps:heat.npz", "maps")) == "heat.npz" and file_source("blip-base", "maps") is None
    with pytest.raises(ParameterError, match="maps:PATH"):
        file_source("maps:", "maps")
    with pytest.raises(ParameterError, match="is a matcher.*package.module:factory or maps:PATH"):
        source_in_role("explainer", "siglip-b16", "maps")


def test_a_factory_gets_what_it_has_parameters_for(module, tmp_path):
    assert load_source(f"{module}:make", "explainer", seed=4).card == {
        "name": "own", "weights": "", "device": "cpu", "seed": 4}  # fmt: skip
    given = load_source(f"{module}:make", "explainer", tmp_path / "w.pt", "cuda")
    assert given.card["weights"] == str(tmp_path / "w.pt") and given.card["device"] == "cuda"
    assert load_source(f"{module}:Own", "explainer").card == {"name": "own"}


@pytest.mark.parametrize("source, weights, said", [
    ("pack.nothing:make", "mini", "no module 'pack.nothing'"),
    ("nothing_at_all:make", "mini", "no module 'nothing_at_all'.*PYTHONPATH"),
    ("pack.own:mak", "mini", "has no 'mak'"),
    ("pack.own:NUMBER", "mini", "which is a int"),
    ("pack.own:bare", "mini", "pack.own:bare: expected an explainer.*given a Bare. Missing: a `card`"),
    ("pack.own:classes", "mini", "given the class Own itself"),
    ("pack.own:plain", "somewhere.pt", "has no parameter 'weights'"),
    ("pack.own:plain", "official", "is for models of the registry"),
])  # fmt: skip
def test_what_is_wrong_with_a_factory_is_said(module, source, weights, said):
    with pytest.raises(ParameterError, match=said):
        load_source(source, "explainer", weights)


def test_a_module_that_fails_by_itself_shows_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "broken_of_mine.py").write_text("import no_such_package_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package_anywhere"):
        load_source("broken_of_mine:make", "explainer")


@pytest.mark.parametrize("role, verb", [("matcher", "score"), ("detector", "detect"), ("answerer", "answer"),
                                        ("ranker", "rank"), ("explainer", "maps")])  # fmt: skip
def test_every_role_names_its_method(role, verb):
    with pytest.raises(ParameterError, match=rf"a method {verb}\(.*`card`"):
        check_role(object(), role)


# -- the share of the boxes


def test_score_files_says_the_boxes_share(tmp_path):
    maps = {"a": np.full((6, 8), 0.5), "b": np.arange(48.0).reshape(6, 8) / 48, "c": np.full((6, 8), np.nan)}
    np.savez(tmp_path / "maps.npz", **maps)
    (tmp_path / "boxes.csv").write_text(
        "id,x0,y0,x1,y1,width,height\na,0,0,16,12,32,24\na,8,0,24,12,32,24\nb,-4,0,8,24,32,24\nc,0,0,8,8,32,24\n")
    with pytest.warns(UserWarning, match="stick out"):
        frame = score_files(tmp_path / "maps.npz", tmp_path / "boxes.csv", protocol="native", on_error="record")
    assert frame.columns[:4].tolist() == ["id", "group", "n_boxes", "box_share"]
    shares = [box_share([[0, 0, 16, 12], [8, 0, 24, 12]], (24, 32)), 8 / 32]
    assert frame.box_share[:2].tolist() == shares and np.isnan(frame.box_share[2])
    assert frame.io_ratio[0] == pytest.approx(shares[0])  # the floor: an even map


def test_without_a_size_the_share_is_that_of_the_map(tmp_path):
    np.savez(tmp_path / "maps.npz", a=np.ones((10, 20)))
    (tmp_path / "boxes.csv").write_text("id,x0,y0,x1,y1\na,0,0,10,5\n")
    assert score_files(tmp_path / "maps.npz", tmp_path / "boxes.csv", protocol="native").box_share[0] == 0.25


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
    with pytest.raises(FileFault, match="such as '2', got '1'"):
        quietly(stored, examples[1:], on_error="record")
    for option in ({"weights": "official"}, {"vocab": "words.txt"}):
        with pytest.raises(ParameterError, match="Leave it out"):
            load_explainer(f"maps:{tmp_path}/heat.npz", **option)


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
    with pytest.raises(ParameterError, match="`model`.*no module 'mine_to_pla'"):
        plan_run(NOTEBOOK, given | {"model": "mine_to_pla:make"})


def test_a_run_id_knows_the_content_of_a_file_of_maps(examples, tmp_path, monkeypatch):
    heat_file(tmp_path, examples)
    monkeypatch.chdir(tmp_path)
    plan = plan_run(NOTEBOOK, {"model": "maps:heat.npz"})
    assert (plan.cwd / plan.parameters["model"].removeprefix("maps:")).resolve() == tmp_path / "heat.npz"
    assert [one["kind"] for one in plan.inputs["data"] if one["path"].startswith("maps:")] == ["file"]
    heat_file(tmp_path, examples[:1])
    assert plan_run(NOTEBOOK, {"model": "maps:heat.npz"}).run_id != plan.run_id
    for wrong, said in (("maps:other.npz", "which does not exist"), ("maps:", "maps:PATH"),
                        ("siglip-b16", "is a matcher.*package.module:factory or maps:PATH")):
        with pytest.raises(ParameterError, match=f"`model`.*{said}"):
            plan_run(NOTEBOOK, {"model": wrong})


def test_an_own_model_has_no_untrained_twin_and_no_weights_of_ours(module):
    found = with_baselines(f"{module}:make", "mini", ["centre", "untrained"], device="cpu", seed=2, vocab="")
    assert list(found) == [f"{module}:make, own model", "centre guess"]
    assert weights_origin(f"{module}:make", "mini") == "own" and weights_origin("blip-base", "mini") == "mini"
    assert why_not_runnable(f"{module}:make") == "" and why_not_runnable("maps:no.npz") == "no such file: no.npz"
    assert source_name("maps:folder/heat.npz") == "heat"


@pytest.mark.nightly
def test_the_runner_and_plain_papermill_find_a_module_beside_the_caller(tmp_path, monkeypatch):
    """The notebook lies elsewhere, so the kernel starts in another folder than the caller."""
    cells = ["from qgcam_lib.grounding.explainers import load_explainer\n"
             "from qgcam_lib.models.inputs import ExplainerSource\nfrom qgcam_lib.runs import open_run",
             'model: ExplainerSource = "blip-base"\nseed: int = 0',
             "run = open_run('../paper/tiny.ipynb', globals())\n"
             "run.record(name=load_explainer(model, seed=seed).card)", "run.colophon()"]
    cells = [nbformat.v4.new_code_cell(source, id=f"cell{k}") for k, source in enumerate(cells)]
    cells[1].metadata["tags"] = ["parameters"]
    kernel = {"kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}}
    for name in ("paper", "caller"):
        (tmp_path / name).mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "paper" / "tiny.ipynb")
    (tmp_path / "caller" / "beside_the_caller.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path / "caller")
    given = {"model": "beside_the_caller:make", "seed": 6}
    done = run_notebook(tmp_path / "paper" / "tiny.ipynb", given, outputs=tmp_path / "out", progress=False, timeout=200)
    assert read_run(done.folder)["results"]["name"]["seed"] == 6
    own = os.environ | {"QGCAM_OUTPUTS": str(tmp_path / "out"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "papermill", "../paper/tiny.ipynb", "seen.ipynb", "-p", "model", given["model"]]
    shown = subprocess.run([*command, "--no-progress-bar"], env=own, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, shown.stderr[-2000:]
    (record,) = [read_run(file.parent) for file in tmp_path.glob("out/interactive/*/*/run.json")]
    assert record["results"]["name"]["name"] == "own" and record["weights"][0]["path"] == given["model"]
