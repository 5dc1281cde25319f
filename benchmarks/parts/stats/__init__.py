"""Intervals, times and tables."""
