"""A run beside the numbers of its page: equal, different, or another processor."""

import json
import subprocess

import pandas as pd
import pytest

from qgcam_lib.cli import main as cli
from qgcam_lib.errors import RunError
from qgcam_lib.runs import reference as references
from qgcam_lib.runs.record import git_state, register_output, uncommitted, update_run, write_run
from qgcam_lib.runs.reference import KEPT_ROWS, compare_with_reference, report, table_differences, write_reference

SUMMARY = pd.DataFrame({"model": ["blip", "blip", "centre"], "metric": ["io_ratio", "pg_hit", "pg_hit"],
                        "value": [0.374, 0.622, 0.067], "ci_low": [0.339, 0.563, 0.045],
                        "ci_high": [0.41, 0.678, 0.098], "p_value": [0.03, 0.0001, 1.0], "n": [500, 497, 500],
                        "run_id": "RUN"})
CLAIMS = pd.DataFrame({"claim": ["order", "depth"], "verdict": ["holds", "open"], "share": [0.75, 0.5],
                       "ours": ["62.2 % [56.3, 67.8] of 497", "0.5"], "seconds": [1.0, 2.0]})
LONG = pd.DataFrame({"id": [f"{k}" for k in range(2 * KEPT_ROWS)], "hit": [k % 4 == 0 for k in range(2 * KEPT_ROWS)],
                     "iou": [k % 10 / 10 for k in range(2 * KEPT_ROWS)]})


@pytest.fixture
def make(tmp_path):
    """Makes a finished run with the three tables, each as it is or as given, and returns its folder."""
    def run(run_id="a" * 12, results=None, machine="A", **changed):
        folder = tmp_path / "outputs" / "demo" / run_id
        record = {"run_id": run_id, "notebook": "demo.ipynb", "status": "ok", "outputs": [],
                  "parameters": {"limit": 500}, "machine": {"cpu": machine},
                  "git": {"commit": "f" * 40, "dirty": False},
                  "results": {"n": 500, "scores": {"pg_hit": 0.622}, "seconds": 3.1, "answer": "more often"}}
        write_run(folder, record | {"results": record["results"] | (results or {})})
        for name, table in ({"summary": SUMMARY, "claims": CLAIMS, "records": LONG} | changed).items():
            if table is not None:
                table = table.assign(run_id=run_id) if "run_id" in table else table
                (folder / "tables").mkdir(exist_ok=True)
                table.to_csv(folder / "tables" / f"{name}.csv", index=False)
                register_output(folder, folder / "tables" / f"{name}.csv", "table")
        return folder
    return run


@pytest.fixture
def reference(make, tmp_path):
    return write_reference(make(), tmp_path / "reference" / "demo")


def moved(table, row, column, value):
    """A copy of a table with another value in one cell."""
    copy = table.astype({column: object})
    copy.loc[row, column] = value
    return copy


def lines(folder, reference):
    return [str(one).split(" (")[0] for one in compare_with_reference(folder, reference)]


def test_a_run_holds_its_own_reference_in_any_order_of_rows_and_under_another_id(make, reference):
    other = make("b" * 12, summary=SUMMARY[::-1], claims=CLAIMS.assign(seconds=9.0),
                 results={"seconds": 8.0})
    assert compare_with_reference(make(), reference) == compare_with_reference(other, reference) == []
    assert sum(path.stat().st_size for path in reference.rglob("*.*")) < 3000  # also with a long table


WITHIN = {"a tenth of the half width": {"summary": moved(SUMMARY, 1, "value", 0.627)},
          "a p-value, as z": {"summary": moved(SUMMARY, 0, "p_value", 0.045)},
          "a thousandth of the size": {"claims": moved(CLAIMS, 0, "share", 0.7505)},
          "numbers within a text": {"claims": moved(CLAIMS, 0, "ours", "62.4 % [56.3, 67.9] of 497")}}


@pytest.mark.parametrize("name", WITHIN)
def test_values_may_move_within_the_rule(make, reference, name):
    assert compare_with_reference(make("b" * 12, **WITHIN[name]), reference) == []


BEYOND = {
    "summary: blip, pg_hit/value: from 0.622 to 0.6285": {"summary": moved(SUMMARY, 1, "value", 0.6285)},
    "summary: blip, io_ratio/p_value: from 0.03 to 0.06": {"summary": moved(SUMMARY, 0, "p_value", 0.06)},
    "summary: blip, pg_hit/n: from 497 to 496": {"summary": moved(SUMMARY, 1, "n", 496)},
    "summary: row centre, pg_hit: from present to missing": {"summary": SUMMARY[:2]},
    "summary: row blip, wdp: from missing to present": {
        "summary": pd.concat([SUMMARY, SUMMARY[:1].assign(metric="wdp")])},
    "summary: column n: from present to missing": {"summary": SUMMARY.drop(columns="n")},
    "claims: order/verdict: from holds to open": {"claims": moved(CLAIMS, 0, "verdict", "open")},
    "claims: order/ours: from 62.2 % [56.3, 67.8] of 497 to 62.2 % [56.3, 67.8] of 496": {
        "claims": moved(CLAIMS, 0, "ours", "62.2 % [56.3, 67.8] of 496")},
    "records: hit/mean: from 0.25 to 0.26": {"records": LONG.assign(hit=LONG.hit | (LONG.index % 100 == 1))},
    "tables: claims: from present to missing": {"claims": None},
    "results: scores/pg_hit: from 0.622 to 0.63": {"results": {"scores": {"pg_hit": 0.63}}},
}


@pytest.mark.parametrize("line", BEYOND)
def test_a_difference_is_one_line_from_what_to_what(make, reference, line):
    assert line in lines(make("b" * 12, **BEYOND[line]), reference)


def test_lists_of_a_parameter_are_shown(make, reference):
    folder = make("b" * 12)
    update_run(folder, parameters={"limit": [1, 2]})
    assert lines(folder, reference) == ["parameters: limit: from 500 to [1, 2]"]


def test_what_an_interval_is_not_about_has_no_part_in_it():
    table = pd.DataFrame({"metric": ["pg_hit"], "paper": [0.6], "ours": [0.622], "ci_low": [0.5], "ci_high": [0.7]})
    assert not table_differences("t", table, table.assign(ours=0.63))
    assert len(table_differences("t", table, table.assign(paper=0.61))) == 1


def test_counts_of_exact_ties_are_not_compared():
    table = pd.DataFrame({"model": ["a"], "scores that tie": [4], "pg_ties": [3], "ties broken by": ["order"],
                          "tied": [1]})
    assert not table_differences("t", table, table.assign(**{"scores that tie": 6, "pg_ties": 1}))
    assert len(table_differences("t", table, table.assign(**{"ties broken by": "luck", "tied": 2}))) == 2


def test_on_another_processor_numbers_are_one_line_and_a_verdict_is_not(make, reference):
    numbers = {"summary": moved(moved(SUMMARY, 1, "value", 0.64), 1, "n", 496)}
    holds, said = report(make("b" * 12, machine="B", **numbers), reference)
    assert holds and len(said) == 1 and "pg_hit/value" in said[0]
    assert not report(make("b" * 12, machine="B", **numbers), reference, strict=True)[0]
    assert not report(make("b" * 12, machine="A", **numbers), reference)[0]
    verdict = {"claims": moved(CLAIMS, 0, "verdict", "open")}
    assert not report(make("b" * 12, machine="B", **verdict), reference)[0]


def test_an_interrupted_run_a_changed_table_and_a_missing_reference_are_refused(make, reference):
    folder = make("b" * 12)
    with pytest.raises(RunError, match="make papers"):
        compare_with_reference(folder, reference.with_name("other"))
    (folder / "tables" / "claims.csv").write_text("claim\n")
    with pytest.raises(RunError, match="has changed"):
        compare_with_reference(folder, reference)
    for status in ("running", "failed"):
        folder = make("c" * 12)
        update_run(folder, status=status)
        with pytest.raises(RunError, match="expected a finished run"):
            compare_with_reference(folder, reference)


def test_the_command_compares_what_the_engine_ran_last(make, reference, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(references, "REFERENCES", reference.parent)
    outputs = tmp_path / "outputs"
    make("b" * 12)
    assert cli.main(["reference", "--outputs", str(outputs)]) == 2 and "make reproduce" in capsys.readouterr().err
    (outputs / "gathered").mkdir()
    (outputs / "gathered" / "shown.txt").write_text(f"demo/{'b' * 12}\n")
    assert cli.main(["reference", "--outputs", str(outputs)]) == 0 and "1 run compared" in capsys.readouterr().out
    make("b" * 12, claims=moved(CLAIMS, 0, "verdict", "open"))
    assert cli.main(["reference", "--outputs", str(outputs)]) == 1
    assert "claims: order/verdict: from holds to open" in capsys.readouterr().err


# --- what is committed -----------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True,
                       capture_output=True, timeout=60)
    git("init", "-q")
    for name, text in {"qgcam_lib/a.py": "a = 1", "nbs/a.ipynb": '{"cells": [{"cell_type": "code", "source": ["1"]}]}',
                       "README.md": "read"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git("add", "-A")
    git("commit", "-qm", "Begin")
    return tmp_path


def test_stored_outputs_and_other_folders_do_not_count_as_uncommitted(repository):
    (repository / "README.md").write_text("read more")
    cell = {"cell_type": "code", "source": "1", "outputs": [{"text": "1"}]}
    (repository / "nbs/a.ipynb").write_text(json.dumps({"cells": [cell]}))
    assert uncommitted(repository) == [] and git_state(repository)["dirty"] is False
    assert len(git_state(repository)["commit"]) == 40


@pytest.mark.parametrize("name, text", [("qgcam_lib/a.py", "a = 2"), ("qgcam_lib/new.py", ""), ("nbs/a.ipynb", "{}"),
                                        ("nbs/a.ipynb", '{"cells": [{"cell_type": "code", "source": "2"}]}'),
                                        ("data/é.csv", "1")])
def test_what_decides_results_counts(repository, name, text):
    (repository / name).parent.mkdir(exist_ok=True)
    (repository / name).write_text(text)
    assert uncommitted(repository) == [name] and git_state(repository)["dirty"] is True


def test_outside_a_repository_nothing_is_known(tmp_path):
    assert git_state(tmp_path) == {"commit": None, "dirty": None} and uncommitted(tmp_path) is None
