"""The blind scorer: Kneser-Ney against its definition, a language model against its own loss, what it can do."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.data.probes.groups import SwapPair
from qgcam_lib.probes.own_scores import (
    END,
    START,
    UNKNOWN,
    Blind,
    NGrams,
    blind_scores,
    plain_words,
    training_captions,
)
from qgcam_lib.probes.run import probe, score_groups

texts = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5).map(" ".join), min_size=1, max_size=6)


def literal(captions, order, discount, word, context):
    """P(word | context) from the definition, counting anew for every probability."""
    sentences = [(*[START] * (order - 1), *plain_words(one), END) for one in captions]
    vocabulary = {word for one in sentences for word in one if word != START} | {UNKNOWN}

    def grams(n):
        return [one[k - n:k] for one in sentences for k in range(order, len(one) + 1)]

    def count(gram):
        n = len(gram)
        if n == order or gram[0] == START:
            return Counter(grams(n))[gram]
        return len({longer[0] for longer in set(grams(n + 1)) if longer[1:] == gram and count(longer)})

    def p(word, context):
        below = p(word, context[1:]) if context else 1 / len(vocabulary)
        follow = {w: count((*context, w)) for w in vocabulary}
        total = sum(follow.values())
        if not total:
            return below
        kinds = sum(c > 0 for c in follow.values())
        return max(follow[word] - discount, 0) / total + discount * kinds / total * below

    return p(word, tuple(context[max(len(context) - order + 1, 0):]))


@settings(max_examples=25, deadline=None)
@given(texts, st.integers(1, 3), st.sampled_from([0.5, 0.75, 1.0]), st.lists(st.sampled_from("abz"), max_size=3))
def test_probabilities_equal_the_definition_and_add_up_to_one(captions, order, discount, context):
    model = NGrams(captions, order, discount)
    total = 0
    for word in model.vocabulary:
        value = model.probability(word, context[max(len(context) - order + 1, 0):])
        assert 0 < value <= 1 + 1e-12
        assert np.isclose(value, literal(captions, order, discount, word, context))
        total += value
    assert np.isclose(total, 1)
    assert model.probability("never seen", ()) == model.probability(UNKNOWN, ())


def test_a_text_has_the_product_of_its_words():
    model = NGrams(["a b c", "a b", "b c"], order=3)
    padded = (START, START, "a", "b", END)
    expected = sum(np.log(model.probability(padded[k], padded[k - 2:k])) for k in range(2, 5))
    assert np.isclose(model.log_probability("A b."), expected)
    assert model.log_probability("An image of b c!") == model.log_probability("b c")


@given(texts, st.lists(st.lists(st.sampled_from("abcdefg"), min_size=1).map(" ".join), min_size=2, max_size=2))
def test_no_pair_can_be_had_blind(captions, prompts):
    blind = Blind(NGrams(captions))
    pair = SwapPair("p", ("1.png", "2.png"), tuple(prompts))
    found = score_groups([pair], blind_scores([pair], blind))
    assert not found[["text_score", "image_score", "group_score"]].any().any()
    assert np.isclose(found["confidence"][0], 0.5)


def test_as_a_matcher_it_gives_the_same_as_without_pictures(tmp_path):
    from PIL import Image

    for name in ("1.png", "2.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    groups = [SwapPair("p", ("1.png", "2.png"), ("a b", "b a")), SwapPair("q", ("2.png", "1.png"), ("a", "b b"))]
    blind = Blind(NGrams(["a b", "b b a"]))
    asked = probe(blind, groups, tmp_path, progress=False)
    assert asked.equals(score_groups(groups, blind_scores(groups, blind)))
    assert asked.attrs["model"]["name"] == "blind (3-grams)" and blind.score([1, 2, 3], ["a", "b"]).shape == (3, 2)


def test_captions_are_read_from_what_people_have(tmp_path):
    (tmp_path / "mine.txt").write_text("A dog.\n\n A cat on a mat. \n")
    assert training_captions(tmp_path / "mine.txt") == ["A dog.", "A cat on a mat."]
    images = [{"id": 1, "file_name": "a.jpg", "height": 2, "width": 2}]
    captions = [{"id": 5, "image_id": 1, "caption": "A bird."}]
    (tmp_path / "captions.json").write_text(json.dumps({"images": images, "annotations": captions}))
    assert training_captions(tmp_path / "captions.json") == ["A bird."]
    regions = [{"region_id": 1, "image_id": 1, "phrase": "a red ball", "x": 0, "y": 0, "width": 2, "height": 2}]
    (tmp_path / "regions.json").write_text(json.dumps([{"id": 1, "regions": regions}]))
    assert training_captions(tmp_path / "regions.json") == ["a red ball"]
    with pytest.raises(ValueError, match="captions"):
        NGrams([])
