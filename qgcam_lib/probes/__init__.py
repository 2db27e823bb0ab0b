"""Conceptual probes: `pair_scores`, `ranking_average_precision` and `probe`, for any model or a table of scores."""

from ..data.probes.files import read_groups
from .run import probe
from .score import pair_scores, ranking_average_precision
from .summary import summarize_probe

__all__ = ["pair_scores", "probe", "ranking_average_precision", "read_groups", "summarize_probe"]
