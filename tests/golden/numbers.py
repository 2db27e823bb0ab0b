"""What the library computed when these files were written; `python -m tests.golden.numbers` writes them again.

arrays.safetensors: float32 heat maps of every mini explainer, and the best boxes of every mini detector, on the
miniworld. numbers.json: the scores of these stored arrays, exact on any processor, and means of some splits with the
half widths of their 95 % intervals. tests/test_golden.py computes all of it again and compares, each kind by its rule.
"""

import hashlib
import json
import math
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

FILE = Path(__file__).with_name("numbers.json")
ARRAYS = Path(__file__).with_name("arrays.safetensors")
PICTURES, CLOSE, GROUPS, MAX_BOXES, PHRASES = 20, 6, 40, 5, 60  # CLOSE: maps that are compared value by value
EXPLAINERS = {"blip-base": 40, "blip-large": 40, "albef-amc": 40, "vilt": 40, "bridgetower": 40,
              "clip-rn50x16-gscorecam": 12}  # and of how many phrases each explains; gScoreCAM is slow
READINGS = ({"block": 1}, {"tokens": "lavis"}, {"tokens": 0})  # of blip-base, beside its own
DETECTORS = ("mdetr-like", "glip-like", "owl-vit-b32")
ANSWERER = "blip-base-as-answerer"
SPLITS = (("miniworld", "test"), ("miniworld-refcoco+", "testA"), ("miniworld-refcoco+", "testB"),
          ("miniworld-spatialsense", "triplets"), ("miniworld-spatialsense", "subjects"),
          ("miniworld-spatialsense", "objects"))


@cache
def stored() -> dict[str, np.ndarray]:
    return load_file(ARRAYS)


def number(value: float) -> float | None:
    """A number as it is stored: twelve digits, None for an undefined one."""
    return None if value is None or math.isnan(value) else float(f"{float(value):.12g}")


def digest(examples) -> str:
    """A checksum of what is asked and of the right answers: ids, phrases, sizes and boxes."""
    return hashlib.sha256(repr([(e.id, e.prompt, tuple(map(int, e.size)), np.asarray(e.boxes, float).tolist())
                                for e in examples]).encode()).hexdigest()[:16]


# --- maps of models ---------------------------------------------------------------------------------------------------

@cache
def examples() -> list:
    """Two phrases of twenty test pictures of the miniworld."""
    from qgcam_lib.data.catalog import load_dataset

    data = load_dataset("miniworld", split="test")
    names = data.images()
    return [e for name in names[::len(names) // PICTURES][:PICTURES] for e in data.read_image(name)[0][:2]]


def maps_of(model, asked) -> np.ndarray:
    """The raw maps of some examples, float32 [n, h, w], as `ground` stores them."""
    import tempfile

    from qgcam_lib.grounding import ground
    from qgcam_lib.storage.rows import MapStore

    with tempfile.TemporaryDirectory() as folder:
        ground(model, list(asked), save_maps=folder, progress=False)
        return np.stack(MapStore(folder).maps([e.id for e in asked]))


def scored(maps, asked, protocol="paper", **options):
    """One row of scores a map."""
    from qgcam_lib.metrics import score_maps

    return score_maps(list(maps), [e.boxes for e in asked], image_sizes=[e.size for e in asked], protocol=protocol,
                      ids=[f"{k} {e.id}" for k, e in enumerate(asked)], groups=[e.group for e in asked], **options)


def intervals(frame) -> dict:
    """Mean and half width of the 95 % interval of every score, by name. frame: of `summarize` or an evaluator."""
    subsets = frame["subset"] + " " if "subset" in frame else ""
    return {name: [number(row.value), number((row.ci_high - row.ci_low) / 2)]
            for name, row in zip(subsets + frame["metric"], frame.itertuples())}


def means(frame) -> dict:
    from qgcam_lib.statistics import summarize

    return intervals(summarize(frame, [name for name in frame if name not in ("id", "group", "protocol")]))


# --- scores of stored arrays ------------------------------------------------------------------------------------------

def stored_scores() -> dict:
    """Under every protocol: means and undefined scores of all stored maps, and the verdict on each map."""
    from qgcam_lib.maps import PROTOCOLS, MapProtocol
    from qgcam_lib.metrics import SCORE_COLUMNS

    maps = [a for name in EXPLAINERS for a in stored()[name]]
    asked = [e for n in EXPLAINERS.values() for e in examples()[:n]]
    found = {"examples": digest(examples())}
    for rule in [*PROTOCOLS.values(), MapProtocol("share of the maximum", before="max", grid="native")]:
        if rule.name != "native":  # which takes no map above 1, as gScoreCAM's are
            frame = scored(maps, asked, rule)
            found[rule.name] = {name: number(frame[name].mean()) for name in SCORE_COLUMNS} | {
                "undefined": int(frame.isna().sum().sum()), "ties": frame.pg_ties.tolist(),
                "ties inside": (frame.pg_hit * frame.pg_ties).round().astype(int).tolist(),
                "uncertain": np.flatnonzero(frame.pg_uncertain).tolist()}
    return found | {f"ties {rule}": number(scored(maps, asked, ties=rule).pg_hit.mean())
                    for rule in ("first", "optimistic", "pessimistic")}


def stored_audit() -> dict:
    """Every score of blip-base's stored maps under every open choice that needs no model."""
    from qgcam_lib.data.catalog import load_dataset
    from qgcam_lib.grounding.audit import MapSet, sensitivity
    from qgcam_lib.papers.q_groundcam.audit import open_choices

    asked = examples()
    maps = MapSet([e.id for e in asked], [e.group for e in asked], list(stored()["blip-base"]),
                  [e.boxes for e in asked], np.array([e.size for e in asked]))
    found = sensitivity(maps, open_choices(boxes="list"), n_bootstrap=20,
                        other_boxes=maps.with_boxes(load_dataset("miniworld", split="test", boxes="list")))
    return {f"{r.question} | {r.answer} | {r.metric}": number(r.value) for r in found.itertuples()}


@cache
def pairs():
    """The pairs of forty groups of TRICD, and where their pictures are."""
    from qgcam_lib.data.tricd.files import tricd_files
    from qgcam_lib.data.tricd.pairs import load_tricd
    from qgcam_lib.phrase_detection.run import take_groups

    files = tricd_files("", "test")
    return take_groups(load_tricd(files.grounding), GROUPS, 0), files


def detections(model: str) -> dict[str, np.ndarray]:
    """The best boxes of every phrase of these pairs, one row a box."""
    from qgcam_lib.phrase_detection.run import predictions_for

    part, files = pairs()
    found = predictions_for(model, part, files.images, max_boxes=MAX_BOXES, progress=False)
    columns = {"scores": np.float32, "boxes": np.float32, "phrase_ids": np.int32}
    return {"pairs": np.repeat(np.array(list(found), np.int32), [len(one["scores"]) for one in found.values()])} | {
        name: np.concatenate([one[name] for one in found.values()]).astype(kind) for name, kind in columns.items()}


def stored_detections(model: str) -> dict[str, np.ndarray]:
    return {name: stored()[f"{model} {name}"] for name in ("pairs", "scores", "boxes", "phrase_ids")}


def evaluated(rows: dict[str, np.ndarray], n_bootstrap: int = 200):
    """TRICD's scores of such boxes, with intervals."""
    from qgcam_lib.phrase_detection import evaluate

    part, _ = pairs()
    return evaluate(part, {id: {name: rows[name][rows["pairs"] == id] for name in ("scores", "boxes", "phrase_ids")}
                           for id in part.pair_ids.tolist()}, n_bootstrap=n_bootstrap)


def stored_evaluation() -> dict:
    """TRICD's scores of one detector's stored boxes, with the ends of their intervals."""
    return {f"{r.subset} {r.metric}": [number(r.value), number(r.ci_low), number(r.ci_high)]
            for r in evaluated(stored_detections("glip-like")).itertuples()}


@cache
def questions():
    from qgcam_lib.phrase_detection.questions import load_tricd_vqa
    from qgcam_lib.phrase_detection.run import take_question_groups

    _, files = pairs()
    return take_question_groups(load_tricd_vqa(files.questions, files.grounding), GROUPS, 0)


def answers() -> str:
    """The answer to every question, y for yes and n for no."""
    from qgcam_lib.phrase_detection.run import answers_for

    found = answers_for(ANSWERER, questions(), pairs()[1].images, weights="mini", progress=False)
    return "".join(found["answer"].str[0])


def judged(said: str):
    """Macro-F1 and the other scores of such answers, with intervals."""
    from qgcam_lib.phrase_detection.questions import evaluate_answers

    words = {"y": "yes", "n": "no"}
    return evaluate_answers(questions(), dict(zip(questions()["image_id"].tolist(), (words[c] for c in said))),
                            n_bootstrap=200)


def scenes() -> dict:
    """Checksums of drawn scenes and of what is written about them, for each official format."""
    from miniworld_sums import checksum_of

    from qgcam_lib import miniworld

    return {"flickr30k": miniworld.checksum(range(12)),
            **{name: checksum_of(name) for name in ("refer", "spatialsense", "tricd")}}


EXACT = {"scores": stored_scores, "audit": stored_audit, "evaluation": stored_evaluation, "scenes": scenes}


# --- from the picture to the score ------------------------------------------------------------------------------------

def split_scores(dataset: str, split: str) -> dict:
    """Sixty phrases of one split scored for one mini: which they are, and the means with their half widths."""
    from qgcam_lib.data.catalog import load_dataset
    from qgcam_lib.grounding import ground
    from qgcam_lib.metrics import SCORE_COLUMNS
    from qgcam_lib.models import load_model

    data = load_dataset(dataset, split=split)
    frame = ground(load_model("blip-base"), data, limit=PHRASES, progress=False)
    return {"examples": digest(data.example(id) for id in frame["id"]), **means(frame[[*SCORE_COLUMNS, "id", "group"]])}


def load_reading(reading: dict):
    from qgcam_lib.models import load_model

    return load_model("blip-base", **reading)


def title(reading: dict) -> str:
    return "blip-base " + " ".join(f"{name} {value}" for name, value in reading.items())


def main() -> None:
    from qgcam_lib.models import load_model

    arrays = {name: maps_of(load_model(name), examples()[:n]) for name, n in EXPLAINERS.items()}
    arrays |= {title(one): maps_of(load_reading(one), examples()[:CLOSE]) for one in READINGS}
    for name in DETECTORS:
        arrays |= {f"{name} {column}": values for column, values in detections(name).items()}
    save_file(arrays, ARRAYS)
    made = {name: make() for name, make in EXACT.items()}
    said = answers()
    made |= {"answers": {"said": said, **intervals(judged(said))}}
    made |= {f"split {dataset} {split}": split_scores(dataset, split) for dataset, split in SPLITS}
    lines = (f" {json.dumps(part)}: {{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}"
                                                      for name, value in values.items()) + "\n }"
             for part, values in made.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
