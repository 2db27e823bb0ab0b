"""The typed numbers of the papers: complete, in range, and consistent with themselves."""

from pathlib import Path

import pytest

from qgcam_lib.report.published import cite, list_published, published

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


def test_source_and_limits_travel_with_the_table(table1):
    assert table1.attrs["source"]["page"] == 3 and "Table 1" in cite(table1)
    tolerance, unit = table1.attrs["tolerance"], table1.attrs["printed_half_unit"]
    assert set(tolerance) == {*SHARES, "pg_accuracy", "pg_uncertain"}
    assert all(unit[name] < tolerance[name] for name in unit)


def test_a_table_that_lost_a_row_is_refused(tmp_path):
    (tmp_path / "small.csv").write_text("dataset,n\na,1\n")
    (tmp_path / "small.toml").write_text("[source]\nrows = 2\n")
    assert list_published(tmp_path) == ["small"]
    with pytest.raises(ValueError, match="expected 2 rows"):
        published("small", tmp_path)


# --- TRICD -----------------------------------------------------------------------------------------------------------

SUBSETS = ["winoground", "coco_obj", "coco_rel"]
TRICD_MODELS = ["mdetr", "glip-t", "glip-l", "fiber", "owl-vit", "detic"]
PARTS = {1: SUBSETS, 7: SUBSETS[1:]}
VAL = Path(__file__).parents[1] / ".." / "shared" / "realdata" / "tricd" / "TRICD_grounding_val.json"


def tricd(number):
    return published(f"tricd_table{number}").set_index("statistic" if number in PARTS else "model")


@pytest.mark.parametrize("number", range(1, 9))
def test_tricd_tables_are_whole_and_say_where_they_are_from(number):
    table = published(f"tricd_table{number}")
    assert table.iloc[:, 0].is_unique and cite(table).startswith("Kamath et al., https://")
    assert table.attrs["source"]["table"] == f"Table {number}" in cite(table)
    numbers = table.select_dtypes("number")
    assert numbers.isna().sum().sum() == {4: 2, 5: 2}.get(number, 0) and (numbers.fillna(0) >= 0).all().all()
    if number not in PARTS and number != 2:
        assert list(table.attrs["tolerance"]) == list(table.attrs["printed_half_unit"]) == list(numbers)
        assert numbers.max().max() <= 100 and ((numbers * 10).round() / 10 - numbers).abs().max().max() < 1e-9
    if number in (3, 5, 6, 8):
        assert table["model"].tolist() == TRICD_MODELS


@pytest.mark.parametrize("number", PARTS)
def test_tricds_statistics_add_up_in_this_order_of_columns(number):
    table, parts = tricd(number), PARTS[number]
    for name in ("pairs", "boxes"):
        assert table.loc[name, parts].sum() == table.loc[name, "all"]
    for name in ("unique_images", "unique_phrases", "unique_words"):
        assert table.loc[name, parts].max() <= table.loc[name, "all"] <= table.loc[name, parts].sum()
    pairs = table.loc["pairs"]
    for name in ("phrases_per_image", "words_per_caption"):  # means over pairs
        mean = (table.loc[name, parts] * pairs[parts]).sum() / pairs["all"]
        assert abs(mean - table.loc[name, "all"]) <= 0.1, name
    per_phrase = table.loc["boxes"] / (table.loc["phrases_per_image"] * pairs / 2)  # half of the pairs are true
    slack = 0.05 + table.loc["boxes_per_phrase"] * 0.05 / table.loc["phrases_per_image"]
    assert ((per_phrase - table.loc["boxes_per_phrase"]).abs() <= slack).all()


@pytest.mark.parametrize("number", [5, 6])
def test_recall_of_all_is_the_mean_over_phrases(number):
    """The column `all` follows from the others and the phrases of Table 1, up to what rounding allows."""
    statistics, table = tricd(1), tricd(number)
    phrases = statistics.loc["phrases_per_image", SUBSETS] * statistics.loc["pairs", SUBSETS] / 2
    mean = (table[SUBSETS] * phrases).sum(axis=1) / phrases.sum()
    assert (mean - table["all"]).abs().max() < 0.15
    if number == 6:
        assert (table[[*SUBSETS, "all"]] <= tricd(5)[[*SUBSETS, "all"]]).all().all()  # one more way to miss


@pytest.mark.skipif(not VAL.exists(), reason="no real TRICD files (../shared/realdata/tricd)")
def test_table_7_describes_the_real_validation_file():
    from qgcam_lib.data.tricd.pairs import load_tricd

    data, table = load_tricd(VAL), tricd(7)
    for name in ("coco_obj", "coco_rel", "all"):
        pairs = [pair for pair in data.pairs if name in ("all", pair.subset)]
        phrases = [phrase for pair in pairs for phrase in pair.phrases]
        boxes, true = sum(len(p.boxes) for p in phrases), sum(len(pair.phrases) for pair in pairs if pair.positive)
        found = {"unique_images": len({pair.file_name for pair in pairs}), "pairs": len(pairs), "boxes": boxes,
                 "unique_phrases": len({phrase.text for phrase in phrases}),
                 "phrases_per_image": len(phrases) / len(pairs), "boxes_per_phrase": boxes / true,
                 "words_per_caption": sum(len(pair.caption.split()) for pair in pairs) / len(pairs)}
        for statistic, value in found.items():
            assert abs(value - table.loc[statistic, name]) <= 0.051, (statistic, name)


# --- the conceptual probes -------------------------------------------------------------------------------------------


def probes(number):
    return published(f"probes_table{number}")


def test_categories_of_the_probes_add_up_as_far_as_they_do():
    attributes, objects, sets = probes(6), probes(8), probes(2)
    words = attributes["attributes"].str.split(", ").explode()
    assert len(attributes) == 10 and len(words) == 113 and words.is_unique  # the text says 11 and 114
    rest = sets.loc[1, "groups"] - attributes["groups"].sum()
    assert attributes["printed"][attributes["groups"].isna()].tolist() == ["3,08"] and rest == 311
    classes = objects["objects"].str.split(", ").explode()
    assert len(objects) == 19 and len(classes) == 79 and classes.is_unique and "apple" not in set(classes)
    assert objects["groups"].sum() == 6339 and (objects["groups"] % 3 == 0).all()


# --- Ref-Adv ---------------------------------------------------------------------------------------------------------

REF_ADV_ROWS = {1: 1, 2: 4, 3: 4, 4: 3, 5: 4, 6: 3, 7: 4, 8: 12, 9: 3, 10: 6}


def ref_adv(number):
    return published(f"ref_adv_table{number}")


@pytest.mark.parametrize("number", REF_ADV_ROWS)
def test_ref_adv_tables_are_whole_or_say_that_they_are_not(number):
    table = ref_adv(number)
    numbers = table.select_dtypes("number")
    assert len(table) == REF_ADV_ROWS[number] and table.iloc[:, 0].is_unique
    assert cite(table).startswith("Akula et al., ") and f"Table {number}, " in cite(table)
    if number in (1, 4):  # no text that we have shows them
        assert numbers.isna().all().all() and (table["status"] == "not available").all()
        assert not table.attrs["tolerance"] and not table.attrs["printed_half_unit"]
    elif number != 7:
        assert list(table.attrs["tolerance"]) == list(table.attrs["printed_half_unit"]) == list(numbers)
        assert not numbers.isna().any().any() and numbers.min().min() > 0 and numbers.max().max() < 100
        assert ((numbers * 100).round() / 100 - numbers).abs().max().max() < 1e-9


def test_ref_advs_tables_repeat_each_other():
    two, three, five, ten = (ref_adv(number).set_index(ref_adv(number).columns[0]) for number in (2, 3, 5, 10))
    assert (two.loc["vilbert"].iloc[1:] == three.loc["vilbert"].iloc[1:]).all()
    assert ((five["original"] - two["test"]).abs() <= 0.05).all()
    assert ten.loc["none", ["dev", "test", "adv"]].tolist() == two.loc["vilbert", ["dev", "test", "adv"]].tolist()
    assert ten.loc["mtl-gqa-rel", ["dev", "test", "adv"]].tolist() == three.loc[
        "vilbert-mtl", ["dev", "test", "adv"]].tolist()
    assert ref_adv(8)[["easy", "hard", "adv"]].sum().round(2).tolist() == [99.95, 99.94, 99.97]
