"""What fuzzing found stays found: every input of found.py, one test a target; and a few new inputs for each."""

import pytest
from found import FOUND, files_of
from harness import Box, all_targets, run_some
from speeds import some

TARGETS = all_targets()
EVERY_PUSH = ("command score", "coco instances", "plain pickle", "checkpoint torch", "predictions csv", "maps npz",
              "settings file", "run record")


@pytest.mark.parametrize("name", sorted({name for name, _ in FOUND}))
def test_what_was_found_is_documented_now(name):
    target = TARGETS[name]
    with Box() as box:
        box.warm(target)
        for changed in (changed for one, changed in FOUND if one == name):
            faults = box.run(target, files_of(target, changed))
            assert not faults, f"{faults[0].what} at {faults[0].where}\n{faults[0].text}\n{changed!r:.1000}"


@pytest.mark.parametrize("name", some(TARGETS, *EVERY_PUSH))
def test_only_documented_errors(name):
    run_some(TARGETS[name])
