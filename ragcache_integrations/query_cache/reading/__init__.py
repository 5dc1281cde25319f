"""Lookups: matching, re-ranking, decisions."""
