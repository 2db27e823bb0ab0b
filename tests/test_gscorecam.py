"""gScoreCAM: the fast version against the literal one, its independence of chunks and company, and its memory."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.explain import cam as module
from qgcam_lib.explain.cam import gscorecam, gscorecam_literal, layer4, masked_pixels
from qgcam_lib.models.clip.network import build_clip, word_vocabulary

WORDS = word_vocabulary(["a red ball"])


def _visual(seed: int = 0, layers=(1, 1, 1, 1), size: int = 96):
    """A small ResNet whose every stage matters: open_clip starts the residual branches at zero."""
    sizes = {"embed_dim": 16, "quick_gelu": True,
             "vision_cfg": {"layers": list(layers), "width": 8, "image_size": size, "patch_size": None},
             "text_cfg": {"context_length": 10, "width": 16, "heads": 2, "layers": 1}}
    visual = build_clip(sizes, WORDS, seed).model.visual.requires_grad_(False)
    draw = torch.Generator().manual_seed(seed)
    for part in visual.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.weight.copy_(0.5 + torch.rand(part.weight.shape, generator=draw))
            part.bias.copy_(0.3 * torch.randn(part.bias.shape, generator=draw))
    return visual


@pytest.fixture(scope="module")
def visual():
    return _visual()


def _inputs(seed: int, size: int = 96, n: int = 3):
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randn(3, 3, 3, generator=draw)[0][:, None, :1].expand(3, size, size).clone()
    pixels = pixels + torch.randn(3, size, size, generator=draw)
    return pixels, F.normalize(torch.randn(n, 16, generator=draw), dim=-1)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 4), n_channels=st.sampled_from([1, 7, 40, 256, 300]),
       chunk=st.sampled_from([1, 4, 64]), scale=st.sampled_from([1.0, 14.3, 100.0]))
@settings(max_examples=6, deadline=None)
def test_equal_to_the_literal_version(visual, seed, n, n_channels, chunk, scale):
    pixels, texts = _inputs(seed, n=n)
    found = gscorecam(visual, pixels, texts, scale=scale, n_channels=n_channels, chunk=chunk)
    for text, each, logit in zip(texts, found.maps, found.logits):
        expected = gscorecam_literal(visual, pixels, text, scale=scale, n_channels=n_channels)
        assert (each - expected).abs().max() <= 1e-4 * expected.max()
        whole = scale * F.normalize(visual(pixels[None]), dim=-1)[0] @ text
        assert torch.isclose(logit, whole, rtol=1e-4, atol=1e-4)


def test_the_literal_version_step_by_step(visual):
    """The algorithm once more, channel by channel in numpy, from open_clip's own forward pass."""
    pixels, texts = _inputs(5)
    kept = []
    hook = visual.layer4.register_forward_hook(lambda *a: kept.append(a[2].requires_grad_()))
    score = 20.0 * F.normalize(visual(pixels[None]), dim=-1)[0] @ texts[0]
    hook.remove()
    activations = kept[0].detach()[0].numpy()
    gradient = torch.autograd.grad(score, kept[0])[0][0].numpy()
    order = np.argsort(-gradient.mean((1, 2)))[:30]
    scores = np.zeros(len(activations))
    for channel in order:
        rows = np.linspace(0, activations.shape[1] - 1, 96)  # aligned corners: the first and last cells on the edges
        low, part = np.minimum(rows.astype(int), 1), rows - np.minimum(rows.astype(int), 1)
        lines = activations[channel][low] * (1 - part)[:, None] + activations[channel][low + 1] * part[:, None]
        mask = lines[:, low] * (1 - part) + lines[:, low + 1] * part
        mask = (mask - mask.min()) / (mask.max() - mask.min() + 1e-6)
        seen = visual(torch.from_numpy(mask.astype(np.float32)) * pixels[None])
        scores[channel] = float(20.0 * F.normalize(seen, dim=-1)[0] @ texts[0])
    weights = np.exp(scores - scores.max())
    expected = np.maximum(np.tensordot(weights / weights.sum(), activations, 1), 0)
    for found in (gscorecam_literal(visual, pixels, texts[0], scale=20.0, n_channels=30),
                  gscorecam(visual, pixels, texts, scale=20.0, n_channels=30).maps[0]):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * expected.max())
    other = gscorecam(visual, pixels, texts, scale=20.0, n_channels=31).maps[0]
    assert np.abs(other - expected).max() > 1e-3 * expected.max()  # one channel more is seen at this tolerance


def test_a_map_depends_neither_on_company_nor_on_chunks(visual):
    pixels, texts = _inputs(4, n=4)
    together = gscorecam(visual, pixels, texts, scale=14.0, n_channels=25, chunk=64).maps
    backwards = gscorecam(visual, pixels, texts.flip(0), scale=14.0, n_channels=25, chunk=3).maps.flip(0)
    alone = torch.cat([gscorecam(visual, pixels, text[None], scale=14.0, n_channels=25).maps for text in texts])
    for other in (backwards, alone):
        assert torch.allclose(together, other, rtol=1e-4, atol=1e-6)


def test_every_masked_picture_is_embedded_once(visual, monkeypatch):
    pixels, texts = _inputs(6, n=4)
    counts = []
    embed = module._embed
    monkeypatch.setattr(module, "_embed", lambda v, p: counts.append(len(p)) or embed(v, p))
    found = gscorecam(visual, pixels, texts, scale=14.0, n_channels=50, chunk=8)
    assert sum(counts) == found.shared.embedded <= found.shared.union < 4 * 50 and max(counts) <= 8
    twice = gscorecam(visual, pixels, texts[[0, 0]], scale=14.0, n_channels=50)
    assert twice.shared.union == 50 and torch.allclose(twice.maps[0], twice.maps[1], rtol=1e-5)


def test_silent_channels_share_one_empty_picture(visual):
    channels = torch.rand(5, 3, 3)
    channels[[1, 3]] = 0
    pixels, _ = _inputs(7)
    assert (masked_pixels(pixels, channels)[[1, 3]] == 0).all()
    found = module.masked_embeddings(visual, pixels, channels, chunk=2)
    with torch.no_grad():
        expected = F.normalize(visual(masked_pixels(pixels, channels)), dim=-1)
    assert torch.allclose(found, expected, atol=1e-5)
    empty = module.masked_embeddings(visual, pixels, torch.zeros(3, 3, 3))
    assert torch.allclose(empty, expected[[1, 1, 1]], atol=1e-5)


def test_masks_span_zero_to_one():
    pixels = torch.ones(3, 20, 20)
    seen = masked_pixels(pixels, torch.rand(4, 3, 3) + 5)
    assert seen.shape == (4, 3, 20, 20) and (seen.amin((1, 2, 3)) == 0).all()
    assert torch.allclose(seen.amax((1, 2, 3)), torch.ones(4), atol=1e-5)


def test_scores_that_are_no_numbers_count_as_zero(visual, monkeypatch):
    pixels, texts = _inputs(8, n=1)
    embed = module._embed
    monkeypatch.setattr(module, "_embed", lambda v, p: embed(v, p) * torch.nan)
    found = gscorecam(visual, pixels, texts, scale=14.0, n_channels=20).maps[0]
    flat = layer4(visual, pixels[None])[0].mean(0)  # every score 0: equal weights
    assert torch.allclose(found, flat, rtol=1e-4)


def test_defined_edges(visual):
    pixels, texts = _inputs(9)
    assert gscorecam(visual, pixels, texts[:0], scale=14.0).maps.shape == (0, 3, 3)
    assert gscorecam(visual, pixels, texts[:1], scale=14.0, n_channels=9999).shared.channels == 256


def test_layout_changes_nothing_and_bfloat16_little():
    pixels, texts = _inputs(10)
    expected = gscorecam(_visual(), pixels, texts, scale=14.0, n_channels=300).maps
    layout = _visual().to(memory_format=torch.channels_last)
    assert torch.allclose(gscorecam(layout, pixels, texts, scale=14.0, n_channels=300).maps, expected, rtol=1e-4)
    half = gscorecam(_visual().to(torch.bfloat16), pixels, texts, scale=14.0, n_channels=300).maps
    assert half.dtype == torch.float32 and (half - expected).abs().max() < 0.1 * expected.max()


@pytest.mark.gpu
def test_cuda_agrees_with_cpu():
    pixels, texts = _inputs(11)
    expected = gscorecam(_visual(), pixels, texts, scale=14.0, n_channels=40).maps
    cuda = gscorecam(_visual().cuda(), pixels.cuda(), texts.cuda(), scale=14.0, n_channels=40, chunk=64).maps.cpu()
    assert (cuda - expected).abs().max() < 1e-2 * expected.max()  # convolutions may run in TF32
