"""Scores of a heat map against boxes: `score_maps` and the contract of each column."""

from ..statistics import METRICS, Metric
from .score import SCORE_COLUMNS, score_maps

__all__ = ["METRICS", "SCORE_COLUMNS", "Metric", "score_maps"]
