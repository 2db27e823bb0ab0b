"""The authors' own evaluator beside ours, for anyone who has it: TRICD_CHECKOUT=PATH of a checkout of ashkamath/TRICD.

It is not part of this repository and is not fetched. Its recall module imports prettytable only to print; where that
package is missing, a stand-in that prints nothing is used.
"""

import contextlib
import io
import json
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from qgcam_lib.data.tricd.pairs import SUBSETS, load_tricd
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.prediction_files import synthetic_predictions, synthetic_tricd

REPO = Path(os.environ.get("TRICD_CHECKOUT") or "no-checkout")
CODE = REPO / "grounding" / "evaluation"
pytestmark = pytest.mark.skipif(not (CODE / "grounding_AP.py").is_file(), reason="no checkout of ashkamath/TRICD: set "
                                "TRICD_CHECKOUT to its folder (it must hold grounding/evaluation/grounding_AP.py)")


@pytest.fixture
def official(monkeypatch):
    """The authors' modules, imported from the checkout and forgotten afterwards."""
    names = ("box_utils", "grounding_AP", "grounding_recall")
    monkeypatch.syspath_prepend(str(CODE))
    try:
        import prettytable  # noqa: F401
    except ImportError:
        table = type("PrettyTable", (), {"add_row": lambda self, row: None})
        monkeypatch.setitem(sys.modules, "prettytable", types.SimpleNamespace(PrettyTable=table))
    import grounding_AP
    import grounding_recall

    yield grounding_AP, grounding_recall
    for name in names:
        sys.modules.pop(name, None)


def their_scores(official, file, predictions, ks):
    """{(metric, subset): value}, AP first, since their group recall changes the predictions."""
    from pycocotools.coco import COCO

    ap, recall = official
    truth = json.loads(file.read_text())
    predictions = {str(id): {name: list(column) for name, column in entry.items()} for id, entry in predictions.items()}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        tables = [ap.get_AP(truth, COCO(str(file)), predictions), recall.get_recall(truth, predictions, ks),
                  recall.get_group_recall(truth, predictions, ks)]
    return {(row["metric"], subset): row[subset] for table in tables for row in table.to_dict("records")
            for subset in ("all", *SUBSETS) if subset in row}


def as_file(data, folder):
    """The annotations in the authors' layout, coordinates on a grid of eighths, which their float32 holds exactly."""
    kinds = {"coco_obj": "object", "coco_rel": "relation"}
    images, annotations = [], []
    for pair in data.pairs:
        images.append({"id": pair.id, "file_name": pair.file_name, "caption": pair.caption, "source": pair.source,
                       "positive": pair.positive, "original_id": f"{pair.group.rpartition('_')[2]}_{pair.side}",
                       "height": pair.size[0], "width": pair.size[1], "coco_type": kinds.get(pair.subset),
                       "phrases": {str(p.id): [list(span) for span in p.spans] for p in pair.phrases}})
        for phrase in pair.phrases:
            for x0, y0, x1, y1 in eighths(phrase.boxes):
                annotations.append({"id": len(annotations) + 1, "image_id": pair.id, "phrase_id": phrase.id,
                                    "category_id": 1, "bbox": [x0, y0, x1 - x0, y1 - y0], "area": 307200, "iscrowd": 0})
    file = folder / "annotations.json"
    file.write_text(json.dumps({"images": images, "annotations": annotations,
                                "categories": [{"id": 1, "name": "object"}]}))
    return file


def eighths(boxes):
    return (np.round(np.reshape(boxes, (-1, 4)) * 8) / 8).tolist()


@pytest.mark.parametrize("seed, clutter", [(0, 2.0), (1, 12.0), (2, 120.0)])
def test_equal_to_the_authors_evaluator(official, tmp_path, seed, clutter):
    made = synthetic_tricd(12, seed, subsets=SUBSETS)
    file = as_file(made, tmp_path)
    data = load_tricd(file)
    predictions = synthetic_predictions(made, seed, clutter=clutter)
    for pair in data.pairs:  # theirs refuses a phrase without a box
        entry = predictions[pair.id]
        entry["boxes"] = eighths(entry["boxes"]) + [[0.0, 0.0, 1.0, 1.0]] * len(pair.phrases)
        entry["scores"] = entry["scores"] + [1e-6 * (p.id + 1) for p in pair.phrases]
        entry["phrase_ids"] = entry["phrase_ids"] + [p.id for p in pair.phrases]
    table = evaluate(data, predictions, recall_at=(1, 5)).set_index(["metric", "subset"])
    theirs = their_scores(official, file, predictions, [1, 5])
    assert len(theirs) == 4 + 2 * 2 * 4
    assert clutter < 100 or table.note["AP", "all"].endswith("best of their pairs left out")
    for key, value in theirs.items():
        assert table.value[key] == pytest.approx(value, abs=1e-9), key
