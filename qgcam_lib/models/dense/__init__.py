"""Dense grounding: the minis after MDETR and GLIP."""
