"""All that the notebooks of TRICD call, each name loaded when it is first used."""

from ... import lazy_face

# The names by the module that has them: of this folder, or of the library.
ROOMS = {
    "audit": (
        "audited_predictions", "behaviour_table", "crowded_cuts", "defect_table", "effects_in_points",
        "flat_ties_text", "order_effects", "orders", "other_answers", "places", "places_text", "question_tables", "second_calls",
        "silence_checks", "spreads", "tie_steps"),
    "claims": ("CLAIMS", "VQA_CLAIMS", "claim_tables", "count_claims", "printed_tables", "roles_table"),
    "detection": (
        "all_alarms", "beside_view", "best_boxes", "failures", "false_wins", "found_counts", "hit_curves", "open_split",
        "verdicts_view"),
    "figures": ("box_map", "boxes_per_phrase", "calibration_figure", "spread_figure", "ties_figure"),
    "gallery": (
        "alarm_gallery", "choose_alarms", "choose_common", "choose_questions", "models_gallery", "question_panel"),
    "kept": ("gather_detections", "keep_predictions"),
    "questions": (
        "answer_cases", "answer_counts", "answer_rows", "parsing_counts", "question_card", "reworded",
        "threshold_rows"),
    "results": (
        "analysis_result", "audit_result", "detection_result", "silence_table", "silence_text", "vqa_result",
        "yes_rates"),
    "tables": (
        "METRIC_NAMES", "SUBSET_NAMES", "TRICD", "by_metric", "by_subset", "discrimination", "printed_gaps",
        "question_agreement"),
    "qgcam_lib.page.cards": ("model_card",),
    "qgcam_lib.page.text": ("Notes",),
    "qgcam_lib.phrase_detection.compare": (
        "answer_all", "answer_baselines", "detect_all", "match_all", "paired_differences", "per_model",
        "score_answers", "val_thresholds"),
    "qgcam_lib.phrase_detection.question_run": ("answers_of",),
    "qgcam_lib.report.cautions": ("plan_sources",),
    "qgcam_lib.report.claims": ("claims_beside",),
    "qgcam_lib.report.figures": ("beside_figure", "curves_figure", "interval_figure"),
    "qgcam_lib.report.published": ("cite",),
    "qgcam_lib.report.sentences": ("differences", "models_beside"),
    "qgcam_lib.report.style": ("use_style",),
    "qgcam_lib.report.tables": ("printed_table", "score_table"),
    "qgcam_lib.runs": ("open_run",),
    "qgcam_lib.runs.show": ("first_screen",),
}

__getattr__, __dir__ = lazy_face(__name__, ROOMS)
