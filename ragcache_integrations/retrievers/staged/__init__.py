"""Retrievers over staged search."""

from .core import STAGED_INDEX_METHODS

__all__ = [
    "STAGED_INDEX_METHODS",
]
