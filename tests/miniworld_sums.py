"""SHA-256 over pixels and words of each data set of the miniworld, beside the constants of the library."""

import json
import sys

from qgcam_lib.miniworld import checksum
from qgcam_lib.miniworld.scenes import crowd
from qgcam_lib.miniworld.scenes.render import SEED
from qgcam_lib.miniworld.words.expressions import MANNERS
from qgcam_lib.miniworld.words.listener import Listener
from qgcam_lib.miniworld.writers import gqa, mininet, refcocog, refer, spatialsense, swaps, tricd
from qgcam_lib.miniworld.writers.files import pixels
from qgcam_lib.storage.files import sha256_of


def text(*content):
    return json.dumps(content[0] if len(content) == 1 else content, sort_keys=True)


def of_coco(count):
    for split in tricd.COCO_SPLITS:
        pictures = [tricd.coco_picture(k, split) for k in range(count)]
        yield from [*pixels(pictures), text(tricd.coco_files(pictures, split))]


def of_visual_genome(count):
    pictures = [spatialsense.genome_picture(k) for k in range(count)]
    return [*pixels(pictures), *spatialsense.genome_files(pictures).values()]


def of_fillers(count):
    return pixels(mininet.filler(k, folder) for folder in mininet.FILLERS for k in range(count))


def of_mininet(count):
    return [mininet.classes_csv(),
            *pixels(mininet.mininet_picture(name, k) for name in mininet.CLASSES for k in range(count))]


def of_swaps(count):
    groups = [swaps.swap(k) for k in range(count)]
    return [swaps.swaps_text([swaps.swap_record(g, k) for k, g in enumerate(groups)]),
            *pixels(p for g in groups for p in g.pictures)]


def of_refer(count):
    for picture in (crowd.make_crowd(k, split, seed=SEED) for split in crowd.SPLITS for k in range(count)):
        said = [refer.references(picture.scene, manner) for manner in MANNERS]
        yield from [*pixels([picture]), text(*refer.objects_of(picture), *said)]


def of_refcocog(count):
    for picture in (crowd.make_doubles(k, split, seed=SEED) for split in crowd.DOUBLES_SPLITS for k in range(count)):
        truth = refcocog._truth(picture.scene, refcocog.told(picture.scene))
        yield from [*pixels([picture]), text(refer.instances(picture), truth)]


def of_gqa(count):
    for picture in (crowd.make_doubles(k, split, seed=SEED) for split in crowd.DOUBLES_SPLITS for k in range(count)):
        scene = picture.scene
        yield from [*pixels([picture]), text(gqa.scene_graph(Listener(scene)), gqa.questions(scene))]


def of_spatialsense(count):
    for split in spatialsense.SPLITS:
        for entry, picture in (spatialsense.record(k, split) for k in range(count)):
            yield from [*pixels([picture]), text(entry)]


def of_tricd(count):
    for split in tricd.SPLITS:
        groups = [tricd.group(k, split) for k in range(count)]
        yield from pixels(picture for g in groups for picture in g.pictures)
        yield text(tricd.grounding(groups, split), tricd.questions(groups, split))


SUMS = {  # name: (what the library says, how many pictures, what is summed)
    "coco": (tricd.COCO_CHECKSUM, 16, of_coco), "visual_genome": (spatialsense.GENOME_CHECKSUM, 32, of_visual_genome),
    "fillers": (mininet.FILLERS_CHECKSUM, 16, of_fillers), "mininet": (mininet.MININET_CHECKSUM, 5, of_mininet),
    "swaps": (swaps.SWAPS_CHECKSUM, 20, of_swaps), "refer": (refer.CHECKSUM, 8, of_refer),
    "refcocog": (refcocog.REFCOCOG_CHECKSUM, 6, of_refcocog), "gqa": (gqa.GQA_CHECKSUM, 6, of_gqa),
    "spatialsense": (spatialsense.SPATIALSENSE_CHECKSUM, 16, of_spatialsense),
    "tricd": (tricd.TRICD_CHECKSUM, 15, of_tricd),
}


def checksum_of(name, count=None):
    """The checksum of a data set, over so many pictures (None: as many as the library's constant covers)."""
    if name == "flickr30k":
        return checksum(range(count or 64))
    _, usual, parts = SUMS[name]
    return sha256_of(*parts(count or usual))


if __name__ == "__main__":
    print(*(checksum_of(name, int(sys.argv[1])) for name in ["flickr30k", *SUMS]))
