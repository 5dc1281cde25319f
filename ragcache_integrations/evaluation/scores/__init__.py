"""Scores, figures and their intervals."""
