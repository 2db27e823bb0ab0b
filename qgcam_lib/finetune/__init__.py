"""Training recipes: the mini models of the zoo, fine-tuning and what follows from it: `interpolate`."""

from .relcomp.interpolation import interpolate

__all__ = ["interpolate"]
