"""Synthesis methods as components of each framework."""
