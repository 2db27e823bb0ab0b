"""What fuzzing found stays found: every input of found.py, one test a target; and N new inputs (`make fuzz`)."""

import os

import pytest
import targets_cli
import targets_data
import targets_files
import targets_scores
import targets_settings
from found import FOUND, files_of
from harness import Box, fuzz
from speeds import some

MODULES = (targets_cli, targets_data, targets_files, targets_scores, targets_settings)
TARGETS = {target.name: target for module in MODULES for target in module.TARGETS}
EVERY_PUSH = ("command score", "coco instances", "plain pickle", "checkpoint torch", "predictions csv", "maps npz",
              "settings file", "run record")
N, SEED = int(os.environ.get("N") or 60), int(os.environ.get("SEED") or 0)


@pytest.mark.parametrize("name", sorted({name for name, _ in FOUND}))
def test_what_was_found_is_documented_now(name):
    target = TARGETS[name]
    with Box(target) as box:
        for changed in (changed for one, changed in FOUND if one == name):
            assert not box.faults(files_of(target, changed)), f"{changed!r:.1000}"


@pytest.mark.parametrize("name", some(TARGETS, *EVERY_PUSH))
def test_only_documented_errors(name):
    fuzz(TARGETS[name], N, SEED)
