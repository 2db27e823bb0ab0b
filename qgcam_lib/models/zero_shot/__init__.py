"""Rankers of boxes made from models that were trained for something else: CLIP, BLIP, explainers, detectors."""
