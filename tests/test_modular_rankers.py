"""CMN, MAttNet and GroundNet: equal to literal versions, the same in any order and company, and what bad input does."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_models import MeanColours
from torch.nn.functional import normalize

from qgcam_lib.data.referring.expressions import Expression
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer
from qgcam_lib.models.regions.batch import FeatureRanker, RegionBatch, stack_regions
from qgcam_lib.models.regions.groundnet import CmnConfig, GroundNetConfig, build_cmn, build_groundnet, words_of_tokens
from qgcam_lib.models.regions.mattnet import MAttNetConfig, build_mattnet
from qgcam_lib.models.regions.parse import Node, Parsed, TreeParser
from qgcam_lib.referring.run import ask_expressions

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##s", "a", "and", "ball", "behind", "box", "car", "cat", "dog",
          "front", "green", "holding", "holds", "in", "is", "large", "left", "man", "metal", "of", "on", "red", "right",
          "small", "table", "that", "the", "to", "top", "tree", "under", "wearing", "wears", "woman", "quickly"]
WORDS, FEATURES = len(TOKENS), 7
PARSE = TreeParser()
SMALL = {"cmn": (build_cmn, CmnConfig(words=10, hidden=8), {}),
         "mattnet": (build_mattnet, MAttNetConfig(words=10, phrase=8, hidden=6, joint=10, neighbours=3), {}),
         "groundnet": (build_groundnet, GroundNetConfig(words=10, hidden=6), {"tokens": TOKENS})}


def network_of(name, seed=0, **changes):
    build, config, more = SMALL[name]
    network = build(replace(config, **changes), WORDS, FEATURES, seed, **more).double().eval()
    with torch.no_grad():  # batch normalisation that changes something, factors that differ
        torch.manual_seed(seed)
        for key, value in network.state_dict().items():
            if key.endswith(("running_mean", "alpha_obj1", "alpha_rel")) or "normalizer" in key:
                value += torch.randn_like(value) / 10
            if key.endswith("running_var"):
                value *= 1 + torch.rand_like(value)
    return network


def scene(counts, seed=0):
    """A RegionBatch in float64 with boxes of many sizes, some of them inside others."""
    rng = np.random.default_rng(seed)
    corners = [np.sort(rng.integers(0, 31, (n, 2, 2)), 1).reshape(n, 4) + [0, 0, 1, 1] for n in counts]
    batch = stack_regions([rng.normal(size=(n, FEATURES)) for n in counts],
                          [np.c_[c / 32, (c[:, 2:] - c[:, :2]).prod(1) / 1024] for c in corners])
    return RegionBatch(batch.features.double(), batch.geometry.double(), batch.mask)


def tokens(lengths, seed=0):
    """[CLS] words [SEP] and padding."""
    rng = np.random.default_rng(seed)
    rows = [[2, *rng.integers(5, WORDS, n), 3] for n in lengths]
    ids = torch.tensor([row + [0] * (max(lengths) + 2 - len(row)) for row in rows])
    return ids, ids != 0


def spelled(*texts):
    rows = [[2, *map(TOKENS.index, text.replace(" s ", " ##s ").split()), 3] for text in texts]
    ids = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
    return ids, ids != 0


# --- literal versions: one expression, one picture, loops over words, boxes and pairs ---------------------------------

def lstm_literal(lstm, vectors):
    """States of each word, both directions, and the last of each."""
    found, last = [], []
    for suffix, order in (("", range(len(vectors))), ("_reverse", range(len(vectors) - 1, -1, -1))):
        into, back = (getattr(lstm, f"weight_{kind}_l0{suffix}") for kind in ("ih", "hh"))
        bias = sum(getattr(lstm, f"bias_{kind}_l0{suffix}") for kind in ("ih", "hh")) if lstm.bias else 0
        h = c = vectors.new_zeros(lstm.hidden_size)
        states = [None] * len(vectors)
        for k in order:
            keep, forget, new, out = (into @ vectors[k] + back @ h + bias).chunk(4)
            c = torch.sigmoid(forget) * c + torch.sigmoid(keep) * torch.tanh(new)
            h = states[k] = torch.sigmoid(out) * torch.tanh(c)
        found.append(states)
        last.append(h)
    return [torch.cat(both) for both in zip(*found)], torch.cat(last)


def mean_literal(fc, states, vectors):
    logits = [float(fc(state)) for state in states]
    total = sum(np.exp(one - max(logits)) for one in logits)
    return sum(np.exp(one - max(logits)) / total * vector for one, vector in zip(logits, vectors))


def product_literal(region, phrase, head):
    return float(head(normalize(region * phrase, dim=0)))


def centred(place):
    x0, y0, x1, y1 = (2 * float(corner) - 1 for corner in place[:4])
    return torch.tensor([x0, y0, x1, y1, (x1 - x0) * (y1 - y0)], dtype=torch.float64)


def cmn_literal(network, features, geometry, words):
    words_of, look = network.lstm, network.localization_module
    relate = network.relationship_module_spatial_only
    vectors = [words_of.embedding_mat.weight[word] for word in words]
    below, _ = lstm_literal(words_of.bidirectional_lstm1, vectors_of(vectors))
    above, _ = lstm_literal(words_of.bidirectional_lstm2, vectors_of(below))
    states = [torch.cat(both) for both in zip(below, above)]
    subject, relation, thing = (mean_literal(words_of.attention[f"fc_scores_{name}"], states, vectors)
                                for name in ("obj1", "rel", "obj2"))
    places = [centred(place) for place in geometry]
    seen = [look["vis_spatial_embed"](torch.cat(both)) for both in zip(features, places)]
    scores = []
    for i, own in enumerate(seen):
        pairs = []
        for j, other in enumerate(seen):
            pair = relate["spatial_embed"](torch.cat([places[i], places[j]]))
            pairs.append(float(relate.alpha_obj1) * product_literal(own, subject, look["localization_scores"])
                         + float(relate.alpha_obj2) * product_literal(other, thing, look["localization_scores"])
                         + float(relate.alpha_rel) * product_literal(pair, relation, relate["relationship_scores"]))
        scores.append(max(pairs))
    return scores


def vectors_of(rows):
    return torch.stack(list(rows))


def joint_literal(layers, vector):
    """Linear, batch normalisation and so on, for one vector."""
    for layer in layers:
        if isinstance(layer, torch.nn.BatchNorm1d):
            vector = (vector - layer.running_mean) / (layer.running_var + layer.eps).sqrt() * layer.weight + layer.bias
        else:
            vector = layer(vector)
    return vector


def cosine(one, other):
    return float(one @ other / (one.norm() * other.norm()))


def unit(vector, scale):
    length = float(vector.norm())
    return (vector / length if length else vector) * scale.weight[0]


def seen_literal(geometry, i, j):
    x0, y0, x1, y1, area = (float(one) for one in geometry[i])
    u0, v0, u1, v1, other = (float(one) for one in geometry[j])
    x, y, w, h = (x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0
    return torch.tensor([(u0 - x) / w, (v0 - y) / h, (u1 - x) / w, (v1 - y) / h, other / area], dtype=torch.float64)


def near_literal(geometry, i, allowed, most):
    def key(j):
        away = sum(float(geometry[i][k] + geometry[i][k + 2] - geometry[j][k] - geometry[j][k + 2])**2 for k in (0, 1))
        return (round(away, 12), *(float(corner) for corner in geometry[j][:4]))
    return sorted(allowed, key=key)[:most]


def parts_literal(geometry, i):
    found = []
    for j, (u0, v0, u1, v1, area) in enumerate(geometry.tolist()):
        x0, y0, x1, y1 = geometry[i][:4].tolist()
        shared = max(0, min(x1, u1) - max(x0, u0)) * max(0, min(y1, v1) - max(y0, v0))
        if j == i or shared >= area / 2:
            found.append(j)
    return found


def mattnet_literal(network, features, geometry, words):
    encoder, coder = network.rnn_encoder, network.sub_encoder
    vectors = [encoder.mlp(encoder.embedding.weight[word]) for word in words]
    states, last = lstm_literal(encoder.rnn, vectors_of(vectors))
    phrases = {name: mean_literal(getattr(network, f"{name}_attn")["fc"], states, vectors)
               for name in ("sub", "loc", "rel")}
    text = {name: joint_literal(getattr(network, f"{name}_matching")["lang_emb_fc"], phrase)
            for name, phrase in phrases.items()}
    weights = network.weight_fc(last).softmax(0).tolist()
    most, everybody, scores = network.config.neighbours, range(len(features)), []

    def cell(feature):
        feature = unit(feature, coder.fc7_normalizer)
        return torch.cat([feature, unit(joint_literal(coder.att_fuse, feature), coder.att_normalizer)])

    for i in everybody:
        parts = [cell(features[j]) for j in parts_literal(geometry, i)]
        logits = [coder.attn_fuse(torch.cat([part, unit(phrases["sub"], coder.phrase_normalizer)])) for part in parts]
        shares = torch.cat(logits).softmax(0)
        subject = joint_literal(network.sub_matching["vis_emb_fc"], sum(s * part for s, part in zip(shares, parts)))

        others = [j for j in everybody if j != i]
        apart = [seen_literal(geometry, i, j) for j in near_literal(geometry, i, others, most)]
        apart = torch.cat([*apart, torch.zeros(5 * (most - len(apart)), dtype=torch.float64)])
        own = network.loc_encoder["fc"](torch.cat([unit(geometry[i], network.loc_encoder["lfeat_normalizer"]),
                                                   unit(apart, network.loc_encoder["dif_lfeat_normalizer"])]))
        location = joint_literal(network.loc_matching["vis_emb_fc"], own)

        fits = []
        for j in near_literal(geometry, i, others, most):
            near = network.rel_encoder["fc"](torch.cat([
                unit(features[j], network.rel_encoder["vis_feat_normalizer"]),
                unit(seen_literal(geometry, i, j), network.rel_encoder["lfeat_normalizer"])]))
            fits.append(cosine(joint_literal(network.rel_matching["vis_emb_fc"], near), text["rel"]))
        fits += [0.0] * (most - len(fits))
        scores.append(weights[0] * cosine(subject, text["sub"]) + weights[1] * cosine(location, text["loc"])
                      + weights[2] * max(fits))
    return scores


def groundnet_literal(network, features, geometry, words):
    spelled, at = words_of_tokens([TOKENS[word] for word in words], range(len(words)))
    tree, everybody = PARSE(spelled).tree, range(len(features))
    places = [centred(place) for place in geometry]

    def phrase(node):
        said = [words[token] for place in node.words for token in at[place]]
        vectors = [network.Wwrd.weight[word] for word in said]
        below, _ = lstm_literal(network.rnn0, vectors_of(vectors))
        above, _ = lstm_literal(network.rnn1, vectors_of(below))
        return mean_literal(network.Wscr, [torch.cat(both) for both in zip(below, above)], vectors)

    def shares(scores):
        total = sum(np.exp(one) for one in scores)
        return [np.exp(one) / total for one in scores]

    def found(node):
        if node.kind == "locate":
            text = phrase(node)
            return shares([product_literal(network.Wbox(torch.cat([features[j], places[j]])), text, network.Wout1)
                           for j in everybody])
        if node.kind == "intersect":
            parts = [found(child) for child in node.children]
            product = [np.prod([part[j] for part in parts]) for j in everybody]
            return [one / sum(product) for one in product]
        text, other, scores = phrase(node), found(node.children[0]), []
        for j in everybody:
            pairs = [network.Wrbox(torch.cat([features[i], places[i], features[j], places[j]])) for i in everybody]
            scores.append(sum(other[i] * product_literal(pairs[i], text, network.Wrel1) for i in everybody if i != j))
        return shares(scores)

    return np.log(found(tree))


LITERAL = {"cmn": cmn_literal, "mattnet": mattnet_literal, "groundnet": groundnet_literal}


@torch.no_grad()
@pytest.mark.parametrize("name", SMALL)
def test_the_network_is_its_literal_version(name):
    network, regions = network_of(name), scene([5, 1, 3])
    ids, mask = tokens([4, 1, 9, 7])
    if name == "groundnet":
        ids, mask = spelled("the dog that is left of the cat s under the table", "man", "red box that the ball is on",
                            "on the left quickly")
    of = torch.tensor([0, 1, 2, 0])
    scores = network(regions, ids, mask, of)
    for row, picture in enumerate(of.tolist()):
        real = regions.mask[picture]
        words = [word for word in ids[row].tolist() if word not in (0, 2, 3)]
        found = LITERAL[name](network, regions.features[picture][real], regions.geometry[picture][real], words)
        np.testing.assert_allclose(scores[row][real], found, atol=1e-9)
        assert (scores[row][~real] == -torch.inf).all()


# --- properties -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=8, deadline=None)
@given(counts=st.lists(st.integers(1, 7), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_order_and_company_change_nothing(name, counts, seed):
    """Permuted candidates give permuted scores; padding, other pictures and other expressions change none."""
    network, regions = network_of(name), scene(counts, seed)
    rng = np.random.default_rng(seed)
    ids, mask = tokens(rng.integers(1, 9, 4), seed)
    of = torch.from_numpy(rng.integers(0, len(counts), 4))
    with torch.no_grad():
        scores = network(regions, ids, mask, of)
        order = torch.from_numpy(rng.permutation(max(counts)))
        mixed = RegionBatch(*(one[:, order] for one in vars(regions).values()))
        np.testing.assert_allclose(network(mixed, ids, mask, of), scores[:, order], atol=1e-9)
        for row, picture in enumerate(of.tolist()):
            n, long = counts[picture], int(mask[row].sum())
            alone = RegionBatch(*(one[picture, None, :n] for one in vars(regions).values()))
            np.testing.assert_allclose(network(alone, ids[row, None, :long], mask[row, None, :long], of[:1] * 0)[0],
                                       scores[row, :n], atol=1e-9)


CANCELLED = ("_attn.fc.bias", "attn_fuse.2.bias", "fc_scores_obj1.bias", "fc_scores_rel.bias", "fc_scores_obj2.bias",
             "Wscr.bias", "Wout1.bias")


@pytest.mark.parametrize("name", SMALL)
def test_gradients_reach_every_parameter(name):
    """All but the constants that a softmax takes out again."""
    network, regions = network_of(name), scene([6, 5, 4])
    ids, mask = tokens([4, 2, 7, 3])
    scores = network(regions, ids, mask, torch.tensor([0, 1, 2, 0]))
    scores[scores.isfinite()].square().sum().backward()
    grads = {key: value.grad for key, value in network.named_parameters()}
    assert all(grad is not None and torch.isfinite(grad).all() for grad in grads.values())
    assert not [key for key, grad in grads.items() if grad.abs().max() < 1e-12 and not key.endswith(CANCELLED)]


def test_batch_statistics_do_not_see_padding():
    """In training, a batch with more padding leaves the same running means."""
    network, again, regions = network_of("mattnet"), network_of("mattnet"), scene([5, 3])
    for one in (network, again):
        one.input_dropout = one.rnn_encoder.input_dropout = torch.nn.Identity()
        one.train()
        for layer in one.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = 0.0
    ids, mask = tokens([4, 2])
    wider = RegionBatch(*(torch.cat([one, torch.zeros_like(one)], 1) for one in vars(regions).values()))
    of = torch.tensor([0, 1])
    torch.testing.assert_close(network(regions, ids, mask, of), again(wider, ids, mask, of)[:, :5])
    for (key, one), other in zip(network.state_dict().items(), again.state_dict().values()):
        torch.testing.assert_close(one, other, msg=key)


# --- bad input --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", SMALL)
def test_long_and_empty_expressions(name):
    network, regions = network_of(name), scene([3])
    ids, mask = tokens([80])
    with torch.no_grad():
        scores = network(regions, ids, mask, torch.tensor([0]))
        cut = network(regions, torch.cat([ids[:, :60], ids[:, -1:]], 1), mask[:, :61], torch.tensor([0]))
    assert torch.isfinite(scores).all() and not torch.equal(scores, cut)  # all eighty words are read
    ids, mask = tokens([3, 0])
    with pytest.raises(ValueError, match="expression 1"):
        network(regions, ids, mask, torch.tensor([0, 0]))


def ranker_of(name):
    build, config, _ = SMALL[name]
    words = build_vocabulary(["the large red box that is under the table"])
    more = {"tokens": words} if name == "groundnet" else {}
    network = build(config, len(words), 3, 3, **more)
    return FeatureRanker(network, make_tokenizer(words, lavis_tokens=False), MeanColours(), network.card)


@pytest.mark.parametrize("name", SMALL)
def test_as_a_ranker_of_pictures(name):
    ranker = ranker_of(name)
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (40, 60, 3), np.uint8)), Image.new("RGB", (30, 30), "red")]
    boxes = [[[0, 0, 30, 20], [10, 10, 60, 40], [5, 5, 9, 9], [10, 10, 60, 40]], [[3, 3, 20, 28]]]
    texts = [["the red box", "the zebra left of the large box on the table", "on the left"], ["it"]]
    scores = ranker.rank_batch(pictures, boxes, texts)
    for picture, own, said, table in zip(pictures, boxes, texts, scores):
        for text, row in zip(said, table):
            np.testing.assert_allclose(ranker.rank(picture, own, text), row, atol=1e-5)
    np.testing.assert_allclose(scores[0][:, 1], scores[0][:, 3], atol=1e-6)  # the same box twice
    assert scores[1].shape == (1, 1) and np.isfinite(scores[1]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eighty = "red " * 40 + "box under the " * 13 + "dog"
        assert np.isfinite(ranker.rank(pictures[0], boxes[0], eighty)).all()
    with pytest.warns(UserWarning, match=r"read as \[UNK\]"):
        assert np.isfinite(ranker.rank(pictures[0], boxes[0], "the 狗")).all()
    with pytest.raises(ValueError):
        ranker.rank(pictures[0], boxes[0], " ")
    if name == "groundnet":
        assert ranker.card["parsed"]["whole"] == 2 and sum(ranker.card["parsed"].values()) == 6


@pytest.mark.parametrize("batch_images, passes", [(8, [12]), (2, [8, 4]), (1, [4, 4, 4])])
def test_refer_sends_all_expressions_of_its_pictures_through_the_network_in_one_pass(tmp_path, batch_images, passes):
    ranker, sent = ranker_of("cmn"), []
    ranker.model.register_forward_hook(lambda network, given, scores: sent.append(len(scores)))
    boxes, expressions = ((0.0, 0.0, 9.0, 9.0), (5.0, 3.0, 20.0, 18.0)), []
    for picture, colour in enumerate(("red", "blue", "green")):
        Image.new("RGB", (24, 24), colour).save(tmp_path / f"{picture}.png")
        expressions += [Expression(f"{picture}{k}", f"{picture}.png", str(picture), text, boxes[0], boxes)
                        for k, text in enumerate(("the red box", "box", "the box under the table", "large box"))]
    asked = ask_expressions(ranker, expressions, tmp_path, batch_images=batch_images, progress=False)
    assert sent == passes
    alone = [score for one in expressions
             for score in ranker.rank(Image.open(tmp_path / one.image), boxes, one.text)]
    assert len(sent) == len(passes) + len(expressions)
    np.testing.assert_allclose(asked["score"], alone, atol=1e-5)


# --- trees ------------------------------------------------------------------------------------------------------------

def places_of(node):
    return [*node.words, *(place for child in node.children for place in places_of(child))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*TOKENS[6:], "zebra", ",", "one", "standing"]), min_size=1, max_size=14))
def test_every_sequence_of_words_has_a_tree_that_uses_no_word_twice(words):
    if not any(word.isalnum() for word in words):
        return
    found = PARSE(words)
    places = places_of(found.tree)
    assert len(places) == len(set(places)) and set(places) <= set(range(len(words)))

    def sound(node):
        kinds = {"locate": (0, 0), "relate": (1, 1), "intersect": (2, 99)}
        low, high = kinds[node.kind]
        assert low <= len(node.children) <= high and bool(node.words) == (node.kind != "intersect")
        return all(map(sound, node.children)) or True
    assert sound(found.tree)


def test_an_expression_without_a_noun_is_one_locate_and_is_counted():
    parse = TreeParser()
    assert parse("on the left") == Parsed(Node("locate", (0, 1, 2)), "whole")
    assert parse("the dog left of the cat").by == "grammar" and parse("the zebra on the left of it").by == "chunks"
    parse("on the left")
    assert parse.card["parsed"] == {"whole": 1, "grammar": 1, "chunks": 1}


def test_a_relation_read_backwards_is_another_tree():
    network, regions = network_of("groundnet"), scene([4])
    ids, mask = spelled("the box that is on the table", "the box that the table is on")
    with torch.no_grad():
        scores = network(regions, ids, mask, torch.tensor([0, 0]))
    assert not torch.allclose(scores[0], scores[1])
