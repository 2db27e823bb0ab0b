"""Make what the page "Try it" needs, in docs/live_files/live: `make live`. Pages built afterwards can ask a model.

blip-mini becomes one ONNX graph: image encoder, text encoder, matching head, and the derivatives of the matching logit
by the cross-attention of every block, which is GradCAM's backward pass. clip-rn-mini becomes another, with the masked
pictures of gScoreCAM. Beside them: scenes with what Python computes, and onnxruntime-web from npm, whose version and
checksum are fixed here.
Needed: onnx and onnxscript, which the extra "live" brings, and npm.
"""

import base64
import gzip
import hashlib
import json
import math
import shutil
import subprocess
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from qgcam_lib.data.catalog import load_dataset
from qgcam_lib.data.records import open_image
from qgcam_lib.explain.cam import layer4, masked_pixels, pool
from qgcam_lib.explain.gradcam import split_heads
from qgcam_lib.metrics import score_maps
from qgcam_lib.models.common.device import MEAN, STD, prepare_image
from qgcam_lib.models.common.vocabulary import SIGNS
from qgcam_lib.models.registry import load_model
from qgcam_lib.teach.explorer import page_part

FOLDER = Path(__file__).parent / "live_files" / "live"
LENGTH = 16  # tokens of a text with its first and last; a shorter one is padded
N_SCENES = 20
RUNTIME = ("onnxruntime-web", "1.23.2",
           "T09JUtMn+CZLk3mFwqiH0lgQf+4S7+oYHHtk6uhaYAAJI95bTcKi5bOOZYwORXfS/RLZCjDDEXGWIuOCAFlEjg==")
SCORES = ("iou_soft", "iou_binary", "dice_soft", "dice_binary", "wdp_soft", "wdp_binary", "io_ratio", "pg_hit",
          "pg_uncertain")
RUNTIME_FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")


def attend(layer, queries, keys, values, bias):
    """Attention probabilities [heads, T, M] of a layer, and what it hands on."""
    q, k, v = split_heads(queries, layer), split_heads(keys, layer), split_heads(values, layer)
    probabilities = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias).softmax(-1)
    return probabilities, v


def joined(probabilities, values):
    return (probabilities @ values).transpose(-3, -2).flatten(-2)


def explained(network, pixels, ids, mask):
    """Token maps of every block, [blocks, T, h * w], and the matching logits [2].

    pixels: [1, 3, H, W]; ids, mask: [T], the mask 1 where a token is real. Written out for one picture and one text;
    `BlipExplainer` computes the same for many.
    """
    vision, text = network.visual_encoder, network.text_encoder
    states = vision.patch_embed(pixels)
    states = torch.cat([vision.cls_token, states], 1) + vision.pos_embed[:, :states.shape[1] + 1]
    for block in vision.blocks:
        x = block.norm1(states)
        q, k, v = block.attn.qkv(x)[0].unflatten(-1, (3, block.attn.num_heads, -1)).permute(1, 2, 0, 3)
        mixed = (q @ k.transpose(-1, -2) * block.attn.scale).softmax(-1) @ v
        states = states + block.attn.proj(mixed.transpose(0, 1).flatten(1))[None]
        states = states + block.mlp(block.norm2(states))
    states = vision.norm(states)[0]

    bias, watched = (1 - mask)[None, None] * -1e4, []
    x = text.embeddings(ids[None])[0]
    for layer in text.encoder.layer:
        inner = layer.attention.self
        p, v = attend(inner, inner.query(x), inner.key(x), inner.value(x), bias)
        x = layer.attention.output(joined(p, v), x)
        inner = layer.crossattention.self
        p, v = attend(inner, inner.query(x), inner.key(states), inner.value(states), 0)
        p = p if p.requires_grad else p.detach().requires_grad_()
        watched.append(p)
        x = layer.crossattention.output(joined(p, v), x)
        x = layer.output(layer.intermediate(x), x)
    logits = network.itm_head(x[0])
    gradients = torch.autograd.grad(logits[1], watched)
    maps = torch.stack([(p * g.clamp(min=0)).mean(0)[:, 1:] for p, g in zip(watched, gradients)])
    return maps.detach(), logits.detach()


def inputs_of(explainer, picture, phrase):
    """What the graph takes: pixels, and ids and mask of `LENGTH` tokens."""
    tokens = explainer.tokenize([phrase])
    n = tokens.ids.shape[1]
    ids, mask = torch.zeros(LENGTH, dtype=torch.long), torch.zeros(LENGTH)
    ids[:n], mask[:n] = tokens.ids[0], 1
    return prepare_image(picture, explainer.config.image_size)[None], ids, mask


def scored(explainer, pixels, ids):
    """gScoreCAM's map [h, w] of one text on one picture, and CLIP's logit. ids: [1, length]. Written out for one;
    `gscorecam` computes the same for many."""
    visual, scale = explainer.model.visual, float(explainer.scale)
    text = F.normalize(explainer.model.encode_text(ids), dim=-1)[0]
    features = layer4(visual, pixels).detach().requires_grad_()
    logit = scale * (F.normalize(pool(visual.attnpool, features), dim=-1)[0] @ text)
    importance = torch.autograd.grad(logit, features)[0][0].mean((1, 2))
    features = features.detach()[0]
    taken = importance.topk(min(explainer.n_channels, len(features))).indices
    seen = F.normalize(pool(visual.attnpool, layer4(visual, masked_pixels(pixels[0], features[taken]))), dim=-1)
    weights = torch.zeros(len(features)).scatter(0, taken, scale * seen @ text).softmax(0)
    return (weights[:, None, None] * features).sum(0).relu().detach(), logit.detach()


def clip_inputs(explainer, picture, phrase):
    """What the graph of `scored` takes."""
    return explainer.pixels([picture]), explainer.clip.tokenize([phrase])


def export_model(graph, explainer, given, names, file):
    """Write the graph of `explained` or `scored`. given: inputs to trace it with; names: of inputs and of outputs."""
    traced = make_fx(lambda *inputs: graph(explainer, *inputs))(*given).eval()
    program = torch.onnx.export(traced, given, dynamo=True, opset_version=18, external_data=False, verbose=False,
                                input_names=names[0], output_names=names[1])
    file.write_bytes(packed(halved(program.model_proto).SerializeToString()))


def halved(model):
    """The graph with its weights as float16, each with a cast to float32: the zoo stores float16, so they are equal."""
    from onnx import TensorProto, helper, numpy_helper

    for tensor in model.graph.initializer:
        name, values = tensor.name, numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):  # a constant, then inf, which differs
            half = values.astype(np.float16)
        if values.dtype == np.float32 and (half == values).all():
            tensor.CopyFrom(numpy_helper.from_array(half, f"{name}_half"))
            model.graph.node.insert(0, helper.make_node("Cast", [f"{name}_half"], [name], to=TensorProto.FLOAT))
    return model


def packed(content):
    """Bytes as a .gzip file has them, which the page unpacks, however a server sends them."""
    return gzip.compress(content, mtime=0)


BLIP, CLIP = ("pixels", "ids", "mask"), ("pixels", "ids")


def answer_of(explainer, picture, example):
    """Map, score and the map's nine scores, as Python computes them."""
    (given,), (score,) = explainer.explain(picture, [example.prompt])
    scale = len(given) / example.size[0]
    row = score_maps([(given / given.max()).numpy()], [(example.boxes[0] * scale).tolist()], protocol="native",
                     delta=2).iloc[0]
    return {"map": [[float(f"{float(value):.7g}") for value in line] for line in given], "value": float(score),
            "scores": {name: float(row[name]) for name in SCORES}}


def scene_of(explainers, examples):
    """A picture with some of its phrases, each with its box as shares of the picture and the answers of the models."""
    picture, size = open_image(examples[0].image), examples[0].size[0]
    asked = [{"text": example.prompt, "box": (example.boxes[0] / size).tolist(),
              "answers": {name: answer_of(one, picture, example) for name, one in explainers.items()}}
             for example in examples]
    file = BytesIO()
    picture.save(file, "PNG", optimize=True)
    return {"picture": "data:image/png;base64," + base64.b64encode(file.getvalue()).decode(), "asked": asked}


def scenes_of(explainers, n=N_SCENES):
    """`n` pictures of the miniworld's test split, evenly spread, each with up to five distinct phrases of one box."""
    data, found = load_dataset("miniworld", split="test"), []
    for image in data.images()[::len(data.images()) // n][:n]:
        each = {one.prompt: one for one in data.read_image(image)[0] if len(one.boxes) == 1}
        found.append(scene_of(explainers, list(each.values())[:5]))
    return found


def bring_runtime(folder):
    """onnxruntime-web from npm, refused where its checksum is another."""
    package, version, integrity = RUNTIME
    with tempfile.TemporaryDirectory() as place:
        command = ["npm", "pack", f"{package}@{version}", "--silent"]
        subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
        file, = Path(place).glob("*.tgz")
        if base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode() != integrity:
            raise ValueError(f"{package}@{version}: expected the file with the SHA-512 {integrity}, got another")
        with tarfile.open(file) as archive:
            script, program = (archive.extractfile(f"package/dist/{name}").read() for name in RUNTIME_FILES)
            (folder / "ort.mjs").write_bytes(script)
            (folder / "ort.wasm.gzip").write_bytes(packed(program))


def main():
    blip, clip = load_model("blip-base"), load_model("clip-rn50x16-gscorecam")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    first = next(iter(load_dataset("miniworld", split="test")))
    example, tokenizer = (open_image(first.image), first.prompt), blip.model.tokenizer
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    export_model(lambda one, *inputs: explained(one.model, *inputs), blip, inputs_of(blip, *example),
                 (BLIP, ("maps", "logits")), FOLDER / "blip-mini.onnx.gzip")
    export_model(scored, clip, clip_inputs(clip, *example), (CLIP, ("map", "logit")), FOLDER / "clip-rn-mini.onnx.gzip")
    models = {
        "blip-mini": {"method": "GradCAM", "value": "Matching probability", "vocabulary": vocabulary, "length": LENGTH,
                      "block": blip.block, "tokens": blip.tokens, "blocks": blip.config.text_depth,
                      "grid": blip.config.grid[0], "signs": SIGNS.pattern, "first": tokenizer.enc_token_id,
                      "last": tokenizer.sep_token_id, "unknown": tokenizer.unk_token_id},
        "clip-rn-mini": {"method": "gScoreCAM", "value": "Logit", "vocabulary": clip.clip.tokenize.words,
                         "length": clip.clip.tokenize.length, "grid": clip.clip.grid[0],
                         "first": clip.clip.tokenize.start, "last": clip.clip.tokenize.end, "unknown": 1}}
    blip.model.double()  # in float32 its derivatives carry rounding errors of up to 1.3e-5 of a map's maximum
    facts = {"scenes": scenes_of({"blip-mini": blip, "clip-rn-mini": clip}), "models": models,
             "size": blip.config.image_size, "mean": MEAN, "std": STD}
    scores = f"(() => {{{page_part('map_scores.js')}window.qgcamScores = scores;}})();"
    text = f"window.qgcamFacts = {json.dumps(facts)};\n{scores}\n"
    (FOLDER / "facts.js").write_text(text, encoding="utf-8")
    bring_runtime(FOLDER)
    print(f"{FOLDER}: {sum(file.stat().st_size for file in FOLDER.iterdir()) / 1e6:.1f} MB. Now: make docs")


if __name__ == "__main__":
    main()
