"""Conversations whose prefix stays the same from turn to turn."""
