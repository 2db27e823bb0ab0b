"""Train the mini models of the zoo, fine-tune models, and `interpolate` between the weights before and after."""

from .relcomp.interpolation import interpolate

__all__ = ["interpolate"]
