"""The effect of word order: a bag is blind to order, shuffled reading keeps words and target, the effect is literal."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from test_referring_training import SHORT, SMALL, toys

from qgcam_lib.finetune.referring.training import start_ranker
from qgcam_lib.models.regions.vilbert import build_vilbert
from qgcam_lib.papers.ref_adv.listeners import OrderStudy, order_effects, read_order_study, study_costs


def reordered(batch, seed):
    """The batch with the words between [CLS] and [SEP] in another order."""
    ids, rng = batch.ids.clone(), np.random.default_rng(seed)
    for row, length in zip(ids, batch.mask.sum(1).tolist()):
        row[1:length - 1] = row[1:length - 1][torch.from_numpy(rng.permutation(length - 2))]
    return dataclasses.replace(batch, ids=ids)


def test_only_a_ranker_with_positions_hears_the_order():
    data = toys()
    batch = data.batch(np.arange(len(data)))
    for ordered in (True, False):
        network = build_vilbert(dataclasses.replace(SMALL, ordered=ordered), 50, data.regions.features.shape[1]).eval()
        with torch.inference_mode():
            one, other = (network(*each.inputs("cpu")) for each in (batch, reordered(batch, 1)))
        same = torch.allclose(one, other, atol=1e-5)
        assert same is not ordered


def test_shuffled_reading_keeps_words_ends_and_target():
    data = toys(seed=3)
    recipe = dataclasses.replace(SHORT, shuffled=1.0)
    network = build_vilbert(SMALL, 50, data.regions.features.shape[1])
    plain, mixed = (start_ranker(network, data, each).draw(0) for each in (SHORT, recipe))
    assert torch.equal(plain.targets, mixed.targets) and not torch.equal(plain.ids, mixed.ids)
    for a, b, length in zip(plain.ids, mixed.ids, plain.mask.sum(1).tolist()):
        assert sorted(a.tolist()) == sorted(b.tolist()) and a[0] == b[0] and a[length - 1:].equal(b[length - 1:])
    assert torch.equal(mixed.ids, start_ranker(network, data, recipe).draw(0).ids)


@pytest.fixture(scope="module")
def study():
    return read_order_study()


def test_the_effect_is_a_difference_of_means_with_the_sandwich_clustered_by_picture(study):
    """Among expressions with five candidates, where all weights are one."""
    frame = study_costs(study)["shuffled"]
    frame = frame[frame["n_candidates"] == 5]
    found = order_effects({"shuffled": frame}, n_bootstrap=400).set_index("split").loc["adv"]
    means, moved = {}, {}
    for split, sign in (("adv", 1), ("easy", -1)):
        rows = frame[frame["split"] == split]
        means[split] = sum(rows["correct"]) / len(rows)
        for group, value in zip(rows["group"], rows["correct"]):
            moved[group] = moved.get(group, 0) + sign * (value - means[split]) / len(rows)
    error = sum(piece**2 for piece in moved.values()) ** 0.5
    assert found["difference"] == pytest.approx(means["adv"] - means["easy"], abs=1e-12)
    assert (found["ci_high"] - found["ci_low"]) / 2 == pytest.approx(1.96 * error, rel=0.12)


def test_the_stored_study_says_what_its_page_says(study):
    pairs = study.expressions[study.expressions["pair"] != ""]
    assert set(pairs.groupby("pair")["split"].agg(" ".join)) == {"hard adv"} and (pairs["bag"] <= 0.5).all()
    assert pairs["same_type"].mean() > 0.25 and sorted(study.choices["seed"].unique()) == [0, 1, 2]
    effects = order_effects(study_costs(study), n_bootstrap=100)
    assert (effects.loc[effects["model"] == "bag", "difference"] == 0).all()
    assert set(effects.loc[effects["model"] == "shuffled", "hypothesis"]) == {"supported"}


@pytest.mark.parametrize("easy, adv, says", [(0, 1, "supported"), (1, 0, "against"), (1, 1, "open")])
def test_the_hypothesis_is_judged_by_the_interval(easy, adv, says):
    n = 60
    rows = pd.DataFrame({"id": [str(k) for k in range(3 * n)], "group": np.arange(3 * n) // 3, "random": 0.2,
                         "split": ["easy", "hard", "adv"] * n, "n_candidates": 5, "pair": "", "same_type": False})
    lost = rows["split"].map({"easy": easy, "hard": adv, "adv": adv})
    told = {"arm": "shuffled", "seed": 0, "id": rows["id"]}
    choices = pd.concat([pd.DataFrame({**told, "words": words, "correct": right})
                         for words, right in (("original", True), ("shuffled", lost == 0))])
    found = order_effects(study_costs(OrderStudy(rows, choices, {})), n_bootstrap=50)
    assert set(found["hypothesis"]) == {says}
