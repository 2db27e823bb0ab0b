"""Readers of predictions, boxes, maps and scores, on hostile files."""

import io
import json

import numpy as np
import pandas as pd
from harness import Target
from hypothesis import strategies as st
from inputs import any_bytes, built, json_bytes, near, one_edited, zip_bytes, zipped
from safetensors.numpy import save
from targets_data import LABELLED_ADV, RELATION, TRICD, VQA, js

from qgcam_lib.boxes import as_boxes, box_iou, clip_boxes, voc_to_xyxy, xywh_to_xyxy, yyxx_to_xyxy
from qgcam_lib.data.tricd.pairs import load_tricd
from qgcam_lib.grounding.box_files import read_boxes
from qgcam_lib.grounding.own_maps import score_files
from qgcam_lib.metrics import score_maps
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.prediction_files import read_predictions
from qgcam_lib.phrase_detection.questions import evaluate_answers, load_tricd_vqa
from qgcam_lib.probes.own_scores import score_files as score_probe
from qgcam_lib.referring.own_scores import score_file as score_referring
from qgcam_lib.statistics import compare, summarize
from qgcam_lib.storage.tables import read_table

BY_IMAGE = {
    str(n): {"scores": [0.9, 0.2], "boxes": [[24, 57, 42, 79], [0, 0, 5, 5]], "phrase_ids": [n, n]}
    for n in (1, 2, 3, 4)
}
BY_LABEL = {str(n): {"scores": [0.9], "boxes": [[24, 57, 42, 79]], "labels": [0]} for n in (1, 2)}
RECORDS = [{"image_id": n, "phrase_id": n, "bbox": [24, 57, 18, 22], "score": 0.5} for n in (1, 2, 3)]
FLICKR = [{"image_id": 1, "sentence_id": 1, "boxes": [[[24, 57, 42, 79]]], "scores": [[0.5]]}]
INSTANCES = [{"image_id": 1, "instances": [{"image_id": 1, "category_id": 0, "bbox": [24, 57, 18, 22], "score": 0.5}]}]
TABLE = [{"image_id": n, "phrase_id": n, "score": 0.5, "x0": 1.0, "y0": 2.0, "x1": 30.0, "y1": 40.0} for n in (1, 2, 3)]
MAPS = {str(k): np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4) for k in range(3)}
BOXES = [
    {"id": str(k), "x0": 1, "y0": 2, "x1": 30, "y1": 40, "width": 64, "height": 48, "group": "g", "kind": "cat"}
    for k in range(3)
]
BOX_JSON = {str(k): {"boxes": [[1, 2, 30, 40]], "size": [48, 64], "group": "g", "kind": "cat"} for k in range(3)}
BOX_COCO = {
    "images": [{"id": k, "height": 48, "width": 64} for k in range(3)],
    "annotations": [{"id": k, "image_id": k, "bbox": [1, 2, 29, 38]} for k in range(3)],
}
PROBE = [
    {"image": f"{n}.jpg", "prompt": prompt, "score": 0.1 * n}
    for n in (30, 1, 2, 3)
    for prompt in ("a man on a horse", "a dog on a", "a man under a horse", "A photo of man.", "A photo of dog.")
]
PAIRS = [{"id": k, "group": "g", "c0_i0": 0.5, "c0_i1": 0.1, "c1_i0": 0.2, "c1_i1": 0.7, "kind": "a"} for k in range(3)]
CHOICES = [{"id": f"{label}/3/0", "candidate": k, "score": 0.1 * k} for label in ("easy", "hard") for k in (0, 1)]
ANSWERS = {"1": "yes"}
FRAME = [
    {"id": str(k), "group": str(k % 3), "model": "a", "io_ratio": 0.1 * k, "pg_hit": float(k % 2), "wdp_soft": 0.5}
    for k in range(6)
]


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


def _within(frame: pd.DataFrame, *columns: str) -> None:
    for name in columns:
        values = pd.to_numeric(frame[name]).dropna()
        assert ((values >= -1e-9) & (values <= 1 + 1e-9)).all(), f"{name} outside 0..1: {values.tolist()[:5]}"


def _evaluated(folder, name):
    data = load_tricd(folder / "t.json")
    found = read_predictions(folder / name, data, images="pair", phrases=0)
    assert all(np.isfinite(one["boxes"]).all() and np.isfinite(one["scores"]).all() for one in found.values())
    rows = evaluate(data, found)
    _within(rows, "value")


def _predictions(name, base, form=js, suffix="json"):
    files = {"t.json": js(TRICD), f"p.{suffix}": form(base)}
    special = json_bytes(base) if suffix == "json" else built(base, form)
    return Target(
        f"predictions {name}",
        files,
        lambda folder: _evaluated(folder, f"p.{suffix}"),
        special.map(lambda data: {**files, f"p.{suffix}": data}),
    )


def _in_memory(folder):
    """Predictions as JSON gives them, without a file."""
    found = evaluate(load_tricd(folder / "t.json"), json.loads((folder / "p.json").read_bytes()))
    _within(found, "value")


def _map_scores(frame):
    _within(frame, "iou_soft", "iou_binary", "wdp_soft", "wdp_binary", "io_ratio", "pg_hit")


def _scored(name):
    def call(folder):
        for on_error in ("record", "raise"):
            _map_scores(score_files(folder / name, folder / "b.csv", common=True, on_error=on_error))

    return call


def _maps(name, files, make):
    (own,) = files
    files = {**files, "b.csv": csv(BOXES)}
    return Target(f"maps {name}", files, _scored(own), make.map(lambda data: {**files, own: data}))


def _all_boxes(folder):
    suffix = next(path.suffix for path in folder.iterdir())
    for box_format in (None, "xywh", "yyxx"):
        for on_error in ("record", "raise"):
            try:
                found = read_boxes(folder / f"b{suffix}", box_format, on_error)
            except ValueError:
                if box_format is None and on_error == "raise":
                    raise
                continue
            for one in found.values():
                assert np.isfinite(one.boxes).all() and (one.boxes[:, 2:] >= one.boxes[:, :2]).all()


def _array(text: bytes):
    """The value of a JSON text, with NaN; None where it is none (values in memory come from programs)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _boxes_in_memory(folder):
    value = _array((folder / "v.json").read_bytes())
    for use in (as_boxes, xywh_to_xyxy, yyxx_to_xyxy, voc_to_xyxy, lambda v: clip_boxes(v, (48, 64))):
        try:
            found = use(value)
        except ValueError:
            continue
        found = found[0] if isinstance(found, tuple) else found
    overlap = box_iou(as_boxes(value), as_boxes(value))
    assert ((overlap >= 0) & (overlap <= 1)).all(), "IoU outside 0..1"


def _scores_in_memory(folder):
    value = _array((folder / "v.json").read_bytes())
    value = value if isinstance(value, dict) else {}
    frame = score_maps(
        *(value.get(name, []) for name in ("maps", "boxes")),
        image_sizes=value.get("sizes"),
        protocol=value.get("protocol"),
        tau=value.get("tau", 0.7),
        negatives=value.get("negatives", "error"),
    )
    _map_scores(frame)


def _summarized(folder):
    frame = read_table(folder / "f.csv")
    found = summarize(frame, by="model", n_bootstrap=20)
    assert (found["ci_low"].isna() | (found["ci_low"] <= found["ci_high"])).all()
    compare(frame, frame, n_bootstrap=20, n_permutations=20)


def _probe(folder):
    suffix = next(path.suffix for path in sorted(folder.iterdir()) if path.stem == "s")
    _within(score_probe(folder / f"s{suffix}", folder / "g.json", missing="undefined"), "confidence")
    score_probe(folder / f"s{suffix}", folder / "g.json")


def _pairs(folder):
    _within(score_probe(folder / "s.csv"), "text_score", "image_score", "group_score")


def _choices(folder):
    suffix = next(path.suffix for path in sorted(folder.iterdir()) if path.stem == "s")
    for missing in ("undefined", "raise"):
        _within(score_referring(folder / f"s{suffix}", folder / "e.json", missing=missing), "iou", "random")


def _answered(folder):
    _within(
        evaluate_answers(
            load_tricd_vqa(folder / "q.json"), json.loads((folder / "a.json").read_bytes()), on_missing="count"
        ),
        "value",
    )


_ARRAYS = st.sampled_from(
    [(3, 4), (1, 3, 4), (3, 3, 4), (0, 4), (3, 0), (), (5,), (1, 1, 3, 4), (2, 2, 2, 2), (1, 1), (3, 1500)]
)
_KINDS = st.sampled_from(
    ["f4", "f8", "f2", ">f4", "i4", "u1", "b1", "c8", "U3", "S2", "M8[s]", "O", "i8", "f4,f4", "V4"]
)
_FILLS = st.sampled_from([0, 1, -1, 0.5, 1e30, -1e30, float("nan"), float("inf"), 254, 1e-30])


def _made(shape, kind, fill):
    try:
        with np.errstate(all="ignore"):
            return npy(np.full(shape, fill).astype(kind))
    except (ValueError, TypeError, OverflowError):
        return npy(np.zeros(shape))


arrays = st.one_of(st.builds(_made, _ARRAYS, _KINDS, _FILLS), any_bytes(npy(MAPS["0"])))
_NPZ = {f"{name}.npy": npy(one) for name, one in MAPS.items()}
_STACK = np.stack(list(MAPS.values()))
_ADV = {"e.json": js(LABELLED_ADV), "s.csv": csv(CHOICES)}
_MEMORY = {
    "maps": [MAPS["0"].tolist()] * 2,
    "boxes": [[1, 0, 3, 2]] * 2,
    "sizes": [[48, 64]] * 2,
    "protocol": "paper",
    "tau": 0.7,
    "negatives": "error",
}


def _saved(document):
    return save({str(name): np.asarray(one, dtype=np.float32) for name, one in document.items()})


TARGETS = [
    _predictions("by image", BY_IMAGE),
    _predictions("by label", BY_LABEL),
    _predictions("records", RECORDS),
    _predictions("flickr", FLICKR),
    _predictions("instances", INSTANCES),
    _predictions("csv", TABLE, csv, "csv"),
    _predictions("parquet", TABLE, parquet, "parquet"),
    Target(
        "predictions in memory",
        {"t.json": js(TRICD), "p.json": js(BY_IMAGE)},
        lambda folder: _array((folder / "p.json").read_bytes()) is not None and _in_memory(folder),
        json_bytes(BY_IMAGE).map(lambda data: {"t.json": js(TRICD), "p.json": data}),
    ),
    Target(
        "answers",
        {"q.json": js(VQA), "a.json": js(ANSWERS)},
        lambda folder: _array((folder / "a.json").read_bytes()) is not None and _answered(folder),
        json_bytes(ANSWERS).map(lambda data: {"q.json": js(VQA), "a.json": data}),
    ),
    Target("boxes csv", {"b.csv": csv(BOXES)}, _all_boxes, near({"b.csv": csv(BOXES)})),
    Target(
        "boxes parquet",
        {"b.parquet": parquet(BOXES)},
        _all_boxes,
        built(BOXES, parquet).map(lambda data: {"b.parquet": data}),
    ),
    Target("boxes json", {"b.json": js(BOX_JSON)}, _all_boxes, near({"b.json": js(BOX_JSON)})),
    Target(
        "boxes coco",
        {"b.json": js(BOX_COCO)},
        lambda folder: read_boxes(folder / "b.json"),
        near({"b.json": js(BOX_COCO)}),
    ),
    Target(
        "boxes in memory",
        {"v.json": js([[1, 2, 3, 4], [0, 0, 9, 9]])},
        _boxes_in_memory,
        json_bytes([[1, 2, 3, 4], [0, 0, 9, 9]]).map(lambda data: {"v.json": data}),
    ),
    _maps("npz", {"m.npz": zip_bytes(_NPZ)}, zipped(_NPZ, lambda name, data: arrays)),
    _maps(
        "npz stack",
        {"m.npz": zip_bytes({"a.npy": npy(_STACK), "ids.npy": npy(np.array(["0", "1", "2"]))})},
        zipped({"a.npy": npy(_STACK), "ids.npy": npy(np.array(["0", "1", "2"]))}, lambda name, data: arrays),
    ),
    _maps("npy", {"m.npy": npy(_STACK)}, arrays),
    _maps("safetensors", {"m.safetensors": _saved(MAPS)}, any_bytes(_saved(MAPS))),
    Target(
        "maps folder",
        {**{f"m/{name}.npy": npy(one) for name, one in MAPS.items()}, "b.csv": csv(BOXES)},
        _scored("m"),
        one_edited({f"m/{name}.npy": npy(one) for name, one in MAPS.items()}, lambda name, data: arrays).map(
            lambda files: {**files, "b.csv": csv(BOXES)}
        ),
    ),
    Target(
        "scores in memory",
        {"v.json": js(_MEMORY)},
        _scores_in_memory,
        json_bytes(_MEMORY).map(lambda data: {"v.json": data}),
    ),
    Target("summaries", {"f.csv": csv(FRAME)}, _summarized, near({"f.csv": csv(FRAME)})),
    Target(
        "table json", {"f.json": js(FRAME)}, lambda folder: read_table(folder / "f.json"), near({"f.json": js(FRAME)})
    ),
    Target(
        "table parquet",
        {"f.parquet": parquet(FRAME)},
        lambda folder: read_table(folder / "f.parquet"),
        built(FRAME, parquet).map(lambda data: {"f.parquet": data}),
    ),
    Target(
        "probe scores csv",
        {"g.json": js(RELATION), "s.csv": csv(PROBE)},
        _probe,
        near({"g.json": js(RELATION), "s.csv": csv(PROBE)}),
    ),
    Target(
        "probe scores json",
        {"g.json": js(RELATION), "s.json": js(PROBE)},
        _probe,
        near({"g.json": js(RELATION), "s.json": js(PROBE)}),
    ),
    Target("probe scores pairs", {"s.csv": csv(PAIRS)}, _pairs, near({"s.csv": csv(PAIRS)})),
    Target("referring scores csv", _ADV, _choices, near(_ADV)),
    Target(
        "referring scores json",
        {"e.json": js(LABELLED_ADV), "s.json": js(CHOICES)},
        _choices,
        near({"e.json": js(LABELLED_ADV), "s.json": js(CHOICES)}),
    ),
]
