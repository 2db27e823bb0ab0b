"""Captions: what they say, what denies it, near misses with a reason, and what is known of every pair of a batch."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.finetune.batches import CaptionRecipe, all_pairs, draw_captions
from qgcam_lib.finetune.captions import RELATIONS, CaptionMaker, ImageCaption, phrase_caption, sentence_captions
from qgcam_lib.finetune.clip import MatcherRecipe
from qgcam_lib.finetune.texts import ImageText, Mention, denied, excludes, head_and_attributes, singular


def text_of(*sentences):
    """A picture's text from sentences with marks like "[1 a man] holds [2 a cup]"."""
    found, mentions = [], []
    for number, line in enumerate(sentences):
        words, entity, start = [], None, 0
        for word in line.split():
            if word.startswith("["):
                entity, start = word[1:], len(words)
                continue
            words.append(word.rstrip("]"))
            if word.endswith("]"):
                mentions.append(Mention(tuple(words[start:]), entity, number, start, len(words)))
        found.append(tuple(words))
    return ImageText("1", tuple(found), tuple(mentions))


SCENE = text_of("[1 a man] holds [2 a blue cup]", "[3 a woman] is behind [4 a table]", "[5 a dog] is on [6 a chair]",
                "[7 two people] and [4 a table]", "[1 the man] in [8 a red shirt]", "[3 a lady] is left of [1 a guy]")
ELSEWHERE = text_of("[1 a red boat] is on [2 the sea]", "[3 two birds]")
MAKER = CaptionMaker([SCENE, ELSEWHERE])
RECIPE = CaptionRecipe(borrowed=0.0)


def may_be_true(maker, words, text):
    """The slow rule, phrase by phrase and entity by entity."""
    head, attributes = head_and_attributes(words)
    kin = maker.kin.get(singular(head), {singular(head)})
    return any(heads & kin and not any(denied(word, known) for word in attributes)
               for heads, known in text.entities.values())


def near_misses(number, maker=MAKER, text=SCENE):
    """Every false caption that is drawn of a sentence."""
    caption = sentence_captions(text)[number]
    drawn = (maker.falsify(0, caption, np.random.default_rng(seed), RECIPE, True) for seed in range(300))
    return {one.text for one in drawn}


def test_captions_keep_their_phrases_and_characters():
    first, behind, *_ = sentence_captions(SCENE)
    assert first.text == "a man holds a blue cup" and first.phrases == ((0, 2, "1"), (3, 6, "2"))
    assert [first.text[a:b] for [(a, b)] in first.spans] == ["a man", "a blue cup"]
    assert [one.relation for one in sentence_captions(SCENE)] == ["holding", "behind", "on", "", "in", "left of"]
    framed = behind.framed(("a", "photo", "of"), (".",))
    assert framed.text == "a photo of a woman is behind a table ." and framed.said == behind.said
    left = sentence_captions(SCENE)[5]
    assert left.mirrored().text == "a lady is right of a guy" and left.mirrored().mirrored() == left


def test_relations_are_changed_and_things_exchanged():
    assert {"a woman is in front of a table", "a table is behind a woman"} <= near_misses(1)
    assert {"a lady is right of a guy", "a guy is left of a lady"} <= near_misses(5)


def test_what_may_stay_true_is_not_made():
    assert not near_misses(3) & {"a table and two people"}  # "and" says nothing
    for second in ("[3 a dog] is right of [2 a chair]", "[3 two dogs] and [2 a chair]"):
        two = text_of("[1 a dog] is left of [2 a chair]", second)
        maker = CaptionMaker([two, ELSEWHERE])
        assert not {text for text in near_misses(0, maker, two) if sorted(set(text.split()) & {"dog", "chair"}) == [
            "chair", "dog"]}  # the other dog may be there


def test_a_relation_denies_its_opposite_both_ways_and_never_itself():
    for a in RELATIONS:
        assert not excludes(a, a)
        assert all(excludes(a, b) == excludes(b, a) for b in RELATIONS)
    assert excludes("left of", "right of") and excludes("on", "under") and not excludes("in", "wearing")
    for own in tiny.data().maker.linked:
        for caption in own:
            assert not tiny.data().maker.denies(caption, caption.relation)
            if caption.relation in ("left of", "right of"):
                assert not tiny.data().maker.denies(caption, "behind")


def test_kin_nouns_are_not_taken_for_false():
    maker = CaptionMaker([text_of("[1 a man]", "[1 a person]"), text_of("[2 a tall man]")])
    person, dog = (ImageCaption(("a", noun), ((0, 2, ""),)) for noun in ("person", "dog"))
    assert maker.possible([1], [person, dog]).tolist() == [[True, False]]


def test_the_table_of_what_could_be_true_is_the_slow_rule():
    maker = tiny.data().maker
    captions = {m.words: phrase_caption(m) for text in maker.texts for m in text.mentions}
    captions |= {words: ImageCaption(words, ((0, len(words), ""),)) for words in (("a", "unicorn"), ("red", "unicorn"))}
    slow = [[may_be_true(maker, words, text) for words in captions] for text in maker.texts]
    np.testing.assert_array_equal(maker.possible(range(len(maker.texts)), list(captions.values())), slow)
    text = maker.texts[0]
    for entity, number in zip(text.entities, maker.entities(0)):
        alone = ImageText(text.id, text.sentences, tuple(m for m in text.mentions if m.entity == entity))
        wanted = [may_be_true(maker, words, alone) for words in captions]
        assert maker.said_of(np.array([number]), list(captions))[0].tolist() == wanted


@given(row=st.integers(0, 39), seed=st.integers(0, 10**6), whole=st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_false_caption_differs_from_the_true_ones_and_has_a_reason(row, seed, whole):
    """The oracle asks the sentences again, phrase by phrase, in the slow way."""
    maker, recipe = tiny.data().maker, MatcherRecipe(borrowed=0.2, texts=4, prompts=0.0)
    text, drawn = maker.texts[row], maker.draw(row, 4, np.random.default_rng(seed), recipe, whole)
    assert [caption.true for caption in drawn] == [True, True, False, False]
    for true, false in zip(drawn[:2], drawn[2:]):
        assert all(may_be_true(maker, words, text) for words in true.said) and all(p[2] for p in true.phrases)
        assert false.words not in text.sentences and false.phrases and not any(p[2] for p in false.phrases)
        assert all(0 <= start < stop <= len(false.words) for start, stop, _ in false.phrases)
        if not all(may_be_true(maker, words, text) for words in false.said):
            continue
        assert true.relation and maker.certain(row, true)
        if false.relation != true.relation:
            assert maker.denies(true, false.relation)
        else:
            exchanged = true.said[:2] == false.said[:2][::-1]
            assert exchanged or sum(a != b for a, b in zip(true.said, false.said)) == 1


def test_prompts_follow_a_photo_of_in_true_and_false_alike():
    recipe, seen = MatcherRecipe(prompts=0.5), set()
    for seed in range(40):
        true, false = tiny.data().maker.draw(0, 2, np.random.default_rng(seed), recipe)
        assert (true.words[:3] == ("a", "photo", "of")) == (false.words[:3] == ("a", "photo", "of"))
        assert (true.words[-1] == ".") == (false.words[-1] == ".")
        seen.add(true.words[:3] == ("a", "photo", "of"))
    assert seen == {True, False}


@pytest.mark.parametrize("recipe", [CaptionRecipe(batch=8, texts=4), MatcherRecipe(batch=8)])
@pytest.mark.parametrize("sentences", [0.0, 1.0])
def test_a_batch_calls_nothing_false_that_is_said_or_could_be_true(recipe, sentences):
    batch = draw_captions(tiny.data(), replace(recipe, sentences=sentences), 0)
    pairs, maker = all_pairs(tiny.data(), batch), tiny.data().maker
    assert not (pairs.own & pairs.false).any() and pairs.own.any(1).all() and pairs.false.any(1).all()
    assert len(set(pairs.texts)) == len(pairs.texts)
    for k, captions in enumerate(batch.captions):
        for caption, place in zip(captions, pairs.places[k]):
            assert pairs.texts[place] == caption.words
            assert caption.true <= bool(pairs.own[k, place]) and pairs.own[k, place] != pairs.false[k, place]
    others = {caption.words: caption for own in batch.captions for caption in own}
    for k, row in enumerate(batch.pictures.rows):
        mine = {caption.words for caption in batch.captions[k]}
        for column, words in enumerate(pairs.texts):
            if words not in mine and pairs.false[k, column]:
                assert not all(may_be_true(maker, said, maker.texts[row]) for said in others[words].said)
