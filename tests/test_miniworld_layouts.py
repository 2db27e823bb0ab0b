"""The folders of the miniworld: their bytes, only what is missing is made, and other folders are safe."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from miniworld_sums import SUMS, checksum_of

from qgcam_lib import miniworld
from qgcam_lib.miniworld import CHECKSUM, read_card
from qgcam_lib.miniworld.scenes import crowd
from qgcam_lib.miniworld.scenes.spatial_truth import is_true
from qgcam_lib.miniworld.words.expressions import expressions
from qgcam_lib.miniworld.writers import mininet, refer, tricd
from qgcam_lib.miniworld.writers.mininet import mininet_picture

LAYOUTS = {  # name: (few, more), as options
    "flickr30k": ({"n_test": 2, "n_train": 0, "n_val": 0}, {"n_test": 3, "n_train": 0, "n_val": 2}),
    "coco": ({"n_train": 2, "n_val": 1}, {"n_train": 2, "n_val": 3}),
    "visual_genome": ({"n": 2}, {"n": 4}),
    "fillers": ({"n": 1}, {"n": 2}),
    "mininet": ({"n": 1}, {"n": 2}),
    "swaps": ({"n": 2}, {"n": 4}),
    "refer": ({"n_test": 1, "n_train": 0, "n_val": 0}, {"n_test": 3, "n_train": 1, "n_val": 1}),
    "refcocog": ({"n_train": 1, "n_val": 0, "n_test": 1}, {"n_train": 1, "n_val": 1, "n_test": 2}),
    "gqa": ({"n_train": 1, "n_val": 1, "n_testdev": 1}, {"n_train": 2, "n_val": 1, "n_testdev": 1}),
    "spatialsense": ({"n_test": 1, "n_train": 0, "n_valid": 0}, {"n_test": 2, "n_train": 1, "n_valid": 1}),
    "tricd": ({"n_test": 1, "n_val": 1}, {"n_test": 2, "n_val": 1}),
}


def ensure(name, root, **options):
    make = miniworld.make_flickr30k if name == "flickr30k" else getattr(miniworld, f"ensure_{name}")
    return make(root, **options, **({} if name == "fillers" else {"progress": False}))


def files(root):
    return {p.relative_to(root): p for p in root.rglob("*") if p.is_file() and p.name != ".lock"}


def contents(root):
    return {name: path.read_bytes() for name, path in files(root).items()}


def stamps(root):
    return {name: path.stat().st_mtime_ns for name, path in files(root).items()}


@pytest.mark.parametrize("name", ["flickr30k", *SUMS])
def test_the_committed_checksum_holds(name):
    assert checksum_of(name) == (CHECKSUM if name == "flickr30k" else SUMS[name][0])


def test_another_process_with_other_processor_features_gives_the_same_bytes():
    env = {**os.environ, "PYTHONHASHSEED": "7", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 X86_V3 X86_V4"}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("miniworld_sums.py")), "2"]
    out = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    if out.returncode:  # NumPy refuses to switch off what this processor lacks or what its build needs
        env.pop("NPY_DISABLE_CPU_FEATURES")
        out = subprocess.run(command, capture_output=True, text=True, env=env, check=True, timeout=300)
    assert out.stdout.split() == [checksum_of(name, 2) for name in ["flickr30k", *SUMS]]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_folder_grows_to_what_it_would_have_been_and_never_shrinks(tmp_path, name):
    few, more = LAYOUTS[name]
    whole = contents(ensure(name, tmp_path / "whole", **more))
    root = ensure(name, tmp_path / "grown", **few)
    assert len(contents(root)) < len(whole)
    ensure(name, root, **more)
    assert contents(root) == whole
    before = stamps(root)
    for counts in (few, more):
        assert ensure(name, root, **counts) == root and stamps(root) == before
    other = contents(ensure(name, tmp_path / "other", **few, seed=7))
    assert not any(other[path] == whole.get(path) for path in other if path.suffix in (".png", ".jpg"))
    with pytest.raises(ValueError, match="seed"):
        ensure(name, root, **few, seed=7)
    with pytest.raises(ValueError, match=next(iter(few))):
        ensure(name, tmp_path / "w", **{**few, next(iter(few)): -1})
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_folder_is_made_anew_only_where_that_is_asked(tmp_path, name):
    root = ensure(name, tmp_path / "w", **LAYOUTS[name][0])
    whole, last = contents(root), max(path for path in files(root) if path.suffix in (".png", ".jpg"))
    (root / last).write_bytes(b"older")
    ensure(name, root, **LAYOUTS[name][0])
    assert (root / last).read_bytes() == b"older"
    ensure(name, root, **LAYOUTS[name][0], anew=True)
    assert contents(root) == whole


def test_a_run_that_was_cut_off_goes_on(tmp_path, monkeypatch):
    counts = LAYOUTS["refer"][1]

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(refer, "_files", stop)
    with pytest.raises(KeyboardInterrupt):
        ensure("refer", tmp_path / "w", **counts)
    assert read_card(tmp_path / "w")["pictures"] == {}
    monkeypatch.undo()
    before = stamps(tmp_path / "w")
    ensure("refer", tmp_path / "w", **counts)
    assert contents(tmp_path / "w") == contents(ensure("refer", tmp_path / "whole", **counts))
    assert {name for name, stamp in stamps(tmp_path / "w").items() if before.get(name, stamp) != stamp} == {
        Path("miniworld.json")}


@pytest.mark.parametrize("name", LAYOUTS)
def test_other_folders_are_left_alone(tmp_path, name):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="thesis"):
        ensure(name, tmp_path)
    assert [*files(tmp_path)] == [Path("thesis.tex")]


def test_another_layout_or_version_is_refused(tmp_path):
    root = ensure("fillers", tmp_path / "w", n=1)
    with pytest.raises(ValueError, match="layout"):
        ensure("mininet", root, n=1)
    card = (root / "miniworld.json").read_text()
    (root / "miniworld.json").write_text(card.replace('"version": 1', '"version": 0'))
    with pytest.raises(ValueError, match="version"):
        ensure("fillers", root, n=1)


@pytest.mark.parametrize(("word", "call"), [
    ("split", lambda: miniworld.make_scene(0, "dev")), ("index", lambda: miniworld.make_scene(-1)),
    ("size", lambda: miniworld.make_scene(0, size=8)), ("split", lambda: crowd.make_crowd(0, "test", seed=1)),
    ("index", lambda: crowd.make_crowd(-1, "val", seed=1)), ("folder", lambda: mininet.filler(0, "street")),
    ("name", lambda: mininet_picture("zebra", 0)),
    ("index", lambda: mininet_picture("dog", 1000)),
    ("index", lambda: tricd.group(-1, "val")), ("splits", lambda: miniworld.ensure("w", "dev")),
    ("predicate", lambda: is_true(miniworld.make_picture(0), 0, "touching", 1)),
    ("manner", lambda: expressions(miniworld.make_scene(0), 0, "refclef", 2, None)),
])
def test_a_bad_argument_is_named(word, call):
    with pytest.raises(ValueError, match=word):
        call()
