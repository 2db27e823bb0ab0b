"""An explainer whose map is the brightness of the picture, and a data set of pictures with a bright spot."""

import csv

import numpy as np

from qgcam_lib.data.by_image import ExampleList
from qgcam_lib.data.catalog import Layout
from qgcam_lib.data.records import GroundingExample
from qgcam_lib.models.registry import ModelEntry


class Bright:
    """maps(image, phrases): the grey values on a grid of 12 x 12, whatever the phrase."""

    protocol = "pixel"

    def __init__(self):
        self.card = {"name": "bright", "weights": "none"}

    def maps(self, image, phrases):
        grey = np.asarray(image.convert("L").resize((12, 12)), np.float32)
        return np.repeat(grey[None], len(phrases), 0)


def load(entry, weights, device="cpu", seed=0):
    """What `load_model("bright", "random")` calls: there is nothing to load."""
    return Bright()


class Spots(ExampleList):
    """The examples, and the files that they come from: their bytes are part of a run's id."""

    def __init__(self, examples, folder):
        super().__init__(examples, "bright spots")
        self.folder = folder

    def files(self):
        return sorted(self.folder.iterdir())


def open_spots(folder, split, on_error="raise", **options):
    """The examples of spots.csv: file, phrase, x0, y0, x1, y1, height, width."""
    with open(folder / "spots.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    examples = [GroundingExample(row["file"], folder / row["file"], row["phrase"],
                                 np.array([[float(row[key]) for key in ("x0", "y0", "x1", "y1")]]), row["file"],
                                 (int(row["height"]), int(row["width"]))) for row in rows]
    return Spots(examples, folder)


ENTRY = ModelEntry("bright", "brightness", (12, 12), licence="MIT", loader="qgcam_bright:load")
LAYOUT = Layout(("spots.csv",), open_spots, lambda folder: ["test"])
