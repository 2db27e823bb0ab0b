"""The explorer of map scores: its page stands alone, and its script agrees with the library in a real browser."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

from qgcam_lib.metrics import score_maps
from qgcam_lib.teach.map_scores import EXPLORER_SCORES, explore_scores, scores_of

TIED = np.zeros((6, 8))
TIED[1:4, 1:4] = [[0.9, 0.6, 0.2], [1.0, 0.6, 0.2], [0.3, 0.2, 0.0]]
TIED[4, 6] = 1.0


def test_the_page_needs_nothing_from_outside():
    page = str(explore_scores(TIED, (1, 1, 3, 3), delta=2, title="<b>"))
    assert "http:" not in page and "https:" not in page and "&lt;b&gt;" in page
    assert page.count("src=") == page.count('src="data:image/png;base64,') == 1
    assert page == str(explore_scores(TIED, (1, 1, 3, 3), delta=2, title="<b>"))
    assert page != str(explore_scores(TIED, (1, 1, 4, 3), delta=2, title="<b>"))


@pytest.mark.parametrize(("heat", "box", "message"), [
    (TIED, (1, 1, 3.5, 3), "whole cells"),
    (TIED, (1, 1, 9, 3), "whole cells"),
    (TIED, (3, 1, 3, 3), "whole cells"),
    (np.zeros((65, 65)), (0, 0, 1, 1), "64 x 64"),
    (np.zeros(6), (0, 0, 1, 1), "64 x 64"),
    (np.full((4, 4), np.nan), (0, 0, 1, 1), "(?i)nan|finite"),
    (np.full((4, 4), -1.0), (0, 0, 1, 1), "negative"),
])
def test_bad_input_is_refused(heat, box, message):
    with pytest.raises(ValueError, match=message):
        explore_scores(heat, box)


@pytest.mark.parametrize("threshold", (0.0, 0.2, 0.5, 0.85))
def test_another_threshold_is_the_binary_score_of_that_threshold(threshold):
    heat, box = np.random.default_rng(1).random((7, 5)).astype(np.float32), (1, 2, 4, 6)
    found = scores_of({"map": heat, "box": box, "threshold": threshold, "tau": 0.7, "delta": 2})
    mask, inside = heat > threshold, np.zeros(heat.shape, bool)
    inside[2:6, 1:4] = True
    assert found["iou_binary"] == pytest.approx(((mask & inside).sum() + 1e-3) / ((mask | inside).sum() + 1e-3))
    assert found["iou_soft"] == pytest.approx(score_maps([heat], [[box]], delta=2)["iou_soft"][0])


# ---------------------------------------------------------------- in a browser


def on_page(root):
    values = json.loads(root.get_attribute("data-values"))
    return {name: np.nan if value is None else value for name, value in values.items()}


def agrees(root, **expected):
    """The values of the page are the library's for the page's state, of which some is expected."""
    state = root.evaluate("root => root.state")
    library = {name: np.nan if value is None else value for name, value in scores_of(state).items()}
    assert on_page(root) == pytest.approx(library, abs=1e-6, nan_ok=True)
    assert {name: state[name] for name in expected} == expected
    return state


MAPS = {
    "a tie": TIED,
    "noise": np.random.default_rng(0).random((9, 7)),
    "no mass": np.zeros((5, 5)),
    "nothing above one half": np.full((5, 5), 0.25),
    "constant": np.ones((5, 6)),
    "values equal to a threshold": np.where(np.eye(6) > 0, 0.6, 0.1),
    "values of all sizes": np.random.default_rng(2).random((4, 6)) ** 4,
}


@pytest.mark.parametrize("name", [pytest.param("a tie", marks=pytest.mark.every_push), *[*MAPS][1:]])
def test_the_script_agrees_with_the_library(show, name):
    page = show(explore_scores(MAPS[name], (1, 1, 3, 3), delta=2.05, tau=0.72))
    root = page.locator(".explorer")
    agrees(root, box=[1, 1, 3, 3], tau=0.72, delta=2.05, threshold=0.5)
    for score in EXPLORER_SCORES:  # the two columns a reader compares
        cells = page.locator(f"[data-python='{score}'], [data-here='{score}']").all_inner_texts()
        assert len(set(cells)) == 1 and cells[0]
    page.locator(".frame").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    agrees(root, box=[2, 1, 4, 4])
    assert page.locator("[data-python='io_ratio']").inner_text() == ""  # Python knows the start only
    for slider, value in (("tau", 0.2), ("tau", 0.6), ("threshold", 0.85), ("threshold", 0.6), ("delta", 4.5)):
        page.locator(f".{slider}").fill(str(value))
        agrees(root, **{slider: value})
    page.get_by_role("button", name="start again").click()
    agrees(root, box=[1, 1, 3, 3], tau=0.72, delta=2.05, threshold=0.5)


def test_delta_says_how_many_peaks_there_are(show):
    page = show(explore_scores(TIED, (1, 1, 3, 3), delta=2))
    root, uncertain = page.locator(".explorer"), page.locator("[data-here=pg_uncertain]")
    assert root.get_attribute("data-peaks") == "2" and uncertain.inner_text() == "1.000"
    page.locator(".delta").fill("5.9")
    assert root.get_attribute("data-peaks") == "1" and uncertain.inner_text() == "0.000"
    agrees(root)


def test_the_box_can_be_dragged_and_resized(show):
    page = show(explore_scores(TIED, (1, 1, 3, 3), delta=2))
    place = page.locator("svg").bounding_box()
    cell = place["width"] / 8

    def drag(start, stop):
        page.mouse.move(place["x"] + start[0] * cell, place["y"] + start[1] * cell)
        page.mouse.down()
        page.mouse.move(place["x"] + stop[0] * cell, place["y"] + stop[1] * cell, steps=4)
        page.mouse.up()
        return json.loads(page.locator("[data-box]").get_attribute("data-box"))

    assert drag((2, 2), (4, 3)) == [3, 2, 5, 4]
    assert drag((5, 4), (6, 5)) == [3, 2, 6, 5]
    assert drag((4, 3), (20, 3)) == [5, 2, 8, 5]  # stays inside


def test_paint_and_erase_with_the_mouse(show):
    page = show(explore_scores(TIED, (1, 1, 3, 3), delta=2))
    root, place = page.locator(".explorer"), page.locator("svg").bounding_box()
    cell = place["width"] / 8

    def stroke(start, stop):  # row, column
        page.mouse.move(place["x"] + (start[1] + 0.5) * cell, place["y"] + (start[0] + 0.5) * cell)
        page.mouse.down()
        page.mouse.move(place["x"] + (stop[1] + 0.5) * cell, place["y"] + (stop[0] + 0.5) * cell)  # in one leap
        page.mouse.up()
        return np.array(agrees(root, box=[1, 1, 3, 3])["map"])

    page.get_by_role("button", name="paint").click()
    page.locator(".ink").fill("0.7")
    expected = TIED.astype(np.float32)
    expected[0, :5] = np.float32(0.7)
    assert np.array_equal(stroke((0, 0), (0, 4)), expected)
    page.locator(".threshold").fill("0.7")
    agrees(root)  # a painted 0.7 is above 0.7 for both or for none
    page.get_by_role("button", name="erase").click()
    expected[1, 1] = expected[2, 2] = expected[3, 3] = 0
    assert np.array_equal(stroke((1, 1), (3, 3)), expected)
    page.get_by_role("button", name="move the box").click()
    page.locator(".frame").focus()
    page.keyboard.press("ArrowRight")
    agrees(root, box=[2, 1, 4, 3])
    page.get_by_role("button", name="start again").click()
    assert np.array_equal(agrees(root)["map"], TIED.astype(np.float32))


def test_paint_with_the_keyboard_alone(show):
    page = show(explore_scores(TIED, (1, 1, 3, 3), delta=2))
    root = page.locator(".explorer")
    page.get_by_role("button", name="paint").focus()
    page.keyboard.press("Enter")
    page.locator(".pen").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowRight", "Space"):
        page.keyboard.press(key)
    state = agrees(root)
    assert state["map"][1][1] == 1 and page.locator(".said").inner_text() == "brush: row 1, column 1: 1.00"


def test_paint_with_a_finger(show):
    page = show(explore_scores(TIED, (1, 1, 3, 3), delta=2), has_touch=True, viewport={"width": 390, "height": 844})
    page.get_by_role("button", name="paint").tap()
    place = page.locator("svg").bounding_box()
    finger = page.context.new_cdp_session(page)
    for kind, column in (("touchStart", 4), ("touchMove", 5), ("touchMove", 7), ("touchEnd", None)):
        at = {"x": place["x"] + (column + 0.5) / 8 * place["width"], "y": place["y"] + 0.5 / 6 * place["height"]} \
            if column else None
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [at] if at else []})
    assert agrees(page.locator(".explorer"))["map"][0] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_photograph_lies_below_the_map_and_stays_local(show, tmp_path):
    page = show(explore_scores(TIED, (1, 1, 3, 3), delta=2))
    Image.new("RGB", (30, 20), "green").save(tmp_path / "own.png")
    page.locator(".photo").set_input_files(tmp_path / "own.png")
    page.wait_for_selector("svg image[href^='data:image/png']", state="attached", timeout=5000)
    assert page.locator("svg g").first.get_attribute("opacity") == "0.6"


# ---------------------------------------------------------------- without a script, and several on one page


def test_without_a_script_the_picture_and_the_values_of_the_start_are_there(show):
    explorer = explore_scores(TIED, (1, 1, 3, 3), delta=2)
    page = show(explorer, java_script_enabled=False)
    for name, value in scores_of(explorer.start).items():
        assert page.locator(f"[data-python='{name}']").inner_text() == f"{value:.3f}"
    assert page.locator("img").bounding_box()["width"] > 200 and "x0 1, y0 1, x1 3, y1 3" in page.content()
    assert page.locator("button:visible, input:visible, svg:visible").count() == 0
    assert "δ 2" in page.locator("p.still").inner_text()


def test_two_of_one_kind_and_two_that_are_the_same_live_on_one_page(show):
    one, other = explore_scores(TIED, (1, 1, 3, 3), delta=2), explore_scores(TIED[:, :6], (0, 0, 2, 2), delta=2)
    page = show(one, other, one)
    roots = page.locator(".explorer")
    assert [on_page(roots.nth(k)) for k in range(3)] == [pytest.approx(scores_of(e.start), abs=1e-6)
                                                        for e in (one, other, one)]
    roots.nth(2).locator(".frame").focus()
    page.keyboard.press("ArrowDown")
    roots.nth(1).get_by_role("button", name="erase").click()
    assert [agrees(roots.nth(k))["box"] for k in range(3)] == [[1, 1, 3, 3], [0, 0, 2, 2], [1, 2, 3, 4]]
    assert roots.nth(0).locator("[aria-pressed=true]").inner_text() == "move the box"
    assert page.evaluate("[...document.querySelectorAll('[id]')].length") == 0


# ---------------------------------------------------------------- with a kernel


def test_without_anywidget_the_page_works_and_the_widget_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    page = explore_scores(TIED, (1, 1, 3, 3), delta=2)
    assert "<script>" in page.html
    with pytest.raises(ModuleNotFoundError, match="^anywidget is not installed"):
        page.widget()


def test_what_is_painted_comes_back_to_python_and_python_answers(show, put_on):
    explorer = explore_scores(TIED, (1, 1, 3, 3), delta=2)
    widget, page = explorer.widget(), show()
    put_on(page, widget, list(explorer.start))
    root = page.locator(".explorer")
    page.get_by_role("button", name="paint").click()
    page.locator(".pen").focus()
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    page.wait_for_function("() => document.querySelector('[data-python=io_ratio]').textContent", timeout=5000)
    assert widget.map[0][:3] == [1, 1, 0] and np.array_equal(widget.map, agrees(root)["map"])
    assert widget.scores == scores_of(root.evaluate("root => root.state")) == pytest.approx(on_page(root), abs=1e-6)
    for score in EXPLORER_SCORES:  # with a kernel the library answers every state
        cells = page.locator(f"[data-python='{score}'], [data-here='{score}']").all_inner_texts()
        assert len(set(cells)) == 1 and cells[0]
    widget.box = [2, 2, 5, 5]
    page.evaluate("box => window.model.set('box', box)", widget.box)
    agrees(root, box=[2, 2, 5, 5])


def test_a_widget_keeps_its_state_when_it_is_given_one_that_cannot_be():
    widget = explore_scores(TIED, (1, 1, 3, 3), delta=2).widget()
    for name, value in (("box", [0, 0, 99, 1]), ("map", -TIED), ("map", TIED[:2]), ("tau", "much")):
        before = getattr(widget, name)
        with pytest.raises((ValueError, TypeError)):
            setattr(widget, name, value)
        assert getattr(widget, name) == before
    widget.map = np.zeros(TIED.shape)
    assert widget.scores["io_ratio"] is None and widget.scores["pg_hit"] == pytest.approx(4 / 48)
