"""Flickr30k Entities: its files, and its examples."""
