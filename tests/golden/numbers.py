"""The numbers that a rebuilding of the library must leave alone: `python -m tests.golden.numbers` writes them again.

Scores of some phrases of each split for each mini, the summary and answers of some groups of TRICD, an audit of some
phrases, and checksums of drawn scenes. All on the miniworld. tests/test_golden.py takes them again and compares.
"""

import hashlib
import json
import math
from pathlib import Path

FILE = Path(__file__).with_name("numbers.json")
PHRASES, GROUPS, AUDITED, BOOTSTRAP = 60, 40, 40, 200
MINIS = ("blip-base", "blip-large", "albef-amc", "clip-rn50x16-gscorecam")
SPLITS = (("miniworld", "test"), ("miniworld-refcoco+", "testA"), ("miniworld-refcoco+", "testB"),
          ("miniworld-spatialsense", "triplets"), ("miniworld-spatialsense", "subjects"),
          ("miniworld-spatialsense", "objects"))
DETECTORS = ("mdetr-like", "glip-like", "owl-vit-b32")
ANSWERERS = ("blip-base-as-answerer", "clip-rn50x16-as-answerer")


def number(value) -> float | None:
    """A number as it is kept: twelve digits, None for an undefined one."""
    return None if value is None or math.isnan(value) else float(f"{float(value):.12g}")


def means(frame) -> dict:
    """The mean of every score of a frame of `ground`, its n undefined, and a checksum of the texts asked."""
    from qgcam_lib.metrics import SCORE_COLUMNS

    found = {name: number(frame[name].mean()) for name in SCORE_COLUMNS}
    texts = hashlib.sha256("\n".join(frame["id"] + " " + frame["prompt"]).encode()).hexdigest()
    return {"n": len(frame), "undefined": int(frame[list(SCORE_COLUMNS)].isna().sum().sum()), "texts": texts, **found}


def map_scores(model: str, dataset: str, split: str) -> dict:
    """Sixty phrases of one split, scored for one mini."""
    from qgcam_lib.data.catalog import load_dataset
    from qgcam_lib.grounding import ground
    from qgcam_lib.models import load_model

    frame = ground(load_model(model), load_dataset(dataset, split=split), limit=PHRASES, progress=False)
    return means(frame)


def cells(summary) -> dict:
    """The values of a summary by subset and metric."""
    return {f"{row.subset} {row.metric}": [number(row.value), number(row.ci_low), number(row.ci_high)]
            for row in summary.itertuples()}


def detection(model: str) -> dict:
    """TRICD's scores of one mini detector on forty groups, with intervals."""
    from qgcam_lib.data.tricd.files import tricd_files
    from qgcam_lib.data.tricd.pairs import load_tricd
    from qgcam_lib.phrase_detection import evaluate
    from qgcam_lib.phrase_detection.run import predictions_for, take_groups

    files = tricd_files("", "test")
    part = take_groups(load_tricd(files.grounding), GROUPS, 0)
    found = predictions_for(model, part, files.images, progress=False)
    return cells(evaluate(part, found, n_bootstrap=BOOTSTRAP))


def answers(model: str) -> dict:
    """Macro-F1 and its kin of one answering mini on the questions of forty groups, and a checksum of what it said."""
    from qgcam_lib.data.tricd.files import tricd_files
    from qgcam_lib.phrase_detection.question_run import answers_for, answers_of, take_question_groups
    from qgcam_lib.phrase_detection.questions import evaluate_answers, load_tricd_vqa

    files = tricd_files("", "test")
    part = take_question_groups(load_tricd_vqa(files.questions, files.grounding), GROUPS, 0)
    said = answers_of(answers_for(model, part, files.images, weights="mini", progress=False))
    texts = hashlib.sha256(json.dumps({str(key): str(value) for key, value in said.items()}).encode()).hexdigest()
    return {"said": texts, **cells(evaluate_answers(part, said, n_bootstrap=BOOTSTRAP))}


def audit(folder: Path) -> dict:
    """How far every open choice moves every score of forty phrases; maps are kept in `folder`."""
    from functools import partial

    from qgcam_lib.data.catalog import load_dataset
    from qgcam_lib.grounding.audit import make_maps, open_choices, other_readings, remaker, sensitivity
    from qgcam_lib.models import load_model

    data, explainer = load_dataset("miniworld", split="test"), load_model("blip-base")
    maps = make_maps(explainer, data, folder / "base", limit=AUDITED, seed=0)
    choices = open_choices(explainer.card, boxes="list", **other_readings(explainer))
    swapped = maps.with_boxes(load_dataset("miniworld", split="test", boxes="list"))
    remake = remaker(partial(load_model, "blip-base"), data, folder, limit=AUDITED, seed=0)
    found = sensitivity(maps, choices, other_boxes=swapped, explain=remake, n_bootstrap=BOOTSTRAP)
    return {f"{r.question} | {r.answer} | {r.metric}": [number(r.value), number(r.ci_low), number(r.ci_high)]
            for r in found.itertuples()}


def scenes() -> dict:
    """Checksums of drawn scenes and of what is written about them, for each official format."""
    from qgcam_lib import miniworld

    return {"flickr30k": miniworld.checksum(range(12)), "refer": miniworld.refer_checksum(),
            "spatialsense": miniworld.spatialsense_checksum(), "tricd": miniworld.tricd_checksum()}


def parts(folder: Path) -> dict:
    """Name of every part and what makes it."""
    found = {f"scores {model} {dataset} {split}": (map_scores, model, dataset, split)
             for model in MINIS for dataset, split in SPLITS}
    found |= {f"detection {model}": (detection, model) for model in DETECTORS}
    found |= {f"answers {model}": (answers, model) for model in ANSWERERS}
    return found | {"audit blip-base": (audit, folder), "scenes": (scenes,)}


def main() -> None:
    import tempfile
    import time

    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for name, (make, *given) in parts(Path(folder)).items():
            began = time.perf_counter()
            made[name] = make(*given)
            print(f"{time.perf_counter() - began:6.1f} s  {name}", flush=True)
    FILE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
