"""A world, its training set, and every kind of model that is trained on it, in a size that takes seconds."""

import tempfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from qgcam_lib.finetune.albef import ALBEF_MINI, MINI, AlbefRecipe, ItmRecipe, mini_albef, start_albef, start_itm
from qgcam_lib.finetune.amc import AmcRecipe, start_amc
from qgcam_lib.finetune.batches import Sizes, load_training_set
from qgcam_lib.finetune.clip import (
    MINI_CLIP,
    MINI_TOWERS,
    ClipRecipe,
    TowersRecipe,
    clip_sizes,
    start_clip,
    start_towers,
)
from qgcam_lib.finetune.detector import DetectorRecipe, start_detector
from qgcam_lib.finetune.joint import (
    MINI_BRIDGETOWER,
    MINI_FLAVA,
    MINI_VILT,
    BridgeTowerTraining,
    FlavaTraining,
    JointRecipe,
    ViltTraining,
    start_joint,
)
from qgcam_lib.finetune.loop import ModelKind
from qgcam_lib.finetune.owl import MINI_OWL, OwlRecipe, start_owl
from qgcam_lib.miniworld import ensure
from qgcam_lib.models.common.checkpoints import save_model
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer
from qgcam_lib.models.dense.network import DenseConfig
from qgcam_lib.models.registry import zoo_folder

FOLDER = tempfile.TemporaryDirectory()
SHORT = {"steps": 6, "batch": 6, "texts": 4, "warmup": 2, "log_every": 2, "images": 40}
LOOKING = {**SHORT, "texts": 2, "looking": 2}
BLIP = replace(MINI, image_size=32, patch_size=16, vision_width=32, vision_depth=1, vision_heads=2, text_width=32,
               text_depth=2, text_heads=2, text_mlp_width=64)
ALBEF = replace(ALBEF_MINI, image_size=32, patch_size=8, vision_width=32, vision_depth=1, vision_heads=2, text_width=32,
                text_heads=2, text_mlp_width=64, text_depth=4)
TEXT = {"width": 32, "heads": 2, "layers": 1}
CLIP = clip_sizes({**MINI_CLIP.model, "embed_dim": 16, "text_cfg": {**MINI_CLIP.model["text_cfg"], **TEXT},
                   "vision_cfg": {**MINI_CLIP.model["vision_cfg"], "image_size": 32, "width": 4}})
VISION = {"image_size": 32, "patch_size": 16, "width": 32, "layers": 1}
TOWERS = clip_sizes({**MINI_TOWERS.model, "embed_dim": 16, "text_cfg": {**MINI_TOWERS.model["text_cfg"], **TEXT},
                     "vision_cfg": {**MINI_TOWERS.model["vision_cfg"], **VISION}})
LAYER = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 1}
SIDE = {"image_size": 32, "patch_size": 16}
JOINT = {
    ViltTraining: Sizes({**MINI_VILT.model, **LAYER, **SIDE}, 32, 16),
    BridgeTowerTraining: Sizes({
        "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "text_config": {**MINI_BRIDGETOWER.model["text_config"], **LAYER, "num_hidden_layers": 2},
        "vision_config": {"hidden_size": 64, "num_hidden_layers": 2, **SIDE}}, 32, 16),
    FlavaTraining: Sizes({**MINI_FLAVA.model, "hidden_size": 64, "projection_dim": 64, "text_config": LAYER,
                          "image_config": {**LAYER, **SIDE, "vocab_size": 16}, "multimodal_config": LAYER}, 32, 16),
}  # fmt: skip
DENSE = DenseConfig(image_size=32, width=16, heads=2, text_depth=1, fusion_depth=1)


@cache
def world() -> Path:
    splits = ("train", "val", "test")
    return ensure(Path(FOLDER.name) / "world", splits, n_train=120, n_val=4, n_test=4, progress=False)


@cache
def data(size: int = 32):
    return load_training_set(world(), size, limit=40, cache=FOLDER.name)


@cache
def albef_entry(seed: int = 0) -> Path:
    """The folder of an untrained ALBEF in its training form, as the zoo has them."""
    vocabulary = build_vocabulary()
    config = replace(ALBEF, vocab_size=len(vocabulary))
    model = mini_albef(config, make_tokenizer(vocabulary, lavis_tokens=False), seed)
    return save_model(Path(FOLDER.name) / f"albef-{seed}", model, config.to_dict(), vocabulary, {"name": "start"})


JOINT_KINDS = {kind.__name__: ModelKind(partial(start_joint, training=kind), JointRecipe(**LOOKING), config)
               for kind, config in JOINT.items()}
TOWER_KINDS = {loss: ModelKind(start_towers, TowersRecipe(**LOOKING, loss=loss), TOWERS)
               for loss in ("softmax", "sigmoid")}
DETECTORS = {head: ModelKind(start_detector, DetectorRecipe(**{**SHORT, "texts": 2}, false=0.5, head=head), DENSE)
             for head in ("sigmoid", "softmax")}
KINDS = {
    "itm": ModelKind(start_itm, ItmRecipe(**SHORT, sentences=0.4), BLIP),
    "albef": ModelKind(start_albef, AlbefRecipe(**SHORT, sentences=0.4), ALBEF),
    "amc": ModelKind(partial(start_amc, folder=albef_entry()), AmcRecipe(**SHORT, sentences=0.3), ALBEF),
    "clip": ModelKind(start_clip, ClipRecipe(**SHORT, sentences=0.3), CLIP),
    "owl": ModelKind(partial(start_owl, folder=zoo_folder() / "blip-mini"), OwlRecipe(**SHORT), MINI_OWL),
    **{f"detector, {head}": kind for head, kind in DETECTORS.items()},
    **{f"towers, {loss}": kind for loss, kind in TOWER_KINDS.items()}, **JOINT_KINDS,
}
