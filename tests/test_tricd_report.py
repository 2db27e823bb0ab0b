"""The tables, sentences and figures of the TRICD notebooks, and the notebooks' form."""

import json
import math
import shutil

import nbformat
import numpy as np
import pandas as pd
import pytest

from qgcam_lib.data.tricd.pairs import load_tricd
from qgcam_lib.errors import FormatError, ParameterError
from qgcam_lib.miniworld import ensure_tricd
from qgcam_lib.papers.tricd.detection import find_detections, gather_detections
from qgcam_lib.papers.tricd.gallery import ALARM_ROLES, choose_alarms, choose_questions
from qgcam_lib.papers.tricd.tables import (
    CLAIMS,
    ROLES,
    SUBSET_NAMES,
    TRICD,
    VQA_CLAIMS,
    by_subset,
    count_claims,
    discrimination,
    printed_tables,
    question_agreement,
)
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.analysis import false_alarms
from qgcam_lib.phrase_detection.compare import paired_differences
from qgcam_lib.phrase_detection.prediction_files import (
    read_predictions,
    synthetic_predictions,
    synthetic_tricd,
    write_predictions,
)
from qgcam_lib.phrase_detection.score import match_predictions, summarize_matches
from qgcam_lib.report.beside import paper_vs_ours
from qgcam_lib.report.claims import assign_roles, check_claims, metric_tables, plan_sources
from qgcam_lib.report.published import published
from qgcam_lib.report.tables import printed_table, score_table
from qgcam_lib.runs.record import read_run, write_run
from qgcam_lib.runs.runner import run_notebook
from qgcam_lib.settings import ROOT

MARKED = "This is the miniworld"


@pytest.fixture(scope="module")
def made():
    return synthetic_tricd(24, seed=2)


@pytest.fixture(scope="module")
def matches(made):
    return {name: match_predictions(made, synthetic_predictions(made, seed=3, **how))
            for name, how in {"good": {"find": 0.95}, "same": {"find": 0.95}, "poor": {"find": 0.4}}.items()}


@pytest.fixture(scope="module")
def summary(matches):
    return pd.concat([summarize_matches(m, (1,), 60, n_subsets=60).assign(model=name) for name, m in matches.items()],
                     ignore_index=True)


@pytest.fixture(scope="module")
def printed():
    return printed_tables()


# --- tables ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("number", [3, 4, 5, 6, 8])
def test_the_papers_tables_are_shown_as_printed(number):
    table = published(f"tricd_table{number}")
    shown = printed_table(TRICD.tables[number])
    assert shown.frame.index.tolist() == table["model"].tolist()
    for subset in set(SUBSET_NAMES) & set(table):
        assert shown.frame[SUBSET_NAMES[subset]].astype(float).tolist() == table[subset].tolist()
        assert shown.marks[SUBSET_NAMES[subset]].tolist().count("best") >= 1
        best = shown.frame[SUBSET_NAMES[subset]][shown.marks[SUBSET_NAMES[subset]] == "best"].astype(float)
        assert (best == table[subset].max()).all()


def test_our_table_shows_what_the_summary_says_and_why_a_model_is_missing(summary):
    lost = pd.DataFrame({"model": ["x"], "why": ["its file is not there"]})
    shown = score_table(summary, by_subset("AP"), lost)
    value = summary.query("model == 'good' and metric == 'AP' and subset == 'all'").iloc[0]
    first, second = shown.frame.loc["good", "all"].split("\n")
    assert first == f"{100 * value['value']:.1f}" and second == f"{100 * value.ci_low:.1f}–{100 * value.ci_high:.1f}"
    assert shown.frame.loc["x", "note"] == "not run: its file is not there" and shown.frame.loc["x", "all"] == "–"
    assert "Winoground" not in shown.frame  # no such pair, no such column
    assert shown.marks.loc[["good", "same"], "all"].eq("best").all() and "not run" in shown.to_markdown()
    with pytest.raises(ValueError, match="AP"):
        score_table(summary, by_subset("mAP"))
    assert not score_table(summary, by_subset("AP"), unranked=["good"]).marks.loc["good"].any()


def test_verdicts_are_drawn_only_for_the_same_model_on_the_same_data(summary):
    table = published("tricd_table3")
    every = paper_vs_ours(summary, TRICD.tables[3], not_comparable="miniworld", same={"good": "fiber"})
    assert every["verdict"].str.startswith(("not run", "not comparable")).all()
    real = paper_vs_ours(summary, TRICD.tables[3], same={"good": "fiber"}).set_index(["model", "subset"])
    assert real.loc[("fiber", "all"), "verdict"] == "differs"
    assert real.loc[("poor", "all"), "verdict"] == "not comparable: not in the paper"
    assert math.isnan(real.loc[("poor", "all"), "paper"]) and real.loc[("mdetr", "all"), "paper"] == 10.7
    as_printed = pd.DataFrame({"model": "fiber", "metric": "AP", "subset": list(SUBSET_NAMES),
                               "value": [table.set_index("model").loc["fiber", s] / 100 for s in SUBSET_NAMES]})
    again = paper_vs_ours(as_printed, TRICD.tables[3])
    assert again.query("model == 'fiber'")["verdict"].eq("reproduced").all()


# --- how well it tells models apart ----------------------------------------------------------------------------------

def test_the_two_deviations_are_those_of_the_summary(summary):
    table = discrimination(summary).set_index(["model", "subset"])
    row = summary.query("model == 'poor' and metric == 'AP' and subset == 'all'").iloc[0]
    assert table.loc[("poor", "all"), "sd_90"] == pytest.approx(100 * row["sd_90"])
    assert table.loc[("poor", "all"), "ratio"] == pytest.approx(row["sd_90"] / row["bootstrap_sd"])


def test_equal_models_are_not_told_apart_and_different_ones_are(made, matches):
    apart = paired_differences(matches, n_bootstrap=200).set_index(["better", "worse"])
    assert apart.loc[("good", "same"), ["gap", "ci_low", "ci_high"]].eq(0).all()
    assert not apart.loc[("good", "same"), "by_bootstrap"] and not apart.loc[("good", "same"), "by_paper"]
    assert apart.loc[("good", "poor"), "by_bootstrap"] and apart.loc[("good", "poor"), "ci_low"] > 0
    value = evaluate(made, synthetic_predictions(made, seed=3, find=0.95))["value"][0]
    poor = evaluate(made, synthetic_predictions(made, seed=3, find=0.4))["value"][0]
    assert apart.loc[("good", "poor"), "gap"] == pytest.approx(100 * (value - poor))
    with pytest.raises(ValueError, match="same Tricd object"):
        paired_differences(matches | {"other": match_predictions(synthetic_tricd(3), {})})
    assert paired_differences({}).empty


# --- the sentences ---------------------------------------------------------------------------------------------------

def roles_of(tables):
    return assign_roles(ROLES, tables["AP"].index)


def test_the_paper_agrees_with_itself_but_for_one_sentence(printed):
    roles = {"without": "mdetr", "with_negatives": "glip-t", "detector": "owl-vit"}
    assert roles_of(printed) == roles | {name: name for name in ("glip-l", "fiber", "detic")}
    claims = check_claims(CLAIMS, printed, roles_of(printed)).set_index("claim")
    assert len(claims) == len(CLAIMS) and (claims["of"] > 0).all()
    holds = claims["holds"].astype(str) + " of " + claims["of"].astype(str)
    assert holds[claims["result"] != "holds"].to_dict() == {
        # DETIC and GLIP-L
        "any two models differ by more than 0.5 points of AP in each of its subsets too": "44 of 45"}
    answers = check_claims(VQA_CLAIMS, printed, assign_roles(ROLES, printed["macro_f1"].index))
    assert answers["result"].eq("holds").all() and answers["of"].tolist() == [3, 4, 4, 2]


def test_only_models_with_a_role_count(printed):
    """A control of ours below MDETR does not take its place, and models without a role decide nothing."""
    control = {metric: pd.concat([table, 0.5 * table.loc[["mdetr"]].rename(index={"mdetr": "mdetr-like-softmax"})])
               for metric, table in printed.items() if "mdetr" in table.index}
    claims, cast = count_claims(CLAIMS, control)
    assert claims["result"].iloc[0] == "holds" and "mdetr-like-softmax" not in cast.values()
    others = {"macro_f1": printed["macro_f1"].rename(index=lambda name: f"our {name}")}
    assert count_claims(VQA_CLAIMS, others)[0]["result"].str.startswith("not testable here").all()


def test_a_sentence_can_fail_and_can_have_nobody_to_ask(printed):
    cast = roles_of(printed)
    other = check_claims(CLAIMS, printed, cast | {"without": "fiber"}).set_index("claim")["result"]
    assert other.iloc[0] == "does not hold"
    nobody = check_claims(CLAIMS, printed, {})
    asked = np.array([not claim.needs for claim in CLAIMS])
    assert nobody["result"][~asked].str.startswith("not testable here: no model for").all()
    assert nobody["result"][asked].drop(index=8).eq("holds").all()
    alone = {metric: table.loc[["mdetr"]] for metric, table in printed.items() if "mdetr" in table.index}
    assert check_claims(CLAIMS, alone, cast)["result"].iloc[0] == "not testable here: fewer than two models"
    without = {metric: table.drop(columns="coco_obj") for metric, table in printed.items()}
    assert check_claims(CLAIMS, without, cast)["result"].iloc[0] == "not testable here: no values of coco_obj"


def test_metric_tables_hold_percent(summary):
    tables = metric_tables(summary, "subset")
    row = summary.query("model == 'good' and metric == 'AP' and subset == 'all'").iloc[0]
    assert tables["AP"].loc["good", "all"] == pytest.approx(100 * row["value"]) and "winoground" not in tables["AP"]


def test_question_agreement_counts_exact_matches():
    frame = pd.DataFrame({"caption": ["a cat", "a dog", "two men"], "subset": ["coco_obj", "coco_obj", "coco_rel"],
                          "question": ["is there a cat", "is there dog", "are there two men"]})
    assert question_agreement(frame).set_index("subset")["same"].to_dict() == {"all": 2, "coco_obj": 1, "coco_rel": 1}


# --- figures ---------------------------------------------------------------------------------------------------------


# --- the gallery and the runs ----------------------------------------------------------------------------------------

def test_the_gallery_is_chosen_by_its_rules(made, matches):
    alarms = false_alarms(matches["poor"])
    chosen = choose_alarms(alarms, tuple(ALARM_ROLES)).set_index("role")
    heard = alarms[np.isfinite(alarms["margin"])]
    assert chosen["group"].is_unique and chosen.loc["misled", "margin"] == heard["margin"].min()
    assert chosen["rule"].tolist() == [ALARM_ROLES[role] for role in chosen.index]
    assert choose_alarms(alarms[:0]).empty


def test_hard_questions_are_those_most_models_get_wrong():
    asked = pd.DataFrame({"image_id": [1, 2, 3, 4], "answer": [True, False, True, False], "group": list("aabb"),
                          "question": ["q"] * 4, "file_name": ["x.png"] * 4})
    said = {"a": {1: "yes", 2: "yes", 3: "no", 4: "no"}, "b": {1: "yes", 2: "yes", 3: "no", 4: "hm"}}
    hard = choose_questions(asked, said, 2)
    assert hard[["image_id", "n_wrong"]].to_numpy().tolist() == [[2, 2], [3, 2]]


def test_sources_that_cannot_run_say_why(tmp_path):
    (tmp_path / "mine.json").write_text("{}")
    plan = plan_sources([f"predictions:{tmp_path}/mine.json", f"predictions:{tmp_path}/gone.json", "mdetr-enb3"])
    assert plan["model"].tolist() == ["mine", "gone", "mdetr-enb3"]
    assert plan["why"].tolist() == ["", "no such file: gone.json", "it has no mini weights"]


# --- the notebooks ---------------------------------------------------------------------------------------------------


def table(run, name):
    return pd.read_parquet(run.folder / "tables" / f"{name}.parquet")


def texts(run):
    """All text a reader of the executed notebook sees: Markdown cells and text outputs."""
    cells = nbformat.read(run.folder / "run.ipynb", 4).cells
    shown = [cell.source for cell in cells if cell.cell_type == "markdown"]
    for cell in cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            shown += [str(data.get(kind, "")) for kind in ("text/markdown", "text/html", "text/plain")]
    return "\n".join(shown)


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    parameters = {"n_groups": 12, "n_orders": 2, "n_resamples": 20}
    return run_notebook(ROOT / "nbs" / "papers" / "tricd_audit.ipynb", parameters,
                        outputs=tmp_path_factory.mktemp("outputs"))


@pytest.mark.nightly
def test_the_audit_runs_and_leaves_its_tables(audit):
    assert audit.status == "ok"
    names = {path.stem for path in (audit.folder / "tables").glob("*.parquet")}
    assert names >= {"defects", "effects", "order_who_gains", "second_call", "silence", "ties", "cuts", "spread",
                     "printed_gaps", "questions", "questions_ours", "data_card"}
    assert {path.stem for path in (audit.folder / "figures").iterdir()} == {"first_screen", "order", "ties", "spread"}
    record = json.loads((audit.folder / "run.json").read_text())
    assert all(item["caption"] for item in record["outputs"] if item["kind"] in ("table", "figure"))


@pytest.mark.nightly
def test_the_audit_finds_what_must_be_found(audit):
    ranks = table(audit, "order_who_gains").set_index("model")
    assert ranks.loc["credulous", "difference"] < ranks.loc["cautious", "difference"] <= 0
    silence = table(audit, "silence").set_index("model")
    assert silence.loc["perfect", "accepted"] == "no" and silence.loc["perfect", "AP, ours"] == 100
    assert table(audit, "questions").set_index("part").loc["coco_obj"].str.startswith("ValueError").all()


@pytest.fixture(scope="module")
def small_world(tmp_path_factory):
    """A few groups of the miniworld's TRICD, predictions and answers for them."""
    folder = ensure_tricd(tmp_path_factory.mktemp("tricd"), n_test=8, n_val=2, progress=False)
    data = load_tricd(folder / "TRICD_grounding_test.json")
    for name, how in {"mine": {}, "other": {"find": 0.3}}.items():
        write_predictions(folder.parent / f"{name}.json", synthetic_predictions(data, 1, **how))
    said = {str(pair.id): ("yes" if pair.id % 3 else "hm") for pair in data.pairs}
    (folder.parent / "said.json").write_text(json.dumps(said))
    return folder


@pytest.fixture(scope="module")
def detection(small_world, tmp_path_factory):
    mine, other, lost = (f"predictions:{small_world.parent / name}.json" for name in ("mine", "other", "lost"))
    parameters = {"dataset": str(small_world), "models": [mine, other, lost, "mdetr-enb5"], "n_bootstrap": 20,
                  "n_subsets": 10}
    return run_notebook(ROOT / "nbs" / "papers" / "tricd_detection.ipynb", parameters,
                        outputs=tmp_path_factory.mktemp("outputs"))


@pytest.mark.nightly
def test_detection_runs_and_says_what_did_not(detection):
    assert detection.status == "ok" and MARKED in texts(detection)
    names = {path.stem for path in (detection.folder / "tables").glob("*.parquet")}
    assert names >= {"data_card", "statistics", "models", "summary", "ap", "recall", "group_recall", "best_boxes",
                     "example_boxes", "paper_vs_ours", "cases", "failed"}
    figures = {path.stem for path in (detection.folder / "figures").iterdir()}
    assert figures == {"first_screen", "boxes_where", "boxes_per_phrase", "example", "scores", "gallery"}
    shown = table(detection, "ap").set_index("model")
    assert shown.loc["lost", "note"] == "not run: no such file: lost.json"
    assert shown.loc["mdetr-enb5", "note"] == "not run: it has no mini weights"
    record = json.loads((detection.folder / "run.json").read_text())
    captions = [item["caption"] for item in record["outputs"] if item["kind"] == "figure"]
    assert captions and all("miniworld" in caption for caption in captions)


@pytest.mark.nightly
def test_the_numbers_of_the_page_are_the_evaluators(detection, small_world):
    data = load_tricd(small_world / "TRICD_grounding_test.json")
    summary = table(detection, "summary").set_index(["model", "metric", "subset"])["value"]
    predictions = read_predictions(small_world.parent / "mine.json", data)
    for row in evaluate(data, predictions, recall_at=(1,)).itertuples():
        found = summary["mine", row.metric, row.subset]
        assert found == pytest.approx(row.value, nan_ok=True)
    assert set(table(detection, "paper_vs_ours")["verdict"].str.split(":").str[0]) == {"not comparable", "not run"}


@pytest.fixture(scope="module")
def analysis(small_world, detection):
    outputs = detection.folder.parent.parent
    parameters = {"dataset": str(small_world), "n_bootstrap": 20, "n_subsets": 10}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QGCAM_OUTPUTS", str(outputs))
        return run_notebook(ROOT / "nbs" / "papers" / "tricd_analysis.ipynb", parameters, outputs=outputs)


@pytest.mark.nightly
def test_analysis_reads_what_detection_kept(analysis, detection):
    assert analysis.status == "ok" and MARKED in texts(analysis)
    assert table(analysis, "runs")["run_id"].tolist() == [detection.run_id]
    names = {path.stem for path in (analysis.folder / "tables").glob("*.parquet")}
    assert names >= {"price", "false_wins", "by_contradiction", "false_alarm_rates", "silence", "calibration",
                     "presence", "discrimination", "paired_differences", "printed_gaps", "claims", "roles"}
    figures = {path.stem for path in (analysis.folder / "figures").iterdir()}
    assert figures == {"first_screen", "precision_recall", "calibration", "spread"}
    price = table(analysis, "price").set_index(["model", "metric", "subset"])["value"]
    summary = table(detection, "summary").set_index(["model", "metric", "subset"])["value"]
    for model in ("mine", "other", "whole image"):
        assert price[model, "AP", "all"] == pytest.approx(summary[model, "AP", "all"])
    claims = table(analysis, "claims")
    assert len(claims) == len(CLAIMS) and claims["result"].str.startswith("not testable here").all()
    silence = table(analysis, "silence").set_index("model")
    assert silence.loc["mdetr-like-softmax", "note"].startswith("not run")
    assert silence.loc["mine", "note"] == "" and np.isfinite(silence.loc["mine", "price"])


@pytest.mark.nightly
def test_an_analysis_without_a_detection_says_what_to_run(small_world, tmp_path):
    with pytest.raises(ParameterError, match="Run tricd_detection first.*tricd_detection.ipynb -p data"):
        find_detections(str(small_world), outputs=tmp_path)
    with pytest.raises(ParameterError, match="found no run abc"):
        find_detections(str(small_world), runs=["abc"], outputs=tmp_path)


@pytest.mark.nightly
def test_an_interactive_detection_counts_when_it_is_finished(small_world, detection, tmp_path):
    record = read_run(detection.folder) | {"status": "interactive", "finished": "2030"}
    folder = tmp_path / "interactive" / "tricd_detection" / detection.run_id
    shutil.copytree(detection.folder, folder)
    write_run(folder, record)
    found = gather_detections(str(small_world), outputs=tmp_path)
    assert sorted(found.found) == ["mine", "other"] and found.runs["run_id"].tolist() == [detection.run_id]
    write_run(folder, record | {"finished": None})
    with pytest.raises(ParameterError, match="Run tricd_detection first"):
        gather_detections(str(small_world), outputs=tmp_path)


@pytest.mark.nightly
def test_changed_predictions_or_annotations_are_not_read(small_world, detection, tmp_path):
    outputs, world = tmp_path / "outputs", tmp_path / "world"
    folder = outputs / "tricd_detection" / detection.run_id
    shutil.copytree(detection.folder, folder)
    (folder / "predictions" / "mine.parquet").write_bytes((folder / "predictions" / "other.parquet").read_bytes())
    with pytest.raises(FormatError, match="mine"):
        gather_detections(str(small_world), outputs=outputs)
    shutil.copytree(small_world, world)
    record = read_run(folder)
    write_run(folder, record | {"parameters": record["parameters"] | {"dataset": str(world)}})
    file = world / "TRICD_grounding_test.json"
    file.write_text(file.read_text() + "\n")
    with pytest.raises(ParameterError, match="has changed since"):
        gather_detections(str(world), outputs=outputs)


@pytest.mark.nightly
def test_questions_run_and_count_what_cannot_be_read(small_world, tmp_path_factory):
    parameters = {"dataset": str(small_world), "models": [f"predictions:{small_world.parent / 'said.json'}"],
                  "n_bootstrap": 20}
    run = run_notebook(ROOT / "nbs" / "papers" / "tricd_vqa.ipynb", parameters,
                       outputs=tmp_path_factory.mktemp("outputs"))
    assert run.status == "ok" and MARKED in texts(run)
    counts = table(run, "counts").query("subset == 'all'").set_index("model")
    ids = [pair.id for pair in load_tricd(small_world / "TRICD_grounding_test.json").pairs]
    assert counts.loc["said", "n_unparsable"] == sum(id % 3 == 0 for id in ids) and counts.loc["said", "n"] == len(ids)
    assert table(run, "question_agreement")["share"].eq(1).all()  # the rule wrote them
    accuracy = table(run, "summary").query("metric == 'accuracy' and subset == 'all'").set_index("model")["value"]
    assert accuracy["always yes"] == accuracy["always no"] == 0.5
    assert {path.stem for path in (run.folder / "figures").iterdir()} == {"scores", "questions"}
