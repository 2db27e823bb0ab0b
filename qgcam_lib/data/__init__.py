"""Loaders: one module for every official data format."""
