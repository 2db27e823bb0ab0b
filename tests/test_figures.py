"""Every figure function, drawn with what runs bring: long names, many models, one model, nothing; and the check."""

import dataclasses
import itertools
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from figure_check import check_figure
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
    category_figure,
    choice_figure,
    feature_figure,
    feature_map,
    pair_figure,
    robustness_figure,
    score_matrix,
    step_figure,
)
from qgcam_lib.papers.probes.gallery import context_twins, pair_twins, relation_twins
from qgcam_lib.papers.q_groundcam.audit import EFFECTS, movement_map, tornado
from qgcam_lib.papers.q_groundcam.figures import (
    correlation_figure,
    draw_peaks,
    panels,
    size_figure,
    top_line,
    top_pixels,
)
from qgcam_lib.papers.q_groundcam.gallery import case_figure, part_figure
from qgcam_lib.papers.q_groundcam.splits import SHARES, TABLE1, with_domain
from qgcam_lib.papers.tricd.figures import box_map, boxes_per_phrase, calibration_figure, spread_figure
from qgcam_lib.papers.tricd.gallery import alarm_gallery, choose_alarms, choose_questions, question_panel
from qgcam_lib.phrase_detection.analysis import false_alarms
from qgcam_lib.phrase_detection.prediction_files import BEHAVIOURS, synthetic_predictions, synthetic_tricd
from qgcam_lib.phrase_detection.score import match_predictions
from qgcam_lib.report.figures import (
    beside_figure,
    curves_figure,
    histogram_grid,
    interval_figure,
    label_points,
    training_curves,
)
from qgcam_lib.report.published import printed_summary
from qgcam_lib.report.style import (
    BETTER,
    WORSE,
    contrast,
    described,
    use_style,
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
    found = check_figure(figure)
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


# --- the check finds planted faults ----------------------------------------------------------------------------------

def test_the_check_finds_a_cut_text_and_overlapping_ones():
    figure, ax = plt.subplots(figsize=(4, 3), layout="none")
    described(figure, "a line")
    assert problems_of(figure) == []
    ax.text(0.9, 0.5, "a text that starts near the right edge", transform=ax.transAxes)
    ax.text(0.3, 0.6, "one text")
    ax.text(0.32, 0.61, "another")
    assert {"cut text", "overlapping texts"} <= set(dict(problems_of(figure)))


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
    assert problems_of(interval_figure(rows, y="part", panels="metric", scale=100, title=WHERE)) == []


def test_a_point_without_an_interval_is_hollow_and_a_line_says_how_many_it_rests_on():
    rows = pd.DataFrame({"model": [*"aabb"], "metric": ["x", "y"] * 2, "value": [0.5, 0.6, 0.4, np.nan],
                         "ci_low": [0.4, np.nan, 0.4, 0.1], "ci_high": [0.6, np.nan, 0.4, 0.9],
                         "n_groups": [5, 1, 7, 3]})
    figure = interval_figure(rows, counted="pictures", title="few")
    hollow = [line.get_xdata().tolist() for line in figure.axes[0].lines if line.get_markerfacecolor() == "none"]
    assert hollow == [[0.6], [0.4]]  # no interval, and one of width 0; an undefined value is not drawn
    assert problems_of(figure) == []


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


@each_set
def test_curves(names):
    x = np.linspace(0, 1, 30)
    curves = {name: pd.DataFrame({"r": x, "p": 1 - x ** (k + 1)}) for k, name in enumerate(SETS[names])}
    curves |= {"silent": pd.DataFrame({"r": [], "p": []})}
    figure = curves_figure(curves, x="r", y="p", xlabel="recall", ylabel="precision", title=WHERE)
    assert problems_of(figure) == [] and "recall" in figure.qgcam_alt


@each_set
def test_histograms(names):
    rng = np.random.default_rng(0)
    sets = {name: pd.DataFrame({"iou": rng.beta(2, 5, 90), "ratio": [*rng.beta(5, 2, 80), *[np.nan] * 10]})
            for name in SETS[names][:5]}
    columns = dict.fromkeys(SETS[names][:6], sets) | {"other": "not run: no weights of this name lie in data/raw"}
    figure = histogram_grid(columns, ("iou", "ratio"), title=WHERE)
    assert problems_of(figure) == []


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
    with pytest.raises(KeyError, match="loss"):
        training_curves(log, {"loss": "loss"})


def test_a_dollar_is_a_dollar():
    name = "costs $5 and $6, $\\frac"
    figures = [interval_figure(summary_of([name]), title=name),
               curves_figure({name: pd.DataFrame({"x": [0, 1], "y": [0, 1]})}, x="x", y="y", xlabel=name, ylabel=name)]
    for figure, text in itertools.product(figures, (name, "$5 and $6")):
        assert any(text in one.get_text() and not one.get_parse_math() for one in figure.findobj(plt.Text))
        figure.canvas.draw()  # would raise for a formula that cannot be read


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
        assert problems_of(figure) == [] and "intervals exclude zero" in figure.qgcam_alt


def test_movements_are_coloured_by_effect_and_dotted_by_their_interval():
    rows = movements(("iou_soft", "wdp_soft"), 1).assign(difference=0.02, ci_low=0.01, ci_high=0.03)  # up and clear
    rows.loc[rows["metric"] == "wdp_soft", ["ci_low", "ci_high"]] = -0.01, 0.05  # up, which is worse, and not clear
    ax = movement_map(rows).axes[0]
    better, worse = ax.collections[0].get_array().ravel()
    assert better == pytest.approx(0.02) and worse == pytest.approx(-0.02)
    assert contrast(EFFECTS(1.0)[:3], to_rgb(BETTER)) == 1 and contrast(EFFECTS(0.0)[:3], to_rgb(WORSE)) == 1
    bars = {ax.get_title(loc="left").split(",")[0]: to_rgb(ax.patches[0].get_facecolor()) for ax in tornado(rows).axes}
    assert bars == {"IoU soft ↑": to_rgb(BETTER), "WDP soft ↓": to_rgb(WORSE)}


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


# --- TRICD's figures -------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def made():
    return synthetic_tricd(40, seed=1)


@pytest.fixture(scope="module")
def detected(made):
    return {name: synthetic_predictions(made, seed=2, **how) for name, how in BEHAVIOURS.items()}


def test_boxes_of_a_set(made):
    for data in (made, dataclasses.replace(made, pairs=())):
        assert problems_of(box_map(data, title=WHERE)) == []
        assert problems_of(boxes_per_phrase(data, title=WHERE)) == []


@each_set
def test_deviations_calibration_and_ties(names):
    rng = np.random.default_rng(0)
    subsets = ("all", "coco_obj", "coco_rel", "winoground")
    rows = pd.DataFrame([(name, subset, *rng.uniform(0.2, 3, 2)) for name in SETS[names] for subset in subsets],
                        columns=["model", "subset", "sd_90", "bootstrap_sd"])
    figure = spread_figure(rows, label="model,subset", title=WHERE)
    assert problems_of(figure) == []
    auc = summary_of(SETS[names], ("auc_within", "auc_across")).assign(subset="all")
    assert problems_of(calibration_figure(auc, title=WHERE)) == []


def test_alarm_galleries(made, detected):
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 255, (480, 640, 3)).astype(np.uint8))
    for name in ("graded", "talkative"):
        found = detected[name]
        chosen = choose_alarms(false_alarms(match_predictions(made, found)))
        for rows, source in ((chosen, lambda file: picture), (chosen[:1], lambda file: "nowhere"), (chosen[:0], None)):
            figure = alarm_gallery(made, source, found, rows[:3], title=f"{name} ({WHERE})")
            assert problems_of(figure) == [], name


@each_set
def test_question_panels(made, names):
    asked = pd.DataFrame([(p.id, p.file_name, f"is there {p.caption} and {LONG[0]}", p.positive, p.group)
                          for p in made.pairs], columns=["image_id", "file_name", "question", "answer", "group"])
    said = {name: dict.fromkeys(asked["image_id"], "yes, and here is why I think so: $") for name in SETS[names]}
    rows = choose_questions(asked, said, 4) if said else asked[:0]
    figure = question_panel(rows, lambda name: "nowhere", said, title=WHERE)
    assert problems_of(figure) == []


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


@each_set
def test_categories_of_attributes(names):
    rows = probe_summary(SETS[names][:5], category=CATEGORIES, metric=["image_score"]).assign(n=40)
    assert problems_of(category_figure(rows, title=WHERE)) == []
    rows.loc[rows.index % 7 == 3, "value"] = np.nan
    assert problems_of(score_matrix(rows, title=WHERE)) == []


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
