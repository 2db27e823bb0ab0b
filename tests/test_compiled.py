"""The compiled scores: made once for all copies of the library, and said on stderr when made."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TINY = """
from qgcam_lib.metrics.compiled import compiled

@compiled()
def twice(x):
    return 2 * x

assert twice(21) == 42
"""
SCORES = """
import numpy as np
from qgcam_lib.metrics import score_maps
assert score_maps(np.ones((1, 4, 4), "float32"), [[0, 0, 2, 2]]).pg_ties[0] == 16
"""


def said(folder, code, package=ROOT, **environment):
    """stderr of a process that runs `code` as a file of this folder, and its processor seconds."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.py").write_text(code)
    given = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "tiny.py"], cwd=folder, capture_output=True, text=True, timeout=300,
                          env=given | {"PYTHONPATH": str(package)} | environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return done.stderr, after.ru_utime - before.ru_utime


def test_a_second_copy_finds_what_the_first_compiled(tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    first, second, changed = (said(tmp_path / name, code, **cache)[0]
                              for name, code in (("a", TINY), ("b", TINY), ("b", TINY + "# changed\n")))
    assert first == changed and first.startswith("Compiling the scores (once an installation") and second == ""
    assert len(list((tmp_path / "cache" / "qgcam").glob("tiny-*"))) == 2


def test_a_users_folder_is_taken_and_one_that_cannot_be_written_is_said(tmp_path):
    said(tmp_path / "a", TINY, NUMBA_CACHE_DIR=str(tmp_path / "mine"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert list((tmp_path / "mine").glob("tiny-*/*.nbc")) and not (tmp_path / "cache").exists()
    (tmp_path / "file").touch()  # below which there can be no folder, whoever asks
    for _ in range(2):
        text, _ = said(tmp_path / "a", TINY, NUMBA_CACHE_DIR=str(tmp_path / "file" / "cache"))
        assert "in every process" in text and "NUMBA_CACHE_DIR" in text and text.count("\n") == 1


@pytest.mark.nightly
def test_the_scores_of_a_second_clone_are_not_compiled_again(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for name in "ab":
        shutil.copytree(ROOT / "qgcam_lib", tmp_path / name / "qgcam_lib")
        shutil.copy(ROOT / "pyproject.toml", tmp_path / name)
        (tmp_path / name / "data").symlink_to(ROOT / "data")
    (first, slow), (second, fast) = (said(tmp_path / name, SCORES, tmp_path / name, **cache) for name in "ab")
    assert first.count("\n") == 1 and second == "" and fast < 5 < slow
