"""TRICD's detection scores: the authors' numbers, two oracles, properties, and input broken in every way."""

import contextlib
import copy
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgcam_lib.boxes import box_iou
from qgcam_lib.data.tricd.pairs import SUBSETS, load_tricd
from qgcam_lib.errors import ExampleError
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.matching import THRESHOLDS, best_of_each
from qgcam_lib.phrase_detection.parts import parts
from qgcam_lib.phrase_detection.predictions import pack
from qgcam_lib.phrase_detection.score import match_predictions, overlap_aps, summarize_matches
from qgcam_lib.statistics import group_weights

REAL = Path(__file__).parents[1] / ".." / "shared" / "realdata" / "tricd"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no real TRICD files (../shared/realdata/tricd)")


# --- made data -------------------------------------------------------------------------------------------------------

def made(rng, n_groups=6, winoground=True, max_boxes=8):
    """A file's content and predictions, both random; scores are distinct. Some phrases and pairs are silent."""
    images, annotations, predictions, phrase = [], [], {}, 100
    for g in range(n_groups):
        kind = SUBSETS[g % 3 if winoground else g % 2]
        names = [(f"the cat {g} a dog", [[[4, 7]], [[len(f"the cat {g} a "), len(f"the cat {g} a dog")]]]),
                 (f"dog sees {g}", [[[0, 3]]])]
        for side in (0, 1):
            for which in (0, 1):
                caption, spans = names[which]
                image = {"id": int(10 * len(images) + 3), "file_name": f"{g}_{side}.jpg", "caption": caption,
                         "source": "winoground" if kind == "winoground" else "coco_test2017",
                         "positive": side == which, "original_id": f"{g}_{side}", "height": 100, "width": 120,
                         "phrases": {str(phrase + n): span for n, span in enumerate(spans)}}
                if kind != "winoground":
                    image["coco_type"] = "object" if kind == "coco_obj" else "relation"
                mine = []
                for id in range(phrase, phrase + len(spans)):
                    for _ in range(rng.integers(1, 4) if side == which else 0):
                        box = [*rng.uniform(0, 60, 2), *rng.uniform(20, 50, 2)]
                        annotations.append({"id": len(annotations) + 1, "image_id": image["id"], "phrase_id": id,
                                            "bbox": [float(v) for v in box]})
                        mine.append((id, box))
                predictions[image["id"]] = detections(rng, mine, list(range(phrase, phrase + len(spans))), max_boxes)
                phrase += len(spans)
                images.append(image)
    for key in list(predictions)[::7]:
        del predictions[key]
    return {"images": images, "annotations": annotations}, predictions


def detections(rng, truth, phrases, n):
    """Boxes near the truth and boxes anywhere, in the repository's format."""
    out = {"scores": [], "boxes": [], "phrase_ids": []}
    for _ in range(rng.integers(0, n + 1)):
        near = bool(truth) and rng.random() < 0.6
        id, box = truth[rng.integers(len(truth))] if near else (int(rng.choice(phrases)), [10, 10, 40, 40])
        x, y, w, h = np.array(box) + rng.uniform(-6, 6, 4)
        out["scores"].append(float(rng.random()))
        out["boxes"].append([float(v) for v in (x, y, x + w, y + h)])
        out["phrase_ids"].append(id)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tricd")


def loaded(folder, content, name="made.json"):
    (folder / name).write_text(json.dumps(content))
    return load_tricd(folder / name)


def values(table):
    return table.set_index(["metric", "subset"]).value


@pytest.fixture(scope="module")
def example(folder):
    content, predictions = made(np.random.default_rng(0))
    return content, loaded(folder, content), predictions


# --- the authors' numbers --------------------------------------------------------------------------------------------

@needs_real
def test_the_authors_numbers():
    expected = json.loads((REAL / "synthetic_expected_metrics.json").read_text())
    predictions = json.loads((REAL / "synthetic_predictions_seed0.json").read_text())
    before = copy.deepcopy(predictions)
    data = load_tricd(REAL / "TRICD_grounding_val.json")
    found = values(evaluate(data, predictions, recall_at=(1, 5, 10)))
    for name, known in {**expected["AP_pure"], **expected["recall"], **expected["group_recall_1_5"]}.items():
        for subset, value in known.items():
            assert found[name, subset] == pytest.approx(value, abs=1e-9), (name, subset)
    assert round(found["AP", "all"], 6) == 0.302640
    assert predictions == before, "the authors' evaluator adds 830 boxes here, and AP then falls to 0.250793"
    again = values(evaluate(data, predictions, recall_at=(1, 5, 10)))
    pd.testing.assert_series_equal(found, again)


@needs_real
def test_the_real_file():
    data = load_tricd(REAL / "TRICD_grounding_val.json")
    assert (len(data), len(data.phrases), len(data.truth), len(data.group_names)) == (204, 332, 315, 51)
    assert data.positive.sum() == 102 and data.has_rival.sum() == 166
    first = data.pairs[0]
    assert (first.caption, first.subset, first.side) == ("zebras fighting", "coco_rel", 0)
    assert first.group == "coco_test2017_1"
    assert first.phrases[0].text == "zebras" and first.phrases[0].boxes[0] == pytest.approx((365, 200, 483, 400))


# --- oracle 1: pycocotools and faster-coco-eval, every phrase an image of its own ----------------------------------

def coco_ap(data, predictions, library="pycocotools"):
    """AP of a COCO evaluator with one category and one image for each phrase of each pair, after the cut to 100 a pair.

    library: "pycocotools", or "faster_coco_eval", another implementation (in C++) of the same protocol.
    """
    if library == "pycocotools":
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    else:
        from faster_coco_eval import COCO
        from faster_coco_eval import COCOeval_faster as COCOeval

    names = zip(data.pair_ids[data.phrase_pairs].tolist(), data.phrase_ids.tolist())
    index = {name: q for q, name in enumerate(names, 1)}
    images = [{"id": q} for q in index.values()]
    truth = [(q + 1, box) for q, phrase in enumerate(data.phrases) for box in phrase.boxes]
    boxes = []
    for key, entry in predictions.items():
        best = sorted(zip(entry["scores"], entry["boxes"], entry["phrase_ids"]), key=lambda row: -row[0])[:100]
        boxes += [(index[int(key), id], box, score) for score, box, id in best]

    def record(n, q, box):
        x0, y0, x1, y1 = box
        return {"id": n, "image_id": q, "category_id": 1, "bbox": [x0, y0, x1 - x0, y1 - y0], "iscrowd": 0,
                "area": (x1 - x0) * (y1 - y0)}

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {"images": images, "categories": [{"id": 1, "name": "phrase"}],
                        "annotations": [record(n, *row) for n, row in enumerate(truth, 1)]}
        coco.createIndex()
        found = COCO()
        found.dataset = {**coco.dataset,
                         "annotations": [{**record(n, q, box), "score": s} for n, (q, box, s) in enumerate(boxes, 1)]}
        found.createIndex()
        oracle = COCOeval(coco, found, iouType="bbox")
        oracle.params.maxDets = [100]
        oracle.params.areaRng, oracle.params.areaRngLbl = [[0, 1e10]], ["all"]
        oracle.evaluate()
        oracle.accumulate()
    precision = oracle.eval["precision"][:, :, 0, 0, 0]
    return precision.mean(), precision[0].mean(), precision[5].mean()


@pytest.mark.parametrize("library", ["pycocotools", "faster_coco_eval"])
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_coco_evaluators(folder, seed, library):
    content, predictions = made(np.random.default_rng(seed), n_groups=9, max_boxes=150)
    data = loaded(folder, content)
    assert match_predictions(data, predictions).n_cut > 0
    found = values(evaluate(data, predictions))
    known = coco_ap(data, predictions, library)
    assert [found[name, "all"] for name in ("AP", "AP50", "AP75")] == pytest.approx(known, abs=1e-9)
    assert 0.01 < known[0] < 0.99


@needs_real
@pytest.mark.parametrize("library", ["pycocotools", "faster_coco_eval"])
def test_equal_to_coco_evaluators_on_the_real_file(library):
    predictions = json.loads((REAL / "synthetic_predictions_seed0.json").read_text())
    data = load_tricd(REAL / "TRICD_grounding_val.json")
    found = values(evaluate(data, predictions))
    known = coco_ap(data, predictions, library)
    assert [found[name, "all"] for name in ("AP", "AP50", "AP75")] == pytest.approx(known, abs=1e-9)


# --- oracle 2: the definition, read aloud ----------------------------------------------------------------------------

def slow_ap(content, predictions, keep):
    """AP as METRICS states it, for the pairs whose image dictionary `keep` accepts."""
    images = sorted((image for image in content["images"] if keep(image)), key=lambda image: image["id"])
    truth = {}
    for a in content["annotations"]:
        x, y, w, h = a["bbox"]
        truth.setdefault((a["image_id"], a["phrase_id"]), []).append([x, y, x + w, y + h])
    n_truth = sum(len(boxes) for (image, _), boxes in truth.items() if image in {i["id"] for i in images})
    areas = []
    for threshold in THRESHOLDS:
        outcome = []
        for image in images:
            entry = predictions.get(image["id"], {"scores": [], "boxes": [], "phrase_ids": []})
            rows = sorted(zip(entry["scores"], entry["boxes"], entry["phrase_ids"]), key=lambda row: -row[0])[:100]
            free = {key: list(range(len(boxes))) for key, boxes in truth.items()}
            for score, box, id in rows:
                key = (image["id"], id)
                overlaps = [(box_iou(box, truth[key][g])[0, 0], g) for g in free.get(key, ())]
                best, g = max(overlaps, default=(0, None))
                outcome.append((score, best >= threshold))
                if best >= threshold:
                    free[key].remove(g)
        outcome.sort(key=lambda row: -row[0])
        hits = np.cumsum([hit for _, hit in outcome])
        precision, recall = hits / np.arange(1, len(hits) + 1), hits / n_truth
        areas.append(np.mean([max(precision[recall >= r], default=0) for r in np.linspace(0, 1, 101)]))
    return np.mean(areas)


def slow_recall(content, predictions, k, group, merged=False):
    """Share of the true captions' phrases found among their k best boxes, one by one."""
    hits = []
    for image in content["images"]:
        if not image["positive"]:
            continue
        g, side = image["original_id"].split("_")
        other = next(i for i in content["images"] if i["original_id"] == f"{g}_{1 - int(side)}" and not i["positive"]
                     and i["source"] == image["source"])
        for id, spans in image["phrases"].items():
            boxes = [[a["bbox"][0], a["bbox"][1], a["bbox"][0] + a["bbox"][2], a["bbox"][1] + a["bbox"][3]]
                     for a in content["annotations"] if a["phrase_id"] == int(id)]
            if merged:
                boxes = [[min(b[0] for b in boxes), min(b[1] for b in boxes), max(b[2] for b in boxes),
                          max(b[3] for b in boxes)]]
            pool = []
            for place, asked in ((image, id), (other, next(p for p, s in other["phrases"].items() if s == spans))):
                if place is image or group:
                    entry = predictions.get(place["id"], {"scores": [], "boxes": [], "phrase_ids": []})
                    pool += [(s, place is image, b) for s, b, p in zip(*(entry[key] for key in (
                        "scores", "boxes", "phrase_ids"))) if p == int(asked)]
            best = sorted(pool, key=lambda row: -row[0])[:k]
            hits.append(any(true and box_iou(box, boxes).max() >= 0.5 for _, true, box in best))
    return np.mean(hits)


@pytest.mark.parametrize("seed", range(2))
def test_equal_to_the_literal_definition(folder, seed):
    content, predictions = made(np.random.default_rng(10 + seed), n_groups=6)
    found = values(evaluate(loaded(folder, content), predictions, recall_at=(1, 2, 5)))
    parts = {"all": lambda i: True, "winoground": lambda i: i["source"] == "winoground",
             "coco_obj": lambda i: i.get("coco_type") == "object",
             "coco_rel": lambda i: i.get("coco_type") == "relation"}
    for subset, keep in parts.items():
        assert found["AP", subset] == pytest.approx(slow_ap(content, predictions, keep), abs=1e-12)
        part = {**content, "images": [image for image in content["images"] if keep(image)]}
        for k in (1, 2, 5):
            assert found[f"recall@{k}", subset] == slow_recall(part, predictions, k, group=False)
            assert found[f"group_recall@{k}", subset] == slow_recall(part, predictions, k, group=True)
            assert found[f"merged_recall@{k}", subset] == slow_recall(part, predictions, k, False, merged=True)
        assert found["upper_bound", subset] == slow_recall(part, predictions, 10**6, group=False)


# --- properties ------------------------------------------------------------------------------------------------------

@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_order_changes_nothing(folder, seed):
    rng = np.random.default_rng(seed)
    content, predictions = made(rng, n_groups=4)
    plain = evaluate(loaded(folder, content), predictions, n_bootstrap=5, n_subsets=5)
    assert plain.value.dropna().between(0, 1).all()
    mixed = {"images": [content["images"][k] for k in rng.permutation(len(content["images"]))],
             "annotations": [content["annotations"][k] for k in rng.permutation(len(content["annotations"]))]}
    for image in mixed["images"]:
        image["phrases"] = dict(reversed(image["phrases"].items()))
    shuffled = {}
    for key in rng.permutation(list(predictions)):
        order = rng.permutation(len(predictions[key]["scores"]))
        shuffled[str(key)] = {name: [column[k] for k in order] for name, column in predictions[key].items()}
    pd.testing.assert_frame_equal(plain, evaluate(loaded(folder, mixed), shuffled, n_bootstrap=5, n_subsets=5))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_false_alarms_never_help_and_rising_scores_change_nothing(folder, seed):
    content, predictions = made(np.random.default_rng(seed), n_groups=4)
    data = loaded(folder, content)
    plain = values(evaluate(data, predictions))
    false = {int(id) for id in data.pair_ids[~data.positive]}
    quiet = values(evaluate(data, {key: entry for key, entry in predictions.items() if key not in false}))
    better = (quiet - plain).dropna()
    assert (better >= -1e-12).all()
    same = [name.startswith(("recall", "upper", "merged")) for name, _ in better.index]
    assert (better[same] == 0).all()
    cubed = {key: {**entry, "scores": [s**3 * 7 - 2 for s in entry["scores"]]} for key, entry in predictions.items()}
    pd.testing.assert_series_equal(plain, values(evaluate(data, cubed)))


def test_perfect_and_silent(example):
    _, data, _ = example
    perfect = {}
    for pair in data.pairs:
        rows = [(box, phrase.id) for phrase in pair.phrases for box in phrase.boxes]
        perfect[pair.id] = {"scores": np.linspace(0.9, 0.5, len(rows)), "boxes": [box for box, _ in rows],
                            "phrase_ids": [id for _, id in rows]}
    found = values(evaluate(data, perfect))
    merged = found.index.get_level_values("metric").str.startswith("merged")
    assert found[~merged].to_numpy() == pytest.approx(1.0)
    assert (found[merged] < 1).all(), "a box for each thing is no box around all things"
    around = {pair.id: {"scores": [1.0 for p in pair.phrases if p.boxes],
                        "boxes": [[*np.min(p.boxes, 0)[:2], *np.max(p.boxes, 0)[2:]] for p in pair.phrases if p.boxes],
                        "phrase_ids": [p.id for p in pair.phrases if p.boxes]} for pair in data.pairs}
    found = values(evaluate(data, around))
    assert (found[merged] == 1).all() and found["recall@1", "all"] < 1
    empty = {int(id): {"scores": [], "boxes": [], "phrase_ids": []} for id in data.pair_ids}
    for silent in ({}, empty):
        table = evaluate(data, silent, n_bootstrap=10, n_subsets=3)
        assert (table.value == 0).all() and (table.n > 0).all() and (table.ci_low == 0).all()
        assert ((table.ci_high > 0) & (table.ci_high < 1)).all(), "nothing found in a few groups is not nothing ever"
    zero_boxes = {pair.id: {"scores": [1], "boxes": [[0, 0, 0, 0]], "phrase_ids": [pair.phrases[0].id]}
                  for pair in data.pairs}
    assert (evaluate(data, zero_boxes).value == 0).all()


def test_arguments_stay_as_they_were(example):
    content, data, predictions = example
    arrays = {key: {name: np.array(column) for name, column in entry.items() if column} or entry
              for key, entry in predictions.items()}
    for given_ in (predictions, arrays):
        before = copy.deepcopy(given_)
        for entry in given_.values():
            for column in entry.values():
                if isinstance(column, np.ndarray):
                    column.flags.writeable = False
        first = evaluate(data, given_, n_bootstrap=3)
        pd.testing.assert_frame_equal(first, evaluate(data, given_, n_bootstrap=3))
        assert json.dumps(before, default=np.ndarray.tolist) == json.dumps(given_, default=np.ndarray.tolist)
    with pytest.raises(ValueError, match="read-only"):
        data.truth[0] = 0


def test_ties(folder):
    content, _ = made(np.random.default_rng(3), n_groups=2)
    data = loaded(folder, content)
    constant = {pair.id: {"scores": [0.5] * len(pair.phrases), "phrase_ids": [p.id for p in pair.phrases],
                          "boxes": [p.boxes[0] if p.boxes else [0, 0, 9, 9] for p in pair.phrases]}
                for pair in data.pairs}
    stable, last = (values(evaluate(data, constant, ties=ties)) for ties in ("stable", "pessimistic"))
    assert stable["group_recall@1", "all"] == 1 and last["group_recall@1", "all"] == 0
    assert stable["recall@1", "all"] == last["recall@1", "all"] == 1
    # the same predictions with scores that put the boxes of false captions first, or last
    told = {pair.id: {**constant[pair.id], "scores": [0.5 + 1e-9 * pair.positive] * len(pair.phrases)}
            for pair in data.pairs}
    assert last["AP", "all"] < stable["AP", "all"] <= values(evaluate(data, told))["AP", "all"]
    for pair in data.pairs:
        told[pair.id]["scores"] = [0.5 - 1e-9 * pair.positive] * len(pair.phrases)
    assert last["AP", "all"] == values(evaluate(data, told))["AP", "all"]


def test_a_pair_keeps_its_hundred_best(folder):
    content, _ = made(np.random.default_rng(4), n_groups=1)
    data = loaded(folder, content)
    pair = next(pair for pair in data.pairs if pair.positive)
    phrase = pair.phrases[0]

    def table(n_before):
        rows = [[200, 200, 201, 201]] * n_before + [phrase.boxes[0]]
        entry = {"scores": np.linspace(1, 0.5, len(rows)), "boxes": rows, "phrase_ids": [phrase.id] * len(rows)}
        return evaluate(data, {pair.id: entry}).set_index(["metric", "subset"])

    assert table(99).value["AP", "all"] > 0 and table(99).note["AP", "all"] == "one group: no interval"
    assert table(100).value["AP", "all"] == 0 and table(100).note["AP", "all"].startswith("1 boxes beyond the 100 best")
    assert table(100).value["upper_bound", "all"] > 0
    n = 1_000_000
    many = {pair.id: {"scores": np.random.default_rng(0).random(n), "boxes": np.tile([0.0, 0, 1, 1], (n, 1)),
                      "phrase_ids": np.full(n, phrase.id)}}
    assert match_predictions(data, many).n_cut == n - 100
    assert best_of_each(np.array([3, 0, 2, 1]), np.array([0, 1, 0, 0]), 2, 2).tolist() == [3, 0, 1]


# --- parts of the table ----------------------------------------------------------------------------------------------

def test_parts_of_the_table_are_those_of_the_whole(example):
    _, data, predictions = example
    whole = evaluate(data, predictions, n_bootstrap=20, n_subsets=3).set_index(["metric", "subset"])
    for metrics, subsets in ((("AP",), ("all",)), (("group_recall", "merged_recall"), ("winoground", "coco_obj")),
                             (("upper_bound", "recall"), None)):
        part = evaluate(data, predictions, n_bootstrap=20, n_subsets=3, metrics=metrics, subsets=subsets)
        part = part.set_index(["metric", "subset"])
        pd.testing.assert_frame_equal(part, whole.loc[part.index])
        assert set(part.index.get_level_values(0).str.split("@").str[0].str.replace("AP50", "AP").str.replace(
            "AP75", "AP")) == set(metrics)
        assert tuple(dict.fromkeys(part.index.get_level_values(1))) == (subsets or ("all", *SUBSETS))


def test_by_contradiction(folder, example):
    content, predictions = copy.deepcopy(example[0]), example[2]
    kinds = {"0": "object", "1": "who_does_what"}
    for image in content["images"]:
        image["contradiction"] = kinds.get(image["original_id"].split("_")[0], "")
    found = evaluate(loaded(folder, content), predictions, by="contradiction")
    assert list(dict.fromkeys(found.subset)) == ["all", "object", "who_does_what"]
    found = values(found)
    for group, name in kinds.items():
        part = {**content, "images": [i for i in content["images"] if i["original_id"].split("_")[0] == group]}
        ids = {i["id"] for i in part["images"]}
        part["annotations"] = [a for a in content["annotations"] if a["image_id"] in ids]
        alone = values(evaluate(loaded(folder, part), {k: v for k, v in predictions.items() if k in ids}))
        assert {m: found[m, name] for m, _ in found.index} == {m: alone[m, "all"] for m, _ in found.index}
    assert values(evaluate(example[1], predictions, by="contradiction"))["AP"].index.tolist() == ["all"]


# --- uncertainty -----------------------------------------------------------------------------------------------------

def drawn_content(content, predictions, weights, names):
    """The data with each group as often as its weight says, under new ids."""
    out, new = {"images": [], "annotations": []}, {}
    for weight, name in zip(weights.astype(int), names):
        for copy_ in range(weight):
            for image in content["images"]:
                if f"{image['source']}_{image['original_id'].rpartition('_')[0]}" != name:
                    continue
                id = image["id"] * 100 + copy_
                g, side = image["original_id"].split("_")
                out["images"].append({**image, "id": id, "original_id": f"{g}x{copy_}_{side}"})
                out["annotations"] += [{**a, "image_id": id, "id": a["id"] * 100 + copy_}
                                       for a in content["annotations"] if a["image_id"] == image["id"]]
                if image["id"] in predictions:
                    new[id] = predictions[image["id"]]
    return out, new


def test_a_replicate_is_the_score_of_the_drawn_data(folder, example):
    content, data, predictions = example
    matches = match_predictions(data, predictions)
    whole = parts(data, 0, subsets=("all",))[0]
    for weights in group_weights(len(data.group_names), 3, 1, np.random.default_rng(5)):
        aps = overlap_aps(matches, replace(whole, weights=weights[None]))[0]
        fast = [aps.mean(), aps[0], aps[5]]
        again, new = drawn_content(content, predictions, weights, data.group_names)
        found = values(evaluate(loaded(folder, again), new, n_bootstrap=0))
        assert fast == pytest.approx([found[name, "all"] for name in ("AP", "AP50", "AP75")], abs=1e-12)


def test_bootstrap_and_90_percent(folder):
    content, predictions = made(np.random.default_rng(6), n_groups=60)
    data = loaded(folder, content)
    matches = match_predictions(data, predictions)
    table = summarize_matches(matches, n_bootstrap=400, n_subsets=400)
    pd.testing.assert_frame_equal(table, evaluate(data, predictions, n_bootstrap=400, n_subsets=400))
    assert (table.value == evaluate(data, predictions).value).all()
    assert (table.ci_low <= table.value).all() and (table.value <= table.ci_high).all()
    row = table[(table.metric == "recall@1") & (table.subset == "all")].iloc[0]
    assert row.sd_90 / row.bootstrap_sd == pytest.approx(1 / 3, rel=0.15), "no standard error: see the module's text"
    plain = evaluate(data, predictions, n_bootstrap=0)
    assert plain[["ci_low", "ci_high", "bootstrap_sd", "sd_90"]].isna().all().all()
    other = summarize_matches(matches, n_bootstrap=400, seed=1)
    assert (other.ci_low != table.ci_low).any()
    assert list(group_weights(10, 2, 2, np.random.default_rng(0)).sum(1)) == [10, 10, 10, 9, 9]


def test_undefined(folder):
    content, predictions = made(np.random.default_rng(7), n_groups=2, winoground=False)
    lonely = [i for i in content["images"] if i["positive"]]
    ids = {i["id"] for i in lonely}
    table = evaluate(loaded(folder, {**content, "images": lonely}), {k: v for k, v in predictions.items() if k in ids},
                     n_bootstrap=5).set_index(["metric", "subset"])
    assert np.isnan(table.value["group_recall@1", "all"]) and table.n_undefined["group_recall@1", "all"] == 6
    assert np.isnan(table.value["AP", "winoground"]) and table.note["AP", "winoground"].startswith("undefined")
    assert table.note["AP", "coco_obj"] == "one group: no interval" and np.isnan(table.ci_low["AP", "coco_obj"])
    none = evaluate(loaded(folder, {"images": [], "annotations": []}), {}, n_bootstrap=3, n_subsets=2)
    assert none.value.isna().all() and (none.n == 0).all()


# --- bad predictions -------------------------------------------------------------------------------------------------

def one(**change):
    return {3: {"scores": [0.5], "boxes": [[0, 0, 5, 5]], "phrase_ids": [100], **change}}


@pytest.mark.parametrize("wrong, text", [
    ({4: one()[3]}, "image 4.*not among the 24 pairs"),
    ({"x": one()[3]}, "image x.*image_id: expected a whole number, got 'x'"),
    ({3.0: one()[3]}, "image_id: expected a whole number or a text, got 3.0"),
    ({True: one()[3]}, "image_id: expected a whole number or a text, got True"),
    ({2**80: one()[3]}, "image 1208925819614629174706176.*not among"),
    ({3: one()[3], "3": one()[3]}, "image 3.*twice"),
    ({3: [1, 2]}, "image 3.*got list"),
    ({3: {"scores": []}}, "image 3.*phrase_ids, boxes are missing"),
    ([1], "no known form of predictions: a list of 1"),
    ("predictions.json", "no known form of predictions: str.*Known"),
    (None, "no known form of predictions: NoneType"),
    (one(phrase_ids=[102]), "image 3, box 0.*id 102 is not a phrase of pair 3, which has"),
    (one(phrase_ids=[-1]), "image 3.*id -1 is not a phrase"),
    (one(phrase_ids=[2**63]), "image 3.*expected a whole number of at most 63 bits"),
    (one(phrase_ids=[100.0]), "image 3.*phrase_ids: expected a whole number"),
    (one(phrase_ids=["100"]), "image 3.*phrase_ids: expected a whole number"),
    (one(scores=[float("nan")]), "image 3.*scores: expected a finite number, got nan"),
    (one(scores=[float("inf")]), "image 3.*scores: expected a finite number, got inf"),
    (one(scores=["0.5"]), "image 3.*scores: expected a finite number"),
    (one(scores=[None]), "image 3.*scores: expected a finite number"),
    (one(scores=[True]), "image 3.*scores: expected a finite number"),
    (one(scores=[0.5, True], boxes=[[0] * 4] * 2, phrase_ids=[100] * 2), "image 3, box 1.*scores: .*got True"),
    (one(phrase_ids=[True]), "image 3.*phrase_ids: expected a whole number, got True"),
    (one(boxes=[[0, 0, 5, True]]), "image 3.*boxes: expected four finite numbers.*True"),
    (one(scores=[0.5, 0.6]), "image 3.*equally many, got 1 phrase_ids, 2 scores, 1 boxes"),
    (one(scores=0.5), "image 3.*scores: expected a list, got float"),
    (one(scores=[[0.5]]), r"image 3.*scores: expected a finite number, got \[0.5\]"),
    (one(boxes=[[0, 0, 5]]), r"image 3.*boxes: expected four finite numbers, got \[0, 0, 5\]"),
    (one(boxes=[0, 0, 5, 5]), "image 3.*equally many, got 1 phrase_ids, 1 scores, 4 boxes"),
    (one(scores=[0.5] * 2, phrase_ids=[100] * 2, boxes=[[0, 0, 5, 5], [0, 0, 5]]), "image 3, box 1.*four finite"),
    (one(boxes=[["0", "0", "5", "5"]]), "image 3.*boxes: expected four finite numbers"),
    (one(boxes=[[5, 0, 0, 5]]), r"image 3.*x0 <= x1 and y0 <= y1.*got"),
    (one(boxes=[[0, 0, 5, float("nan")]]), "image 3.*boxes: expected four finite numbers, got .0, 0, 5, nan"),
])
def test_bad_predictions(example, wrong, text):
    with pytest.raises(ExampleError, match=text):
        evaluate(example[1], wrong)


def test_the_message_names_the_place(example):
    wrong = one(scores=[0.1, 0.2, float("nan")], boxes=[[0, 0, 5, 5]] * 3, phrase_ids=[100] * 3)
    before = {id: entry for id, entry in example[2].items() if id != 3}
    with pytest.raises(ExampleError, match="image 3, box 2"):
        pack(example[1], {**before, **wrong})


@pytest.mark.parametrize("options", [
    {"recall_at": (0,)}, {"recall_at": (-1,)}, {"recall_at": (1, 1)}, {"recall_at": (1.5,)}, {"ties": "luck"},
    {"n_bootstrap": -1}, {"n_subsets": -1}, {"level": 1.0}, {"metrics": ()}, {"metrics": "AP"}, {"metrics": ("AP50",)},
    {"subsets": "all"}, {"subsets": ("all", "all")}, {"subsets": ("coco",)}, {"subsets": ()}, {"by": "colour"}])
def test_bad_options(example, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        evaluate(example[1], {}, **options)


def test_a_path_is_no_data(example):
    with pytest.raises(ValueError, match="load_tricd"):
        evaluate("annotations.json", {})
    with pytest.raises(ValueError, match="load_tricd"):
        match_predictions("annotations.json", {})


# --- bad annotations -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("part, change, text", [
    ("images", {"caption": None}, "pair 3.*caption: expected str"),
    ("images", {"positive": 1}, "pair 3.*positive: expected bool"),
    ("images", {"id": True}, "pair True.*id: expected int"),
    ("images", {"id": 13}, "pair 13.*used twice"),
    ("images", {"coco_type": "thing"}, "pair 3.*coco_type"),
    ("images", {"contradiction": ["object"]}, "pair 3.*contradiction"),
    ("images", {"original_id": "5"}, "pair 3.*original_id"),
    ("images", {"original_id": "0_2"}, "pair 3.*original_id"),
    ("images", {"positive": False}, "pair 3.*the caption is false, but annotation 1"),
    ("images", {"original_id": "0_1"}, "stand twice"),
    ("images", {"height": 0}, "pair 3.*height, width"),
    ("images", {"phrases": {"a": [[0, 3]]}}, "pair 3.*whole numbers as ids, .*got 'a'"),
    ("images", {"phrases": {"100": [[0, 3]], "0100": [[0, 3]]}}, "pair 3.*used twice"),
    ("images", {"phrases": {"100": [[3, 3]], "101": [[0, 3]]}}, "pair 3.*phrase 100"),
    ("images", {"phrases": {"100": [[0, 999]], "101": [[0, 3]]}}, "pair 3.*phrase 100.*characters"),
    ("images", {"phrases": {"100": [], "101": [[0, 3]]}}, "pair 3.*phrase 100"),
    ("images", {"phrases": {"100": [[0, 2]], "101": [[0, 3]]}}, "pair 23.*spans.*which no phrase of pair 3 has"),
    ("images", {"phrases": {}}, "pair 3.*annotation 1 names phrase 100"),
    ("annotations", {"image_id": 4}, "annotation 1.*image_id 4 is not among"),
    ("annotations", {"image_id": 23, "phrase_id": 103}, "pair 23.*caption is false.*annotation 1"),
    ("annotations", {"phrase_id": 999}, "pair 3.*annotation 1 names phrase 999"),
    ("annotations", {"id": 2}, "annotation 2.*used twice"),
    ("annotations", {"bbox": [0, 0, -1, 5]}, "annotation 1.*bbox"),
    ("annotations", {"bbox": [0, 0, 5, float("nan")]}, "annotation 1.*bbox"),
    ("annotations", {"bbox": [0, 0, 5]}, "annotation 1.*bbox"),
    ("annotations", {"bbox": [0, 0, 5, "5"]}, "annotation 1.*bbox"),
    ("annotations", {"bbox": None}, "annotation 1.*bbox: expected list"),
])
def test_bad_annotations(folder, example, part, change, text):
    content = copy.deepcopy(example[0])
    content[part][0].update(change)
    with pytest.raises(ExampleError, match=text) as error:
        loaded(folder, content, "bad.json")
    assert "bad.json" in error.value.file


@pytest.mark.parametrize("part, key", [
    *(("images", key) for key in ("id", "caption", "source", "positive", "original_id", "phrases", "width")),
    *(("annotations", key) for key in ("id", "image_id", "phrase_id", "bbox"))])
def test_missing_keys(folder, example, part, key):
    content = copy.deepcopy(example[0])
    del content[part][0][key]
    with pytest.raises(ExampleError, match=f"{key}.*is missing"):
        loaded(folder, content, "bad.json")


def test_what_the_captions_disagree_in(folder, example):
    content = copy.deepcopy(example[0])
    assert set(example[1].contradictions) == {""}
    for image in content["images"]:
        image.update(contradiction="attribute", source="miniworld", coco_type="object")
    data = loaded(folder, content)
    assert set(data.contradictions) == {"attribute"} and data.pairs[0].contradiction == "attribute"
    assert {pair.subset for pair in data.pairs} == {"coco_obj"}


def test_bad_files(folder):
    for text, message in (("{", "JSON"), ("[]", "images"), ('{"images": []}', "annotations"), ("[" * 10**5, "JSON"),
                          ('{"images": [], "images": [], "annotations": []}', "twice"),
                          ('{"images": [3], "annotations": []}', r"images\[0\].*object")):
        (folder / "bad.json").write_text(text)
        with pytest.raises(ExampleError, match=message):
            load_tricd(folder / "bad.json")
    with pytest.raises(ExampleError, match="none.json: cannot be read"):
        load_tricd(folder / "none.json")
