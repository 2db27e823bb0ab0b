"""Turn the notebooks of nbs/ into pages under docs/generated/, in the same folders: `python docs/pages.py`.

The library's contents are written from nbs/lib/contents.toml: one page lists the rooms with a sentence each, and a page
a room lists its notebooks in the order of reading. Those of the papers are written from nbs/papers/contents.toml, the
front page from README.md, and the reference from the sources (docs/reference.py). The pages of WRITTEN are those of
docs/ with their links.

A page is its notebook without what only the machinery needs (nbdev's directives, hidden cells, the set-up of links to
files that are not pages). Stored outputs are kept, with the texts of their pictures. The page of a paper notebook says
which run its outputs are (`make papers` stores them), with all its parameters.
"""

import ast
import filecmp
import json
import os
import re
import shutil
import sys
import time
from base64 import b64decode
from os.path import relpath
from pathlib import Path

import nbformat
from contents import LIB, papers, rooms
from reference import prose, write_reference

ROOT = Path(__file__).resolve().parents[1]
TARGET, BUILD = ROOT / "docs" / "generated", ROOT / "docs" / "_build"
LANDING = ("Four papers", "Install", "Score your maps")  # the sections of README that the front page shows
WRITTEN = {"guide": "Guide", "models": "Models", "data_sets": "Data sets", "status": "What is reproduced",
           "try_it": "Try it"}  # of docs/
GLOSSARY = sorted({*re.findall(r"(?m)^(\w[\w -]*)$\n  ", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))}
                  - {"open", "run"})  # words that mean other things too
USES = {  # the rooms in the order of use; the rest comes last
    "Score maps": ("metrics", "statistics"),
    "Ask a model": ("models", "explain", "grounding", "phrase_detection", "probes", "referring"),
    "Train": ("finetune",), "Data": ("data", "miniworld"),
    "Runs and reports": ("runs", "report", "papers", "teach", "cli")}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def page_of(target: Path) -> Path | None:
    """The page that a file of the project becomes; None for a file that has no page."""
    docs = ROOT / "docs"
    if target.suffix == ".ipynb" and (ROOT / "nbs") in target.parent.parents:
        return TARGET / target.relative_to(ROOT / "nbs")
    if target.parent == docs and target.suffix == ".md":
        return TARGET / target.name if target.stem in WRITTEN else target
    about = docs / target.name.lower()  # CONTRIBUTING.md, qgcam_lib/cli/formats.md: included by a page of this name
    return about if target.suffix == ".md" and about.is_file() else None


def plain_links(text: str, source: Path, page: Path) -> str:
    """The text of a file as its page has it: links to files lead to their pages, those to files that have no page
    become the file's name; links to anchors and to the web stay."""

    def one(match: re.Match) -> str:
        label, address = match.groups()
        file, mark, anchor = address.partition("#")
        target = (source.parent / file).resolve()
        if "://" in address or not file:
            return match.group(0)
        if found := page_of(target):
            return f"[{label}]({relpath(found, page.parent)}{mark}{anchor})"
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
    held = "" if source.stem.startswith("benchmarks") else (  # seconds, of one machine
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


def with_anchors(notebook: nbformat.NotebookNode) -> None:
    """Give each cell that defines public names a target a name, where the reference's [source] leads."""
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "code" and "#| export" in cell.source:
            body = ast.parse(re.sub(r"(?m)^[%!].*$", "", cell.source)).body
            names = [one.name for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name[0] != "_"]
            if names:
                spans = "".join(f'<span id="def-{name}"></span>' for name in names)
                cells.append(nbformat.v4.new_markdown_cell(spans, id=f"def-{names[0]}"[:64]))  # not a random one
        cells.append(cell)
    notebook.cells = cells


def words_of(text: str) -> str:
    """A line with the glossary's terms that a text uses; empty where it uses none."""
    used = [f"{{term}}`{term}`" for term in GLOSSARY if re.search(rf"(?i)\b{term}s?\b", text)]
    return f"*Terms:* {', '.join(used)}\n\n" * bool(used)


LIVE = {"03_gradcam": "blip-mini", "04_gscorecam": "clip-rn-mini"}  # lessons whose page ends with their model, live


def live_cell(model: str) -> nbformat.NotebookNode:
    """The last cell of a lesson's page: its model, which answers in the browser (see docs/static/live.js)."""
    return nbformat.v4.new_markdown_cell(
        id="live", source=
        "## The same model, live\n\nType a phrase, and the model answers in this page. Drag what is framed to another "
        "place, or recolour it, and it answers again.\n\n```{raw} html\n"
        '<link rel="stylesheet" href="../../_static/live.css">\n'
        f'<div id="live" data-folder="../../live/" data-model="{model}">'
        '<p class="wait">The scenes are loading …</p></div>\n'
        '<script type="module" src="../../_static/live.js"></script>\n```')


def page(notebook: nbformat.NotebookNode, source: Path) -> nbformat.NotebookNode:
    """The page of a notebook: directives and hidden cells gone, links made plain, its origin under the title."""
    module = next((line.split()[-1] for cell in notebook.cells for line in cell.source.splitlines()
                   if line.startswith("#| default_exp")), None)
    with_anchors(notebook)
    notebook.cells = [cell for cell in notebook.cells if shown(cell)]
    prose_of = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    terms = "" if source.is_relative_to(LIB) else words_of(prose_of)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = "\n".join(line for line in cell.source.splitlines() if not line.startswith("#|")).strip("\n")
            keep_alt(cell)
        else:
            cell.source = plain_links(cell.source, source, TARGET / source.relative_to(ROOT / "nbs"))
    if source.parent.name == "lessons" and source.stem in LIVE:
        notebook.cells.append(live_cell(LIVE[source.stem]))
    origin = f"Notebook `{source.relative_to(ROOT)}`"
    origin += f", module `qgcam_lib.{module}`" if module else ""
    title, _, rest = notebook.cells[0].source.partition("\n")
    notebook.cells[0].source = f"{title}\n\n*{origin}.*\n\n{terms}{pinned_run(notebook, source)}{rest}"
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    return notebook


def room_page(room: dict) -> str:
    """The page of a room: its sentence and its notebooks in the order of reading. The tour has its own place."""
    pages = "\n".join(f"../lib/{path.relative_to(LIB).with_suffix('').as_posix()}" for path in room["notebooks"]
                      if path.name != "00_tour.ipynb")
    folder = "" if room["path"] == "." else f" (`nbs/lib/{room['path']}`)"
    return f"# {room['title']}\n\n{room['about']}{folder}\n\n```{{toctree}}\n:maxdepth: 1\n\n{pages}\n```\n"


def by_use(found: list[tuple[str, dict]]) -> dict[str, list[tuple[str, dict]]]:
    """Rooms by what they are used for, in the order of USES."""
    place = {path: use for use, paths in USES.items() for path in paths}
    order = [path for paths in USES.values() for path in paths]
    found = sorted(found, key=lambda one: order.index(one[1]["path"]) if one[1]["path"] in order else len(order))
    groups = {use: [] for use in (*USES, "Foundations")}
    for one in found:
        groups[place.get(one[1]["path"], "Foundations")].append(one)
    return groups


def library_page(found: list[tuple[str, dict]]) -> str:
    """The contents of the library: a sentence a room, in the order of use."""
    groups = by_use(found)
    lines = "\n".join(f"\n## {use}\n\n" + "\n".join(
        f"* [{room['title']}](rooms/{name}.md): {room['about']}" for name, room in some)
        for use, some in groups.items())
    pages = "\n".join(f"rooms/{name}" for some in groups.values() for name, _ in some)
    return (f"# The rooms of the library\n\n[The tour](lib/00_tour.ipynb) walks from "
            f"one picture to one verdict, with a link into each room.\n{lines}\n\n"
            f"```{{toctree}}\n:hidden:\n:maxdepth: 2\n\n{pages}\n```\n")


def toctree(caption: str, pages: list[str], depth: int = 1) -> str:
    """A group of the contents."""
    return f"```{{toctree}}\n:caption: {caption}\n:maxdepth: {depth}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def lesson_entry(lesson) -> str:
    """A lesson's line in the contents: its number, title and minutes."""
    number = f"{lesson.path.name[1]} " if lesson.path.name[0].isdigit() else ""
    minutes = f" ({lesson.minutes} min)" if lesson.minutes else ""
    return f"{number}{lesson.title}{minutes} <generated/lessons/{lesson.path.stem}>"


def front_page(readme: str, ways: str) -> str:
    """The front page: what README.md says first, `ways` in, its sections of LANDING, its picture."""
    readme = plain_links(readme, ROOT / "README.md", ROOT / "docs" / "index.md")
    first, *sections = re.split(r"(?m)^(?=## )", readme)
    front = [one for one in sections if one.partition("\n")[0].removeprefix("## ") in LANDING]
    opening, mark, picture = first.partition("<!-- first run: begin -->")
    picture = f"## What a run shows\n\n{mark}{picture}".replace("](docs/first_run/", "](first_run/")
    return f"{opening}{ways}\n{''.join(front)}\n{picture}"


def written_page(name: str) -> str:
    """A page of docs/ that links to notebooks, with its links as seen from docs/generated."""
    source = ROOT / "docs" / f"{name}.md"
    return plain_links(source.read_text(encoding="utf-8"), source, TARGET / source.name)


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


def teaser(path: Path, folder: str, target: Path) -> str:
    """A paper notebook on the page of its paper: link, question, answer, effect and first figure, from its stored
    outputs; the figure is written beside the page. folder: of the notebooks, as seen from there."""
    from qgcam_lib.runs.start import read_front

    one = read_front(path)
    lines = [f"## [{prose(one.title)}]({folder}/{path.name})", prose(one.about)]
    if one.answer:
        lines += [f"**{prose(one.question)}** {prose(one.answer)}", f"Effect: {prose(one.effect)}" * bool(one.effect)]
    if one.picture:
        target.mkdir(parents=True, exist_ok=True)
        (target / f"{path.stem}.png").write_bytes(b64decode(one.picture))
        lines.append(f"```{{image}} {path.stem}.png\n:alt: {one.alt}\n:class: teaser\n```")
    return "\n\n".join(filter(None, lines)) + "\n"


def paper_page(paper: dict) -> str:
    """The page of a paper: its question and its notebooks, each with its answer and figure."""
    pages = "\n".join(f"../papers/{path.stem}" for path in paper["notebooks"])
    shown = "\n".join(teaser(path, "../papers", TARGET / "by_paper") for path in paper["notebooks"])
    return (f"# {paper['name']}\n\n{paper['about']}\n\n{shown}\n*Terms:* {{doc}}`Glossary </glossary>`\n\n"
            f"```{{toctree}}\n:maxdepth: 1\n:hidden:\n\n{pages}\n```\n")


def lessons_page() -> str:
    """The lessons with the minutes each takes."""
    from qgcam_lib.runs.start import read_lessons

    rows = "\n".join(f"| [{prose(one.title)}](lessons/{one.path.name}) | {one.minutes or ''} | {prose(one.about)} |"
                     for one in read_lessons())
    return f"# Lessons\n\n| lesson | minutes | what it does |\n|---|---|---|\n{rows}\n"


def card(title: str, text: str, links: list[str]) -> str:
    """A card of the front page; the first link stands out."""
    lines = "\n".join(f"* {one}" for one in links)
    return f"::::{{container}} card-of-three\n**{title}**\n\n{text}\n\n{lines}\n::::\n"


def cards(by_paper: list[tuple[str, dict]]) -> str:
    """The three ways in: learn, score maps, read a paper."""
    from qgcam_lib.runs.start import read_lessons

    lessons = read_lessons()
    numbered = [one for one in lessons if one.path.name[0].isdigit()]
    own = next((one for one in lessons if "own_maps" in one.path.name), None)
    learn = [f"[{prose(one.title)}](generated/lessons/{one.path.name}), {one.minutes} min" for one in numbered[:2]]
    score = [f"[{prose(own.title)}](generated/lessons/{own.path.name})"] * bool(own) + [
        "[The scores and what they ask](generated/scores.md)", "[All commands](generated/guide.md)"]
    read = [f"[{one['name']}](generated/by_paper/{name}.md)" for name, one in by_paper[:4]]
    return ":::::{container} three-cards\n" + "\n".join([
        card("Learn", "Short lessons, computed step by step, with explorers that work in this page.",
             [*learn, "[All lessons](generated/lessons.md)", "[Try a model](generated/try_it.md)",
              "[The tour of the library](generated/lib/00_tour.ipynb)"]),
        card("Score my maps", "Nine scores with intervals for heat maps that you have; no model is needed.", score),
        card("Read a paper", "Four papers as notebooks, with question, answer and figure of each.", read)]) + ":::::\n"


def write_contents() -> None:
    """The contents: front page, guide, rooms, papers, reference, and the groups of the left side."""
    from qgcam_lib.runs.start import read_lessons

    found = [(f"{k:02d}_{room['path'].strip('.') or 'ground'}", room) for k, room in enumerate(rooms())]
    by_paper = [(f"{k:02d}_{re.sub('[^a-z]+', '_', one['name'].lower())}", one) for k, one in enumerate(papers())]
    front = front_page((ROOT / "README.md").read_text(encoding="utf-8"), cards(by_paper))
    in_use = [room for some in by_use(found).values() for _, room in some]
    groups = [
        toctree("Begin", ["The tour <generated/lib/00_tour>", *(
            f"{title} <generated/{name}>" for name, title in WRITTEN.items()), "glossary"]),
        toctree("Lessons", ["All lessons <generated/lessons>", *map(lesson_entry, read_lessons()),
                            "Solutions <generated/solutions>"]),
        toctree("Papers", [f"generated/by_paper/{name}" for name, _ in by_paper], 2),
        toctree("Library", ["generated/library", "generated/reference", "generated/scores"], 2),
        toctree("The project", ["formats", "cluster", "reliability", "security", "contributing", "changelog"]),
    ]
    pages = {f"rooms/{name}.md": room_page(room) for name, room in found}
    pages |= {f"by_paper/{name}.md": paper_page(paper) for name, paper in by_paper}
    pages |= {"scores.md": scores_page(), "library.md": library_page(found)}
    pages |= {"landing.md": front, "groups.md": "\n".join(groups)}
    pages |= {f"{name}.md": written_page(name) for name in WRITTEN}
    inner = sorted(f"solutions/{path.stem}" for path in (TARGET / "lessons" / "solutions").glob("*.ipynb"))
    pages["solutions.md"] = "# Solutions\n\n```{toctree}\n" + "\n".join(f"lessons/{one}" for one in inner) + "\n```\n"
    pages |= {"reference.md": write_reference(TARGET / "api", in_use), "lessons.md": lessons_page()}
    for name, text in pages.items():
        (TARGET / name).parent.mkdir(parents=True, exist_ok=True)
        (TARGET / name).write_text(text, encoding="utf-8")


def keep_times(before: Path) -> None:
    """Give each page that did not change its old time, so that Sphinx does not build it again. If more changed than
    the text of notebooks and reference pages, such as a title, everything is built again."""
    old, new = ({path.relative_to(folder) for path in folder.rglob("*.*")} for folder in (before, TARGET))
    changed = old ^ new
    for path in old & new:
        if filecmp.cmp(before / path, TARGET / path, shallow=False):
            os.utime(TARGET / path, ns=(time.time_ns(), (before / path).stat().st_mtime_ns))
        else:
            changed.add(path)
    own = (path for path in TARGET.parent.rglob("*.*") if not {TARGET, BUILD, before} & {path, *path.parents})
    built = BUILD.stat().st_ctime if BUILD.is_dir() else 0
    if any(path.suffix != ".pyc" and path.stat().st_mtime > built for path in own) or any(
            path in old ^ new or path.suffix != ".ipynb" and path.parts[0] != "api" or path.suffix == ".json"
            for path in changed):
        shutil.rmtree(BUILD, ignore_errors=True)


def main() -> None:
    """Write every page."""
    sys.path.insert(0, str(ROOT))
    before = BUILD.with_name("_build.before")
    shutil.rmtree(before, ignore_errors=True)
    if TARGET.is_dir():
        TARGET.rename(before)
    for source in sorted((ROOT / "nbs").rglob("*.ipynb")):
        if ".ipynb_checkpoints" in source.parts or source.parent == ROOT / "nbs":  # what stands there is for Jupyter
            continue
        made = page(nbformat.read(source, as_version=4), source)
        target = TARGET / source.relative_to(ROOT / "nbs")
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(made, target)
    write_contents()
    keep_times(before)
    shutil.rmtree(before, ignore_errors=True)


if __name__ == "__main__":
    main()
