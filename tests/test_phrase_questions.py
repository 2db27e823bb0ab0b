"""Questions from captions, yes/no parsing and the VQA score of contextual phrase detection."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from qgcam_lib.errors import ExampleError
from qgcam_lib.phrase_detection.question_texts import caption_to_question, parse_answer, parse_answers
from qgcam_lib.phrase_detection.questions import SUBSETS, evaluate_answers, load_tricd_vqa
from qgcam_lib.statistics import summarize

TRICD = Path(__file__).parents[1] / ".." / "shared" / "realdata" / "tricd"
needs_tricd = pytest.mark.skipif(not TRICD.is_dir(), reason="no real TRICD files (../shared/realdata/tricd)")
NAN = float("nan")


def made_up(truth, subsets=None, groups=None):
    n = len(truth)
    return pd.DataFrame(
        {
            "image_id": np.arange(1, n + 1),
            "question_id": np.arange(101, n + 101),
            "answer": np.array(truth, dtype=bool),
            "subset": list(subsets) if subsets is not None else ["coco_obj"] * n,
            "group": list(groups) if groups is not None else [k // 4 for k in range(n)],
        }
    )


def value(table, metric="macro_f1", subset="all", column="value"):
    (found,) = table[(table.metric == metric) & (table.subset == subset)][column]
    return found


# ---------------------------------------------------------------- captions


@pytest.mark.parametrize(
    ("caption", "question"),
    [
        ("vase", "is there a vase"), ("armchair", "is there an armchair"), ("drums", "are there drums"),
        ("zebras fighting", "are there zebras fighting"), ("bass", "is there a bass"),
        ("hourglass", "is there an hourglass"), ("unicorn on a bus", "is there a unicorn on a bus"),
        ("person blowing out candles", "is there a person blowing out candles"),
        ("an owl in a tree", "is there an owl in a tree"), ("A man.", "is there a man"),
        ("two dogs", "are there two dogs"), ("3 cats on one sofa", "are there 3 cats on one sofa"),
        ("1 cat", "is there 1 cat"), ("some people", "are there some people"), ("some water", "is there some water"),
        ("snow on a palm", "is there snow on a palm"), ("dog's toys", "are there dog's toys"),
        ("there are three cups", "are there three cups"), ("There's a dog", "is there a dog"),
        ("the dog is on the cat", "is the dog on the cat"), ("zebras are fighting", "are zebras fighting"),
        ("a person who is smiling", "is there a person who is smiling"), ("is there a dog?", "is there a dog"),
        ("TV on a table", "is there a TV on a table"), ("  vase   on \n a table ", "is there a vase on a table"),
    ],
)
def test_caption_to_question(caption, question):
    assert caption_to_question(caption) == question


NOUNS = ["dog", "dogs", "old house", "glass", "children", "red umbrella", "snow", "wooden boxes", "hour"]
TAILS = ["", " on a table", " under two chairs", " wearing glasses", " and a cat", " tied to it"]


@given(
    st.sampled_from(["", "a ", "the ", "two ", "some ", "The ", "there is a "]),
    st.sampled_from(NOUNS),
    st.sampled_from(TAILS),
)
def test_a_question_contains_its_caption_and_stays_a_question(before, noun, tail):
    question = caption_to_question(before + noun + tail)
    assert question.startswith(("is there", "are there")) and question.endswith(noun + tail)
    assert caption_to_question(question) == question


@given(st.text(max_size=40))
@settings(max_examples=100)
def test_any_text_gives_one_clean_line_or_a_clear_error(caption):
    try:
        question = caption_to_question(caption)
    except ValueError as error:
        assert "at least one word" in str(error)
        return
    assert question == " ".join(question.split()) and len(question) >= 2


@needs_tricd
def test_share_of_the_shipped_questions():
    data = load_tricd_vqa(TRICD / "TRICD_VQA_val.json", TRICD / "TRICD_grounding_val.json")
    ours = data.caption.map(caption_to_question)
    words = ours == data.question.map(lambda text: " ".join(text.split()))
    # the notebook's prose states these three
    assert (len(data), (ours == data.question).sum(), words.sum()) == (204, 184, 188)


# ---------------------------------------------------------------- answers

YES = [
    "yes", "Yes.", "YES!", "Yes, there is", "**Yes**", "Answer: yes", "1", 1, True, "There is a dog.",
    "I can see one", "Definitely.", "No doubt.", "Yes, there is a no-parking sign", "<s> yes </s>", "I think yes",
    "It is not clear at first. Answer: yes", np.bool_(True), 1.0, "That is correct", "yes\nno other animal",
]
NO = [
    "That is incorrect", "no", "Nope", "No, there is not", "not at all", "0.0", False, "There is no dog",
    "There isn't a dog", "I don’t see one", "I cannot see any dog in the image", "I don't think so", "I see no dog",
    "Let me look. Answer: no", "Of course not", "They aren't", np.float64(0.0), "no, it might be a cat",
]
UNREADABLE = [
    "It's a dog", "That is unlikely", "", "maybe", "yes and no", "yes/no", "not sure", "No idea", "I don't know",
    "It is impossible to say", "dog", "probably", None, "I can't see the image", "I may be wrong",
    "As an AI, I do not see", "knowledge", "yesterday", "I cannot answer", "no way to know", "42",
]


@pytest.mark.parametrize(("texts", "answer"), [(YES, True), (NO, False), (UNREADABLE, None)], ids=["yes", "no", "none"])
def test_parse_answer(texts, answer):
    wrong = {repr(text): parse_answer(text) for text in texts if parse_answer(text) is not answer}
    assert not wrong


def test_parse_answers_counts_rules_and_names_the_number():
    read = parse_answers(["yes", "no", "There is no dog", "hm", None, 1])
    assert list(read.answer) == [True, False, False, None, None, True]
    assert read.rule.value_counts().to_dict() == {"unparsable": 2, "yes": 1, "no": 1, "denied": 1, "number": 1}
    assert len(parse_answers([])) == 0
    for wrong in (7, -1, 0.5, NAN, ["yes"], b"yes"):
        with pytest.raises(ValueError, match="answer: expected"):
            parse_answers(["yes", wrong])


@given(
    st.sampled_from(["yes", "no"]),
    st.sampled_from([".", ",", "!", " ", ";", "\n"]),
    st.text("abdgh ijkm,.", max_size=30),
    st.sampled_from([str.lower, str.upper, str.title]),
)
def test_a_leading_word_decides(word, mark, tail, case):
    assert parse_answer(case(word) + mark + " the " + tail) is (word == "yes")


@given(st.text(max_size=60))
@settings(max_examples=300)
def test_any_text_is_read_and_marks_change_nothing(text):
    answer = parse_answer(text)
    assert answer in (True, False, None)
    assert parse_answer("  " + text + "  ") is answer


# ---------------------------------------------------------------- the file


def content(n_groups=3):
    questions, annotations = [], []
    kinds = [{"source": "coco_test2017", "coco_type": "object"}, {"source": "coco_test2017", "coco_type": "relation"},
             {"source": "winoground"}]
    for group in range(n_groups):
        for k in range(4):
            id, picture, thing = 4 * group + k + 1, k % 2, (k % 2) ^ (k // 2)
            questions.append({"image_id": id, "question_id": id, "file_name": f"{group}_{picture}.jpg",
                              "question": f"is there a thing {thing} of {group}"})
            annotations.append({"image_id": id, "answer_id": id, "answer": int(picture == thing), **kinds[group % 3]})
    return {"questions": questions, "annotations": annotations}


def write(folder, data, name="vqa.json"):
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_load(tmp_path):
    data = load_tricd_vqa(write(tmp_path, content()))
    assert list(data.image_id) == list(range(1, 13)) and data.answer.dtype == bool
    assert list(data.answer[:4]) == [True, True, False, False]
    assert list(data.subset.unique()) == ["coco_obj", "coco_rel", "winoground"]
    assert list(data.group) == [f"group of {1 + 4 * (k // 4)}" for k in range(12)]
    other = content()
    other["annotations"][0]["coco_type"] = "attribute"
    other["annotations"] = other["annotations"][::-1]  # matched by id, not by place
    again = load_tricd_vqa(write(tmp_path, other))
    assert again.subset[0] == "attribute" and list(again.answer) == list(data.answer)


BROKEN = {
    "question 3.*field 'question'": lambda data: data["questions"][2].pop("question"),
    "question 1.*the id is used twice": lambda data: data["questions"][1].update(image_id=1),
    "annotation 6.*field 'answer'": lambda data: data["annotations"][5].update(answer="yes"),
    "annotation 7.*field 'answer'": lambda data: data["annotations"][6].update(answer=2),
    "example 4.* a question but no annotation": lambda data: data["annotations"].pop(3),
    "the list 'questions'": lambda data: data.pop("questions"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_record_is_named(tmp_path, message):
    data = content()
    BROKEN[message](data)
    with pytest.raises(ExampleError, match=message):
        load_tricd_vqa(write(tmp_path, data))
    for path in (write(tmp_path, "[" * 100_000), tmp_path / "none.json"):
        with pytest.raises(ExampleError, match=path.name):
            load_tricd_vqa(path)


def test_the_grounding_file_gives_captions_and_groups(tmp_path):
    data = content()
    pairs = [{"id": q["image_id"], "caption": f"caption {q['image_id']}", "file_name": q["file_name"],
              "original_id": f"{(q['image_id'] - 1) // 4}_{q['file_name'][2]}", "source": a["source"],
              "positive": a["answer"] == 1} for q, a in zip(data["questions"], data["annotations"])]
    frame = load_tricd_vqa(write(tmp_path, data), write(tmp_path, {"images": pairs}, "grounding.json"))
    assert list(frame.caption) == [f"caption {k}" for k in range(1, 13)]
    assert frame.group.nunique() == 3 and frame.group[11] == "winoground_2"
    other = [{**pair, "positive": pair["positive"] ^ (pair["id"] == 5)} for pair in pairs]
    for wrong, example in ((other, 5), (pairs[:8], 9)):
        with pytest.raises(ExampleError, match=f"example {example}"):
            load_tricd_vqa(write(tmp_path, data), write(tmp_path, {"images": wrong}, "grounding.json"))


def test_groups_are_linked_through_others(tmp_path):
    data = content()
    data["questions"][4]["file_name"] = data["questions"][3]["file_name"]  # group 2 shares a picture with group 1
    groups = load_tricd_vqa(write(tmp_path, data)).group
    assert list(groups) == ["group of 1"] * 8 + ["group of 9"] * 4


# ---------------------------------------------------------------- the score

LABEL = {True: 1, False: 0, None: 2}


def sklearn_scores(truth, said):
    """scikit-learn, with an unparsable answer as a third label that is not averaged over."""
    truth, said = np.asarray(truth, int), np.array([LABEL[s] for s in said])
    each = f1_score(truth, said, labels=[1, 0], average=None, zero_division=NAN)
    macro = f1_score(truth, said, labels=[1, 0], average="macro", zero_division=NAN)
    return [macro, *each, accuracy_score(truth, said)]


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([True, False, None]), st.sampled_from(SUBSETS[1:])),
        min_size=1,
        max_size=40,
    ),
)
@settings(max_examples=30, deadline=None)
def test_scores_are_scikit_learns_in_every_subset(rows):
    truth, said, subsets = zip(*rows)
    questions = made_up(truth, subsets)
    before = questions.copy()
    table = evaluate_answers(questions, dict(zip(questions.image_id, said)), n_bootstrap=0)
    pd.testing.assert_frame_equal(questions, before)
    for subset in SUBSETS:
        keep = [subset in ("all", s) for s in subsets]
        ours = [value(table, m, subset) for m in ("macro_f1", "f1_yes", "f1_no", "accuracy")]
        assert value(table, "n", subset) == sum(keep)
        assert value(table, "n_unparsable", subset) == sum(k and s is None for k, s in zip(keep, said))
        if any(keep):
            expected = sklearn_scores([t for t, k in zip(truth, keep) if k], [s for s, k in zip(said, keep) if k])
            np.testing.assert_allclose(ours, expected, atol=1e-12)
        else:
            assert np.isnan(ours).all()


def test_literal_values():
    # truth y y y n n; said y n ? y n: yes 2*1/(3+2), no 2*1/(2+2), accuracy 2/5
    questions = made_up([1, 1, 1, 0, 0])
    answers = dict(zip(questions.image_id, ["yes", "no", "maybe", "yes", "no"]))
    table = evaluate_answers(questions, answers, n_bootstrap=0)
    assert [value(table, m) for m in ("f1_yes", "f1_no", "accuracy")] == pytest.approx([2 / 5, 1 / 2, 2 / 5])
    assert value(table) == pytest.approx(0.45) and value(table, "n_unparsable") == 1
    # "?" as no: yes 2*1/(3+2), no 2*1/(2+3)
    table = evaluate_answers(questions, answers, unparsable="opposite", n_bootstrap=0)
    assert [value(table, m) for m in ("f1_yes", "f1_no", "accuracy")] == pytest.approx([2 / 5, 2 / 5, 2 / 5])
    # without it: yes 2*1/(2+2), no 2*1/(2+2)
    table = evaluate_answers(questions, answers, unparsable="drop", n_bootstrap=0)
    assert [value(table, m) for m in ("f1_yes", "f1_no", "accuracy")] == pytest.approx([1 / 2, 1 / 2, 1 / 2])
    assert value(table, "n") == 4 and value(table, "n_unparsable") == 1


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_order_and_relabelling_change_nothing(rows, random):
    truth, said = zip(*rows)
    questions = made_up(truth)
    answers = list(zip(questions.image_id.tolist(), said))
    table = evaluate_answers(questions, dict(answers), n_bootstrap=50)
    random.shuffle(answers)
    mixed = questions.sample(frac=1, random_state=random.randint(0, 999))
    again = evaluate_answers(mixed, dict(answers), n_bootstrap=50)
    pd.testing.assert_frame_equal(table, again)
    flipped = evaluate_answers(
        questions.assign(answer=~questions.answer), {k: not v for k, v in answers}, n_bootstrap=0
    )
    assert value(flipped, "f1_yes") == pytest.approx(value(table, "f1_no"), nan_ok=True)
    assert value(flipped) == pytest.approx(value(table)) and 0 <= value(table) <= 1


def test_every_form_of_answers_gives_the_same():
    questions = made_up([1, 0, 1, 0, 1, 1])
    said, ids = [1, 0, 0, 0, 1, 1], questions.image_id.tolist()
    plain = evaluate_answers(questions, dict(zip(ids, said)))
    for form in (dict(zip(map(str, ids), said)), pd.Series(said, index=ids),
                 dict(zip(ids, ["Yes." if s else "No." for s in said])),
                 [{"image_id": i, "answer": bool(s)} for i, s in zip(ids, said)]):
        pd.testing.assert_frame_equal(evaluate_answers(questions, form), plain)


def test_a_subset_of_another_name_is_scored_too():
    questions = made_up([1, 0, 1, 0], ["attribute"] * 2 + ["coco_rel"] * 2)
    table = evaluate_answers(questions, {1: 1, 2: 0, 3: 0, 4: 1}, n_bootstrap=0)
    assert list(table.subset.unique()) == [*SUBSETS, "attribute"]
    assert value(table, subset="attribute") == 1 and value(table, subset="coco_rel") == 0
    assert np.isnan(value(table, subset="winoground")) and value(table, "n", "winoground") == 0


def test_missing_unknown_and_double_answers():
    questions = made_up([1, 0, 1, 0])
    table = evaluate_answers(questions, {1: 1, 3: None}, on_missing="count", n_bootstrap=0)
    assert value(table, "n_missing") == 2 and value(table, "n_unparsable") == 1 and value(table, "n") == 4
    assert value(table, "accuracy") == 0.25
    full = {1: 1, 2: 0, 3: 1, 4: 0}
    for answers, said in (({1: 1, 3: 1}, "image_id 2"), (full | {77: 1}, "'77'"), (full | {"1": 0}, "'1'"),
                          (full | {3: NAN}, "image_id 3")):
        with pytest.raises(ValueError, match=said):
            evaluate_answers(questions, answers)
    for frame in (questions.drop(columns="group"), questions.assign(image_id=1), questions.assign(answer=3)):
        with pytest.raises(ValueError, match="questions"):
            evaluate_answers(frame, full)


@pytest.mark.parametrize("options", [{"unparsable": "skip"}, {"on_missing": "ignore"}, {"n_bootstrap": -1},
                                     {"level": 95}])
def test_options_without_a_meaning_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        evaluate_answers(made_up([1, 0]), {1: 1, 2: 0}, **options)


def test_the_interval_of_accuracy_is_that_of_statistics():
    rng = np.random.default_rng(1)
    truth = rng.random(120) < 0.5
    said = np.where(rng.random(120) < 0.7, truth, ~truth)
    questions = made_up(truth)
    table = evaluate_answers(questions, dict(zip(questions.image_id, said)), seed=3)
    means = summarize(questions.assign(right=said == truth), "right", seed=3).iloc[0]
    row = table[(table.metric == "accuracy") & (table.subset == "all")].iloc[0]
    np.testing.assert_allclose([row.value, row.ci_low, row.ci_high], [means.value, means.ci_low, means.ci_high])
    assert row.n_groups == means.n_groups == 30


def test_replicates_are_those_of_a_loop_over_drawn_groups():
    rng = np.random.default_rng(2)
    truth = rng.random(80) < 0.5
    said = np.where(rng.random(80) < 0.7, truth, ~truth)
    questions = made_up(truth)
    answers = dict(zip(questions.image_id, said))
    rows = np.arange(80).reshape(20, 4)

    def macro(groups):
        take = rows[groups].ravel()
        true, guess = truth[take], said[take]
        f1 = [
            2 * (true & guess).sum() / (true.sum() + guess.sum()),
            2 * (~true & ~guess).sum() / ((~true).sum() + (~guess).sum()),
        ]
        return np.mean(f1)

    table = evaluate_answers(questions, answers, n_bootstrap=3000, n_subsets=3000)
    drawn = np.array([macro(rng.integers(0, 20, 20)) for _ in range(3000)])
    parts = np.array([macro(rng.permutation(20)[:18]) for _ in range(3000)])
    assert value(table, column="bootstrap_sd") == pytest.approx(drawn.std(ddof=1), rel=0.08)
    assert value(table, column="sd_90") == pytest.approx(parts.std(ddof=1), rel=0.08)
    assert abs(value(table, column="ci_low") - np.quantile(drawn, 0.025)) < 0.03
    assert abs(value(table, column="ci_high") - np.quantile(drawn, 0.975)) < 0.03


def test_one_group_has_no_interval():
    table = evaluate_answers(made_up([1, 0, 1, 0]), {1: 1, 2: 0, 3: 0, 4: 0})
    assert table[["bootstrap_sd", "ci_low", "ci_high"]].isna().all().all()
    assert (table.note == np.where(table.n > 0, "one group: no interval", "no questions")).all()


@needs_tricd
def test_the_real_file():
    with_groups = load_tricd_vqa(TRICD / "TRICD_VQA_val.json", TRICD / "TRICD_grounding_val.json")
    alone = load_tricd_vqa(TRICD / "TRICD_VQA_val.json")
    assert with_groups.subset.value_counts().to_dict() == {"coco_rel": 120, "coco_obj": 84}
    assert with_groups.group.nunique() == 51 and with_groups.groupby("group").size().eq(4).all()
    # without the grounding file groups can only be joined
    assert with_groups.assign(linked=alone.group).groupby("group").linked.nunique().eq(1).all()
    rng = np.random.default_rng(0)
    said = np.where(rng.random(204) < 0.7, with_groups.answer, ~with_groups.answer)
    table = evaluate_answers(with_groups, dict(zip(with_groups.image_id.astype(str), said.astype(int))))
    for subset in ("all", "coco_obj", "coco_rel"):  # the official script stops with an error on the last two
        keep = (with_groups.subset == subset) | (subset == "all")
        truth, guess = with_groups.answer[keep], said[keep]
        assert value(table, subset=subset) == pytest.approx(f1_score(truth, guess, average="macro"), abs=1e-12)
    assert value(table, "n", "winoground") == 0
