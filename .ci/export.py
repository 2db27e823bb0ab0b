"""Write the package from the notebooks and clean these; their pictures get at most 256 colours. Files that come out as
they were keep their time stamps: Numba and Python would compile them anew (half a minute for the kernels of the
scores)."""

import os
import re
import tomllib
from base64 import b64decode, b64encode
from functools import cache
from io import BytesIO
from pathlib import Path

from nbdev.clean import nbdev_clean
from nbdev.doclinks import nbdev_export
from PIL import Image


def small(picture):
    """A PNG of 16 million colours with a palette instead, as `page_picture` makes it: a third of the size."""
    image, out = Image.open(BytesIO(b64decode(picture[0]))), BytesIO()
    if image.mode not in ("RGB", "RGBA"):
        return picture[0]
    image.convert("RGB").quantize(256).save(out, "png", optimize=True)
    return b64encode(out.getvalue()).decode()


tomllib.loads = cache(tomllib.loads)  # nbdev reads pyproject.toml eight times a notebook
before = {path: (path.read_bytes(), path.stat()) for path in Path("qgcam_lib").rglob("*.py")}
nbdev_export()
nbdev_clean()
for path, (content, stat) in before.items():
    if path.is_file() and path.read_bytes() == content:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
for path in Path("nbs").rglob("*.ipynb"):
    stored = path.read_text(encoding="utf-8")
    once = re.sub(r'"image/jpeg": "[^"]*",\s*(?="image/png")', "", stored)  # Pillow's pictures are stored twice
    if stored != (found := re.sub(r'(?<="image/png": ")[\w+/=]+', small, once)):
        path.write_text(found, encoding="utf-8", newline="")
