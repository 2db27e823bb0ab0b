"""The miniworld: rendered scenes with known truth, written in the official formats of the real data sets."""

from .scenes.render import SEED, Picture, make_picture, make_scene, render
from .scenes.scene import Relation, Scene, Thing
from .words.language import describe
from .words.words import vocabulary
from .writers.coco import coco_checksum, ensure_coco, make_coco
from .writers.files import read_card
from .writers.fillers import ensure_fillers, fillers_checksum, make_fillers
from .writers.flickr30k import CHECKSUM, checksum, ensure, make_flickr30k
from .writers.gqa import ensure_gqa, gqa_checksum, make_gqa
from .writers.mininet import ensure_mininet, make_mininet, mininet_checksum
from .writers.refcocog import ensure_refcocog, make_refcocog, refcocog_checksum
from .writers.refer import ensure_refer, make_refer, refer_checksum
from .writers.spatialsense import ensure_spatialsense, make_spatialsense, spatialsense_checksum
from .writers.swaps import ensure_swaps, make_swaps, swaps_checksum
from .writers.tricd import ensure_tricd, make_tricd, tricd_checksum
from .writers.visual_genome import ensure_visual_genome, genome_checksum, make_visual_genome

__all__ = ["CHECKSUM", "Picture", "Relation", "SEED", "Scene", "Thing", "checksum", "coco_checksum", "describe",
           "ensure", "ensure_coco", "ensure_fillers", "ensure_gqa", "ensure_mininet", "ensure_refcocog",
           "ensure_refer", "ensure_spatialsense", "ensure_swaps", "ensure_tricd", "ensure_visual_genome",
           "fillers_checksum", "genome_checksum", "gqa_checksum", "make_coco", "make_fillers", "make_flickr30k",
           "make_gqa", "make_mininet", "make_picture", "make_refcocog", "make_refer", "make_scene",
           "make_spatialsense", "make_swaps", "make_tricd", "make_visual_genome", "mininet_checksum", "read_card",
           "refcocog_checksum", "refer_checksum", "render", "spatialsense_checksum", "swaps_checksum",
           "tricd_checksum", "vocabulary"]
