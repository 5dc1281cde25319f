"""Leaves out documents that do not help."""
