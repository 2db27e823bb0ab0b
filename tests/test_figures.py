"""Every figure function, drawn with what runs bring: long names, many models, one model, nothing; and the check."""

import dataclasses
import itertools
import os
import types

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image
from speeds import some

from qgcam_lib.data.probes.groups import ContextGroup, RelationGroup, SwapPair
from qgcam_lib.data.records import GroundingExample
from qgcam_lib.errors import visible
from qgcam_lib.metrics.score import score_maps
from qgcam_lib.papers.probes.description import CATEGORIES, COMPARISONS, KINDS, PAIRS, context_names
from qgcam_lib.papers.probes.figures import (
    attention_figure,
    category_figure,
    choice_figure,
    feature_figure,
    feature_map,
    pair_figure,
    robustness_figure,
    score_matrix,
    step_figure,
)
from qgcam_lib.papers.probes.gallery import choose_groups, context_twins, pair_twins, relation_twins, twin_figure
from qgcam_lib.papers.q_groundcam.audit import EFFECTS, difference_text, movement_map, tornado
from qgcam_lib.papers.q_groundcam.figures import (
    correlation_figure,
    draw_peaks,
    model_looks,
    panels,
    size_figure,
    top_line,
    top_pixels,
)
from qgcam_lib.papers.q_groundcam.gallery import case_figure, part_figure
from qgcam_lib.papers.q_groundcam.runs import case_items
from qgcam_lib.papers.q_groundcam.splits import SHARES, TABLE1, with_domain
from qgcam_lib.papers.tricd.figures import box_map, boxes_per_phrase, calibration_figure, spread_figure, ties_figure
from qgcam_lib.papers.tricd.gallery import _place, alarm_gallery, choose_alarms, choose_questions, question_panel
from qgcam_lib.phrase_detection.analysis import false_alarms
from qgcam_lib.phrase_detection.audit import tie_effect
from qgcam_lib.phrase_detection.score import match_predictions
from qgcam_lib.phrase_detection.synthetic import BEHAVIOURS, coarse_scores, synthetic_predictions, synthetic_tricd
from qgcam_lib.report.figure_check import check_figure
from qgcam_lib.report.figures import (
    beside_figure,
    curves_figure,
    histogram_grid,
    interval_figure,
    label_points,
    training_curves,
)
from qgcam_lib.report.paper import printed_summary
from qgcam_lib.report.style import (
    BETTER,
    DASHES,
    GUIDE,
    PALETTE,
    WORSE,
    contrast,
    described,
    line_look,
    on_any_ground,
    point_look,
    titled,
    use_style,
    wrapped,
)
from qgcam_lib.statistics import METRICS


@pytest.fixture(autouse=True)
def one_style():
    use_style()
    yield
    plt.close("all")


def problems_of(figure):
    assert not [text.get_text() for text in figure.findobj(Text) if text.get_parse_math() and "$" in text.get_text()
                and "mathdefault" not in text.get_text()]
    assert "\x1b" not in figure.qgcam_alt + "".join(text.get_text() for text in figure.findobj(Text))
    found = check_figure(figure).to_dict("records")
    if SHOW:
        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split(" ")[0]
        figure.savefig(f"{SHOW}/{name}-{figure.number}.png", dpi=70)
    return found


SHOW = os.environ.get("FIGURES_TO", "")  # a folder: the figures are also kept there, to be looked at
LONG = ["albef-amc, fine-tuned with $a_b$, $5 # $6, $\\frac{, \x1b[31m and checkpoint weights of $HOME and $PATH",
        "_clip-rn50x16-gscorecam-with-300-channels, random weights, 犬, untrained",
        "an_extraordinarily_long_name_without_any_blank_that_nobody_would_break_by_hand_0123456789"]
MANY = [f"{name}-{kind}" for name in ("blip", "albef", "clip", "owl") for kind in ("base", "large", "mini")]
SETS = {"one": ["blip-base"], "few": ["blip-base", "centre guess", "random"], "many": MANY, "long": LONG, "none": []}
each_set = pytest.mark.parametrize("names", some(SETS, "long", "none"))
WHERE = "Flickr30K Entities, test, official weights, n = 14,481 phrases of 1,000 pictures, protocol paper, run 01234567"


# --- colours ---------------------------------------------------------------------------------------------------------

def test_every_colour_reaches_three_to_one_on_white_and_they_differ_in_grey():
    colours = np.array([to_rgb(name) for name in PALETTE])
    assert len(PALETTE) == 8 and contrast(colours, np.ones(3)).min() >= 3
    assert contrast(to_rgb(GUIDE), np.ones(3)) >= 3
    light = 116 * np.cbrt(1.05 / contrast(colours, np.ones(3)) - 0.05) - 16  # L* of CIE Lab
    assert min(np.diff(sorted(light[:5]))) > 9.5 and min(np.diff(sorted(light))) > 4
    assert plt.rcParams["axes.prop_cycle"].by_key()["color"] == list(PALETTE)


def test_contrast_is_the_one_of_wcag():
    assert contrast((0, 0, 0), (1, 1, 1)) == pytest.approx(21) and contrast((1, 1, 1), (1, 1, 1)) == 1
    assert contrast(to_rgb("#767676"), (1, 1, 1)) == pytest.approx(4.54, abs=0.005)  # the greyest text of WCAG AA
    assert contrast((1, 0, 0), (1, 1, 1)) == pytest.approx(4.0, abs=0.005)


def test_looks_do_not_repeat():
    lines = [(look["color"], str(look["linestyle"])) for look in map(line_look, range(40))]
    points = [tuple(point_look(k).values()) for k in range(64)]
    assert len(set(lines)) == 40 and len(set(points)) == 64 and len({str(dash) for dash in DASHES}) == 5
    assert [len(set(one)) for one in zip(*points[:8])] == [8, 8]  # eight models differ in colour and in marker


# --- the check finds planted faults ----------------------------------------------------------------------------------

def plain(alt="a line", **size):
    figure, ax = plt.subplots(figsize=(4, 3), **size)
    ax.plot([0, 1], [0, 1], color="black")
    return described(figure, alt), ax


def found(figure):
    return {row["problem"]: row["what"] for row in problems_of(figure)}


@pytest.mark.parametrize("layout", ["constrained", "none"])
def test_a_plain_figure_has_no_problem_and_stays_as_it_was(layout):
    figure, ax = plain(layout=layout)


    def state():
        return (figure.dpi, type(figure.get_layout_engine()), figure.canvas, ax.lines[0].get_antialiased(),
                [one.get_visible() for one in figure.findobj()])

    figure.canvas.draw()
    before = state()
    assert check_figure(figure).empty and state() == before


@pytest.mark.parametrize("plant", [
    lambda ax: ax.set_title("a title so long that it leaves this small canvas on the right hand side for sure"),
    lambda ax: ax.text(0.9, 0.5, "a text that starts near the right edge", transform=ax.transAxes),
    lambda ax: ax.text(0.9, 0.5, "clipped by its axis", transform=ax.transAxes, clip_on=True),
    lambda ax: ax.set_ylabel("a label of a vertical axis that is far longer than the axis"),
])
def test_it_finds_a_cut_text(plant):
    figure, ax = plain(layout="none")
    plant(ax)
    assert "cut text" in found(figure)


@pytest.mark.parametrize("plant", [
    lambda ax: ax.set_xticks([0, 0.05, 1], ["first", "second", "third"]),
    lambda ax: (ax.text(0.3, 0.6, "one text"), ax.text(0.32, 0.61, "another")),
    lambda ax: (ax.set_title("a title", y=0.9), ax.text(0.05, 0.9, "in the title's place", transform=ax.transAxes)),
    lambda ax: ax.set_yticks([0, 0.01], ["low", "lower"]),
])
def test_it_finds_overlapping_texts(plant):
    figure, ax = plain(layout="none")
    plant(ax)
    assert "overlapping texts" in found(figure)


@pytest.mark.parametrize("plant", [
    lambda ax: ax.axhline(0.5, color="0.8", label="pale"),
    lambda ax: ax.axhline(0.5, color="white", linewidth=3, label="pale"),
    lambda ax: ax.plot([0.2, 0.5], [0.5, 0.2], "o", color="#f2c14e", label="pale"),
    lambda ax: ax.scatter([0.2, 0.5], [0.5, 0.2], color=PALETTE[0], alpha=0.3, edgecolor="0.9", label="pale"),
    lambda ax: ax.bar([0.5], [0.5], color="#7fb285", label="pale"),
    lambda ax: ax.hlines([0.2], 0, 1, color="0.75", label="pale"),
    lambda ax: (ax.bar([0.5], [0.5], width=1, color=PALETTE[0]), ax.hlines([0.2], 0.1, 0.9, color="0.3", label="pale")),
    lambda ax: (ax.imshow(np.full((4, 4, 3), 130, np.uint8)), ax.plot([0, 3], [0, 3], color="0.8", label="pale")),
])
def test_it_finds_a_pale_mark(plant):
    figure, ax = plain()
    plant(ax)
    assert "“pale”" in found(figure).get("pale mark", "") or found(figure).get("pale mark") == "Rectangle"


def test_it_finds_pale_texts_and_figures_without_words():
    figure, ax = plain(alt="")
    ax.text(0.2, 0.8, "grey words", color="0.6")
    assert found(figure) == {"pale text": "grey words", "no alternative text": "figure"}


def test_it_lets_pass_what_can_be_seen():
    figure, ax = plain()
    ax.imshow(np.random.default_rng(0).integers(0, 255, (6, 6, 3)).astype(np.uint8), extent=(0, 1, 0, 1))
    ax.plot([0, 1], [0.5, 0.5], color="white", linewidth=2, path_effects=on_any_ground(4))  # seen by its edge
    ax.fill_between([0, 1], 0.1, 0.2, alpha=0.1, linewidth=0)  # a ground
    ax.grid(alpha=0.2)  # decoration
    ax.plot([], [], color="0.9")  # draws nothing
    ax.plot([5, 6], [5, 5], color="0.9")  # outside
    ax.set(xlim=(0, 1), ylim=(0, 1))
    assert problems_of(figure) == []


def test_it_does_not_judge_what_is_not_drawn():
    figure, axes = plt.subplots(1, 2, figsize=(5, 2.5))
    described(figure, "two axes")
    axes[0].set_axis_off()
    axes[1].set_visible(False)
    axes[1].plot([0, 1], [0, 1], color="0.95")
    axes[1].text(0, 0, "hidden", color="0.95")
    assert problems_of(figure) == []


# --- figures of report -----------------------------------------------------------------------------------------------

def summary_of(models, metrics=("iou_soft", "wdp_soft", "pg_hit")):
    rng = np.random.default_rng(len(models))
    rows = [{"model": model, "metric": metric, "value": v, "ci_low": v - 0.05, "ci_high": v + 0.05}
            for model in models for metric in metrics for v in [rng.uniform(0, 1)]]
    return pd.DataFrame(rows, columns=["model", "metric", "value", "ci_low", "ci_high"])


@each_set
def test_intervals(names):
    figure = interval_figure(summary_of(SETS[names], tuple(METRICS)[:9]), chance=0.5, title=f"Scores ({WHERE})")
    assert problems_of(figure) == []
    parts = summary_of(SETS[names]).rename(columns={"metric": "part"})
    rows = pd.concat([parts.assign(metric=m) for m in ("AP", "recall@1", "group recall@1 of a long name")])
    shown = interval_figure(rows, y="part", panels="metric", scale=100, title=WHERE)
    assert problems_of(shown) == []
    assert not SETS[names] or "Highest" in figure.qgcam_alt and WHERE in shown.qgcam_alt


def test_a_point_without_an_interval_is_hollow_and_a_line_says_how_many_it_rests_on():
    rows = pd.DataFrame({"model": [*"aabb"], "metric": ["x", "y"] * 2, "value": [0.5, 0.6, 0.4, np.nan],
                         "ci_low": [0.4, np.nan, 0.4, 0.1], "ci_high": [0.6, np.nan, 0.4, 0.9],
                         "n_groups": [5, 1, 7, 3]})
    figure = interval_figure(rows, counted="pictures", title="few")
    hollow = [line.get_xdata().tolist() for line in figure.axes[0].lines if line.get_markerfacecolor() == "none"]
    assert hollow == [[0.6], [0.4]]  # no interval, and one of width 0; an undefined value is not drawn
    assert [one.get_text() for one in figure.axes[0].get_yticklabels()] == ["x, 5–7 pictures", "y, 1 picture"]
    assert any("hollow" in one.get_text() for one in figure.legends[0].get_texts()) and problems_of(figure) == []
    plain = interval_figure(rows.iloc[:1], title="sure")
    assert len(plain.legends[0].get_texts()) == 1 and plain.axes[0].get_yticklabels()[0].get_text() == "x"


@pytest.mark.parametrize("seed", range(8))
def test_labels_of_close_points_do_not_cover_each_other(seed):
    figure, ax = plt.subplots(figsize=(3, 3))
    x, y = np.random.default_rng(seed).uniform(0, 25, (2, 6))
    ax.plot(x, y, marker="o", markersize=4, color="black")
    ax.set(xlim=(-40, 70), ylim=(-40, 70))
    label_points(ax, x, y, [f"{k / 5:g}" for k in range(len(x))])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts if text.get_text()]
    assert len(boxes) == 6 and all(ax.bbox.contains(*corner) for box in boxes for corner in box.corners())
    assert not any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])


@each_set
def test_values_beside(names):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame([{"model": m, "subset": s, "theirs": rng.uniform(0, 1), "ours": rng.uniform(0, 1)}
                         for m in SETS[names] for s in ("all", "coco_obj")],
                        columns=["model", "subset", "theirs", "ours"])
    figure = beside_figure(rows, {"theirs": "AP after group recall", "ours": "AP of the predictions"}, scale=100,
                           label="model,subset", names={"coco_obj": "COCO objects"}, xlabel="AP, %", title=WHERE)
    assert problems_of(figure) == []
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert len(labels) == len(rows) and not any("coco_obj" in label for label in labels)


@each_set
def test_curves(names):
    x = np.linspace(0, 1, 30)
    curves = {name: pd.DataFrame({"r": x, "p": 1 - x ** (k + 1)}) for k, name in enumerate(SETS[names])}
    curves |= {"silent": pd.DataFrame({"r": [], "p": []})}
    figure = curves_figure(curves, x="r", y="p", xlabel="recall", ylabel="precision", title=WHERE, diagonal=True)
    assert problems_of(figure) == [] and "recall" in figure.qgcam_alt


@each_set
def test_histograms(names):
    rng = np.random.default_rng(0)
    sets = {name: pd.DataFrame({"iou": rng.beta(2, 5, 90), "ratio": [*rng.beta(5, 2, 80), *[np.nan] * 10]})
            for name in SETS[names][:5]}
    figure = histogram_grid({"": sets}, ("iou", "ratio"), names={"iou": "IoU soft ↑"}, title=WHERE)
    assert problems_of(figure) == []
    columns = dict.fromkeys(SETS[names][:6], sets) | {"other": "not run: no weights of this name lie in data/raw"}
    figure = histogram_grid(columns, ("iou", "ratio"), title=WHERE)
    assert problems_of(figure) == []
    assert len(figure.legends) == bool(sets) and not any(ax.get_legend() for ax in figure.axes)


@pytest.mark.parametrize("rows", some([1, 3, 60], 60))
def test_trainings(rows):
    rng = np.random.default_rng(0)
    log = pd.DataFrame({"step": 20 * np.arange(1, rows + 1), "itm": 0.7 - np.linspace(0, 0.4, rows),
                        "peak": rng.uniform(0, 1, rows), "mlm": 6 + rng.normal(0, 1, rows),
                        "amc": rng.uniform(0, 1, rows)})
    names = {"itm": "matching loss, nats", "peak": "peak inside the box, share of training maps",
             "mlm": "masked words, nats", "amc": "L_max, share of the range of a map and a long explanation of it"}
    figure = training_curves(log, names, f"Training ({WHERE})", chance={"itm": np.log(2)},
                             validation={"peak": {"value": 0.4, "ci_low": 0.3, "ci_high": 0.5}})
    assert problems_of(figure) == []
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "validation, end of training" in labels and "running mean of 5 rows" in labels
    assert all(ax.get_ylabel() and ax.get_xlabel() == "training step" for ax in figure.axes if ax.get_visible())
    assert "validation 0.4" in figure.qgcam_alt
    with pytest.raises(ValueError, match="loss"):
        training_curves(log, {"loss": "loss"})


def test_a_dollar_is_a_dollar():
    name = "costs $5 and $6, $\\frac"
    figures = [interval_figure(summary_of([name]), title=name),
               curves_figure({name: pd.DataFrame({"x": [0, 1], "y": [0, 1]})}, x="x", y="y", xlabel=name, ylabel=name)]
    for figure, text in itertools.product(figures, (name, "$5 and $6")):
        assert any(text in one.get_text() and not one.get_parse_math() for one in figure.findobj(plt.Text))
        figure.canvas.draw()  # would raise for a formula that cannot be read


def test_long_texts_are_cut_where_they_must():
    assert wrapped("one two three four", 8, 2) == "one two\nthree …" and wrapped("one two", 8, 2) == "one two"
    assert wrapped("x" * 50, 20, 1) == "x" * 18 + " …" and wrapped("", 8) == ""


def test_titles_are_broken_to_the_width_of_their_figure():
    figure = titled(plain()[0], WHERE, alt="what is seen")
    assert figure.get_suptitle().count("\n") >= 1 and figure.qgcam_alt == f"{WHERE}. what is seen"
    assert problems_of(figure) == []


# --- Q-GroundCAM's figures: the audit --------------------------------------------------------------------------------

def movements(metrics=tuple(SHARES), n_choices=12, moved=0.8, seed=0):
    rng = np.random.default_rng(seed)
    rows = [{"question": q, "answer": "an answer of some length, then min-max", "base": "-", "metric": m,
             "base_value": 0.4, "difference": d, "value": 0.4 + d, "ci_low": d - w, "ci_high": d + w}
            for q in [f"choice {k}" for k in range(n_choices)] for m in metrics
            for d in [rng.choice([rng.normal(0, 0.04), -0.0002, 0.0], p=[moved - 0.1, 0.1, 1 - moved])]
            for w in [rng.uniform(0, 0.03)]]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("size", some([(tuple(SHARES), 14, 0.8), (("iou_soft",), 1, 1.0), (("pg_hit",), 5, 0.1)],
                                      (("pg_hit",), 5, 0.1)))
def test_movements_and_tornado(size):
    rows = movements(*size)
    for figure in (movement_map(rows, title=f"blip-base on {WHERE}"), tornado(rows, title=f"blip-base on {WHERE}")):
        assert problems_of(figure) == [] and "intervals leave out zero" in figure.qgcam_alt


def test_movements_are_coloured_by_effect_and_dotted_by_their_interval():
    rows = movements(("iou_soft", "wdp_soft"), 1).assign(difference=0.02, ci_low=0.01, ci_high=0.03)  # up and clear
    rows.loc[rows["metric"] == "wdp_soft", ["ci_low", "ci_high"]] = -0.01, 0.05  # up, which is worse, and not clear
    ax = movement_map(rows).axes[0]
    better, worse = ax.collections[0].get_array().ravel()
    assert better == pytest.approx(0.02) and worse == pytest.approx(-0.02)
    assert len(ax.lines) == 1 and ax.lines[0].get_xydata().ravel() == pytest.approx([0.4, -0.3])
    assert contrast(EFFECTS(1.0)[:3], to_rgb(BETTER)) == 1 and contrast(EFFECTS(0.0)[:3], to_rgb(WORSE)) == 1
    bars = {ax.get_title(loc="left").split(",")[0]: to_rgb(ax.patches[0].get_facecolor()) for ax in tornado(rows).axes}
    assert bars == {"IoU soft ↑": to_rgb(BETTER), "WDP soft ↓": to_rgb(WORSE)}


def test_a_small_difference_has_no_sign():
    texts = [text.get_text() for text in movement_map(movements()).axes[0].texts]
    assert "≈0" in texts and "" in texts and not {"-.000", "+.000", "-0.000"} & set(texts)
    assert difference_text(np.nan) == "–" and difference_text(-1.5) == "-1.500"


# --- Q-GroundCAM's figures: maps, settings, sizes --------------------------------------------------------------------

@pytest.fixture
def scene(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3)).astype(np.uint8)  # no ground colour to rely on
    Image.fromarray(pixels).save(tmp_path / "scene.png")

    def example(prompt="a red ball", size=(60, 80), id="a"):
        Image.fromarray(np.resize(pixels, (*size, 3))).save(tmp_path / f"{id}.png")
        return GroundingExample(id, tmp_path / f"{id}.png", prompt, np.array([[10, 20, 40, 45]]), "g", size)

    return example


def hills(size=(60, 80)):
    y, x = np.mgrid[:size[0], :size[1]]
    sharp = np.exp(-((x - 20) ** 2 + (y - 30) ** 2) / 90).astype(np.float32)
    spots = np.random.default_rng(1).random(size).astype(np.float32)
    return {"sharp": sharp, "cut": np.minimum(np.roll(sharp, 18, 1), 0.7), "uniform": np.ones(size, np.float32),
            "noise": np.minimum(spots, 0.99), "nothing": np.zeros(size, np.float32)}


@pytest.mark.parametrize("name", [*hills()])
def test_the_marks_of_a_map_agree_with_its_pointing_game(scene, name):
    heat, example = hills()[name], scene()
    scores = score_maps([heat], [example.boxes], image_sizes=example.size, protocol="native", delta=5).iloc[0]
    inside, outside = top_pixels(heat, example.boxes, example.size)
    assert inside.sum() / (inside | outside).sum() == pytest.approx(scores["pg_hit"])
    ax = plt.subplots()[1]
    draw_peaks(ax, heat, example.boxes, example.size, delta=5)
    rings, crosses = ([xy for line in ax.lines if line.get_marker() == marker and line.get_markersize() > 4
                       for xy in line.get_xydata()] for marker in "ox")
    styles = [str(one.get_linestyle()[0][1]) for one in ax.collections]  # None: solid
    assert bool(rings or "None" in styles) == (scores["pg_hit"] > 0)
    assert bool(crosses or any(style != "None" for style in styles)) == (scores["pg_hit"] < 1)


def test_a_plateau_is_outlined_where_it_is(scene):
    heat, example = np.zeros((60, 80), np.float32), scene()
    heat[22:30, 30:50] = 1  # 10 of 20 columns in the box, which ends at 40
    ax = plt.subplots()[1]
    draw_peaks(ax, heat, example.boxes, example.size)
    inside, outside = (np.concatenate([path.vertices for path in one.get_paths()]) for one in ax.collections)
    assert not any(len(line.get_xydata()) for line in ax.lines)
    assert np.allclose([*inside.min(0), *inside.max(0)], [29.5, 21.5, 39.5, 29.5], atol=0.51)
    assert np.allclose([*outside.min(0), *outside.max(0)], [39.5, 21.5, 49.5, 29.5], atol=0.51)
    scored = score_maps([heat], [example.boxes], image_sizes=example.size, protocol="native").iloc[0]
    assert scored["pg_hit"] == 0.5 and top_line(heat, example) == "highest: 80 of 160 pixels in a box"


@pytest.mark.parametrize("sizes", some([[(60, 80)], [(60, 80), (120, 60), (60, 200)]], [(60, 80)]))
def test_panels(scene, sizes):
    items = []
    for k, (size, prompt) in enumerate(itertools.product(sizes, ["a ball", f"two people who {LONG[0]} " * 2])):
        example, (name, heat) = scene(prompt, size, str(k)), [*hills(size).items()][k % 5]
        scores = score_maps([heat], [example.boxes], image_sizes=size, protocol="native").iloc[0]
        items.append((f"{name}, nearest to the median", example, heat, {**scores, "box_share": 0.1234}))
    figure = panels(items, f"blip-base on {WHERE}")
    assert problems_of(figure) == [] and "PG hit" in figure.qgcam_alt
    heights = {round(ax.bbox.height) for row in range(len(items)) for ax in figure.axes[4 * row + 3:4 * row + 4]}
    assert len(heights) == 1  # all rows are equally high
    words = [text.get_text() for text in figure.findobj(plt.Text)]
    assert any("box 0.12" in one for one in words) and "lowest value of the map" in words
    assert "many highest pixels, outside" in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("models", some([["blip-base"], MANY[:5], LONG[:2]], LONG[:2]))
def test_cases_and_parts(scene, models):
    cases = []
    for k, prompt in enumerate(["a ball", f"two people who {LONG[0]} " * 2, "a third of three"]):
        example, maps = scene(prompt, [(60, 80), (120, 80), (60, 150)][k], str(k)), {}
        for model, heat in zip(models, hills(example.size).values()):
            maps[model] = heat, score_maps([heat], [example.boxes], image_sizes=example.size, protocol="native").iloc[0]
        cases.append(("uncertain, 3 models", example, maps))
    figure = case_figure(cases, f"Gallery ({WHERE})")
    assert problems_of(figure) == [] and visible(models[0]) in figure.qgcam_alt
    parts = part_figure({"triplets": cases[0][1], "objects": cases[1][1]}, title=f"Figure 4 ({WHERE})")
    assert problems_of(parts) == []


@pytest.mark.parametrize("models", some(["printed", "one", "long", "none"], "long"))
def test_settings_and_sizes(models):
    printed = with_domain(printed_summary(TABLE1))
    names = {"printed": list(dict.fromkeys(printed["model"])), **SETS}[models]
    old = dict.fromkeys(printed["model"])
    rows = printed[printed["model"].isin([*old][:len(names)])].replace({"model": dict(zip(old, names))})
    figure = correlation_figure({"as printed (24 settings)": rows, f"ours ({WHERE})": printed.head(0)}, title=WHERE)
    assert problems_of(figure) == []
    sizes = pd.DataFrame({"model": names, "parameters_million": [223, 230, 446, np.nan][:len(names)],
                          "pretraining_pairs_million": [14, 129, np.nan, 400][:len(names)]})
    assert problems_of(size_figure(rows, sizes, title=WHERE)) == []


def test_models_that_are_not_in_the_paper_look_different():
    looks = model_looks(["mine", "yours", "blip-base"])
    assert len({tuple(look.values()) for look in looks.values()}) == 3 and looks["blip-base"] == point_look(0)


# --- TRICD's figures -------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def made():
    return synthetic_tricd(40, seed=1)


@pytest.fixture(scope="module")
def detected(made):
    return {name: synthetic_predictions(made, seed=2, **how) for name, how in BEHAVIOURS.items()}


def test_boxes_of_a_set(made):
    for data in (made, replace_pairs(made, 1), replace_pairs(made, 0)):
        assert problems_of(box_map(data, title=WHERE)) == []
        assert problems_of(boxes_per_phrase(data, title=WHERE)) == []


def replace_pairs(made, n_groups):
    groups = list(dict.fromkeys(pair.group for pair in made.pairs))[:n_groups]
    return dataclasses.replace(made, pairs=tuple(pair for pair in made.pairs if pair.group in groups))


@each_set
def test_deviations_calibration_and_ties(names):
    rng = np.random.default_rng(0)
    subsets = ("all", "coco_obj", "coco_rel", "winoground")
    rows = pd.DataFrame([(name, subset, *rng.uniform(0.2, 3, 2)) for name in SETS[names] for subset in subsets],
                        columns=["model", "subset", "sd_90", "bootstrap_sd"])
    figure = spread_figure(rows, label="model,subset", title=WHERE)
    assert problems_of(figure) == []
    assert not any("coco_" in text.get_text() for text in figure.axes[0].get_yticklabels())
    auc = summary_of(SETS[names], ("auc_within", "auc_across")).assign(subset="all")
    assert problems_of(calibration_figure(auc, title=WHERE)) == []


def test_ties_have_one_look_a_rule_and_one_legend(made, detected):
    ties = pd.concat([tie_effect(made, coarse_scores(detected["graded"], d), n_orders=3).assign(step=d)
                      for d in (3, 1)])
    for figure in (ties_figure(ties, title=WHERE), ties_figure(ties[ties["metric"] == "AP"], title=WHERE)):
        assert problems_of(figure) == [] and len(figure.legends) == 1 and not any(ax.get_legend() for ax in figure.axes)
        looks = {(line.get_label(), line.get_color()) for ax in figure.axes for line in ax.lines}
        assert len(looks) == len({label for label, _ in looks})


def test_alarm_galleries(made, detected):
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 255, (480, 640, 3)).astype(np.uint8))
    for name in ("graded", "talkative"):
        found = detected[name]
        chosen = choose_alarms(false_alarms(match_predictions(made, found)))
        for rows, source in ((chosen, lambda file: picture), (chosen[:1], lambda file: "nowhere"), (chosen[:0], None)):
            figure = alarm_gallery(made, source, found, rows[:3], title=f"{name} ({WHERE})", boxes=2)
            assert problems_of(figure) == [], name


def test_scores_of_boxes_that_share_their_corners_do_not_meet():
    box, taken = np.array([5.0, 5, 60, 40]), []
    for k in range(8):
        x, y = _place(box, taken, (20, 10), (100, 80), right=bool(k % 2))
        assert 0 <= x <= 80 and 0 <= y <= 70
    apart = np.abs(np.subtract.outer(np.array(taken), np.array(taken)).diagonal(axis1=1, axis2=3))
    assert all((apart[i, j] >= (20, 10)).any() for i in range(8) for j in range(i))


def test_a_long_caption_with_many_phrases(made):
    pair = made.pairs[0]
    words = "an old man in a red coat and a very long scarf carrying a guitar behind a woman with $5 and $6 in hand"
    spans = [((0, 26),), ((31, 48),), ((58, 66),), ((74, 81),)]
    phrases = tuple(dataclasses.replace(pair.phrases[0], id=k, spans=span, boxes=np.array([[5.0, 5, 600, 400]]))
                    for k, span in enumerate(spans))
    long = dataclasses.replace(pair, caption=" ".join([words] * 3), phrases=phrases)
    data = types.SimpleNamespace(pairs=[long])
    chosen = pd.DataFrame([{"image_id": pair.id, "rival_image_id": pair.id, "role": "misled", "text": words,
                            "alarm": 0.5, "rival_hit": np.nan}] * 2)
    found = {pair.id: {"scores": [0.9, 0.8, 0.7, 0.6], "boxes": [[5, 5, 600, 400]] * 4, "phrase_ids": [0, 1, 2, 3]}}
    figure = alarm_gallery(data, lambda name: "nowhere", found, chosen, title=WHERE)
    assert problems_of(figure) == []


@each_set
def test_question_panels(made, names):
    asked = pd.DataFrame([(p.id, p.file_name, f"is there {p.caption} and {LONG[0]}", p.positive, p.group)
                          for p in made.pairs], columns=["image_id", "file_name", "question", "answer", "group"])
    said = {name: dict.fromkeys(asked["image_id"], "yes, and here is why I think so: $") for name in SETS[names]}
    rows = choose_questions(asked, said, 4) if said else asked[:0]
    figure = question_panel(rows, lambda name: "nowhere", said, title=WHERE)
    assert problems_of(figure) == []


def test_a_gallery_is_the_same_after_it_was_saved(made, detected, tmp_path):
    chosen = choose_alarms(false_alarms(match_predictions(made, detected["graded"])))
    figure = alarm_gallery(made, lambda name: "nowhere", detected["graded"], chosen, title=WHERE)
    before = [ax.get_position().extents.tolist() for ax in figure.axes]
    figure.savefig(tmp_path / "a.png", bbox_inches="tight")
    figure.canvas.draw()
    assert [ax.get_position().extents.tolist() for ax in figure.axes] == before and check_figure(figure).empty


def test_titles_of_axes_are_judged_where_they_stand():
    figure, axes = plt.subplots(2, 1, figsize=(3, 5))
    described(figure, "two black pictures")
    for ax in axes:
        ax.imshow(np.zeros((4, 6)), cmap="gray")
        ax.set(xticks=[], yticks=[])
        ax.set_title("on white")
    assert problems_of(figure) == []
    axes[1].set_title("on black", y=0.5)
    assert found(figure) == {"pale text": "on black"}


def test_a_case_is_headed_by_its_role_and_the_value_of_its_rule():
    cases = pd.DataFrame({"role": ["graded"], "strength": [0.3456], "dataset": "d", "split": "s", "id": ["i"]})
    maps = {("d", "s", "i"): ("example", {})}
    assert case_items(cases, maps)[0][0] == "graded, rule's value 0.346" and case_items(cases, {}) == []
    assert case_items(cases, maps, "split")[0][0] == "s" and case_items(cases[:0], maps) == []
    assert case_items(cases.drop(columns="strength"), maps)[0][0] == "graded"


# --- the conceptual probes' figures ----------------------------------------------------------------------------------

def probe_summary(models, **columns):
    rng = np.random.default_rng(len(models))
    rows = pd.MultiIndex.from_product([models, *columns.values()], names=["model", *columns]).to_frame(index=False)
    value = rng.uniform(0.05, 0.95, len(rows))
    return rows.assign(value=value, ci_low=value - 0.05, ci_high=value + 0.05, n_groups=20)


@each_set
def test_choices_and_pairs(names):
    choices = probe_summary(SETS[names], comparison=[*COMPARISONS], metric=["correct", "confidence"])
    pairs = probe_summary(SETS[names], kind=[*KINDS], metric=[*PAIRS])
    for figure in (choice_figure(choices, title=WHERE), pair_figure(pairs, title=WHERE)):
        assert problems_of(figure) == []
        assert not SETS[names] or "Highest" in figure.qgcam_alt and WHERE in figure.qgcam_alt


@each_set
def test_categories_of_attributes(names):
    rows = probe_summary(SETS[names][:5], category=CATEGORIES, metric=["image_score"])
    assert problems_of(category_figure(rows, title=WHERE)) == []
    rows.loc[rows.index % 7 == 3, "value"] = np.nan
    figure = score_matrix(rows, title=WHERE)
    assert problems_of(figure) == []
    cells = [text for text in figure.axes[0].texts if "–" in text.get_text()]
    assert len(cells) == rows["value"].notna().sum()


@each_set
def test_robustness_and_steps(names):
    rows = probe_summary(SETS[names], metric=[*context_names("ap"), *context_names("change")])
    assert problems_of(robustness_figure(rows, title=WHERE)) == []
    steps = probe_summary(SETS[names][:4], category=[f"kind of object {k}" for k in range(19)],
                          metric=["confidence_change_patch_edited", "change_reference_edited"])
    for metric in steps["metric"].unique():
        assert problems_of(step_figure(steps, metric, title=WHERE)) == []


@each_set
def test_feature_spaces(names):
    rng = np.random.default_rng(0)
    found = feature_map({kind: rng.normal(size=(6, 5)) for kind in ("image", "positive", "swapped")})
    maps = dict.fromkeys(SETS[names], found) | {"vilt": "a joint model has no features of a picture alone"}
    figure = feature_figure(maps, title=WHERE)
    assert problems_of(figure) == [] and "vilt not drawn" in figure.qgcam_alt
    assert problems_of(feature_figure({}, title=WHERE)) == []
    with pytest.raises(ValueError, match="four"):
        feature_map({"image": np.zeros((3, 4))})


@each_set
def test_maps_of_two_prompts(names):
    rng, shape = np.random.default_rng(0), (5, 7)
    picture = Image.fromarray(rng.integers(60, 220, (60, 90, 3), dtype=np.uint8))
    maps = {name: [rng.random(shape), rng.random(shape)] for name in SETS[names][:4]} | {
        "constant": [np.ones(shape)] * 2}
    figure = attention_figure(picture, ["A photo of a dog under an umbrella.", "A photo of $5."], maps, title=WHERE)
    assert problems_of(figure) == [] and "constant, a map is constant" in figure.qgcam_alt


@each_set
def test_twins(names):
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(60, 220, (60, 90, 3), dtype=np.uint8))
    long = "A photo of a stainless refrigerator standing next to an enormous wooden dining table."
    relation = RelationGroup("1", "a", long, f"{long} No.", f"{long} Not.", "stainless fridge", "kite", ("b",), ())
    pair = SwapPair("1", ("a", "b"), (long, f"{long} No."))
    context = ContextGroup("1", "a", "scene", "object", {"reference": "a", "patch": "b", "edited": "c"}, ("dog",),
                           ("dog", "cat"), (long, "A photo of a cat."))
    scores = {name: pd.DataFrame([{"image": i, "prompt": p, "score": rng.normal(0, 9)} for i in "abc"
                                  for p in (long, f"{long} No.", f"{long} Not.", "A photo of a cat.")])
              for name in SETS[names]}
    for group, draw in ((relation, relation_twins), (pair, pair_twins), (context, context_twins)):
        figure = draw(group, lambda name: picture, scores, title=WHERE)
        assert problems_of(figure) == []
        assert ("No model ran" in figure.qgcam_alt) == (not scores)
    lost = twin_figure([("nowhere.jpg", "true: A photo of a dog.")], pd.DataFrame(index=["clip"]), title=WHERE)
    assert problems_of(lost) == [] and "(no such picture here)" in lost.axes[0].get_xlabel()


def test_groups_for_the_gallery_are_chosen_by_rule_and_shown_once():
    records = pd.DataFrame({"id": list("abcd") * 2, "confidence": [0.9, 0.4, 0.5, 0.1, 0.8, 0.6, np.nan, 0.3]})
    chosen = choose_groups(records)
    assert chosen["id"].tolist() == ["a", "b", "d"] and chosen["rule"].str.len().gt(20).all()
    assert choose_groups(records[records["id"] == "a"])["role"].tolist() == ["sure"]
