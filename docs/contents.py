"""The notebooks in the order of reading, from the contents.toml of nbs/lib and of nbs/papers."""

import tomllib
from pathlib import Path

LIB = Path(__file__).resolve().parents[1] / "nbs" / "lib"
PAPERS = LIB.parent / "papers"


def rooms() -> list[dict]:
    """The rooms of contents.toml, each with its notebooks (paths, in the order of reading) under "notebooks"."""
    found = tomllib.loads((LIB / "contents.toml").read_text(encoding="utf-8"))["room"]
    return [room | {"notebooks": _notebooks(LIB / room["path"], room.get("order", []))} for room in found]


def papers() -> list[dict]:
    """The papers of contents.toml, each with its notebooks (paths) under "notebooks"; what no paper names is "More"."""
    found = tomllib.loads((PAPERS / "contents.toml").read_text(encoding="utf-8"))["paper"]
    named = [name for paper in found for name in paper["notebooks"]]
    more = [path.stem for path in sorted(PAPERS.glob("*.ipynb")) if path.stem not in named]
    found += [{"name": "More", "about": "", "notebooks": more}] if more else []
    paths = [[PAPERS / f"{name}.ipynb" for name in paper["notebooks"]] for paper in found]
    return [paper | {"notebooks": [path for path in some if path.is_file()]} for paper, some in zip(found, paths)]


def _notebooks(folder: Path, order: list[str]) -> list[Path]:
    """What `order` names first (notebooks without ending, or inner folders), then the other notebooks by number."""
    found = []
    for name in order:
        inner = folder / name
        found += sorted(inner.glob("*.ipynb")) if inner.is_dir() else [inner.with_suffix(".ipynb")]
    return found + [path for path in sorted(folder.glob("*.ipynb")) if path not in found]
