"""ViLT."""
