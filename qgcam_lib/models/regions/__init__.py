"""Candidate boxes as regions: their geometry, their features, and the networks that rank them by an expression."""
