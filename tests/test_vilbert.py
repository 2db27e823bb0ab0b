"""Networks that rank regions: the batch, the adapter, and ViLBERT against public and literal versions of its parts."""

import dataclasses
import importlib.util
import os
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_models import MeanColours

from qgcam_lib.models.common.checkpoints import rename
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer
from qgcam_lib.models.regions.batch import FeatureRanker, RegionBatch, stack_regions
from qgcam_lib.models.regions.vilbert import (
    MINI,
    PUBLISHED_NAMES,
    ViLBERT,
    ViLBERTConfig,
    build_vilbert,
    load_published,
)
from qgcam_lib.models.roles import RegionRanker

SMALL = dataclasses.replace(MINI, hidden=24, heads=3, inner=20, region_hidden=24, region_heads=3, region_inner=28,
                            joint_hidden=24, joint_heads=3)
UNEQUAL = dataclasses.replace(SMALL, hidden=12, region_hidden=16, region_heads=4, joint_hidden=20, joint_heads=5)


def some(pictures=3, expressions=2, size=7, seed=0, words=50):
    """Random regions, and random expressions of each picture."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, pictures)
    regions = stack_regions([rng.standard_normal((n, size)) for n in counts], [rng.random((n, 5)) for n in counts])
    lengths = torch.from_numpy(rng.integers(2, 9, pictures * expressions))
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    return regions, torch.from_numpy(rng.integers(5, words, mask.shape)) * mask, mask, torch.arange(
        pictures).repeat_interleave(expressions)


def network(config=SMALL, seed=0):
    """A network whose weights are all different, so that none can be taken for another."""
    found = build_vilbert(config, 50, 7, seed).eval()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for p in found.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator))
    return found


# --- oracles ----------------------------------------------------------------------------------------------------------

def bert_config(c, width, heads, inner, layers):
    from transformers import BertConfig

    return BertConfig(vocab_size=50, hidden_size=width, num_attention_heads=heads, intermediate_size=inner,
                      num_hidden_layers=layers, max_position_embeddings=c.max_tokens, attn_implementation="eager",
                      layer_norm_eps=1e-12)


def bert_state(model, prefix):
    """Our weights under BERT's names, those of one stream."""
    theirs = {rename(name, PUBLISHED_NAMES): value for name, value in model.state_dict().items()}
    return {name.removeprefix(prefix): value for name, value in theirs.items() if name.startswith(prefix)}


def test_the_text_stream_without_connections_is_transformers_bert():
    from transformers import BertModel

    ours = network(dataclasses.replace(UNEQUAL, connections=()))
    c = ours.config
    bert = BertModel(bert_config(c, c.hidden, c.heads, c.inner, c.layers), add_pooling_layer=False).eval()
    theirs = bert_state(ours, "bert.")
    wanted = {name for name in bert.state_dict() if "position_ids" not in name}
    bert.load_state_dict({name: theirs[name] for name in wanted}, strict=False)
    regions, ids, mask, of = some()
    with torch.inference_mode():
        _, read = ours.streams(regions, ids, mask, of)
        wanted = bert(ids, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(read[mask], wanted[mask], atol=1e-5, rtol=0)


class PublicParts(torch.nn.Module):
    """ViLBERT put together from transformers' layers of BERT and LXMERT; all widths must be equal."""

    def __init__(self, ours):
        from transformers import LxmertConfig
        from transformers.models.bert.modeling_bert import BertIntermediate, BertLayer, BertOutput
        from transformers.models.lxmert.modeling_lxmert import LxmertCrossAttentionLayer

        super().__init__()
        c = self.config = ours.config
        text, image = (bert_config(c, 24, 3, inner, 1) for inner in (c.inner, c.region_inner))
        cross = LxmertConfig(hidden_size=24, num_attention_heads=3)
        self.ours = ours
        self.text = torch.nn.ModuleList(BertLayer(text) for _ in range(c.layers))
        self.image = torch.nn.ModuleList(BertLayer(image) for _ in range(c.region_layers))
        for place, layers in (("layer", self.text), ("v_layer", self.image)):
            for k, layer in enumerate(layers):
                layer.load_state_dict(bert_state(ours, f"bert.encoder.{place}.{k}."))
        self.cross, self.feeds = [], []
        for joined in ours.connections:
            for own, other, feed, sizes in ((joined.image, joined.text, joined.image_feed, image),
                                            (joined.text, joined.image, joined.text_feed, text)):
                one = LxmertCrossAttentionLayer(cross)
                one.att.query, one.att.key, one.att.value = own.query, other.key, other.value
                one.output.dense, one.output.LayerNorm = own.out, own.norm
                inner, outer = BertIntermediate(sizes), BertOutput(sizes)
                inner.dense, outer.dense, outer.LayerNorm = feed.inner, feed.outer, feed.norm
                self.cross.append(one.eval())
                self.feeds.append((inner.eval(), outer.eval()))
        self.eval()

    def forward(self, regions, ids, mask, of):
        seen, there = self.ours.see(regions)
        seen, there, read = seen[of], there[of], self.ours.read(ids)
        hide_regions, hide_words = ((1.0 - m[:, None, None].float()) * -10000 for m in (there, mask))
        for v, layer in enumerate([*self.image, None]):
            for k, (image, text) in enumerate(self.config.connections):
                if image == v:
                    for t in self.text[self.config.connections[k - 1][1] if k else 0:text]:
                        read = t(read, hide_words)[0]
                    asked = (self.cross[2 * k](seen, read, hide_words)[0],
                             self.cross[2 * k + 1](read, seen, hide_regions)[0])
                    seen, read = (outer(inner(x), x) for x, (inner, outer) in zip(asked, self.feeds[2 * k:]))
            seen = layer(seen, hide_regions)[0] if layer else seen
        return self.ours.score(seen[:, 1:]).squeeze(-1)


@pytest.mark.parametrize("connections", [SMALL.connections, ((0, 0), (1, 3), (3, 4)), ((0, 4),)])
def test_the_forward_is_that_of_public_layers(connections):
    ours = network(dataclasses.replace(SMALL, connections=connections))
    regions, ids, mask, of = some(seed=3)
    with torch.inference_mode():
        found, wanted = ours(regions, ids, mask, of), PublicParts(ours)(regions, ids, mask, of)
    seen = regions.mask[of]
    torch.testing.assert_close(found[seen], wanted[seen], atol=1e-5, rtol=0)
    assert torch.isneginf(found[~seen]).all() and wanted[seen].std() > 0.05


def test_co_attention_is_its_literal_loop():
    """One head, one question at a time, with streams of different widths."""
    layer = network(UNEQUAL).connections[0]
    c, generator = UNEQUAL, torch.Generator().manual_seed(1)
    seen, read = torch.randn(2, 3, 16, generator=generator), torch.randn(2, 5, 12, generator=generator)
    seen_mask, read_mask = torch.tensor([[True] * 3, [True, False, True]]), torch.arange(5) < torch.tensor([[5], [2]])

    def literal(own, other, states, others, mask, feed):
        out = torch.zeros_like(states)
        for b in range(len(states)):
            for t in range(states.shape[1]):
                context = []
                for h in range(c.joint_heads):
                    d = c.joint_hidden // c.joint_heads
                    part = slice(h * d, h * d + d)
                    question, keys = own.query(states[b, t])[part], other.key(others[b])[:, part]
                    weights = [float(mask[b, s]) * torch.exp(question @ key / d ** 0.5) for s, key in enumerate(keys)]
                    context.append(sum(w / sum(weights) * other.value(others[b, s])[part]
                                       for s, w in enumerate(weights)))
                middle = own.norm(own.out(torch.cat(context)) + states[b, t])
                x = feed.inner(middle)
                out[b, t] = feed.norm(feed.outer(x * 0.5 * (1 + torch.erf(x / 2 ** 0.5))) + middle)
        return out

    with torch.inference_mode():
        found = layer(seen, seen_mask, read, read_mask)
        wanted = (literal(layer.image, layer.text, seen, read, read_mask, layer.image_feed),
                  literal(layer.text, layer.image, read, seen, seen_mask, layer.text_feed))
    for ours, theirs in zip(found, wanted):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def published():
    """The module vilbert.py of `jiasenlu/vilbert_beta`, from the folder that VILBERT_SOURCE names."""
    source = Path(os.environ.get("VILBERT_SOURCE", ""), "vilbert", "vilbert.py")
    if not source.is_file():
        pytest.skip("VILBERT_SOURCE names no checkout of jiasenlu/vilbert_beta (vilbert/vilbert.py)")
    package, utils = types.ModuleType("published_vilbert"), types.ModuleType("published_vilbert.utils")
    package.__path__, utils.cached_path, utils.PreTrainedModel = [str(source.parent)], None, torch.nn.Module
    sys.modules |= {"published_vilbert": package, "published_vilbert.utils": utils}
    spec = importlib.util.spec_from_file_location("published_vilbert.vilbert", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["published_vilbert"], sys.modules["published_vilbert.utils"]


@pytest.mark.parametrize("config", [SMALL, UNEQUAL, dataclasses.replace(UNEQUAL, connections=((0, 1), (1, 2), (2, 3)))])
def test_the_published_code_gives_the_same(published, config):
    c = config
    sizes = published.BertConfig(
        50, hidden_size=c.hidden, num_hidden_layers=c.layers, num_attention_heads=c.heads, intermediate_size=c.inner,
        max_position_embeddings=c.max_tokens, v_feature_size=7, v_target_size=11, v_hidden_size=c.region_hidden,
        v_num_hidden_layers=c.region_layers, v_num_attention_heads=c.region_heads, v_intermediate_size=c.region_inner,
        bi_hidden_size=c.joint_hidden, bi_num_attention_heads=c.joint_heads,
        v_biattention_id=[v for v, _ in c.connections], t_biattention_id=[t for _, t in c.connections])
    theirs = published.VILBertForVLTasks(sizes, num_labels=4).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    ours = build_vilbert(c, 50, 7).eval()
    assert load_published(ours, theirs.state_dict()) == []
    regions, ids, mask, of = some(seed=5)
    seen = regions.mask[of]
    mean = torch.stack([f[m].mean(0) for f, m in zip(regions.features, regions.mask)])
    features = torch.cat([mean[:, None], regions.features], 1)[of]
    places = torch.cat([torch.tensor([0, 0, 1, 1, 1.0]).expand(len(regions), 1, 5), regions.geometry], 1)[of]
    there = torch.cat([torch.ones(len(of), 1, dtype=torch.bool), seen], 1)
    with torch.inference_mode():
        scores = theirs(ids, features, places, torch.zeros_like(ids), mask.long(), there.long(),
                        torch.zeros(len(of), there.shape[1], ids.shape[1]))[4][:, 1:, 0]
        pooled = (a * b for a, b in [theirs.bert(ids, features, places, torch.zeros_like(ids), mask.long(),
                                                 there.long())[2:4]])
        found = ours(regions, ids, mask, of)
        torch.testing.assert_close(ours.pooled(regions, ids, mask, of), next(pooled), atol=1e-5, rtol=0)
    torch.testing.assert_close(found[seen], scores[seen], atol=1e-5, rtol=0)
    assert float((found[seen] - scores[seen]).abs().max()) < 1e-5 < float(scores[seen].std())


# --- properties -------------------------------------------------------------------------------------------------------

@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), config=st.sampled_from([
    SMALL, UNEQUAL, dataclasses.replace(UNEQUAL, connections=())]))
def test_padding_and_company_change_nothing(seed, config):
    """An expression with its picture alone, without padding, has the scores that it has in a batch."""
    model = network(config)
    regions, ids, mask, of = some(seed=seed)
    with torch.inference_mode():
        scores = model(regions, ids, mask, of)
        for k, picture in enumerate(of.tolist()):
            n, t = int(regions.mask[picture].sum()), int(mask[k].sum())
            one = stack_regions([regions.features[picture, :n]], [regions.geometry[picture, :n]])
            alone = model(one, ids[k:k + 1, :t], mask[k:k + 1, :t], torch.tensor([0]))
            torch.testing.assert_close(alone[0], scores[k, :n], atol=1e-5, rtol=0)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_scores_move_with_their_regions(seed):
    model = network()
    regions, ids, mask, of = some(pictures=1, seed=seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(regions.mask.shape[1]))
    moved = RegionBatch(regions.features[:, order], regions.geometry[:, order], regions.mask)
    with torch.inference_mode():
        torch.testing.assert_close(model(moved, ids, mask, of), model(regions, ids, mask, of)[:, order],
                                   atol=1e-5, rtol=0)


def test_what_no_score_depends_on_does_not_learn():
    model = network(dataclasses.replace(SMALL, connections=((1, 2), (2, 3)), dropout=0.0)).train()
    regions, ids, mask, of = some()
    model(regions, ids, mask, of)[regions.mask[of]].square().sum().backward()
    still = {name.removesuffix(".weight").removesuffix(".bias") for name, p in model.named_parameters()
             if p.grad is None and not name.startswith("text.3.")}
    assert all(p.grad is None for p in model.text[3].parameters())
    last = {f"connections.1.{name}" for name in ("image.key", "image.value", "text.query", "text.out", "text.norm",
                                                 "text_feed.inner", "text_feed.outer", "text_feed.norm")}
    assert still == {"pool_text", "pool_image"} | last


def test_the_published_sizes():
    """Both published configurations, on the meta device: the layers, and names that are all different."""
    six = ViLBERTConfig(region_layers=6, connections=tuple((k, k + 6) for k in range(6)))
    with torch.device("meta"):
        for config, connections in ((ViLBERTConfig(), 8), (six, 6)):
            model = ViLBERT(config, 30522, 2048)
            assert (len(model.text), len(model.image), len(model.connections)) == (12, connections, connections)
            names = {rename(name, PUBLISHED_NAMES) for name in model.state_dict()}
            assert len(names) == len(model.state_dict()) and "vision_logit.weight" in names
            assert f"bert.encoder.c_layer.{connections - 1}.biattention.query1.weight" in names


def test_a_foreign_checkpoint_is_named():
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = {rename(name, PUBLISHED_NAMES): value for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="v_embeddings"):
        load_published(model, {name: value for name, value in state.items() if "v_embeddings" not in name})
    with pytest.raises(ValueError, match="t_pooler"):
        load_published(model, {**state, "bert.t_pooler.dense.weight": torch.zeros(2, 2)})
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# --- the adapter ------------------------------------------------------------------------------------------------------

WORDS = build_vocabulary()
TOKENIZER = make_tokenizer(WORDS, lavis_tokens=False)


def ranker(**options):
    return FeatureRanker(build_vilbert(SMALL, len(WORDS), 3), TOKENIZER, MeanColours(), {"name": "vilbert"}, **options)


PICTURES = [Image.linear_gradient("L").resize((60, 40)), Image.radial_gradient("L").resize((50, 50))]
BOXES = [[[0, 0, 30, 20], [10, 10, 60, 40], [10, 10, 60, 40]], [[0, 0, 25, 50]]]
TEXTS = [["the dark one", "a red ball on the left of the tall man", "dark"], ["the left half", "the left half"]]


def test_all_at_once_is_one_by_one():
    model = ranker(batch=3)
    assert isinstance(model, RegionRanker) and model.card["encoder"] == "colours"
    found = model.rank_batch(PICTURES, BOXES, TEXTS)
    assert [(table.shape, table.dtype) for table in found] == [((3, 3), np.float32), ((2, 1), np.float32)]
    assert model.encoder.asked == 2
    for picture, boxes, texts, table in zip(PICTURES, BOXES, TEXTS, found):
        for text, row in zip(texts, table):
            np.testing.assert_allclose(ranker().rank(picture, boxes, text), row, atol=1e-5)
    assert abs(found[0][0, 1] - found[0][0, 2]) < 1e-6  # the same box twice
    assert np.isfinite(found[1]).all()  # one candidate
    assert model.rank(PICTURES[0], [], "dark").shape == (0,)
    assert np.isfinite(model.rank(PICTURES[0], BOXES[0], "")).all()


def test_a_file_is_remembered_until_it_changes(tmp_path):
    path, model = tmp_path / "a.png", ranker()
    PICTURES[0].save(path)
    first = model.rank(path, BOXES[0], "dark")
    np.testing.assert_array_equal(model.rank(str(path), BOXES[0], "dark"), first)
    assert model.encoder.asked == 1
    np.testing.assert_allclose(model.rank(PICTURES[0], BOXES[0], "dark"), first, atol=1e-6)
    Image.new("RGB", (60, 40), "red").save(path)
    assert not np.allclose(model.rank(path, BOXES[0], "dark"), first, atol=1e-7)
    model.rank(path, BOXES[0][:2], "dark")
    assert model.encoder.asked == 4
    model.forget()
    model.rank(path, BOXES[0][:2], "dark")
    assert model.encoder.asked == 5


def test_eighty_words_are_read_whole_and_two_hundred_are_cut_with_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = ranker().rank(PICTURES[0], BOXES[0], " ".join(["red"] * 79 + ["ball"]))  # 82 tokens of 128
    with pytest.warns(UserWarning, match="128"):
        cut = ranker().rank(PICTURES[0], BOXES[0], " ".join(["red"] * 200))
    np.testing.assert_allclose(cut, ranker().rank(PICTURES[0], BOXES[0], " ".join(["red"] * 126)), atol=1e-6)
    assert np.abs(whole - cut).max() > 1e-6
