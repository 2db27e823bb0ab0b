"""Maps of a CLIP vision transformer against autograd through the whole model, phrase by phrase."""

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from qgcam_lib.miniworld import make_picture
from qgcam_lib.models import load_model
from qgcam_lib.models.clip.network import build_clip, word_vocabulary
from qgcam_lib.models.clip.vit import (
    ClipVitGradCam,
    ClipVitGradEclip,
    attention_gradcam,
    grad_eclip,
    read_class_token,
    vit_states,
)

WORDS = word_vocabulary(["a red ball", "the dog on the left"])
SIZES = {"embed_dim": 24, "quick_gelu": True,
         "vision_cfg": {"layers": 3, "width": 32, "patch_size": 8, "image_size": 32, "head_width": 8},
         "text_cfg": {"context_length": 12, "width": 16, "heads": 2, "layers": 1}}
PHRASES = ["a red ball", "the dog on the left", "the ball"]


@pytest.fixture(scope="module")
def model():
    return build_clip(SIZES, WORDS, seed=3).model


@pytest.fixture(scope="module")
def picture():
    return Image.fromarray(make_picture(5).image)


def literal(model, pixels, text, number, kind):
    """One phrase: the unmodified model's graph, its attention output caught on the way out of the module."""
    block, kept = model.visual.transformer.resblocks[number], {}

    def keep(module, given, output):
        kept["inputs"], kept["output"] = given[0], output[0]
        kept["output"].retain_grad()

    handle = block.attn.register_forward_hook(keep)
    try:
        score = model.encode_image(pixels[None], normalize=True)[0] @ text
    finally:
        handle.remove()
    (by_output,) = torch.autograd.grad(score, kept["output"])
    gradient = (by_output[0, 0] @ block.attn.out_proj.weight).detach()  # by what enters the output projection
    with torch.no_grad():
        x, attention = kept["inputs"][0], block.attn
        query, key, value = F.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
        if kind == "eclip":
            near = F.cosine_similarity(query[:1], key[1:])
            near = (near - near.min()) / (near.max() - near.min())
            return torch.stack([(gradient * v).sum() * n for v, n in zip(value[1:], near)]).clamp(min=0)
        weights = attention(x[None], x[None], x[None], average_attn_weights=False)[1][0, :, 0]
        width, total = query.shape[1] // len(weights), 0
        for head, row in enumerate(weights):
            part = slice(head * width, head * width + width)
            total = total + row * (value[:, part] @ gradient[part]).clamp(min=0)
        return total[1:] / len(weights)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("kind", ["gradcam", "eclip"])
def test_maps_equal_autograd_on_the_unmodified_model(model, number, kind):
    torch.manual_seed(number)
    pixels, texts = torch.randn(3, 32, 32), F.normalize(torch.randn(4, 24), dim=-1)
    states = vit_states(model.visual, pixels[None], number)[0]
    reading = read_class_token(model.visual, states, texts, number)
    fast = attention_gradcam(reading) if kind == "gradcam" else grad_eclip(reading)
    slow = torch.stack([literal(model, pixels, text, number, kind) for text in texts])
    assert slow.max() > 0
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4 * float(slow.max()))
    with torch.no_grad():
        torch.testing.assert_close(reading.cosines, (model.encode_image(pixels[None], normalize=True) @ texts.T)[0])


@pytest.mark.parametrize("kind", [ClipVitGradCam, ClipVitGradEclip])
def test_maps_are_finite_and_do_not_depend_on_order_or_company(kind, picture):
    explainer = kind(build_clip(SIZES, WORDS))
    maps, logits = explainer.explain(picture, PHRASES)
    assert maps.shape == (3, 4, 4) and maps.dtype == torch.float32
    assert torch.isfinite(maps).all() and (maps >= 0).all()
    torch.testing.assert_close(logits, explainer.score([picture], PHRASES)[0], rtol=1e-4, atol=1e-4)
    near = {"rtol": 1e-4, "atol": 1e-4 * float(maps.max())}
    torch.testing.assert_close(explainer.maps(picture, PHRASES[::-1]), maps.flip(0), **near)
    torch.testing.assert_close(explainer.maps(picture, PHRASES[1:2])[0], maps[1], **near)
    both = explainer.maps_batch([picture, picture.rotate(90)], [PHRASES, PHRASES[:1]])
    torch.testing.assert_close(both[0], maps, **near)
    assert both[1].shape == (1, 4, 4) and explainer.maps(picture, []).shape == (0, 4, 4)


@pytest.mark.parametrize("kind", [ClipVitGradCam, ClipVitGradEclip])
def test_a_constant_picture_gives_finite_maps(kind):
    maps = kind(build_clip(SIZES, WORDS)).maps(Image.new("RGB", (40, 30), "gray"), PHRASES)
    assert torch.isfinite(maps).all() and (maps >= 0).all()


def test_equal_keys_loosen_nothing(model):
    states = vit_states(model.visual, torch.randn(1, 3, 32, 32), 2)[0]
    states[1:] = states[1]
    maps = grad_eclip(read_class_token(model.visual, states, F.normalize(torch.randn(3, 24), dim=-1), 2))
    assert torch.isfinite(maps).all() and torch.allclose(maps, maps[:, :1].expand_as(maps), rtol=1e-3, atol=1e-7)


def test_wrong_models_and_blocks_are_refused(model):
    resnet = {**SIZES, "vision_cfg": {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64, "patch_size": None}}
    with pytest.raises(ValueError, match="transformer"):
        ClipVitGradCam(build_clip(resnet, WORDS))
    with pytest.raises(ValueError, match="block"):
        ClipVitGradCam(build_clip(SIZES, WORDS), block=3)


@pytest.mark.parametrize("name, kind", [("clip-vit-b16-gradcam", ClipVitGradCam),
                                        ("clip-vit-b16-gradeclip", ClipVitGradEclip)])
def test_the_registry_leads_here(name, kind, picture):
    explainer = load_model(name, "random", config=SIZES, vocab=WORDS)
    assert type(explainer) is kind and explainer.card["block"] == 2
    assert explainer.maps(picture, PHRASES).shape == (3, 4, 4)
