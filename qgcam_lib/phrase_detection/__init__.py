"""Contextual phrase detection (TRICD): `load_tricd`, `evaluate`; the runs, questions and audits behind them."""

from ..data.tricd.pairs import load_tricd
from .score import evaluate

__all__ = ["evaluate", "load_tricd"]
