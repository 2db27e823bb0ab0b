"""Put the run that the page of q_groundcam shows into the README: `python docs/first_run.py` (`make papers` does it).

Its numbers are those in outputs/reference/q_groundcam. Copies the run's panels to docs/first_run/, and writes the
picture, its caption and the score table between the markers of README.md. No number in the README is typed by hand;
tests/test_readme.py compares it with the reference.
"""

import shutil
import sys
from pathlib import Path

import pandas as pd

from qgcam_lib.runs.reference import REFERENCES, read_reference
from qgcam_lib.settings import settings

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "first_run"
REFERENCE = REFERENCES / "q_groundcam"
MARKERS = ("<!-- first run: begin -->", "<!-- first run: end -->")


def stored_block() -> str:
    """The part of the README between the markers, from the reference."""
    facts = read_reference(REFERENCE)
    table = pd.read_csv(REFERENCE / "tables" / "score_table.csv", dtype=str)
    lines = ["| " + " | ".join(row) + " |" for row in [table.columns, ["---"] * table.shape[1], *table.to_numpy()]]
    alternative = "Best, worst, typical and uncertain phrase of a run: picture with box, heat map, hit or miss, scores"
    n, protocol = facts["results"]["n"], facts["parameters"]["protocol"]
    caption = (f"*A run on the **miniworld**: synthetic scenes, a small BLIP trained on them, {n} phrases, GradCAM, "
               f"protocol `{protocol}`. Examples are chosen by rule: the best is a hit whose map has most of its mass "
               "in the box (IO ratio) beyond the box's share of the picture, the worst a miss with least. White frame: "
               f"the phrase's box; marks: the map's highest pixels. Run `{facts['run_id']}`. The numbers show that the "
               "machinery works; they are no result about photographs.*")
    return "\n".join([
        MARKERS[0],
        f"![{alternative}](docs/first_run/panels.png)",
        "",
        caption,
        "",
        "<details><summary>The score table of this run, beside a centre guess and the untrained model</summary>",
        "",
        *lines,
        "",
        "Means over phrases with 95 % intervals, clustered by image.",
        "</details>",
        MARKERS[1],
    ])


def replaced(readme: str, new: str) -> str:
    """The README with the part between the markers replaced."""
    before, rest = readme.split(MARKERS[0])
    return before + new + rest.split(MARKERS[1])[1]


def main() -> None:
    run_id = read_reference(REFERENCE).get("run_id", "none")
    panels = Path(settings.outputs) / "q_groundcam" / run_id / "figures" / "panels.png"
    if not panels.is_file():
        sys.exit(f"The run {run_id} of outputs/reference/q_groundcam is not there. Make it: make papers")
    FOLDER.mkdir(exist_ok=True)
    shutil.copyfile(panels, FOLDER / "panels.png")
    readme = ROOT / "README.md"
    readme.write_text(replaced(readme.read_text(encoding="utf-8"), stored_block()), encoding="utf-8")
    print(f"README.md and docs/first_run/ now show run {run_id}.")


if __name__ == "__main__":
    main()
