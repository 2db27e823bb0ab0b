"""From a paper notebook and its parameters to a run: checked, recorded, resumed, gathered."""

from . import show  # noqa: F401  gives Run its way of showing
from .current import open_run
from .record import find_runs, read_run

__all__ = ["find_runs", "open_run", "read_run"]
