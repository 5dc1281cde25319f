"""Retrievers with a query cache in front of any store."""

from .knobs import CacheKnobs, read_knobs

__all__ = [
    "CacheKnobs",
    "read_knobs",
]
