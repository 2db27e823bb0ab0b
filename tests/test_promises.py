"""SECURITY.md and docs/reliability.md: each promise names a test that there is (limits: tests/test_limits.py)."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("SECURITY.md", "docs/reliability.md")}
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@cache
def names_in(file):
    """The names of the tests of a file; the file has to be there."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def tables(text):
    """(title, header, rows) of each table under a title, cells as texts."""
    for part in re.split(r"(?m)^## ", text)[1:]:
        lines = [line for line in part.splitlines() if line.startswith("|")]
        if lines:
            header, _, *rows = [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]
            yield part.splitlines()[0], header, rows


@pytest.mark.parametrize("page", PAGES)
def test_every_promise_names_a_test_that_there_is(page):
    promised = [(title, row) for title, header, rows in tables(PAGES[page]) if header[-1] == "test" for row in rows]
    assert len(promised) >= 8
    for title, row in promised:
        named = NAMED.findall(row[-1])
        assert named, f"{title}: no test for {row[0]!r}"
        for file, name in named:
            assert not name or name in names_in(file), f"{title}: {file} has no test {name}"

