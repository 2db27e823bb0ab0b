"""The package, the Snakefile and what they read in a folder of their own, where nobody edits meanwhile."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def lay_compendium(folder):
    """Everything that the engine needs but notebooks and data."""
    shutil.copytree(ROOT / "qgcam_lib", folder / "qgcam_lib", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("profiles", "data/words", "data/published"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("Snakefile", "settings.ini", "data/sources.toml"):
        shutil.copyfile(ROOT / name, folder / name)
