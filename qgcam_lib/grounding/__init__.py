"""From a model and a data set to a frame of map scores: `ground`; files of maps and boxes; the audit of open choices."""

from .run import ground

__all__ = ["ground"]
