"""Searches as runs that the frameworks' callbacks and traces see."""

from .base import aobserved, observed

__all__ = [
    "aobserved",
    "observed",
]
