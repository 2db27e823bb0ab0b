"""Explorers for lessons, and a simulation of what intervals hold."""
