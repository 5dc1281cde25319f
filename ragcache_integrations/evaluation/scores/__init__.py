"""Scores of answers, figures of runs, and confidence intervals."""
