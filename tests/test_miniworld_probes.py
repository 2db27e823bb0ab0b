"""The miniworld for the conceptual probes: unbiased twins, COCO, Visual Genome, fillers, MiniNet and swaps."""

import pytest

from qgcam_lib.miniworld import ensure, make_picture, read_card
from qgcam_lib.miniworld.writers.flickr30k import annotated, image_id, sentences_text

# ---------------------------------------------------------------- the unbiased twin


def test_the_unbiased_folder_holds_unbiased_training_scenes_and_the_usual_test_scenes(tmp_path):
    root = ensure(tmp_path / "w", ("train", "test"), n_train=4, n_test=2, natural=False, progress=False)
    assert read_card(root)["splits"] == {"test": 2, "train": 4}
    for i in range(4):
        _, sentences, _ = annotated(i, "train", natural=False)
        assert (root / "Sentences" / f"{image_id(i, 'train')}.txt").read_text() == sentences_text(sentences)
    assert [make_picture(i, "train", natural=False).scene.natural for i in range(2)] == [False, False]
    _, sentences, _ = annotated(1)
    assert (root / "Sentences" / f"{image_id(1, 'test')}.txt").read_text() == sentences_text(sentences)


@pytest.mark.parametrize("first", [True, False])
def test_neither_twin_continues_the_other(tmp_path, first):
    ensure(tmp_path / "w", n_test=1, natural=first, progress=False)
    with pytest.raises(ValueError, match="layout"):
        ensure(tmp_path / "w", n_test=1, natural=not first, progress=False)
