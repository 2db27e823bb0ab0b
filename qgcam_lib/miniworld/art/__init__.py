"""Pixels: dice, shapes, creatures, objects, backgrounds."""
