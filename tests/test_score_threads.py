"""Scores asked for by several Python threads at once, under the engine of numba that takes one call at a time."""

import os
import subprocess
import sys

PROGRAM = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from qgcam_lib.metrics import score_maps

maps, boxes = np.random.default_rng(0).random((200, 24, 24), np.float32), np.tile([[10.0, 10, 100, 90]], (200, 1))
alone = score_maps(maps, boxes, image_sizes=(384, 384))
with ThreadPoolExecutor(4) as pool:
    for frame in pool.map(lambda _: score_maps(maps, boxes, image_sizes=(384, 384)), range(12)):
        assert frame.equals(alone)
import numba
print(numba.threading_layer())
"""


def test_threads_get_the_scores_that_one_call_gets():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240,
                          env={**os.environ, "NUMBA_THREADING_LAYER": "workqueue"})
    assert (done.returncode, done.stdout.strip()) == (0, "workqueue"), done.stderr[-500:]
