"""Prompt programs: schemas written as Python functions."""
