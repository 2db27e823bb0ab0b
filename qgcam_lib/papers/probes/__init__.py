"""All that the notebooks of the conceptual probes call, each name loaded when it is first used."""

from ... import lazy_face

# The names by the module that has them: of this folder, or of the library.
ROOMS = {
    "audit": (
        "audit_result", "effects_figure", "effects_in_short", "evaluate_here", "evaluate_published",
        "left_behind_data", "moved_claims", "probe_c_column", "probe_c_values"),
    "claims": (
        "COMPOSITION_CLAIMS", "CONTEXT_CLAIMS", "PATCHED_CLAIMS", "RELATION_CLAIMS", "ROLES", "claim_tables",
        "context_tables", "filler_models", "printed_changes"),
    "congruence": (
        "CONTRASTS", "choose_turning", "congruence_contrast", "congruence_effect", "congruence_figure",
        "congruence_rows", "contrast_figure", "open_congruence"),
    "data": (
        "category_counts", "class_counts", "groups_view", "joined", "open_context", "open_pairs",
        "open_relation", "open_swaps"),
    "description": (
        "ALPHAS", "CONTEXTS", "DRAWN_KINDS", "KINDS", "PAIRS", "PROBES", "RELCOMP", "availability",
        "by_comparison", "by_kind", "by_step", "plan_models"),
    "features": ("attention_of", "feature_spaces"),
    "figures": (
        "attention_figure", "category_figure", "choice_figure", "feature_figure", "left_out", "loss_title",
        "pair_figure", "robustness_figure", "score_matrix", "step_figure"),
    "finetune": (
        "SWEPT", "alpha_reasons", "as_table11", "as_table3", "before_and_after", "by_seed", "finetune_result",
        "flip_title", "learning_changes", "learning_sentence", "losses_figure", "patched_alphas", "patched_changes",
        "reading_table", "relcomp_view", "same_texts", "shares", "sweep_differences", "sweep_summary",
        "text_alone_scores", "ties_apart", "ties_sentence", "tradeoff_figure",
        "tradeoff_title"),
    "gallery": (
        "choose_groups", "choose_turns", "context_twins", "group_title", "pair_twins", "relation_twins", "turn_title"),
    "maps": ("map_changes", "prompt_maps"),
    "results": (
        "against_text_figure", "best_category_title", "choices_title", "composition_result",
        "context_result", "group_score_figure", "pair_title", "pairs_title", "relation_result"),
    "runs": (
        "ask_all", "counts", "failures", "noted", "score_all", "text_alone", "training_table", "unknown_words"),
    "study": (
        "ask_kept", "check_study", "kept_model", "mean_losses", "open_sets", "read_study", "stored_and_now",
        "study_facts", "train_anew", "trainings_table"),
    "tables": (
        "against_best", "against_text", "backbones", "baselines", "beside_lines", "beside_paper",
        "compare_twins", "concat_models", "confidence_ratios", "of_kind", "pooled", "ratio_table",
        "records_view", "summarize_all", "ties_table", "undefined_table"),
    "qgcam_lib.miniworld.scenes.biases": ("planted_biases",),
    "qgcam_lib.models": ("load_model",),
    "qgcam_lib.page.cards": ("model_card",),
    "qgcam_lib.page.text": ("Notes",),
    "qgcam_lib.probes.audit": (
        "defect_lines", "defect_table", "effect_table", "exchanged", "lenient", "probe_c_candidates",
        "ratios_and_means", "softmax_twice", "stale", "tie_table", "transposed", "two_aps"),
    "qgcam_lib.report.beside": ("paper_vs_ours",),
    "qgcam_lib.report.cautions": ("why_not_comparable",),
    "qgcam_lib.report.claims": ("assign_roles", "check_claims", "claims_beside"),
    "qgcam_lib.report.published": ("cite", "published"),
    "qgcam_lib.report.sentences": ("differences", "models_beside"),
    "qgcam_lib.report.style": ("open_picture", "use_style"),
    "qgcam_lib.report.tables": ("in_points", "score_table"),
    "qgcam_lib.runs": ("open_run",),
    "qgcam_lib.runs.show": ("first_screen",),
}

__getattr__, __dir__ = lazy_face(__name__, ROOMS)
