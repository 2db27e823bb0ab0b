"""Rows that no mean should be made of are refused, by `summarize`, `compare` and the tables of the tasks."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.errors import ParameterError, SuspiciousInput
from qgcam_lib.finetune.relcomp.scores import RELCOMP_SCORES
from qgcam_lib.phrase_detection.score import DETECTION_SCORES
from qgcam_lib.probes.score import PROBE_SCORES
from qgcam_lib.probes.summary import compare_probe, summarize_probe
from qgcam_lib.referring.score import CHOICE_SCORES
from qgcam_lib.referring.summary import compare_choices, summarize_choices
from qgcam_lib.statistics import METRICS, compare, summarize
from qgcam_lib.statistics.row_checks import range_of, without_rules


def rows(n=12, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"id": [f"e{k}" for k in range(n)], "group": [f"g{k // 3}" for k in range(n)],
                         "model": "blip", "protocol": "paper", "image": [f"{k // 3}.png" for k in range(n)],
                         "io_ratio": rng.random(n), "correct": rng.random(n) < 0.5})


def options(**attrs):
    frame = rows().drop(columns="protocol")
    frame.attrs = attrs
    return frame


DOUBLED = pd.concat([rows(), rows().iloc[:1]], ignore_index=True)
MODELS = pd.concat([rows(), rows(seed=1).assign(model="clip")], ignore_index=True)
PROTOCOLS = pd.concat([rows(), rows().assign(id=lambda f: "x" + f["id"], protocol="pixel")], ignore_index=True)
REFUSED = {
    "a row twice": (DOUBLED, (), "frame"), "two models": (MODELS, (), "by='model'"),
    "twice in a cell": (DOUBLED, "model", "frame"), "two protocols": (PROTOCOLS, (), "protocol"),
    "two data sets": (rows().assign(fingerprint=[*"aaaaaabbbbbb"]), (), "fingerprint"),
}
OUTSIDE = {"above": rows().assign(io_ratio=254.994), "below": rows().assign(io_ratio=-0.1),
           "percent": rows().assign(io_ratio=46.2), "recall": rows().assign(**{"recall@5": 3.0})}


@pytest.mark.parametrize("case", REFUSED)
def test_rows_that_no_mean_should_be_made_of_are_refused(case):
    frame, by, said = REFUSED[case]
    with pytest.raises(ParameterError, match=said):
        summarize(frame, "io_ratio", by=by, n_bootstrap=0)


@pytest.mark.parametrize("case", OUTSIDE)
def test_a_score_outside_its_range_is_one_warning(case):
    frame, name = OUTSIDE[case], "recall@5" if case == "recall" else "io_ratio"
    for call in (lambda: summarize(frame, name, n_bootstrap=0), lambda: compare(frame, frame, name, n_bootstrap=0)):
        with pytest.warns(SuspiciousInput, match=name) as seen:
            call()
        assert len(seen) == 1 and seen[0].filename == __file__


@pytest.mark.parametrize("a, b, said", [
    (options(protocol={"name": "paper", "size": 1}), options(protocol={"name": "paper", "size": 2}), "protocol"),
    (options(tau=0.7), options(tau=0.5), "tau"),
    (options(options={"average": "logits"}), options(options={"average": "probabilities"}), "average"),
    (options(settings={"ties": "first"}), options(settings={"ties": "expected"}), "ties"),
    (rows(), rows().assign(protocol="pixel"), "protocol"), (rows(), options(protocol={"name": "pixel"}), "protocol"),
    (options(dataset={"fingerprint": "a" * 64}), options(dataset={"fingerprint": "b" * 64}), "data"),
    (rows(), rows().assign(image=[f"{k // 3}.png" for k in range(11)] + ["9.png"]), "image"),
    (rows().assign(n_boxes=1), rows().assign(n_boxes=2), "n_boxes"),
])
def test_compare_refuses_runs_that_differ_in_more_than_the_model(a, b, said):
    for one, other in ((a, b), (b, a)):
        with pytest.raises(ParameterError, match=f"^{said}"):
            compare(one, other, "io_ratio", n_bootstrap=0)
    assert len(compare(without_rules(a), without_rules(b), "io_ratio", n_bootstrap=0)) == 1
    assert len(compare(rows(), options(protocol={"name": "paper", "size": 1}), "io_ratio", n_bootstrap=0)) == 1


def test_a_text_in_a_column_of_scores_is_named():
    frame = rows().astype({"io_ratio": object})
    frame.loc[3, "io_ratio"] = "0.3000000000000p004"
    for call in (lambda: summarize(frame, "io_ratio"), lambda: compare(rows(), frame, "io_ratio")):
        with pytest.raises(ParameterError, match="io_ratio"):
            call()


def test_what_one_id_is_asked_about_makes_rows_of_their_own():
    comparisons = pd.concat([rows().assign(comparison=name) for name in ("subject", "object")], ignore_index=True)
    assert summarize(comparisons, "correct", n_bootstrap=0)["n"][0] == 24
    assert len(summarize_probe(comparisons, n_bootstrap=0)) == 2
    with pytest.raises(ParameterError, match="frame"):
        summarize_probe(pd.concat([comparisons, comparisons]), n_bootstrap=0)


def test_tables_of_tasks_refuse_the_same():
    probe = rows().assign(comparison="subject")
    with pytest.raises(ParameterError, match="image"):
        compare_probe(probe, probe.assign(image=[*probe["image"][:11], "x"]), n_bootstrap=0)
    choices = rows().assign(split="easy", random=0.5, n_candidates=4, ties=0, iou=0.5, text="a cup")
    with pytest.raises(ParameterError, match="frame"):
        summarize_choices(pd.concat([choices, choices]), n_bootstrap=0)
    strict, loose = choices.copy(), choices.assign(text="cup a")
    strict.attrs, loose.attrs = {"options": {"threshold": 0.7}}, {"options": {"threshold": 0.5}}
    with pytest.raises(ParameterError, match="threshold"):
        compare_choices(strict, loose, n_bootstrap=0)
    assert compare_choices(choices, loose, n_bootstrap=0)["difference"][0] == 0


@given(st.integers(0, 999), st.sampled_from(sorted(METRICS)))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_honest_rows_are_never_refused(seed, name):
    rng = np.random.default_rng(seed)
    low, high = METRICS[name].range
    values = rng.choice([low, min(high, 1e9), rng.uniform(low, min(high, 1e9)), np.nan], 12)
    frame = rows(seed=seed).assign(**{name: values})
    frame.attrs = {"protocol": {"name": "paper"}, "settings": {"ties": "first"}}
    summarize(frame, name, by=["model", "protocol"], n_bootstrap=0)
    assert compare(frame, frame.sample(frac=1, random_state=seed), name, n_bootstrap=0)["n_undefined"][0] == sum(
        np.isnan(values))


def test_ranges_are_those_of_the_contracts():
    above = {**PROBE_SCORES, **CHOICE_SCORES, **RELCOMP_SCORES,
             **{name.partition("@")[0]: one for name, one in DETECTION_SCORES.items() if not name.startswith("AP")}}
    wide = {"n_ties": (0, np.inf)}  # four comparisons of a pair; Probe-B counts classes in the same column
    assert not [name for name in METRICS if range_of(name, {})]
    assert {name: wide.get(name, tuple(map(float, one.range))) for name, one in above.items()} == {
        name: range_of(name, {}) for name in above}
