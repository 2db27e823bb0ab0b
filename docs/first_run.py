"""Put a finished run into the README: `python docs/first_run.py` (run `make reproduce` first).

Takes the newest finished run of nbs/papers/q_groundcam.ipynb with its default parameters, copies its panels and its
score table to docs/first_run/, and writes the picture, its caption and the table between the markers of README.md. No
number in the README is typed by hand; tests/test_readme.py compares it with the files that were copied.
"""

import json
import shutil
import sys
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "first_run"
MARKERS = ("<!-- first run: begin -->", "<!-- first run: end -->")


def newest_run() -> tuple[Path, dict]:
    """Folder and record of the newest finished run of the notebook with its own defaults."""
    from qgcam_lib.runs import find_runs
    from qgcam_lib.runs.parameters import read_parameters

    defaults = read_parameters(ROOT / "nbs" / "papers" / "q_groundcam.ipynb")
    for folder, record in find_runs(notebook="q_groundcam"):
        given = record["parameters"]
        if given == {p.name: p.default for p in defaults.values()}:
            return folder, record
    sys.exit("There is no finished run of q_groundcam with its default parameters. Make one: make reproduce")


def block(facts: dict, table: pd.DataFrame) -> str:
    """The part of the README between the markers, from the facts and the score table of a run."""
    lines = ["| " + " | ".join(row) + " |" for row in [table.columns, ["---"] * table.shape[1], *table.to_numpy()]]
    alternative = "Best, worst, typical and uncertain example of a run: image with box, heat map with peaks, scores"
    caption = (f"*A run on the **miniworld**: drawn scenes, a small BLIP trained on them, {facts['n']} phrases, "
               f"GradCAM, protocol `{facts['protocol']}`. Examples are chosen by rule. White frame: the phrase's box; "
               f"ring: a peak inside; cross: a peak outside; large: the highest. Run `{facts['run_id']}`. The numbers "
               "show that the machinery works; they are no result about photographs.*")
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


def stored_block() -> str:
    """The block that belongs to the files in docs/first_run."""
    facts = json.loads((FOLDER / "facts.json").read_text(encoding="utf-8"))
    return block(facts, pd.read_csv(FOLDER / "score_table.csv", dtype=str))


def main() -> None:
    folder, record = newest_run()
    FOLDER.mkdir(exist_ok=True)
    shutil.copyfile(folder / "tables" / "score_table.csv", FOLDER / "score_table.csv")
    shutil.copyfile(folder / "figures" / "panels.png", FOLDER / "panels.png")
    facts = {"run_id": record["run_id"], "git": record["git"], "n": record["results"]["n"],
             "protocol": record["parameters"]["protocol"], "parameters": record["parameters"]}
    (FOLDER / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(replaced(readme.read_text(encoding="utf-8"), stored_block()), encoding="utf-8")
    print(f"README.md and docs/first_run/ now show run {record['run_id']}.")


if __name__ == "__main__":
    main()
