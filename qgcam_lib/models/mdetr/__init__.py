"""MDETR."""
