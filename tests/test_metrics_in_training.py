"""The torchmetrics objects in a training loop: Lightning, collections, plots, processes; PhraseDetection's oracles."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import MetricCollection
from torchmetrics.detection import MeanAveragePrecision
from two_processes import both_end_well

from qgcam_lib.data.tricd.pairs import load_tricd
from qgcam_lib.metrics.torchmetric import GroundingScores
from qgcam_lib.miniworld.writers.tricd import ensure_tricd
from qgcam_lib.phrase_detection import evaluate
from qgcam_lib.phrase_detection.prediction_files import synthetic_predictions, synthetic_tricd
from qgcam_lib.phrase_detection.torchmetric import PhraseDetection, targets_of
from qgcam_lib.statistics import METRICS

DATA = synthetic_tricd(10, seed=2)
FOUND = synthetic_predictions(DATA, seed=4)
RNG = np.random.default_rng(0)
MAPS, BOXES = RNG.random((8, 6, 8), dtype=np.float32), [[[x, 4, x + 12, 20]] for x in range(8)]
MAPS[5] = 0  # io_ratio is undefined: the mean of batch means is another number


def detections(predictions, ids):
    return [{"boxes": torch.tensor(predictions[id]["boxes"], dtype=torch.float64).reshape(-1, 4),
             "scores": torch.tensor(predictions[id]["scores"], dtype=torch.float64),
             "labels": torch.tensor(predictions[id]["phrase_ids"], dtype=torch.int64)} for id in ids]


def filled(metric, ids=None, data=DATA, predictions=FOUND):
    ids = data.pair_ids.tolist() if ids is None else list(ids)
    metric.update(detections(predictions, ids), targets_of(data, ids))
    return metric


def numbers(metric):
    return {name: value.item() for name, value in metric.compute().items()}


def expected(data=DATA, predictions=FOUND, **options):
    table = evaluate(data, predictions, subsets=("all",), **options)
    return dict(zip(table.metric, table.value))


WHOLE = numbers(filled(PhraseDetection()))


# -- the same numbers as from files


def test_the_numbers_are_those_of_evaluate_on_the_miniworld(tmp_path):
    root = ensure_tricd(tmp_path / "tricd", n_test=16, n_val=0, progress=False)
    data = load_tricd(next(root.rglob("TRICD_grounding_test*.json")))
    predictions = synthetic_predictions(data, seed=1)
    metric = PhraseDetection(subsets=("all", "coco_rel"), recall_at=(1, 10))
    for ids in np.array_split(data.pair_ids, 5):
        filled(metric, ids.tolist(), data, predictions)
    table = evaluate(data, predictions, (1, 10))
    found = metric.compute()
    for row in table[table.subset.isin(["all", "coco_rel"])].itertuples():
        name = row.metric if row.subset == "all" else f"{row.subset}/{row.metric}"
        np.testing.assert_equal(found[name].item(), row.value)
    assert found["n_pairs"] == len(data)


def test_average_precision_is_that_of_pycocotools_where_every_phrase_is_a_picture():
    theirs = MeanAveragePrecision(backend="pycocotools")
    for pred, target in zip(detections(FOUND, DATA.pair_ids.tolist()), targets_of(DATA)):
        assert len(pred["scores"]) < 100  # beyond that, TRICD counts by pair and COCO by picture
        for phrase in target["phrases"]:
            mine, its = pred["labels"] == phrase, target["labels"] == phrase
            zeros = torch.zeros(int(mine.sum()), dtype=torch.int64), torch.zeros(int(its.sum()), dtype=torch.int64)
            theirs.update([{"boxes": pred["boxes"][mine], "scores": pred["scores"][mine], "labels": zeros[0]}],
                          [{"boxes": target["boxes"][its], "labels": zeros[1]}])
    found = theirs.compute()
    assert (WHOLE["AP"], WHOLE["AP50"], WHOLE["AP75"]) == pytest.approx(
        [found[name].item() for name in ("map", "map_50", "map_75")], abs=1e-6)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.permutations(DATA.pair_ids.tolist()), st.lists(st.integers(0, len(DATA)), max_size=3), st.data())
def test_batches_order_merging_and_doubled_pairs_change_nothing(order, cuts, data):
    cuts = [0, *sorted(cuts), len(order)]
    parts = [filled(PhraseDetection(), order[a:b]) for a, b in zip(cuts, cuts[1:])]
    filled(parts[0], data.draw(st.lists(st.sampled_from(order), max_size=3)))  # as a sampler fills its last batch
    while len(parts) > 1:
        parts[-2].merge_state(parts.pop())
    assert numbers(parts[0]) == WHOLE


def test_what_a_target_need_not_say():
    targets = [{key: target[key] for key in ("boxes", "labels", "image_id", "phrases")} for target in targets_of(DATA)]
    metric = PhraseDetection(metrics=("AP", "recall"))
    metric.update(detections(FOUND, DATA.pair_ids.tolist()), targets)
    assert numbers(metric) == expected(metrics=("AP", "recall")) | {"n_pairs": len(DATA)}
    metric.reset()
    silent = [{"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0)}] * len(DATA)
    metric.update(silent, targets)
    assert numbers(metric)["AP"] == 0 == numbers(metric)["recall@5"]


def test_merge_reset_clone_pickle_and_state_dict():
    metric = filled(PhraseDetection())
    for other in (copy.deepcopy(metric), metric.clone(), pickle.loads(pickle.dumps(metric)), metric.to("cpu")):
        assert numbers(other) == WHOLE
    metric.persistent(True)
    fresh = PhraseDetection()
    fresh.persistent(True)
    fresh.load_state_dict(metric.state_dict())
    assert numbers(fresh) == WHOLE
    metric.reset()
    assert len(metric.gathered()[0]) == 0 and repr(metric).endswith("; n=0)")
    with pytest.warns(UserWarning, match="compute"):
        assert np.isnan(numbers(PhraseDetection())["AP"])


@pytest.mark.parametrize("harm, words", [
    (lambda p, t: p[0].pop("scores"), r"preds: expected the keys .* \['scores'\] is missing in element 0"),
    (lambda p, t: t[1].pop("phrases"), r"target: expected the keys .* \['phrases'\] is missing in element 1"),
    (lambda p, t: p[1].update(labels=p[1]["labels"] + 999), "is not a phrase of pair 1"),
    (lambda p, t: p[0].update(scores=p[0]["scores"] * np.nan), "pair|image"),
    (lambda p, t: p[0].update(boxes=p[0]["boxes"].flip(1)), "pair|image"),
    (lambda p, t: p[0].update(boxes=p[0]["boxes"][1:]), "image 0.*2 boxes"),
    (lambda p, t: t[0].update(boxes=t[0]["boxes"].flip(1)), "target: expected boxes x0, y0, x1, y1.* element 0"),
    (lambda p, t: t[0].update(labels=t[0]["labels"] + 999), "target: expected distinct phrases.* element 0"),
    (lambda p, t: t[0].update(subset="coco"), "target: expected subset to be one of"),
    (lambda p, t: t.pop(), "two lists of equal length"),
])  # fmt: skip
def test_a_wrong_batch_is_named_and_leaves_no_trace(harm, words):
    metric, preds, targets = filled(PhraseDetection()), detections(FOUND, [0, 1]), targets_of(DATA, [0, 1])
    harm(preds, targets)
    with pytest.raises(ValueError, match=words):
        metric.update(preds, targets)
    assert numbers(metric) == WHOLE


def test_two_targets_of_one_id_are_refused():
    metric, other = filled(PhraseDetection(), [0]), targets_of(DATA, [1])
    other[0]["image_id"] = 0
    metric.update(detections(FOUND, [1]), other)
    with pytest.raises(ValueError, match="two different targets have the id 0"):
        metric.compute()


# -- collections, plots, contracts


def test_collections_of_both_kinds_collide_in_nothing():
    both = MetricCollection({"phrases": PhraseDetection(), "late": PhraseDetection((1,), ties="pessimistic"),
                             "AP": PhraseDetection(score="AP"), "recall@1": PhraseDetection(score="recall@1")})
    both["map"] = MeanAveragePrecision()
    both.update(detections(FOUND, DATA.pair_ids.tolist()), targets_of(DATA))
    found = both.compute()
    assert found["phrases_AP"] == found["AP"] == WHOLE["AP"] and found["recall@1"] == WHOLE["recall@1"]
    assert found["late_n_pairs"] == len(DATA) and "map_map_50" in found
    nested = MetricCollection(MetricCollection({"a": GroundingScores("pixel"), "b": GroundingScores("paper")},
                                               prefix="val/"))
    nested.update(MAPS, BOXES, image_sizes=(24, 32))
    assert len(nested.compute_groups) == 2
    names = list(nested.compute())
    assert len(names) == len(set(names)) == 2 * len(GroundingScores("paper")(MAPS, BOXES, (24, 32)))


def test_one_score_alone_has_its_contract_and_shares_its_state():
    names = ("io_ratio", "wdp_soft", "wdp_soft_rel", "pg_ties")
    singles = MetricCollection({name: GroundingScores("paper", score=name) for name in names})
    singles.update(MAPS, BOXES, image_sizes=(24, 32))
    whole = GroundingScores("paper")
    whole.update(MAPS, BOXES, image_sizes=(24, 32))
    assert {k: v.item() for k, v in singles.compute().items()} == {k: whole.compute()[k].item() for k in names}
    assert len(singles.compute_groups) == 1
    for name, metric in singles.items():
        assert metric.higher_is_better is METRICS[name].higher_is_better
        assert metric.plot_lower_bound == METRICS[name].range[0]
    copied = pickle.loads(pickle.dumps(singles["wdp_soft"]))
    assert copied.higher_is_better is False and GroundingScores.higher_is_better is whole.higher_is_better is None
    with pytest.raises(ValueError, match="score: expected one of"):
        GroundingScores(score="iou")


# -- Lightning


def test_lightning_logs_the_values_of_all_data(tmp_path):
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            chosen = {name: GroundingScores("paper", score=name) for name in ("io_ratio", "pg_hit")}
            self.maps = MetricCollection(chosen, prefix="val/")
            self.all_maps = GroundingScores("paper", prefix="all/")
            self.boxes = MetricCollection({name: PhraseDetection(score=name) for name in ("AP", "recall@1")})
            self.all_boxes = PhraseDetection(prefix="phrases/")

        def validation_step(self, batch, index):
            rows, ids = slice(5 * index, 5 * index + 5), np.array_split(DATA.pair_ids, 2)[index].tolist()
            for metric in (self.maps, self.all_maps):
                metric.update(MAPS[rows], BOXES[rows], image_sizes=(24, 32))
            for metric in (self.boxes, self.all_boxes):
                metric.update(detections(FOUND, ids), targets_of(DATA, ids))
            self.log_dict(self.maps, on_epoch=True, batch_size=5)
            self.log_dict(self.boxes, on_epoch=True, batch_size=5)

        def on_validation_epoch_end(self):
            self.log_dict(self.all_maps.compute() | self.all_boxes.compute())

    trainer = pl.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
                         enable_model_summary=False, default_root_dir=tmp_path, barebones=False)
    loader = torch.utils.data.DataLoader([0, 1], batch_size=1)
    (logged,) = trainer.validate(Module(), loader, verbose=False)
    whole = GroundingScores("paper")
    whole.update(MAPS, BOXES, image_sizes=(24, 32))
    for name in ("io_ratio", "pg_hit"):
        assert logged[f"val/{name}"] == logged[f"all/{name}"] == whole.compute()[name].item()
    for name in ("AP", "recall@1"):
        assert logged[name] == logged[f"phrases/{name}"] == WHOLE[name]
    assert logged["all/n"] == 8 and logged["phrases/n_pairs"] == len(DATA)


# -- two processes

WORKER = """
import sys, torch
sys.path.insert(0, sys.argv[3])
import torch.distributed as dist
from test_metrics_in_training import DATA, WHOLE, PhraseDetection, filled, numbers
rank, place = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + place, rank=rank, world_size=2)
ids = DATA.pair_ids.tolist()
for parts in ([ids[0::2], ids[1::2]], [ids, []], [ids[:9], ids[8:]]):  # the last: one pair in both
    metric = PhraseDetection()
    if parts[rank]:
        filled(metric, parts[rank])
    assert numbers(metric) == WHOLE, (rank, numbers(metric))
    assert len(metric.gathered()[0]) == len(parts[rank])  # the process's own pairs are back
print("fine")
"""


@pytest.mark.nightly
def test_two_processes_give_the_digits_of_one(tmp_path):
    both_end_well(WORKER, tmp_path / "meet")
