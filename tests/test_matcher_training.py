"""The matchers' losses and passes beside the libraries' own: CLIP, SigLIP, ViLT, BridgeTower, FLAVA and ALBEF."""

from dataclasses import replace

import pytest
import tiny
import torch
import torch.nn.functional as F
from open_clip.loss import ClipLoss, SigLipLoss
from PIL import Image

from qgcam_lib.finetune.albef import albef_losses, draw_batch, hide_words, mini_albef, run_layers
from qgcam_lib.finetune.albef import contrast as albef_contrast
from qgcam_lib.finetune.batches import TokenTable, as_input, draw_pictures
from qgcam_lib.finetune.clip import channels, contrast, image_cells, image_tokens, sigmoid_loss, token_ids
from qgcam_lib.finetune.joint import match_loss
from qgcam_lib.models.albef.explainer import build_albef, inference_state
from qgcam_lib.models.clip.network import build_clip, encode_texts, word_vocabulary
from qgcam_lib.models.common.checkpoints import load_state
from qgcam_lib.models.common.vocabulary import build_vocabulary, make_tokenizer

KINDS = {**tiny.JOINT_KINDS, **tiny.TOWER_KINDS}


def start(name):
    kind = KINDS[name]
    return kind.start(tiny.data(), kind.recipe, kind.config)


def test_the_losses_are_the_libraries_own_where_everything_is_known():
    one, scale, bias = torch.eye(5, dtype=torch.bool), torch.tensor(12.0), torch.tensor(-10.0)
    pictures, texts = (F.normalize(torch.randn(5, 7), dim=-1) for _ in range(2))
    alike = scale * pictures @ texts.T
    torch.testing.assert_close(contrast(alike, one, ~one), ClipLoss()(pictures, texts, scale))
    torch.testing.assert_close(sigmoid_loss(alike + bias, one, ~one), SigLipLoss()(pictures, texts, scale, bias))
    pairs = torch.randn(6, 2, 2)
    logits, labels = pairs.flatten(0, 1), torch.tensor([1, 0] * 6)
    match = pairs[..., 1] - pairs[..., 0]
    ranking = F.cross_entropy(match, torch.zeros(6, dtype=torch.long))
    torch.testing.assert_close(match_loss(match), (F.cross_entropy(logits, labels) + ranking) / 2)


def test_an_unknown_pair_does_not_reach_the_sigmoid_loss():
    scores = torch.randn(2, 3, requires_grad=True)
    own, false = torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.bool)
    own[0, 0] = false[0, 1] = True
    sigmoid_loss(scores, own, false).backward()
    assert (scores.grad != 0).nonzero().tolist() == [[0, 0], [0, 1]]


def test_unknown_pairs_and_other_own_texts_do_not_reach_the_loss():
    scores = torch.randn(3, 5, requires_grad=True)
    own, false = torch.zeros(3, 5, dtype=torch.bool), torch.zeros(3, 5, dtype=torch.bool)
    own[0, 0] = True
    false[0, 3] = false[2, 0] = True
    contrast(scores, own, false).backward()
    touched = scores.grad != 0
    assert touched.nonzero().tolist() == [[0, 0], [0, 3], [2, 0]]
    assert scores.grad[0, 0] < 0 < scores.grad[0, 3]
    nothing = contrast(scores, torch.zeros_like(own), false)
    assert nothing == 0 and contrast(scores, own, torch.zeros_like(false)).abs() < 1e-6


def test_the_training_pass_is_open_clips():
    words = word_vocabulary(["a red ball", "the big dog on the left"])
    built = build_clip(tiny.CLIP.model, words)
    texts = [("a", "red", "ball"), ("the", "big", "dog", "on", "the", "left")]
    ids, pixels = token_ids(built.tokenize, texts), torch.randn(2, 3, 32, 32)
    assert ids.shape == (2, 8) and built.grid == tiny.CLIP.grid == (2, 2)
    with torch.no_grad():
        padded = built.tokenize([" ".join(text) for text in texts])
        torch.testing.assert_close(encode_texts(built.model, ids), built.model.encode_text(padded, normalize=True))
        cells = image_cells(built.model.visual, pixels)
        torch.testing.assert_close(built.model.visual.attnpool(cells), built.model.encode_image(pixels))
    assert cells.shape == (2, channels(tiny.CLIP.model), 2, 2)


def test_the_two_towers_differ_in_their_loss_alone():
    clip, siglip = (start(loss) for loss in ("softmax", "sigmoid"))
    theirs = siglip.model.state_dict()
    assert [n for n, v in clip.model.state_dict().items() if not torch.equal(v, theirs[n])] == ["logit_scale"]
    assert theirs.keys() - clip.model.state_dict().keys() == {"logit_bias"}
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        seen, patches = image_tokens(clip.model.visual, pixels)
        torch.testing.assert_close(seen, clip.model.encode_image(pixels))
    assert patches.shape == (2, 4, 32)


@pytest.mark.parametrize("name", tiny.JOINT_KINDS)
def test_the_pass_gives_a_logit_a_text_whatever_else_is_asked(name):
    training = start(name)
    pixels = torch.randn(2, 3, 32, 32)
    texts = [("a", "red", "ball"), ("a", "man", "riding", "a", "horse", "."), ("a", "dog")]
    with torch.no_grad():
        ids, mask = training.table(texts)
        together = training.look(pixels, ids, mask, torch.tensor([0, 1, 2, 0])).match
        ids, mask = training.table([texts[0]])
        alone = training.look(pixels, ids, mask, torch.tensor([0, 0, 0, 0])).match
    torch.testing.assert_close(together[[0, 1], [0, 1]], alone[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_the_adapter_gives_the_logits_of_the_training(name):
    asked = ["a photo of a red ball .", "a man riding a horse"]
    pictures = [Image.fromarray(pixels) for pixels in tiny.data().pixels[:2]]
    pixels, words = as_input(tiny.data().pixels[:2]), [text.split() for text in asked]
    training = start(name)
    with torch.no_grad():
        if name in tiny.JOINT_KINDS:
            ours = training.look(pixels, *training.table(words), torch.tensor([0, 1, 0, 1])).match
        else:
            ours = training.model(pixels, training.model.tokenizer(asked))
            ours = ours[2] * ours[0] @ ours[1].T + (ours[3] if len(ours) > 3 else 0)
    theirs = training.as_model(**training.readings["trained"]).score(pictures, asked)
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(training.as_model(False).score(pictures, asked), ours, atol=1e-3)


@pytest.mark.parametrize("name", KINDS)
def test_what_only_looks_learns_of_the_pictures_alone(name):
    training, data = start(name), tiny.data()
    looked, read = training.losses(training.draw(1)), training.losses(training.draw(2))
    assert set(looked) == {"words", "total"} and {"found", "words", "total"} <= set(read)
    looked["total"].backward()
    learns = {name for name, value in training.model.named_parameters() if value.grad is not None and value.grad.any()}
    assert learns and not [name for name in learns if "text_model" in name or "token_embedding" in name]
    with torch.no_grad():
        drawn = draw_pictures(data, training.recipe, 1)
        training.recipe = replace(training.recipe, half=False)
        has = torch.from_numpy(data.has[drawn.rows]).float()
        states = training.patches(drawn.pixels(data))
        cells = training.extra(states)
        slow = sum(F.binary_cross_entropy_with_logits(torch.logsumexp(one, 0), told, reduction="sum")
                   for one, told in zip(cells, has)) / len(has)
    torch.testing.assert_close(training.losses(training.draw(1))["words"], slow)
    assert abs(looked["words"].item() / slow.item() - 1) < 0.05  # bfloat16 beside float32


# --- ALBEF ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(build_vocabulary(), lavis_tokens=False)


@pytest.fixture(scope="module")
def model(tokenizer):
    return mini_albef(replace(tiny.ALBEF, vocab_size=len(tokenizer)), tokenizer)


def test_both_forms_are_lavis_own_without_momentum(model, tokenizer):
    from lavis.models.albef_models.albef_retrieval import AlbefRetrieval

    plain = build_albef(replace(tiny.ALBEF, vocab_size=len(tokenizer)), tokenizer)
    assert isinstance(plain, AlbefRetrieval) and any(
        one.__name__ == "AlbefPretrain" for one in type(model).__mro__) and not plain.training
    assert {name for name, _ in plain.named_children()} == {
        "visual_encoder", "text_encoder", "vision_proj", "text_proj", "itm_head"}  # fmt: skip
    assert load_state(plain, inference_state(model.state_dict())) == []
    head, words = model.text_encoder.cls.predictions.decoder, model.text_encoder.bert.embeddings.word_embeddings
    assert head.weight is words.weight  # the guess of a word uses the word's own vector
    with pytest.raises(ValueError, match="tokenizer: expected at most vocab_size=10 tokens"):
        build_albef(replace(tiny.ALBEF, vocab_size=10), tokenizer)


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
        torch.testing.assert_close(albef_contrast(model, seen, said), torch.stack(rows).mean())
        order = torch.tensor([3, 1, 4, 0, 2])
        torch.testing.assert_close(albef_contrast(model, seen[order], said[order]), albef_contrast(model, seen, said))


def test_the_total_is_the_weighted_sum_and_words_can_be_left_out(model):
    data, recipe = tiny.data(), tiny.KINDS["albef"].recipe
    table, layer = TokenTable(model.tokenizer, 48), torch.nn.Linear(32, len(data.words))
    kinds = set()
    for step in range(4):
        batch = draw_batch(data, table, recipe, step)
        assert (batch.ids[:, 0] == model.tokenizer.cls_token_id).all()
        torch.manual_seed(step)
        found = albef_losses(model, layer, batch, recipe)
        torch.manual_seed(step)
        fewer = albef_losses(model, None, batch, recipe)
        wanted = found["itm"] + recipe.mlm_weight * found["mlm"] + recipe.contrast_weight * found.get("itc", 0)
        torch.testing.assert_close(fewer["total"], wanted)
        torch.testing.assert_close(found["total"], wanted + recipe.word_weight * found["words"])
        assert ("itc" in found) == batch.pictures.sentences and "words" not in fewer
        kinds.add(batch.pictures.sentences)
    assert kinds == {False, True}
