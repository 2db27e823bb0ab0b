"""The same files give the same number through every door, and every door says under which protocol."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy import ndimage

from qgcam_lib.cli.main import main
from qgcam_lib.data.records import GroundingExample
from qgcam_lib.grounding import ground
from qgcam_lib.grounding.own_maps import score_files
from qgcam_lib.grounding.run import score_store
from qgcam_lib.metrics import SCORE_COLUMNS, score_maps
from qgcam_lib.metrics.torchmetric import GroundingScores

SIZE, N = (240, 320), 6
RNG = np.random.default_rng(5)
IDS = [f"i{k}" for k in range(N)]
MAPS = np.stack([ndimage.gaussian_filter(RNG.random((24, 24)) ** 6, 1) for _ in IDS]).astype(np.float32)
BOXES = np.array([[[x, y, x + 90, y + 70]] for x, y in RNG.integers(0, 150, (N, 2))], float)


class Own:
    """An explainer with these maps."""

    card = {"name": "own"}

    def __init__(self, maps):
        self.kept = dict(zip(IDS, torch.from_numpy(maps)))

    def maps(self, image, phrases):
        return torch.stack([self.kept[phrase] for phrase in phrases])

    def maps_batch(self, images, phrases):
        return [self.maps(image, some) for image, some in zip(images, phrases)]


def doors(folder, capsys, maps=MAPS, **options):
    """wdp_soft and the protocol as each door gives them."""
    examples = [GroundingExample(id, folder / "grey.png", id, box, id, SIZE) for id, box in zip(IDS, BOXES)]
    Image.new("RGB", SIZE[::-1]).save(folder / "grey.png")
    np.savez(folder / "maps.npz", maps=maps, ids=IDS)
    records = {id: {"boxes": box.tolist(), "size": SIZE} for id, box in zip(IDS, BOXES)}
    (folder / "boxes.json").write_text(json.dumps(records))
    found, metric = {}, GroundingScores(**options)
    frame = score_maps(maps, BOXES, image_sizes=SIZE, **options)
    found["score_maps"] = frame.wdp_soft.mean(), frame.attrs["settings"]["protocol"]["name"]
    assert repr(frame).startswith(f"protocol {frame.attrs['settings']['protocol']['name']} ")
    for part in (slice(0, 2), slice(2, N)):
        metric.update(maps[part], BOXES[part], image_sizes=SIZE)
    found["GroundingScores"] = metric.compute()["wdp_soft"].item(), metric.protocol.name
    assert repr(metric).startswith(f"GroundingScores({metric.protocol.name!r}, ")
    frame = ground(Own(maps), examples, progress=False, save_maps=folder / "kept", **options)
    found["ground"] = frame.wdp_soft.mean(), frame.attrs["settings"]["protocol"]["name"]
    again = score_store(folder / "kept", examples, **options)
    found["score_store"] = again.wdp_soft.mean(), again.columns.name.removeprefix("protocol ")
    frame = score_files(folder / "maps.npz", folder / "boxes.json", **options)
    found["score_files"] = frame.wdp_soft.mean(), frame.protocol.unique().item()
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    call = ["score", str(folder / "maps.npz"), str(folder / "boxes.json"), *given]
    assert main([*call, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    values = {row["metric"]: row["value"] for row in said["summary"]}
    found["qgcam score"] = values["wdp_soft"], said["settings"]["protocol"]["name"]
    assert main(call) == 0
    assert f"; protocol: {said['settings']['protocol']['name']}; " in capsys.readouterr().out
    return pd.DataFrame(found, index=["wdp_soft", "protocol"]).T


def test_every_door_has_the_same_default(tmp_path, capsys):
    found = doors(tmp_path, capsys)
    assert set(found.protocol) == {"paper"}
    assert np.ptp(found.wdp_soft.astype(float)) < 1e-12
    native = score_maps(MAPS, BOXES, image_sizes=SIZE, protocol="native").wdp_soft.mean()
    assert found.wdp_soft["ground"] > 0.98 and native < 0.85  # what two of the doors gave when each had its own default


@pytest.mark.parametrize("options", [{"protocol": "pixel"}, {"protocol": "native", "negatives": "relu"}])
def test_every_door_takes_the_same_options(tmp_path, capsys, options):
    signed = MAPS - np.float32(0.05) if "negatives" in options else MAPS
    found = doors(tmp_path, capsys, signed, **options)
    assert set(found.protocol) == {options["protocol"]} and np.ptp(found.wdp_soft.astype(float)) < 1e-12


def test_without_image_sizes_boxes_lie_on_the_maps_grid():
    small, metric = BOXES / 16, GroundingScores()
    metric.update(MAPS, small)
    frame = score_maps(MAPS, small)
    assert frame.attrs["settings"]["protocol"]["name"] == metric.protocol.name == "native"
    pd.testing.assert_frame_equal(frame, score_maps(MAPS, small, protocol="native"))
    wrong = lambda: metric.update(MAPS, BOXES, image_sizes=SIZE), lambda: (metric(MAPS, BOXES, SIZE), metric.compute())
    for one in wrong:
        with pytest.raises(ValueError, match="Pass image_sizes in every update or in none"):
            one()


def test_ground_counts_what_became_of_negative_values_also_when_continued(tmp_path):
    signed, folder = MAPS.copy(), tmp_path / "rows"
    signed[1] -= 0.1
    signed[4] -= 0.2
    Image.new("RGB", SIZE[::-1]).save(tmp_path / "grey.png")
    examples = [GroundingExample(id, tmp_path / "grey.png", id, box, id, SIZE) for id, box in zip(IDS, BOXES)]
    with pytest.raises(ValueError, match="negative ones"):
        ground(Own(signed), examples, progress=False)
    for _ in range(2):  # the second time every row is read from the store
        frame = ground(Own(signed), examples, negatives="relu", store=folder, progress=False)
        assert frame.attrs["negatives"] == {"rule": "relu", "n_maps": 2, "n_cells": int((signed < 0).sum())}
    expected = score_maps(np.maximum(signed, 0), BOXES, image_sizes=SIZE)
    for name in SCORE_COLUMNS:
        np.testing.assert_array_equal(frame[name], expected[name].astype(float))
