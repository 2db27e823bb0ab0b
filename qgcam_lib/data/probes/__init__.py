"""Groups of the conceptual probes, and their published files."""
