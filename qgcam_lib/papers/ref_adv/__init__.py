"""Ref-Adv."""
