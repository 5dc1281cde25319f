"""Searches as runs that the frameworks' callbacks and traces see."""
