"""What the core needs: seconds and megabytes from nothing to the first scores, and platforms that have its wheels.

Usage: python .ci/install.py              build the wheel, install it in a fresh environment, score the README's maps
       python .ci/install.py --lowest     the same with the oldest releases that pyproject.toml allows
       python .ci/install.py --platforms  is there a wheel of every dependency, for each of five platforms?

It needs uv and a package registry; nothing outside a temporary folder is written. Exit code 1: a bar was missed.
Most of the seconds compile the kernels, once an environment; on a busy machine look at the processor's seconds.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_SECONDS, MOST_MEGABYTES = 60, 400
PLATFORMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin", "x86_64-apple-darwin",
             "x86_64-pc-windows-msvc")
PACKAGED = ("qgcam_lib", "data/checks", "data/published", "data/words", "data/sources.toml",
            "pyproject.toml", "setup.py", "README.md", "LICENSE")
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("PYTHON", "QGCAM_")) and name != "VIRTUAL_ENV"}
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}") or "uv"


def call(*words: str | Path, **options) -> str:
    """What a program prints. RuntimeError with the end of its complaints when it fails."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=CLEAN, timeout=600, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words[:4]))} ended with {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout, built in a copy: setuptools leaves its working files beside the sources."""
    for name in PACKAGED:
        source, target = ROOT / name, folder / "tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
         "--wheel-dir", folder, folder / "tree")
    return next(folder.glob("*.whl"))


def install(wheel: Path, environment: Path, lowest: bool = False) -> Path:
    """A fresh environment with the wheel and what it needs, without any extra; the folder of its programs."""
    call(sys.executable, "-m", "venv", "--without-pip", environment)
    programs = environment / ("Scripts" if os.name == "nt" else "bin")
    if lowest:
        pins = call(UV, "pip", "compile", "--quiet", "--resolution", "lowest-direct", ROOT / "pyproject.toml")
        (environment / "lowest.txt").write_text(pins, encoding="utf-8")
    options = ("--constraint", environment / "lowest.txt") if lowest else ()
    call(UV, "pip", "install", "--quiet", "--python", programs / "python", *options, wheel)
    return programs


def megabytes(folder: Path) -> float:
    """The sizes of all files below a folder, in units of a million bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if not file.is_symlink() and file.is_file()) / 1e6


def first_scores(programs: Path, cwd: Path) -> str:
    """What the README's example of own maps prints."""
    code = next(code for code in re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"),
                                            flags=re.M | re.S) if "score_maps" in code)
    return call(programs / "python", "-c", code, cwd=cwd)


def platforms() -> list[str]:
    """A line for each platform and Python without a wheel of some dependency; what there is, is printed."""
    missing = []
    for platform in PLATFORMS:
        for version in ("3.11", "3.12"):
            try:
                pins = call(UV, "pip", "compile", "--quiet", "--only-binary", ":all:", "--python-platform", platform,
                            "--python-version", version, ROOT / "pyproject.toml").count("==")
                print(f"{platform}, Python {version}: wheels of all {pins} packages")
            except RuntimeError as error:
                missing.append(f"{platform}, Python {version}: {error}")
    return missing


def main(arguments: list[str]) -> int:
    if "--platforms" in arguments:
        missing = platforms()
        print("\n".join(missing), end="")
        return int(bool(missing))
    with tempfile.TemporaryDirectory() as place:
        wheel, began, before = build_wheel(Path(place)), time.monotonic(), os.times()
        programs = install(wheel, Path(place) / "environment", "--lowest" in arguments)
        print(first_scores(programs, Path(place)))
        seconds, after = time.monotonic() - began, os.times()
        size = megabytes(Path(place) / "environment")
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"{seconds:.0f} s (bar: {MOST_SECONDS}), processor {busy:.0f} s; {size:.0f} MB (bar: {MOST_MEGABYTES})")
    return int(seconds > MOST_SECONDS or size > MOST_MEGABYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
