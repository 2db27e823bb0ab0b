"""qgcam_lib: rebuild, re-run and audit four papers on where and why a vision-language model finds a phrase true."""

import importlib
from collections.abc import Callable, Mapping, Sequence
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


def lazy_face(package: str, rooms: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that loads a module when one of its names is first used.

    rooms: module -> names, a module of the package or, by its full name, of the library.
    """
    modules = {name: room if room.startswith("qgcam_lib.") else f"{package}.{room}"
               for room, names in rooms.items() for name in names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return get, lambda: sorted(modules)


__getattr__, __dir__ = lazy_face(__name__, ROOMS)
