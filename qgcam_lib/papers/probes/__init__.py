"""The conceptual probes."""
