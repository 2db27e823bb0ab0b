"""The explorer of word orders: its page stands alone, and its script agrees with `score_choices` in a real browser."""

import json
import re
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from qgcam_lib.miniworld.words.listener import bag_share, judge
from qgcam_lib.referring import perturb
from qgcam_lib.teach.map_scores import explore_scores
from qgcam_lib.teach.word_order import arrangements, choice_of, explore_word_order, listener_scores, said_scene

SAID = said_scene()
LISTENERS = listener_scores(SAID.listener, SAID.texts)
SHAPE = (len(SAID.texts), len(SAID.names))
RNG = np.random.default_rng(3)
SCORES = {**LISTENERS, "noise": RNG.normal(0, 3, SHAPE), "ties": RNG.integers(-1, 2, SHAPE).astype(float)}
MEANS = {"same": "means the target", "another": "means another object", "ambiguous": "may mean several objects",
         "nothing": "is true of no object here", "not understood": "is ungrammatical"}


def test_every_order_of_some_of_the_words_is_there_once():
    words = "red ball left of dog".split()
    assert len(arrangements(" ".join(words))) == sum(len(list(permutations(words, n))) for n in range(1, 6)) == 325
    assert arrangements("ball ball") == ["ball", "ball ball"]


def test_the_first_expression_is_easy_and_the_others_share_words_and_differ_in_what_they_mean():
    easy, hard, adv = SAID.expressions
    assert [one.right().tolist().index(True) for one in SAID.expressions] == [0, 1, 2]
    assert sorted(hard.text.split()) == sorted(adv.text.split())
    assert [len(SAID.listener.bag(one.text)) for one in SAID.expressions] == [1, 2, 2]


@pytest.mark.parametrize("k", range(0, 586, 73))
def test_a_listener_chooses_among_what_may_be_meant_and_a_bag_has_no_order(k):
    text = SAID.texts[k]
    possible = SAID.listener.hear(text).possible or SAID.listener.candidates
    assert set(np.flatnonzero(LISTENERS["words in order"][k])) == set(possible)  # ids of this scene are places
    same = [j for j, other in enumerate(SAID.texts) if sorted(other.split()) == sorted(text.split())]
    assert len(np.unique(LISTENERS["bag of words"][same], axis=0)) == 1
    for one, outcomes in zip(SAID.expressions, SAID.outcomes):
        assert outcomes[k] == judge(SAID.listener, text, one.right().tolist().index(True))


def test_what_a_lot_gets_from_a_bag_is_the_share_of_the_listener():
    for place, one in enumerate(SAID.expressions):
        row = LISTENERS["bag of words"][SAID.texts.index(one.text)]
        assert choice_of(one, row)["by_lot"] == bag_share(SAID.listener.bag(one.text), place)


def test_the_page_needs_nothing_from_outside_and_escapes_what_it_is_given():
    evil = "</script><b>"
    said = replace(SAID, names=[evil, *SAID.names[1:]],
                   expressions=[replace(SAID.expressions[0], split=evil), *SAID.expressions[1:]])
    page = str(explore_word_order(said, {evil: SCORES["noise"]}, title="<b>"))
    assert "http:" not in page and "https:" not in page and page.count("</script>") == 1 and "&lt;b&gt;" in page
    assert page.count("src=") == page.count('src="data:image/png;base64,') == 1
    assert evil not in page and "<b>\"" not in page and len(page) < 300_000
    assert all(link.startswith("data:image/png;base64,") for link in re.findall(r'href="([^"]*)"', page))
    assert page == str(explore_word_order(said, {evil: SCORES["noise"]}, title="<b>"))


# ---------------------------------------------------------------- in a browser


@pytest.fixture
def page(show):
    return show(explore_word_order(SAID, SCORES))


def shown(page):
    return json.loads(page.locator("[data-values]").get_attribute("data-values"))


def agree(page, text, k):
    """The page shows this text, and of every ranker what the library says of it for expression k."""
    values, one = shown(page), SAID.expressions[k]
    assert values["text"] == text and values["expression"] == one.text
    assert values["random"] == one.random_choice() == 0.25
    place = SAID.texts.index(text)
    assert page.locator(".outcome").inner_text() == MEANS[SAID.outcomes[k][place]]
    for name, table in SCORES.items():
        assert values["rankers"][name] == pytest.approx(choice_of(one, np.round(table[place], 6)), abs=1e-9), name
    for r, table in enumerate(SCORES.values()):
        cells = [cell.split() for cell in page.locator(f"[data-score^='{r} ']").all_inner_texts()]
        row = np.round(table[place], 6)
        assert [float(cell[0]) for cell in cells] == pytest.approx(row, abs=6e-4)
        assert [cell[1] for cell in cells] == [f"{1 + (row > score).sum()}." for score in row]


def test_without_a_script_the_picture_and_the_values_of_the_start_are_there(show):
    page = show(explore_word_order(SAID, SCORES), java_script_enabled=False)
    one = SAID.expressions[0]
    for r, table in enumerate(SCORES.values()):
        row = np.round(table[SAID.texts.index(one.text)], 6)
        assert [float(cell.split()[0]) for cell in page.locator(f"[data-score^='{r} ']").all_inner_texts()] == (
            pytest.approx(row, abs=6e-4))
        assert page.locator(f"[data-python='{r} by_lot']").inner_text() == f"{choice_of(one, row)['by_lot']:.3f}"
    assert page.locator("img").bounding_box()["width"] > 200 and page.locator(".text").inner_text() == one.text
    assert page.locator("button:visible, select:visible, svg:visible").count() == 0


def test_on_a_phone_the_page_does_not_scroll_sideways(show):
    page = show(explore_word_order(SAID, SCORES), viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".wide").evaluate("e => e.scrollWidth > e.clientWidth")  # four rankers scroll in their frame


def test_three_explorers_of_different_kinds_live_on_one_page(show):
    words = explore_word_order(SAID, LISTENERS)
    page = show(words, explore_scores(np.eye(4), (0, 0, 2, 2), delta=1), words)
    roots = page.locator(".explorer").all()
    assert len(roots) == 3 and all(root.get_attribute("data-values") for root in roots)
    colour = "root => getComputedStyle(root.querySelector('svg')).backgroundColor"
    assert roots[0].evaluate(colour) == roots[2].evaluate(colour) != roots[1].evaluate(colour)  # each its own style
    roots[2].locator(".said").select_option("1")
    roots[1].locator(".delta").fill("5")
    assert [root.locator(".text").inner_text() for root in (roots[0], roots[2])] == [
        one.text for one in SAID.expressions[:2]]


def test_the_words_come_back_to_python_and_python_sets_words(show, put_on):
    explorer = explore_word_order(SAID, LISTENERS)
    widget, page = explorer.widget(), show()
    put_on(page, widget, list(explorer.start))
    page.locator(".said").select_option("2")
    page.locator("[data-how=reverse]").click()
    page.wait_for_function("() => document.querySelector('[data-python]').textContent", timeout=5000)
    text = perturb(SAID.expressions[2].text, "reverse", tagger="hanta")
    assert (widget.expression, widget.text) == (2, text)
    row = np.round(LISTENERS["bag of words"][SAID.texts.index(text)], 6)
    assert widget.scores["bag of words"] == choice_of(SAID.expressions[2], row)
    with pytest.raises(ValueError, match="text: expected"):
        widget.text = "no such words"
    widget.text = "blue dog"
    page.evaluate("text => window.model.set('text', text)", widget.text)
    assert page.locator(".text").inner_text() == "blue dog" and page.locator(".words button").count() == 2


def test_python_and_the_script_agree_on_the_expressions_as_said(page):
    assert page.locator("svg").is_visible() and not page.locator("img").is_visible()
    for k, one in enumerate(SAID.expressions):
        page.locator(".said").select_option(str(k))
        agree(page, one.text, k)
        for r in range(len(SCORES)):
            for what in ("predicted", "correct", "ties", "by_lot"):  # the two values a reader compares
                cells = [page.locator(f"[data-{side}='{r} {what}']").inner_text() for side in ("here", "python")]
                assert cells[0] == cells[1] != ""


def test_words_move_by_keyboard_and_by_mouse(page):
    page.locator(".said").select_option("1")  # dog left of blue ball
    tile = page.locator(".words button")
    tile.nth(0).focus()
    page.keyboard.press("ArrowRight")
    agree(page, "left dog of blue ball", 1)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")  # there is no further left
    agree(page, "dog left of blue ball", 1)
    page.keyboard.press("Tab")  # the focus goes on to the next word
    page.keyboard.press("Delete")
    agree(page, "dog of blue ball", 1)
    assert "left out" in tile.nth(1).get_attribute("aria-label")
    assert page.locator("[data-python='0 correct']").inner_text() == ""  # Python knows the expressions as said only
    page.keyboard.press("Delete")
    tile.nth(0).click()
    for _ in range(4):
        page.locator(".later").click()
    agree(page, "left of blue ball dog", 1)
    page.locator(".earlier").click()
    agree(page, "left of blue dog ball", 1)
    for k in range(5):  # the last word stays
        tile.nth(k).click()
        page.locator(".out-button").click()
    agree(page, "ball", 1)
    page.locator(".again").click()
    agree(page, "dog left of blue ball", 1)


def test_the_buttons_do_what_perturb_does(page):
    for k, one in enumerate(SAID.expressions):
        page.locator(".said").select_option(str(k))
        for how in ("reverse", "nouns_adjectives", "swap_head"):
            page.locator(f"[data-how={how}]").click()
            agree(page, perturb(one.text, how, tagger="hanta"), k)
        for seed in range(3):
            page.locator("[data-how=shuffle]").click()
            agree(page, perturb(one.text, "shuffle", seed=seed), k)
        assert page.locator(".how").inner_text() == "shuffled, seed 2"
        assert page.locator(".words button").count() == 5
