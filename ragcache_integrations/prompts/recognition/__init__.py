"""Finds the retrieved documents within a prompt."""

from .marking import mark_documents, mark_prompt
from .requests import REQUESTS, UNKNOWN
from .segmentation import SEGMENTATIONS

__all__ = [
    "REQUESTS",
    "SEGMENTATIONS",
    "UNKNOWN",
    "mark_documents",
    "mark_prompt",
]
