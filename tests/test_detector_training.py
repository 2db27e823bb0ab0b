"""Training a detector: false captions, targets, losses, and a training that can be stopped."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from speeds import some
from torchvision.ops import box_iou, generalized_box_iou_loss, sigmoid_focal_loss

from qgcam_lib.finetune.batches import draw_pictures, load_training_set
from qgcam_lib.finetune.detector import (
    DetectorRecipe,
    assign,
    cell_names,
    detector_losses,
    draw_detector_batch,
    draw_detector_captions,
    giou,
    soft_token_loss,
    start_detector,
    word_loss,
)
from qgcam_lib.finetune.loop import train_step
from qgcam_lib.models.dense.network import DenseDetector, Grounded

TINY = tiny.DENSE
SHORT = DetectorRecipe(steps=6, batch=4, warmup=2, log_every=2, images=20, false=0.5)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data():
    return tiny.data()


@pytest.fixture(scope="module")
def tokenizer(data):
    return start_detector(data, SHORT, TINY).model.tokenizer


def slow_assign(boxes, owner, n_phrases, grid, share):
    """Cell by cell, as the definition reads."""
    rows, columns = grid
    found = [[-1] * (rows * columns) for _ in range(n_phrases)]
    for phrase in range(n_phrases):
        for row in range(rows):
            for column in range(columns):
                best = None
                for k, (x0, y0, x1, y1) in enumerate(boxes):
                    if owner[k] != phrase:
                        continue
                    x, y, mx, my = (column + 0.5) / columns, (row + 0.5) / rows, (x0 + x1) / 2, (y0 + y1) / 2
                    middle = abs(x - mx) < share * (x1 - x0) / 2 and abs(y - my) < share * (y1 - y0) / 2
                    holds = min(int(mx * columns), columns - 1) == column and min(int(my * rows), rows - 1) == row
                    area = (x1 - x0) * (y1 - y0)
                    if (middle or holds) and (best is None or area < best[0]):
                        best = (area, k)
                found[phrase][row * columns + column] = best[1] if best else -1
    return found


corner = st.integers(0, 63)
box = st.tuples(corner, corner, st.integers(1, 64), st.integers(1, 64)).map(
    lambda b: [b[0] / 64, b[1] / 64, min(b[0] + b[2], 64) / 64, min(b[1] + b[3], 64) / 64])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(box, st.integers(0, 2)), max_size=6), st.sampled_from([0.3, 0.5, 1.0]),
       st.sampled_from([(4, 4), (3, 5)]))
def test_assignment_equals_the_definition(rows, share, grid):
    boxes = [b for b, _ in rows]
    owner = [q for _, q in rows]
    found = assign(torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4), torch.tensor(owner, dtype=torch.int64), 3,
                   grid, share)
    assert found.tolist() == slow_assign(boxes, owner, 3, grid, share)
    for k, phrase in enumerate(owner):  # none goes without, but for another of its phrase
        others = [b for b, q in rows if q == phrase]
        assert k in found[phrase].tolist() or len(others) > 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(box, box), min_size=1, max_size=5))
def test_giou_equals_torchvision(rows):
    a, b = (torch.tensor([row[i] for row in rows], dtype=torch.float64) * 64 for i in (0, 1))
    overlap, general = giou(a, b)
    torch.testing.assert_close(overlap, box_iou(a, b).diagonal())
    torch.testing.assert_close(1 - general, generalized_box_iou_loss(a, b), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(giou(a, a)[1], torch.ones(len(a), dtype=torch.float64))


def test_a_false_caption_asks_for_no_anywhere(data, tokenizer):
    """Its loss is that of zeros in every cell; it has no boxes and no part in the other losses."""
    batch = draw_detector_batch(data, tokenizer, 40, replace(SHORT, false=1.0, batch=3), 0)
    assert batch.false.all() and len(batch.boxes) == 0 and len(batch.text.tokens) >= 6
    logits = torch.randn(len(batch.text.tokens), 16, generator=torch.Generator().manual_seed(0))
    found = Grounded(logits, torch.rand(len(logits), 16, 4), torch.rand(len(logits), 16))
    losses = detector_losses(found, batch, SHORT, (4, 4))
    wanted = sigmoid_focal_loss(logits, torch.zeros_like(logits), reduction="sum")
    torch.testing.assert_close(losses["focal"], wanted)
    assert all(float(losses[name]) == 0 for name in ("l1", "giou", "quality", "overlap"))


def softmax_batch(data, tokenizer, false=0.4, step=0):
    """A batch, its logits over tokens and "no object" [N, C, T + 1], and the cells of each phrase."""
    batch = draw_detector_batch(data, tokenizer, 40, replace(SHORT, false=false, batch=6), step)
    shape = (*batch.text.ids.shape, 16)
    logits = torch.randn(shape[0], 16, shape[1] + 1, generator=torch.Generator().manual_seed(step)) * 3
    logits[..., :-1] = logits[..., :-1].masked_fill(~batch.text.mask[:, None], -1e4)
    here = assign(batch.boxes, batch.owner, len(batch.text.tokens), (4, 4)) >= 0
    return batch, logits, here


def mdetr_loss_labels(pred_logits, src_idx, tgt_pos, num_boxes, eos_coef):
    """Written after `SetCriterion.loss_labels` of ashkamath/mdetr, line by line; targets come matched here."""
    logits = pred_logits.log_softmax(-1)
    target_sim = torch.zeros_like(logits)
    target_sim[:, :, -1] = 1
    target_sim[src_idx] = tgt_pos
    loss_ce = -(logits * target_sim).sum(-1)
    weight = torch.full(loss_ce.shape, eos_coef)
    weight[src_idx] = 1
    return (loss_ce * weight).sum() / num_boxes


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("no_object", [0.1, 1.0])
def test_soft_token_loss_is_mdetrs(data, tokenizer, step, no_object):
    """Every cell that has to find phrases is a matched query; its positive map has all tokens of its phrases."""
    batch, logits, here = softmax_batch(data, tokenizer, step=step)
    owner, tokens, rows, columns, maps = batch.text.owner, batch.text.tokens, [], [], []
    for n in range(len(logits)):
        for cell in range(16):
            mine = [tokens[q] for q in range(len(here)) if owner[q] == n and here[q, cell]]
            if mine:
                positive_map = torch.zeros(logits.shape[-1])
                positive_map[:-1] = torch.stack(mine).any(0).float()
                rows, columns = [*rows, n], [*columns, cell]
                maps.append(positive_map / (positive_map.sum(-1, keepdim=True) + 1e-6))  # as MDETR normalises
    assert 0 < len(rows) < here.sum() + 1 and batch.false.any() and not batch.false.all()
    src_idx = (torch.tensor(rows), torch.tensor(columns))
    wanted = mdetr_loss_labels(logits, src_idx, torch.stack(maps), len(rows), no_object)
    found = soft_token_loss(logits.log_softmax(-1), here, batch.text, no_object)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_soft_token_loss_is_torchs_cross_entropy_with_soft_targets(data, tokenizer):
    batch, logits, here = softmax_batch(data, tokenizer, step=5)
    said = torch.zeros(logits.shape[0], 16, logits.shape[-1])
    for q, (n, row) in enumerate(zip(batch.text.owner.tolist(), batch.text.tokens)):
        said[n, here[q], :-1] = (said[n, here[q], :-1] + row).clamp(max=1)
    matched = said.any(-1)
    said[..., -1] = (~matched).float()
    target = said / said.sum(-1, keepdim=True)
    each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(0, 1), reduction="none")
    wanted = (each * torch.where(matched.flatten(), 1.0, 0.1)).sum() / matched.sum()
    torch.testing.assert_close(soft_token_loss(logits.log_softmax(-1), here, batch.text), wanted, rtol=1e-5, atol=1e-6)


def test_a_false_caption_asks_for_no_object_everywhere(data, tokenizer):
    batch, logits, here = softmax_batch(data, tokenizer, false=1.0)
    assert batch.false.all() and not here.any()
    wanted = -0.1 * logits.log_softmax(-1)[..., -1].sum()
    torch.testing.assert_close(soft_token_loss(logits.log_softmax(-1), here, batch.text), wanted)
    sure = torch.full_like(logits, -30.0)
    sure[..., -1] = 0
    assert soft_token_loss(sure.log_softmax(-1), here, batch.text) < 1e-6


def test_the_heads_start_alike_and_only_the_loss_of_finding_differs(data, tokenizer):
    one, other = (start_detector(data, replace(SHORT, head=head), TINY) for head in ("sigmoid", "softmax"))
    states = [training.model.state_dict() for training in (one, other)]
    same = states[0].keys() & states[1].keys()
    assert {*states[0]} - same == {"presence.weight", "presence.bias"} and {*states[1]} - same == {
        "nothing.weight", "nothing.bias"}
    assert all(torch.equal(states[0][key], states[1][key]) for key in same)
    assert (one.columns[0], other.columns[0]) == ("focal", "soft_tokens") and one.columns[1:] == other.columns[1:]
    losses = [training.losses(training.draw(0)) for training in (one, other)]
    for name in ("l1", "giou", "quality", "overlap", "words"):
        torch.testing.assert_close(losses[0][name], losses[1][name])
    assert other.config.head == "softmax" and other.config.to_dict()["head"] == "softmax"
    with pytest.raises(ValueError, match="head"):
        start_detector(data, replace(SHORT, head="hinge"), TINY)


def test_losses_of_a_perfect_answer(data, tokenizer):
    batch = draw_detector_batch(data, tokenizer, 40, replace(SHORT, false=0.0), 3)
    target = assign(batch.boxes, batch.owner, len(batch.text.tokens), (4, 4))
    sure = torch.where(target >= 0, 20.0, -20.0)
    found = Grounded(sure, batch.boxes[target.clamp(min=0)], torch.full_like(sure, 20.0))
    losses = detector_losses(found, batch, SHORT, (4, 4))
    assert float(losses["total"]) < 1e-3 and float(losses["overlap"]) > 0.999
    worse = detector_losses(replace(found, logits=-sure), batch, SHORT, (4, 4))
    assert worse["focal"] > 10 * losses["focal"] + 1


def test_batches_have_the_boxes_of_their_phrases(data, tokenizer):
    """Every box of a batch stands in the annotation, mirrored where the picture is; left and right with it."""
    recipe = replace(SHORT, batch=20, false=0.3)
    batch = draw_detector_batch(data, tokenizer, 40, recipe, 1)
    pictures = draw_pictures(data, recipe, 1)
    assert batch.pixels.shape == (20, 3, 32, 32) and len(batch.text.ids) == 40 and 0 < batch.false.sum() < 40
    at = 0
    for number, (row, flip) in enumerate(pictures):
        text = data.maker.texts[row]
        drawn = draw_detector_captions(data, row, recipe, np.random.default_rng([recipe.seed, 1, row]))
        for k, caption in enumerate(drawn):
            ids = tokenizer((caption.mirrored() if flip else caption).text)["input_ids"]
            assert batch.text.ids[2 * number + k][: len(ids)].tolist() == ids
            for *_, entity in caption.phrases:
                own = data.boxes.read(text.id).get(entity, np.empty((0, 4))) / 32
                own = np.stack([1 - own[:, 2], own[:, 1], 1 - own[:, 0], own[:, 3]], 1) if flip else own
                np.testing.assert_allclose(batch.boxes[batch.owner == at], own, atol=1e-6)
                assert (len(own) == 0) == bool(batch.false[2 * number + k])
                at += 1
    assert at == len(batch.text.tokens)


def test_names_of_cells(data):
    text = data.maker.texts[0]
    known = data.boxes.read(text.id)
    names = cell_names(data, text, known, 32)
    assert names.shape == (16, len(data.words))
    said = {word for words in text.entities.values() for part in words for word in part}
    assert {data.words[k] for k in np.nonzero(names.any(0))[0]} <= said and names.any()
    logits = torch.randn(1, 16, len(data.words))
    plain = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(names)[None].float())
    found = word_loss(logits, torch.from_numpy(names)[None])
    torch.testing.assert_close(found, plain * names.size / names.any(1).sum())


def test_negatives_change_captions_only(data, tokenizer):
    """The same pictures, in the same mirror, with and without negatives."""
    one, other = (draw_detector_batch(data, tokenizer, 40, replace(SHORT, false=f), 4) for f in (0.0, 0.5))
    assert torch.equal(one.pixels, other.pixels) and not one.false.any() and other.false.any()


@pytest.mark.parametrize("head", some(["sigmoid", "softmax"], "sigmoid"))
def test_it_learns_four_pictures_by_heart(head):
    """One caption each: after a short training the best box of every phrase is right."""
    data = load_training_set(tiny.world(), 32, limit=4)
    config = replace(TINY, width=32)
    recipe = DetectorRecipe(steps=220, batch=4, warmup=10, learning_rate=4e-3, images=4, short=0.0, head=head)
    training = start_detector(data, recipe, config)
    first = training.draw(0)
    losses = [train_step(training, first) for _ in range(recipe.steps) if setattr(training, "step", 0) is None]
    assert losses[-1]["total"] < 0.25 * losses[0]["total"] and losses[-1]["overlap"] > 0.8
    training.model.eval()
    with torch.no_grad():
        text = first.text
        found = training.model(first.pixels, text.ids, text.mask, text.tokens, text.owner)
    best = found.logits.argmax(1)
    for phrase, cell in enumerate(best.tolist()):
        truth = first.boxes[first.owner == phrase]
        assert box_iou(found.boxes[phrase, cell][None], truth).max() > 0.5
    assert len(DenseDetector(training.model).detect_batch([], [], [])) == 0
