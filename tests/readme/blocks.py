"""What a reader can run in README, the guide and CONTRIBUTING: Python blocks and shell commands by their headings."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]

FILES_READ = ("README.md", "docs/guide.md", "CONTRIBUTING.md")
NOT_RUN = {  # the beginning of a command that installs, fetches, trains or serves -> what stands for it in the tests
    "git clone": "fetches; the tests stand in a clone",
    "python3 -m venv": "installs; test_the_core_installs_alone does it with a wheel",
    "pip install": "installs; test_the_core_installs_alone does it with a wheel",
    "make": "installs, trains, serves, or runs these tests; every target is looked up in the Makefile",
    "PIP_NO_DEPS=1 conda": "installs 7 GB; test_frame compares every pin with the lock",
    "qgcam run nbs/papers/q_groundcam.ipynb -p dataset /path": "fetches weights, and needs Flickr30k Entities",
    "snakemake": "fetches weights, and needs the data sets; test_cli runs the Snakefile on a small notebook",
}
SMALLER = {"-p limit 60": "-p limit 3"}  # a part of a command -> what the tests write instead


@dataclass(frozen=True)
class Block:
    """A fenced block. file: name; heading: the one above it; language: "python" or "bash"; text: without the fences."""

    file: str
    heading: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block without their comments; a line that ends in a backslash goes on."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in (re.sub(r"(^|\s+)#.*", "", line).strip() for line in lines) if line]


def blocks() -> list[Block]:
    """Every Python and shell block of FILES_READ, in order."""
    found = []
    for name in FILES_READ:
        heading, rest = "", (ROOT / name).read_text(encoding="utf-8")
        for match in re.finditer(r"^#+ ([^\n]+)$|^```(\w+)\n(.*?)^```$", rest, flags=re.M | re.S):
            heading = match[1] or heading
            if match[2] in ("python", "bash"):
                found.append(Block(name, heading, match[2], match[3]))
    return found


# --- what a reader has beside the commands ---------------------------------------------------------------------------

def notebook(folder: Path) -> None:
    """A paper notebook in small, in the place of the one that the commands run."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    cells = ["from qgcam_lib.runs import open_run", "limit: int = 4  # phrases",
             "run = open_run('q_groundcam', globals())\nrun.record(n=limit)", "run.colophon()"]
    made = new_notebook(cells=[new_code_cell(cell, id=f"cell{k}") for k, cell in enumerate(cells)], metadata={
        "kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}})
    made.cells[1].metadata["tags"] = ["parameters"]
    (folder / "nbs" / "papers").mkdir(parents=True)
    nbformat.write(made, folder / "nbs" / "papers" / "q_groundcam.ipynb")


def own_maps(folder: Path) -> None:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    save_file({name: rng.random((8, 8), dtype=np.float32) for name in "ab"}, folder / "maps.safetensors")
    (folder / "boxes.csv").write_text("id,x0,y0,x1,y1,height,width\na,0,0,20,20,64,96\nb,30,10,60,50,64,96\n")
    (folder / "others.csv").write_text("id,group,pg_hit,io_ratio\na,a,1,0.5\nb,b,0,0.25\n")


def own_detections(folder: Path) -> None:
    case = json.loads((ROOT / "data" / "checks" / "tricd_small.json").read_text())
    (folder / "predictions.json").write_text(json.dumps(case["predictions"]))
    (folder / "TRICD_grounding_val.json").write_text(json.dumps(case["annotations"]))


def expressions(folder: Path) -> None:
    """Both forms of Ref-Adv about a few drawn pictures, and scores of some model for each candidate."""
    import pandas as pd

    from qgcam_lib.cli.main import main
    from qgcam_lib.miniworld import ensure_refcocog

    world = ensure_refcocog(folder / "world", n_train=0, n_val=0, n_test=4, progress=False)
    for name in ("adv_easy_hard_annotations.json", "refcocog_adv_annotations.json"):
        (folder / name).write_bytes((world / name).read_bytes())
    (folder / "IMAGES").symlink_to(world / "images")
    table = folder / "candidates.csv"
    assert main(["refer", "splits", str(folder / "adv_easy_hard_annotations.json"), "--out", str(table)]) == 0
    form = pd.read_csv(table)
    form.assign(score=np.random.default_rng(0).random(len(form))).to_csv(folder / "scores.csv", index=False)


def probes(folder: Path) -> None:
    """Two prompts about two pictures in the published form, scores for each, and a COCO to build probes from."""
    from PIL import Image

    from qgcam_lib.miniworld import ensure_coco

    ensure_coco(folder / "COCO", n_train=2, n_val=4, progress=False)

    (folder / "FOLDER").mkdir()
    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        Image.new("RGB", (96, 96), colour).save(folder / "FOLDER" / f"{name}.png")
    texts = {"red": "A photo of a red ball.", "blue": "A photo of a blue ball."}
    one = {f"img{k}_{key}": value for k, name in enumerate(texts, 1) for key, value in (
        ("id", f"{name}.png"), ("prompt", texts[name]), ("composition", name), ("object", "ball"))}
    (folder / "groups.json").write_text(json.dumps([one]))
    rows = [f"{name}.png,{text},{float(name in text) + .1}" for name in texts for text in texts.values()]
    (folder / "scores.csv").write_text("image,prompt,score\n" + "\n".join(rows) + "\n")
    (folder / "winoground.csv").write_text("id,c0_i0,c0_i1,c1_i0,c1_i1\n0,2,1,0,3\n1,1,1,0,3\n")


def relcomp(folder: Path) -> None:
    """What fine-tuning starts from: four pictures of one colour and three texts each."""
    from PIL import Image

    from qgcam_lib.data.probes.files import write_groups
    from qgcam_lib.data.probes.groups import RelCompGroup

    (folder / "images").mkdir()
    colours, groups = ["red", "blue", "green", "white"], []
    for colour, other in zip(colours, colours[1:] + colours[:1]):
        Image.new("RGB", (32, 32), colour).save(folder / "images" / f"{colour}.png")
        texts = (f"The {one} box." for one in (colour, colour, other))
        groups.append(RelCompGroup(colour, f"{colour}.png", *texts, "composition"))
    write_groups(groups, folder / "relcomp_train.json")


def every_task(folder: Path) -> None:
    for write in (own_detections, probes, expressions):  # the last writes the scores.csv that is read
        write(folder)


FILES = {  # heading -> what is in the folder
    "Score your maps": own_maps,
    "Score detections, expressions and probes": every_task,
    "Score your detections": own_detections,
    "Score referring expressions": expressions,
    "Score conceptual probes": probes,
    "Repair a CLIP model": relcomp,
    "Run a notebook": notebook,
}
