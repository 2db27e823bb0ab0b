"""The typed numbers of the papers: complete, in range, and consistent with themselves."""

from pathlib import Path

import pandas as pd
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


def test_the_papers_two_numbers_of_boxes_differ():
    table = published("tricd_table1")
    assert table.set_index("statistic").loc["boxes", "all"] == 6058
    assert any("6085" in note for note in table.attrs["source"]["notes"])


@pytest.mark.parametrize("number", [5, 6])
def test_recall_of_all_is_the_mean_over_phrases(number):
    """The column `all` follows from the others and the phrases of Table 1, up to what rounding allows."""
    statistics, table = tricd(1), tricd(number)
    phrases = statistics.loc["phrases_per_image", SUBSETS] * statistics.loc["pairs", SUBSETS] / 2
    mean = (table[SUBSETS] * phrases).sum(axis=1) / phrases.sum()
    assert (mean - table["all"]).abs().max() < 0.15
    if number == 6:
        assert (table[[*SUBSETS, "all"]] <= tricd(5)[[*SUBSETS, "all"]]).all().all()  # one more way to miss


def test_tricds_sentences_agree_with_its_tables():
    ap, vqa, recall, group = tricd(3), tricd(4), tricd(5), tricd(6)
    assert ap["coco_obj"].idxmin() == "mdetr" and ap["coco_obj"].idxmax() == "detic"  # section 5.2
    assert ap["coco_rel"].idxmax() == "fiber" and ap["coco_rel"].idxmin() == "owl-vit"
    assert set(ap["winoground"].nlargest(2).index) == {"fiber", "glip-l"} and ap["all"].max() == 21.5
    assert ap["all"].sort_values().diff().min() > 0.5  # section 5.3
    assert (vqa[[*SUBSETS, "all"]].idxmax() == "fiber").all() and (vqa[SUBSETS].idxmin(axis=1) == "winoground").all()
    fall = (vqa["gqa_exists"] - vqa["all"]).round()
    assert (fall["fiber"], fall["ofa"]) == (8, 15)  # section 6.1
    assert recall.loc["mdetr", "winoground"] > recall.loc[["glip-t", "fiber"], "winoground"].max()  # section 6.2
    assert (recall.query("kind == 'grounding'")[SUBSETS].idxmin(axis=1) == "coco_obj").all()
    grounding = ap.query("kind == 'grounding'").index
    assert ap.loc[grounding, "winoground"].idxmin() == group.loc[grounding, "winoground"].idxmax() == "mdetr"  # A


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

WITHOUT_NUMBERS = {1: 1, 4: 21, 5: 21, 7: 15, 9: 20, 10: 22, 11: 15}


def probes(number):
    return published(f"probes_table{number}")


@pytest.mark.parametrize("number", WITHOUT_NUMBERS)
def test_numbers_that_no_source_states_are_not_there_and_the_table_says_so(number):
    table = probes(number)
    assert len(table) == WITHOUT_NUMBERS[number] and (table["status"] == "not available").all()
    numbers = table.select_dtypes("number").drop(columns=["alpha", "unplaced"], errors="ignore")
    assert numbers.isna().all().all() and cite(table).startswith("Schiappa et al., arXiv 2304.03659, Table")
    assert not table.attrs.get("tolerance") and not table.attrs.get("printed_half_unit")


def test_two_bold_cells_of_table_4_stand_without_a_column():
    bold = probes(4).set_index("model")["unplaced"].dropna()
    assert bold.to_dict() == {"flava": 84.19, "bridgetower": 94.38}
    assert any("84.19" in note and "without their column" in note for note in probes(4).attrs["source"]["notes"])


def test_the_models_of_the_probes_are_the_same_in_every_table_that_has_them_all():
    every = set(probes(4)["model"])
    assert set(probes(5)["model"]) == every and len(every) == 21
    assert set(probes(7)["model"]) < every and set(probes(3)["model"]) < every
    for number in (9, 10):
        assert set(probes(number).query("by == 'model'")["model"]) < every
        assert set(probes(number).query("by == 'filler'")["model"]) == {"black", "gray", "noise", "scene"}
    assert sorted(zip(probes(11)["stream"], probes(11)["alpha"])) == [(s, a) for s in ("t", "v", "vt")
                                                                       for a in (0.2, 0.3, 0.4, 0.5, 0.6)]


def test_table_3_of_the_probes_is_whole_and_patching_is_a_trade():
    table = probes(3).set_index("model")
    assert table.isna().sum().sum() == 2 and list(table.attrs["tolerance"]) == list(table)
    patched, clip = table.loc[[f"clip-patched-{s}" for s in ("t", "v", "vt")]], table.loc["clip-vit-b32"]
    assert (patched["imagenet"] < clip["imagenet"]).all() and (patched.drop(columns="imagenet") > clip[1:]).all().all()
    assert patched["relcomp"].idxmax() == "clip-patched-t"  # section 5: "the largest increase"


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


def test_ref_advs_sentences_agree_with_its_tables():
    two, three, gqa = (ref_adv(number).set_index(ref_adv(number).columns[0]) for number in (2, 3, 9))
    assert [round((two["easy"] - two[name]).max()) for name in ("hard", "adv")] == [15, 26]  # section 4.1
    gain = three["adv"] - three.loc["vilbert", "adv"]
    assert gain.round(2)[["vilbert-sum-h", "vilbert-max-h"]].tolist() == [1.4, 2.45]  # "+1.4% and +2.5%"
    assert round(three.loc["vilbert-mtl", "easy"] - three.loc["vilbert-mtl", "hard"], 1) == 12.4
    assert round(gqa.loc["gqa-rel-dev", "after"] - gqa.loc["gqa-rel-dev", "before"], 1) == 2.3
    kinds = ref_adv(8).set_index("supercategory")
    assert kinds.loc["person", "adv"] < kinds.loc["person", "easy"]  # but not less than in Ref-Hard
    assert kinds.loc["person", "adv"] > kinds.loc["person", "hard"]


def test_the_lines_of_tables_2_and_3_imply_different_shares_of_easy_expressions():
    """test = share * easy + (1 - share) * hard."""
    both = pd.concat([ref_adv(2), ref_adv(3).iloc[1:]]).set_index("model")
    share = (both["test"] - both["hard"]) / (both["easy"] - both["hard"])
    assert share.round(3).to_dict() == {"groundnet": 0.896, "cmn": 0.837, "mattnet": 0.837, "vilbert": 0.835,
                                        "vilbert-sum-h": 0.809, "vilbert-max-h": 0.759, "vilbert-mtl": 0.845}
    text = " ".join(ref_adv(2).attrs["source"]["notes"] + ref_adv(3).attrs["source"]["notes"])
    assert all(f"{value:.3f}"[1:] in text for value in share)


def test_two_shares_of_table_6_are_of_no_1500_expressions():
    values = ref_adv(6).select_dtypes("number").to_numpy().ravel()
    off = [value for value in values if not any(abs(k / 15 - value) < 0.01 for k in range(1501))]
    assert off == [71.08, 50.23] and "71.08 and 50.23" in " ".join(ref_adv(6).attrs["source"]["notes"])
