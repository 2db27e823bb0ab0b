"""Builds the probes from official annotations: words, relations, attributes, edited pictures."""
