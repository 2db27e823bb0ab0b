"""Put the run that the page of q_groundcam shows into README and docs/status.md: `python docs/first_run.py`.

`make papers` does it. The numbers are those in outputs/reference/q_groundcam. The script copies the run's panels to
docs/first_run/, writes picture and caption into README.md, and the score table into docs/status.md, each between its
markers. tests/test_readme.py compares both with the reference.
"""

import shutil
import sys
from pathlib import Path

import pandas as pd
from page_tables import replaced

from qgcam_lib.runs.reference import REFERENCES, read_reference
from qgcam_lib.settings import settings

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "first_run"
REFERENCE = REFERENCES / "q_groundcam"


def picture() -> str:
    """The picture of the run and its caption, for README."""
    facts = read_reference(REFERENCE)
    alternative = "Best, worst, typical and uncertain phrase of a run: picture with box, heat map, hit or miss, scores"
    n, protocol = facts["results"]["n"], facts["parameters"]["protocol"]
    caption = (f"*GradCAM maps of a small BLIP on synthetic scenes (the miniworld), {n} phrases, protocol `{protocol}`:"
               " the phrase with the largest share of the map in its box beyond the box's share of the image, the miss "
               "with the smallest, a typical and an uncertain one. White frame: the box; marks: the map's maximum. "
               f"[All scores](docs/status.md#the-score-table-of-the-first-run) of run `{facts['run_id']}`.*")
    return f"![{alternative}](docs/first_run/panels.png)\n\n{caption}"


def score_table() -> str:
    """The score table of the run, for docs/status.md."""
    table = pd.read_csv(REFERENCE / "tables" / "score_table.csv", dtype=str)
    lines = ["| " + " | ".join(row) + " |" for row in [table.columns, ["---"] * table.shape[1], *table.to_numpy()]]
    return "\n".join([*lines, "", "Means over phrases with 95 % intervals, clustered by image."])


BLOCKS = {"README.md": ("first run", picture), "docs/status.md": ("first scores", score_table)}


def main() -> None:
    run_id = read_reference(REFERENCE).get("run_id", "none")
    panels = Path(settings.outputs) / "q_groundcam" / run_id / "figures" / "panels.png"
    if not panels.is_file():
        sys.exit(f"The run {run_id} of outputs/reference/q_groundcam is not there. Make it: make papers")
    FOLDER.mkdir(exist_ok=True)
    shutil.copyfile(panels, FOLDER / "panels.png")
    for file, (name, write) in BLOCKS.items():
        page = (ROOT / file).read_text(encoding="utf-8")
        (ROOT / file).write_text(replaced(page, name, write()), encoding="utf-8")
    print(f"README.md, docs/status.md and docs/first_run/ now show run {run_id}.")


if __name__ == "__main__":
    main()
