"""The notebooks of the library in the order of reading, from nbs/lib/contents.toml."""

import tomllib
from pathlib import Path

LIB = Path(__file__).resolve().parents[1] / "nbs" / "lib"


def rooms() -> list[dict]:
    """The rooms of contents.toml, each with its notebooks (paths, in the order of reading) under "notebooks"."""
    found = tomllib.loads((LIB / "contents.toml").read_text(encoding="utf-8"))["room"]
    return [room | {"notebooks": _notebooks(LIB / room["path"], room.get("order", []))} for room in found]


def _notebooks(folder: Path, order: list[str]) -> list[Path]:
    """What `order` names first (notebooks without ending, or inner folders), then the other notebooks by number."""
    found = []
    for name in order:
        inner = folder / name
        found += sorted(inner.glob("*.ipynb")) if inner.is_dir() else [inner.with_suffix(".ipynb")]
    return found + [path for path in sorted(folder.glob("*.ipynb")) if path not in found]
