"""Explainers: from a model and a phrase to a map. `cam_for` draws the maps of a torch network of your own."""

from .. import lazy_face

__all__ = ["cam_for"]
__getattr__, __dir__ = lazy_face(__name__, {"cam": ("cam_for",)})
