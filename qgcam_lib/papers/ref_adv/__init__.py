"""All that the notebooks of Ref-Adv call, each name loaded when it is first used."""

from ... import lazy_face

# The names by the module that has them: of this folder, or of the library.
ROOMS = {
    "audit": (
        "HUMANS", "above_random", "audit_result", "bags_by_rule", "candidate_sets", "candidate_table",
        "cut_falls", "data_differences", "effects", "label_table", "last_word_table", "last_words", "length_figure",
        "originals", "pairs_apart", "random_falls", "random_figure", "relation_figure", "released_candidates", "rules",
        "rules_beside", "share_table", "stage_rules", "table7", "table8"),
    "claims": ("CLAIMS", "DATA_CLAIMS", "MODEL_CLAIMS", "ROLES", "TRAINING_CLAIMS", "claim_tables", "printed_tables"),
    "data": ("open_ref_adv",),
    "description": ("REF_ADV", "SPLITS", "by_split", "by_words"),
    "gallery": ("choose_pairs", "pair_figure", "parallel"),
    "listeners": ("against_listeners", "ask_listeners", "both_right", "meanings", "what_decides"),
    "order": (
        "clear_effects", "order_accuracy", "order_effects", "order_figure", "order_kinds", "order_result", "order_seeds",
        "order_title", "read_order_study", "run_costs", "study_costs"),
    "runs": (
        "ask_rankers", "beside_paper", "drawn", "failures", "largest_box", "plan_models",
        "remedy_gains", "split_falls", "summarize_rankers", "warned", "word_costs", "words_table"),
    "training": (
        "TABLE10", "TABLE9", "answers_summary", "arm_label", "arm_summary", "arms_table", "as_table10", "beside",
        "chosen_arms", "gains", "gains_figure", "not_chosen", "picked", "read_study", "remedies_figure", "study_claims",
        "study_curves", "training_result", "zoo_beside", "zoo_cards"),
    "qgcam_lib.finetune.referring.study": ("first_rows", "load_study", "run_arm"),
    "qgcam_lib.page.cards": ("model_card",),
    "qgcam_lib.page.text": ("Notes",),
    "qgcam_lib.referring.audit": ("threshold_effect", "truncation"),
    "qgcam_lib.report.beside": ("verdict_lines",),
    "qgcam_lib.report.cautions": ("cautions", "why_not_comparable"),
    "qgcam_lib.report.claims": ("assign_roles", "check_claims", "claims_beside"),
    "qgcam_lib.report.figures": ("interval_figure",),
    "qgcam_lib.report.published": ("cite",),
    "qgcam_lib.report.sentences": ("differences", "models_beside"),
    "qgcam_lib.report.style": ("use_style",),
    "qgcam_lib.report.tables": ("in_points", "printed_table", "score_table"),
    "qgcam_lib.runs": ("open_run",),
    "qgcam_lib.runs.show": ("first_screen",),
    "qgcam_lib.settings": ("settings",),
}

__getattr__, __dir__ = lazy_face(__name__, ROOMS)
