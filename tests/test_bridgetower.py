"""BridgeTower's maps against transformers' own forward pass with a hook on its cross-attention."""

import pytest
import torch
from small_models import TOWER, smooth

from qgcam_lib.models import load_model

PHRASES = ["a young boy in a red shirt", "the dog", "a blue and white striped umbrella"]


def strong(explainer):
    """Weights large enough for maps to differ."""
    with torch.no_grad():
        for name, parameter in explainer.model.named_parameters():
            if parameter.ndim > 1 and "cross_modal" in name:
                parameter.mul_(6)
    return explainer


@pytest.fixture(scope="module")
def tower():
    return strong(load_model("bridgetower", "random", config=TOWER, seed=2))


def literal(explainer, image, phrase, block):
    """The unchanged forward pass on pixels; the cross-attention, which it does not return, by a hook."""
    model, seen = explainer.model, []
    cross = model.bridgetower.cross_modal_text_layers[block].crossattention.self
    handle = cross.register_forward_hook(lambda module, inputs, output: seen.append(output[1]))
    model.requires_grad_(True)
    try:
        words = explainer.tokenizer([phrase], return_tensors="pt")
        out = model(input_ids=words.input_ids, attention_mask=words.attention_mask, output_attentions=True,
                    pixel_values=explainer.prepare(image)[None])
        (gradient,) = torch.autograd.grad(out.logits[0, 1], seen[0])
    finally:
        handle.remove()
        model.requires_grad_(False)
    attention = seen[0][0].detach()
    product = attention * gradient[0].clamp(min=0)
    grid = [int((attention.shape[-1] - 1) ** 0.5)] * 2
    return {"attention": attention.mean(0)[:, 1:].unflatten(1, grid), "gradcam": product.mean(0)[:, 1:].unflatten(
        1, grid)}, out.logits.softmax(1)[0, 1].detach()


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("explain", ["attention", "gradcam"])
def test_equal_to_transformers_own_pass(tower, block, explain):
    explainer = type(tower)(tower.model, tower.tokenizer, block=block, explain=explain)
    maps, chances = explainer.explain(smooth(), PHRASES)
    for phrase, found, chance in zip(PHRASES, maps, chances):
        words, expected_chance = literal(explainer, smooth(), phrase, block)
        expected = words[explain][1:-1].mean(0)
        assert found.shape == (4, 4) and expected.max() > 0
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5 * float(expected.max()))
        torch.testing.assert_close(chance, expected_chance, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(explainer.score([smooth()], PHRASES)[0], chances, rtol=1e-4, atol=1e-6)


def test_whole_picture_is_seen_where_transformers_crops(tower):
    """The same centre, other margins: the library's processor gives one input, ours two."""
    from transformers import BridgeTowerImageProcessor

    wide = smooth(size=(64, 128))
    other = wide.copy()
    other.paste((255, 0, 0), (0, 0, 12, 64))
    processor = BridgeTowerImageProcessor(size={"shortest_edge": 64}, size_divisor=16)
    theirs = [processor(image, return_tensors="pt").pixel_values for image in (wide, other)]
    assert theirs[0].shape[-2:] == (64, 64) and torch.equal(*theirs)
    assert not torch.equal(tower.prepare(wide), tower.prepare(other))
    square = smooth(size=(64, 64))
    torch.testing.assert_close(tower.prepare(square), processor(square, return_tensors="pt").pixel_values[0])


def test_words_are_cut_and_padding_of_roberta_holds(tower):
    assert tower.max_tokens == 50
    with pytest.warns(UserWarning, match="truncated to 50 tokens"):
        found = tower.maps(smooth(), [" ".join(["dog"] * 60)])
    assert torch.equal(found, tower.maps(smooth(), [" ".join(["dog"] * 48)]))
    short = load_model("bridgetower", "random", config={**TOWER, "text_config": {
        **TOWER["text_config"], "max_position_embeddings": 20}})
    assert short.max_tokens == 19
    with pytest.warns(UserWarning, match="truncated to 19 tokens"):
        assert bool(torch.isfinite(short.maps(smooth(), [" ".join(["dog"] * 60)])).all())
