"""Data sets and how their answers are scored."""
