"""Conceptual probes: `pair_scores`, `ranking_average_precision` and `probe`, for any model or a table of scores."""

from .run import probe
from .score import pair_scores, ranking_average_precision

__all__ = ["pair_scores", "probe", "ranking_average_precision"]
