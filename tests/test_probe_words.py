"""Words and Probe-C: taggers, pairs of adjective and noun, opposites, swaps against slow readings of definitions."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.data import taggers as taggers_module
from qgcam_lib.data.coco.files import CocoCaptions, CocoImage, read_captions
from qgcam_lib.data.taggers import Tagger, load_tagger
from qgcam_lib.errors import SourceError
from qgcam_lib.probes.builders.composition import find_mentions, swap_compositions, swap_objects
from qgcam_lib.probes.builders.words import (
    adjective_noun_pairs,
    attribute_words,
)

REAL = Path(__file__).resolve().parents[2] / "shared" / "realdata" / "coco"
WORDS = attribute_words()
KNOWN = frozenset(word for names in WORDS.categories.values() for word in names)


# --- taggers ----------------------------------------------------------------------------------------------------------

SENTENCE = "a small dog saw two red cars".split()
TAGS = ["DT", "JJ", "NN", "VBD", "CD", "JJ", "NNS"]
KINDS = ["other", "adjective", "noun", "other", "other", "adjective", "plural noun"]


@pytest.fixture
def fresh_taggers():
    load_tagger.cache_clear()
    yield
    load_tagger.cache_clear()


def test_nltk_tags_where_its_data_are_installed(tmp_path, monkeypatch, fresh_taggers):
    import nltk

    place = tmp_path / "taggers" / "averaged_perceptron_tagger_eng"
    tagger = nltk.tag.PerceptronTagger(load=False)
    tagger.train([list(zip(SENTENCE, TAGS))] * 20, nr_iter=5)
    place.mkdir(parents=True)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    tagger.save_to_json(lang="eng", loc=str(place))
    found = load_tagger("auto")
    assert found.name == "nltk" and "averaged_perceptron_tagger_eng" in found.version
    assert found.kinds(SENTENCE) == KINDS


def test_without_data_hanta_tags_and_the_others_are_refused(monkeypatch, fresh_taggers):
    import nltk

    monkeypatch.setattr(nltk.data, "path", [])
    assert load_tagger("auto").name == "hanta" and load_tagger("auto").kinds(SENTENCE) == KINDS
    with pytest.raises(SourceError, match="nltk"):
        load_tagger("nltk")


# --- pairs ------------------------------------------------------------------------------------------------------------

@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["adjective", "noun", "plural noun", "other"]))))
def test_an_adjective_and_the_noun_behind_it_are_a_pair_with_the_end_of_its_phrase(sentence):
    words, kinds = [word for word, _ in sentence], [kind for _, kind in sentence]
    nouns = ("noun", "plural noun")
    literal = {words[k] for k in range(len(words) - 1) if kinds[k] == "adjective" and kinds[k + 1] in nouns}
    ends = {(words[k], kinds[k] == "plural noun") for k in range(len(words)) if kinds[k] in nouns
            and kinds[k + 1:k + 2] not in (["noun"], ["plural noun"])}
    found = adjective_noun_pairs(words, kinds)
    assert literal <= {adjective for adjective, _, _ in found}
    assert {(noun, plural) for _, noun, plural in found} <= ends


def test_attributes_that_are_tagged_as_nouns_count_before_a_noun_only():
    words, kinds = "metal bench gold by the orange".split(), ["noun", "noun", "noun", "other", "other", "noun"]
    assert adjective_noun_pairs(words, kinds, {"metal", "gold", "orange"}) == [("metal", "gold", False)]
    assert adjective_noun_pairs(words[:2], kinds[:2], {"metal"}) == [("metal", "bench", False)]
    assert adjective_noun_pairs("traffic light pole".split(), ["noun"] * 3, {"light"}) == []


def test_opposites_are_opposite_both_ways_and_never_alike():
    for word, others in WORDS.opposites.items():
        for other in others:
            assert word in WORDS.opposites[other] and word != other and other not in WORDS.alike.get(word, ())
            assert word in KNOWN and other in KNOWN


# --- swaps ------------------------------------------------------------------------------------------------------------

def captions_of(texts):
    return CocoCaptions(Path("c.json"), {id: CocoImage(id, f"{id}.jpg") for id in texts},
                        {id: tuple(one) for id, one in texts.items()})


thing = st.tuples(st.sampled_from(["small", "large", "big", "tiny", "red", "green", "scarlet"]),
                  st.sampled_from(["dog", "cat", "ball"])).map(lambda pair: f"A {pair[0]} {pair[1]}.")
worlds = st.lists(st.lists(thing, min_size=1, max_size=3), min_size=1, max_size=9).map(
    lambda texts: captions_of(dict(enumerate(texts))))


def by_hand(name):
    table = {"a": "other", ".": "other", "dog": "noun", "cat": "noun", "ball": "noun"}
    return Tagger(name, name, lambda words: [table.get(word.lower(), "adjective") for word in words])


def literal_partners(mentions, first):
    """Every partner of a mention, read off the definition."""
    image, attribute, noun = first

    def says(image, word):
        return {word, *WORDS.alike.get(word, ())} & mentions.said[image]
    return [(other, word, what) for other, word, what in mentions.found
            if what == noun and other != image and word in WORDS.opposites[attribute]
            and not says(image, word) and not says(other, attribute)]


@settings(deadline=None, max_examples=60)
@given(worlds, st.integers(0, 3))
def test_composition_swaps_are_what_their_definition_says(captions, seed):
    load = {"hanta": lambda: by_hand("hanta")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taggers_module, "TAGGERS", load)
        load_tagger.cache_clear()
        mentions = find_mentions(captions, tagger="hanta")
        load_tagger.cache_clear()
    built = swap_compositions(mentions, seed=seed)
    mentioned = {one: literal_partners(mentions, one) for one in mentions.found if one[1] in WORDS.opposites}
    drawn = set()
    for pair in built.groups:
        first, second = ((int(name[:-4]), word, what) for name, word, what in zip(
            pair.images, pair.compositions, pair.objects))
        assert second in mentioned[first] and first in mentioned[second]
        assert pair.prompts == tuple(f"A photo of a {word} {what}." for _, word, what in (first, second))
        assert (pair.kind, pair.category) == ("composition", WORDS.category(first[1]))
        drawn |= {first, second}
    assert drawn == {one for one, partners in mentioned.items() if partners}, "whoever has a partner is in a pair"
    pairs = [frozenset(zip(pair.images, pair.compositions, pair.objects)) for pair in built.groups]
    assert len(set(pairs)) == len(pairs)
    assert swap_compositions(mentions, seed=seed).groups == built.groups
    swapped = swap_objects(mentions, seed=seed)
    for pair in swapped.groups:
        assert pair.compositions[0] == pair.compositions[1] and pair.objects[0] != pair.objects[1]
        for name, other in zip(pair.images, pair.objects[::-1]):
            assert other not in mentions.said[int(name[:-4])]
    able = {one for one, other in itertools.permutations(mentions.found, 2) if one[1] == other[1]
            and one[2] not in mentions.said[other[0]] and other[2] not in mentions.said[one[0]]}
    assert able == {(int(name[:-4]), pair.compositions[0], what) for pair in swapped.groups
                    for name, what in zip(pair.images, pair.objects)}


def test_steps_limits_and_options():
    texts = {k: [f"A {'small' if k % 2 else 'large'} dog."] * (1 + (k == 3)) for k in range(20)}
    mentions = find_mentions(captions_of(texts), tagger="hanta")
    built = swap_compositions(mentions, limit=5, seed=2)
    table = built.steps.set_index("step")
    assert len(built.groups) == 5 == table.left["groups"]
    assert built.groups == swap_compositions(mentions, limit=5, seed=2).groups
    assert built.groups != swap_compositions(mentions, limit=5, seed=3).groups
    nothing = find_mentions(captions_of({1: ["Nothing here."]}), tagger="hanta")
    assert not swap_compositions(nothing).groups and not swap_objects(nothing).groups


@pytest.mark.skipif(not REAL.is_dir(), reason="no real COCO files (../shared/realdata/coco)")
def test_real_captions_give_pairs():
    captions = read_captions(REAL / "captions_val2014_fakecap_results.json")
    mentions = find_mentions(captions, tagger="hanta")
    built, swapped = swap_compositions(mentions), swap_objects(mentions)
    assert len(built.groups) > 40 and len(swapped.groups) > 300
    assert {pair.category for pair in built.groups} >= {"color", "size", "age"}
