"""Turn the notebooks of nbs/ into pages under docs/generated/, in the same folders: `python docs/pages.py`.

The library's contents are written from nbs/lib/contents.toml: one page lists the rooms with a sentence each, and a page
a room lists its notebooks in the order of reading.

A page is its notebook without what only the machinery needs (nbdev's directives, hidden cells, the set-up of links to
files that are not pages). Stored outputs are kept, with the texts of their pictures. The page of a paper notebook says
which run its outputs are (`make papers` stores them).
"""

import re
import shutil
from pathlib import Path

import nbformat
from contents import LIB, rooms

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "generated"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def plain_links(text: str, source: Path) -> str:
    """Turn links to files that have no page into the file's name; keep links to notebooks, anchors and the web."""

    def one(match: re.Match) -> str:
        label, address = match.groups()
        target = (source.parent / address.split("#")[0]).resolve()
        has_page = target.suffix == ".ipynb" and target.is_relative_to(ROOT / "nbs")
        if has_page or "://" in address or address.startswith("#"):
            return match.group(0)
        inside = target.relative_to(ROOT) if target.is_relative_to(ROOT) else address
        return label if label.strip("`") in str(inside) else f"{label} (`{inside}`)"

    return LINK.sub(one, text)


def shown(cell: nbformat.NotebookNode) -> bool:
    """Does a cell belong on the page? Hidden cells and bare directives do not."""
    lines = [line for line in cell.source.splitlines() if line.strip()]
    return bool(lines) and "#| hide" not in lines and not all(line.startswith("#|") for line in lines)


def origin_of_outputs(notebook: nbformat.NotebookNode) -> str:
    """Which run the outputs of a paper notebook are: its id, and the parameters that differ from the notebook's own."""
    about = notebook.metadata.get("qgcam")
    if about is None:
        return ""
    given = ", ".join(f"`{name} = {value!r}`" for name, value in about["parameters"].items())
    given = given if len(given) < 200 else ", ".join(f"`{name}`" for name in about["parameters"])
    outputs = str([cell.get("outputs") for cell in notebook.cells])
    where = ", on the miniworld" if "miniworld" in outputs else ""
    return f", shown as executed in run `{about['run_id']}` with {given or 'its own parameters'}{where}"


def keep_alt(cell: nbformat.NotebookNode) -> None:
    """Hand the text of a cell's picture to myst-nb, which looks for it in the cell's metadata."""
    texts = [about.get("alt") for output in cell.get("outputs", [])
             for kind, about in output.get("metadata", {}).items() if kind.startswith("image/")]
    if any(texts):
        cell.metadata["mystnb"] = {"image": {"alt": " ".join(next(filter(None, texts)).split())}}


def page(notebook: nbformat.NotebookNode, source: Path) -> nbformat.NotebookNode:
    """The page of a notebook: directives and hidden cells gone, links made plain, its origin under the title."""
    module = next((line.split()[-1] for cell in notebook.cells for line in cell.source.splitlines()
                   if line.startswith("#| default_exp")), None)
    notebook.cells = [cell for cell in notebook.cells if shown(cell)]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = "\n".join(line for line in cell.source.splitlines() if not line.startswith("#|")).strip("\n")
            keep_alt(cell)
        else:
            cell.source = plain_links(cell.source, source)
    origin = f"Notebook `{source.relative_to(ROOT)}`"
    origin += f", module `qgcam_lib.{module}`" if module else ""
    origin += origin_of_outputs(notebook)
    title, _, rest = notebook.cells[0].source.partition("\n")
    notebook.cells[0].source = f"{title}\n\n*{origin}.*\n{rest}"
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    return notebook


def room_page(room: dict) -> str:
    """The page of a room: its sentence and its notebooks in the order of reading."""
    pages = "\n".join(f"../lib/{path.relative_to(LIB).with_suffix('').as_posix()}" for path in room["notebooks"])
    folder = "" if room["path"] == "." else f" (`nbs/lib/{room['path']}`)"
    return f"# {room['title']}\n\n{room['about']}{folder}\n\n```{{toctree}}\n:maxdepth: 1\n\n{pages}\n```\n"


def library_page(found: list[tuple[str, dict]]) -> str:
    """The contents of the library: a sentence a room, in the order of reading."""
    lines = "\n".join(f"* [{room['title']}](rooms/{name}.md): {room['about']}" for name, room in found)
    pages = "\n".join(f"rooms/{name}" for name, _ in found)
    return (f"# The rooms of the library\n\nEach uses only those above it. [The tour](lib/00_tour.ipynb) walks from "
            f"one picture to one verdict, with a link into each room.\n\n{lines}\n\n"
            f"```{{toctree}}\n:hidden:\n:maxdepth: 2\n\n{pages}\n```\n")


def write_contents() -> None:
    """The contents of the library under docs/generated."""
    found = [(f"{k:02d}_{room['path'].strip('.') or 'ground'}", room) for k, room in enumerate(rooms())]
    (TARGET / "rooms").mkdir(parents=True, exist_ok=True)
    for name, room in found:
        (TARGET / "rooms" / f"{name}.md").write_text(room_page(room), encoding="utf-8")
    (TARGET / "library.md").write_text(library_page(found), encoding="utf-8")


def main() -> None:
    """Write every page afresh."""
    shutil.rmtree(TARGET, ignore_errors=True)
    for source in sorted((ROOT / "nbs").rglob("*.ipynb")):
        if ".ipynb_checkpoints" in source.parts:
            continue
        made = page(nbformat.read(source, as_version=4), source)
        target = TARGET / source.relative_to(ROOT / "nbs")
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(made, target)
    write_contents()


if __name__ == "__main__":
    main()
