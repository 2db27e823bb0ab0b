"""The training of the mini OWL-ViT: what is true where, which patch answers, losses, the start, and repeatability."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torchvision.ops import box_iou, generalized_box_iou

from qgcam_lib.finetune import minis
from qgcam_lib.finetune.batches import draw_pictures, load_training_set
from qgcam_lib.finetune.captions import ImageCaption
from qgcam_lib.finetune.clip import token_ids
from qgcam_lib.finetune.loop import train_step
from qgcam_lib.finetune.owl import (
    MINI_OWL,
    OwlRecipe,
    assign,
    draw_owl_batch,
    owl_losses,
    owl_outputs,
    start_owl,
    take_tower,
)
from qgcam_lib.finetune.texts import mirrored
from qgcam_lib.miniworld import ensure
from qgcam_lib.models.common.zoo import load_zoo
from qgcam_lib.models.owl import OwlDetector, OwlModel
from qgcam_lib.models.registry import zoo_folder

SMALL = OwlRecipe(batch=6, texts=6, steps=6, warmup=1, log_every=2, images=40)
START = zoo_folder() / "blip-mini"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("owl")
    root = ensure(folder / "world", "train", n_train=40, progress=False)
    return root, load_training_set(root, 96, cache=folder / "cache")


@pytest.fixture(scope="module")
def batch(world):
    _, data = world
    return draw_owl_batch(data, SMALL, step=3)


@pytest.fixture(scope="module")
def training(world):
    _, data = world
    return start_owl(data, SMALL, MINI_OWL, folder=START)


def test_labels_say_what_the_annotations_say(world, batch):
    _, data = world
    drawn, boxes = draw_pictures(data, SMALL, 3), data.boxes
    assert drawn.flipped.any() and not drawn.flipped.all()
    for number, (row, flip) in enumerate(drawn):
        text, things, labels = data.maker.texts[row], batch.boxes[number].numpy() * 96, batch.labels[number]
        assert ((things[:, :2] < things[:, 2:]).all() and things.min() >= 0 and things.max() <= 96)
        known = boxes.read(text.id)
        drawn = [[96 - b[2], b[1], 96 - b[0], b[3]] if flip else b.tolist() for e in text.entities
                 for b in known.get(e, ())]  # fmt: skip
        assert {tuple(np.round(b, 3)) for b in drawn} == {tuple(np.round(b, 3)) for b in things.tolist()}
        said = [(mirrored(m.words) if flip else m.words, m.entity) for m in text.mentions]
        for column, words in enumerate(batch.texts):
            true = labels[:, column] == 1
            for thing in things[true.numpy()]:  # some mention of these words has this box
                thing = [96 - thing[2], thing[1], 96 - thing[0], thing[3]] if flip else thing
                assert any(own == words and np.abs(known[entity] - thing).max(1).min() < 1e-3
                           for own, entity in said if entity in known)  # fmt: skip
            plain = mirrored(words) if flip else words
            asked = ImageCaption(plain, ((0, len(plain), ""),))
            if not data.maker.possible([row], [asked])[0, 0] and not true.any():
                assert batch.known[number, column] and (labels[:, column] == 0).all()
    assert all((labels == 1).any() for labels in batch.labels)


def test_the_assignment_is_the_cheapest():
    make = torch.Generator().manual_seed(0)
    for n in (1, 2, 3):
        low = torch.rand(5 + n, 2, generator=make) / 2
        boxes = torch.cat([low, low + 0.3], 1)
        things, boxes = boxes[5:], boxes[:5]
        logits, labels = torch.randn(5, 4, generator=make), (torch.rand(n, 4, generator=make) > 0.5).to(torch.int8)
        labels[:, 0] = 1
        patches, which = assign(logits, boxes, things, labels, SMALL, 1)

        def cost(patch, thing, logits=logits, boxes=boxes, things=things, labels=labels):
            true = labels[thing] == 1
            sides = (boxes[patch] - things[thing]).abs().sum()
            overlap = generalized_box_iou(boxes[patch][None], things[thing][None])[0, 0]
            chance = torch.sigmoid(logits[patch])[true].mean()
            return float(2 * (1 - chance) + SMALL.box_weight * sides - SMALL.overlap_weight * overlap)

        best = min(sum(cost(p, t) for t, p in enumerate(order)) for order in permutations(range(5), n))
        assert sum(cost(int(p), int(t)) for p, t in zip(patches, which)) == pytest.approx(best, abs=1e-5)
    patches, which = assign(logits, boxes, things[:0], labels[:0], SMALL, 4)
    assert len(patches) == len(which) == 0
    assert (SMALL.taken(0), SMALL.taken(SMALL.steps - 1)) == (4, 1)


def test_losses_are_those_of_a_loop(training, batch):
    ids = token_ids(training.model.tokenizer, batch.texts)
    training.model.eval()
    with torch.no_grad():
        found = owl_losses(training.model, batch, ids, SMALL, taken=2)
        logits, boxes = owl_outputs(training.model, batch.pixels, ids)
    phrases = sides = overlap = 0.0
    positives, chosen, hits = 0, 0, []
    for k, (things, labels) in enumerate(zip(batch.boxes, batch.labels)):
        patches, which = (each.tolist() for each in assign(logits[k], boxes[k], things, labels, SMALL, 2))
        pairs = dict(zip(patches, which))
        chosen += len(pairs)
        for patch in range(64):
            for phrase in range(len(batch.texts)):
                truth = int(labels[pairs[patch], phrase]) if patch in pairs else 0
                if truth < 0 or (patch not in pairs and not batch.known[k, phrase]):
                    continue
                chance = torch.sigmoid(logits[k, patch, phrase]).item()
                right, weight = (chance, 0.25) if truth else (1 - chance, 0.75)
                phrases -= weight * (1 - right) ** 2 * np.log(max(right, 1e-12))
                positives += truth
        for patch, thing in pairs.items():
            sides += (boxes[k, patch] - things[thing]).abs().sum().item()
            overlap += 1 - generalized_box_iou(boxes[k, patch][None], things[thing][None]).item()
        for phrase in (labels == 1).any(0).nonzero()[:, 0].tolist():
            best = boxes[k, logits[k, :, phrase].argmax()][None]
            hits.append(bool((box_iou(best, things[labels[:, phrase] == 1]) >= 0.5).any()))
    assert found["phrases"].item() == pytest.approx(phrases / positives, rel=1e-3)
    assert found["sides"].item() == pytest.approx(sides / chosen, rel=1e-4)
    assert found["overlap"].item() == pytest.approx(overlap / chosen, rel=1e-4)
    assert found["found"].item() == pytest.approx(np.mean(hits))


def test_the_training_sees_what_the_detector_sees(training, batch):
    owl = OwlModel(training.model, training.model.tokenizer, MINI_OWL.model)
    tokenize = training.model.tokenizer
    with torch.no_grad():
        logits, boxes = owl_outputs(training.model.eval(), batch.pixels, token_ids(tokenize, batch.texts))
        ids = tokenize([" ".join(words) for words in batch.texts])
        again = training.model(input_ids=ids, pixel_values=batch.pixels[:1])
    torch.testing.assert_close(logits[:1], again.logits, atol=1e-4, rtol=1e-4)
    centre, size = again.pred_boxes[0].split(2, -1)
    torch.testing.assert_close(boxes[0], torch.cat([centre - size / 2, centre + size / 2], -1), atol=1e-5, rtol=1e-5)
    assert OwlDetector(owl).card["boxes"] == 64
    training.model.requires_grad_(True)


def test_the_tower_of_the_mini_blip_is_taken_over(training, batch):
    stored = load_zoo("blip-mini").state()
    state = {name.removeprefix("visual_encoder."): value.float() for name, value in stored.items()}
    kept = take_tower(training.model, stored, batch.pixels)
    assert 0.8 < kept <= 1
    tower, sizes = training.model.owlvit.vision_model, MINI_OWL.model["vision_config"]
    heads, normalise = sizes["num_attention_heads"], tower.pre_layernorm
    tower.pre_layernorm = torch.nn.Identity()  # all that the two towers do not share
    # A vision transformer, literally, from the stored tensors.
    x = F.conv2d(batch.pixels, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=12)
    x = torch.cat([state["cls_token"].expand(len(x), -1, -1), x.flatten(2).mT], 1) + state["pos_embed"]

    def norm(values, name):
        return F.layer_norm(values, values.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)

    def linear(values, name):
        return F.linear(values, state[f"{name}.weight"], state[f"{name}.bias"])

    for i in range(sizes["num_hidden_layers"]):
        parts = linear(norm(x, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv").unflatten(-1, (3, heads, -1))
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        seen = ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + linear(seen, f"blocks.{i}.attn.proj")
        x = x + linear(F.gelu(linear(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1")), f"blocks.{i}.mlp.fc2")
    with torch.no_grad():
        found = tower(batch.pixels).last_hidden_state
    tower.pre_layernorm = normalise
    torch.testing.assert_close(found, x, atol=1e-3, rtol=1e-3)


def test_one_batch_can_be_learned(training, batch):
    ids, losses = token_ids(training.model.tokenizer, batch.texts), []
    training.model.requires_grad_(True)
    training.step = 0
    training.recipe = OwlRecipe(**{**vars(SMALL), "steps": 100})
    for _ in range(12):
        losses.append(train_step(training, (batch, ids)))
    assert losses[-1]["total"] < 0.8 * losses[0]["total"]


def test_the_one_call_makes_the_pairs_beside_the_world(world, tmp_path, monkeypatch):
    root, _ = world
    asked, row = [], {"model": "trained", "subset": "all", "metric": "AP", "value": 0.5, "n": 4, "n_groups": 1}
    row |= {"ci_low": None, "ci_high": None}
    monkeypatch.setattr(minis, "ensure_tricd", lambda folder, **_: asked.append(folder) or folder)
    monkeypatch.setattr(minis, "score_detectors", lambda models, pairs, **_: pd.DataFrame([row] * len(models)))
    folder = minis.make_mini("owl-vit-mini", root, None, tmp_path, SMALL, progress=False)
    card = load_zoo("owl-vit-mini", tmp_path).card
    assert asked == [root.with_name("world_tricd")] and card["starts_from"]["name"] == "blip-mini"
    assert SMALL.differs(card["recipe"]) == [] and len(pd.read_csv(folder / "log.csv")) == 3
