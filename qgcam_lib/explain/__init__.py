"""Explainers: from a model and a phrase to a map."""
