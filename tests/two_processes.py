"""Run one program as two processes that find each other."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def both_end_well(program: str, meet: Path) -> None:
    """Run a program twice, with the arguments rank, `meet` and the folder of the tests; both must print "fine"."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                                "PYTHONWARNINGS": "ignore"}
    workers = [subprocess.Popen([sys.executable, "-c", program, str(rank), str(meet), str(ROOT / "tests")],
                                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for rank in range(2)]
    try:
        for worker in workers:
            out, err = worker.communicate(timeout=300)
            assert worker.returncode == 0 and "fine" in out, err[-3000:]
    finally:
        for worker in workers:
            worker.kill()  # one that waits for the other
