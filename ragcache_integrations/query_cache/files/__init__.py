"""Saving and loading a cache."""
