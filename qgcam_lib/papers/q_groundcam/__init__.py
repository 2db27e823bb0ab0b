"""All that the notebooks of Q-GroundCAM call, each name loaded when it is first used."""

from ... import lazy_face

# The names by the module that has them: of this folder, or of the library.
ROOMS = {
    "audit": (
        "dice_arithmetic", "largest_in_words", "movement_map", "movement_table", "ranking_changes", "sources_table",
        "tornado", "wdp_arithmetic"),
    "baselines": ("store_names", "weights_origin", "with_baselines"),
    "claims": ("CLAIMS", "bold_counts", "claim_tables", "setting_means", "unlike_print"),
    "figures": ("correlation_figure", "panels", "places_figure", "size_figure", "split_histograms"),
    "gallery": ("case_figure", "choose_examples", "choose_gallery", "example_maps", "part_figure"),
    "results": (
        "against_baselines", "protocol_note", "result_of_audit", "result_of_recipe", "result_of_run",
        "result_of_table1"),
    "runs": ("case_items", "case_table", "first_case", "gather_table1", "resampler_table", "under_protocols"),
    "splits": (
        "LABELS", "ONE_SPLIT", "Q_GROUNDCAM", "SCORES", "SHARES", "SPLITS", "TABLE1", "find_split",
        "printed_split", "score_summary", "table1_comparison", "table1_runs", "table1_summary", "with_domain"),
    "qgcam_lib.data.catalog": ("load_dataset",),
    "qgcam_lib.grounding": ("ground",),
    "qgcam_lib.grounding.audit": (
        "make_maps", "open_choices", "other_readings", "remaker", "sensitivity", "tie_protocols", "tie_rates"),
    "qgcam_lib.models": ("load_model",),
    "qgcam_lib.models.baselines": ("CentreGuess", "RandomMap", "UniformMap"),
    "qgcam_lib.models.common.zoo": ("load_zoo",),
    "qgcam_lib.models.registry": ("zoo_folder",),
    "qgcam_lib.page.cards": ("data_card", "fingerprint_notes", "model_card"),
    "qgcam_lib.page.table": ("show",),
    "qgcam_lib.page.text": ("Notes",),
    "qgcam_lib.report.beside": ("comparison_view", "paper_vs_ours", "verdict_counts"),
    "qgcam_lib.report.cautions": ("cautions", "source_name", "why_not_comparable"),
    "qgcam_lib.report.claims": ("check_claims", "claims_beside"),
    "qgcam_lib.report.figures": ("histogram_grid", "interval_figure", "training_curves"),
    "qgcam_lib.report.paper": ("printed_summary",),
    "qgcam_lib.report.published": ("cite", "published"),
    "qgcam_lib.report.sentences": ("differences",),
    "qgcam_lib.report.style": ("use_style",),
    "qgcam_lib.report.tables": ("printed_table", "score_table"),
    "qgcam_lib.runs": ("open_run",),
    "qgcam_lib.runs.show": ("first_screen",),
    "qgcam_lib.statistics": ("compare",),
}

__getattr__, __dir__ = lazy_face(__name__, ROOMS)
