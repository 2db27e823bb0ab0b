"""TRICD's detection scores: the authors' numbers, two oracles, properties, and input broken in every way."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_phrase_presence import case, drawn, under, values

from qgcam_lib.boxes import box_iou
from qgcam_lib.data.tricd.pairs import SUBSETS, Tricd, load_tricd, tricd_content
from qgcam_lib.errors import ExampleError
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.matching import THRESHOLDS, best_of_each
from qgcam_lib.phrase_detection.prediction_files import synthetic_predictions, synthetic_tricd
from qgcam_lib.phrase_detection.score import match_predictions, summarize_matches
from qgcam_lib.phrase_detection.selfcheck import pseudo_image_ap
from qgcam_lib.statistics.intervals import group_weights

REAL = Path(__file__).parents[1] / ".." / "shared" / "realdata" / "tricd"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no real TRICD files (../shared/realdata/tricd)")



@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tricd")


def loaded(folder, content, name="made.json"):
    (folder / name).write_text(json.dumps(content))
    return load_tricd(folder / name)


@pytest.fixture(scope="module")
def example():
    data, predictions = case(0, n_groups=6)
    return tricd_content(data), data, predictions


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

@pytest.mark.parametrize("library", ["pycocotools", "faster_coco_eval"])
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_coco_evaluators(seed, library):
    data, _ = case(seed, n_groups=9)
    predictions = synthetic_predictions(data, seed, clutter=60)
    assert match_predictions(data, predictions).n_cut > 0
    found = values(evaluate(data, predictions))
    for name, known in pseudo_image_ap(data, predictions, library).items():
        assert found[name, "all"] == pytest.approx(known, abs=1e-9) and 0.01 < known < 0.99


@needs_real
@pytest.mark.parametrize("library", ["pycocotools", "faster_coco_eval"])
def test_equal_to_coco_evaluators_on_the_real_file(library):
    predictions = json.loads((REAL / "synthetic_predictions_seed0.json").read_text())
    data = load_tricd(REAL / "TRICD_grounding_val.json")
    found = values(evaluate(data, predictions))
    for name, known in pseudo_image_ap(data, predictions, library).items():
        assert found[name, "all"] == pytest.approx(known, abs=1e-9)


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
def test_equal_to_the_literal_definition(seed):
    data, predictions = case(10 + seed, n_groups=6)
    content, found = tricd_content(data), values(evaluate(data, predictions, recall_at=(1, 2, 5)))
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
    data, predictions = case(seed, n_groups=4)
    content = tricd_content(data)
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
def test_false_alarms_never_help_and_rising_scores_change_nothing(seed):
    data, predictions = case(seed, n_groups=4)
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
    _, data, predictions = example
    arrays = {key: {name: np.array(column) for name, column in entry.items()} for key, entry in predictions.items()}
    before = copy.deepcopy(arrays)
    for entry in arrays.values():
        for column in entry.values():
            column.flags.writeable = False
    first = evaluate(data, arrays, n_bootstrap=3)
    pd.testing.assert_frame_equal(first, evaluate(data, predictions, n_bootstrap=3))
    assert all(np.array_equal(before[key][name], arrays[key][name]) for key in before for name in before[key])


def test_ties():
    data, _ = case(3, n_groups=2)
    constant = {pair.id: {"scores": [0.5] * len(pair.phrases), "phrase_ids": [p.id for p in pair.phrases],
                          "boxes": [p.boxes[0] if p.boxes else [0, 0, 9, 9] for p in pair.phrases]}
                for pair in data.pairs}
    stable, last = (values(evaluate(data, constant, ties=ties)) for ties in ("first", "pessimistic"))
    assert stable["group_recall@1", "all"] == 1 and last["group_recall@1", "all"] == 0
    assert stable["recall@1", "all"] == last["recall@1", "all"] == 1
    # the same predictions with scores that put the boxes of false captions first, or last
    told = {pair.id: {**constant[pair.id], "scores": [0.5 + 1e-9 * pair.positive] * len(pair.phrases)}
            for pair in data.pairs}
    assert last["AP", "all"] < stable["AP", "all"] <= values(evaluate(data, told))["AP", "all"]
    for pair in data.pairs:
        told[pair.id]["scores"] = [0.5 - 1e-9 * pair.positive] * len(pair.phrases)
    assert last["AP", "all"] == values(evaluate(data, told))["AP", "all"]


def test_a_pair_keeps_its_hundred_best():
    data, _ = case(4, n_groups=1)
    pair = next(pair for pair in data.pairs if pair.positive)
    phrase = pair.phrases[0]

    def table(n_before):
        rows = [[600, 440, 601, 441]] * n_before + [phrase.boxes[0]]
        entry = {"scores": np.linspace(1, 0.5, len(rows)), "boxes": rows, "phrase_ids": [phrase.id] * len(rows)}
        return evaluate(data, {pair.id: entry}).set_index(["metric", "subset"])

    assert table(99).value["AP", "all"] > 0 and table(99).note["AP", "all"] == "one group: no interval"
    assert table(100).value["AP", "all"] == 0 and table(100).note["AP", "all"].startswith("1 boxes beyond the 100 best")
    assert table(100).value["upper_bound", "all"] > 0
    n = 1_000_000
    many = {pair.id: {"scores": np.random.default_rng(0).random(n), "boxes": np.tile([0.0, 0, 9, 9], (n, 1)),
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


def test_by_contradiction(example):
    _, data, predictions = example
    kinds = {0: "object", 1: "who_does_what"}
    named = Tricd(tuple(replace(p, contradiction=kinds.get(int(p.group.split("_")[-1]), "")) for p in data.pairs))
    found = evaluate(named, predictions, by="contradiction")
    assert list(dict.fromkeys(found.subset)) == ["all", "object", "who_does_what"]
    found = values(found)
    for name in kinds.values():
        part = Tricd(tuple(pair for pair in named.pairs if pair.contradiction == name))
        ids = set(part.pair_ids.tolist())
        alone = values(evaluate(part, {k: v for k, v in predictions.items() if k in ids}))
        assert {m: found[m, name] for m, _ in found.index} == {m: alone[m, "all"] for m, _ in found.index}
    assert values(evaluate(data, predictions, by="contradiction"))["AP"].index.tolist() == ["all"]


# --- uncertainty -----------------------------------------------------------------------------------------------------


def test_a_replicate_is_the_score_of_the_drawn_data(monkeypatch, example):
    _, data, predictions = example
    weights, names = np.array([2.0, 0, 1, 3, 0, 1]), ("AP", "AP50", "AP75")
    again = values(evaluate(*drawn(data, predictions, weights)))
    under(monkeypatch, weights)
    found = evaluate(data, predictions, n_bootstrap=2, metrics=("AP",), subsets=("all",), interval="percentile")
    found = found.set_index("metric")
    assert [found.ci_low[name] for name in names] == pytest.approx([again[name, "all"] for name in names], abs=1e-12)


def test_bootstrap_and_90_percent():
    data, predictions = case(6, n_groups=60)
    matches = match_predictions(data, predictions)
    table = summarize_matches(matches, n_bootstrap=400, n_subsets=400)
    pd.testing.assert_frame_equal(table, evaluate(data, predictions, n_bootstrap=400, n_subsets=400))
    assert (table.ci_low <= table.value).all() and (table.value <= table.ci_high).all()
    row = table[(table.metric == "recall@1") & (table.subset == "all")].iloc[0]
    assert row.sd_90 / row.bootstrap_sd == pytest.approx(1 / 3, rel=0.15), "no standard error: see the module's text"
    plain = evaluate(data, predictions, n_bootstrap=0)
    assert plain[["ci_low", "ci_high", "bootstrap_sd", "sd_90"]].isna().all().all()
    assert (summarize_matches(matches, n_bootstrap=400, seed=1).ci_low != table.ci_low).any()
    assert list(group_weights(10, 2, 2, np.random.default_rng(0)).sum(1)) == [10, 10, 10, 9, 9]


def test_undefined():
    data = synthetic_tricd(2, 7, subsets=("coco_obj", "coco_rel"))
    lonely = Tricd(tuple(pair for pair in data.pairs if pair.positive))
    table = evaluate(lonely, synthetic_predictions(lonely), n_bootstrap=5).set_index(["metric", "subset"])
    assert np.isnan(table.value["group_recall@1", "all"]) and table.n_undefined["group_recall@1", "all"] == 6
    assert np.isnan(table.value["AP", "winoground"]) and table.note["AP", "winoground"].startswith("undefined")
    assert table.note["AP", "coco_obj"] == "one group: no interval" and np.isnan(table.ci_low["AP", "coco_obj"])
    none = evaluate(Tricd(()), {}, n_bootstrap=3, n_subsets=2)
    assert none.value.isna().all() and (none.n == 0).all()


# --- bad predictions -------------------------------------------------------------------------------------------------

def one(**change):
    return {0: {"scores": [0.5], "boxes": [[0, 0, 5, 5]], "phrase_ids": [0], **change}}


@pytest.mark.parametrize("wrong, text", [
    ({400: one()[0]}, "image 400"), ({"x": one()[0]}, "image x"), ({True: one()[0]}, "image True"),
    ({2**80: one()[0]}, "image 1208925819614629174706176"), ({0: one()[0], "0": one()[0]}, "image 0.*twice"),
    ({0: [1, 2]}, "image 0"), ("predictions.json", "form"),
    (one(phrase_ids=[2]), "image 0, box 0"), (one(phrase_ids=[2**63]), "phrase_ids"),
    (one(scores=[float("nan")]), "scores"), (one(scores=["high"]), "scores"), (one(scores=[[0.5]]), "scores"),
    (one(scores=[0.5, 0.6]), "2 scores"), (one(boxes=[[0, 0, 5]]), "boxes"), (one(boxes=[[5, 0, 0, 5]]), "boxes"),
    (one(scores=[0.5] * 2, phrase_ids=[0] * 2, boxes=[[0, 0, 5, 5], [0, 0, 5, float("nan")]]), "image 0, box 1"),
])
def test_bad_predictions(example, wrong, text):
    with pytest.raises(ExampleError, match=text):
        evaluate(example[1], wrong)


# --- bad annotations -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("part, change, text", [
    ("images", {"caption": None}, "pair 0.*caption"), ("images", {"positive": 1}, "pair 0.*positive"),
    ("images", {"id": 1}, "pair 1.*twice"), ("images", {"original_id": "0_2"}, "pair 0.*original_id"),
    ("images", {"positive": False}, "annotation 1"), ("images", {"original_id": "0_1"}, "0_1|group|pair"),
    ("images", {"height": 0}, "pair 0.*height"), ("images", {"phrases": {"a": [[0, 3]]}}, "pair 0.*'a'"),
    ("images", {"phrases": {"0": [[3, 3]], "1": [[0, 3]]}}, "pair 0.*phrase 0"),
    ("images", {"phrases": {"0": [[0, 999]], "1": [[0, 3]]}}, "pair 0.*phrase 0"),
    ("images", {"phrases": {"0": [[0, 1]], "1": [[0, 3]]}}, "pair 2.*spans"),
    ("images", {"phrases": {}}, "annotation 1"), ("annotations", {"image_id": 400}, "annotation 1.*image_id"),
    ("annotations", {"image_id": 2, "phrase_id": 2}, "annotation 1"),
    ("annotations", {"phrase_id": 999}, "annotation 1"), ("annotations", {"id": 2}, "annotation 2.*twice"),
    ("annotations", {"bbox": [0, 0, -1, 5]}, "annotation 1.*bbox"),
    ("annotations", {"bbox": [0, 0, 5, float("nan")]}, "annotation 1.*bbox"),
    ("images", "phrases", "phrases"), ("annotations", "bbox", "bbox"),  # a key that is missing
])
def test_bad_annotations(folder, example, part, change, text):
    content = copy.deepcopy(example[0])
    content[part][0].pop(change) if isinstance(change, str) else content[part][0].update(change)
    with pytest.raises(ExampleError, match=text) as error:
        loaded(folder, content, "bad.json")
    assert "bad.json" in error.value.file


@pytest.mark.parametrize("text", ["{", "[]", '{"images": []}', "[" * 10**5, '{"images": [3], "annotations": []}',
                                  '{"images": [], "images": [], "annotations": []}'])
def test_bad_files(folder, text):
    (folder / "bad.json").write_text(text)
    with pytest.raises(ExampleError, match="bad.json"):
        load_tricd(folder / "bad.json")


@pytest.mark.parametrize("options", [{"recall_at": (0,)}, {"recall_at": (1, 1)}, {"ties": "luck"}, {"n_bootstrap": -1},
                                     {"metrics": ("AP50",)}, {"subsets": ("coco",)}, {"by": "colour"}])
def test_bad_options(example, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        evaluate(example[1], {}, **options)
