"""The models of the page "Try it": their graphs equal the library's, and the page equals Python in a browser."""

import gzip
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import live_model  # noqa: E402

PAGE = ('<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><link rel="stylesheet" href="live.css">'
        '<div id="live" data-folder="live/"><p class="wait"></p></div><script type="module" src="live.js"></script>')


@pytest.fixture(scope="module")
def explainer():
    return live_model.load_model("blip-base")


@pytest.fixture(scope="module")
def asked():
    """Twenty pictures, each with phrases of 3 to 12 tokens."""
    data = live_model.load_dataset("miniworld", split="test")
    examples = [data.read_image(image)[0] for image in data.images()[::100]]
    longer = ("a man", "the dog left of a red table", "a woman in a blue coat and a dotted hat")
    return [(live_model.open_image(each[0].image), text) for each in examples for text in (each[0].prompt, *longer)]


def test_the_graph_computes_what_the_library_does_in_every_block(explainer, asked):
    lengths = set()
    for picture, text in asked:
        inputs = live_model.inputs_of(explainer, picture, text)
        maps, logits = live_model.explained(explainer.model, *inputs)
        n = int(inputs[2].sum())
        lengths.add(n)
        for block in range(explainer.config.text_depth):
            before, explainer.block = explainer.block, block
            try:
                _, known = explainer.token_maps(picture, text)
            finally:
                explainer.block = before
            assert torch.allclose(maps[block, :n].unflatten(-1, (8, 8)), known, rtol=0, atol=1e-5 * known.max())
        assert torch.isclose(logits.softmax(0)[1], explainer.explain(picture, [text])[1][0], atol=1e-6)
    assert min(lengths) <= 5 and max(lengths) >= 12


def test_the_graph_of_gscorecam_computes_what_the_library_does(asked):
    explainer = live_model.load_model("clip-rn50x16-gscorecam")
    for picture, text in asked[::4]:
        given, logit = live_model.scored(explainer, *live_model.clip_inputs(explainer, picture, text))
        (known,), logits = explainer.explain(picture, [text])
        assert torch.allclose(given, known, rtol=0, atol=1e-5 * known.max())
        assert torch.isclose(logit, logits[0], atol=1e-4)


@pytest.mark.nightly
def test_the_file_computes_what_the_library_does(explainer, asked, tmp_path):
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} is not installed: the extra live brings it")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    live_model.export_model(lambda one, *given: live_model.explained(one.model, *given), explainer,
                            live_model.inputs_of(explainer, *asked[0]), (live_model.BLIP, ("maps", "logits")),
                            tmp_path / "blip.onnx.gzip")
    session = runtime.InferenceSession(gzip.decompress((tmp_path / "blip.onnx.gzip").read_bytes()))
    for picture, text in asked:
        inputs = live_model.inputs_of(explainer, picture, text)
        maps, logits = live_model.explained(explainer.model, *inputs)
        there = session.run(None, dict(zip(live_model.BLIP, (one.numpy() for one in inputs))))
        assert np.abs(there[0] - maps.numpy()).max() <= 1e-5 * maps.max()
        assert np.abs(there[1] - logits.numpy()).max() < 1e-4


@pytest.fixture
def page(browser, serve, tmp_path):
    """The page with the model, served to Chromium; at the end: no error, and no request to another host."""
    files = live_model.FOLDER
    if not (files / "blip-mini.onnx.gzip").is_file():
        pytest.skip("the page's model was not made: make live")
    (tmp_path / "live").symlink_to(files)
    for name in ("live.js", "live.css"):
        shutil.copy(ROOT / "docs" / "static" / name, tmp_path)
    (tmp_path / "index.html").write_text(PAGE, encoding="utf-8")
    errors, asked, page = [], [], browser.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    place = serve(tmp_path)
    page.goto(place)
    page.wait_for_selector("#live table")
    yield page
    assert not errors and not [one for one in asked if not one.startswith((place, "data:", "blob:"))]
    page.close()


def state_of(page, text, model="blip-mini"):
    page.wait_for_function("""([text, model]) => { const state = JSON.parse(live.dataset.state);
        return state.where === "in this page" && state.model === model && live.innerText.includes(text); }""",
                           arg=[f"“{text}”", model])
    return json.loads(page.get_attribute("#live", "data-state"))


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["blip-mini", "clip-rn-mini"])
def test_the_page_answers_as_python_does(page, model):
    assert "computed by Python" in page.inner_text("#live .said")
    page.select_option("#live select >> nth=0", model)
    page.click("#live .load")
    page.wait_for_function("document.querySelector('#live').dataset.milliseconds")
    loaded = page.evaluate("performance.getEntriesByType('resource').map(one => one.encodedBodySize)")
    assert 6e6 < sum(loaded) < 10e6
    for k, scene in enumerate(page.evaluate("window.qgcamFacts.scenes")):
        page.click(f"#live .scenes button:nth-child({k + 1})")
        for one in scene["asked"]:
            page.fill("#live input", one["text"])
            state, known = state_of(page, one["text"], model), one["answers"][model]
            there = np.array(known["map"])
            assert np.abs(np.array(state["map"]) - there).max() <= 1e-5 * there.max()
            assert state["value"] == pytest.approx(known["value"], abs=1e-4)
            assert state["values"] == pytest.approx(known["scores"], abs=1e-4)
            assert int(page.get_attribute("#live", "data-milliseconds")) < 1000


@pytest.mark.nightly
def test_a_moved_and_recoloured_object_is_another_picture(page):
    page.click("#live .load")
    text = page.input_value("#live input")
    before, now = state_of(page, text)["value"], "Math.abs(JSON.parse(live.dataset.state).value"
    page.click("text=Recolour what is framed")
    page.wait_for_function(now + f" - {before}) > 1e-6")
    recoloured = state_of(page, text)["value"]
    page.focus("#live .picture")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(now + f" - {recoloured}) > 1e-6")
    page.click("text=Reset")
    page.wait_for_function(now + f" - {before}) < 1e-5")
    assert state_of(page, text)["value"] == pytest.approx(before, abs=1e-5)


@pytest.mark.nightly
def test_the_answer_to_fast_typing_is_that_of_the_last_text(page):
    page.select_option("#live select >> nth=0", "clip-rn-mini")
    page.click("#live .load")
    page.wait_for_function("document.querySelector('#live').dataset.milliseconds")
    scene = page.evaluate("window.qgcamFacts.scenes[0].asked[1]")
    page.fill("#live input", "")
    page.type("#live input", scene["text"])
    state = state_of(page, scene["text"], "clip-rn-mini")
    assert state["value"] == pytest.approx(scene["answers"]["clip-rn-mini"]["value"], abs=1e-4)
