"""ViLT's maps against transformers' own forward pass, whose patches come in random order; and its pictures."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import VILT, smooth

from qgcam_lib.models import load_model
from qgcam_lib.models.vilt.explainer import vilt_size

PHRASES = ["a young boy in a red shirt", "the dog", "a blue and white striped umbrella"]


@pytest.fixture(scope="module")
def shared():
    return {explain: load_model("vilt", "random", config=VILT, seed=2, explain=explain, block=1)
            for explain in ("attention", "gradcam")}


def literal(explainer, image, phrase, block):
    """transformers' whole forward pass on pixels, its random patch order undone; maps of all words, and the logit."""
    model, seen = explainer.model, {}
    embed = model.vilt.embeddings.visual_embed

    def noting(*args, **options):
        found = embed(*args, **options)
        seen["places"] = found[2][0][0]
        return found

    model.vilt.embeddings.visual_embed = noting
    model.requires_grad_(True)
    try:
        words = explainer.tokenizer([phrase], return_tensors="pt")
        pixels = explainer.prepare(image)[None]
        out = model(input_ids=words.input_ids, attention_mask=words.attention_mask, pixel_values=pixels,
                    pixel_mask=torch.ones(1, *pixels.shape[2:], dtype=torch.long), output_attentions=True)
        attention = out.attentions[block]
        (gradient,) = torch.autograd.grad(out.logits[0, 0], attention)
    finally:
        model.requires_grad_(False)
        del model.vilt.embeddings.visual_embed
    length, grid = words.input_ids.shape[1], tuple(side // 16 for side in pixels.shape[2:])
    maps = {"attention": torch.zeros(length, *grid), "gradcam": torch.zeros(length, *grid)}
    for column, (row, place) in enumerate(seen["places"].tolist()):
        a = attention[0, :, :length, length + 1 + column].detach()
        g = gradient[0, :, :length, length + 1 + column].clamp(min=0)
        maps["attention"][:, row, place], maps["gradcam"][:, row, place] = a.mean(0), (a * g).mean(0)
    return maps, out.logits[0, 0].detach(), seen["places"]


@pytest.mark.parametrize("size", [(90, 120), (70, 40), (50, 50)])
def test_equal_to_transformers_own_pass(shared, size):
    image = smooth(size=size)
    order = []
    for explain, explainer in shared.items():
        maps, scores = explainer.explain(image, PHRASES)
        for phrase, found, score in zip(PHRASES, maps, scores):
            torch.manual_seed(len(phrase))
            words, logit, places = literal(explainer, image, phrase, 1)
            order.append(places)
            expected = words[explain][1:-1].mean(0)
            assert found.shape == expected.shape and expected.max() > 0
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.max()))
            torch.testing.assert_close(score, logit, rtol=1e-4, atol=1e-5)
            names, each = explainer.token_maps(image, phrase)
            torch.testing.assert_close(each, words[explain], rtol=1e-4, atol=1e-5 * float(expected.max()))
            assert names[0] == "[CLS]" and len(names) == len(each)
    assert any(not torch.equal(one, torch.cartesian_prod(*map(torch.arange, found.shape))) for one in order), (
        "transformers no longer shuffles patches: say so in the notebook")


def test_last_layer_scores_the_first_token_alone(shared):
    last = load_model("vilt", "random", config=VILT, seed=2, explain="gradcam", block=2)
    names, each = last.token_maps(smooth(), PHRASES[1])
    assert each[0].max() > 0 and not each[1:].any()


@given(st.integers(1, 3000), st.integers(1, 3000))
@settings(max_examples=300, deadline=None)
def test_sizes_are_transformers(width, height):
    """The library's rule, except where it leaves no patch at all."""
    import numpy as np
    from transformers.models.vilt.image_processing_vilt import get_resize_output_image_size

    theirs = get_resize_output_image_size(np.empty((height, width, 3), np.uint8), shorter=384, longer=639,
                                          size_divisor=32, input_data_format="channels_last")
    ours = vilt_size(width, height)
    assert ours == tuple(max(int(side), 32) for side in theirs)
    assert max(ours) <= 639 and all(side % 32 == 0 for side in ours)


def test_pictures_are_prepared_as_in_transformers(shared):
    from transformers import ViltImageProcessor

    processor = ViltImageProcessor(size={"shortest_edge": 64}, size_divisor=16)
    for image in (smooth(), smooth(1, (200, 60)), smooth(2, (64, 64))):
        theirs = processor(image, return_tensors="pt").pixel_values[0]
        torch.testing.assert_close(shared["attention"].prepare(image), theirs)


def test_forty_tokens_are_kept(shared):
    explainer = shared["attention"]
    with pytest.warns(UserWarning, match="truncated to 40 tokens"):
        found = explainer.maps(smooth(), [" ".join(["dog"] * 60)])
    assert torch.equal(found, explainer.maps(smooth(), [" ".join(["dog"] * 38)]))
