"""Referring expressions (`Expression`): `perturb` their words, `refer` to boxes, and `ContrastiveHinge` to train with negatives."""

from ..data.referring.expressions import Expression
from ..errors import needed
from .perturb import perturb
from .run import read_expressions, refer
from .summary import summarize_choices

__all__ = ["ContrastiveHinge", "Expression", "perturb", "read_expressions", "refer", "summarize_choices"]


def __getattr__(name: str):
    if name == "ContrastiveHinge":
        needed("torch", name)  # the rest does without
        from .hinge import ContrastiveHinge

        return ContrastiveHinge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
