"""Any image-text-to-text model by prompt, a matcher as Answerer, and the baselines that do not look."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import f1_score

from qgcam_lib.models import load_model
from qgcam_lib.models.matching import (
    BASELINES,
    BaselineAnswerer,
    MatchingAnswerer,
    choose_threshold,
    question_to_caption,
)
from qgcam_lib.models.prompted import PROMPT, fill_prompt
from qgcam_lib.models.roles import Answerer
from qgcam_lib.phrase_detection.question_run import answer_questions, answers_for, answers_of
from qgcam_lib.phrase_detection.question_texts import caption_to_question, parse_answer
from qgcam_lib.phrase_detection.questions import evaluate_answers, load_tricd_vqa

TRICD = Path(__file__).parents[1] / ".." / "shared" / "realdata" / "tricd"
needs_tricd = pytest.mark.skipif(not TRICD.is_dir(), reason="no real TRICD files (../shared/realdata/tricd)")
TEMPLATE = (
    "{% for m in messages %}USER : {% for c in m['content'] %}{% if c['type'] == 'image' %}<image> "
    "{% else %}{{ c['text'] }} {% endif %}{% endfor %}{% endfor %}ASSISTANT :"
)
WORDS = "<pad> <unk> <s> </s> <image> USER ASSISTANT yes no Yes No is are there a dog cat on the sofa Answer or . :"
QUESTIONS = ["is there a dog on the sofa", "are there a cat or no dog", "Is there a zebra?"]


def picture(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 60, 3), dtype=np.uint8))


PICTURES = [picture(k) for k in range(4)]


def write_llava(folder, template=TEMPLATE, words=WORDS):
    """A folder with the sizes and the processor of a LLaVA of toy size."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        CLIPImageProcessorFast,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaProcessor,
        PreTrainedTokenizerFast,
    )

    vocabulary = {word: k for k, word in enumerate(words.split())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<image>"],
        model_input_names=["input_ids", "attention_mask"],
    )
    pictures = CLIPImageProcessorFast(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    LlavaProcessor(
        pictures,
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
        chat_template=template,
    ).save_pretrained(folder)
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
        projection_dim=32,
    )
    text = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.5,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
    )
    LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=4, vision_feature_layer=-1, pad_token_id=0
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
        (reply,) = pipe(
            text=[{"role": "user", "content": content}],
            return_full_text=False,
            generate_kwargs={"max_new_tokens": 5, "do_sample": False},
        )
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
    for wrong in ("Yes or no?", "{question} {question}", None):
        with pytest.raises(ValueError, match="prompt: expected a text with {question} in it once"):
            load_model("prompted", "random", config=folder, prompt=wrong)
    with pytest.raises(ValueError, match="max_new_tokens"):
        load_model("prompted", "random", config=folder, max_new_tokens=0)
    with pytest.raises(ValueError, match="question: expected a text"):
        answerer.answer(PICTURES[0], "  ")


def test_a_model_without_a_chat_template_gets_the_prompt_as_it_is(tmp_path, answerer):
    folder = write_llava(tmp_path / "plain", template=None)
    prompt = "USER : <image> {question} Answer yes or no. ASSISTANT :"
    plain = load_model("prompted", "random", config=folder, seed=1, prompt=prompt, max_new_tokens=5)
    assert not plain.card["chat_template"]
    for image in PICTURES:
        assert plain.answer(image, QUESTIONS[0]) == answerer.answer(image, QUESTIONS[0])
    bare = load_model("prompted", "random", config=folder, seed=1)
    with pytest.raises(ValueError, match="(?i)image"):
        bare.answer(PICTURES[0], QUESTIONS[0])


def test_a_vocabulary_without_yes_has_no_yes_score(tmp_path):
    folder = write_llava(tmp_path / "mute", words=WORDS.replace("yes", "ja").replace("Yes", "Ja"))
    mute = load_model("prompted", "random", config=folder)
    with pytest.raises(ValueError, match="does not tell the beginnings of yes and no apart"):
        mute.yes_score(PICTURES[0], QUESTIONS[0])


def test_a_saved_model_comes_back_and_a_damaged_one_does_not(answerer, tmp_path):
    answerer.model.save_pretrained(tmp_path / "m")
    with pytest.raises(FileNotFoundError, match="no processor in"):
        load_model("prompted", tmp_path / "m")
    answerer.processor.save_pretrained(tmp_path / "m")
    again = load_model("prompted", tmp_path / "m", max_new_tokens=5)
    assert [again.answer(each, QUESTIONS[0]) for each in PICTURES] == [
        answerer.answer(each, QUESTIONS[0]) for each in PICTURES
    ]
    assert again.card["sha256"] and again.card["weights"] == "m" and "unknown" in again.card["licence"]
    (weights,) = (tmp_path / "m").glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:300])
    with pytest.raises(ValueError, match="is damaged or is no image-text-to-text model"):
        load_model("prompted", tmp_path / "m")
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="has no weights"):
        load_model("prompted", tmp_path / "m")


def test_wrong_combinations_and_what_is_out_of_reach(folder):
    for options in (
        {"weights": folder, "config": folder},
        {"weights": "official", "config": folder},
        {"weights": folder, "checkpoint": "owner/name"},
    ):
        with pytest.raises(ValueError, match="config goes with random weights"):
            load_model("prompted", **options)
    with pytest.raises(FileNotFoundError, match="huggingface-cli download owner/name"):
        load_model("prompted", "official", checkpoint="owner/name")
    with pytest.raises(FileNotFoundError, match="SmolVLM-256M-Instruct"):
        load_model("prompted", "official")


SMALL = {
    "text_config": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 1200},
    "vision_config": {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "image_size": 128},
}
SMALL["text_config"] |= {"num_attention_heads": 4, "num_key_value_heads": 2}
SMALL["vision_config"] |= {"num_attention_heads": 4}


def test_random_weights_need_no_folder_and_no_hub(monkeypatch):
    """SmolVLM's class with small sizes: answers, scores, the seed; and every image token gets a patch's state."""
    monkeypatch.setattr("socket.socket.connect", lambda *a: pytest.fail("asked the network"))
    one, same, other = (load_model("prompted", "random", seed=s, config=SMALL, max_new_tokens=3) for s in (0, 0, 1))
    assert isinstance(one, Answerer) and type(one.model).__name__ == "Idefics3ForConditionalGeneration"
    assert one.card["weights"] == "random" and one.card["seed"] == 0 and one.card["chat_template"]
    assert one.text("is it so") == "User: <image>is it so Answer yes or no.<end_of_utterance>\nAssistant:"
    asked = one.processor(images=PICTURES[0], text=one.text("is it so"), return_tensors="pt")
    assert (asked.input_ids == one.model.config.image_token_id).sum() == (128 // 16 // 4) ** 2
    assert asked.pixel_values.shape == (1, 1, 3, 128, 128)
    for image in PICTURES:
        assert isinstance(one.answer(image, QUESTIONS[0]), str)
        score = one.yes_score(image, QUESTIONS[0])
        assert 0 < score < 1 and score == same.yes_score(image, QUESTIONS[0]) != other.yes_score(image, QUESTIONS[0])
    with pytest.raises(ValueError, match="config: expected a vocab_size of at least"):
        load_model("prompted", "random", config={"text_config": {"vocab_size": 100}})


def test_random_weights_have_the_published_size():
    from transformers import AutoModelForImageTextToText

    from qgcam_lib.models.prompted import _smolvlm

    config, processor = _smolvlm({})
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == 256_484_928
    assert processor.image_seq_len == 64  # of its model card


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
    with pytest.raises(ValueError, match="one an image"):
        answerer.answer_batch(PICTURES, QUESTIONS[:1])
    with pytest.raises(ValueError, match="threshold: expected a finite number"):
        MatchingAnswerer(matcher, float("nan"))


def test_captions_come_back_from_their_questions():
    for caption in ("zebras fighting", "people on a bench", "two dogs", "the moon over the sea", "a dog"):
        assert question_to_caption(caption_to_question(caption)) == caption
    assert question_to_caption(caption_to_question("vase", style="sentence")) == "a vase"
    assert question_to_caption("does the dog chase the cat?") == "the dog chase the cat"
    assert question_to_caption("island in the sea") == "island in the sea"
    for wrong in ("", "is there", None, 3):
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
        with pytest.raises(ValueError, match="one kind only"):
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


def test_thresholds_need_numbers():
    for scores, truth in (([], []), ([0.1], [True, False]), ([0.1, np.nan], [True, False]), ([[0.1]], [[True]])):
        with pytest.raises(ValueError, match="scores, truth: expected as many"):
            choose_threshold(scores, truth)


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
    import pandas as pd

    for k, each in enumerate(PICTURES):
        each.save(tmp_path / f"{k}.png")
    rows = [
        {
            "image_id": 100 * k + n,
            "question_id": n,
            "question": f"is there a dog {n}",
            "file_name": f"{k}.png",
            "answer": (k + n) % 2 == 0,
            "subset": "coco_obj",
            "group": k // 2,
        }
        for k in range(4)
        for n in range(30)
    ]
    questions = pd.DataFrame(rows).assign(group=lambda t: t.group.map("group {}".format))
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
    with pytest.raises(ValueError, match="name: expected one of"):
        BaselineAnswerer("dice")
