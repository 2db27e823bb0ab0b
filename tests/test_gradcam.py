"""Split GradCAM against LAVIS's own, at full size and small, and the properties that make it usable."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from qgcam_lib.explain.gradcam import (
    Tokens,
    attention_gradients,
    gradcam,
    image_keys_values,
    match_logits,
    token_maps,
    token_weights,
)
from qgcam_lib.models.blip.explainer import BlipExplainer
from qgcam_lib.models.blip.network import CONFIGS, BlipConfig, build_blip_itm
from qgcam_lib.models.common.images import prepare_image
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer

PHRASES = ["a young boy in a red shirt", "the dog", "two women", "a blue and white striped umbrella"]


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(build_vocabulary())


def picture(seed: int = 0, size=(90, 120)) -> Image.Image:
    noise = torch.rand(3, 9, 12, generator=torch.Generator().manual_seed(seed))
    smooth = torch.nn.functional.interpolate(noise[None], size=size, mode="bilinear")[0]
    return Image.fromarray((smooth * 255).byte().permute(1, 2, 0).numpy())


def small(tokenizer, seed: int = 0, **changes) -> tuple:
    """A model of odd sizes whose weights are large enough for maps to differ, and its config."""
    sizes = {"image_size": 60, "patch_size": 12, "vision_width": 40, "vision_depth": 2, "vision_heads": 5,
             "text_width": 36, "text_depth": 3, "text_heads": 3, "text_mlp_width": 50, "embed_dim": 8}
    config = BlipConfig(**sizes | {"vocab_size": len(tokenizer)} | changes)
    torch.manual_seed(seed)
    model = build_blip_itm(config, tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model, config


def tokens_of(model, phrases) -> Tokens:
    found = model.tokenizer(phrases, padding="longest", return_tensors="pt")
    ids = found.input_ids.clone()
    ids[:, 0] = model.tokenizer.enc_token_id
    return Tokens(ids, found.attention_mask)


def literal(model, pixels, phrases, block):
    """Attention and gradient [heads, T, 1 + patches] and logits of the whole model, a phrase at a time, by autograd."""
    inner = model.text_encoder.encoder.layer[block].crossattention.self
    inner.save_attention = True
    model.requires_grad_(True)
    rows = []
    for phrase in phrases:
        logits = model({"image": pixels[None], "text_input": [phrase]}, match_head="itm")
        model.zero_grad(set_to_none=True)
        logits[0, 1].backward()
        rows.append((inner.get_attention_map()[0].detach(), inner.get_attn_gradients()[0].detach(), logits[0].detach()))
    model.zero_grad(set_to_none=True)
    inner.save_attention = False
    return rows


def literal_map(attention, gradient, grid, chosen):
    """The formula in loops over heads and the chosen tokens."""
    total = torch.zeros(grid[0] * grid[1])
    for head, token in itertools.product(range(len(attention)), chosen):
        for patch in range(len(total)):
            total[patch] += attention[head, token, 1 + patch] * max(0.0, float(gradient[head, token, 1 + patch]))
    return (total / (len(attention) * len(chosen))).reshape(grid)


# ---------------------------------------------------------------------------------------------------- LAVIS, full size


@pytest.fixture(scope="module")
def full(tokenizer):
    """BLIP-base at its published size, untrained. About 0.9 GB, so it is built once."""
    torch.manual_seed(0)
    return build_blip_itm(CONFIGS["blip-base"], tokenizer)


@pytest.mark.nightly
def test_equal_to_lavis_at_full_size(full, tokenizer):
    """The published function, whose 12 heads and 24 x 24 grid are fixed, on three blocks; scores equal its forward."""
    from lavis.models.blip_models.blip_image_text_matching import compute_gradcam

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        phrases = PHRASES[:2]
        pixels = prepare_image(picture(), 384)
        ours = BlipExplainer(full, CONFIGS["blip-base"])
        state = ours.encode(picture())
        tokenized = tokenizer(phrases, padding="longest", return_tensors="pt")
        for block in (6, 7, 8):
            full.requires_grad_(True)
            full.visual_encoder.requires_grad_(block == 7)  # once wholly as published; the maps do not depend on it
            theirs, logits = compute_gradcam(full, pixels.expand(2, -1, -1, -1), phrases, tokenized, block_num=block)
            full.text_encoder.encoder.layer[block].crossattention.self.save_attention = False
            full.zero_grad(set_to_none=True)
            full.requires_grad_(False)
            explainer = BlipExplainer(full, CONFIGS["blip-base"], block=block)
            maps, chances = explainer.explain(state, phrases)
            expected = torch.stack([one[1] for one in theirs])
            assert expected.amax() > 0
            assert (maps - expected).abs().amax() <= 1e-5 * expected.amax(), block
            torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-6 * float(expected.amax()))
            torch.testing.assert_close(chances, logits.detach().softmax(1)[:, 1], rtol=1e-5, atol=0)
            for phrase, one in zip(phrases, theirs):
                names, each = explainer.token_maps(state, phrase)
                listed = torch.cat([one[:1], one[2:]])[:len(names)]  # [ENC], then the tokens after it
                assert (each - listed).abs().amax() <= 1e-5 * listed.amax()
        torch.testing.assert_close(ours.score([state], phrases)[0], chances, rtol=1e-5, atol=0)
    finally:
        torch.set_num_threads(threads)


# ------------------------------------------------------------------------------------------- any size, against autograd


@pytest.mark.parametrize("block", [0, 1, 2])
@pytest.mark.parametrize("sizes", [{}, {"image_size": 56, "patch_size": 8, "text_heads": 1, "text_depth": 4}],
                         ids=["5x5, 3 heads", "7x7, 1 head"])
def test_equal_to_literal_autograd(tokenizer, sizes, block):
    model, config = small(tokenizer, **sizes)
    pixels = prepare_image(picture(), config.image_size)
    rows = literal(model, pixels, PHRASES, block)
    explainers = {mode: BlipExplainer(model, config, block=block, tokens=mode) for mode in ("lavis", "amc", 0, 2, -1)}
    for mode, explainer in explainers.items():
        maps, chances = explainer.explain(picture(), PHRASES)
        for phrase, (attention, gradient, logits), found, chance in zip(PHRASES, rows, maps, chances):
            length = attention.shape[1]
            assert length == len(tokenizer(phrase).input_ids)
            chosen = {"lavis": range(1, length - 1), "amc": range(length)}.get(mode)
            chosen = [mode % length] if chosen is None else list(chosen)
            expected = literal_map(attention, gradient, config.grid, chosen)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.max()) + 1e-12)
            torch.testing.assert_close(chance, logits.softmax(0)[1], rtol=1e-5, atol=1e-6)


def test_amc_is_its_padded_mean_up_to_scale(tokenizer):
    """AMC divides by the padded length: our map times real over padded tokens."""
    model, config = small(tokenizer)
    model.requires_grad_(False)
    tokens = tokens_of(model, PHRASES)
    states = model.visual_encoder.forward_features(prepare_image(picture(), config.image_size)[None])[0]
    seen = image_keys_values(model.text_encoder, states)
    weights = token_weights(tokens.mask, "amc")
    maps, _ = gradcam(model.text_encoder, model.itm_head, tokens, seen, block=1, grid=config.grid, weights=weights)
    each = token_maps(*attention_gradients(model.text_encoder, model.itm_head, tokens, seen, 1)[:2], config.grid)
    padded = tokens.pad(each).mean(1)
    scale = tokens.mask.float().mean(1)[:, None, None]
    torch.testing.assert_close(padded, maps * scale, rtol=1e-5, atol=1e-12)


@given(order=st.permutations(range(4)), keep=st.integers(1, 4))
@settings(max_examples=12, deadline=None)
def test_other_phrases_change_nothing(shared, order, keep):
    explainer, state, maps = shared
    chosen = order[:keep]
    found = explainer.maps(state, [PHRASES[i] for i in chosen])
    torch.testing.assert_close(found, maps[list(chosen)], rtol=1e-4, atol=1e-6 * float(maps.max()))


@pytest.fixture(scope="module")
def shared(tokenizer):
    explainer = BlipExplainer(*small(tokenizer), block=1)
    state = explainer.encode(picture())
    return explainer, state, explainer.maps(state, PHRASES)


def test_deterministic_and_in_parts(shared):
    explainer, state, maps = shared
    assert torch.equal(explainer.maps(state, PHRASES), maps)
    explainer.batch_phrases = 3
    try:
        torch.testing.assert_close(explainer.maps(picture(), PHRASES), maps, rtol=1e-4, atol=1e-6 * float(maps.max()))
    finally:
        explainer.batch_phrases = 64
    assert bool((maps >= 0).all()) and bool((maps.amax((1, 2)) > 0).all()) and maps.dtype == torch.float32


def test_batch_of_images_equals_one_by_one(shared):
    explainer, state, maps = shared
    images, phrases = [picture(0), picture(1), state], [PHRASES, [], PHRASES[:1]]
    found = explainer.maps_batch(images, phrases)
    assert [len(one) for one in found] == [4, 0, 1] and found[1].shape == (0, 5, 5)
    torch.testing.assert_close(found[0], maps, rtol=1e-4, atol=1e-6 * float(maps.max()))
    torch.testing.assert_close(found[2], maps[:1], rtol=1e-4, atol=1e-6 * float(maps.max()))


def test_gradient_is_of_the_whole_remaining_network(shared):
    """Double precision: nudge the attention of the explained layer inside LAVIS's own forward pass."""
    explainer, _, _ = shared
    model = explainer.model.double()
    try:
        pixels = prepare_image(picture(), 60).double()
        tokens = tokens_of(model, PHRASES[:1])
        seen = image_keys_values(model.text_encoder, model.visual_encoder.forward_features(pixels[None])[0])
        attention, gradient, logits = attention_gradients(model.text_encoder, model.itm_head, tokens, seen, 1)
        softmax = torch.nn.Softmax.forward
        calls, step = itertools.count(), 1e-6

        def nudged(self, scores):
            """Softmax of LAVIS's attention; the text layers call it for self- and cross-attention in turn."""
            found = softmax(self, scores)
            if found.shape[-1] == attention.shape[-1] and next(calls) == 1:
                found = found.clone()
                found[0, 2, 3, 4] += step
            return found

        torch.nn.Softmax.forward = nudged
        try:
            moved = model({"image": pixels[None], "text_input": PHRASES[:1]}, match_head="itm")
        finally:
            torch.nn.Softmax.forward = softmax
        torch.testing.assert_close((moved[0, 1] - logits[0, 1]) / step, gradient[2, 3, 4], rtol=1e-3, atol=1e-9)
    finally:
        model.float()


# ------------------------------------------------------------------------------------------------------ tokens, errors


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_listing_tokens_loses_nothing(lengths, seed):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = Tokens(torch.zeros_like(mask, dtype=torch.long), mask)
    values = torch.randn(*mask.shape, 3, generator=torch.Generator().manual_seed(seed)) * mask[..., None]
    assert torch.equal(tokens.pad(tokens.pack(values)), values)
    assert torch.equal(tokens.pack(values)[tokens.first], values[:, 0])
    weights = token_weights(mask, "amc")
    assert torch.allclose(weights.sum(1), torch.ones(len(lengths))) and not weights[~mask].any()
    assert torch.equal(token_weights(mask, -1).argmax(1), torch.tensor(lengths) - 1)
    if min(lengths) > 2:
        inner = token_weights(mask, "lavis") > 0
        assert torch.equal(inner.sum(1), torch.tensor(lengths) - 2) and not inner[:, 0].any()
    else:
        with pytest.raises(ValueError, match="names no token in phrases"):
            token_weights(mask, "lavis")


def test_last_layer_explains_only_its_first_token(tokenizer):
    model, config = small(tokenizer)
    explainer = BlipExplainer(model, config, block=config.text_depth - 1)
    _, each = explainer.token_maps(picture(), PHRASES[0])
    assert each[0].max() > 0 and not each[1:].any()
    assert not explainer.maps(picture(), PHRASES).any()


def test_errors_name_the_remedy(shared):
    explainer, state, _ = shared
    text, head = explainer.model.text_encoder, explainer.model.itm_head
    tokens = tokens_of(explainer.model, PHRASES)
    with pytest.raises(ValueError, match="block: expected a layer with cross-attention"):
        attention_gradients(text, head, tokens, state.seen, 3)
    with pytest.raises(ValueError, match="block: expected"):
        attention_gradients(text, head, tokens, [None, *state.seen[1:]], 0)
    attention, gradient, _ = attention_gradients(text, head, tokens, state.seen, 1)
    with pytest.raises(ValueError, match="grid: expected rows x columns = 25"):
        token_maps(attention, gradient, (5, 6))
    with pytest.raises(ValueError, match="expected one of"):
        token_weights(tokens.mask, "mean")
    with pytest.raises(ValueError, match="names no token in phrases"):
        token_weights(tokens.mask, 7)
    with pytest.raises(ValueError, match="padding only"):
        Tokens(tokens.ids, torch.zeros_like(tokens.ids))
    text.train()
    try:
        for call in (lambda: match_logits(text, head, tokens, state.seen),
                     lambda: attention_gradients(text, head, tokens, state.seen, 1)):
            with pytest.raises(ValueError, match="evaluation mode"):
                call()
    finally:
        text.eval()
