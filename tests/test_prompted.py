"""Any image-text-to-text model by prompt, a matcher as Answerer, and the baselines that do not look."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from small_models import picture

from qgcam_lib.models import load_model
from qgcam_lib.models.prompted import (
    BASELINES,
    PROMPT,
    BaselineAnswerer,
    MatchingAnswerer,
    choose_threshold,
    fill_prompt,
    question_to_caption,
)
from qgcam_lib.models.roles import Answerer
from qgcam_lib.phrase_detection.question_texts import caption_to_question, parse_answer
from qgcam_lib.phrase_detection.questions import evaluate_answers, load_tricd_vqa
from qgcam_lib.phrase_detection.run import answer_questions, answers_for, answers_of

TRICD = Path(__file__).parents[1] / ".." / "shared" / "realdata" / "tricd"
needs_tricd = pytest.mark.skipif(not TRICD.is_dir(), reason="no real TRICD files (../shared/realdata/tricd)")
TEMPLATE = (
    "{% for m in messages %}USER : {% for c in m['content'] %}{% if c['type'] == 'image' %}<image> "
    "{% else %}{{ c['text'] }} {% endif %}{% endfor %}{% endfor %}ASSISTANT :"
)
WORDS = "<pad> <unk> <s> </s> <image> USER ASSISTANT yes no Yes No is are there a dog cat on the sofa Answer or . :"
QUESTIONS = ["is there a dog on the sofa", "are there a cat or no dog", "Is there a zebra?"]


PICTURES = [picture(k) for k in range(4)]


def write_llava(folder, template=TEMPLATE, words=WORDS):
    """A folder with the sizes and the processor of a LLaVA of toy size."""
    import transformers as hf
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: k for k, word in enumerate(words.split())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        additional_special_tokens=["<image>"], model_input_names=["input_ids", "attention_mask"])
    pictures = hf.CLIPImageProcessorFast(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    hf.LlavaProcessor(pictures, tokenizer, patch_size=14, vision_feature_select_strategy="default",
                      image_token="<image>", num_additional_image_tokens=1, chat_template=template,
                      ).save_pretrained(folder)
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = hf.CLIPVisionConfig(**layers, image_size=28, patch_size=14, projection_dim=32)
    text = hf.LlamaConfig(**layers, vocab_size=len(vocabulary), num_key_value_heads=2, initializer_range=0.5,
                          pad_token_id=0, bos_token_id=2, eos_token_id=3)
    hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=4, vision_feature_layer=-1, pad_token_id=0,
                   ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def answerer(folder):
    return load_model("prompted", "random", config=folder, seed=1, max_new_tokens=5)


# --------------------------------------------------------------------------------------------------------- prompted


def inputs(answerer, image, question):
    """The model's inputs, laid out by hand: four image tokens in the place of one."""
    text = f"USER : {'<image>' * 4} {fill_prompt(PROMPT, question)} ASSISTANT :"
    tokens = answerer.processor.tokenizer(text, return_tensors="pt")
    return {**tokens, "pixel_values": answerer.processor.image_processor(image, return_tensors="pt").pixel_values}


def test_replies_are_the_most_likely_tokens_step_by_step(answerer):
    tokenizer, said = answerer.processor.tokenizer, []
    for image, question in zip(PICTURES, [*QUESTIONS, QUESTIONS[0]]):
        asked = inputs(answerer, image, question)
        start = asked["input_ids"].shape[1]
        with torch.no_grad():
            for _ in range(5):
                token = answerer.model(**asked).logits[0, -1].argmax().view(1, 1)
                asked["input_ids"] = torch.cat([asked["input_ids"], token], 1)
                asked["attention_mask"] = torch.ones_like(asked["input_ids"])
                if token == tokenizer.eos_token_id:
                    break
        said.append(tokenizer.decode(asked["input_ids"][0, start:], skip_special_tokens=True).strip())
        assert answerer.answer(image, question) == said[-1]
    assert len(set(said)) > 1 and not any("USER : " in text for text in said)


def test_replies_are_those_of_transformers_own_pipeline(answerer):
    from transformers import pipeline

    pipe = pipeline("image-text-to-text", model=answerer.model, processor=answerer.processor)
    for image in PICTURES:
        content = [{"type": "image", "image": image}, {"type": "text", "text": fill_prompt(PROMPT, QUESTIONS[0])}]
        (reply,) = pipe(text=[{"role": "user", "content": content}], return_full_text=False,
                        generate_kwargs={"max_new_tokens": 5, "do_sample": False})
        assert answerer.answer(image, QUESTIONS[0]) == reply["generated_text"].strip()


def test_yes_scores_are_the_first_tokens_probabilities(answerer):
    ids = {word: answerer.processor.tokenizer.convert_tokens_to_ids(word) for word in ("yes", "Yes", "no", "No")}
    scores = []
    for image in PICTURES:
        with torch.no_grad():
            shares = answerer.model(**inputs(answerer, image, QUESTIONS[0])).logits[0, -1].softmax(0)
        yes, no = shares[ids["yes"]] + shares[ids["Yes"]], shares[ids["no"]] + shares[ids["No"]]
        scores.append(answerer.yes_score(image, QUESTIONS[0]))
        assert scores[-1] == pytest.approx(float(yes / (yes + no)), abs=1e-5)
    assert len(set(scores)) == len(scores)


def test_the_prompt_is_the_users_and_part_of_the_card(folder, answerer):
    other = load_model("prompted", "random", config=folder, seed=1, prompt="Answer : {question}", max_new_tokens=5)
    assert other.text("is it so") == "USER : <image> Answer : is it so ASSISTANT :"
    assert other.card["prompt"] != answerer.card["prompt"] == PROMPT
    assert isinstance(answerer, Answerer) and answerer.card["chat_template"] and answerer.card["seed"] == 1
    assert any(other.yes_score(image, QUESTIONS[0]) != answerer.yes_score(image, QUESTIONS[0]) for image in PICTURES)
    for wrong in ({"prompt": "Yes or no?"}, {"prompt": "{question} {question}"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            load_model("prompted", "random", config=folder, **wrong)


def test_a_model_without_a_chat_template_gets_the_prompt_as_it_is(tmp_path, answerer):
    folder = write_llava(tmp_path / "plain", template=None)
    prompt = "USER : <image> {question} Answer yes or no. ASSISTANT :"
    plain = load_model("prompted", "random", config=folder, seed=1, prompt=prompt, max_new_tokens=5)
    assert not plain.card["chat_template"]
    for image in PICTURES:
        assert plain.answer(image, QUESTIONS[0]) == answerer.answer(image, QUESTIONS[0])


def test_a_vocabulary_without_yes_has_no_yes_score(tmp_path):
    folder = write_llava(tmp_path / "mute", words=WORDS.replace("yes", "ja").replace("Yes", "Ja"))
    mute = load_model("prompted", "random", config=folder)
    with pytest.raises(ValueError, match="yes and no"):
        mute.yes_score(PICTURES[0], QUESTIONS[0])


def test_a_saved_model_comes_back_and_a_damaged_one_does_not(answerer, tmp_path):
    answerer.model.save_pretrained(tmp_path / "m")
    with pytest.raises(FileNotFoundError, match="processor"):
        load_model("prompted", tmp_path / "m")
    answerer.processor.save_pretrained(tmp_path / "m")
    again = load_model("prompted", tmp_path / "m", max_new_tokens=5)
    for each in PICTURES:
        assert again.answer(each, QUESTIONS[0]) == answerer.answer(each, QUESTIONS[0])
    (weights,) = (tmp_path / "m").glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:300])
    with pytest.raises(ValueError, match="damaged"):
        load_model("prompted", tmp_path / "m")


@pytest.mark.parametrize("options", [{"weights": "official", "config": "."}, {"weights": ".", "checkpoint": "a/b"},
                                     {"weights": "random"}])
def test_wrong_combinations_are_refused(options):
    with pytest.raises(ValueError, match="config"):
        load_model("prompted", **options)


def test_published_weights_out_of_reach_are_named():
    with pytest.raises(FileNotFoundError, match="owner/name"):
        load_model("prompted", "official", checkpoint="owner/name")


# --------------------------------------------------------------------------------------------------- a matcher answers


class Loud:
    """A matcher whose score is a hash of the caption and the picture; it notes its passes."""

    card = {"name": "loud"}

    def __init__(self):
        self.passes = []

    def score(self, images, texts):
        self.passes.append(texts)
        seen = [int(np.asarray(image, np.int64).sum()) for image in images]
        return torch.tensor([[(a + sum(map(ord, text))) % 101 / 101 for text in texts] for a in seen])


def test_a_matcher_answers_by_its_score():
    matcher = Loud()
    answerer = MatchingAnswerer(matcher, 0.4)
    assert isinstance(answerer, Answerer)
    assert answerer.card == {"name": "loud-as-answerer", "threshold": 0.4}
    images, asked = [PICTURES[0], PICTURES[1], PICTURES[0]], QUESTIONS
    together = answerer.answer_batch(images, asked)
    assert len(matcher.passes) == 2, "one pass a picture"
    assert together == [answerer.answer(*each) for each in zip(images, asked)]
    assert together == ["yes" if answerer.yes_score(*each) >= 0.4 else "no" for each in zip(images, asked)]
    assert answerer.answer_batch([], []) == []
    with pytest.raises(ValueError, match="threshold"):
        MatchingAnswerer(matcher, float("nan"))


def test_captions_come_back_from_their_questions():
    for caption in ("zebras fighting", "people on a bench", "two dogs", "the moon over the sea", "a dog"):
        assert question_to_caption(caption_to_question(caption)) == caption
    assert question_to_caption("Is there a vase?") == "a vase"
    assert question_to_caption("does the dog chase the cat?") == "the dog chase the cat"
    assert question_to_caption("island in the sea") == "island in the sea"
    for wrong in ("", "is there"):
        with pytest.raises(ValueError, match="question:"):
            question_to_caption(wrong)


@needs_tricd
def test_the_captions_of_tricd_come_back_but_for_the_article():
    questions = load_tricd_vqa(TRICD / "TRICD_VQA_val.json", TRICD / "TRICD_grounding_val.json")

    def bare(text):
        return text.lower().strip(" .").removeprefix("a ").removeprefix("an ")

    back = [bare(question_to_caption(question)) for question in questions.question]
    assert np.mean([a == bare(b) for a, b in zip(back, questions.caption)]) > 0.9


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=20))
def test_no_threshold_is_better_than_the_chosen_one(rows):
    scores, truth = np.array([a for a, _ in rows]) / 2, np.array([b for _, b in rows])
    if truth.all() or not truth.any():
        with pytest.raises(ValueError, match="truth"):
            choose_threshold(scores, truth)
        return
    found = choose_threshold(scores, truth)

    def macro(threshold):
        return f1_score(truth, scores >= threshold, average="macro", labels=[False, True], zero_division=0)

    best = max(macro(threshold) for threshold in np.arange(-3.25, 3.5, 0.25))
    assert macro(found) == pytest.approx(best)
    order = np.random.default_rng(0).permutation(len(rows))
    assert choose_threshold(scores[order], truth[order]) == found
    assert choose_threshold(scores * 4 + 1, truth) == pytest.approx(found * 4 + 1, abs=3.01)


def test_the_mini_matcher_answers_through_the_registry():
    answerer = load_model("blip-base-as-answerer")
    assert answerer.card["name"] == "blip-base-as-answerer" and answerer.card["threshold"] == 0.5
    score = answerer.yes_score(PICTURES[0], "is there a dog")
    assert score == pytest.approx(float(load_model("blip-base").score([PICTURES[0]], ["a dog"])[0, 0]), abs=1e-6)
    assert answerer.answer(PICTURES[0], "is there a dog") == ("yes" if score >= 0.5 else "no")


def test_a_matcher_without_a_threshold_gives_scores_and_no_opinion():
    answerer = load_model("clip-rn50x16-as-answerer")
    assert answerer.card["name"] == "clip-rn50x16-as-answerer" and answerer.card["threshold"] is None
    said = answerer.answer(PICTURES[0], "is there a dog")
    assert said == "undecided" and parse_answer(said) is None
    score = answerer.yes_score(PICTURES[0], "is there a dog")
    matcher = load_model("clip-rn50x16-gscorecam")
    assert score == pytest.approx(float(matcher.score([PICTURES[0]], ["a dog"])[0, 0]), abs=1e-5)
    for threshold, answer in ((score - 0.01, "yes"), (score + 0.01, "no")):
        told = load_model("clip-rn50x16-as-answerer", threshold=threshold)
        assert told.answer(PICTURES[0], "is there a dog") == answer


# --------------------------------------------------------------------------------------------------------- baselines


def test_baselines_do_not_look_and_do_not_depend_on_order(tmp_path):
    for k, each in enumerate(PICTURES):
        each.save(tmp_path / f"{k}.png")
    rows = [(100 * k + n, n, f"is there a dog {n}", f"{k}.png", (k + n) % 2 == 0, "coco_obj", f"group {k // 2}")
            for k in range(4) for n in range(30)]
    columns = ["image_id", "question_id", "question", "file_name", "answer", "subset", "group"]
    questions = pd.DataFrame(rows, columns=columns)
    macro = {}
    for name in BASELINES:
        frame = answers_for(name, questions, tmp_path, progress=False)
        same = answer_questions(BaselineAnswerer(name), questions[::-1], tmp_path, progress=False)
        assert answers_of(frame) == answers_of(same)
        table = evaluate_answers(questions, answers_of(frame), n_bootstrap=0).query("subset == 'all'")
        macro[name] = table.set_index("metric").value["macro_f1"]
    assert macro["always yes"] == macro["always no"] == pytest.approx(1 / 3)
    assert 0.35 < macro["coin"] < 0.65
    coins = {tuple(answers_for("coin", questions, tmp_path, seed=seed, progress=False).answer) for seed in range(4)}
    assert len(coins) == 4
    with pytest.raises(ValueError, match="name"):
        BaselineAnswerer("dice")
