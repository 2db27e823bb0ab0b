"""Scores with their uncertainty: summaries, paired differences and correlations, all with intervals by group."""

from .row_checks import MAP_SCORES, METRICS, Metric, contract_table
from .summary import correlate
from .intervals import N_BOOTSTRAP
from .summary import compare, summarize

__all__ = ["MAP_SCORES", "METRICS", "N_BOOTSTRAP", "Metric", "compare", "contract_table", "correlate", "summarize"]
