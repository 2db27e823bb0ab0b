"""Write environment.yml from requirements.lock: the same packages and versions, for people who use conda.

Usage: python .ci/environment.py requirements.lock > environment.yml
"""

import sys

from packaging.requirements import Requirement

PYTHON = "3.11"
HEAD = """\
# The locked environment for conda users. Made by `make lock` from requirements.lock; a test compares every pin.
# LAVIS pins libraries that no longer install, so pip must take this list as it stands and resolve nothing:
#
#     PIP_NO_DEPS=1 conda env create -f environment.yml
#     conda activate qgcam
#     pip install --no-deps --no-build-isolation -e .
#
name: qgcam
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python={python}
  - pip
  - pip:
"""


def pins(lock: str, python: str = PYTHON) -> list[str]:
    """The lines `name==version` of a lock that apply to Linux and this Python version, in the lock's order.

    lock: the text of a requirements.lock. python: "3.11" or "3.12".
    """
    where = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux",
             "os_name": "posix", "platform_system": "Linux", "platform_machine": "x86_64",
             "implementation_name": "cpython"}
    wanted = [Requirement(line.rstrip("\\ ")) for line in lock.splitlines() if line[:1].isalnum()]
    return [f"{r.name}{r.specifier}" for r in wanted if r.marker is None or r.marker.evaluate(where)]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    sys.stdout.write(HEAD.format(python=PYTHON) + "".join(f"      - {pin}\n" for pin in pins(text)))
