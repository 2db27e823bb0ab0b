"""Explorers of answers and of detections: pages that stand alone, and scripts that agree with Python in a browser."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from qgcam_lib.miniworld.writers import tricd
from qgcam_lib.phrase_detection import evaluate, load_tricd
from qgcam_lib.teach.answers import Answer, explore_answers
from qgcam_lib.teach.map_scores import explore_detections, scores_of_detections


def answer(size, kind, word):
    heat = np.outer(np.arange(3), np.arange(4)) * size + (kind == "b")
    numbers = {"mean": heat.mean() / 10, "none": np.nan, "letters": len(word) / 10}
    return Answer({"picture": np.full((2, 2, 3), int(50 * size), np.uint8)}, {"map": heat}, numbers)


CONTROLS = {"size": [0.5, 1.5, 3], "kind": ["a", "</script><b>"], "word": "<i>"}


def answers():
    return explore_answers(CONTROLS, answer, span=(0, 1), along="size", series=["mean"], title="<b>")


def test_an_explorer_of_answers_needs_nothing_from_outside_and_escapes_what_it_is_given():
    page = str(answers())
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "") and "https:" not in page
    assert page.count("</script>") == 1 and "&lt;b&gt;" in page and page == str(answers())


@pytest.mark.parametrize(("controls", "options", "message"), [
    ({"a b": [1, 2]}, {}, "identifiers"),
    ({"a": [1, 2]}, {"start": {"a": 3}}, "initial value among"),
])
def test_controls_that_do_not_fit_are_refused(controls, options, message):
    with pytest.raises(ValueError, match=message):
        explore_answers(controls, lambda **state: Answer(), **options)


def test_labels_that_change_are_refused():
    page = explore_answers({"a": [1, 2]}, lambda a: Answer(numbers={f"of {a}": 1.0}))
    with pytest.raises(ValueError, match="labels"):
        str(page)


@pytest.mark.every_push
def test_the_page_shows_what_python_answered_for_every_stored_state(show):
    page = show(answers())
    for k, size in enumerate(CONTROLS["size"]):
        for j, kind in enumerate(CONTROLS["kind"]):
            page.locator("[data-control=size]").fill(str(k))
            page.locator("[data-control=kind]").select_option(str(j))
            known = answer(size, kind, "<i>")
            cells = page.locator("[data-python]").all_inner_texts()
            assert cells == [f"{known.numbers['mean']:.3f}", "undefined", "0.300"]
            seen = [float(text.split(": ")[1]) for text in page.locator("[data-map='0'] title").all_text_contents()]
            assert seen == pytest.approx(known.maps["map"].ravel(), rel=6e-3)
    page.locator("[data-control=size]").focus()
    page.keyboard.press("Home")
    assert json.loads(page.locator(".explorer").get_attribute("data-values"))["size"] == 0.5
    page.get_by_role("button", name="start again").click()
    assert page.locator("[data-control=kind]").input_value() == "0"


def test_a_state_that_is_not_stored_says_so_and_a_kernel_answers_it(show, put_on):
    page = show(answers())
    page.locator("[data-control=word]").fill("hello")
    page.locator("[data-control=word]").press("Enter")
    assert page.locator(".missing").is_visible() and page.locator(".explorer").get_attribute("data-values") == "null"
    assert set(page.locator("[data-python]").all_inner_texts()) == {"–"}  # no value of another state is left
    explorer = answers()
    widget, page = explorer.widget(), show()
    put_on(page, widget, list(explorer.start))
    page.locator("[data-control=word]").fill("hello")
    page.locator("[data-control=word]").press("Enter")
    page.wait_for_function("() => document.querySelectorAll('[data-python]')[2].textContent === '0.500'", timeout=5000)
    assert widget.word == "hello" and widget.scores["numbers"]["letters"] == 0.5


# ---------------------------------------------------------------- detections


def group_and_detector():
    "A group of TRICD on the miniworld, and noisy boxes on all four pairs."
    group, rng = tricd.group(11, "test"), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pairs.json").write_text(json.dumps(tricd.grounding([group], "test")))
        data = load_tricd(Path(folder) / "pairs.json")
    true = {(p.side, q.text): q.boxes for p in data.pairs if p.positive for q in p.phrases}
    predictions = {}
    for p in data.pairs:
        rows = [(q.id, round(rng.random(), 2), (np.array(b) + rng.normal(0, 2, 4)).tolist()) for q in p.phrases
                for b in true[p.side, q.text] for _ in range(2)]
        predictions[p.id] = dict(zip(("phrase_ids", "scores", "boxes"), map(list, zip(*rows))))
    return data, predictions, {k: one.image for k, one in enumerate(group.pictures)}


DETECTED = group_and_detector()


def test_with_all_captions_and_no_shift_the_values_are_those_of_evaluate():
    data, predictions, _ = DETECTED
    state = {"threshold": -1, "iou": 0.5, "asked": {"3": True, "4": True}, "shift": 0}
    found = scores_of_detections(data, predictions, state)
    table = evaluate(data, predictions, (1,), subsets=("all",)).set_index("metric")["value"]
    assert found["AP"] == table["AP"] and found["AP50"] == table["AP50"]
    assert found["false_alarms"] == sum(len(predictions[k]["scores"]) for k in (3, 4))
    without = scores_of_detections(data, predictions, {**state, "asked": {"3": False, "4": False}})
    assert without["AP"] == evaluate(data, {k: predictions[k] for k in (1, 2)}, (1,), subsets=("all",)).set_index(
        "metric")["value"]["AP"] and without["false_alarms"] == 0


@pytest.mark.every_push
def test_twenty_states_of_the_page_are_the_librarys(show):
    page, rng = show(explore_detections(*DETECTED, title="<b>")), np.random.default_rng(1)
    root = page.locator(".explorer")
    for _ in range(20):
        page.locator(".threshold").fill(f"{rng.random():.2f}")
        page.locator(".shift").fill(f"{rng.uniform(-0.5, 0.5):.2f}")
        page.locator(".iou").select_option(str(rng.integers(10)))
        for pair in ("3", "4"):
            page.locator(f"[data-asked='{pair}']").set_checked(bool(rng.integers(2)))
        library = scores_of_detections(*DETECTED[:2], root.evaluate("root => root.state"))
        assert json.loads(root.get_attribute("data-values")) == pytest.approx(library, abs=1e-6)
    page.locator(".threshold").focus()
    page.keyboard.press("End")
    assert json.loads(root.get_attribute("data-values"))["recall"] <= 0.125
    page.get_by_role("button", name="start again").click()
    cells = page.locator("[data-python=AP], [data-here=AP]").all_inner_texts()
    assert len(set(cells)) == 1 and cells[0]


def test_the_page_of_detections_stands_alone_and_fits_a_phone(show):
    page = show(explore_detections(*DETECTED), has_touch=True, viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("[data-asked='4']").tap()
    assert page.locator("[data-python=AP]").inner_text() == ""  # Python knows the start, and all captions asked about
    page.locator("[data-asked='3']").tap()
    assert page.locator("[data-python=AP]").inner_text() == page.locator("[data-here=AP]").inner_text()
