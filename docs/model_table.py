"""Write the table of models into the README from the registry: `python docs/model_table.py`.

The table stands between two markers of README.md. tests/test_readme.py checks that it is what the registry says.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARKERS = ("<!-- models: begin -->", "<!-- models: end -->")


def _row(cells) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _table(role: str) -> list[str]:
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


def block() -> str:
    """The part of the README between the markers, from the registry of models: one table a role."""
    roles = ("explainer", "matcher", "detector", "answerer", "ranker")
    tables = ["\n".join(table) for role in roles if (table := _table(role))]
    return "\n".join([MARKERS[0], "\n\n".join(tables), MARKERS[1]])


def replaced(readme: str) -> str:
    """The README with the part between the markers replaced."""
    before, rest = readme.split(MARKERS[0])
    return before + block() + rest.split(MARKERS[1])[1]


def main() -> None:
    readme = ROOT / "README.md"
    readme.write_text(replaced(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
