"""Retrievers over staged search."""

from .core import STAGED_INDEX_METHODS, StagedRequest

__all__ = [
    "STAGED_INDEX_METHODS",
    "StagedRequest",
]
