"""BLIP-2's maps against transformers' own forward pass with its own saved attention."""

import pytest
import torch
from small_models import BLIP2, smooth

from qgcam_lib.models import load_model

PHRASES = ["a young boy in a red shirt", "the dog", "a blue and white striped umbrella"]


@pytest.fixture(scope="module")
def blip2():
    return load_model("blip2-itm", "random", config=BLIP2, seed=2)


def literal(explainer, image, phrase, block):
    """The unchanged forward pass; the Q-Former can save a cross-attention and its gradient itself."""
    model = explainer.model
    inner = model.qformer.encoder.layer[block].crossattention.attention
    inner.save_attention = True
    model.requires_grad_(True)
    words = explainer.tokenizer([phrase], return_tensors="pt")
    out = model(pixel_values=explainer.prepare(image)[None], input_ids=words.input_ids,
                attention_mask=words.attention_mask, use_image_text_matching_head=True)
    out.logits_per_image[0, 1].backward()
    attention, gradient = inner.get_attention_map()[0].detach(), inner.get_attn_gradients()[0].detach()
    model.zero_grad(set_to_none=True)
    model.requires_grad_(False)
    inner.save_attention = False
    maps = {"attention": attention, "gradcam": attention * gradient.clamp(min=0)}
    each = {name: one.mean(0)[:, 1:].unflatten(1, (4, 4)) for name, one in maps.items()}
    return each, out.logits_per_image.softmax(1)[0, 1].detach()


@pytest.mark.parametrize("block", [0, 2, 4])
def test_equal_to_transformers_own_pass(blip2, block):
    for explain in ("gradcam", "attention"):
        explainer = type(blip2)(blip2.model, blip2.tokenizer, block=block, explain=explain)
        one = type(blip2)(blip2.model, blip2.tokenizer, block=block, explain=explain, tokens=3)
        maps, chances = explainer.explain(smooth(), PHRASES)
        single = one.maps(smooth(), PHRASES)
        for i, phrase in enumerate(PHRASES):
            each, chance = literal(explainer, smooth(), phrase, block)
            expected = each[explain].mean(0)
            assert expected.max() > 0
            torch.testing.assert_close(maps[i], expected, rtol=1e-3, atol=1e-5 * float(expected.max()))
            torch.testing.assert_close(single[i], each[explain][3], rtol=1e-3, atol=1e-5 * float(each[explain].max()))
            torch.testing.assert_close(chances[i], chance, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(explainer.score([smooth()], PHRASES)[0], chances, rtol=1e-4, atol=1e-6)


def test_queries_words_and_layers(blip2):
    names, each = blip2.token_maps(smooth(), PHRASES[0])
    assert names == [f"query {i}" for i in range(5)] and each.shape == (5, 4, 4)
    assert blip2.block == 2 and blip2.card["tokens"] == "queries" and blip2.clean("The dog!") == "the dog"
    for options in ({"block": 1}, {"tokens": 5}, {"tokens": "lavis"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            type(blip2)(blip2.model, blip2.tokenizer, **{"block": 2, **options})
    with pytest.warns(UserWarning, match="50"), pytest.warns(UserWarning, match="32"):
        found = blip2.maps(smooth(), [" ".join(["dog"] * 60)])
    assert torch.equal(found, blip2.maps(smooth(), [" ".join(["dog"] * 30)]))


def test_pictures_are_prepared_as_in_transformers(blip2):
    from transformers import BlipImageProcessor

    processor = BlipImageProcessor(size={"height": 64, "width": 64})
    for image in (smooth(), smooth(1, (30, 100))):
        theirs = processor(image, return_tensors="pt").pixel_values[0]
        torch.testing.assert_close(blip2.prepare(image), theirs)
