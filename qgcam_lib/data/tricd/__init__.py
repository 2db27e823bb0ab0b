"""TRICD: pairs of picture and caption, its files, its counts."""
