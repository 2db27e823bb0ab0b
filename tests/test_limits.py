"""Every limit on what comes from outside is in one table, and pages that state limits quote it."""

import ast
from pathlib import Path

import pytest

from qgcam_lib.report.limits import LIMITS, limits, limits_markdown

ROOT = Path(__file__).parents[1]
OURS = {  # not of what comes from outside: choices of the scores, the words of a paper, what we store ourselves
    "phrase_detection.matching:MAX_BOXES", "models.common.words:MAX_WORDS", "runs.stored:MAX_BYTES"}


def constants():
    """module:NAME of every MAX_... that a module of the library sets at its top."""
    found = set()
    for path in (ROOT / "qgcam_lib").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT / "qgcam_lib").with_suffix("").parts)
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = statement.targets if isinstance(statement, ast.Assign) else ()
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            found |= {f"{module}:{name}" for name in names if name.startswith("MAX_")}
    return found


def test_the_table_has_every_limit():
    assert constants() - OURS == set(LIMITS)
    table = limits()
    assert (table["value"] > 0).all() and not table.duplicated(["what", "at_most"]).any()
    assert {"a pickle (refs.p)": "536,870,912 bytes", "an archive": "40 folders inside each other"}.items() <= dict(
        zip(table["what"], table["at_most"])).items()


def test_a_page_that_states_limits_quotes_the_table():
    page = ROOT / "SECURITY.md"
    if not page.is_file():
        pytest.skip("no SECURITY.md yet")
    lost = [line for line in limits_markdown().splitlines() if line not in page.read_text(encoding="utf-8")]
    assert not lost, "print(qgcam_lib.report.limits.limits_markdown()) writes them: " + "\n".join(lost)
