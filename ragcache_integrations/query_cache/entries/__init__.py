"""Entries, their keys and vectors, and how they follow changes of the store."""

from .changes import ChangeLog, Part
from .document_vectors import DocumentVectors
from .entry import NEVER, DocumentKey, Entry, NewEntry, Readable, check_candidates, document_keys
from .table import NOWHERE, EntryTable, hyperplanes, serving

__all__ = [
    "NEVER",
    "NOWHERE",
    "ChangeLog",
    "DocumentKey",
    "DocumentVectors",
    "Entry",
    "EntryTable",
    "NewEntry",
    "Part",
    "Readable",
    "check_candidates",
    "document_keys",
    "hyperplanes",
    "serving",
]
