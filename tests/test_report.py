"""Tables, verdicts and figures: what a reader sees must follow from the records."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from qgcam_lib.data.records import GroundingExample
from qgcam_lib.maps import prepare_maps
from qgcam_lib.metrics import score_maps
from qgcam_lib.papers.q_groundcam.figures import panels
from qgcam_lib.papers.q_groundcam.gallery import choose_examples, example_maps
from qgcam_lib.papers.q_groundcam.splits import ONE_SPLIT, SCORES, SHARES, TABLE1, score_summary
from qgcam_lib.report.beside import paper_vs_ours, verdict
from qgcam_lib.report.claims import why_not_comparable
from qgcam_lib.report.figures import histogram_grid, interval_figure
from qgcam_lib.report.published import printed_summary
from qgcam_lib.report.tables import (
    MarkedTable,
    printed_table,
    rank_marks,
    score_table,
    show,
)

COLUMNS = {column.name: column for column in TABLE1.columns}

KEYS = ["dataset", "split", "model"]


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def table1():
    return TABLE1.printed()


@pytest.fixture(scope="module")
def records():
    """Scores of 24 random maps on 8 images, made by the library itself."""
    rng = np.random.default_rng(3)
    boxes = [[[4, 4, 4 + w, 4 + h]] for w, h in rng.integers(3, 20, (24, 2))]
    scores = score_maps(rng.random((24, 24, 24)).astype(np.float32), boxes, delta=5)
    share = [(b[0][2] - b[0][0]) * (b[0][3] - b[0][1]) / 24**2 for b in boxes]
    return scores.astype(float).assign(id=[f"e{i:02d}" for i in range(24)], group=[str(i // 3) for i in range(24)],
                                       box_share=share, error=None)


# ---------------------------------------------------------------- score tables


def test_summary_is_the_mean_of_the_defined_scores(records):
    records = records.assign(io_ratio=records["io_ratio"].where(records.index != 2))
    summary = score_summary(records, n_bootstrap=50).set_index("metric")
    assert list(summary.index) == list(SCORES)
    assert summary.loc["io_ratio", "value"] == pytest.approx(records["io_ratio"].mean())
    assert summary.loc["io_ratio", ["n", "n_undefined"]].tolist() == [23, 1]
    assert (summary["ci_low"] <= summary["value"]).all() and (summary["value"] <= summary["ci_high"]).all()


def test_failed_examples_are_left_out_and_counted(records):
    broken = records.copy()
    broken.loc[0, list(SCORES)] = np.nan
    broken["error"] = [*["truncated"], *[None] * 23]
    summary = score_summary(broken, n_bootstrap=10)
    assert (summary["n_failed"] == 1).all() and (summary["n_undefined"] == 0).all() and (summary["n"] == 23).all()
    assert score_table(summary, ONE_SPLIT).frame.loc["", "n"] == "23\n1 failed"


def test_summary_refuses_missing_columns_and_frames_without_scores(records):
    with pytest.raises(ValueError, match="io_ratio"):
        score_summary(records.drop(columns="io_ratio"))
    with pytest.raises(ValueError, match="all 24 failed"):
        score_summary(records.assign(error="broken"))


def test_marks_follow_the_unrounded_means_and_the_direction(records):
    better = records.assign(io_ratio=records["io_ratio"] + 1e-4, wdp_soft=records["wdp_soft"] - 1e-4)
    table = score_table(score_summary({"a": records, "b": better}, n_bootstrap=10), ONE_SPLIT)
    assert table.marks["IO ratio ↑"].tolist() == ["second", "best"]
    assert table.marks["WDP soft ↓"].tolist() == ["second", "best"]
    assert table.marks["IoU soft ↑"].tolist() == ["best", "best"]
    assert (table.marks[["n", "undefined"]] == "").all().all()


def test_rank_marks_edges():
    assert rank_marks(pd.Series([np.nan, 0.3]), True).tolist() == ["", ""]
    assert rank_marks(pd.Series([3.0, 1.0, 2.0]), False).tolist() == ["", "best", "second"]
    assert rank_marks(pd.Series([2.0, 2.0, 1.0, 0.5]), True).tolist() == ["best", "best", "second", ""]


def test_printed_marks_agree_with_the_paper_where_its_numbers_do_not_tie():
    marks = printed_table(TABLE1).marks
    best = marks.apply(lambda column: column[column == "best"].index.get_level_values("model").tolist())
    assert best["IO ratio ↑"] == ["albef-amc"] * 6  # bold in the paper, all six splits
    assert best["PG accuracy, % ↑"] == ["albef-amc"] * 6
    assert best["PG uncertain ↓"] == ["clip-gscorecam"] * 6
    assert best["WDP binary ↓"] == ["clip-gscorecam", "albef-amc", "albef-amc", "albef-amc", "clip-gscorecam",
                                    "clip-gscorecam", "albef-amc"]  # a tie in the last split: both bold in the paper


# ---------------------------------------------------------------- paper against run


def as_run(row, **shift):
    """The summary a run would give if it returned the paper's own numbers of one row, shifted where asked."""
    summary = printed_summary(TABLE1, row.to_frame().T.infer_objects()).assign(n_undefined=0)
    summary["value"] += summary["metric"].map(shift).fillna(0)
    return summary.assign(ci_low=summary["value"], ci_high=summary["value"])


def lines(row, **more):
    return row[KEYS].to_frame().T.assign(**more)


def test_the_papers_own_numbers_are_reproduced_for_every_row(table1):
    for _, row in table1.iterrows():
        rows = paper_vs_ours(as_run(row), TABLE1, lines(row))
        assert set(rows["verdict"]) == {"reproduced"} and len(rows) == 9
        assert rows["difference"].abs().max() < 1e-9


def test_verdicts_follow_the_tolerance_of_the_file(table1):
    row = table1.iloc[0]
    shift = {"iou_soft": 0.0051, "iou_binary": 0.0201, "pg_hit": 0.0149, "pg_uncertain": 0.0101, "wdp_binary": -0.03}
    rows = paper_vs_ours(as_run(row, **shift), TABLE1, lines(row, run_id="r1")).set_index("metric")
    assert rows.loc[list(shift), "verdict"].tolist() == [
        "within tolerance", "differs", "within tolerance", "differs", "within tolerance"]
    assert rows.loc["pg_hit", "difference"] == pytest.approx(1.49)
    assert rows.loc["pg_uncertain", "paper"] == pytest.approx(100 * 317 / 14481)
    assert set(rows["run_id"]) == {"r1"} and rows["tolerance"].notna().all()


def test_a_reason_withholds_every_verdict(table1):
    for reason in ({"not_comparable": "miniworld"}, {}):
        own = {} if reason else {"not_comparable": "miniworld"}
        rows = paper_vs_ours(as_run(table1.iloc[0]), TABLE1, lines(table1.iloc[0], **own), **reason)
        assert set(rows["verdict"]) == {"not comparable: miniworld"}


def test_an_undefined_mean_gets_no_verdict(table1):
    summary = as_run(table1.iloc[0])
    summary.loc[summary["metric"] == "wdp_binary", ["value", "ci_low", "ci_high"]] = np.nan
    rows = paper_vs_ours(summary, TABLE1, lines(table1.iloc[0]))
    assert rows.set_index("metric").loc["wdp_binary", "verdict"] == "not comparable: undefined"


def test_rows_that_were_not_run_and_rows_the_paper_lacks_say_so(table1):
    nothing, row = as_run(table1.iloc[0]).head(0), table1.iloc[0]
    rows = paper_vs_ours(nothing, TABLE1, lines(row, why="no weights here"))
    assert set(rows["verdict"]) == {"not run: no weights here"} and rows["n_ours"].isna().all()
    assert set(paper_vs_ours(nothing, TABLE1)["verdict"]) == {"not run: no run was given"}
    val = row.replace("test", "val")
    unknown = paper_vs_ours(as_run(row).assign(split="val"), TABLE1, lines(val))
    assert unknown["paper"].isna().all() and set(unknown["verdict"]) == {"not comparable: not in the paper"}
    with pytest.raises(ValueError):
        paper_vs_ours(pd.concat([as_run(row)] * 2), TABLE1, lines(row))


def test_verdict_limits_are_inclusive():
    assert [verdict(d, 0.005, 0.02) for d in (0.005, 0.0050001, 0.02, 0.0200001)] == [
        "reproduced", "within tolerance", "within tolerance", "differs"]


def test_only_the_same_experiment_is_comparable():
    whole = {"is_miniworld": False, "weights": "official", "n_ours": 10, "n_paper": 10}
    assert why_not_comparable(**whole) == ""
    assert why_not_comparable(**{**whole, "weights": "model.pth"}) == ""
    for other in ({"is_miniworld": True}, {"weights": "random"}, {"weights": "mini"}, {"n_ours": 9}, {"n_paper": None}):
        assert why_not_comparable(**{**whole, **other})


# ---------------------------------------------------------------- figures


@pytest.fixture
def example(tmp_path):
    pixels = np.zeros((40, 60, 3), dtype=np.uint8)
    pixels[10:30, 10:30] = (200, 40, 40)
    Image.fromarray(pixels).save(tmp_path / "scene.png")
    box = np.array([[10, 10, 30, 30]])
    return GroundingExample("a", tmp_path / "scene.png", "a red square", box, "scene", (40, 60))


def test_panels_draw_the_box_and_the_peaks_where_they_are(example):
    heat = np.zeros((20, 30), dtype=np.float32)
    heat[10, 10], heat[3, 28] = 1.0, 1.0  # on the image at (21, 21), inside, and at (7, 57), outside
    scores = score_maps([heat], [example.boxes], image_sizes=example.size, protocol="native", delta=10).iloc[0]
    figure = panels([("uncertain", example, heat, scores)], "one")
    picture, _, over = figure.axes[:3]
    (box,) = picture.patches
    assert (box.get_x(), box.get_y(), box.get_width(), box.get_height()) == (9.5, 9.5, 20, 20)
    points = {line.get_marker(): line.get_xydata().tolist() for line in over.lines if len(line.get_xydata())}
    assert points == {"o": [[20.5, 20.5]], "x": [[56.5, 6.5]]}


def test_examples_are_chosen_by_rule_and_never_twice(records):
    chosen = choose_examples(records)
    lift = records["io_ratio"] - records["box_share"]
    by_role = chosen.set_index("role")["id"]
    assert chosen["id"].is_unique and by_role["best"] == records.loc[lift[records["pg_hit"] == 1].idxmax(), "id"]
    assert by_role["worst"] == records.loc[lift[records["pg_hit"] == 0].idxmin(), "id"]
    if "uncertain" in by_role:
        assert records.set_index("id").loc[by_role["uncertain"], "pg_uncertain"] == 1
    pd.testing.assert_frame_equal(chosen, choose_examples(records.sample(frac=1, random_state=1)))


def test_panels_show_the_grid_that_was_scored(example, records):
    class LeftHalf:
        def maps(self, image, phrases):
            assert image.mode == "RGB" and phrases == ["a red square"]
            return np.tile(np.array([1.0, 0.1], dtype=np.float32), (1, 2, 1))

    class One:
        def example(self, id):
            return example

    chosen = choose_examples(records).head(2)
    items = example_maps(LeftHalf(), One(), chosen, "pixel")
    expected = prepare_maps(LeftHalf().maps(Image.new("RGB", (1, 1)), ["a red square"]), (40, 60), "pixel")[0]
    assert len(items) == 2 and np.array_equal(items[0][2], expected)


def test_histograms_sum_to_all_examples_and_label_their_axes(records):
    columns = {"x": {"a": records, "b": records.iloc[:10]}, "y": "not run: why"}
    figure = histogram_grid(columns, ("iou_soft", "io_ratio"), names=SHARES, title="two sets")
    first = figure.axes[0]
    assert sum(first.patches[0].get_data().values) == pytest.approx(100)


def test_intervals_place_the_means(records):
    summary = score_summary({"a": records, "b": records}, n_bootstrap=20)
    (ax,) = interval_figure(summary, names=SHARES).axes
    drawn = ax.containers[0].lines[0].get_xdata()
    own = summary.query("model == 'a'")
    known = (own["ci_high"] > own["ci_low"]).to_numpy()
    assert known.sum() > 5 and np.allclose(drawn[known], own["value"][known]) and np.isnan(drawn[~known]).all()


def test_no_text_from_data_reaches_a_page_as_html():
    bad = "<img src=x onerror=alert(1)>"
    frame = pd.DataFrame({bad: [bad, 1.5], "n": [0.25, None]}, index=pd.Index([bad, "b"], name="model"))
    for form in (None, {"n": "{:.1f}"}):
        page = show(frame, form, index=True, caption=bad).to_html()
        assert "<img" not in page and page.count("&lt;img") == 4 and "–" in page
    wide = frame.set_index(bad, append=True)
    assert "<img" not in show(wide, "{:.1f}", index=True).to_html()
    assert "<img" not in MarkedTable(frame.astype(str), frame.map(lambda _: "best"), bad)._repr_html_()
