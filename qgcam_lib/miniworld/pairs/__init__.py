"""Scenes that contradict each other in one thing, and the steps of TRICD's construction."""
