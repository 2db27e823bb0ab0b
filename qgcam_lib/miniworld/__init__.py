"""The miniworld: rendered scenes with known truth, written in the official formats of the real data sets."""

import tomllib
from importlib.resources import files

from .. import lazy_face

# The names by the module that has them. A module is loaded when one of its names is first used.
ROOMS = {
    "scenes.render": ("SEED", "Rendering", "make_picture", "make_scene", "render"),
    "scenes.scene": ("Relation", "Scene", "Thing"), "words.language": ("describe",), "words.words": ("vocabulary",),
    "writers.files": ("read_card",),
    "writers.flickr30k": ("CHECKSUM", "checksum", "ensure", "make_flickr30k"), "writers.gqa": ("ensure_gqa",),
    "writers.mininet": ("ensure_fillers", "ensure_mininet"), "writers.refcocog": ("ensure_refcocog",),
    "writers.refer": ("ensure_refer",), "writers.spatialsense": ("ensure_spatialsense", "ensure_visual_genome"),
    "writers.swaps": ("ensure_swaps",), "writers.tricd": ("ensure_coco", "ensure_tricd"),
}
__all__ = sorted(name for names in ROOMS.values() for name in names)
__getattr__, __dir__ = lazy_face(__name__, ROOMS)


def read_tables(module: str) -> dict:
    """The tables beside a module, lists as tuples: `read_tables("words/words")` reads words/words.toml."""
    return _frozen(tomllib.loads(files(__name__).joinpath(f"{module}.toml").read_text(encoding="utf-8")))


def _frozen(value):
    if isinstance(value, dict):
        return {key: _frozen(one) for key, one in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
