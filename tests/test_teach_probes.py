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
    assert "http:" not in page and "https:" not in page and "<b>\"" not in page and page.count("</script>") == 1
    sources = re.findall(r'src="([^"]*)"', page)
    assert len(sources) == 2 and all(one.startswith("data:image/jpeg;base64,") for one in sources)
    assert len(page) < 200_000
    assert page == str(explore_pair_scores(SCENES, {"</script><b>": SCORES["one"]}, title="<b>"))


@pytest.mark.parametrize(("scores", "message"), [
    ({"m": np.zeros((2, 2))}, "scores"),
    ({"m": np.full(SCENES.truth.shape, np.nan)}, "finite"),
])
def test_bad_input_is_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        explore_pair_scores(SCENES, scores)


def test_without_a_script_the_pictures_and_the_values_of_the_start_are_there(show):
    page = show(explore_pair_scores(SCENES, SCORES), java_script_enabled=False)
    first = SCORES["one"][np.ix_([0, 23], [0, 1])]
    assert [page.locator(f"[data-cell='{i}{j}']").inner_text() for i in (0, 1) for j in (0, 1)] == [
        f"{x:.3f}" for x in first.ravel()]
    known = pair_scores(first[None]).iloc[0]
    assert page.locator("[data-python='confidence']").inner_text() == f"{known.confidence:.6f}"
    assert page.locator("[data-python='group']").inner_text() == ("yes" if known.group else "no")
    assert page.locator("img:visible").count() == 2 and SCENES.prompts[1] in page.locator("p.still").inner_text()
    assert page.locator("button:visible, input:visible, select:visible").count() == 0


def test_the_same_explorer_twice_has_two_sets_of_choices(show):
    one = explore_pair_scores(SCENES, SCORES)
    page = show(one, one)
    first, second = page.locator(".explorer").all()
    second.locator("[data-choice='0-0'][value='1']").check()
    assert [json.loads(root.get_attribute("data-values"))["states"] for root in (first, second)] == [[0, 23], [12, 23]]
    assert first.locator("input:checked").count() == second.locator("input:checked").count() == 8


def test_the_state_comes_back_to_python(show, put_on):
    explorer = explore_pair_scores(SCENES, SCORES)
    widget, page = explorer.widget(), show()
    put_on(page, widget, list(explorer.start))
    edit(page, [5, 18], [3, 9], "two", "1")
    page.wait_for_function("() => document.querySelector('[data-python=text]').textContent", timeout=5000)
    assert (widget.states, widget.prompts, widget.model, widget.digits) == ([5, 18], [3, 9], "two", "1")
    assert widget.scores == pytest.approx(library("two", [5, 18], [3, 9], 1), abs=1e-9)
    for name, value in (("states", [0, 24]), ("states", [-1, 0]), ("prompts", [1]), ("model", "three")):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            setattr(widget, name, value)
    assert widget.states == [5, 18]


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
    assert page.locator(".fair").inner_text().startswith("A fair pair") == fair
    page.get_by_role("button", name="start again").click()
    assert shown(page)["states"] == [0, 23] and shown(page)["prompts"] == [0, 1]
