"""Multi-task training with questions: classes, losses, mixed steps, shared layers, resuming, transfer, bad input."""

import dataclasses
import math
import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from scipy.special import logsumexp
from sklearn.metrics import log_loss

from qgcam_lib.data.gqa import Classes, Question
from qgcam_lib.data.referring.expressions import Expression
from qgcam_lib.data.referring.refcocog import refcocog
from qgcam_lib.errors import ExampleError, FileFault, FormatError, ParameterError
from qgcam_lib.finetune.minis import MINIS, make_mini
from qgcam_lib.finetune.referring.data import RankerData, RegionTable
from qgcam_lib.finetune.referring.losses import choice_loss
from qgcam_lib.finetune.referring.minis import judged_expressions, train_mini_ranker
from qgcam_lib.finetune.referring.multitask import (
    MultiTaskRecipe,
    TwoTasks,
    answer_loss,
    answer_questions,
    start_questions,
    start_tasks,
    train_questions,
    train_tasks,
    transfer,
)
from qgcam_lib.finetune.referring.questions import (
    NO_REGIONS,
    UNKNOWN,
    QuestionData,
    graph_boxes,
    load_questions,
    picture_candidates,
)
from qgcam_lib.finetune.referring.training import RankerRecipe, train_ranker
from qgcam_lib.miniworld.writers.refcocog import REFCOCOG_CHECKSUM, split_counts
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer
from qgcam_lib.models.common.zoo import card_markdown, load_zoo, zoo_table
from qgcam_lib.models.regions.vilbert import MINI, build_vilbert
from qgcam_lib.models.registry import load_model
from qgcam_lib.referring.run import refer
from qgcam_lib.storage.files import write_json

SMALL = dataclasses.replace(MINI, hidden=16, heads=2, inner=16, layers=3, region_hidden=16, region_heads=2,
                            region_inner=16, region_layers=2, joint_hidden=16, joint_heads=2,
                            connections=((0, 1), (1, 2)))
SHORT = MultiTaskRecipe(epochs=2, batch=12, learning_rate=3e-3, question_rate=1e-3, log_every=1, patience=0)
ANSWERS = ("yes", "no", "left", "cup")


def toys(pictures=14, seed=0, kind="expressions"):
    """Pictures of two to four regions with one to three texts each."""
    rng = np.random.default_rng([seed, len(kind)])
    counts, said = rng.integers(2, 5, pictures), rng.integers(1, 4, pictures)
    of, first = np.arange(pictures).repeat(said), np.cumsum([0, *counts])
    lengths = rng.integers(3, 7, len(of))
    ids = rng.integers(5, 30, (len(of), 6)) * (np.arange(6) < lengths[:, None])
    table = RegionTable(rng.standard_normal((first[-1], 5)).astype(np.float32),
                        rng.random((first[-1], 5)).astype(np.float32), first, fingerprint=f"{kind} {seed} {pictures}")
    names = tuple(map(str, range(len(of))))
    if kind == "questions":
        return QuestionData(table, of, ids, lengths, rng.integers(0, len(ANSWERS), len(of)), ANSWERS, names,
                            tuple(map(str, range(pictures))))
    targets = np.zeros((len(of), 4), np.float32)
    targets[np.arange(len(of)), rng.integers(0, counts[of])] = 1
    return RankerData(table, of, ids, lengths, targets, names)


def network(seed=0, config=SMALL):
    return TwoTasks(build_vilbert(config, 30, 5, seed), len(ANSWERS), seed)


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


# --- losses -----------------------------------------------------------------------------------------------------------

@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(1, 6), scale=st.sampled_from([0.5, 1.0, 10.0]))
def test_the_choice_loss_is_scipys(seed, n, scale):
    rng = np.random.default_rng(seed)
    scores, place = rng.normal(0, 2, n), int(rng.integers(n))
    padded = torch.tensor([*scores, math.nan, math.inf])[None]
    found = choice_loss(padded, torch.tensor([place]), torch.arange(n + 2)[None] < n, scale)
    wanted = logsumexp(scale * (scores - scores[place]))
    assert found.shape == (1,) and found.item() == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    moved = choice_loss(padded + 3, torch.tensor([place]), torch.arange(n + 2)[None] < n, scale)
    assert moved.item() == pytest.approx(found.item(), abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), classes=st.integers(1, 6))
def test_the_answer_loss_is_one_yes_no_question_a_class(seed, classes):
    rng = np.random.default_rng(seed)
    logits, place = rng.normal(0, 3, (4, classes)), rng.integers(-1, classes, 4)
    found = answer_loss(torch.tensor(logits), torch.tensor(place))
    for line, k, value in zip(logits, place, found):
        wanted = sum(log_loss([int(c == k)], [1 / (1 + np.exp(-x))], labels=[0, 1]) for c, x in enumerate(line))
        assert value.item() == pytest.approx(wanted, rel=1e-4, abs=1e-5)


# --- mixed steps ------------------------------------------------------------------------------------------------------

@settings(max_examples=25, deadline=None)
@given(ratio=st.sampled_from([0.0, 0.5, 1.0, 2.5]), seed=st.integers(0, 5))
def test_an_epoch_has_exactly_its_share_of_each_task(ratio, seed):
    recipe = dataclasses.replace(SHORT, questions=ratio, seed=seed)
    training = start_tasks(network(), toys(40), toys(30, kind="questions"), recipe)
    per, asked = training.per_epoch, round(ratio * training.per_epoch)
    assert training.epoch_steps == per + asked and training.recipe.steps == 2 * (per + asked)
    tasks = [training.task_of(step) for step in range(3 * training.epoch_steps)]
    for epoch in range(3):
        own = tasks[epoch * (per + asked):(epoch + 1) * (per + asked)]
        assert Counter(asks for asks, _ in own) == Counter({False: per, True: asked})
    for kind in (False, True):  # each task goes on where it was, no step of it twice or left out
        numbers = [number for asks, number in tasks if asks is kind]
        assert numbers == list(range(len(numbers)))


def test_order_of_tasks_is_drawn_anew_and_expressions_are_those_of_a_plain_training():
    training = start_tasks(network(), toys(40), toys(30, kind="questions"), SHORT)
    every = training.epoch_steps
    epochs = [[training.task_of(epoch * every + k)[0] for k in range(every)] for epoch in range(4)]
    assert len(set(map(tuple, epochs))) > 1
    step = next(step for step in range(every) if not training.task_of(step)[0])
    rows = np.concatenate(training.rows_of(training.task_of(step)[1]))
    assert torch.equal(training.draw(step).place, torch.from_numpy(training.data.place[rows]))


def test_the_rate_of_a_step_is_that_of_its_task():
    training = start_tasks(network(), toys(40), toys(30, kind="questions"), SHORT)
    for step in range(4):
        asks = training.task_of(step)[0]
        for group in training.optimizer.param_groups:
            group["lr"] = training.recipe.rate(step)
        training.descend(training.draw(step))
        wanted = training.recipe.rate(step) * (1e-3 / 3e-3 if asks else 1)
        assert all(group["lr"] == pytest.approx(wanted) for group in training.optimizer.param_groups)


def test_processes_share_the_batch_of_either_task(monkeypatch):
    training = start_tasks(network(), toys(40), toys(30, kind="questions"), SHORT)
    steps = {training.task_of(step)[0]: step for step in range(training.epoch_steps)}
    whole = {asks: training.draw(step) for asks, step in steps.items()}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    for asks, step in steps.items():
        shares = [training.draw(step, worker) for worker in range(2)]
        assert [share.total for share in shares] == [len(whole[asks].place)] * 2
        assert sorted(k for share in shares for k in share.place.tolist()) == sorted(whole[asks].place.tolist())
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
        training.model.eval()
        parts, alone = [training.losses(share)["total"].item() for share in shares], training.losses(whole[asks])
        assert sum(parts) == pytest.approx(alone["total"].item(), rel=1e-5)
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)


# --- shared layers ----------------------------------------------------------------------------------------------------

def test_both_tasks_train_the_shared_layers_and_each_its_own_head():
    training = start_tasks(network(), toys(), toys(kind="questions"), SHORT)
    trained = {}
    for asks in (False, True):
        step = next(step for step in range(50) if training.task_of(step)[0] is asks)
        training.model.zero_grad()
        training.losses(training.draw(step))["total"].backward()
        every = training.model.named_parameters()
        trained[asks] = {name for name, p in every if p.grad is not None and p.grad.any()}
    names = {name for name, _ in training.model.named_parameters()}
    keys = {name for name in names if name.endswith("key.bias")}  # a softmax does not see them
    last = (f"ranker.connections.1.{part}" for part in ("text.query", "text.out", "text.norm", "text_feed", "image.key",
                                                        "image.value"))  # what the words are told, and no region
    read = ("ranker.text.2.", "ranker.pool_", "answer.", *last)
    assert {name for name in names if name.startswith("ranker.score.")} == trained[False] - trained[True] - keys
    assert {name for name in names if name.startswith(read)} - keys == trained[True] - trained[False] - keys
    assert names - trained[False] - trained[True] <= keys
    shared = trained[False] & trained[True]
    assert {"ranker.words.weight", "ranker.see.features.weight", "ranker.image.0.feed.inner.weight",
            "ranker.connections.0.image.query.weight", "ranker.connections.1.text.value.weight"} <= shared


def test_a_step_with_questions_leaves_the_score_of_regions_as_it_was():
    training = start_tasks(network(), toys(), toys(kind="questions"), dataclasses.replace(SHORT, weight_decay=0.1))
    before = training.model.ranker.score.weight.clone(), training.model.ranker.words.weight.clone()
    training.optimizer.zero_grad()
    training.descend(training.draw(next(step for step in range(50) if training.task_of(step)[0])))
    training.optimizer.step()
    assert torch.equal(training.model.ranker.score.weight, before[0])
    assert not torch.equal(training.model.ranker.words.weight, before[1])


# --- trainings --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("loss", ["plain", "max"])
def test_a_stopped_training_goes_on_to_the_same_bits(tmp_path, loss):
    data, questions, dev = toys(), toys(kind="questions"), toys(6, 5)
    recipe = dataclasses.replace(SHORT, steps=7, loss=loss, among="picture", negatives=2)
    whole = train_tasks(network(), data, questions, dev, recipe=recipe, progress=False)
    train_tasks(network(), data, questions, dev, tmp_path, recipe=recipe, stop_at=4, progress=False)
    again = train_tasks(network(), data, questions, dev, tmp_path, recipe=recipe, progress=False)
    assert same(whole.model, again.model) and again.step == 7
    columns = ["step", "plain", "answers", "dev"]
    assert whole.log[columns].equals(again.log[columns])
    assert whole.log.answers.notna().sum() == sum(whole.task_of(step)[0] for step in range(7)) > 0
    other = dataclasses.replace(recipe, questions=2.0)
    for changed in ({"questions": toys(seed=1, kind="questions")}, {"recipe": other}):
        with pytest.raises(FileFault, match="another training"):
            train_tasks(network(), **{"data": data, "questions": questions, "dev": dev, "work": tmp_path,
                                      "recipe": recipe, "progress": False, **changed})


def test_a_ratio_of_nothing_is_the_plain_training():
    data, dev = toys(), toys(6, 5)
    recipe = dataclasses.replace(SHORT, questions=0.0, epochs=2)
    mixed = train_tasks(network(), data, toys(kind="questions"), dev, recipe=recipe, progress=False)
    fields = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(RankerRecipe)}
    plain = train_ranker(network().ranker, data, dev, recipe=RankerRecipe(**fields), progress=False)
    assert same(mixed.model.ranker, plain.model) and mixed.looks == plain.looks


def test_questions_alone_then_transfer(tmp_path):
    questions, dev = toys(kind="questions"), toys(8, 2, kind="questions")
    recipe = RankerRecipe(epochs=3, batch=12, learning_rate=3e-3, patience=0)
    learned = train_questions(network(), questions, dev, tmp_path, recipe=recipe, progress=False)
    assert learned.accuracy(dev) == max(learned.looks)
    fresh = build_vilbert(SMALL, 30, 5, 9)
    score = fresh.score.weight.clone()
    for source in (learned.model, tmp_path / "checkpoint.pt", str(tmp_path / "checkpoint.pt")):
        started = transfer(fresh, source)
        for name, value in started.state_dict().items():
            assert name.startswith("score.") or torch.equal(value, learned.model.ranker.state_dict()[name]), name
        assert torch.equal(started.score.weight, score)
    assert not torch.equal(fresh.words.weight, started.words.weight)  # the given one is left as it is
    with pytest.raises(ValueError, match="of another shape"):
        transfer(build_vilbert(SMALL, 31, 5), learned.model)
    train_ranker(build_vilbert(SMALL, 30, 5), toys(), None, tmp_path / "other", progress=False,
                 recipe=RankerRecipe(steps=1, batch=12))
    with pytest.raises(ValueError, match="source: expected a network of two tasks"):
        transfer(fresh, tmp_path / "other" / "checkpoint.pt")


def test_answers_are_those_of_one_question_at_a_time():
    questions, asked = toys(kind="questions"), network().eval()
    frame = answer_questions(asked, questions)
    for row in range(len(questions)):
        with torch.inference_mode():
            logits = asked.logits(*questions.batch([row]).inputs("cpu"))
        assert frame.predicted[row] == ANSWERS[int(logits.argmax())]
    assert frame.correct.tolist() == [ANSWERS[k] == found for k, found in zip(questions.place, frame.predicted)]
    assert list(frame) == ["id", "group", "predicted", "correct", "known"] and frame.known.all()


# --- data -------------------------------------------------------------------------------------------------------------

class Means:
    card = {"name": "means"}

    def encode(self, image, boxes):
        return np.asarray(boxes, np.float32)


@pytest.fixture
def world(tmp_path):
    for name in ("1", "2", "3"):
        Image.new("RGB", (20, 20)).save(tmp_path / f"{name}.jpg")
    boxes = {"1": ((0, 0, 5, 5), (5, 5, 20, 20)), "2": ((1, 1, 9, 9),), "3": ()}
    asked = [Question("a", "2", "is it red", "yes"), Question("b", "1", "what is left of it", "cup"),
             Question("c", "1", "is it left", "yes"), Question("d", "3", "is it big", "no"),
             Question("e", "2", "who is it", "a boy")]
    tokenizer = make_tokenizer(build_vocabulary(), lavis_tokens=False)
    return asked, {"boxes": boxes, "images": tmp_path, "encoder": Means(), "tokenizer": tokenizer, "progress": False}


def test_unknown_answers_and_empty_pictures_are_counted(world):
    asked, options = world
    data = load_questions(asked, classes=Classes(asked[:3]), **options)
    assert data.classes == ("yes", "cup") and data.left_out == {UNKNOWN: 1, NO_REGIONS: 1} and data.unknown == 0
    assert data.names == ("b", "c", "a") and data.place.tolist() == [1, 0, 0] and data.of.tolist() == [0, 0, 1]
    kept = load_questions(asked, classes=data.classes, keep_unknown=True, **options)
    assert kept.unknown == 1 and kept.left_out == {NO_REGIONS: 1} and kept.place.tolist() == [1, 0, 0, -1]
    frame = answer_questions(TwoTasks(build_vilbert(SMALL, len(options["tokenizer"]), 4), 2), kept)
    assert frame.known.tolist() == [True, True, True, False] and not frame.correct[3]
    assert frame.attrs == {"unknown": 1, "left_out": {NO_REGIONS: 1}}
    assert load_questions(asked, **options).classes == ("yes", "a boy", "cup", "no")


def test_bad_input_is_named(world, tmp_path):
    asked, options = world
    with pytest.raises(ExampleError, match="the question has no answer"):
        load_questions([*asked, Question("f", "1", "what is it")], classes=["yes"], **options)
    with pytest.raises(ParameterError, match="left out: {'answer not among the classes': 4.*`boxes` has 3"):
        load_questions(asked, classes=["blue"], **options)
    with pytest.raises(ExampleError, match="no such picture"):
        load_questions(asked, **{**options, "images": tmp_path / "elsewhere"})
    data = load_questions(asked, keep_unknown=True, classes=["yes"], **options)
    model = TwoTasks(build_vilbert(SMALL, len(options["tokenizer"]), 4), 1)
    with pytest.raises(ParameterError, match="2 without"):
        start_questions(model, data, RankerRecipe())
    with pytest.raises(ParameterError, match="room for all texts of a picture, 3"):
        start_tasks(network(), toys(), toys(kind="questions"), dataclasses.replace(SHORT, batch=2))
    with pytest.raises(ParameterError, match="expected questions with the 4 classes of the network, got 1"):
        start_tasks(network(), toys(), data, SHORT)
    with pytest.raises(ParameterError, match="expected TwoTasks"):
        start_questions(build_vilbert(SMALL, 30, 5), toys(kind="questions"), RankerRecipe())
    with pytest.raises(ParameterError, match="expected 'plain' for questions"):
        start_questions(network(), toys(kind="questions"), RankerRecipe(loss="sum"))
    with pytest.raises(ParameterError, match="at least one step with questions"):
        start_tasks(network(), toys(), toys(kind="questions"), dataclasses.replace(SHORT, questions=0.01))
    for wrong in ({"questions": -0.5}, {"questions": math.nan}, {"question_rate": 0.0}):
        with pytest.raises(ParameterError, match="questions, question_rate"):
            dataclasses.replace(SHORT, **wrong)
    with pytest.raises(ParameterError, match="fit: expected one of regions, choice"):
        RankerRecipe(fit="hinge")
    with pytest.raises(ParameterError, match="scale"):
        RankerRecipe(scale=0.0)
    for wrong in (build_vilbert(dataclasses.replace(SMALL, whole_picture=False), 30, 5), torch.nn.Linear(2, 2)):
        with pytest.raises(ParameterError, match="ViLBERT with whole_picture"):
            TwoTasks(wrong, 3)


def test_boxes_of_a_picture(tmp_path):
    objects = {"1": {"x": 0, "y": 0, "w": 4, "h": 5}, "2": {"x": 0, "y": 0, "w": 4, "h": 5},
               "3": {"x": 8, "y": 8, "w": 9, "h": 9}, "4": {"x": 1, "y": 1, "w": 0, "h": 3},
               "5": {"x": 12, "y": 2, "w": 3, "h": 3}}
    graphs = {"7": {"width": 10, "height": 10, "objects": objects}}
    write_json(tmp_path / "val_sceneGraphs.json", graphs)
    assert graph_boxes(tmp_path, "val") == {"7": ((0, 0, 4, 5), (8, 8, 10, 10))}
    del graphs["7"]["objects"]["1"]["w"]
    write_json(tmp_path / "val_sceneGraphs.json", graphs)
    with pytest.raises(FormatError, match="image 7: object 1: expected a name and the numbers x, y, w, h"):
        graph_boxes(tmp_path, "val")
    a, b = (0.0, 0.0, 4.0, 5.0), (1.0, 1.0, 3.0, 3.0)
    said = [Expression("1", "p.jpg", "7", "x", a, (a, b)), Expression("2", "p.jpg", "7", "y", b, (b,)),
            Expression("3", "q.jpg", "8", "z", b)]
    assert picture_candidates(said) == {"7": (a, b), "8": ()}




# --- the minis --------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module", params=["vilbert", "vilbert-mtl"])
def entry(request, tmp_path_factory):
    """A ranker of a few steps as an entry of a zoo, its training, and its name."""
    name, place = request.param, tmp_path_factory.mktemp("minis")
    mini = MINIS[f"{name}-mini"]
    recipe = dataclasses.replace(mini.recipe, steps=6, images=24, batch=24, log_every=1)
    kept = []

    def trained(*args, **options):
        kept.append(train_mini_ranker(name, *args, **options))
        return kept[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MINIS, f"{name}-mini", dataclasses.replace(mini, train=trained))
        folder = make_mini(f"{name}-mini", place / "w", place / "work", place / "zoo", recipe, progress=False)
    return folder, kept[0], name


def test_an_entry_is_read_back_and_gives_the_scores_that_were_taken(entry):
    folder, training, name = entry
    loaded = load_model(name, weights=folder)
    said = judged_expressions(training.folder)
    frame = refer(loaded, said, training.folder / "images", progress=False)
    card = load_zoo(f"{name}-mini", folder.parent).card
    rows = [row for row in card["scores_on_test"]["all"] if row["model"] == "trained"]
    for row in rows:
        part = frame[frame.split == row["split"]]
        assert (row["n"], row["value"]) == (len(part), pytest.approx(part.correct.astype(float).mean(), abs=1e-5))
    bag = split_counts(training.folder)["bag"]
    assert {row["split"]: row["bag"] for row in rows} == pytest.approx(bag[["easy", "hard", "adv"]].to_dict(), abs=1e-5)
    scores = [model.rank(training.folder / "images" / said[0].image, said[0].candidates, said[0].text)
              for model in (loaded, training.as_model())]
    np.testing.assert_array_equal(*scores)
    assert card["role"] == "ranker" and card["data"]["generator"] == REFCOCOG_CHECKSUM
    assert card["data"]["training_images"] == 24 and "grid" not in card


def test_the_card_of_two_tasks_has_the_answers_too(entry):
    folder, training, name = entry
    card = load_zoo(f"{name}-mini", folder.parent).card
    if name == "vilbert":
        assert "answers_on_dev" not in card and "answers" not in card
        return
    told, asked = card["answers_on_dev"], training.asked
    network = TwoTasks(build_vilbert(MINI, len(training.vocabulary), training.config.feature_size), len(asked.classes))
    network.load_state_dict({key: value.float() for key, value in load_file(folder / "model.safetensors").items()})
    answers = answer_questions(network, asked)
    usual = Counter(training.questions.data.place.tolist())
    most = min(place for place, count in usual.items() if count == max(usual.values()))
    assert told == {"accuracy": answers.correct.mean(), "most_frequent": (asked.place == most).mean(), "n": len(asked),
                    "unknown": asked.unknown} and card["answers"] == list(asked.classes)
    said = (folder / "README.md").read_text(encoding="utf-8")
    assert f"{told['accuracy']:.3f} of {len(asked)} questions" in said


def test_questions_are_about_the_pictures_of_the_same_split(entry):
    _, training, name = entry
    if name == "vilbert":
        return
    numbers = {part: {int(re.search(r"(\d+)\.jpg", one.image)[1]) for one in refcocog(training.folder, split)}
               for part, split in (("train", "train"), ("val", "val"), ("test", "test"))}
    asked = {"train": set(map(int, training.questions.data.pictures)), "val": set(map(int, training.asked.pictures))}
    assert asked["train"] <= numbers["train"] and asked["val"] <= numbers["val"]
    assert not (asked["train"] | asked["val"]) & numbers["test"]


def test_the_card_says_where_the_bag_is_beaten(entry):
    folder, _, name = entry
    card = load_zoo(f"{name}-mini", folder.parent).card
    text = (folder / "README.md").read_text(encoding="utf-8")
    ours = {row["split"]: row for row in card["scores_on_test"]["all"] if row["model"] == "trained"}
    below = [f"Ref-{name.title()}" for name in ("hard", "adv") if ours[name]["ci_low"] <= ours[name]["bag"]]
    assert text == card_markdown(card)
    assert (f"**Not above that ceiling: {', '.join(below)}.**" in text) == bool(below)
    assert "lies above that ceiling on: Ref-Adv." in card_markdown({**card, "above_bag": ["adv"]})
    rows = card["scores_on_test"]["all"]
    hard = [row["value"] for row in rows if (row["model"], row["split"]) == ("trained", "hard")]
    assert [zoo_table(folder.parent).set_index("name").ref_hard[f"{name}-mini"]] == hard


def test_the_four_share_all_but_the_loss():
    recipes = [MINIS[f"{name}-mini"].recipe for name in ("vilbert", "cmn", "mattnet", "groundnet")]
    assert {name for one in recipes for name in recipes[0].differs(dataclasses.asdict(one))} == {"fit", "scale"}
    assert [(one.fit, one.scale) for one in recipes] == [("regions", 1), ("choice", 1), ("choice", 10), ("choice", 1)]
    for name in ("sum", "max"):
        hinge = MINIS[f"vilbert-{name}-h-mini"].recipe
        assert set(recipes[0].differs(dataclasses.asdict(hinge))) == {"loss", "negatives", "together",
                                                                          "hinges_after"}
        assert hinge.loss == name
    both = MINIS["vilbert-mtl-mini"].recipe
    assert both.steps == 2 * recipes[0].steps and both.questions == 1 and both.question_rate == both.learning_rate / 2
    assert recipes[0].differs(dataclasses.asdict(both)) == ["steps"]
    with pytest.raises(ParameterError, match="expected one of vilbert, cmn, mattnet, groundnet, .*got 'uniter'"):
        train_mini_ranker("uniter", "nowhere")
