"""The miniworld: rendered scenes with known truth, written in the official formats of the real data sets."""

from .. import lazy_face

# The names by the module that has them. A module is loaded when one of its names is first used.
ROOMS = {
    "scenes.render": ("SEED", "Picture", "make_picture", "make_scene", "render"),
    "scenes.scene": ("Relation", "Scene", "Thing"), "words.language": ("describe",), "words.words": ("vocabulary",),
    "writers.coco": ("coco_checksum", "ensure_coco", "make_coco"), "writers.files": ("read_card",),
    "writers.fillers": ("ensure_fillers", "fillers_checksum", "make_fillers"),
    "writers.flickr30k": ("CHECKSUM", "checksum", "ensure", "make_flickr30k"),
    "writers.gqa": ("ensure_gqa", "gqa_checksum", "make_gqa"),
    "writers.mininet": ("ensure_mininet", "make_mininet", "mininet_checksum"),
    "writers.refcocog": ("ensure_refcocog", "make_refcocog", "refcocog_checksum"),
    "writers.refer": ("ensure_refer", "make_refer", "refer_checksum"),
    "writers.spatialsense": ("ensure_spatialsense", "make_spatialsense", "spatialsense_checksum"),
    "writers.swaps": ("ensure_swaps", "make_swaps", "swaps_checksum"),
    "writers.tricd": ("ensure_tricd", "make_tricd", "tricd_checksum"),
    "writers.visual_genome": ("ensure_visual_genome", "genome_checksum", "make_visual_genome"),
}
__all__ = sorted(name for names in ROOMS.values() for name in names)
__getattr__, __dir__ = lazy_face(__name__, ROOMS)
