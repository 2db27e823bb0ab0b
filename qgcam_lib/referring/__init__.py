"""Referring expressions: `perturb` their words, `refer` to boxes, and `ContrastiveHinge` to train with negatives."""

from ..errors import needed
from .perturb import perturb
from .run import refer

__all__ = ["ContrastiveHinge", "perturb", "refer"]


def __getattr__(name: str):
    if name == "ContrastiveHinge":
        needed("torch", name)  # the rest does without
        from .hinge import ContrastiveHinge

        return ContrastiveHinge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
