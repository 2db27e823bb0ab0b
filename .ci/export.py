"""Write the package from the notebooks and clean these. Files that come out as they were keep their time stamps:
Numba and Python would compile them anew (half a minute for the kernels of the scores)."""

import os
import tomllib
from functools import cache
from pathlib import Path

from nbdev.clean import nbdev_clean
from nbdev.doclinks import nbdev_export

tomllib.loads = cache(tomllib.loads)  # nbdev reads pyproject.toml eight times a notebook
before = {path: (path.read_bytes(), path.stat()) for path in Path("qgcam_lib").rglob("*.py")}
nbdev_export()
nbdev_clean()
for path, (content, stat) in before.items():
    if path.is_file() and path.read_bytes() == content:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
