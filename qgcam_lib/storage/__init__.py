"""What is written and how: files, fingerprints, rows of a run, maps."""
