"""Write the table of models into the README from the registry: `python docs/model_table.py`.

The table stands between two markers of README.md. tests/test_readme.py checks that it is what the registry says.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARKERS = ("<!-- models: begin -->", "<!-- models: end -->")


def block() -> str:
    """The part of the README between the markers, from the registry of models."""
    from qgcam_lib.models.registry import MODELS

    lines = ["| model | explainer | grid | block | tokens | checkpoint | licence | mini |", "|" + "---|" * 8]
    for entry in MODELS.values():
        checkpoint = entry.file or entry.checkpoint.rsplit("/", 1)[-1]
        grid = entry.grid if isinstance(entry.grid, str) else "x".join(map(str, entry.grid))
        cells = (f"`{entry.name}`", entry.explainer, grid, entry.block, entry.tokens,
                 checkpoint, entry.licence, entry.mini or "–")
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([MARKERS[0], *lines, MARKERS[1]])


def replaced(readme: str) -> str:
    """The README with the part between the markers replaced."""
    before, rest = readme.split(MARKERS[0])
    return before + block() + rest.split(MARKERS[1])[1]


def main() -> None:
    readme = ROOT / "README.md"
    readme.write_text(replaced(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
