"""Entries, their keys and vectors, and how they follow changes of the store."""

from .changes import ChangeLog, Part
from .contents import Contents
from .document_vectors import DocumentVectors
from .entry import NEVER, Entry, NewEntry, Readable, check_candidates
from .keys import hyperplanes
from .pool import DocumentKey, document_keys
from .table import NOWHERE, EntryTable, serving

__all__ = [
    "NEVER",
    "NOWHERE",
    "ChangeLog",
    "Contents",
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
