"""The explorer of edited scenes: its page stands alone, and its script agrees with `pair_scores` in a real browser."""

import json
import re
from itertools import product

import numpy as np
import pytest

from qgcam_lib.probes.score import pair_scores, pair_ties
from qgcam_lib.teach.probe_scores import edited_scenes, explore_pair_scores

SCENES = edited_scenes()
RNG = np.random.default_rng(5)
SCORES = {"one": RNG.normal(0, 3, SCENES.truth.shape), "two": RNG.integers(-2, 3, SCENES.truth.shape).astype(float)}


def test_truth_is_read_off_the_words_as_a_person_would():
    for row, state in zip(SCENES.truth, product(*SCENES.choices.values())):
        animal, left, ball, _ = state
        first, second = (animal, f"{ball} ball") if left == "the animal" else (f"{ball} ball", animal)
        fits = {f"A {first} to the left of a {second}.", f"There is a {animal}."}
        assert {prompt for prompt, true in zip(SCENES.prompts, row) if true} == fits


def test_only_what_is_neither_animal_nor_ball_is_erased():
    meadow, _, erased = SCENES.pictures[:3]
    gray = (erased == 127).all(axis=2)
    assert 0.6 < gray.mean() < 0.95 and np.array_equal(meadow[~gray], erased[~gray])


def test_the_page_needs_nothing_from_outside_and_escapes_what_it_is_given():
    page = str(explore_pair_scores(SCENES, {"</script><b>": SCORES["one"]}, title="<b>"))
    assert "http" not in page and "<b>\"" not in page and "&lt;b&gt;" in page and page.count("</script>") == 1
    assert re.findall(r'src="([^"]*)"', page) == [] and len(page) < 200_000
    assert page == str(explore_pair_scores(SCENES, {"</script><b>": SCORES["one"]}, title="<b>"))


@pytest.mark.parametrize(("scores", "options", "message"), [
    ({}, {}, "at least one model"),
    ({"m": np.zeros((2, 2))}, {}, "every state"),
    ({"m": np.full(SCENES.truth.shape, np.nan)}, {}, "finite"),
    (SCORES, {"start": ((0, 99), (0, 1))}, "start"),
])
def test_bad_input_is_refused(scores, options, message):
    with pytest.raises(ValueError, match=message):
        explore_pair_scores(SCENES, scores, **options)


@pytest.fixture(scope="module")
def page(browser):
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_content(f"<!doctype html><meta charset='utf-8'>{explore_pair_scores(SCENES, SCORES)}")
    yield page
    assert not errors


def shown(page):
    return json.loads(page.locator("[data-values]").get_attribute("data-values"))


def library(model, states, prompts, round_to=None):
    S = np.round(SCORES[model], 6)[np.ix_(states, prompts)]
    S = S if round_to is None else np.floor(S * 10**round_to + 0.5) / 10**round_to
    return {**pair_scores(S[None]).iloc[0].to_dict(), "ties": pair_ties(S[None])[0]}


def edit(page, states, prompts, model, digits=""):
    sizes = [len(values) for values in SCENES.choices.values()]
    for k, state in enumerate(states):
        for c, value in enumerate(np.unravel_index(state, sizes)):
            page.locator(f"[name$='-{k}-{c}'][value='{value}']").check()
        page.locator(f".prompt{k}").select_option(str(prompts[k]))
    page.locator(".model").select_option(model)
    page.locator(".digits").select_option(digits)


def test_python_and_the_script_agree_at_the_start(page):
    values = shown(page)
    assert values["states"] == [0, 23] and values["prompts"] == [0, 1]
    for model in SCORES:
        page.locator(".model").select_option(model)
        assert {k: shown(page)[k] for k in library(model, [0, 23], [0, 1])} == pytest.approx(
            library(model, [0, 23], [0, 1]), abs=1e-9)
        for score in ("text", "image", "group", "confidence", "ties"):  # the two columns a reader compares
            cells = page.locator(f"[data-python='{score}'], [data-here='{score}']").all_inner_texts()
            assert len(set(cells)) == 1 and cells[0]


@pytest.mark.parametrize(("states", "prompts", "model", "digits"), [
    ([5, 18], [3, 9], "one", ""),
    ([7, 7], [0, 1], "one", ""),
    ([2, 12], [8, 9], "two", ""),
    ([0, 6], [4, 4], "one", ""),
    ([1, 13], [8, 9], "one", "0"),
    ([20, 3], [2, 5], "one", "1"),
])
def test_the_script_agrees_with_the_library_in_every_edit(page, states, prompts, model, digits):
    edit(page, states, prompts, model, digits)
    values, known = shown(page), library(model, states, prompts, int(digits) if digits else None)
    assert values["states"] == states and values["prompts"] == prompts
    assert {name: values[name] for name in known} == pytest.approx(known, abs=1e-9)
    assert page.locator("[data-python='text']").inner_text() == ""  # Python knows the start only
    fair = bool(SCENES.truth[states, prompts].all() and not SCENES.truth[states, prompts[::-1]].any())
    assert ("a fair question" in page.locator(".fair").inner_text() and "Not" not in page.locator(
        ".fair").inner_text()) == fair
    page.get_by_role("button").click()
    assert shown(page)["states"] == [0, 23] and shown(page)["prompts"] == [0, 1]
