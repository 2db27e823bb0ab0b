"""Tables and figures: the papers' numbers, the scores of a run, and the two side by side."""

from qgcam_lib.report.compare import cautions, comparison_view, coverage, paper_vs_ours, verdict, why_not_comparable
from qgcam_lib.report.figures import (
    choose_examples,
    example_maps,
    panel,
    panels,
    score_histograms,
    score_intervals,
    use_style,
)
from qgcam_lib.report.papers import cite, list_published, published
from qgcam_lib.report.tables import MarkedTable, paper_table, score_summary, score_table

__all__ = [
    "MarkedTable", "cautions", "choose_examples", "cite", "comparison_view", "coverage", "example_maps",
    "list_published", "panel", "panels", "paper_table", "paper_vs_ours", "published", "score_histograms",
    "score_intervals", "score_summary", "score_table", "use_style", "verdict", "why_not_comparable",
]
