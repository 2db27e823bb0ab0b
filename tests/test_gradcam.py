"""Split GradCAM against LAVIS's own, at full size and small, and the properties that make it usable."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import smooth

from qgcam_lib.explain import cam_for
from qgcam_lib.explain.gradcam import (
    Tokens,
    attention_gradients,
    gradcam,
    image_keys_values,
    token_maps,
    token_weights,
)
from qgcam_lib.models.blip.explainer import BlipExplainer
from qgcam_lib.models.blip.network import CONFIGS, BlipConfig, build_blip_itm
from qgcam_lib.models.common.device import prepare_image
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer

PHRASES = ["a young boy in a red shirt", "the dog", "two women", "a blue and white striped umbrella"]


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(build_vocabulary())


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
        pixels = prepare_image(smooth(), 384)
        ours = BlipExplainer(full, CONFIGS["blip-base"])
        state = ours.encode(smooth())
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
    pixels = prepare_image(smooth(), config.image_size)
    rows = literal(model, pixels, PHRASES, block)
    explainers = {mode: BlipExplainer(model, config, block=block, tokens=mode) for mode in ("lavis", "amc", 0, 2, -1)}
    for mode, explainer in explainers.items():
        maps, chances = explainer.explain(smooth(), PHRASES)
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
    states = model.visual_encoder.forward_features(prepare_image(smooth(), config.image_size)[None])[0]
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
    state = explainer.encode(smooth())
    return explainer, state, explainer.maps(state, PHRASES)


def test_gradient_is_of_the_whole_remaining_network(shared):
    """Double precision: nudge the attention of the explained layer inside LAVIS's own forward pass."""
    explainer, _, _ = shared
    model = explainer.model.double()
    try:
        pixels = prepare_image(smooth(), 60).double()
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
        with pytest.raises(ValueError, match="token"):
            token_weights(mask, "lavis")


def test_last_layer_explains_only_its_first_token(tokenizer):
    model, config = small(tokenizer)
    explainer = BlipExplainer(model, config, block=config.text_depth - 1)
    _, each = explainer.token_maps(smooth(), PHRASES[0])
    assert each[0].max() > 0 and not each[1:].any()
    assert not explainer.maps(smooth(), PHRASES).any()


def test_errors_name_the_argument(shared):
    tokens = tokens_of(shared[0].model, PHRASES)
    for wrong in ("mean", 7):
        with pytest.raises(ValueError, match="token"):
            token_weights(tokens.mask, wrong)


# --- a network of the user's own -------------------------------------------------------------------------------------

def by_loops(activation, score):
    """Equations 1 and 2 of GradCAM with loops, from a graph that nobody cut."""
    (gradient,) = torch.autograd.grad(score, activation, retain_graph=True)
    found = torch.zeros(activation.shape[-2:])
    for channel, slope in zip(activation[0].detach(), gradient[0]):
        found += sum(float(s) for s in slope.flatten()) / slope.numel() * channel
    return found.clamp(min=0)


def test_cam_for_is_the_literal_formula_on_a_convolution_and_a_transformer():
    import timm

    torch.manual_seed(0)
    picture, classes = torch.randn(3, 32, 32), {"a": 0, "b": 2}
    options = {"prepare": lambda image: image, "score": lambda outputs, phrase: outputs[0, classes[phrase]]}
    first = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3, stride=2), torch.nn.Tanh())
    rest = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Flatten(), torch.nn.Linear(5 * 15 * 15, 3))
    network = torch.nn.Sequential(first, rest).eval().requires_grad_(False)
    activation = first(picture[None]).requires_grad_()
    expected = [by_loops(activation, rest(activation.clone())[0, k]) for k in classes.values()]
    for layer in (first, "0"):
        torch.testing.assert_close(cam_for(network, layer, **options).maps(picture, ["a", "b"]), torch.stack(expected))

    vit = timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=3)
    block, grid = vit.eval().blocks[1], lambda x: x[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    for parameter in vit.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = vit.blocks[0](vit.norm_pre(vit._pos_embed(vit.patch_embed(picture[None]))))
    normed = block.norm1(x)
    cells = grid(normed)
    normed = torch.cat([normed[:, :1], cells.permute(0, 2, 3, 1).flatten(1, 2)], 1)
    y = x + block.attn(normed)
    out = vit.forward_head(vit.norm(y + block.mlp(block.norm2(y))))
    expected = torch.stack([by_loops(cells, out[0, k]) for k in classes.values()])
    assert (expected > 0).any()
    found = cam_for(vit, "blocks.1.norm1", reshape=grid, **options).maps(picture, ["a", "b"])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
