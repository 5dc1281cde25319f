"""Entries, their keys and vectors, and how they follow changes of the store."""

from .changes import ChangeLog
from .document_vectors import DocumentVectors
from .entry import Entry, Readable, check_candidates
from .keys import hyperplanes
from .pool import DocumentKey
from .readable import make_readable
from .table import NOWHERE, EntryTable, serving

__all__ = [
    "NOWHERE",
    "ChangeLog",
    "DocumentKey",
    "DocumentVectors",
    "Entry",
    "EntryTable",
    "Readable",
    "check_candidates",
    "hyperplanes",
    "make_readable",
    "serving",
]
