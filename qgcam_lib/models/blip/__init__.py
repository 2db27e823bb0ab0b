"""BLIP."""
