"""What `make test` runs of many cases of one kind; `make nightly` runs the others."""

import pytest


def some(cases, *names):
    """The cases for parametrize, all but the named ones marked as nightly."""
    assert all(name in cases for name in names)
    return [pytest.param(case, marks=() if case in names else pytest.mark.nightly, id=str(case)[:40])
            for case in cases]
