"""Dual encoders as matchers: CLIP, MetaCLIP, SigLIP, ALIGN, FLAVA, OTTER."""
