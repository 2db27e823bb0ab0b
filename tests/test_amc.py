"""Attention mask consistency: the losses, maps with a gradient, masks of phrases, and the fine-tuning."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qgcam_lib.explain.gradcam import Tokens, gradcam, image_keys_values, token_weights
from qgcam_lib.finetune.albef import draw_batch, mini_albef
from qgcam_lib.finetune.amc import amc_losses, box_mask, matched_maps, phrase_masks, scaled_maps
from qgcam_lib.finetune.batches import CaptionRecipe, TokenTable
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer

pairs = st.tuples(arrays(np.float64, (2, 4, 5), elements=st.floats(0, 1)),
                  arrays(bool, (2, 4, 5)).filter(lambda m: m.any((1, 2)).all() and not m.all((1, 2)).any()))


pytestmark = pytest.mark.usefixtures("one_thread")


def literal(map_, mask, mean_margin=0.1, max_margin=0.5):
    """Pixel by pixel, as the formulas read."""
    inside, outside = [], []
    for row, marks in zip(map_.tolist(), mask.tolist()):
        for value, mark in zip(row, marks):
            (inside if mark else outside).append(value)
    mean = sum(outside) / len(outside) - sum(inside) / len(inside) + mean_margin
    return max(0.0, mean), max(0.0, max(outside) - max(inside) + max_margin)


def both(maps, masks, **margins):
    return [loss.tolist() for loss in amc_losses(torch.as_tensor(maps), torch.as_tensor(masks), **margins)]


@settings(max_examples=40, deadline=None)
@given(pairs, st.floats(0, 1), st.floats(0, 1))
def test_losses_equal_the_formulas(pair, mean_margin, max_margin):
    found = both(*pair, mean_margin=mean_margin, max_margin=max_margin)
    wanted = [literal(m, k, mean_margin, max_margin) for m, k in zip(*pair)]
    np.testing.assert_allclose(np.array(found).T, wanted, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(pairs, st.floats(0, 1), st.randoms(use_true_random=False))
def test_losses_keep_their_bounds_and_symmetries(pair, lift, random):
    maps, masks = pair
    mean, peak = np.array(both(maps, masks))
    assert (0 <= mean).all() and (mean <= 1.1 + 1e-9).all() and (0 <= peak).all() and (peak <= 1.5 + 1e-9).all()
    shuffle = random.sample(range(20), 20)
    moved = [x.reshape(2, 20)[:, shuffle].reshape(2, 4, 5) for x in (maps, masks)]
    np.testing.assert_allclose(both(*moved), [mean, peak], atol=1e-9)
    np.testing.assert_allclose(both(maps + 3, masks), [mean, peak], atol=1e-9)
    better = np.array(both(np.where(masks, maps + lift, maps), masks))
    assert (better <= np.array([mean, peak]) + 1e-9).all()
    swapped = np.array(both(maps, ~masks))
    assert (swapped[0] + mean >= 0.2 - 1e-9).all() and (swapped[1] + peak >= 1 - 1e-9).all()


@pytest.mark.parametrize("mask", [np.zeros((1, 3, 3), bool), np.ones((1, 3, 3), bool)], ids=["empty", "full"])
def test_a_mask_without_inside_or_outside_is_undefined_and_teaches_nothing(mask):
    maps = torch.rand(1, 3, 3, requires_grad=True)
    losses = amc_losses(maps, torch.from_numpy(mask))
    assert all(loss.isnan().all() for loss in losses)
    sum(torch.nansum(loss) for loss in losses).backward()
    assert torch.equal(maps.grad, torch.zeros(1, 3, 3))


def test_constant_tied_and_negative_maps():
    mask = np.zeros((1, 3, 3), bool)
    mask[0, 0] = True
    for value in (0.0, 0.4):
        np.testing.assert_allclose(both(np.full((1, 3, 3), value), mask), [[0.1], [0.5]])
    tie = np.zeros((1, 3, 3))
    tie[0, 0, 0] = tie[0, 2, 2] = 1
    np.testing.assert_allclose(both(tie, mask)[1], [0.5])
    # a maximum is of the pixels that are there: zeros of the other part do not count
    np.testing.assert_allclose(both(np.where(mask, -1.0, -3.0), mask), [[0.0], [0.0]])


def test_bad_maps_are_refused():
    mask = torch.ones(1, 3, 3, dtype=torch.bool)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="maps"):
            amc_losses(torch.full((1, 3, 3), bad), mask)
    for shape in ((1, 3, 4), (3, 3)):
        with pytest.raises(ValueError, match="masks"):
            amc_losses(torch.zeros(shape), mask)


def test_scaled_maps_span_zero_to_one_and_pass_gradients():
    generator = torch.Generator().manual_seed(3)
    raw = torch.rand(3, 4, 4, generator=generator, dtype=torch.float64) * 1e-9
    raw[2] = 0.5
    found = scaled_maps(raw, 32)
    unit = (raw[:2] - raw[:2].amin((1, 2), keepdim=True)) / (
        raw[:2].amax((1, 2), keepdim=True) - raw[:2].amin((1, 2), keepdim=True)
    )
    wanted = torch.nn.functional.interpolate(unit[None], (32, 32), mode="bilinear")[0]
    torch.testing.assert_close(found[:2], wanted)
    assert not found[2].any()
    masks = torch.zeros(2, 8, 8, dtype=torch.bool)
    masks[:, 1:5, 2:6] = True

    def cost(maps):
        return torch.stack(amc_losses(scaled_maps(maps, 8), masks))

    maps = torch.rand(2, 4, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(cost, maps)


@pytest.fixture(scope="module")
def model():
    return mini_albef(replace(tiny.ALBEF, vocab_size=700), make_tokenizer(build_vocabulary(), lavis_tokens=False))


@pytest.fixture(scope="module")
def asked(model):
    found = model.tokenizer(["a red ball", "a dog", "a man on a horse", "grass"], padding=True, return_tensors="pt")
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return found.input_ids, found.attention_mask.bool(), model.visual_encoder.forward_features(pixels)


@pytest.mark.parametrize("block", [2, 3])
def test_maps_with_a_gradient_are_the_maps_one_looks_at(model, asked, block):
    ids, mask, image = asked
    maps, logits = matched_maps(model, ids, mask, image, block)
    bert = model.text_encoder.bert
    for i, states in enumerate(image):
        two = slice(2 * i, 2 * i + 2)
        tokens = Tokens(ids[two], mask[two])
        wanted, scores = gradcam(bert, model.itm_head, tokens, image_keys_values(bert, states), block=block,
                                 grid=(4, 4), weights=token_weights(tokens.mask, "amc"))
        torch.testing.assert_close(maps[two].detach(), wanted, rtol=1e-4, atol=1e-9)
        torch.testing.assert_close(logits[two].detach(), scores, rtol=1e-4, atol=1e-5)
    assert maps.max() > 0


def test_the_second_derivative_is_right(model, asked):
    ids, mask, image = asked
    masks = torch.zeros(4, 32, 32, dtype=torch.bool)
    masks[:, 4:20, 8:24] = True

    def cost():
        maps, _ = matched_maps(double, ids, mask, image.double(), 2)
        mean, peak = amc_losses(scaled_maps(maps, 32), masks)
        return (0.2 * mean + 0.8 * peak).sum()

    double = mini_albef(replace(tiny.ALBEF, vocab_size=700), model.tokenizer).double()
    for weight in (double.text_encoder.bert.encoder.layer[0].output.dense.weight, double.itm_head.weight):
        (slope,) = torch.autograd.grad(cost(), weight)
        at = divmod(slope.abs().argmax().item(), slope.shape[1])
        ends = []
        for move in (1e-5, -2e-5):
            weight.data[at] += move
            ends.append(cost().item())
        weight.data[at] += 1e-5
        assert abs((ends[0] - ends[1]) / 2e-5 - slope[at].item()) <= 1e-3 * abs(slope[at].item())
        assert slope[at] != 0


@settings(max_examples=30, deadline=None)
@given(arrays(np.float64, (2, 4), elements=st.floats(-2, 10)))
def test_masks_are_pixel_centres_in_half_open_boxes(corners):
    boxes = np.concatenate([np.sort(corners[:, ::2]), np.sort(corners[:, 1::2])], 1)[:, [0, 2, 1, 3]]
    found = box_mask(boxes, 8)
    for y in range(8):
        for x in range(8):
            inside = any(x0 <= x + 0.5 < x1 and y0 <= y + 0.5 < y1 for x0, y0, x1, y1 in boxes)
            assert bool(found[y, x]) == inside
    assert not box_mask(np.empty((0, 4)), 8).any()


def test_masks_belong_to_the_true_phrases_also_in_the_mirror(model):
    data, table, mirrors = tiny.data(), TokenTable(model.tokenizer, 48), set()
    for step in range(3):
        batch = draw_batch(data, table, CaptionRecipe(batch=4, texts=4), step)
        masks = phrase_masks(data, batch)
        assert masks.shape == (8, 32, 32) and batch.labels.sum() == 8
        true = iter(masks)
        for (row, flipped), captions in zip(batch.pictures, batch.captions):
            mirrors.add(bool(flipped))
            boxes = data.boxes.read(data.maker.texts[row].id)
            for caption in captions[:2]:
                mask = next(true).flip(1) if flipped else next(true)
                words = caption.mirrored().words if flipped else caption.words
                can = [m for m in data.maker.texts[row].mentions if m.words == words]
                assert can and any(torch.equal(mask, box_mask(boxes.get(m.entity, np.empty((0, 4))), 32)) for m in can)
    assert mirrors == {False, True}


def test_the_loss_alone_moves_maps_into_their_masks(model, asked):
    """Gradient descent on the loss of four phrases: both parts fall, and the peaks move inside."""
    ids, mask, image = asked
    masks = torch.zeros(4, 32, 32, dtype=torch.bool)
    masks[:, 8:24, 8:24] = True
    copy = mini_albef(replace(tiny.ALBEF, vocab_size=700), model.tokenizer)
    optimizer = torch.optim.Adam(copy.parameters(), 3e-3)
    history = []
    for _ in range(40):
        maps, _ = matched_maps(copy, ids, mask, image, 2)
        mean, peak = amc_losses(scaled_maps(maps, 32), masks)
        optimizer.zero_grad()
        (0.2 * mean + 0.8 * peak).mean().backward()
        optimizer.step()
        history.append([mean.mean().item(), peak.mean().item()])
    assert history[-1][0] < history[0][0] and history[-1][1] < history[0][1] - 0.2
