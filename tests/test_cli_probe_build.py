"""`qgcam probe build`: the library's groups in the published files, every option by name, exit codes."""

import json

import pytest

from qgcam_lib.cli.main import main
from qgcam_lib.data.coco.folder import Coco
from qgcam_lib.data.probes.files import read_groups
from qgcam_lib.data.visual_genome.folder import VisualGenome
from qgcam_lib.miniworld import ensure_coco, ensure_visual_genome
from qgcam_lib.probes.builders.composition import find_mentions, swap_compositions
from qgcam_lib.probes.builders.relation import RelationOptions, build_relation


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    root = tmp_path_factory.mktemp("worlds")
    ensure_visual_genome(root / "vg", n=100, progress=False)
    ensure_coco(root / "coco", n_train=12, n_val=12, progress=False)
    return root


@pytest.fixture
def qgcam(worlds, capsys):
    def call(line):
        code = main(f"probe build {line}".replace("HERE", str(worlds)).split())
        said = capsys.readouterr()
        return code, said.out, said.err
    return call


def test_relation_and_relcomp_are_the_library_s(worlds, qgcam, tmp_path):
    code, out, _ = qgcam(f"relation HERE/vg {tmp_path} -o n_images=3 -o min_names=2 -o spared=0.4 --quiet")
    built = build_relation(VisualGenome(worlds / "vg"), RelationOptions(
        n_images=3, spared=0.4, min_names=2))
    file = tmp_path / "relation_eval_subject.json"
    assert code == 0 and read_groups(file) == built.groups and "99,960 groups" in out
    about = json.loads(file.with_suffix(".build.json").read_text())
    assert about["options"]["min_names"] == 2
    assert [row["step"] for row in about["steps"]] == list(built.steps.step)
    code, out, _ = qgcam(f"relcomp HERE/vg {tmp_path} --coco HERE/coco --probe {file} -o test=0.5 -o tagger=hanta "
                         "--quiet")
    groups = [group for side in ("train", "test") for group in read_groups(tmp_path / f"relcomp_{side}.json")]
    assert code == 0 and {group.kind for group in groups} == {"composition", "predicate"} and "149,166" in out
    assert not {group.image for group in groups} & {group.image for group in built.groups}


def test_composition_and_background(worlds, qgcam, tmp_path):
    code, _, _ = qgcam(f"composition HERE/coco {tmp_path} -o tagger=hanta -o seed=3")
    mentions = find_mentions(Coco(worlds / "coco").captions, tagger="hanta")
    assert code == 0
    groups = read_groups(tmp_path / "data_compositional_switch.json", "swap")
    assert groups == swap_compositions(mentions, seed=3).groups
    code, out, _ = qgcam(f"background HERE/coco {tmp_path} --part MR -o limit=2 -o fillers=black,gray --quiet")
    groups = read_groups(tmp_path / "background_context_dataset.json", images=tmp_path)
    assert code == 0 and len(groups) == 4 and not groups.left_out and "31,745" in out
    assert qgcam(f"composition HERE/coco {tmp_path} -o tagger=hanta -o limit=0")[0] == 1, "nothing was made"
