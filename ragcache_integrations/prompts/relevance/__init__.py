"""Leaves out irrelevant documents."""
