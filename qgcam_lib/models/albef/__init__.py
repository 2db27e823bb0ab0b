"""ALBEF."""
