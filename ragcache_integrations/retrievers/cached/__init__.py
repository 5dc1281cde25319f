"""Retrievers with a query cache in front of any store."""

from .knobs import CacheKnobs, SharedKnobs, check_distance, read_knobs

__all__ = [
    "CacheKnobs",
    "SharedKnobs",
    "check_distance",
    "read_knobs",
]
