"""The explorer: its page stands alone, and its script agrees with the library in a real browser."""

import json

import numpy as np
import pytest

from qgcam_lib.metrics import score_maps
from qgcam_lib.teach.map_scores import EXPLORER_SCORES, explore_scores

TIED = np.zeros((6, 8))
TIED[1:4, 1:4] = [[0.9, 0.6, 0.2], [1.0, 0.6, 0.2], [0.3, 0.2, 0.0]]
TIED[4, 6] = 1.0


def test_the_page_needs_nothing_from_outside():
    page = str(explore_scores(TIED, (1, 1, 3, 3), delta=2, title="<b>"))
    assert "http" not in page and "src=" not in page and "&lt;b&gt;" in page
    assert page == str(explore_scores(TIED, (1, 1, 3, 3), delta=2, title="<b>"))
    assert page != str(explore_scores(TIED, (1, 1, 4, 3), delta=2, title="<b>"))


@pytest.mark.parametrize(("heat", "box", "message"), [
    (TIED, (1, 1, 3.5, 3), "whole cells"),
    (TIED, (1, 1, 9, 3), "whole cells"),
    (TIED, (3, 1, 3, 3), "whole cells"),
    (np.zeros((65, 65)), (0, 0, 1, 1), "64 x 64"),
    (np.zeros(6), (0, 0, 1, 1), "64 x 64"),
    (np.full((4, 4), np.nan), (0, 0, 1, 1), "(?i)nan|finite"),
])
def test_bad_input_is_refused(heat, box, message):
    with pytest.raises(ValueError, match=message):
        explore_scores(heat, box)


def library(heat, box, tau=0.7):
    row = score_maps([np.asarray(heat, dtype=np.float32)], [[box]], tau=tau, delta=2).iloc[0]
    return {name: float(row[name]) for name in EXPLORER_SCORES}


def on_page(page):
    values = json.loads(page.locator("[data-values]").get_attribute("data-values"))
    return {name: np.nan if value is None else value for name, value in values.items()}


MAPS = {
    "a tie": TIED,
    "noise": np.random.default_rng(0).random((9, 7)),
    "no mass": np.zeros((5, 5)),
    "nothing above one half": np.full((5, 5), 0.25),
    "constant": np.ones((5, 6)),
}


@pytest.mark.parametrize("name", MAPS)
def test_the_script_agrees_with_the_library(browser, name):
    heat, errors = MAPS[name], []
    page = browser.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_content(f"<!doctype html><meta charset='utf-8'>{explore_scores(heat, (1, 1, 3, 3), delta=2)}")
    assert on_page(page) == pytest.approx(library(heat, [1, 1, 3, 3]), abs=1e-6, nan_ok=True)
    for score in EXPLORER_SCORES:  # the two columns a reader compares
        cells = page.locator(f"[data-python='{score}'], [data-here='{score}']").all_inner_texts()
        assert len(set(cells)) == 1 and cells[0]
    page.locator("[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    assert on_page(page) == pytest.approx(library(heat, [2, 1, 4, 4]), abs=1e-6, nan_ok=True)
    assert page.locator("[data-python='io_ratio']").inner_text() == ""  # Python knows the start only
    page.locator(".tau").fill("0.2")
    assert on_page(page) == pytest.approx(library(heat, [2, 1, 4, 4], tau=0.2), abs=1e-6, nan_ok=True)
    page.get_by_role("button").click()
    assert json.loads(page.locator("[data-box]").get_attribute("data-box")) == [1, 1, 3, 3]
    assert not errors
    page.close()


def test_the_box_can_be_dragged_and_resized(browser):
    page = browser.new_page()
    page.set_content(str(explore_scores(TIED, (1, 1, 3, 3), delta=2)))
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
    page.close()
