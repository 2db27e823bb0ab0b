"""Rows that no mean should be made of are refused, by `summarize`, `compare` and the tables of the tasks."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.errors import ParameterError
from qgcam_lib.finetune.relcomp.scores import RELCOMP_SCORES
from qgcam_lib.phrase_detection.score import DETECTION_SCORES
from qgcam_lib.probes.score import PROBE_SCORES
from qgcam_lib.probes.summary import compare_probe, summarize_probe
from qgcam_lib.referring.score import CHOICE_SCORES
from qgcam_lib.referring.summary import compare_choices, summarize_choices
from qgcam_lib.row_checks import ALLOW, RANGES
from qgcam_lib.statistics import METRICS, compare, summarize


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
CASES = {
    "a row twice": (DOUBLED, {}, "doubled", "'e0' again in row 12 (1 of 13 rows are repeated)"),
    "two models": (MODELS, {}, "doubled", "pass by='model'"),
    "twice in a cell": (DOUBLED, {"by": "model"}, "doubled", "in a cell of ['model']"),
    "two protocols": (PROTOCOLS, {}, "protocol", "got 'paper', 'pixel' together"),
    "above its range": (rows().assign(io_ratio=254.994), {}, "range", "0 to 1, got 254.994 in row 0 (12 of 12"),
    "below its range": (rows().assign(io_ratio=-0.1), {}, "range", "got -0.1"),
    "in percent": (rows().assign(correct=46.2), {"metrics": "correct"}, "range", "Is it in percent? Divide by 100"),
    "a recall": (rows().assign(**{"recall@5": 3.0}), {"metrics": "recall@5"}, "range", "0 to 1, got 3"),
    "two data sets": (rows().assign(fingerprint=[*"aaaaaabbbbbb"]), {}, "data", "'a', 'b' together"),
}


@pytest.mark.parametrize("case", CASES)
def test_summarize_refuses_and_can_be_told_to_insist(case):
    frame, given, word, said = CASES[case]
    with pytest.raises(ParameterError) as error:
        summarize(frame, n_bootstrap=0, **given)
    assert said in str(error.value) and f"allow={word!r}" in str(error.value)
    for other in set(ALLOW) - {word}:
        with pytest.raises(ParameterError, match=word):
            summarize(frame, n_bootstrap=0, allow=other, **given)
    name = given.get("metrics", "io_ratio")
    assert np.isclose(summarize(frame, name, n_bootstrap=0, allow=word)["value"].iloc[0], frame[name].mean())


@pytest.mark.parametrize("a, b, word, said", [
    (options(protocol={"name": "paper", "size": 1}), options(protocol={"name": "paper", "size": 2}), "protocol",
     "protocol: expected two runs scored alike"),
    (options(tau=0.7), options(tau=0.5), "protocol", "tau: expected two runs scored alike, got 0.7 in a and 0.5 in b"),
    (options(options={"average": "logits"}), options(options={"average": "probabilities"}), "protocol", "average"),
    (options(settings={"ties": "first"}), options(settings={"ties": "expected"}), "protocol", "ties"),
    (rows(), rows().assign(protocol="pixel"), "protocol", "['paper'] in a and ['pixel'] in b"),
    (options(dataset={"fingerprint": "a" * 64}), options(dataset={"fingerprint": "b" * 64}), "data", "fingerprints"),
    (rows(), rows().assign(image=[f"{k // 3}.png" for k in range(11)] + ["9.png"]), "data",
     "got '3.png' in a and '9.png' in b for 'e11' (1 of 12 differ)"),
    (rows().assign(n_boxes=1), rows().assign(n_boxes=2), "data", "n_boxes"),
    (rows(), rows().assign(io_ratio=7.0), "range", "0 to 1, got 7"),
])
def test_compare_refuses_runs_that_differ_in_more_than_the_model(a, b, word, said):
    for one, other in ((a, b), (b, a)):
        with pytest.raises(ParameterError) as error:
            compare(one, other, "io_ratio", n_bootstrap=0)
        assert f"allow={word!r}" in str(error.value)
    with pytest.raises(ParameterError) as error:
        compare(a, b, "io_ratio", n_bootstrap=0)
    assert said in str(error.value)
    assert len(compare(a, b, "io_ratio", n_bootstrap=0, allow=word)) == 1


def test_a_text_in_a_column_of_scores_is_named():
    frame = rows().astype({"io_ratio": object})
    frame.loc[3, "io_ratio"] = "0.3000000000000p004"
    for call in (lambda: summarize(frame, "io_ratio", allow="range"), lambda: compare(rows(), frame, "io_ratio")):
        with pytest.raises(ParameterError, match="io_ratio: expected numbers or nothing, got '0.3000000000000p004'"):
            call()


def test_an_unknown_word_is_no_permission():
    for call in (summarize, lambda f, **o: compare(f, f, **o)):
        with pytest.raises(ParameterError, match="allow: expected some of"):
            call(rows(), n_bootstrap=0, allow="everything")


def test_what_one_id_is_asked_about_makes_rows_of_their_own():
    comparisons = pd.concat([rows().assign(comparison=name) for name in ("subject", "object")], ignore_index=True)
    assert summarize(comparisons, "correct", n_bootstrap=0)["n"][0] == 24
    assert len(summarize_probe(comparisons, n_bootstrap=0)) == 2
    with pytest.raises(ParameterError, match="doubled"):
        summarize_probe(pd.concat([comparisons, comparisons]), n_bootstrap=0)
    assert len(summarize_probe(pd.concat([comparisons] * 2), n_bootstrap=0, allow="doubled")) == 2


def test_tables_of_tasks_refuse_the_same():
    probe = rows().assign(comparison="subject")
    with pytest.raises(ParameterError, match="image.*1 of 12 differ"):
        compare_probe(probe, probe.assign(image=[*probe["image"][:11], "x"]), n_bootstrap=0)
    choices = rows().assign(split="easy", random=0.5, n_candidates=4, ties=0, iou=0.5)
    with pytest.raises(ParameterError, match="doubled"):
        summarize_choices(pd.concat([choices, choices]), n_bootstrap=0)
    assert summarize_choices(pd.concat([choices, choices]), n_bootstrap=0, allow="doubled")["n"][0] == 24
    strict, loose = choices.copy(), choices.copy()
    strict.attrs, loose.attrs = {"options": {"threshold": 0.7}}, {"options": {"threshold": 0.5}}
    with pytest.raises(ParameterError, match="threshold: expected two runs scored alike"):
        compare_choices(strict, loose, n_bootstrap=0)
    assert compare_choices(strict, loose, n_bootstrap=0, allow="protocol")["difference"][0] == 0


def test_ranges_are_those_of_the_contracts():
    above = {**PROBE_SCORES, **CHOICE_SCORES, **RELCOMP_SCORES,
             **{name.partition("@")[0]: one for name, one in DETECTION_SCORES.items() if not name.startswith("AP")}}
    wide = {"n_ties": (0, np.inf)}  # four comparisons of a pair; Probe-B counts classes in the same column
    assert not set(RANGES) & set(METRICS) and set(above) <= set(RANGES)
    assert {name: wide.get(name, tuple(map(float, one.range))) for name, one in above.items()} == {
        name: RANGES[name] for name in above}


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
