"""TRICD."""
