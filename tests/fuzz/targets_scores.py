"""Readers of predictions, boxes, maps and scores, on hostile files."""

import io
import json

import numpy as np
import pandas as pd
from harness import Target
from hypothesis import strategies as st
from inputs import any_bytes, built, js, near, zip_bytes
from safetensors.numpy import save
from targets_data import LABELLED_ADV, RELATION, TRICD, VQA, of_file

from qgcam_lib.boxes import as_boxes, box_iou, clip_boxes, voc_to_xyxy, xywh_to_xyxy, yyxx_to_xyxy
from qgcam_lib.data.tables import read_table
from qgcam_lib.data.tricd.pairs import load_tricd
from qgcam_lib.grounding.map_files import read_boxes
from qgcam_lib.grounding.own_maps import score_files
from qgcam_lib.metrics import score_maps
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.prediction_files import read_predictions
from qgcam_lib.phrase_detection.questions import evaluate_answers, load_tricd_vqa
from qgcam_lib.probes.own_scores import score_files as score_probe
from qgcam_lib.referring.run import score_file as score_referring
from qgcam_lib.statistics import compare, summarize

BOX = [24, 57, 18, 22]
BY_IMAGE = {str(n): {"scores": [0.9, 0.2], "boxes": [[24, 57, 42, 79], [0, 0, 5, 5]], "phrase_ids": [n, n]}
            for n in (1, 2, 3, 4)}
BY_LABEL = {str(n): {"scores": [0.9], "boxes": [[24, 57, 42, 79]], "labels": [0]} for n in (1, 2)}
RECORDS = [{"image_id": n, "phrase_id": n, "bbox": BOX, "score": 0.5} for n in (1, 2, 3)]
FLICKR = [{"image_id": 1, "sentence_id": 1, "boxes": [[[24, 57, 42, 79]]], "scores": [[0.5]]}]
INSTANCES = [{"image_id": 1, "instances": [{"image_id": 1, "category_id": 0, "bbox": BOX, "score": 0.5}]}]
TABLE = [{"image_id": n, "phrase_id": n, "score": 0.5, "x0": 1.0, "y0": 2.0, "x1": 30.0, "y1": 40.0} for n in (1, 2, 3)]
MAPS = {str(k): np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4) for k in range(3)}
BOXES = [{"id": str(k), "x0": 1, "y0": 2, "x1": 30, "y1": 40, "width": 64, "height": 48, "group": "g", "kind": "cat"}
         for k in range(3)]
BOX_JSON = {str(k): {"boxes": [[1, 2, 30, 40]], "size": [48, 64], "group": "g", "kind": "cat"} for k in range(3)}
BOX_COCO = {"images": [{"id": k, "height": 48, "width": 64} for k in range(3)],
            "annotations": [{"id": k, "image_id": k, "bbox": [1, 2, 29, 38]} for k in range(3)]}
PROMPTS = ("a man on a horse", "a dog on a", "a man under a horse", "A photo of man.", "A photo of dog.")
PROBE = [{"image": f"{n}.jpg", "prompt": prompt, "score": 0.1 * n} for n in (30, 1, 2, 3) for prompt in PROMPTS]
PAIRS = [{"id": k, "group": "g", "c0_i0": 0.5, "c0_i1": 0.1, "c1_i0": 0.2, "c1_i1": 0.7, "kind": "a"} for k in range(3)]
CHOICES = [{"id": f"{label}/3/0", "candidate": k, "score": 0.1 * k} for label in ("easy", "hard") for k in (0, 1)]
ANSWERS = {"1": "yes"}
FRAME = [{"id": str(k), "group": str(k % 3), "model": "a", "io_ratio": 0.1 * k, "pg_hit": float(k % 2), "wdp_soft": 0.5}
         for k in range(6)]
MEMORY = {"maps": [MAPS["0"].tolist()] * 2, "boxes": [[1, 0, 3, 2]] * 2, "sizes": [[48, 64]] * 2, "protocol": "paper",
          "tau": 0.7, "negatives": "error"}


def csv(rows) -> bytes:
    return pd.DataFrame(rows).to_csv(index=False).encode()


def parquet(rows) -> bytes:
    out = io.BytesIO()
    pd.DataFrame(rows).to_parquet(out, index=False)
    return out.getvalue()


def npy(array) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def made(shape, kind, fill):
    try:
        with np.errstate(all="ignore"):
            return npy(np.full(shape, fill).astype(kind))
    except (ValueError, TypeError, OverflowError):
        return npy(np.zeros(shape))


SHAPES = [(3, 4), (1, 3, 4), (3, 3, 4), (0, 4), (3, 0), (), (5,), (1, 1, 3, 4), (2, 2, 2, 2), (1, 1), (3, 1500)]
DTYPES = ["f4", "f8", "f2", ">f4", "i4", "u1", "b1", "c8", "U3", "S2", "M8[s]", "O", "i8", "f4,f4", "V4"]
FILLS = [0, 1, -1, 0.5, 1e30, -1e30, float("nan"), float("inf"), 254, 1e-30]
arrays = st.one_of(st.builds(made, *map(st.sampled_from, (SHAPES, DTYPES, FILLS))), any_bytes(npy(MAPS["0"])))
STACK, FEW = npy(np.stack(list(MAPS.values()))), {f"{name}.npy": npy(one) for name, one in MAPS.items()}
STACKED = {"a.npy": STACK, "ids.npy": npy(np.array(["0", "1", "2"]))}
SAFE = save({name: np.asarray(one) for name, one in MAPS.items()})


def within(frame: pd.DataFrame, *columns: str) -> None:
    for name in columns:
        values = pd.to_numeric(frame[name]).dropna()
        assert ((values >= -1e-9) & (values <= 1 + 1e-9)).all(), f"{name} outside 0..1: {values.tolist()[:5]}"


def of_memory(name, base, call, **files):
    """A target on a value of JSON that a program gives; where the text is none, there is nothing to give."""

    def read(folder):
        try:
            value = json.loads((folder / "v.json").read_bytes())
        except (ValueError, RecursionError):
            return
        call(folder, value)

    valid = {"v.json": js(base), **{f"{file}.json": js(content) for file, content in files.items()}}
    return Target(name, valid, read, near({"v.json": js(base)}).map(lambda found: {**valid, **found}))


def of_predictions(name, file, base, form=js):
    def call(folder):
        data = load_tricd(folder / "t.json")
        found = read_predictions(folder / file, data, image_ids="pair", phrases=0)
        assert all(np.isfinite(one["boxes"]).all() and np.isfinite(one["scores"]).all() for one in found.values())
        within(evaluate(data, found), "value")

    files = {"t.json": js(TRICD), file: form(base)}
    strategy = near({file: form(base)}, **({} if form is js else {file: built(base, form)}))
    return Target(f"predictions {name}", files, call, strategy.map(lambda found: {**files, **found}))


def evaluated(folder, value):
    within(evaluate(load_tricd(folder / "t.json"), value), "value")


def answered(folder, value):
    within(evaluate_answers(load_tricd_vqa(folder / "q.json"), value, on_missing="count"), "value")


def of_map_scores(frame):
    within(frame, "iou_soft", "iou_binary", "wdp_soft", "wdp_binary", "io_ratio", "pg_hit")


def of_maps(name, own, files, **special):
    def call(folder):
        for on_error in ("record", "raise"):
            of_map_scores(score_files(folder / own, folder / "b.csv", common=True, on_error=on_error))

    strategy = near(files, **special).map(lambda found: {**found, "b.csv": csv(BOXES)})
    return Target(f"maps {name}", {**files, "b.csv": csv(BOXES)}, call, strategy)


def zipped(members):
    """Zip files, the members of which are any arrays."""
    inside = near(members, **dict.fromkeys(members, arrays)).map(zip_bytes)
    return st.one_of(inside, inside, any_bytes(zip_bytes(members)))


def all_boxes(path):
    for box_format in (None, "xywh", "yyxx"):
        for on_error in ("record", "raise"):
            try:
                found = read_boxes(path, box_format, on_error)
            except ValueError:
                if box_format is None and on_error == "raise":
                    raise
                continue
            for one in found.values():
                assert np.isfinite(one.boxes).all() and (one.boxes[:, 2:] >= one.boxes[:, :2]).all()


def converted(folder, value):
    for use in (as_boxes, xywh_to_xyxy, yyxx_to_xyxy, voc_to_xyxy, lambda v: clip_boxes(v, (48, 64))):
        try:
            use(value)
        except ValueError:
            continue
    overlap = box_iou(as_boxes(value), as_boxes(value))
    assert ((overlap >= 0) & (overlap <= 1)).all(), "IoU outside 0..1"


def scored(folder, value):
    value = value if isinstance(value, dict) else {}
    of_map_scores(score_maps(value.get("maps", []), value.get("boxes", []), image_sizes=value.get("sizes"),
                             protocol=value.get("protocol"), tau=value.get("tau", 0.7),
                             negatives=value.get("negatives", "error")))


def summarized(path):
    frame = read_table(path)
    found = summarize(frame, by="model", n_bootstrap=20)
    assert (found["ci_low"].isna() | (found["ci_low"] <= found["ci_high"])).all()
    compare(frame, frame, n_bootstrap=20, n_permutations=20)


def of_scores(name, file, rows, beside, content, score, *columns):
    """A task's scores in a file, beside the file of what was asked."""

    def call(folder):
        for missing in ("undefined", "raise"):
            within(score(folder / file, folder / beside, missing=missing), *columns)

    files = {beside: js(content), file: csv(rows) if file.endswith("csv") else js(rows)}
    return Target(name, files, call, near(files))


TARGETS = [
    of_predictions("by image", "p.json", BY_IMAGE), of_predictions("by label", "p.json", BY_LABEL),
    of_predictions("records", "p.json", RECORDS), of_predictions("flickr", "p.json", FLICKR),
    of_predictions("instances", "p.json", INSTANCES), of_predictions("csv", "p.csv", TABLE, csv),
    of_predictions("parquet", "p.parquet", TABLE, parquet),
    of_memory("predictions in memory", BY_IMAGE, evaluated, t=TRICD), of_memory("answers", ANSWERS, answered, q=VQA),
    of_file("boxes csv", "b.csv", csv(BOXES), all_boxes), of_file("boxes json", "b.json", BOX_JSON, all_boxes),
    of_file("boxes coco", "b.json", BOX_COCO, read_boxes),
    Target("boxes parquet", {"b.parquet": parquet(BOXES)}, lambda folder: all_boxes(folder / "b.parquet"),
           built(BOXES, parquet).map(lambda data: {"b.parquet": data})),
    of_memory("boxes in memory", [[1, 2, 3, 4], [0, 0, 9, 9]], converted),
    of_memory("scores in memory", MEMORY, scored),
    of_maps("npz", "m.npz", {"m.npz": zip_bytes(FEW)}, **{"m.npz": zipped(FEW)}),
    of_maps("npz stack", "m.npz", {"m.npz": zip_bytes(STACKED)}, **{"m.npz": zipped(STACKED)}),
    of_maps("npy", "m.npy", {"m.npy": STACK}, **{"m.npy": arrays}),
    of_maps("safetensors", "m.safetensors", {"m.safetensors": SAFE}),
    of_maps("folder", "m", {f"m/{name}": data for name, data in FEW.items()}, **{f"m/{name}": arrays for name in FEW}),
    of_file("summaries", "f.csv", csv(FRAME), summarized), of_file("table json", "f.json", FRAME, read_table),
    Target("table parquet", {"f.parquet": parquet(FRAME)}, lambda folder: read_table(folder / "f.parquet"),
           built(FRAME, parquet).map(lambda data: {"f.parquet": data})),
    of_scores("probe scores csv", "s.csv", PROBE, "g.json", RELATION, score_probe, "confidence"),
    of_scores("probe scores json", "s.json", PROBE, "g.json", RELATION, score_probe, "confidence"),
    of_file("probe scores pairs", "s.csv", csv(PAIRS),
            lambda path: within(score_probe(path), "text_score", "image_score", "group_score")),
    of_scores("referring scores csv", "s.csv", CHOICES, "e.json", LABELLED_ADV, score_referring, "iou", "random"),
    of_scores("referring scores json", "s.json", CHOICES, "e.json", LABELLED_ADV, score_referring, "iou", "random"),
]
