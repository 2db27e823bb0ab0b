"""Honest boxes, choices and scores are silent; each mistake made with them is one warning that says what it may be."""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from qgcam_lib.boxes import xywh_to_xyxy
from qgcam_lib.checks import (
    ACROSS,
    ScoreKind,
    box_findings,
    kind_findings,
    peak_findings,
    peaks_of,
    score_findings,
    warn_of,
    z_by_groups,
)
from qgcam_lib.data.probes.groups import RelationGroup
from qgcam_lib.data.referring.expressions import Expression
from qgcam_lib.errors import SuspiciousInput
from qgcam_lib.probes.own_scores import PAIR_COLUMNS, score_files
from qgcam_lib.referring.run import score_file

REAL = Path(__file__).parents[2] / "shared" / "realdata"


def told(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in seen if one.category is SuspiciousInput]


# --- boxes -----------------------------------------------------------------------------------------------------------


def drawn(seed, n, height, width, spread=0.5, border=0.3):
    """n boxes as annotators draw them, whole pixels, some cut by all borders alike; sizes vary by a quarter."""
    rng = np.random.default_rng(seed)
    sizes = np.maximum(32, np.array([height, width]) * rng.uniform(0.8, 1, (n, 1))).astype(int)
    extent = rng.uniform(0.1, 0.1 + spread, (n, 2))
    low = rng.uniform(-border * extent, 1 - extent + border * extent)
    shares = np.clip(np.concatenate([low, low + extent], axis=1), 0, 1)
    boxes = np.round(shares * sizes[:, [1, 0, 1, 0]])
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 2)
    return boxes, np.maximum(sizes, boxes[:, [3, 2]].astype(int))


def xywh(boxes):
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


MISTAKES = {
    "sizes ten times too large": ("10% of the sides", lambda b, s: (b, s * 10)),
    "half of the size": ("50% of the sides", lambda b, s: (b / 2, s)),
    "ten times too small": ("extend beyond", lambda b, s: (b, s // 10)),
    "xywh as xyxy": ("fit as x, y, width, height", lambda b, s: (xywh(b), s)),
    "xyxy as xywh": ("fit as corners", lambda b, s: (xywh_to_xyxy(b), s)),
    "rows first": ("extend beyond", lambda b, s: (b[:, [1, 3, 0, 2]], s)),
    "thousandths": ("extend beyond", lambda b, s: (b / s[:, [1, 0, 1, 0]] * 1000, s)),
    "turned sizes": ("sizes are (height, width)", lambda b, s: (b, s[:, ::-1])),
}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(10, 400), st.integers(32, 900), st.integers(32, 900), st.floats(0.1, 0.8),
       st.sampled_from([0.0, 0.1, 0.3, 0.8]))
def test_honest_boxes_are_silent(seed, n, height, width, spread, border):
    boxes, sizes = drawn(seed, n, height, width, spread, border)
    assert box_findings(boxes, sizes) == []
    assert box_findings(boxes * 0.99 + 0.1, sizes) == []  # not whole


CORNERS = {"text lines": (50, 300, 250, 20), "small things": (300, 200, 20, 20), "faces": (200, 150, 100, 80),
           "one corner": (20, 20, 150, 150)}


@pytest.mark.parametrize("name", CORNERS)
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([(480, 640), (10_000, 10_000)]))
def test_an_honest_set_that_lies_in_the_upper_left_is_silent(name, seed, size):
    rng, (x, y, width, height) = np.random.default_rng(seed), CORNERS[name]
    low = rng.uniform(0, [x, y], (300, 2))
    boxes = np.concatenate([low, low + rng.uniform(5, [width, height], (300, 2))], axis=1)
    assert box_findings(boxes, np.tile(size, (300, 1))) == [] == box_findings(np.round(boxes), np.tile(size, (300, 1)))
    assert box_findings(np.tile(boxes[:1], (300, 1)), np.tile(size, (300, 1))) == []


@pytest.mark.skipif(not REAL.is_dir(), reason="no real annotations (../shared/realdata)")
@pytest.mark.parametrize("name", ["coco/instances_val2014_100.json", "tricd/TRICD_grounding_val.json"])
def test_real_annotations_are_silent_and_their_mistakes_are_named(name):
    data = json.loads((REAL / name).read_text())
    size = {image["id"]: (image["height"], image["width"]) for image in data["images"]}
    pictures = [one["image_id"] for one in data["annotations"]]
    boxes, sizes = xywh_to_xyxy([one["bbox"] for one in data["annotations"]]), np.array([size[id] for id in pictures])
    assert box_findings(boxes, sizes, pictures) == []
    for said, made in MISTAKES.values():
        [found] = box_findings(*made(boxes, sizes), pictures)
        assert said in found or ("pixel" in found and "sides" in said), found
    if name.startswith("coco"):  # TRICD's are 44 pictures
        for side in (224, 336, 384):
            [found] = box_findings(boxes / sizes[:, [1, 0, 1, 0]] * side, sizes, pictures)
            assert f"end at pixel {side}," in found
    with pytest.raises(ValueError, match="100% of the boxes have all four numbers between 0 and 1"):
        box_findings(boxes / sizes[:, [1, 0, 1, 0]], sizes, pictures)


def test_what_is_no_number_and_few_boxes_are_left_alone():
    boxes, sizes = drawn(1, 20, 100, 100)
    boxes[3], boxes[4, 0], boxes[5] = np.nan, np.inf, 2.0**31
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert box_findings(boxes, sizes) == [] == box_findings(np.zeros((0, 4)), np.zeros((0, 2)))
    assert box_findings([[0, 0, 3, 3], [1, 1, 4, 5]], [(480, 640)] * 2) == [] == box_findings([[0, 0, 1, 1]], [(8, 8)])
    with pytest.raises(ValueError, match="between 0 and 1"):
        box_findings([[0.1, 0.2, 0.5, 0.9]], [(480, 640)])
    assert len(box_findings([[0, 0, 1, 1]], [(480, 640)])) == 1  # may be a pixel


# --- choices ---------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 60))
def test_z_is_that_of_a_t_test_of_group_sums(seed, n):
    """Groups of one: scipy's one-sample t with the variance divided by n."""
    values = np.random.default_rng(seed).normal(0.3, 1, n)
    expected = stats.ttest_1samp(values, 0).statistic * np.sqrt(n / (n - 1))
    assert np.isclose(z_by_groups(values, np.arange(n)), expected)
    assert np.isclose(z_by_groups(np.repeat(values, 4), np.repeat(np.arange(n), 4)), expected)


@pytest.mark.skipif(not REAL.is_dir(), reason="no real annotations (../shared/realdata)")
def test_peaks_of_maps_on_real_boxes():
    data = json.loads((REAL / "coco" / "instances_val2014_100.json").read_text())
    size = {image["id"]: (image["height"], image["width"]) for image in data["images"]}
    some = np.random.default_rng(0).permutation(data["annotations"])[:300]
    boxes, sizes = xywh_to_xyxy([one["bbox"] for one in some]), np.array([size[one["image_id"]] for one in some])
    y, x = np.mgrid[:24, :24] + 0.5
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2 / sizes[:, ::-1] * 24
    centre += np.random.default_rng(1).normal(0, 2.5, centre.shape)
    maps = np.exp(-((x - centre[:, :1, None]) ** 2 + (y - centre[:, 1:, None]) ** 2) / 30)

    def said(given):
        return peak_findings(peaks_of(given), boxes[:, None], sizes, [str(one["image_id"]) for one in some])

    assert said(maps) == [] == said(np.random.default_rng(0).random((300, 24, 24))) == said(np.ones((300, 24, 24)))
    for word, wrong in {"mirrored": maps[:, :, ::-1], "upside down": maps[:, ::-1],
                        "transposed": maps.transpose(0, 2, 1),
                        "back by one": np.roll(maps, 1, axis=0), "on by one": np.roll(maps, -1, axis=0),
                        "lowest value": -maps}.items():
        [found] = said(wrong)
        assert word in found, (word, found)


# --- scores ----------------------------------------------------------------------------------------------------------

N = 60
GROUPS = [RelationGroup(f"g{k}", f"{k}.png", "a man on a horse", "a man under a horse", "a dog on a horse",
                        "man", "dog", (f"p{k}.png",), (f"n{k}.png",)) for k in range(N)]
TRUE = {"a man on a horse": 2.0, "a man under a horse": 0.0, "a dog on a horse": 0.0, "A photo of man.": 1.0,
        "A photo of dog.": 0.0}


def probe_rows(seed=0, lift=1.5, prompts=tuple(TRUE)):
    """Scores of a model that is right more often than not, picture by picture."""
    rng = np.random.default_rng(seed)
    pictures = [name for k in range(N) for name in (f"{k}.png", f"p{k}.png", f"n{k}.png")]
    rows = [(image, prompt, lift * TRUE[prompt] * (1 if image[0] != "n" else -1) + rng.normal())
            for image in pictures for prompt in prompts]
    return pd.DataFrame(rows, columns=["image", "prompt", "score"])


def pairs(seed=0, lift=1.0):
    values = np.random.default_rng(seed).normal(size=(N, 4)) + lift * np.array([1, 0, 0, 1])
    return pd.DataFrame(3 * values, columns=list(PAIR_COLUMNS))


def expressions(seed=0):
    rng, found = np.random.default_rng(seed), []
    for k in range(N):
        boxes = tuple((float(20 * j), 0.0, 20.0 * j + 10, 10.0) for j in range(int(rng.integers(3, 6))))
        found.append(Expression(f"e{k}", f"{k // 3}.png", str(k // 3), "the cup", boxes[int(rng.integers(len(boxes)))],
                                boxes, "easy"))
    return found


def referring_rows(seed=0, lift=2.0):
    rng = np.random.default_rng(seed)
    rows = [(one.id, j, lift * (box == one.box) + rng.normal()) for one in expressions(seed)
            for j, box in enumerate(one.candidates)]
    return pd.DataFrame(rows, columns=["id", "candidate", "score"])


@given(st.integers(0, 999), st.sampled_from([0.0, 0.5, 2.0]))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_honest_scores_are_silent(seed, lift):
    with warnings.catch_warnings():
        warnings.simplefilter("error", SuspiciousInput)
        score_files(probe_rows(seed, lift), GROUPS)
        score_files(pairs(seed, lift))
        score_file(referring_rows(seed, lift), expressions(seed))


@pytest.mark.parametrize("kind", ["probability", "log-probability"])
def test_a_softmax_over_pictures_is_named_whatever_is_compared(kind):
    [text] = kind_findings(np.linspace(-5, -1, 40), ScoreKind(kind, ACROSS, guessed=True))
    assert ACROSS in text


def test_one_warning_for_all_findings_and_none_for_none():
    [said] = told(lambda: warn_of([*score_findings(np.ones(30)), "and this"]))
    assert "all choices are ties" in said and "and this" in said
    assert told(lambda: warn_of([])) == []
