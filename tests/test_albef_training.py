"""ALBEF's classes at any size, its pretraining, and the minis that one command makes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qgcam_lib.finetune.albef import (
    ALBEF_MINI,
    AlbefRecipe,
    albef_losses,
    contrast,
    hide_words,
    mini_albef,
    train_albef,
)
from qgcam_lib.finetune.amc import AmcRecipe
from qgcam_lib.finetune.batches import TokenTable, draw_batch, load_training_set
from qgcam_lib.finetune.itm import run_layers
from qgcam_lib.finetune.minis import MINIS, main, make_entry, make_mini
from qgcam_lib.miniworld import ensure
from qgcam_lib.models import load_model
from qgcam_lib.models.albef.network import AlbefConfig, build_albef, inference_state
from qgcam_lib.models.common.checkpoints import load_state
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer
from qgcam_lib.models.common.zoo import load_zoo
from qgcam_lib.models.registry import zoo_folder

TINY = replace(
    ALBEF_MINI,
    image_size=32,
    patch_size=8,
    vision_width=32,
    vision_depth=1,
    vision_heads=2,
    text_width=32,
    text_heads=2,
    text_mlp_width=64,
    text_depth=4,
)
SHORT = AlbefRecipe(steps=8, batch=6, texts=4, warmup=2, log_every=2, images=20, workers=1, sentences=0.4)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    splits = ("train", "val", "test")
    return ensure(tmp_path_factory.mktemp("world"), splits, n_train=20, n_val=4, n_test=4, progress=False)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(build_vocabulary(), lavis_tokens=False)


@pytest.fixture(scope="module")
def model(tokenizer):
    return mini_albef(replace(TINY, vocab_size=len(tokenizer)), tokenizer)


def test_sizes_are_checked():
    for bad in (0, 12):
        with pytest.raises(ValueError, match="fusion_layer: expected 1 to text_depth - 1 = 11"):
            AlbefConfig(fusion_layer=bad)
    assert list(AlbefConfig(text_depth=5, fusion_layer=3).fusing) == [3, 4]
    assert AlbefConfig(**AlbefConfig(image_size=384).to_dict()) == AlbefConfig(image_size=384)


def test_both_forms_are_lavis_own_without_momentum(model, tokenizer):
    from lavis.models.albef_models.albef_retrieval import AlbefRetrieval

    plain = build_albef(replace(TINY, vocab_size=len(tokenizer)), tokenizer)
    assert isinstance(plain, AlbefRetrieval) and any(
        one.__name__ == "AlbefPretrain" for one in type(model).__mro__) and not plain.training
    assert {name for name, _ in plain.named_children()} == {
        "visual_encoder", "text_encoder", "vision_proj", "text_proj", "itm_head"}  # fmt: skip
    assert load_state(plain, inference_state(model.state_dict())) == []
    head, words = model.text_encoder.cls.predictions.decoder, model.text_encoder.bert.embeddings.word_embeddings
    assert head.weight is words.weight  # the guess of a word uses the word's own vector
    with pytest.raises(ValueError, match="tokenizer: expected at most vocab_size=10 tokens"):
        build_albef(replace(TINY, vocab_size=10), tokenizer)


def test_a_published_state_gives_the_same_word_vectors(model):
    """The type row that ALBEF adds to every word ends in the word vectors; parts that only train are left out."""
    state = model.state_dict()
    types = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    spare = {"image_queue": types, "queue_ptr": types, "visual_encoder_m.cls_token": types, "vision_proj_m.bias": types}
    found = inference_state({**state, **spare, "text_encoder.bert.embeddings.token_type_embeddings.weight": types})
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(found[f"text_encoder.{words}"], state[f"text_encoder.bert.{words}"] + types[0])
    assert not [key for key in found if "_m." in key or "queue" in key or ".cls." in key or "token_type" in key]
    assert inference_state(found).keys() == found.keys()


@pytest.mark.parametrize("span", [range(0, 2), range(0, 4)])
def test_layers_are_lavis_own(model, tokenizer, span):
    said = tokenizer(["a red ball", "a dog", "a man on a horse", "grass"], padding=True, return_tensors="pt")
    ids, mask, bert = said.input_ids, said.attention_mask.bool(), model.text_encoder.bert
    image = torch.randn(2, 17, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = run_layers(bert, bert.embeddings(input_ids=ids), mask, span, image)
        mode = {"mode": "multimodal", "encoder_hidden_states": image.repeat_interleave(2, 0),
                "encoder_attention_mask": torch.ones(4, 17)} if span.stop == 4 else {"mode": "text"}  # fmt: skip
        lavis = bert(ids, attention_mask=said.attention_mask, return_dict=True, **mode).last_hidden_state
    torch.testing.assert_close(ours[mask], lavis[mask], rtol=1e-4, atol=1e-5)


def test_words_are_hidden_as_in_bert(tokenizer):
    torch.manual_seed(1)
    length = torch.randint(2, 13, (4000,))
    mask = torch.arange(12) < length[:, None]
    ids = torch.randint(5, len(tokenizer), (4000, 12)) * mask
    hidden, chosen = hide_words(ids, mask, tokenizer, 0.15)
    words = mask.clone()
    words[:, 0] = False
    words[torch.arange(4000), length - 1] = False
    assert not (chosen & ~words).any() and torch.equal(hidden[~chosen], ids[~chosen])
    assert torch.equal(chosen.any(1), words.any(1))  # at least one where there are words, none where there are none
    long = words.sum(1) == 10
    assert 0.15 <= chosen[long].sum() / words[long].sum() < 0.22
    masked = (hidden[chosen] == tokenizer.mask_token_id).float().mean()
    same = (hidden[chosen] == ids[chosen]).float().mean()
    assert abs(masked - 0.8) < 0.03 and abs(same - 0.1) < 0.03


def test_contrast_is_symmetric_cross_entropy(model):
    generator = torch.Generator().manual_seed(0)
    seen, said = torch.randn(5, 32, generator=generator), torch.randn(5, 32, generator=generator)
    with torch.no_grad():
        left, right = F.normalize(model.vision_proj(seen), dim=1), F.normalize(model.text_proj(said), dim=1)
        rows = []
        for i in range(5):
            for one, others in ((left[i], right), (right[i], left)):
                scores = torch.stack([one @ other / model.temp for other in others])
                rows.append(torch.logsumexp(scores, 0) - scores[i])
        torch.testing.assert_close(contrast(model, seen, said), torch.stack(rows).mean())
        order = torch.tensor([3, 1, 4, 0, 2])
        torch.testing.assert_close(contrast(model, seen[order], said[order]), contrast(model, seen, said))


def test_the_total_is_the_weighted_sum_and_words_can_be_left_out(model, root, tmp_path):
    data = load_training_set(root, 32, cache=tmp_path)
    table, layer = TokenTable(model.tokenizer, 48), torch.nn.Linear(32, len(data.words))
    kinds = set()
    for step in range(4):
        batch = draw_batch(data, table, SHORT, step)
        assert (batch.ids[:, 0] == model.tokenizer.cls_token_id).all()
        torch.manual_seed(step)
        found = albef_losses(model, layer, batch, SHORT)
        torch.manual_seed(step)
        fewer = albef_losses(model, None, batch, SHORT)
        wanted = found["itm"] + SHORT.mlm_weight * found["mlm"] + SHORT.contrast_weight * found.get("itc", 0)
        torch.testing.assert_close(fewer["total"], wanted)
        torch.testing.assert_close(found["total"], wanted + SHORT.word_weight * found["words"])
        assert ("itc" in found) == batch.pictures.sentences and "words" not in fewer
        kinds.add(batch.pictures.sentences)
    assert kinds == {False, True}


@pytest.fixture(scope="module")
def training(root):
    return train_albef(root, recipe=SHORT, config=TINY, progress=False)


def test_pretraining_reads_no_boxes_repeats_itself_and_goes_on(training, root, tmp_path):
    blind = tmp_path / "blind"
    (blind / "Annotations").mkdir(parents=True)
    for name in ("Sentences", "images", "train.txt"):
        (blind / name).symlink_to(root / name)
    train_albef(blind, tmp_path / "work", recipe=SHORT, config=TINY, stop_at=4, progress=False)
    again = train_albef(blind, tmp_path / "work", recipe=SHORT, config=TINY, progress=False)
    state = again.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in training.model.state_dict().items())
    assert list(again.log.columns) == [
        "step", "seconds", "rate", "itm", "itm_accuracy", "mlm", "mlm_accuracy", "itc", "words"]  # fmt: skip
    assert len(again.log) == 4 and again.log["words"].iloc[-1] < again.log["words"].iloc[0]


def test_an_entry_of_the_zoo_gives_the_maps_that_were_scored(training, root, tmp_path):
    how = dict(name="albef-mini", val_limit=6, test_limits=(6,), progress=False)
    folder = make_entry(training, root, tmp_path, **how)
    loaded, card = load_model("albef-amc", weights=folder), load_zoo("albef-mini", tmp_path).card
    assert card["class"] == "lavis AlbefPretrain" and card["block"] in (2, 3) and loaded.block == card["block"]
    assert {row["block"] for row in card["choice_on_val"]} == {2, 3}
    assert loaded.cleaning == "blip" and loaded.tokens == card["tokens"]
    from qgcam_lib.data.flickr30k.entities import Flickr30kEntities

    example = next(iter(Flickr30kEntities(root, "test")))
    scored = training.as_model(block=card["block"], tokens=card["tokens"])
    wanted = scored.maps(example.image, [example.prompt])
    assert torch.equal(loaded.maps(example.image, [example.prompt]), wanted)
    twin = training.as_model(False, block=card["block"], tokens=card["tokens"])
    assert not torch.equal(twin.maps(example.image, [example.prompt]), wanted)


def test_a_mini_is_made_from_another_of_the_same_zoo(training, root, tmp_path):
    how = dict(name="albef-mini", val_limit=6, test_limits=(6,), progress=False)
    make_entry(training, root, tmp_path / "zoo", **how)
    recipe = AmcRecipe(steps=2, batch=2, texts=2, images=20, workers=1, log_every=1)
    folder = make_mini("albef-amc-mini", root, tmp_path / "work", tmp_path / "zoo", recipe, progress=False)
    card, start = load_zoo("albef-amc-mini", tmp_path / "zoo").card, load_zoo("albef-mini", tmp_path / "zoo").card
    assert card["starts_from"] == {"name": "albef-mini", "sha256": start["files"]["model.safetensors"]}
    models = {row["model"] for row in card["scores_on_test"]["500"]}
    assert models == {"trained", "before AMC", "random weights", "centre guess"}
    assert "boxes" in card["supervision"] and card["steps"] == 2 and (tmp_path / "work" / "checkpoint.pt").is_file()
    assert load_model("albef-amc", weights=folder).block == card["block"]


def test_every_committed_mini_has_the_numbers_of_its_recipe():
    made = [name for name in MINIS if (zoo_folder() / name / "card.json").is_file()]
    assert {"blip-mini", "albef-mini", "albef-amc-mini"} <= set(made)
    for name in made:
        assert MINIS[name].recipe.differs(load_zoo(name).card["recipe"]) == [], name
        assert np.isfinite(load_zoo(name).log()["seconds"]).all()
    order = list(MINIS)
    assert all(mini.needs in order[: order.index(name)] for name, mini in MINIS.items() if mini.needs)


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--name", "albef"], "invalid choice"),
        (["--name", "albef-mini", "--stpes", "3"], "unrecognized arguments"),
        (["--name", "blip-mini", "--mlm-weight", "1"], "unrecognized arguments"),
        (["--missing", "--name", "blip-mini"], "not allowed with"),
        (["--missing", "--work", "here"], "expected with --name only"),
    ],
)
def test_a_wrong_option_stops_before_any_training(argv, said, capsys):
    with pytest.raises(SystemExit):
        main(argv)
    assert said in capsys.readouterr().err
