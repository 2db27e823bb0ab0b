"""Turn the notebooks of nbs/ into pages under docs/generated/, in the same folders: `python docs/pages.py`.

The library's contents are written from nbs/lib/contents.toml: one page lists the rooms with a sentence each, and a page
a room lists its notebooks in the order of reading. Those of the papers are written from nbs/papers/contents.toml, the
front page and the guide from README.md, and the reference from the sources (docs/reference.py).

A page is its notebook without what only the machinery needs (nbdev's directives, hidden cells, the set-up of links to
files that are not pages). Stored outputs are kept, with the texts of their pictures. The page of a paper notebook says
which run its outputs are (`make papers` stores them), with all its parameters.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import nbformat
from contents import LIB, papers, rooms
from reference import prose, write_reference

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "generated"
LANDING = ("Install", "Two commands", "Score your own maps")  # of README: the front page; the rest is the guide
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


def literal(text: str) -> str:
    """A text that stays text in Markdown and in HTML: every sign of either is a character reference."""
    return "".join(one if one.isalnum() or one in " .,:/" else f"&#{ord(one)};" for one in text)


def pinned_run(notebook: nbformat.NotebookNode, source: Path) -> str:
    """The run whose outputs a paper notebook shows, as a box: id, date, code, and every parameter, folded."""
    about = notebook.metadata.get("qgcam")
    if about is None:
        return ""
    from qgcam_lib.runs.parameters import read_parameters

    outputs = str([cell.get("outputs") for cell in notebook.cells])
    where = ", on the miniworld" if "miniworld" in outputs else ""
    day = str(about.get("started", "")).partition("T")[0]
    held = "" if source.stem == "benchmarks" else (  # seconds, of one machine
        " `make reproduce` holds its numbers: it compares every run anew with those in `outputs/reference`.")
    given = about["parameters"]
    rows = [f"| `{name}` | <code>{literal(json.dumps(given.get(name, one.default)))}</code> | "
            f"{'given' if name in given else 'default'} |" for name, one in read_parameters(source).items()]
    return "\n".join([
        "````{note}",
        f"The outputs below are those of run `{about['run_id']}`{f' of {day}' * bool(day)}{where}, computed at commit "
        f"`{str(about.get('commit'))[:10]}`.{held}", "",
        "<details><summary>Its parameters</summary>", "", "| parameter | value | |", "|---|---|---|", *rows, "",
        "</details>", "````", "", ""])


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
    title, _, rest = notebook.cells[0].source.partition("\n")
    notebook.cells[0].source = f"{title}\n\n*{origin}.*\n\n{pinned_run(notebook, source)}{rest}"
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


def toctree(caption: str, pages: list[str], depth: int = 1) -> str:
    """A group of the contents."""
    return f"```{{toctree}}\n:caption: {caption}\n:maxdepth: {depth}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def lesson_entry(path: Path) -> str:
    """A lesson's line in the contents: its number, title and minutes."""
    opening = nbformat.read(TARGET / path.with_suffix(".ipynb"), as_version=4).cells[0].source
    title, minutes = opening.partition("\n")[0].removeprefix("# "), re.search(r"about (\d+) minutes", opening)
    number = re.match(r"0(\d)_", path.stem)
    return (f"{f'{number[1]} ' if number else ''}{title}{f' ({minutes[1]} min)' if minutes else ''} "
            f"<generated/{path.as_posix()}>")


def readme_pages(readme: str) -> tuple[str, str]:
    """README.md as two pages: the front page (what it is, the picture, how to begin) and the guide (the rest)."""
    first, *sections = re.split(r"(?m)^(?=## )", plain_links(readme, ROOT / "README.md"))
    front = [one for one in sections if one.partition("\n")[0].removeprefix("## ") in LANDING]
    rest = [one for one in sections if one not in front]
    title, _, opening = first.partition("\n")
    opening = opening.replace("](docs/first_run/", "](first_run/")
    return (f"{title}\n{opening}" + "".join(front)).replace("](nbs/", "](generated/"), (
        "# Guide\n\n" + "".join(rest)).replace("](nbs/", "](")


def scores_page() -> str:
    """The contracts of all scores, from the registries: a score that is added to one stands here by itself."""
    from qgcam_lib.finetune.relcomp.scores import RELCOMP_SCORES
    from qgcam_lib.probes.score import PROBE_SCORES
    from qgcam_lib.referring.score import CHOICE_SCORES
    from qgcam_lib.statistics import METRICS

    better, parts = {True: "higher", False: "lower", None: "–"}, []
    for title, contracts in (("Heat maps", METRICS), ("Conceptual probes", PROBE_SCORES), ("RelComp", RELCOMP_SCORES),
                             ("Referring expressions", CHOICE_SCORES)):
        rows = [f"| `{one.name}` | {prose(one.summary)} | {one.range[0]:g} to {one.range[1]:g} | "
                f"{better[one.higher_is_better]} | {prose(one.undefined_when)} | {prose(one.source)} |"
                for one in contracts.values()]
        head = "| score | what it asks | range | better | undefined when | source |\n|---|---|---|---|---|---|"
        parts.append("\n".join([f"## {title}\n", head, *rows, ""]))
    return "# Scores and their contracts\n\n" + "\n".join(parts)


def paper_page(paper: dict) -> str:
    """The page of a paper: its question and its notebooks, each with its title."""
    pages = "\n".join(f"../papers/{path.stem}" for path in paper["notebooks"])
    return f"# {paper['name']}\n\n{paper['about']}\n\n```{{toctree}}\n:maxdepth: 1\n\n{pages}\n```\n"


def write_contents() -> None:
    """The contents: front page, guide, rooms, papers, reference, and the groups of the left side."""
    found = [(f"{k:02d}_{room['path'].strip('.') or 'ground'}", room) for k, room in enumerate(rooms())]
    by_paper = [(f"{k:02d}_{re.sub('[^a-z]+', '_', one['name'].lower())}", one) for k, one in enumerate(papers())]
    front, guide = readme_pages((ROOT / "README.md").read_text(encoding="utf-8"))
    reference = write_reference(TARGET / "api")
    lessons = sorted(path.relative_to(TARGET).with_suffix("") for path in (TARGET / "lessons").rglob("*.ipynb"))
    groups = [
        toctree("Begin", ["Guide <generated/guide>"]),
        toctree("Lessons", [lesson_entry(path) for path in lessons if "solutions" not in path.parts]
                + ["Solutions <generated/solutions>"]),
        toctree("Papers", [f"generated/by_paper/{name}" for name, _ in by_paper], 2),
        toctree("Library", ["generated/library", "generated/reference", "generated/scores"], 2),
        toctree("The project", ["formats", "cluster", "reliability", "security", "contributing", "changelog"]),
    ]
    pages = {f"rooms/{name}.md": room_page(room) for name, room in found}
    pages |= {f"by_paper/{name}.md": paper_page(paper) for name, paper in by_paper}
    pages |= {"scores.md": scores_page(), "library.md": library_page(found)}
    pages |= {"landing.md": front, "guide.md": guide, "groups.md": "\n".join(groups)}
    inner = [path.relative_to("lessons").as_posix() for path in lessons if "solutions" in path.parts]
    pages["solutions.md"] = "# Solutions\n\n```{toctree}\n" + "\n".join(f"lessons/{one}" for one in inner) + "\n```\n"
    pages["reference.md"] = ("# Reference\n\nEvery public name with its arguments and what it promises, a page a room. "
                             "{ref}`All names <genindex>`, {ref}`all modules <modindex>`.\n\n"
                             "```{toctree}\n:maxdepth: 1\n\n"
                             + "\n".join(f"api/{name}" for name in reference) + "\n```\n")
    for name, text in pages.items():
        (TARGET / name).parent.mkdir(parents=True, exist_ok=True)
        (TARGET / name).write_text(text, encoding="utf-8")


def main() -> None:
    """Write every page afresh."""
    sys.path.insert(0, str(ROOT))
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
