"""RelComp: the losses against slow literal ones and other libraries', and weights between two models."""

import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import open_clip
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.loss import ClipLoss
from PIL import Image
from sklearn.metrics import top_k_accuracy_score

from qgcam_lib.data.probes.groups import RelCompGroup
from qgcam_lib.errors import ExampleError, FileFault, FormatError, ParameterError
from qgcam_lib.finetune import interpolate, loop
from qgcam_lib.finetune.loop import train, train_step
from qgcam_lib.finetune.relcomp.losses import (
    TOWERS,
    contrastive_loss,
    encoders_of,
    matching_loss,
    relcomp_losses,
    tower_parameters,
)
from qgcam_lib.finetune.relcomp.scores import (
    RELCOMP_SCORES,
    alpha_sweep,
    class_prompts,
    read_classes,
    relcomp_scores,
    zero_shot,
)
from qgcam_lib.finetune.relcomp.training import RelCompRecipe, finetune_relcomp, start_relcomp
from qgcam_lib.models.clip.network import TextTokenizer, build_clip, word_vocabulary
from qgcam_lib.models.dual.matcher import DualMatcher

# --- losses -----------------------------------------------------------------------------------------------------------


def features(seed, rows=5, width=6):
    rng = torch.Generator().manual_seed(seed)
    return [F.normalize(torch.randn(rows, width, generator=rng, dtype=torch.float64), dim=-1) for _ in range(4)]


def literal_matching(pictures, captions, positives, negatives, same):
    """Row by row, as one would say it."""
    def far(a, b):  # torch adds 1e-6 to every difference
        return math.sqrt(sum((x - y + 1e-6) ** 2 for x, y in zip(a.tolist(), b.tolist())))
    first, other, n = [], [], len(pictures)
    for k in range(n):
        first.append(max(0, far(pictures[k], positives[k]) - far(pictures[k], negatives[k]) + 1))
        rest = [row for row in range(n) if not same[k][row]]
        if rest:
            rival = pictures[max(rest, key=lambda row: float(captions[k] @ pictures[row]))]
            other.append(max(0, far(captions[k], pictures[k]) - far(captions[k], rival) + 1))
    return (sum(first) / n + (sum(other) / len(other) if other else 0)) / 2


@pytest.mark.parametrize("seed", [0, 1])
def test_matching_is_the_mean_of_two_literal_triplets(seed):
    same = torch.eye(5, dtype=torch.bool)
    same[0, 3] = same[3, 0] = True
    same[4] = same[:, 4] = True  # no other picture at all
    found = matching_loss(*features(seed), same)
    assert found.item() == pytest.approx(literal_matching(*features(seed), same.tolist()), abs=1e-9)


def test_matching_of_one_group_has_no_second_triplet_and_no_nan():
    given = [each.requires_grad_() for each in features(3, rows=1)]
    loss = matching_loss(*given)
    loss.backward()
    assert loss.item() == pytest.approx(literal_matching(*given, [[True]]))
    assert all(each.grad is None or torch.isfinite(each.grad).all() for each in given)


def test_contrast_is_open_clips_with_one_text_more():
    pictures, captions, positives, negatives = features(5)
    plain = contrastive_loss(pictures, captions, -1e3 * pictures, 7.0)
    assert torch.allclose(plain, ClipLoss()(pictures, captions, torch.tensor(7.0, dtype=torch.float64)))
    rows = []
    for k in range(5):
        scores = [7 * float(pictures[k] @ text) for text in [*captions, negatives[k]]]
        rows.append(math.log(sum(map(math.exp, scores))) - scores[k])
    columns = [math.log(sum(math.exp(7 * float(picture @ captions[k])) for picture in pictures))
               - 7 * float(pictures[k] @ captions[k]) for k in range(5)]
    found = contrastive_loss(pictures, captions, negatives, 7.0)
    assert found.item() == pytest.approx((np.mean(rows) + np.mean(columns)) / 2, abs=1e-12)


def test_pairs_that_are_the_same_are_no_negatives():
    pictures, captions, _, _ = features(6, rows=3)
    same = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.bool)
    found = contrastive_loss(pictures, captions, -1e3 * pictures, 5.0, same)
    scores = 5 * pictures @ captions.T
    def part(table):
        kept = [[0, 2], [1, 2], [0, 1, 2]]
        return sum(table[k, rows].logsumexp(0) - table[k, k] for k, rows in enumerate(kept)) / 3
    assert found.item() == pytest.approx(((part(scores) + part(scores.T)) / 2).item())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 6))
def test_the_order_of_the_batch_changes_nothing(seed, rows):
    given, order = features(seed, rows), torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    one = relcomp_losses(*given, 9.0)
    two = relcomp_losses(*(each[order] for each in given), 9.0)
    for name, value in one.items():
        assert torch.allclose(value, two[name]) and torch.isfinite(value), name
    assert one["total"].item() == pytest.approx(one["matching"].item() + one["contrast"].item())


def test_a_tie_is_wrong():
    pictures, captions, positives, _ = features(8)
    assert relcomp_losses(pictures, captions, positives, positives, 3.0)["right"] == 0


# --- interpolation ----------------------------------------------------------------------------------------------------


def small(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 4))
    model[1].num_batches_tracked.fill_(seed)
    return model


@settings(max_examples=30, deadline=None)
@given(alpha=st.floats(-2, 3))
def test_interpolation_is_the_usual_dictionary(alpha):
    zero, one, into = small(1), small(2), small(3)
    given = {key: value.clone() for key, value in zero.state_dict().items()}
    assert interpolate(zero, one, alpha, into=into) is into
    for key, value in into.state_dict().items():
        wanted = (1 - alpha) * given[key] + alpha * one.state_dict()[key] if value.is_floating_point() else given[key]
        torch.testing.assert_close(value, wanted, atol=2e-6, rtol=0)
        assert torch.equal(zero.state_dict()[key], given[key])
    assert interpolate(zero, one, alpha, into=zero) is zero
    assert all(torch.equal(value, into.state_dict()[key]) for key, value in zero.state_dict().items())


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_any_floating_type_ends_exactly_at_both_ends(kind):
    zero, one = ({"w": torch.randn(7, 3).to(kind), "n": torch.tensor(k)} for k in (1, 2))
    for alpha, end in ((0, zero), (1, one)):
        found = interpolate(zero, one, alpha)
        assert found["w"].dtype == kind and torch.equal(found["w"].double(), end["w"].double()) and found["n"] == 1
    middle = interpolate(zero, one, 0.3)["w"]
    wanted = (0.7 * zero["w"].double() + 0.3 * one["w"].double()).to(kind).double()
    assert (middle.double() - wanted).abs().max() <= wanted.abs().max() * 2.0 ** (0 if kind.itemsize == 1 else -7)
    mixed = interpolate(zero, {"w": one["w"].double(), "n": one["n"]}, 0.3)["w"]
    assert mixed.dtype == kind


def test_tied_weights_and_other_layouts_in_place():
    def tied(seed):
        model = small(seed)
        model[2].weight = torch.nn.Parameter(model[0].weight.detach().T)  # the same numbers in another shape
        model.append(torch.nn.Linear(3, 4))
        model[3].weight = model[2].weight
        return model
    zero, one = tied(1), tied(2)
    wanted = torch.lerp(zero[2].weight, one[2].weight, 0.25)
    interpolate(zero, one, 0.25, into=zero)
    assert torch.equal(zero[2].weight, wanted) and zero[3].weight is zero[2].weight


def test_what_does_not_fit_is_named_and_nothing_is_written():
    zero, one = small(1), small(2)
    state = {key: value for key, value in one.state_dict().items() if key != "0.bias"} | {"head": torch.zeros(2)}
    before = {key: value.clone() for key, value in zero.state_dict().items()}
    with pytest.raises(ParameterError, match="theta_1.*0.bias, head"):
        interpolate(zero, state, 0.5, into=zero)
    with pytest.raises(ParameterError, match="into.*0.weight"):
        interpolate(zero, one, 0.5, into={**before, "0.weight": torch.zeros(2, 4)})
    for alpha in (math.nan, math.inf):
        with pytest.raises(ParameterError, match="alpha"):
            interpolate(zero, one, alpha, into=zero)
    assert all(torch.equal(value, before[key]) for key, value in zero.state_dict().items())


# --- training ---------------------------------------------------------------------------------------------------------

TINY = {"embed_dim": 16, "quick_gelu": False,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "patch_size": 16, "head_width": 16},
        "text_cfg": {"context_length": 16, "width": 16, "heads": 2, "layers": 1}}
COLOURS = ("red", "blue", "green", "white")

def tiny_clip():
    clip = build_clip(TINY, word_vocabulary(["a picture in " + " ".join(COLOURS)]), seed=3)
    return DualMatcher("clip", clip.model, clip.tokenize, card={"name": "tiny"})


def colour_groups(folder):
    """Twelve groups on four pictures, drawn where they are missing."""
    folder.mkdir(exist_ok=True)
    for k, colour in enumerate(COLOURS):
        if not (folder / f"{k}.png").is_file():
            noise = np.random.default_rng(k).integers(0, 60, (40, 48, 3), dtype=np.uint8)
            Image.fromarray(np.asarray(Image.new("RGB", (48, 40), colour)) // 2 + noise).save(folder / f"{k}.png")
    return [RelCompGroup(f"{k}-{j}", f"{k}.png", f"a {colour} picture", f"picture in {colour}",
                         f"picture in {COLOURS[(k + j) % 4]}", "composition")
            for j in (1, 2, 3) for k, colour in enumerate(COLOURS)]


def weights_of(model):
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


SHORT = RelCompRecipe(stream="VT", steps=2, batch=6, learning_rate=0.05, log_every=1)
LONGER = replace(SHORT, steps=0, epochs=3, batch=4)


def apart(task, *folders):
    """Run a function of this file in a process of its own, never forked: torch's threads do not live through a fork."""
    code = (f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_relcomp as tests; "
            f"from pathlib import Path; tests.{task}(*map(Path, {[*map(str, folders)]!r}))")
    script = folders[-1].with_name(f"{task}.py")
    script.write_text(code, encoding="utf-8")
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=False,
                          env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"})


def train_and_die(folder, work):
    """The life of a process that is killed when five of nine steps are saved, and more are done."""
    torch.set_num_threads(1)

    def die(training):
        if training.step == 6:
            os.kill(os.getpid(), signal.SIGKILL)
    start = partial(start_relcomp, tiny_clip(), colour_groups(folder), folder, LONGER)
    real = loop.save_checkpoint
    loop.save_checkpoint = lambda training, path: real(training, path) if training.step < 6 else die(training)
    train(start, work, save_every=1, progress=False)


@pytest.mark.nightly
def test_a_killed_training_ends_at_the_same_bits(tmp_path, one_thread):
    folder, work = tmp_path / "pictures", tmp_path / "work"
    given = tiny_clip(), colour_groups(folder), folder
    done = apart("train_and_die", folder, work)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert torch.load(work / "checkpoint.pt", weights_only=True)["step"] == 5
    whole = finetune_relcomp(*given, recipe=LONGER, progress=False)
    resumed = finetune_relcomp(*given, work, recipe=LONGER, progress=False)
    assert whole.step == 9 and torch.equal(weights_of(whole.model), weights_of(resumed.model))
    pd.testing.assert_frame_equal(*(run.log.drop(columns="seconds") for run in (whole, resumed)), check_exact=True)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("relcomp") / "pictures"
    return tiny_clip(), colour_groups(folder), folder


@pytest.mark.parametrize("stream", ["V", "T", "VT"])
def test_only_the_stream_learns_and_cached_features_change_nothing(world, tmp_path, stream):
    model, groups, folder = world
    before = weights_of(model.model)
    recipe = replace(SHORT, stream=stream)
    runs = [finetune_relcomp(model, groups, folder, recipe=recipe, progress=False, cache=cache)
            for cache in (None, tmp_path, tmp_path)]  # in memory, on disk, and from the disk
    assert torch.equal(weights_of(model.model), before)
    assert all(torch.equal(weights_of(run.model), weights_of(runs[0].model)) for run in runs)
    learned = {name for name, p in runs[0].model.named_parameters()
               if not torch.equal(p, model.model.get_parameter(name))}
    assert learned and {"V" if name.startswith("visual") else "T" for name in learned} == set(stream)
    assert "logit_scale" not in learned
    both = start_relcomp(model, groups, folder, recipe)
    both.seen, both.read = None, None  # nothing cached: computed in every step
    for step in range(2):
        train_step(both, both.draw(step))
    torch.testing.assert_close(weights_of(both.model), weights_of(runs[0].model), atol=1e-6, rtol=1e-5)


def test_the_rate_is_torchs_cosine_and_the_step_is_torchs_momentum(world):
    recipe = RelCompRecipe(steps=30, learning_rate=0.2, minimum_rate=0.03)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], 0.2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30, eta_min=0.03)
    for step in range(30):
        assert recipe.rate(step) == pytest.approx(cosine.get_last_lr()[0])
        optimizer.step()
        cosine.step()
    assert replace(recipe, warmup=10).rate(4) == pytest.approx(recipe.rate(4) / 2)
    training = start_relcomp(*world, SHORT)
    group = training.optimizer.param_groups[0]
    assert (group["momentum"], group["weight_decay"], training.recipe.steps) == (0.9, 1e-4, 2)
    assert start_relcomp(*world, RelCompRecipe(batch=5)).recipe.steps == 40 * 2


def test_every_epoch_sees_each_group_at_most_once_in_an_order_of_its_own(world):
    training = start_relcomp(*world, RelCompRecipe(batch=5, epochs=3))
    epochs = [np.concatenate([training.groups_of(2 * epoch + k) for k in range(2)]).tolist() for epoch in range(3)]
    assert all(len(set(epoch)) == 10 for epoch in epochs) and epochs[0] != epochs[1] != epochs[2]


def test_what_cannot_be_trained_is_named(world, tmp_path):
    model, groups, folder = world
    with pytest.raises(ParameterError, match="stream"):
        start_relcomp(model, groups, folder, replace(SHORT, stream="TV"))
    with pytest.raises(ParameterError, match="none"):
        start_relcomp(model, [], folder, SHORT)
    with pytest.raises(ParameterError, match="stream 'V'"):
        tower_parameters(torch.nn.Linear(2, 2), "V")
    with pytest.raises(ExampleError, match="0-1"):
        start_relcomp(model, groups, tmp_path, SHORT)
    finetune_relcomp(model, groups, folder, tmp_path, recipe=SHORT, progress=False, stop_at=1)
    with pytest.raises(FileFault, match="data"):
        finetune_relcomp(model, groups[1:], folder, tmp_path, recipe=SHORT, progress=False)


def test_patched_lies_between_and_says_so(world):
    model, groups, folder = world
    tuned = finetune_relcomp(model, groups, folder, recipe=SHORT, progress=False)
    ends = [tuned.patched(model, alpha) for alpha in (0, 1)]
    assert torch.equal(weights_of(ends[0].model), weights_of(model.model))
    assert torch.equal(weights_of(ends[1].model), weights_of(tuned.model))
    assert ends[1].card["patched"] == {"stream": "VT", "alpha": 1} and "patched" not in model.card


# --- what is gained and lost ------------------------------------------------------------------------------------------


class Table:
    """A matcher with a score for each picture (by its first pixel) and text, from a table."""

    card = {"name": "table"}

    def __init__(self, scores):
        self.scores = scores

    def score(self, images, texts):
        shades = [(image if isinstance(image, Image.Image) else Image.open(image)).convert("L").getpixel((0, 0))
                  for image in images]
        return torch.tensor([[float(self.scores[shade, text]) for text in texts] for shade in shades])


def shades(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for shade, name in enumerate(names):
        Image.new("L", (4, 4), shade).save(folder / name)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 9))
def test_relcomp_scores_are_the_literal_ones(tmp_path_factory, seed, count):
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("shades")
    shades(folder, [f"{k}.png" for k in range(4)])
    words = "red blue big small dog cat".split()
    groups = [RelCompGroup(str(k), f"{rng.integers(4)}.png", "c", *(" ".join(rng.choice(words, 3)) for _ in range(2)),
                           str(rng.choice(["composition", "predicate"]))) for k in range(count)]
    texts = {text for group in groups for text in (group.positive, group.negative)}
    scores = {(shade, text): rng.integers(3) for shade in range(4) for text in texts}
    found = relcomp_scores(Table(scores), groups, folder, progress=False).set_index("id")
    for group in groups:
        row, own = found.loc[group.id], int(group.image[0])
        said = set(group.negative.split())
        alike = [-1 if other.image == group.image or other.kind != group.kind else
                 len(said & set(other.positive.split())) / len(said | set(other.positive.split())) for other in groups]
        assert row.text_score == (scores[own, group.positive] > scores[own, group.negative])
        margin = scores[own, group.positive] - scores[own, group.negative]
        assert row.confidence == pytest.approx(1 / (1 + math.exp(-margin)))
        if max(alike) < 0:
            assert row.rival == "" and math.isnan(row.image_score) and math.isnan(row.group_score)
            continue
        assert row.rival == groups[int(np.argmax(alike))].image
        image = scores[own, group.positive] > scores[int(row.rival[0]), group.positive]
        assert (row.image_score, row.group_score) == (image, image and row.text_score)
        other = int(row.rival[0])
        assert row.rival_agrees == (scores[other, group.positive] > scores[other, group.negative])
    assert set(RELCOMP_SCORES) <= set(found)


def class_folder(root, sizes, shade=0):
    for name, size in sizes.items():
        (root / name).mkdir(parents=True)
        for k in range(size):
            Image.new("L", (3, 3), shade).save(root / name / f"{k}.png")
            shade += 1
    return root


def test_zero_shot_is_sklearns_top_k_and_a_tie_is_wrong(tmp_path):
    names = [f"class_{k}" for k in range(9)]
    root, rng = class_folder(tmp_path / "set", dict.fromkeys(names, 3)), np.random.default_rng(0)
    values = rng.permutation(27 * 9).reshape(27, 9).astype(float)
    scores = {(shade, f"A photo of a class {k}."): values[shade, k] for shade in range(27) for k in range(9)}
    found = zero_shot(Table(scores), root, progress=False)
    truth = np.repeat(np.arange(9), 3)
    for k, column in ((1, "top1"), (5, "top5")):
        assert found[column].mean() == pytest.approx(top_k_accuracy_score(truth, values, k=k))
    assert (found.found == np.array(names)[values.argmax(1)]).all()
    same = zero_shot(Table(dict.fromkeys(scores, 1.0)), root, limit=1, progress=False)
    assert not same.top1.any() and (same.place == 9).all() and (same.found != same["class"]).all() and len(same) == 9


@pytest.mark.parametrize(("name", "answers"), [("ITM logit", "score"), ("scaled cosine", "vectors")])
def test_zero_shot_asks_the_head_that_scores(tmp_path, name, answers):
    root = class_folder(tmp_path / "set", {"cat": 2, "dog": 2})

    class Both:
        """Two towers that always say dog, and a matching head that always says cat."""

        card = {"score": name}

        def encode_images(self, images):
            return torch.eye(2)[[1] * len(images)]

        def encode_texts(self, texts):
            return torch.eye(2)[: len(texts)]

        def score(self, images, texts):
            return torch.tensor([[1.0, 0.0]]).repeat(len(images), 1)

    found = zero_shot(Both(), root, progress=False)
    assert set(found.found) == {{"score": "cat", "vectors": "dog"}[answers]}


def test_classes_are_read_from_three_layouts(tmp_path):
    plain = read_classes(class_folder(tmp_path / "plain", {"old_dog": 1, "cat": 1}))
    assert plain.name.tolist() == ["cat", "old dog"]
    assert class_prompts(plain) == ["A photo of a cat.", "A photo of a old dog."]
    (tmp_path / "plain" / "classes.csv").write_text("class,prompt\ncat,Look, a cat\n".replace("k, ", "k "))
    assert class_prompts(read_classes(tmp_path / "plain")) == ["Look a cat"]
    whole = tmp_path / "imagenet"
    for k in range(1000):
        (whole / f"n{k:08d}").mkdir(parents=True)
    assert read_classes(whole).name.tolist() == list(open_clip.IMAGENET_CLASSNAMES)
    part = tmp_path / "part" / "val"
    class_folder(part, {"n00000007": 1, "n00000001": 1})
    with pytest.raises(FormatError, match="LOC_synset_mapping"):
        read_classes(part)
    (part.parent / "LOC_synset_mapping.txt").write_text("n00000001 fish, tench\nn00000007 hen\n")
    assert read_classes(part).name.tolist() == ["fish", "hen"]


@pytest.mark.parametrize("stream", ["V", "T", "VT"])
def test_a_sweep_asks_the_patched_models(world, stream):
    model, groups, folder = world
    tuned = finetune_relcomp(model, groups, folder, recipe=replace(SHORT, stream=stream), progress=False)
    before, files, texts = weights_of(model.model), sorted(folder.glob("*.png")), [group.positive for group in groups]
    kept = []

    def ask(matcher):
        kept.append({half: len(known) for half, known in matcher.known.items()})
        return {"pairs": pd.DataFrame({"score": matcher.score(files, texts).flatten().tolist()})}

    swept = alpha_sweep(model, tuned.model, ask, (1.0, 0.3, 0.0))["pairs"]
    for alpha, rows in swept.groupby("alpha"):
        wanted = tuned.patched(model, alpha).score(files, texts).flatten()
        np.testing.assert_allclose(rows.score, wanted, atol=1e-4)
    frozen = set("VT") - set(stream)
    assert all((kept[1][half] > 0) == (half in frozen) for half in "VT")
    assert torch.equal(weights_of(model.model), before)


def tiny_transformers(family):
    import transformers

    towers = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    text = towers | {"vocab_size": 12, "max_position_embeddings": 16}
    image = towers | {"image_size": 32, "patch_size": 16}
    if family == "siglip":
        model = transformers.SiglipModel(transformers.SiglipConfig(
            text_config=text | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, vision_config=image))
        return model, TextTokenizer(lambda said: [3 + len(word) % 9 for word in said.split()], None, 2, 16, pad=2)
    model = transformers.FlavaForPreTraining(transformers.FlavaConfig(
        text_config=text, image_config=image, multimodal_config=towers, projection_dim=16, hidden_size=16,
        init_codebook=False))
    return model, TextTokenizer(lambda said: [3 + len(word) % 9 for word in said.split()], 1, 2, 16)


@pytest.mark.parametrize("family", ["siglip", "flava"])
@pytest.mark.parametrize("stream", ["V", "T"])
def test_other_families_are_taken_apart_and_learn(world, family, stream):
    _, groups, folder = world
    torch.manual_seed(0)
    model, tokenizer = tiny_transformers(family)
    matcher = DualMatcher(family, model, tokenizer, card={"name": family})
    halves, files, texts = encoders_of(matcher), sorted(folder.glob("*.png")), ["a red picture", "picture"]
    with torch.no_grad():
        vectors = halves.see(halves.pixels(files)), halves.read(halves.tokens(texts))
    torch.testing.assert_close(matcher.similarity(*vectors), matcher.score(files, texts), atol=1e-4, rtol=1e-4)
    tuned = finetune_relcomp(matcher, groups, folder, recipe=replace(SHORT, stream=stream), progress=False)
    moved = {name for name, p in tuned.model.named_parameters()
             if not torch.equal(p, matcher.model.get_parameter(name))}
    assert moved and all(re.match(TOWERS[stream], name) for name in moved)
    assert not any("mm_projection" in name or "multimodal" in name for name in moved)
    assert torch.equal(tuned.patched(matcher, 1.0).score(files, texts), tuned.encoders.matcher.score(files, texts))
