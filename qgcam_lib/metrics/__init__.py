"""Scores of a heat map against boxes: `score_maps` and the contract of each column."""

from .score import METRICS, SCORE_COLUMNS, Metric, score_maps

__all__ = ["METRICS", "SCORE_COLUMNS", "Metric", "score_maps"]
