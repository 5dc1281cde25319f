"""Entries and changes as Redis keeps them: numbers and ids, no document's text.

An entry is the time of its insertion, which Redis writes before it (16 digits, microseconds), a
header, the query's embedding, and a list of its documents. What is not exactly so, by its length
and checksum, is no entry: Redis is written to by others, too.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LARGEST_CHANGE",
    "Record",
    "decode_change",
    "decode_record",
    "embedding_bytes",
    "encode_change",
    "encode_record",
]

Vectors = NDArray[np.float32]

LARGEST_CHANGE = 1 << 18
"""Bytes of the changes that a shard remembers."""

_FORMAT = b"RQ1 "
_STAMP = 16  # bytes
# Format, checksum of what follows it, dimension, bytes of the list, complete, version, radius.
_HEADER = struct.Struct("<4sIII?xxxQd")
_CHECKED = 8  # offset of what the checksum is of
_CHANGE = struct.Struct("<4sIII")


@dataclass(frozen=True, slots=True)
class Record:
    """An entry.

    Attributes:
        key: The query's embedding as keys are kept, shape (dim,).
        documents: Id, fingerprint and score of each candidate, best first.
        complete: The store had no more documents.
        version: The shard's, as known before the search began.
        radius: Within which of the key every document is known.
    """

    key: Vectors
    documents: tuple[tuple[str, str, float | None], ...]
    complete: bool
    version: int
    radius: float


def encode_record(record: Record) -> bytes:
    """Return an entry as it is kept, but for the time of its insertion."""
    listed = json.dumps(record.documents, separators=(",", ":")).encode("ascii")
    key = record.key.astype("<f4").tobytes()
    header = _HEADER.pack(
        _FORMAT, 0, record.key.size, len(listed), record.complete, record.version, record.radius
    )
    body = header[_CHECKED:] + key + listed
    return _FORMAT + struct.pack("<I", zlib.crc32(body)) + body


def embedding_bytes(value: bytes, dim: int) -> bytes | None:
    """Return the bytes of an entry's embedding, unchecked; ``None`` where it is no entry.

    Args:
        value: What Redis holds.
        dim: Dimension of the embeddings.
    """
    begin = _STAMP + _HEADER.size
    if len(value) < begin or value[_STAMP : _STAMP + 4] != _FORMAT:
        return None
    _, _, size, listed, *_ = _HEADER.unpack_from(value, _STAMP)
    if size != dim or len(value) != begin + 4 * dim + listed or not value[:_STAMP].isdigit():
        return None
    return value[begin : begin + 4 * dim]


def decode_record(value: bytes, dim: int) -> tuple[Record, int] | None:
    """Return an entry and the time of its insertion, in microseconds; ``None`` if it is none.

    Args:
        value: What Redis holds.
        dim: Dimension of the embeddings.
    """
    key = embedding_bytes(value, dim)
    if key is None:
        return None
    _, checksum, _, _, complete, version, radius = _HEADER.unpack_from(value, _STAMP)
    if zlib.crc32(memoryview(value)[_STAMP + _CHECKED :]) != checksum or math.isnan(radius):
        return None
    vector = np.frombuffer(key, dtype="<f4").astype(np.float32)
    if not np.isfinite(vector).all():
        return None
    try:
        listed = json.loads(value[_STAMP + _HEADER.size + 4 * dim :])
        documents = tuple((one, mark, score) for one, mark, score in listed)
    except (TypeError, ValueError):
        return None
    if not all(_is_document(*one) for one in documents) or not (documents or complete):
        return None
    return Record(vector, documents, complete, version, radius), int(value[:_STAMP])


def _is_document(one: object, fingerprint: object, score: object) -> bool:
    plain = isinstance(one, str) and isinstance(fingerprint, str)
    return plain and (score is None or isinstance(score, float | int))


def encode_change(removed: Sequence[str], added: Sequence[str], vectors: Vectors) -> bytes:
    """Return a change of the store's documents as it is kept.

    Args:
        removed: Ids of documents that are gone.
        added: Ids of documents that came.
        vectors: Theirs, shape (len(added), dim), prepared.
    """
    listed = json.dumps([list(removed), list(added)], separators=(",", ":")).encode("ascii")
    body = vectors.astype("<f4").tobytes() + listed
    return _CHANGE.pack(_FORMAT, zlib.crc32(body), vectors.shape[1], len(listed)) + body


def decode_change(
    value: bytes, dim: int
) -> tuple[tuple[str, ...], tuple[str, ...], Vectors] | None:
    """Return what :func:`encode_change` was given; ``None`` where it was given nothing."""
    if len(value) < _CHANGE.size:
        return None
    mark, checksum, size, listed = _CHANGE.unpack_from(value)
    end = len(value) - listed
    body = memoryview(value)[_CHANGE.size :]
    if mark != _FORMAT or size != dim or end < _CHANGE.size or zlib.crc32(body) != checksum:
        return None
    try:
        removed, added = (tuple(one) for one in json.loads(value[end:]))
        vectors = np.frombuffer(value[_CHANGE.size : end], dtype="<f4").reshape(len(added), dim)
    except (TypeError, ValueError):
        return None
    wide = vectors.astype(np.float32)
    strings = all(isinstance(one, str) for one in (*removed, *added))
    return (removed, added, wide) if strings and np.isfinite(wide).all() else None
