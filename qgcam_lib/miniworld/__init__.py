"""The miniworld: rendered scenes with known truth, written in the official formats of the real data sets."""

from qgcam_lib.miniworld.writers.flickr30k import CHECKSUM, checksum, ensure, make_flickr30k, read_card
from qgcam_lib.miniworld.words.language import describe
from qgcam_lib.miniworld.writers.refer import ensure_refer, make_refer, refer_checksum
from qgcam_lib.miniworld.scenes.render import SEED, Picture, make_picture, make_scene, render
from qgcam_lib.miniworld.scenes.scene import Relation, Scene, Thing
from qgcam_lib.miniworld.writers.spatialsense import ensure_spatialsense, make_spatialsense, spatialsense_checksum
from qgcam_lib.miniworld.writers.tricd import ensure_tricd, make_tricd, tricd_checksum
from qgcam_lib.miniworld.words.words import vocabulary

__all__ = ["CHECKSUM", "SEED", "Picture", "Relation", "Scene", "Thing", "checksum", "describe", "ensure",
           "ensure_refer", "ensure_spatialsense", "ensure_tricd", "make_flickr30k", "make_picture",
           "make_refer", "make_scene", "make_spatialsense", "make_tricd", "read_card", "refer_checksum",
           "render", "spatialsense_checksum", "tricd_checksum", "vocabulary"]
