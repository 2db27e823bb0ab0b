"""COCO: masks of its annotations, its instances and captions, its folders."""
