"""Prompt templates with the stable parts first; cache fields of providers."""
