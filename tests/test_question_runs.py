"""Runs of an answerer over yes/no questions: resumed, in any order, with bad pictures and bad answers."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from qgcam_lib.errors import ExampleError, FileFault, StoreError
from qgcam_lib.phrase_detection.questions import evaluate_answers, load_tricd_vqa
from qgcam_lib.phrase_detection.run import (
    answer_questions,
    answers_for,
    answers_of,
    read_answers,
    take_question_groups,
)
from qgcam_lib.storage.rows import RecordStore

ROOT = Path(__file__).parents[1]
N_GROUPS = 4


def write_questions(folder, n_groups=N_GROUPS):
    """n groups of four questions about two pictures each, in TRICD's form; returns the annotation's path."""
    (folder / "pictures").mkdir(parents=True)
    rng, asked, truth = np.random.default_rng(0), [], []
    for group in range(n_groups):
        for side in (0, 1):
            name = f"{group}_{side}.png"
            Image.fromarray(rng.integers(0, 255, (20, 30, 3), np.uint8)).save(folder / "pictures" / name)
            for k, thing in enumerate(("cat", "dog")):
                id = 100 * k + 2 * group + side + 1
                question = f"is there a {thing} {group}"
                asked.append({"image_id": id, "question": question, "question_id": 1000 + id, "file_name": name})
                truth.append({"image_id": id, "source": "coco_val2017", "answer": int(k == side)})
                truth[-1] |= {"coco_type": "object", "answer_id": id, "answer_type": "yes/no"}
    (folder / "vqa.json").write_text(json.dumps({"questions": asked, "annotations": truth}))
    return folder / "vqa.json"


class Hashing:
    """Answers that depend on the picture and the question only; it notes what it was asked."""

    def __init__(self, name="hashing", fails=()):
        self.card, self.asked, self.fails = {"name": name}, [], fails

    def yes_score(self, image, question):
        return (int(np.asarray(image, np.int64).sum()) + sum(map(ord, question))) % 97 / 97

    def answer(self, image, question):
        if question in self.fails:
            raise RuntimeError("token 7 is out of range")
        self.asked.append((image, question))
        return ("Yes, I think." if self.yes_score(image, question) > 0.5 else "no") + f" {question}"


class Batched(Hashing):
    def answer_batch(self, images, questions):
        return [self.answer(*asked) for asked in zip(images, questions)]


@pytest.fixture
def root(tmp_path):
    write_questions(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def questions(root):
    return load_tricd_vqa(root / "vqa.json")


def run(model, questions, root, **options):
    return answer_questions(model, questions, root / "pictures", progress=False, **options)


same = pd.testing.assert_frame_equal

# -- what comes out


def test_answers_are_what_the_model_said_and_can_be_scored(root, questions):
    model = Hashing()
    frame = run(model, questions, root)
    assert frame.image_id.tolist() == questions.image_id.tolist()
    for row, asked in zip(frame.itertuples(), questions.itertuples()):
        picture = Image.open(root / "pictures" / asked.file_name).convert("RGB")
        assert row.answer == Hashing().answer(picture, asked.question)
    assert len({id(picture) for picture, _ in model.asked}) == 2 * N_GROUPS, "each picture is opened once"
    left = evaluate_answers(questions, answers_of(frame), n_bootstrap=0)
    hits = sum(answer.startswith("Yes") == truth for answer, truth in zip(frame.answer, questions.answer))
    (accuracy,) = left.query("metric == 'accuracy' and subset == 'all'").value
    assert accuracy == pytest.approx(hits / len(questions))


@pytest.mark.parametrize("batch_images", [1, 3])
def test_batches_and_order_change_nothing(root, questions, batch_images):
    expected = run(Hashing(), questions, root)
    same(run(Batched(), questions, root, batch_images=batch_images), expected)
    mixed = questions.sample(frac=1, random_state=batch_images).reset_index(drop=True)
    found = run(Batched(), mixed, root, batch_images=batch_images)
    assert found.image_id.tolist() == mixed.image_id.tolist()
    same(found.set_index("id").loc[expected.id].reset_index(), expected)


# -- limits and resuming


def test_a_limit_takes_whole_groups_and_continues(root, questions, tmp_path):
    first, second = Hashing(), Hashing()
    few = run(first, questions, root, limit=2, seed=4, store=tmp_path / "s")
    assert few.image_id.tolist() == take_question_groups(questions, 2, 4).image_id.tolist() and len(few) == 8
    assert questions.set_index("image_id").loc[few.image_id].groupby("group").size().tolist() == [4, 4]
    same(run(second, questions, root, store=tmp_path / "s"), run(Hashing(), questions, root))
    assert (len(first.asked), len(second.asked)) == (8, 4 * N_GROUPS - 8)


WORKER = """
import sys, time
sys.path.insert(0, "tests")
from test_question_runs import Hashing
from qgcam_lib.data import picture_loop
from qgcam_lib.phrase_detection.questions import load_tricd_vqa
from qgcam_lib.phrase_detection.run import answer_questions
quick = Hashing.answer
def slow(*asked):
    time.sleep(0.2)
    return quick(*asked)
Hashing.answer = slow
picture_loop.PART_SECONDS = 0
folder = sys.argv[1]
answer_questions(Hashing(), load_tricd_vqa(folder + "/vqa.json"), folder + "/pictures", store=sys.argv[2],
                 batch_images=1, progress=False)
"""


def test_killed_in_the_middle_and_continued(root, questions, tmp_path):
    folder = tmp_path / "s"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(root), str(folder)], cwd=ROOT)
    deadline = time.monotonic() + 300
    while len(list(folder.glob("part-*.parquet"))) < 3 and time.monotonic() < deadline and worker.poll() is None:
        time.sleep(0.01)
    worker.send_signal(signal.SIGKILL)
    assert worker.wait(60) == -signal.SIGKILL, "the worker must be killed, not finished"
    kept = len(RecordStore(folder).done())
    assert 6 <= kept < len(questions)
    model = Hashing()
    same(run(model, questions, root, store=folder), run(Hashing(), questions, root))
    assert len(model.asked) == len(questions) - kept, "finished questions are not asked again"


def test_a_store_belongs_to_one_model_and_one_set_of_questions(root, questions, tmp_path):
    run(Hashing(), questions, root, store=tmp_path / "s", limit=1)
    with pytest.raises(StoreError, match="model"):
        run(Hashing("another"), questions, root, store=tmp_path / "s")
    other = questions.assign(question=questions.question.str.replace("cat", "cow"))
    with pytest.raises(StoreError, match="dataset"):
        run(Hashing(), other, root, store=tmp_path / "s")


@pytest.mark.parametrize("answer", [None, 1, ["yes"]])
def test_graded_opinions_are_kept_and_an_answer_that_is_no_text_is_refused(root, questions, answer):
    assert run(Hashing(), questions, root).yes_score.isna().all()
    scores = run(Hashing(), questions, root, scores=True).yes_score
    assert scores.between(0, 1).all() and scores.nunique() > 3
    model = Hashing()
    model.answer = lambda image, question: answer
    with pytest.raises(ValueError, match="answer"):
        run(model, questions, root)


# -- what breaks


def test_bad_pictures_leave_rows_without_answers(root, questions, tmp_path):
    (root / "pictures" / "0_0.png").write_bytes((root / "pictures" / "0_0.png").read_bytes()[:200])
    (root / "pictures" / "1_1.png").unlink()
    with pytest.raises(ExampleError, match="0_0.png.*cannot be decoded whole"):
        run(Hashing(), questions, root)
    frame = run(Batched(), questions, root, on_error="record", store=tmp_path / "s")
    lost = frame.error.notna()
    assert lost.tolist() == questions.file_name.isin(["0_0.png", "1_1.png"]).tolist() and lost.sum() == 4
    assert all(answer is None for answer in frame.answer[lost]) and frame.answer[~lost].map(type).eq(str).all()
    assert not frame.error[lost].str.contains(str(root), regex=False).any()
    scores = evaluate_answers(questions, answers_of(frame), n_bootstrap=0).query("subset == 'all'")
    assert scores.set_index("metric").value["n_unparsable"] == 4


def test_a_question_on_which_the_model_fails_costs_only_itself(root, questions):
    text = questions.question[0]
    with pytest.raises(RuntimeError, match="token 7"):
        run(Batched(fails=[text]), questions, root)
    frame = run(Batched(fails=[text]), questions, root, on_error="record")
    assert frame.error.notna().tolist() == (questions.question == text).tolist()
    assert frame.error.dropna().unique().tolist() == ["RuntimeError: token 7 is out of range"]


# -- a name or a file


def test_files_of_answers_in_both_forms(root, questions, tmp_path):
    frame = run(Hashing(), questions, root)
    path = tmp_path / "answers.json"
    columns = ["image_id", "question_id", "answer"]
    for content in (
        frame[columns].to_dict("records")[::-1],
        frame[["question_id", "answer"]].to_dict("records"),
        {str(id): answer for id, answer in answers_of(frame).items()},
    ):
        path.write_text(json.dumps(content))
        same(read_answers(path, questions), frame)
        some = answers_for(f"predictions:{path}", questions, limit=2, seed=1)
        assert some.image_id.tolist() == take_question_groups(questions, 2, 1).image_id.tolist()
    path.write_text(json.dumps(frame[columns].to_dict("records")[1:]))
    found = read_answers(path, questions)
    assert found.answer[0] is None and found.error[0] == "answers.json: no answer" and found.error[1:].isna().all()


@pytest.mark.parametrize("content", ["nothing", "3", '["yes"]', '{"77": "yes"}',
    '[{"image_id": 1, "answer": "yes"}, {"question_id": 1001, "answer": "no"}]'])  # fmt: skip
def test_bad_files_of_answers_are_named(questions, tmp_path, content):
    (tmp_path / "answers.json").write_text(content)
    with pytest.raises(FileFault, match="answers.json"):
        read_answers(tmp_path / "answers.json", questions)
