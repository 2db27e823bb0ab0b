"""From a paper notebook and its parameters to a run: checked, recorded, resumed, gathered."""

from . import show  # noqa: F401  gives Run its way of showing
from .current import current_run
from .record import find_runs, read_run

__all__ = ["current_run", "find_runs", "read_run"]
