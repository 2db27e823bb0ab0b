"""qgcam_lib: rebuild, re-run and audit four papers on where and why a vision-language model finds a phrase true."""

import ast
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
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


def public_names(file: str | Path) -> list[str]:
    """The names in `__all__` of a module's file, which is read and not run."""
    found = re.search(r"^__all__ = (\[.*?\])", Path(file).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return ast.literal_eval(found[1]) if found else []


def lazy_face(package: str, rooms: Mapping[str, Sequence[str]] | Sequence[str]
              ) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that loads a module when one of its names is first used.

    rooms: modules of the package or, by their full names, of the library; with the names of each that the face has, or
    alone for all their public names, of which the first module's count.
    """
    def full(room: str) -> str:
        return room if room.startswith("qgcam_lib.") else f"{package}.{room}"

    @cache
    def modules() -> dict[str, str]:
        if isinstance(rooms, Mapping):
            return {name: full(room) for room, names in rooms.items() for name in names}
        files = {full(room): importlib.util.find_spec(full(room)).origin for room in reversed(rooms)}
        return {name: room for room, file in files.items() for name in public_names(file)}

    def get(name: str) -> Any:
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from .errors import needed

        return getattr(needed(modules()[name], name), name)  # MissingExtra where it needs a package that is not here

    return get, lambda: sorted(modules())


__getattr__, __dir__ = lazy_face(__name__, ROOMS)
