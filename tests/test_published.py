"""The typed numbers of the papers: complete, in range, and consistent with themselves."""

import pandas as pd
import pytest

from qgcam_lib.report.papers import cite, list_published, published

N_EXAMPLES = {
    ("Flickr30K Entities", "test"): 14481,
    ("RefCOCO+", "testA"): 5726,
    ("RefCOCO+", "testB"): 4889,
    ("SpatialSense", "triplets"): 1811,
    ("SpatialSense", "subjects"): 1811,
    ("SpatialSense", "objects"): 1811,
}
MODELS = ["blip-base", "blip-large", "clip-gscorecam", "albef-amc"]
SHARES = ["iou_soft", "iou_binary", "dice_soft", "dice_binary", "wdp_soft", "wdp_binary", "io_ratio"]


@pytest.fixture(scope="module")
def table1():
    return published("q_groundcam_table1")


def test_every_row_of_table_1_is_there_once(table1):
    keys = table1[["dataset", "split", "model"]].apply(tuple, axis=1).tolist()
    assert keys == [(*split, model) for split in N_EXAMPLES for model in MODELS]
    assert not table1.isna().any().any()


def test_n_is_the_same_for_every_model_of_a_split(table1):
    for split, rows in table1.groupby(["dataset", "split"]):
        assert set(rows["n"]) == {N_EXAMPLES[split]}


def test_numbers_are_in_range_and_have_two_decimals(table1):
    assert table1[SHARES].ge(0).all().all() and table1[SHARES].le(1).all().all()
    assert table1["pg_accuracy"].between(0, 100).all()
    assert (table1["pg_uncertain"] <= table1["n"]).all() and table1["pg_uncertain"].dtype.kind == "i"
    decimals = table1[[*SHARES, "pg_accuracy"]]
    assert (decimals.round(2) - decimals).abs().max().max() < 1e-9


@pytest.mark.parametrize("kind", ["soft", "binary"])
def test_dice_follows_iou(table1, kind):
    """For one map Dice = 2 IoU / (1 + IoU), a concave function: mean Dice lies between mean IoU and its value there."""
    iou, dice = table1[f"iou_{kind}"], table1[f"dice_{kind}"]
    highest = 2 * (iou + 0.005) / (1 + iou + 0.005) + 0.005
    assert (dice <= highest).all()
    assert (dice >= iou).all()
    assert (dice >= 0.8 * 2 * iou / (1 + iou)).all()


def test_pg_uncertain_counts_whole_examples_and_gscorecam_has_none(table1):
    assert (table1.query("model == 'clip-gscorecam'")["pg_uncertain"] == 0).all()
    most = table1.loc[table1.groupby(["dataset", "split"])["pg_uncertain"].idxmax(), "model"]
    assert set(most) == {"blip-large"}  # section 4 of the paper: the highest in every setting


def test_the_papers_sentences_agree_with_its_table(table1):
    base = table1.query("model == 'blip-base'").reset_index(drop=True)
    large = table1.query("model == 'blip-large'").reset_index(drop=True)
    assert (large["pg_uncertain"] > base["pg_uncertain"]).sum() == 6  # "in all 6 dataset splits"
    assert (large["pg_accuracy"] < base["pg_accuracy"]).sum() == 2  # "in 2 dataset splits"


def test_source_and_limits_travel_with_the_table(table1):
    assert table1.attrs["source"]["page"] == 3 and "Table 1" in cite(table1)
    tolerance, unit = table1.attrs["tolerance"], table1.attrs["printed_half_unit"]
    assert set(tolerance) == {*SHARES, "pg_accuracy", "pg_uncertain"}
    assert all(unit[name] < tolerance[name] for name in unit)


def test_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="q_groundcam_table1"):
        published("q_groundcam_table2")


def test_a_table_that_lost_a_row_is_refused(tmp_path):
    (tmp_path / "small.csv").write_text("dataset,n\na,1\n")
    (tmp_path / "small.toml").write_text("[source]\nrows = 2\n")
    assert list_published(tmp_path) == ["small"]
    with pytest.raises(ValueError, match="Expected 2 rows"):
        published("small", tmp_path)


def test_a_frame_without_source_cannot_be_cited():
    with pytest.raises(ValueError, match="source"):
        cite(pd.DataFrame({"n": [1]}))
