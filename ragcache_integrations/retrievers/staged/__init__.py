"""Retrievers over staged search."""

from .core import StagedRequest
from .index_changes import STAGED_INDEX_METHODS

__all__ = [
    "STAGED_INDEX_METHODS",
    "StagedRequest",
]
