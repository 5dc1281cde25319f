"""Speculative pipelining: generation starts before the search ends."""
