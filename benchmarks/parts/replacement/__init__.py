"""Replacement policies of others over the knowledge tree, and the offline optimum."""
