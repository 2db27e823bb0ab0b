"""Rankers of regions: their losses, their data as arrays, and their training, with negatives and beside questions."""
