"""Modular attention reuse as a chain of each framework."""
