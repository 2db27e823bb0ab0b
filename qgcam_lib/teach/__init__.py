"""Explorers for lessons."""
