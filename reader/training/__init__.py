"""Trains the reader that answers where no model is named; see ``README.md``."""
