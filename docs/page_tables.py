"""Write the generated tables of README and docs/: `python docs/page_tables.py` (`make papers` does it).

A table stands between two markers of its page: the papers' answers in README.md, read from the stored notebooks; the
models in docs/models.md, from the registry; the data sets in docs/data_sets.md, from data/sources.toml.
tests/test_readme.py checks that the pages are what this writes.
"""

import re
import tomllib
from pathlib import Path

from contents import papers

ROOT = Path(__file__).resolve().parents[1]
ANSWERS = {"Q-GroundCAM": "q_groundcam", "Conceptual probes": "probe_relation", "Ref-Adv": "ref_adv_evaluate",
           "TRICD": "tricd_detection"}  # paper -> the notebook whose answer README shows


def replaced(page: str, name: str, text: str) -> str:
    """A page with the part between the two markers of a name replaced. ValueError where they are missing."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"expected the markers {begin} and {end} in the page")
    return f"{before}{begin}\n{text}\n{end}{after}"


def _row(cells) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def answers() -> str:
    """A line a paper: link, reference, question and answer of one stored notebook. ValueError where one has none."""
    from qgcam_lib.runs.start import read_front

    abouts, lines = {paper["name"]: paper["about"] for paper in papers()}, []
    for paper, name in ANSWERS.items():
        front, cited = read_front(ROOT / "nbs" / "papers" / f"{name}.ipynb"), re.search(r" \([^()]+\)$", abouts[paper])
        if not front.answer:
            raise ValueError(f"nbs/papers/{name}.ipynb has no stored answer. Store its run: make papers")
        lines.append(f"* [{paper}](nbs/papers/{name}.ipynb){cited[0]}: {front.question} **{front.answer}**")
    return "\n".join(lines)


def _models(role: str) -> list[str]:
    """The models of one role; only explainers have a grid, a block and tokens."""
    from qgcam_lib.models.registry import MODELS

    own = ["explainer", "grid", "block", "tokens"] if role == "explainer" else []
    title = "model" if own else role
    lines = [_row([title, *own, "checkpoint", "licence", "mini"]), "|" + "---|" * (4 + len(own))]
    for entry in (one for one in MODELS.values() if one.role == role):
        grid = entry.grid if isinstance(entry.grid, str) else "x".join(map(str, entry.grid))
        known = [entry.explainer, grid, entry.block, entry.tokens] if own else []
        checkpoint = entry.file or entry.checkpoint.removeprefix("https://huggingface.co/").rsplit("/", 1)[-1]
        lines.append(_row([f"`{entry.name}`", *known, checkpoint or "none", entry.licence or "–", entry.mini or "–"]))
    return lines if len(lines) > 2 else []


def models() -> str:
    """The models of the registry, one table a role."""
    roles = ("explainer", "matcher", "detector", "answerer", "ranker")
    return "\n\n".join("\n".join(table) for role in roles if (table := _models(role)))


def data_sets() -> str:
    """The data sets of data/sources.toml: what each is, whether terms have to be accepted, the licence."""
    sources = tomllib.loads((ROOT / "data" / "sources.toml").read_text(encoding="utf-8"))
    rows = [_row([f"[{name}]({one['address']})", one["what"], "yes" if one["gated"] else "no", one["licence"]])
            for name, one in sources.items() if one["kind"] == "data set"]
    return "\n".join([_row(["name", "what it is", "terms to accept", "licence"]), "|" + "---|" * 4, *rows])


BLOCKS = {"README.md": ("papers", answers), "docs/models.md": ("models", models),
          "docs/data_sets.md": ("data sets", data_sets)}


def main() -> None:
    for file, (name, write) in BLOCKS.items():
        page = (ROOT / file).read_text(encoding="utf-8")
        (ROOT / file).write_text(replaced(page, name, write()), encoding="utf-8")


if __name__ == "__main__":
    main()
