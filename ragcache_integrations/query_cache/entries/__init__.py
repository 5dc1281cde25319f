"""Entries, their keys and vectors, and how they follow changes of the store."""
