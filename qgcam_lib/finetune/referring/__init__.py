"""Rankers of regions: their losses, their data as arrays, and their training, with negatives or with questions."""
