"""Tables and figures: the papers' numbers, the scores of a run, and the two side by side."""

from qgcam_lib.report.papers import cite, list_published, published

__all__ = ["cite", "list_published", "published"]
