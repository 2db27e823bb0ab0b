"""Scores in too little memory: right numbers or one error, never the zeros of what was not computed."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from qgcam_lib.errors import OutOfMemory
from qgcam_lib.metrics import kernels, score_maps
from qgcam_lib.metrics.score import MAX_PIXELS
from qgcam_lib.phrase_detection import matching
from qgcam_lib.storage import fields

CHILD = """
import contextlib, io, resource, sys
import numpy as np
from qgcam_lib.errors import OutOfMemory

maps = np.random.default_rng(0).random((6, 24, 24)).astype(np.float32)
boxes = [[[100, 100, 399, 399]]] * 6

def command(*words):
    from qgcam_lib.cli.main import main
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    assert code == 0 or (code == 1 and len(err.getvalue().splitlines()) == 1), (code, err.getvalue())
    if code:
        raise OutOfMemory
    return out.getvalue()

def numba():
    from qgcam_lib.metrics import score_maps
    return score_maps(maps, boxes, image_sizes=(4000, 4000), threads=2)

def torch():
    from qgcam_lib.metrics import score_maps
    return score_maps(maps[:2], boxes[:2], image_sizes=(500, 500), backend="torch")

def score():
    np.savez("maps.npz", ids=np.arange(6).astype(str), maps=maps)
    rows = [f"{k},100,100,399,399,4000,4000" for k in range(6)]
    with open("boxes.csv", "w") as file:
        print("id,x0,y0,x1,y1,width,height", *rows, sep="\\n", file=file)
    return command("score", "maps.npz", "boxes.csv", "--json")

data = []
def tricd():
    from qgcam_lib.phrase_detection import evaluate
    from qgcam_lib.phrase_detection.prediction_files import synthetic_predictions, synthetic_tricd
    data[:] = data or [made := synthetic_tricd(150), synthetic_predictions(made, clutter=60)]
    return evaluate(*data, n_bootstrap=200)

def attempt(more):
    resource.setrlimit(resource.RLIMIT_AS, (now + int(more * 2**20), resource.RLIM_INFINITY))
    try:
        return work()
    except OutOfMemory:
        return None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

work, steps = globals()[sys.argv[1]], int(sys.argv[2])
right = work()
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
# From 16 MB: at some 0.1 MB numpy itself crashes, for it raises MemoryError for an iterator's buffer without the GIL.
enough, first = next((more, one) for more in 16 * 1.3 ** np.arange(30) if (one := attempt(more)) is not None)
found = [first, *(attempt(enough * (1 - k / steps)) for k in range(1, steps))]
sound = [one for one in found if one is not None]
assert all(one == right if isinstance(right, str) else one.equals(right) for one in sound)
print(f"{enough:.0f} MB:", "".join("-" if one is None else "+" for one in found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
@pytest.mark.parametrize(("what", "steps"), [("numba", 3), ("tricd", 3), *(
    pytest.param(what, 20, marks=pytest.mark.nightly) for what in ("numba", "torch", "score", "tricd"))])
def test_less_and_less_memory_gives_right_numbers_or_one_error(what, steps, tmp_path):
    # What malloc keeps of earlier attempts would serve the next ones: it gives everything large back at once.
    malloc = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run([sys.executable, "-c", CHILD, what, str(steps)], capture_output=True, text=True, timeout=500,
                          check=False, cwd=tmp_path, env=os.environ | malloc)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "-" in done.stdout, done.stdout


def test_only_the_pass_over_maps_runs_in_threads_which_lose_exceptions():
    kept = {module.__name__: re.findall(r"parallel=True[^)]*\)\s+def (\w+)", open(module.__file__).read())
            for module in (kernels, matching)}
    assert list(kept.values()) == [["score_all"], []]


def test_a_block_that_was_not_computed_is_refused(monkeypatch):
    """As after an exception in a thread, which numba swallows; and zeros that say they were computed."""
    for status, error in ((-1.0, OutOfMemory), (0.0, ValueError)):
        monkeypatch.setattr("qgcam_lib.metrics.fused.score_all", lambda maps, *_, status=status: np.where(
            np.arange(12) == kernels.STATUS, status, np.zeros((len(maps), 12))))
        with pytest.raises(error, match="^maps: "):
            score_maps(np.ones((2, 3, 3)), [[0, 0, 2, 2]] * 2)


@pytest.mark.parametrize("size", [(65535, 65535), (10**9, 10**9), (1, MAX_PIXELS + 1)])
def test_sizes_have_the_limit_of_pictures(size):
    assert fields.MAX_PIXELS == MAX_PIXELS
    with pytest.raises(ValueError, match="image_sizes"):
        score_maps(np.ones((1, 3, 3)), [[0, 0, 2, 2]], image_sizes=size)


def test_a_native_map_is_resampled_by_nobody_and_may_be_large():
    one = score_maps(np.eye(5000, dtype=np.float32)[None], [[0, 0, 2500, 5000]])
    assert (one["pg_hit"][0], one["pg_ties"][0], one["io_ratio"][0]) == (0.5, 5000, 0.5)
