"""Sizes of untrained models that are built in a moment, a small CLIP, and pictures of noise for them."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from qgcam_lib.models.clip.network import build_clip, word_vocabulary
from qgcam_lib.models.dual.matcher import DualMatcher

LAVIS = {"image_size": 48, "patch_size": 12, "vision_width": 36, "vision_depth": 1, "vision_heads": 3,
         "text_width": 32, "text_depth": 3, "text_heads": 2, "text_mlp_width": 48}
VILT = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 64,
        "patch_size": 16, "vocab_size": 700, "initializer_range": 0.2}
TOWER = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
         "text_config": {"vocab_size": 700, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
                         "intermediate_size": 96, "max_position_embeddings": 80, "initializer_factor": 4},
         "vision_config": {"hidden_size": 128, "num_hidden_layers": 4, "patch_size": 16, "image_size": 64}}
BLIP2 = {"num_query_tokens": 5, "image_text_hidden_size": 16,
         "vision_config": {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                           "image_size": 64, "patch_size": 16, "initializer_range": 0.1},
         "qformer_config": {"vocab_size": 700, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4,
                            "intermediate_size": 96, "encoder_hidden_size": 48, "use_qformer_text_input": True,
                            "initializer_range": 0.2}}
SWIN = {"model_type": "swin", "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 4], "window_size": 4,
        "image_size": 64, "out_indices": [2, 3, 4]}
CLIP = {"embed_dim": 32,
        "vision_cfg": {"layers": 2, "width": 48, "patch_size": 16, "image_size": 64, "head_width": 12},
        "text_cfg": {"context_length": 16, "width": 32, "heads": 2, "layers": 1}}
SHAPES = [(90, 30), (30, 90), (50, 50), (7, 5), (200, 150)]  # transformers misreads 3 x 3 pixels as channels
BOXES = np.array([[4.0, 6, 40.5, 50], [30, 10, 80, 44.2], [0, 0, 90, 60], [70, 30, 95, 60]])  # of 90 x 60 pixels


def noise(width=90, height=60, seed=0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def picture(seed=0, size=(60, 80)) -> Image.Image:
    """Noise again; the size is height and width."""
    return noise(size[1], size[0], seed)


def smooth(seed=0, size=(90, 120)) -> Image.Image:
    """Blurred noise: neighbouring patches resemble each other."""
    noise = torch.rand(3, 9, 12, generator=torch.Generator().manual_seed(seed))
    smooth = torch.nn.functional.interpolate(noise[None], size=size, mode="bilinear")[0]
    return Image.fromarray((smooth * 255).byte().permute(1, 2, 0).numpy())


def clip_matcher(texts, seed=1, **options) -> DualMatcher:
    clip = build_clip(CLIP, word_vocabulary(texts), seed=seed)
    return DualMatcher("clip", clip.model, clip.tokenize, card={"name": "tiny", "weights": "random"}, **options)


class MeanColours:
    """A RegionEncoder: the mean colour of each crop, and how often it was asked."""

    card = {"name": "colours"}

    def __init__(self):
        self.asked = 0

    def encode(self, image, boxes):
        self.asked += 1
        pixels = np.asarray((Image.open(image) if isinstance(image, (str, Path)) else image).convert("RGB"), np.float32)
        return np.stack([pixels[int(y0):int(y1), int(x0):int(x1)].mean((0, 1)) / 255 for x0, y0, x1, y1 in boxes])
