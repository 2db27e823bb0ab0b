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
from qgcam_lib.report.table1 import (
    SPLITS,
    TABLE1_MODELS,
    find_split,
    find_table1_runs,
    paper_model,
    published_summary,
    run_records,
    table1_comparison,
    table1_runs,
    table1_summary,
    table1_table,
    verdict_counts,
    why_not_runnable,
)
from qgcam_lib.report.tables import MarkedTable, paper_table, score_summary, score_table

__all__ = [
    "MarkedTable", "SPLITS", "TABLE1_MODELS", "cautions", "choose_examples", "cite", "comparison_view", "coverage",
    "example_maps", "find_split", "find_table1_runs", "list_published", "panel", "panels", "paper_model",
    "paper_table", "paper_vs_ours", "published", "published_summary", "run_records", "score_histograms",
    "score_intervals", "score_summary", "score_table", "table1_comparison", "table1_runs", "table1_summary",
    "table1_table", "use_style", "verdict", "verdict_counts", "why_not_comparable", "why_not_runnable",
]
