"""The training of rankers of regions: losses against literal ones, batches, negatives, early stopping, resuming."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import log_loss

from qgcam_lib.data.referring.expressions import Expression
from qgcam_lib.errors import FileFault, ParameterError
from qgcam_lib.finetune.referring.data import RankerData, RegionTable, load_ranker_data, soft_targets
from qgcam_lib.finetune.referring.training import RankerRecipe, region_loss, start_ranker, train_ranker
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer
from qgcam_lib.models.regions.batch import FeatureRanker
from qgcam_lib.models.regions.vilbert import MINI, build_vilbert
from qgcam_lib.referring.hinge import ContrastiveHinge

SMALL = dataclasses.replace(MINI, hidden=16, heads=2, inner=16, layers=2, region_hidden=16, region_heads=2,
                            region_inner=16, region_layers=2, joint_hidden=16, joint_heads=2,
                            connections=((0, 1), (1, 2)), dropout=0.0)
SHORT = RankerRecipe(epochs=3, batch=12, learning_rate=3e-3, log_every=1, patience=0)


def toys(pictures=12, seed=0, regions=4):
    """Pictures with one to three expressions each, two of which may mean the same region or have the same words."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, regions + 1, pictures)
    said = rng.integers(1, 4, pictures)
    of = np.arange(pictures).repeat(said)
    lengths = rng.integers(3, 7, len(of))
    ids = rng.integers(5, 30, (len(of), 6)) * (np.arange(6) < lengths[:, None])
    targets = np.zeros((len(of), regions), np.float32)
    targets[np.arange(len(of)), rng.integers(0, counts[of])] = rng.choice([1, 0.75], len(of))
    first = np.cumsum([0, *counts])
    table = RegionTable(rng.standard_normal((first[-1], 5)).astype(np.float32),
                        rng.random((first[-1], 5)).astype(np.float32), first, fingerprint=f"{seed} {pictures}")
    return RankerData(table, of, ids, lengths, targets, tuple(map(str, range(len(of)))))


def network(seed=0, config=SMALL):
    return build_vilbert(config, 30, 5, seed)


def weights_of(model):
    return torch.cat([value.flatten() for value in model.state_dict().values()])


# --- losses -----------------------------------------------------------------------------------------------------------

box = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20), st.integers(1, 20)).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))


@settings(max_examples=60, deadline=None)
@given(candidates=st.lists(box, max_size=5), target=box)
def test_soft_targets_count_pixels(candidates, target):
    """Whole-pixel boxes: IoU is a share of pixels."""
    def pixels(b):
        return {(x, y) for x in range(b[0], b[2]) for y in range(b[1], b[3])}

    wanted = [len(pixels(one) & pixels(target)) / len(pixels(one) | pixels(target)) for one in candidates]
    wanted = [share if share >= 0.5 else 0 for share in wanted]
    np.testing.assert_allclose(soft_targets(candidates, target), wanted, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(1, 6))
def test_the_loss_of_hard_targets_is_sklearns(seed, n):
    rng = np.random.default_rng(seed)
    scores, targets = rng.normal(0, 3, n), rng.integers(0, 2, n)
    padded = torch.tensor([*scores, -math.inf, math.nan])[None]
    found = region_loss(padded, torch.tensor([*targets, 0.0, 0.0])[None], torch.arange(n + 2)[None] < n)
    assert found.shape == (1,)
    probability = 1 / (1 + np.exp(-scores))
    wanted = sum(log_loss([t], [p], labels=[0, 1]) for t, p in zip(targets, probability))
    assert found.item() == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_the_loss_of_soft_targets_is_literal_and_finite_in_half():
    found = region_loss(torch.tensor([[1.0, -2.0]]), torch.tensor([[0.6, 0.0]]), torch.ones(1, 2, dtype=torch.bool))
    p, q = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(2))
    assert found.item() == pytest.approx(-0.6 * math.log(p) - 0.4 * math.log(1 - p) - math.log(1 - q), rel=1e-6)
    half = region_loss(torch.tensor([[60000.0]], dtype=torch.float16), torch.zeros(1, 1), torch.ones(1, 1).bool())
    assert half.dtype == torch.float32 and half.item() == 60000


# --- batches ----------------------------------------------------------------------------------------------------------

def test_an_epoch_shows_pictures_whole_and_no_expression_twice():
    training = start_ranker(network(), toys(40), SHORT)
    for epoch in range(3):
        steps = [training.rows_of(epoch * training.per_epoch + k) for k in range(training.per_epoch)]
        rows = np.concatenate([row for step in steps for row in step])
        assert len(rows) == len(set(rows.tolist())) and len(training.data) - len(rows) < 2 * 12
        for step in steps:
            assert 12 - 3 < sum(map(len, step)) < 12 + 3
            for own in step:
                picture = training.data.of[own[0]]
                assert (training.data.of == picture).sum() == len(own) and (training.data.of[own] == picture).all()
    assert [list(map(list, training.rows_of(5)))] == [list(map(list, training.rows_of(5)))]
    assert list(map(list, training.rows_of(0))) != list(map(list, training.rows_of(training.per_epoch)))



@settings(max_examples=30, deadline=None)
@given(steps=st.integers(1, 300), warm=st.sampled_from([0.0, 0.1, 0.5]))
def test_the_rate_rises_and_falls_in_lines(steps, warm):
    recipe = RankerRecipe(steps=steps, warm=warm)
    rates = np.array([recipe.rate(step) for step in range(steps)])
    top = rates.argmax()
    assert (rates > 0).all() and rates.max() <= recipe.learning_rate * (1 + 1e-12)
    assert (np.diff(rates[:top + 1]) > 0).all() and (np.diff(rates[top:]) <= 1e-18).all()
    assert recipe.rate(steps) == 0


# --- negatives --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("together", [0, 3, 1])
@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_hinges_are_a_double_loop_over_single_passes(together, reduction):
    data = toys(10, seed=3)
    training = start_ranker(network(), data, dataclasses.replace(SHORT, loss=reduction, negatives=3,
                                                                 together=together, margin=0.4))
    step = next(step for step in range(20) if training.draw(step).usable.any())
    batch, rows = training.draw(step), np.concatenate(training.rows_of(step))
    found = training.losses(batch)

    def one(j, k):
        alone, target = data.batch([rows[j]]), data.batch([rows[k]])
        return float(training.model(target.regions, alone.ids, alone.mask, torch.tensor([0]))[0, target.place[0]])

    total = 0.0
    with torch.inference_mode():
        for j in range(len(rows)):
            others = batch.usable[j].nonzero().flatten().tolist()
            texts = [max(0.0, 0.4 + one(k, j) - one(j, j)) for k in others]
            boxes = [max(0.0, 0.4 + one(j, k) - one(j, j)) for k in others]
            total += sum(sum(each) if reduction == "sum" else max(each, default=0) for each in (texts, boxes))
    assert found["hinge"].item() == pytest.approx(total / len(rows), abs=1e-5) and total > 0.1
    assert found["total"].item() == pytest.approx(found["plain"].item() + found["hinge"].item(), rel=1e-6)


def test_negatives_are_other_objects_with_other_words():
    data = toys(10, seed=3)
    data.ids[1:4] = data.ids[0]
    for together in (0, 1):
        training = start_ranker(network(), data, dataclasses.replace(SHORT, batch=len(data), loss="sum", negatives=0,
                                                                     together=together))
        rows = np.concatenate(training.rows_of(0))
        usable = training.draw(0).usable
        for j, a in enumerate(rows):
            for k, b in enumerate(rows):
                same_picture = data.of[a] == data.of[b]
                wanted = (not (same_picture and data.place[a] == data.place[b])
                          and (data.ids[a] != data.ids[b]).any() and (same_picture or not together))
                assert bool(usable[j, k]) == bool(wanted)
    few = start_ranker(network(), data, dataclasses.replace(SHORT, loss="sum", negatives=2)).draw(0).usable
    assert few.sum(1).max() == 2 and torch.equal(few, start_ranker(network(), data, dataclasses.replace(
        SHORT, loss="sum", negatives=2)).draw(0).usable)


def test_pictures_that_share_their_negatives_are_asked_once_for_all_their_boxes():
    """Groups of two pictures: each expression is asked about its own picture, and once about the other."""
    data, passes = toys(10, seed=3), []
    training = start_ranker(network(), data, dataclasses.replace(SHORT, loss="sum", together=2, negatives=0))
    batch, rows = training.draw(0), np.concatenate(training.rows_of(0))
    pictures = list(dict.fromkeys(data.of[rows].tolist()))
    group = {picture: place // 2 for place, picture in enumerate(pictures)}
    for j, a in enumerate(rows):
        for k, b in enumerate(rows):
            own = group[data.of[a]] == group[data.of[b]]
            assert bool(batch.usable[j, k]) <= own and (not batch.usable[j, k] or j != k)
    training.model.register_forward_hook(lambda module, given, found: passes.append(len(found)))
    training.losses(batch)
    alone = [p for p in pictures if sum(group[p] == group[q] for q in pictures) == 1]
    assert passes[0] == len(rows) and passes[1] <= len(rows) - np.isin(data.of[rows], alone).sum()
    assert batch.usable.sum() > passes[1] > 0


def test_gradients_of_pair_scores_reach_the_network():
    training = start_ranker(network(), toys(10, seed=3), dataclasses.replace(SHORT, loss="max"))
    batch = training.draw(0)
    found = training.pair_scores(batch, training.model(*batch.inputs("cpu")))
    loss = ContrastiveHinge(5.0, "max")(found, batch.usable)
    loss.backward()
    slope = training.model.words.weight.grad.clone()
    assert slope.abs().sum() > 0
    training.model.zero_grad()
    with torch.no_grad():
        training.model.words.weight -= 1e-3 * slope / slope.norm()
        again = training.pair_scores(batch, training.model(*batch.inputs("cpu")))
        lower = ContrastiveHinge(5.0, "max")(again, batch.usable)
    assert (loss - lower).item() == pytest.approx(1e-3 * float(slope.norm()), rel=0.05)


# --- a training -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("loss", ["plain", "max"])
def test_stopped_and_gone_on_is_the_same_to_the_bit(tmp_path, loss):
    data, dev = toys(20), toys(8, seed=1)
    recipe = dataclasses.replace(SHORT, loss=loss, negatives=2, patience=2)
    model = network(config=dataclasses.replace(SMALL, dropout=0.1))
    before = weights_of(model).clone()
    whole = train_ranker(model, data, dev, recipe=recipe, progress=False)
    assert torch.equal(weights_of(model), before) and not torch.equal(weights_of(whole.model), before)
    train_ranker(model, data, dev, tmp_path, recipe=recipe, stop_at=3, progress=False)
    again = train_ranker(model, data, dev, tmp_path, recipe=recipe, progress=False)
    assert again.step == whole.step and torch.equal(weights_of(again.model), weights_of(whole.model))
    assert again.looks == whole.looks and len(whole.looks) > 1
    with pytest.raises(FileFault, match="learning_rate"):
        train_ranker(model, data, dev, tmp_path, recipe=dataclasses.replace(recipe, learning_rate=1.0), progress=False)
    with pytest.raises(FileFault, match="data"):
        train_ranker(model, toys(20, seed=9), dev, tmp_path, recipe=recipe, progress=False)


def test_the_result_has_the_weights_that_were_best_and_stops_when_patience_ends(monkeypatch):
    seen = iter([0.3, 0.5, 0.4, 0.5, 0.2])
    kept = []

    def look(self, data):
        kept.append(weights_of(self.model).clone())
        return next(seen)

    training_class = type(start_ranker(network(), toys(20), SHORT))
    monkeypatch.setattr(training_class, "accuracy", look)
    recipe = dataclasses.replace(SHORT, epochs=50, patience=3)
    found = train_ranker(network(), toys(20), toys(8, seed=1), recipe=recipe, progress=False)
    assert found.looks == [0.3, 0.5, 0.4, 0.5, 0.2] and len(kept) == 5
    assert torch.equal(weights_of(found.model), kept[1]) and not torch.equal(kept[1], kept[4])
    assert found.finished and found.step == 5 * found.per_epoch < found.recipe.steps


def test_hinges_can_wait_for_the_plain_loss():
    recipe = dataclasses.replace(SHORT, loss="max", hinges_after=2, log_every=1)
    late, plain = (train_ranker(network(), toys(20), recipe=one, progress=False, stop_at=2)
                   for one in (recipe, dataclasses.replace(SHORT, log_every=1)))
    assert torch.equal(weights_of(late.model), weights_of(plain.model))
    found = train_ranker(network(), toys(20), recipe=recipe, progress=False)
    assert (found.log.hinge[:2] == 0).all() and (found.log.hinge[2:] > 0).all()


class Bag(torch.nn.Module):
    """The least that the contract asks for."""

    def __init__(self):
        super().__init__()
        self.words, self.regions = torch.nn.Embedding(30, 8), torch.nn.Linear(10, 8)

    def forward(self, regions, ids, mask, of):
        texts = (self.words(ids) * mask[..., None]).sum(1)
        seen = self.regions(torch.cat([regions.features, regions.geometry], -1))[of]
        return (seen * texts[:, None]).sum(-1).masked_fill(~regions.mask[of], -math.inf)


def other_rankers():
    from qgcam_lib.models.regions.groundnet import build_cmn
    from qgcam_lib.models.regions.mattnet import build_mattnet

    return {"bag": Bag(), "cmn": build_cmn(vocabulary_size=30, feature_size=5),
            "mattnet": build_mattnet(vocabulary_size=30, feature_size=5)}


@pytest.mark.parametrize("name", ["bag", "cmn", "mattnet"])
def test_every_network_of_the_contract_learns(name):
    recipe = dataclasses.replace(SHORT, loss="max", together=1, epochs=1, learning_rate=1e-2)
    model = other_rankers()[name]
    found = train_ranker(model, toys(20), toys(8, seed=1), recipe=recipe, progress=False)
    assert np.isfinite(found.log.total.dropna()).all()
    assert not torch.equal(weights_of(found.model), weights_of(model))


def test_data_that_cannot_be_learned_from():
    with pytest.raises(ParameterError, match="the largest number of texts of one image"):
        start_ranker(network(), toys(20), dataclasses.replace(SHORT, batch=1))
    lost = toys(20)
    lost.targets[3] = 0
    with pytest.raises(ParameterError, match="1 texts without"):
        start_ranker(network(), lost, SHORT)
    assert start_ranker(network(), toys(20), SHORT, lost).accuracy(lost) <= 1 - 1 / len(lost)


# --- from records to a ranker -----------------------------------------------------------------------------------------

class Colours:
    """A RegionEncoder that counts how often it is asked."""

    def __init__(self, strength=1.0):
        self.card, self.asked, self.strength = {"name": "colours", "strength": strength}, 0, strength

    def encode(self, image, boxes):
        self.asked += 1
        pixels = np.asarray(Image.open(image).convert("RGB"), np.float32) / 255 * self.strength
        return np.stack([pixels[int(y0):int(y1), int(x0):int(x1)].mean((0, 1)) for x0, y0, x1, y1 in boxes])


def records(folder):
    """Four pictures with a red, a green and a blue box each, in turns; and an expression of 80 words."""
    folder.mkdir(exist_ok=True)
    boxes = ((0.0, 0, 20, 20), (20.0, 0, 40, 20), (0.0, 20, 40, 40))
    colours, found = ("red", "green", "blue"), []
    for k in range(4):
        picture = Image.new("RGB", (40, 40))
        for j, (x0, y0, x1, y1) in enumerate(boxes):
            colour = colours[(j + k) % 3]
            picture.paste(colour, (int(x0), int(y0), int(x1), int(y1)))
            text = f"the {colour} one" if j or k else " ".join(["the"] * 79 + [colour])
            found.append(Expression(f"{k}-{j}", f"{k}.png", str(k), text, boxes[j], boxes))
        picture.save(folder / f"{k}.png")
    return found


def test_features_are_made_once_for_one_encoder_and_the_same_boxes(tmp_path):
    found, tokenizer = records(tmp_path / "pictures"), make_tokenizer(build_vocabulary(), lavis_tokens=False)
    encoder, given = Colours(), (tmp_path / "pictures",)
    first = load_ranker_data(found, *given, encoder, tokenizer, cache=tmp_path / "cache", progress=False)
    again = load_ranker_data(found, *given, encoder, tokenizer, cache=tmp_path / "cache", progress=False)
    assert encoder.asked == 4 and first.fingerprint == again.fingerprint
    assert len(list((tmp_path / "cache").iterdir())) == 1
    np.testing.assert_array_equal(first.regions.features, again.regions.features)
    assert first.ids.shape == (12, 82) and first.place.tolist() == [0, 1, 2] * 4
    other = load_ranker_data(found, *given, Colours(2.0), tokenizer, cache=tmp_path / "cache", progress=False)
    assert other.fingerprint != first.fingerprint
    np.testing.assert_allclose(other.regions.features, 2 * first.regions.features, rtol=1e-6)
    fewer = [dataclasses.replace(one, candidates=one.candidates[:2]) for one in found]
    cut = load_ranker_data(fewer, *given, encoder, tokenizer, cache=tmp_path / "cache", progress=False)
    assert len(cut) == 8 and encoder.asked == 8


def test_the_trained_ranker_says_of_pictures_what_the_training_says_of_arrays(tmp_path):
    found, tokenizer = records(tmp_path), make_tokenizer(build_vocabulary(), lavis_tokens=False)
    encoder = Colours()
    data = load_ranker_data(found, tmp_path, encoder, tokenizer, progress=False)
    model = build_vilbert(SMALL, len(tokenizer), 3)
    tuned = train_ranker(model, data, data, recipe=dataclasses.replace(SHORT, epochs=12, learning_rate=1e-2),
                         progress=False)
    assert tuned.accuracy(data) == max(tuned.looks) > 1 / 3
    ranker, table = FeatureRanker(tuned.model, tokenizer, encoder, {"name": "toy"}), tuned.rank_all(data)
    for one, row in zip(found, table):
        np.testing.assert_allclose(ranker.rank(tmp_path / one.image, one.candidates, one.text), row, atol=1e-5)
