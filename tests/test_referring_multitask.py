"""Multi-task training with questions: classes, losses, mixed steps, shared layers, resuming, transfer, bad input."""

import dataclasses
import math
import re
from collections import Counter
from functools import partial

import numpy as np
import pytest
import test_referring_training
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.special import logsumexp
from sklearn.metrics import log_loss

from qgcam_lib.data.gqa import Classes, Question
from qgcam_lib.data.referring.expressions import Expression
from qgcam_lib.data.referring.files import refcocog
from qgcam_lib.errors import ExampleError, FileFault, ParameterError
from qgcam_lib.finetune.loop import train, train_step
from qgcam_lib.finetune.minis import MINIS, make_mini, round_weights
from qgcam_lib.finetune.referring.data import QuestionData, graph_boxes, load_questions, picture_candidates
from qgcam_lib.finetune.referring.minis import RankerKind, judged_expressions
from qgcam_lib.finetune.referring.multitask import (
    MultiTaskRecipe,
    TwoTasks,
    answer_loss,
    answer_questions,
    start_questions,
    start_tasks,
    transfer,
)
from qgcam_lib.finetune.referring.training import RankerRecipe, choice_loss, train_ranker
from qgcam_lib.miniworld.writers.refcocog import REFCOCOG_CHECKSUM, split_counts
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer
from qgcam_lib.models.common.zoo import load_zoo
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
    said = test_referring_training.toys(pictures, seed)
    if kind == "expressions":
        return said
    table = dataclasses.replace(said.regions, fingerprint=f"{kind} {seed} {pictures}")
    places = np.random.default_rng([seed, pictures]).integers(0, len(ANSWERS), len(said))
    return QuestionData(table, said.of, said.ids, said.lengths, places, ANSWERS, said.names,
                        tuple(map(str, range(pictures))))


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
        wanted = training.recipe.rate(step) * (1e-3 / 3e-3 if asks else 1)
        train_step(training, training.draw(step))
        assert all(group["lr"] == pytest.approx(wanted) for group in training.optimizer.param_groups)


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
    batch = training.draw(next(step for step in range(50) if training.task_of(step)[0]))
    training.losses(batch)["total"].backward()
    training.optimizer.step()
    assert torch.equal(training.model.ranker.score.weight, before[0])
    assert not torch.equal(training.model.ranker.words.weight, before[1])


# --- trainings --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("loss", ["plain", "max"])
def test_a_stopped_training_goes_on_to_the_same_bits(tmp_path, loss):
    data, questions, dev = toys(), toys(kind="questions"), toys(6, 5)
    recipe = dataclasses.replace(SHORT, steps=7, loss=loss, together=1, negatives=2)
    start = partial(start_tasks, network(), data, questions, recipe, dev)
    whole = train(start, progress=False)
    train(start, tmp_path, stop_at=4, progress=False)
    again = train(start, tmp_path, progress=False)
    assert same(whole.model, again.model) and again.step == 7
    columns = ["step", "plain", "answers", "dev"]
    assert whole.log[columns].equals(again.log[columns])
    assert whole.log.answers.notna().sum() == sum(whole.task_of(step)[0] for step in range(7)) > 0
    for other in ((toys(seed=1, kind="questions"), recipe), (questions, dataclasses.replace(recipe, questions=2.0))):
        with pytest.raises(FileFault, match="another training"):
            train(partial(start_tasks, network(), data, *other, dev), tmp_path, progress=False)


def test_a_ratio_of_nothing_is_the_plain_training():
    data, dev = toys(), toys(6, 5)
    recipe = dataclasses.replace(SHORT, questions=0.0, epochs=2)
    mixed = train(partial(start_tasks, network(), data, toys(kind="questions"), recipe, dev), progress=False)
    fields = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(RankerRecipe)}
    plain = train_ranker(network().ranker, data, dev, recipe=RankerRecipe(**fields), progress=False)
    assert same(mixed.model.ranker, plain.model) and mixed.looks == plain.looks


def test_questions_alone_then_transfer(tmp_path):
    questions, dev = toys(kind="questions"), toys(8, 2, kind="questions")
    recipe = RankerRecipe(epochs=3, batch=12, learning_rate=3e-3, patience=0)
    learned = train(partial(start_questions, network(), questions, recipe, dev), tmp_path, progress=False)
    assert learned.accuracy(dev) == max(learned.looks)
    fresh = build_vilbert(SMALL, 30, 5, 9)
    score = fresh.score.weight.clone()
    started = transfer(fresh, learned.model)
    for name, value in started.state_dict().items():
        assert name.startswith("score.") or torch.equal(value, learned.model.ranker.state_dict()[name]), name
    assert torch.equal(started.score.weight, score)
    assert not torch.equal(fresh.words.weight, started.words.weight)  # the given one is left as it is
    with pytest.raises(ValueError, match="of another shape"):
        transfer(build_vilbert(SMALL, 31, 5), learned.model)


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


def test_unknown_answers_and_empty_pictures_are_left_out(world):
    asked, options = world
    data = load_questions(asked, classes=Classes(asked[:3]).names, **options)
    assert data.classes == ("yes", "cup")
    assert data.names == ("b", "c", "a") and data.place.tolist() == [1, 0, 0] and data.of.tolist() == [0, 0, 1]
    kept = load_questions(asked, classes=data.classes, keep_unknown=True, **options)
    assert kept.place.tolist() == [1, 0, 0, -1]
    frame = answer_questions(TwoTasks(build_vilbert(SMALL, len(options["tokenizer"]), 4), 2), kept)
    assert frame.known.tolist() == [True, True, True, False] and not frame.correct[3]
    assert load_questions(asked, **options).classes == ("yes", "a boy", "cup", "no")


def test_bad_input_is_named(world):
    asked, options = world
    with pytest.raises(ExampleError, match="no answer"):
        load_questions([*asked, Question("f", "1", "what is it")], classes=["yes"], **options)
    with pytest.raises(ParameterError, match="questions"):
        load_questions(asked, classes=["blue"], **options)
    data = load_questions(asked, keep_unknown=True, classes=["yes"], **options)
    model = TwoTasks(build_vilbert(SMALL, len(options["tokenizer"]), 4), 1)
    with pytest.raises(ParameterError, match="2 texts without"):
        start_questions(model, data, RankerRecipe())
    with pytest.raises(ParameterError, match="questions"):
        start_tasks(network(), toys(), data, SHORT)


def test_boxes_of_a_picture(tmp_path):
    objects = {"1": {"x": 0, "y": 0, "w": 4, "h": 5}, "2": {"x": 0, "y": 0, "w": 4, "h": 5},
               "3": {"x": 8, "y": 8, "w": 9, "h": 9}, "4": {"x": 1, "y": 1, "w": 0, "h": 3},
               "5": {"x": 12, "y": 2, "w": 3, "h": 3}}
    graphs = {"7": {"width": 10, "height": 10, "objects": objects}}
    write_json(tmp_path / "val_sceneGraphs.json", graphs)
    assert graph_boxes(tmp_path, "val") == {"7": ((0, 0, 4, 5), (8, 8, 10, 10))}
    del graphs["7"]["objects"]["1"]["w"]
    write_json(tmp_path / "val_sceneGraphs.json", graphs)
    with pytest.raises(ExampleError, match="image 7.*objects.1.w"):
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
    recipe = dataclasses.replace(mini.kind.recipe, steps=6, images=24, batch=24, log_every=1)
    folder = make_mini(f"{name}-mini", place / "w", place / "work", place / "zoo", recipe, progress=False)
    training = RankerKind(name, recipe).train(place / "w", place / "work", progress=False)  # from its checkpoint
    round_weights(training.model)
    return folder, training, name


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


def test_questions_are_about_the_pictures_of_the_same_split(entry):
    _, training, name = entry
    if name == "vilbert":
        return
    numbers = {part: {int(re.search(r"(\d+)\.jpg", one.image)[1]) for one in refcocog(training.folder, split)}
               for part, split in (("train", "train"), ("val", "val"), ("test", "test"))}
    asked = {"train": set(map(int, training.questions.data.pictures)), "val": set(map(int, training.asked.pictures))}
    assert asked["train"] <= numbers["train"] and asked["val"] <= numbers["val"]
    assert not (asked["train"] | asked["val"]) & numbers["test"]
