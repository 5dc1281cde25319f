"""Finds the retrieved documents within a prompt."""
