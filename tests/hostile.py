"""Small worlds of every official format whose texts, names and files hold what an attacker would write."""

import json
import pickle
import re
from itertools import cycle
from pathlib import Path

from qgcam_lib import miniworld
from qgcam_lib.data.catalog import NAMES

NASTY = (
    "<script>window.hit=1;alert(1)</script>", '"><img src=x onerror="window.hit=2;alert(2)">', "$a_b$", "$5 # $6",
    "</script><script>window.hit=3</script>", "<!-- ", r"\input{secret} \frac{", "&amp;&lt;b&gt;",
    "(link)(javascript:alert(4))", "\u202eright to left\u202c \u05d0\u05d1", "\x1b[31mred\x1b[0m\x07", "| a | b |",
    "`tick` **bold** _i_", "'><svg onload='window.hit=5'>", "x" * 5000, "{{7*7}} ${7*7} %s", "=1+1", "犬 🐕 \u2028 end",
)
FILES = ('"><img src=x onerror=alert(1)>', "javascript:alert(1)", "$a_b$ $5 # $6", "a b'c&d;e?f#g%41",
         "<script>alert(1)<!--")


def _write(file: Path, value) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")


def _texts(value, keys, bad):
    """Append something nasty to every text (or list of texts) under one of the keys."""
    if isinstance(value, list):
        return [_texts(one, keys, bad) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: f"{one} {next(bad)}" if key in keys and isinstance(one, str) else _texts(one, keys, bad)
            for key, one in value.items()}


def _poison(file: Path, keys) -> None:
    _write(file, _texts(json.loads(file.read_text(encoding="utf-8")), keys, cycle(NASTY)))


def hostile_flickr30k(root: Path, pictures: int = 12) -> Path:
    # its pictures keep their names: the loader takes letters, digits, ".", "_" and "-" alone
    miniworld.make_flickr30k(root, pictures, 0, 0, natural=False, progress=False)
    bad, plain = cycle(NASTY), str.maketrans("", "", "[]\u2028")  # which the format itself needs
    for file in (root / "Sentences").iterdir():
        said = re.sub(r"(\[/EN#\d+/\w+ [^\]]*)\]", lambda found: f"{found[1]} {next(bad).translate(plain)}]",
                      file.read_text(encoding="utf-8"))
        file.write_text(said, encoding="utf-8", newline="")
    return root


def hostile_tricd(root: Path, groups: int = 12) -> Path:
    miniworld.ensure_tricd(root, groups, groups, progress=False)
    bad, names, said = cycle(NASTY), {}, {}
    for split in ("val", "test"):
        grounding, questions = (root / f"TRICD_{kind}_{split}.json" for kind in ("grounding", "VQA"))
        data = json.loads(grounding.read_text())
        for k, image in enumerate(data["images"]):
            if k % 4 == 0 and len(names) < 2 * len(FILES):
                new = f"{split} {FILES[len(names) % len(FILES)]}.png"
                (root / "images" / image["file_name"]).rename(root / "images" / new)
                names[image["file_name"]] = new
            image |= {"file_name": names.get(image["file_name"], image["file_name"]),
                      "source": NASTY[int(image["original_id"].split("_")[0]) % 6]}  # one a group
            end, added = len(image["caption"]), said.setdefault(image["caption"], f" {next(bad)}")
            image["caption"] += added
            image["phrases"] = {key: [[first, last + len(added) * (last == end)] for first, last in spans]
                                for key, spans in image["phrases"].items()}
        _write(grounding, data)
        data = json.loads(questions.read_text())
        for one in data["questions"]:
            one |= {"question": f"{one['question']} {next(bad)}",
                    "file_name": names.get(one["file_name"], one["file_name"])}
        _write(questions, data)
    return root


def hostile_coco(root: Path) -> Path:
    miniworld.ensure_coco(root, n_train=20, n_val=60, progress=False)
    for split in ("train", "val"):
        _poison(root / "annotations" / f"captions_{split}2014.json", {"caption"})
        file = root / "annotations" / f"instances_{split}2014.json"
        data = json.loads(file.read_text())
        for category, bad in zip(data["categories"], NASTY):
            category |= {"name": f"{category['name']} {bad}"}
        _write(file, data)
    return root


def hostile_ref_adv(root: Path) -> Path:
    miniworld.ensure_refcocog(root, n_train=4, n_val=2, n_test=10, progress=False)
    _poison(root / "adv_easy_hard_annotations.json", {"expression"})
    _poison(root / "refcocog_adv_annotations.json",
            {"raw_str", "most_confused_bbox_GT_desc", "shuffle", "shuffle_pos"})
    return root


def hostile_refer(root: Path) -> Path:
    miniworld.ensure_refer(root, n_test=6, n_train=2, n_val=2, progress=False)
    for file in root.rglob("refs(*).p"):
        refs = pickle.loads(file.read_bytes())
        file.write_bytes(pickle.dumps(_texts(refs, {"sent", "raw"}, cycle(NASTY)), protocol=2))
    return root


def hostile_world(root: Path) -> dict[str, str]:
    """All of them below one folder whose name is nasty too; name -> folder."""
    made = {"flickr30k-entities": hostile_flickr30k, "tricd": hostile_tricd, "coco": hostile_coco,
            "ref_adv": hostile_ref_adv, "refcoco+": hostile_refer}
    place = root / "data $5 # $6 <img src=x onerror=alert(6)>"
    return {"": str(place)} | {name: str(make(place / Path(NAMES.get(name, name)).name)) for name, make in made.items()}


GATHERS = {"q_groundcam_table1": "q_groundcam", "tricd_analysis": "tricd_detection"}  # need runs of the other


def hostile_runs(world: dict[str, str]) -> dict[str, list[dict]]:
    """notebook -> parameters of its runs on these worlds, as small as they can be."""
    few, one = {"n_bootstrap": 20}, {"models": ["clip-rn50"], "captions": world["coco"], "n_bootstrap": 20}
    ground = {"model": "blip-base", "limit": 12, "baselines": ["centre"]} | few
    return {
        "q_groundcam": [ground | {"dataset": world["flickr30k-entities"]},
                        ground | {"dataset": world["refcoco+"], "split": "testA"}],
        "q_groundcam_table1": [{"data": world[""], "models": ["blip-base"], "limit": 12} | few],
        "q_groundcam_audit": [{"dataset": world["flickr30k-entities"], "models": ["blip-base"], "limit": 8} | few],
        "tricd_detection": [{"dataset": world["tricd"], "models": ["mdetr-like"], "limit": 8, "n_subsets": 5} | few],
        "tricd_analysis": [{"dataset": world["tricd"], "n_subsets": 5} | few],
        "tricd_vqa": [{"dataset": world["tricd"], "models": ["clip-rn50x16-as-answerer"], "limit": 8} | few],
        "tricd_audit": [{"annotations": f"{world['tricd']}/TRICD_grounding_val.json",
                         "questions": f"{world['tricd']}/TRICD_VQA_val.json", "n_orders": 2, "n_resamples": 20}],
        "probe_background": [{"dataset": world["coco"], "scenes": [], "fillers": ["black"], "limit": 3,
                              "twin_limit": 3} | one],
        "ref_adv_audit": [{"dataset": world["ref_adv"]} | few],
        "ref_adv_evaluate": [{"dataset": world["ref_adv"], "models": ["itm-crops"]} | few],
    }
