"""`compare_runs` and `qgcam compare`: pairs examples of every kind of run, clusters, counts, refuses unlike runs."""

import json

import numpy as np
import pandas as pd
import pytest

from qgcam_lib.cli.compare import compare_runs, example_rows
from qgcam_lib.data.tricd.pairs import load_tricd, tricd_content
from qgcam_lib.errors import ParameterError, RunError
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.compare import compare_matches
from qgcam_lib.phrase_detection.prediction_files import synthetic_predictions, synthetic_tricd, write_predictions
from qgcam_lib.phrase_detection.run import take_groups
from qgcam_lib.phrase_detection.score import match_predictions
from qgcam_lib.runs.record import register_output, update_run, write_run
from qgcam_lib.statistics import compare
from qgcam_lib.storage.files import file_sha256
from qgcam_lib.storage.rows import RecordStore

RNG = np.random.default_rng(0)
DATA = [{"kind": "data set", "path": "toy", "sha256": "aa"}, {"kind": "published", "path": "p", "sha256": "bb"}]


def new_run(place, run_id, notebook, tables=(), stores=(), data=DATA, results=None, **parameters):
    """A finished run with these tables and stores, each entered in its record."""
    folder = place / notebook / run_id
    write_run(folder, {"run_id": run_id, "notebook": f"nbs/papers/{notebook}.ipynb", "status": "ok", "outputs": [],
                       "started": run_id, "results": results or {}, "data": data, "parameters": parameters})
    for name, frame in dict(tables).items():
        (folder / "tables").mkdir(exist_ok=True)
        frame.to_parquet(folder / "tables" / f"{name}.parquet")
        register_output(folder, folder / "tables" / f"{name}.parquet", "table")
    for name, frame in dict(stores).items():
        register_output(folder, RecordStore(folder / "records" / name).append(frame), "records")
    return folder


def map_rows(shift=0.0, n=60):
    rng = np.random.default_rng(1)
    return pd.DataFrame({"id": [f"p{k}" for k in range(n)], "group": [f"im{k // 5}" for k in range(n)],
                         "io_ratio": rng.random(n) / 2 + shift * rng.random(n), "pg_hit": rng.random(n) > 0.5})


@pytest.fixture
def maps(tmp_path):
    own = {"protocol": "paper", "split": "test", "limit": 60}
    a = new_run(tmp_path, "aaaa", "q_groundcam", stores={"model": map_rows(0.2), "centre-guess": map_rows()},
                model="blip-base", **own)
    named = [{**DATA[0], "path": "same, by another name"}, {**DATA[1], "sha256": "cc"}]
    b = new_run(tmp_path, "bbbb", "q_groundcam", stores={"model": map_rows().iloc[7:], "centre-guess": map_rows()},
                model="albef-amc", data=named, **own)
    return a, b


def test_map_scores_are_those_of_statistics_compare(maps):
    found = compare_runs(*maps, seed=3)
    expected = compare(map_rows(0.2).iloc[7:], map_rows().iloc[7:], ["io_ratio", "pg_hit"], seed=3)
    own = found[found["model_b"] == "albef-amc"]
    assert set(own["model_a"]) == {"blip-base"}
    for name in ("metric", "a", "b", "difference", "ci_low", "ci_high", "p_value", "n", "n_groups"):
        pd.testing.assert_series_equal(own[name].reset_index(drop=True), expected[name], check_names=False)
    pairs = {pair["model_a"]: pair for pair in found.attrs["pairs"]}
    assert set(pairs) == {"blip-base", "centre-guess"}  # a guess of one name meets itself
    assert [pairs["blip-base"][name] for name in ("rows_a", "rows_b", "paired", "fall_away")] == [60, 53, 53, 7]


def test_other_protocols_splits_and_data_are_refused_unless_allowed(maps, tmp_path):
    a, _ = maps
    for n, (change, words) in enumerate([({"protocol": "pixel"}, "protocol: 'paper' and 'pixel'"),
                                         ({"data": [{**DATA[0], "sha256": "zz"}]}, "data, by their checksums: toy")]):
        options = {"protocol": "paper", "split": "test", "limit": 60, "model": "x"} | change
        other = new_run(tmp_path, f"c{n}", "q_groundcam", stores={"model": map_rows()}, **options)
        with pytest.raises(ParameterError, match=words):
            compare_runs(a, other)
        found = compare_runs(a, other, allow=True, n_bootstrap=20)
        assert any(words in line for line in found.attrs["differences"]) and len(found)


def test_probes_are_paired_in_each_comparison_and_clustered_by_both_pictures(tmp_path):
    n = 40
    frame = pd.DataFrame({"id": [f"g{k}" for k in range(n)], "kind": ["object", "composition"] * (n // 2),
                          "image_1": [f"i{k // 3}" for k in range(n)], "image_2": [f"j{k // 2}" for k in range(n)]})
    frame["group"] = frame["image_1"]
    scored = {name: frame.assign(model=name, group_score=np.random.default_rng(k).random(n) > 0.5,
                                 text_score=np.random.default_rng(k + 9).random(n) > 0.4)
              for k, name in enumerate(("one", "two"))}
    a = new_run(tmp_path, "a", "probe_composition", {"records": pd.concat(scored.values())}, models=["one", "two"])
    b = new_run(tmp_path, "b", "probe_composition", {"records": scored["two"]}, models=["two"])
    assert {(p["model_a"], p["model_b"]) for p in compare_runs(a, b, n_bootstrap=5).attrs["pairs"]} == {("two", "two")}
    found = compare_runs(a, b, model_a="one", model_b="two", n_bootstrap=200)
    for kind, rows in found.groupby("subset"):
        cells = [scored[name][frame["kind"] == kind] for name in ("one", "two")]
        expected = compare(*cells, ["text_score", "group_score"], group=("image_1", "image_2"), n_bootstrap=200)
        for row in expected.itertuples():
            mine = rows[rows["metric"] == row.metric].iloc[0]
            assert (mine["difference"], mine["ci_low"], mine["p_value"]) == (row.difference, row.ci_low, row.p_value)


def test_expressions_are_paired_with_the_same_words_and_unlike_candidates_are_refused(tmp_path):
    base = pd.DataFrame({"id": list("012012"), "words": ["original"] * 3 + ["shuffled"] * 3, "split": "adv",
                         "group": list("xxyxxy"), "n_candidates": 3, "random": 1 / 3, "correct": [1, 0, 1, 0, 0, 1]})
    right = base.assign(correct=1.0)
    runs = [new_run(tmp_path, name, "ref_adv_evaluate", {f"choices_{name}": frame.assign(model=name)}, models=[name])
            for name, frame in (("m", base), ("k", right), ("w", right.assign(n_candidates=4)))]
    found = compare_runs(runs[0], runs[1], model_a="m", model_b="k")
    assert found.set_index("subset")["difference"].round(9).to_dict() == {
        "adv, original": round(-1 / 3, 9), "adv, shuffled": round(-2 / 3, 9)}
    with pytest.raises(ValueError, match="same candidates"):
        compare_runs(runs[0], runs[2], model_a="m", model_b="w")


@pytest.fixture(scope="module")
def tricd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tricd")
    data = synthetic_tricd(24, seed=1)
    (folder / "TRICD_grounding_test.json").write_text(json.dumps(tricd_content(data)))
    return folder


def detection_run(place, run_id, tricd, limit, seed):
    file = tricd / "TRICD_grounding_test.json"
    data = load_tricd(file)
    folder = new_run(place, run_id, "tricd_detection", data=DATA, limit=limit, seed=0, split="test", models=["d"],
                     **{"max_boxes": 100}, results={"predictions": {"d": "predictions/d.parquet"},
                                                    "annotations_sha256": file_sha256(file)})
    update_run(folder, parameters={"dataset": str(tricd), "limit": limit, "seed": 0, "split": "test", "models": ["d"]})
    part = take_groups(data, limit, 0)
    write_predictions(folder / "predictions" / "d.parquet", synthetic_predictions(part, seed=seed))
    register_output(folder, folder / "predictions" / "d.parquet", "predictions")
    return folder, part


def test_detections_are_scored_again_on_the_groups_both_were_asked_about(tricd, tmp_path):
    (a, _), (b, part) = detection_run(tmp_path, "a", tricd, 0, 5), detection_run(tmp_path, "b", tricd, 10, 6)
    found = compare_runs(a, b, n_bootstrap=50)
    pair, = found.attrs["pairs"]
    assert (pair["rows_a"], pair["rows_b"], pair["paired"]) == (96, 40, 40)
    data = load_tricd(tricd / "TRICD_grounding_test.json")
    rows = [example_rows(one)["detections"]["d"].predictions for one in (a, b)]
    scores = [evaluate(part, {id: one[id] for id in part.pair_ids.tolist() if id in one}) for one in rows]
    for row in found.itertuples():
        ours = [s[(s["subset"] == row.subset) & (s["metric"] == row.metric)]["value"].iloc[0] for s in scores]
        np.testing.assert_allclose([row.a, row.b, row.difference], [*ours, ours[0] - ours[1]], atol=1e-12)
    names = {"AP", "recall@1", "recall@5", "group_recall@1", "group_recall@5"}
    assert len(data) == 96 and set(found["metric"]) == names


def test_an_ap_difference_turns_with_its_models_and_is_nothing_for_one_model():
    data = synthetic_tricd(6, seed=3)
    a, b = (match_predictions(data, synthetic_predictions(data, seed=k)) for k in (1, 2))
    found = compare_matches(a, b, n_bootstrap=400, seed=0).iloc[0]
    assert found["ci_low"] <= found["difference"] <= found["ci_high"] and 2 / 400 <= found["p_value"] <= 1
    same = compare_matches(a, a, n_bootstrap=50)
    assert (same["difference"] == 0).all() and (same["p_value"].dropna() == 1).all()
    turned = compare_matches(b, a, n_bootstrap=400, seed=0).iloc[0]
    np.testing.assert_allclose([turned["ci_low"], turned["ci_high"]], [-found["ci_high"], -found["ci_low"]], atol=1e-12)
    with pytest.raises(ValueError, match="the same Tricd object"):
        compare_matches(a, match_predictions(synthetic_tricd(6, seed=3), {}))


def test_a_changed_file_is_refused(maps):
    part = next((maps[0] / "records" / "model").glob("*.parquet"))
    part.write_bytes(part.read_bytes() + b" ")
    with pytest.raises(RunError, match="has changed"):
        compare_runs(*maps)
