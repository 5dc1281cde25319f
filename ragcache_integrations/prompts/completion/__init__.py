"""Prompts for models that complete text."""
