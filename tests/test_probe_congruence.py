"""The same thing before a usual and an unusual background: the pictures, the numbers, and who leans on the place."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from qgcam_lib import miniworld
from qgcam_lib.data.coco.folder import Coco
from qgcam_lib.miniworld.scenes.scene import BACKGROUNDS, place_weight
from qgcam_lib.miniworld.writers.mininet import filler_places
from qgcam_lib.papers.probes.congruence import (
    CONTRASTS,
    congruence_contrast,
    congruence_rows,
    open_congruence,
    usual_places,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("congruence")
    miniworld.ensure_coco(root / "coco", n_train=1, n_val=50, progress=False)
    miniworld.ensure_fillers(root / "fillers", 8)
    found = open_congruence(str(root / "coco"), folder=root / "made", scenes=[str(root / "fillers")], seed=1)
    return root, found


def test_places_are_those_that_were_planted(world):
    for name, (usual, odd) in usual_places().items():
        noun = {"airplane": "plane", "sports ball": "ball", "couch": "sofa", "dining table": "table"}.get(name, name)
        weights = {place: place_weight(noun, place, True) for place in BACKGROUNDS}
        assert set(usual) == {place for place in BACKGROUNDS if weights[place] == max(weights.values())}
        assert set(odd) == {place for place in BACKGROUNDS if weights[place] == place_weight("", place, True)}
    places = filler_places(world[0] / "fillers")
    assert {place: len(paths) for place, paths in places.items()} == {"indoor": 8} | dict.fromkeys(
        (place for place in BACKGROUNDS if place != "indoor"), 2)


def test_only_the_background_differs_between_the_pictures_of_a_thing(world):
    root, found = world
    coco = Coco(root / "coco")
    objects = {str(one.id): one for some in coco.instances.objects.values() for one in some}
    assert len(found.part) > 20
    for group in found.part[:10]:
        one = objects[group.id]
        mask = coco.instances.mask(one)
        shown = {part: np.asarray(Image.open(found.picture(name))) for part, name in group.pictures.items()}
        whole = np.asarray(Image.open(coco.picture(group.image)).convert("RGB"))
        assert all((picture[mask] == whole[mask]).all() for picture in shown.values())
        here, there = group.filler.split(" / ")
        assert here in usual_places()[one.category][0] and there in usual_places()[one.category][1]
        grounds = [picture[~mask].astype(float) for picture in shown.values()]
        assert all((a != b).any() for k, a in enumerate(grounds) for b in grounds[:k])


def test_the_same_call_gives_the_same_groups_and_a_limit_takes_some_of_them(world):
    root, found = world
    again = open_congruence(str(root / "coco"), folder=root / "made", scenes=[str(root / "fillers")], seed=1)
    some = open_congruence(str(root / "coco"), folder=root / "made", scenes=[str(root / "fillers")], seed=1, limit=5)
    assert again.groups == found.groups and len(some.groups) == 5
    assert {one.id for one in some.groups} < {one.id for one in found.groups}


def made_up(found, strength, lean, scale=1.0, seed=0):
    "A model that names the thing with some strength and leans on what goes with the place it sees."
    dice, rows, going = np.random.default_rng(seed), [], usual_places()
    for one in found.part:
        for part, name in one.pictures.items():
            place = one.filler.split(" / ")[part == "edited"]
            for label, prompt in zip(one.classes, one.prompts):
                usual = label in going and place in going[label][0]
                value = strength * (label in one.present) + lean * usual + dice.normal(0, 0.5)
                rows.append((name, prompt, scale * value + 3))
    return pd.DataFrame(rows, columns=["image", "prompt", "score"])


def test_a_weak_twin_that_leans_is_told_from_one_that_does_not(world):
    _, found = world
    models = {"strong, leans": made_up(found, 2, 1), "weak, leans": made_up(found, 0, 1, scale=0.1, seed=1),
              "weak, does not": made_up(found, 0, 0, seed=2), "strong, does not": made_up(found, 2, 0, seed=3)}
    rows = {name: congruence_rows(found.part, frame) for name, frame in models.items()}
    pull = CONTRASTS["pull"]
    for leaning in ("strong, leans", "weak, leans"):
        for other in ("weak, does not", "strong, does not"):
            table = congruence_contrast(rows, leaning, other, n_bootstrap=200).set_index(["contrast", "model"])
            assert table.loc[(pull, f"{leaning} minus {other}"), "ci_low"] > 0.5
            assert abs(table.loc[(pull, other), "difference"]) < 0.25
            assert table.loc[(pull, leaning), "p_value"] < 0.01
            control = table.loc[("AP, two usual backgrounds", leaning)]
            assert control["ci_low"] < 0 < control["ci_high"]


def test_the_numbers_are_those_of_a_literal_count(world):
    _, found = world
    scores, going = made_up(found, 1, 1), usual_places()
    rows = congruence_rows(found.part, scores).set_index("id")
    table = scores.set_index(["image", "prompt"])["score"]
    for one in found.part[:8]:
        z, ap = {}, {}
        for part, name in one.pictures.items():
            values = np.array([table[name, prompt] for prompt in one.prompts])
            z[part] = dict(zip(one.classes, (values - values.mean()) / values.std()))
            mine = z[part][one.present[0]]
            ap[part] = 1 / sum(value >= mine for value in z[part].values())
        here, there = one.filler.split(" / ")
        a = [c for c in one.classes if c not in one.present and c in going and here in going[c][0]
             and there in going[c][1]]
        b = [c for c in one.classes if c not in one.present and c in going and there in going[c][0]
             and here in going[c][1]]
        side = {part: (np.mean([z[part][c] for c in a]) - np.mean([z[part][c] for c in b])) / 2 for part in z}
        row = rows.loc[one.id]
        assert row["ap_usual"] == pytest.approx((ap["reference"] + ap["patch"]) / 2)
        assert row["ap_unusual"] == pytest.approx(ap["edited"])
        assert row["control_usual"] - row["control_unusual"] == pytest.approx(ap["reference"] - ap["patch"])
        assert row["pull_usual"] == pytest.approx((side["reference"] + side["patch"]) / 2)
        assert row["pull_unusual"] == pytest.approx(side["edited"])


def test_a_picture_that_failed_and_a_constant_model_are_undefined(world):
    _, found = world
    scores = made_up(found, 1, 1)
    lost = found.part[0].pictures["edited"]
    scores.loc[scores["image"] == lost, "score"] = np.nan
    rows = congruence_rows(found.part, scores).set_index("id")
    assert rows.loc[found.part[0].id, ["pull_unusual", "ap_unusual", "ap_usual"]].isna().all()
    flat = congruence_rows(found.part, scores.assign(score=0.5))
    assert flat["pull_usual"].isna().all() and flat["ap_usual"].notna().all()
