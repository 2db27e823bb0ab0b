"""qgcam_lib: rebuild, re-run and audit four papers on where and why a vision-language model finds a phrase true."""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["ContrastiveHinge", "MapProtocol", "box_iou", "evaluate", "ground", "interpolate", "list_models",
           "load_model", "load_tricd", "pair_scores", "perturb", "prepare_maps", "probe", "ranking_average_precision",
           "refer", "score_maps", "summarize"]

# The verbs by the room that has them. A room is loaded when one of its names is first used: this face costs nothing.
ROOMS = {
    "boxes": ("box_iou",), "maps": ("MapProtocol", "prepare_maps"), "statistics": ("summarize",),
    "metrics": ("score_maps",), "models": ("list_models", "load_model"), "grounding": ("ground",),
    "phrase_detection": ("evaluate", "load_tricd"), "finetune": ("interpolate",),
    "probes": ("pair_scores", "probe", "ranking_average_precision"),
    "referring": ("ContrastiveHinge", "perturb", "refer"),
}


def __getattr__(name: str) -> Any:
    room = next((room for room, names in ROOMS.items() if name in names), None)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{room}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
