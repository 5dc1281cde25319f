"""Entries and changes as Redis keeps them, and the names of their keys: no document's text.

An entry is the time of its insertion, which Redis writes before it (16 digits, microseconds), a
header, the query's embedding, and its words (if lookups compare them) with a list of its documents.
What is not exactly so, by its length and checksum, is no entry: Redis is written to by others, too.

The names of all keys hold a fingerprint of the settings on which answers depend: the format, the
dimension, the metric, the hyperplanes themselves, whether the search is exact, and ``tag``, which
names embedding model and store. Processes that differ in one of them do not see each other's
entries. Cache keys (namespaces, filters) and embeddings are in names as hashes only.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, StrictFloat, StrictInt, StrictStr, TypeAdapter

from ragcache_integrations.query_cache.entries import Part, hyperplanes
from ragcache_integrations.query_cache.files import encode_key
from ragcache_integrations.query_cache.settings import Settings

__all__ = [
    "LARGEST_BUCKET",
    "LARGEST_CHANGE",
    "LARGEST_LIST",
    "Names",
    "Record",
    "decode_change",
    "decode_record",
    "embedding_bytes",
    "encode_change",
    "encode_record",
]


Vectors = NDArray[np.float32]

_NAMES_FORMAT = 2
"""Raised with every change that an older version would misread."""


class Names:
    """Names of keys.

    Args:
        settings: The arguments of the cache, checked.
        prefix: Beginning of all names.
        shards: Into how many groups the buckets are cut.

    Attributes:
        planes: The hyperplanes, shape (L, dim).
        fingerprint: Hash of the settings, 16 hexadecimal digits.
        shards: Number of groups of buckets.
    """

    def __init__(self, settings: Settings, prefix: str, shards: int) -> None:
        self.planes = hyperplanes(settings.num_hyperplanes, settings.dim, settings.seed)
        agreed = (
            _NAMES_FORMAT,
            settings.dim,
            settings.metric,
            settings.num_hyperplanes,
            settings.exact_search,
            settings.tag,
            shards,
        )
        digest = hashlib.blake2b(json.dumps(agreed).encode(), digest_size=8)
        digest.update(self.planes.astype("<f4").tobytes())
        self.fingerprint = digest.hexdigest()
        self.shards = shards
        self._prefix = prefix
        self.partition = lru_cache(1024, typed=True)(_partition)

    def shard_of(self, bucket: int) -> int:
        """Return the group that a bucket belongs to."""
        return bucket % self.shards

    def of_shard(self, shard: int) -> list[str]:
        """Return the two keys of a group; they, and its buckets, lie in one slot."""
        return [f"{self._tag(shard)}:state", f"{self._tag(shard)}:changes"]

    def of_bucket(self, bucket: int, partition: str) -> str:
        """Return the key of a bucket of a cache key's entries."""
        return f"{self._tag(self.shard_of(bucket))}:{partition}:{bucket}"

    @staticmethod
    def of_entry(key: Vectors) -> bytes:
        """Return an entry's id; the same for embeddings that are equal, of which -0 and 0 are."""
        return hashlib.blake2b((key + np.float32(0)).tobytes(), digest_size=16).digest()

    def _tag(self, shard: int) -> str:
        """Return how names begin, with what Redis Cluster takes the slot from in braces."""
        return f"{self._prefix}:{{{self.fingerprint}:{shard}}}"


def _partition(key: Hashable) -> str:
    """Return a hash of a cache key, the same in every process.

    Raises:
        ConfigurationError: The key holds a value that has no meaning in another process.
    """
    encoded = json.dumps(encode_key(key), sort_keys=True)
    return hashlib.blake2b(encoded.encode(), digest_size=12).hexdigest()


LARGEST_CHANGE = 1 << 18
"""Bytes of the changes that a shard remembers."""

LARGEST_LIST = 1 << 20
"""Bytes of an entry's list of documents."""
LARGEST_BUCKET = 1 << 25
"""Bytes of a bucket, half of what one operation may read."""

_FORMAT = b"RQ2 "
_STAMP = 16  # bytes
# Format, checksum of what follows it, dimension, bytes of the list, complete, version, radius.
_HEADER = struct.Struct("<4sIII?xxxQd")
_CHECKED = 8  # offset of what the checksum is of
_CHANGE = struct.Struct("<4sIII")


def _encodable(text: str) -> str:
    text.encode()  # refuses half a character
    return text


_Text = Annotated[StrictStr, AfterValidator(_encodable)]
_Reach = Annotated[StrictFloat, Field(ge=0)]
# What lists must be.
_DOCUMENTS = TypeAdapter(tuple[tuple[_Text, _Text, StrictFloat | None], ...])
_IDS = TypeAdapter(tuple[tuple[_Text, ...], tuple[_Text, ...]])
_PART = TypeAdapter(
    tuple[frozenset[_Text], frozenset[_Text] | None, StrictInt | None, _Reach | None]
)


@dataclass(frozen=True, slots=True)
class Record:
    """An entry.

    Attributes:
        key: The query's embedding as keys are kept, shape (dim,).
        documents: Id, fingerprint and score of each candidate, best first.
        complete: The store had no more documents.
        version: The shard's, as known before the search began.
        radius: Within which of the key every document is known.
        text: The words of the query, where they are compared.
    """

    key: Vectors
    documents: tuple[tuple[str, str, float | None], ...]
    complete: bool
    version: int
    radius: float
    text: str = ""


def encode_record(record: Record) -> bytes:
    """Return an entry as Redis keeps it, without the time of its insertion."""
    fields = (record.text, record.documents)
    listed = json.dumps(fields, separators=(",", ":")).encode("ascii")
    key = record.key.astype("<f4").tobytes()
    header = _HEADER.pack(
        _FORMAT, 0, record.key.size, len(listed), record.complete, record.version, record.radius
    )
    body = header[_CHECKED:] + key + listed
    return _FORMAT + struct.pack("<I", zlib.crc32(body)) + body


def embedding_bytes(value: bytes, dim: int) -> bytes | None:
    """Return the bytes of an entry's embedding, unchecked; ``None`` where it is no entry.

    Args:
        value: The entry's bytes in Redis, unchecked.
        dim: Dimension of the embeddings.
    """
    begin = _STAMP + _HEADER.size
    if len(value) < begin or value[_STAMP : _STAMP + 4] != _FORMAT:
        return None
    _, _, size, listed, *_ = _HEADER.unpack_from(value, _STAMP)
    whole = len(value) == begin + 4 * dim + listed and listed <= LARGEST_LIST
    if size != dim or not whole or not value[:_STAMP].isdigit():
        return None
    return value[begin : begin + 4 * dim]


def decode_record(value: bytes, dim: int) -> tuple[Record, int] | None:
    """Return an entry and the time of its insertion, in microseconds; ``None`` if it is none.

    Args:
        value: The entry's bytes in Redis, unchecked.
        dim: Dimension of the embeddings.
    """
    key = embedding_bytes(value, dim)
    if key is None:
        return None
    _, checksum, _, _, complete, version, radius = _HEADER.unpack_from(value, _STAMP)
    # Only who had all documents knows them however far away.
    possible = not math.isnan(radius) and (complete or radius < math.inf)
    if zlib.crc32(memoryview(value)[_STAMP + _CHECKED :]) != checksum or not possible:
        return None
    vector = np.frombuffer(key, dtype="<f4").astype(np.float32)
    if not np.isfinite(vector).all():
        return None
    try:
        text, listed = json.loads(value[_STAMP + _HEADER.size + 4 * dim :])
        documents = _DOCUMENTS.validate_python(listed)
    except (TypeError, ValueError, RecursionError):
        return None
    if not isinstance(text, str) or not (documents or complete):
        return None
    return Record(vector, documents, complete, version, radius, text), int(value[:_STAMP])


def encode_change(
    removed: Sequence[str], added: Sequence[str], vectors: Vectors, part: Part | None = None
) -> bytes:
    """Return a change of the store's documents as it is kept, or a part that is forgotten.

    Processes that know of no such parts take it for an unknown change, and forget everything.

    Args:
        removed: Ids of documents that are gone.
        added: Ids of documents that are new.
        vectors: Their vectors, shape (len(added), dim), prepared.
        part: What is forgotten, with a change of no documents.
    """
    fields: list[object] = [list(removed), list(added)]
    numbers = vectors.astype("<f4").tobytes()
    if part is not None:
        ids = None if part.ids is None else sorted(part.ids)
        fields += [sorted(part.marks), ids, part.before]
        if part.near is not None:
            numbers += part.near[0].astype("<f4").tobytes()
            fields.append(part.near[1])
    listed = json.dumps(fields, separators=(",", ":")).encode("ascii")
    body = numbers + listed
    return _CHANGE.pack(_FORMAT, zlib.crc32(body), vectors.shape[1], len(listed)) + body


def decode_change(
    value: bytes, dim: int
) -> tuple[tuple[str, ...], tuple[str, ...], Vectors, Part | None] | None:
    """Return the arguments of :func:`encode_change`.

    Returns:
        ``None`` for other bytes.
    """
    if not _CHANGE.size <= len(value) <= LARGEST_CHANGE:
        return None
    mark, checksum, size, listed = _CHANGE.unpack_from(value)
    end = len(value) - listed
    body = memoryview(value)[_CHANGE.size :]
    if mark != _FORMAT or size != dim or end < _CHANGE.size or zlib.crc32(body) != checksum:
        return None
    try:
        first, second, *others = json.loads(value[end:])
        removed, added = _IDS.validate_python((first, second))
        rows = np.frombuffer(value[_CHANGE.size : end], dtype="<f4").reshape(-1, dim)
        wide = rows.astype(np.float32)
        vectors, centers = wide[: len(added)], wide[len(added) :]
        part = _part(centers, *others) if others else None
        if len(rows) != len(added) + (part is not None and part.near is not None):
            return None
    except (TypeError, ValueError, RecursionError):
        return None
    return (removed, added, vectors, part) if np.isfinite(wide).all() else None


def _part(
    centers: Vectors, marks: object, ids: object, before: object, distance: object = None
) -> Part:
    held, named, moment, reach = _PART.validate_python((marks, ids, before, distance))
    if reach is None:
        return Part(held, named, moment)
    if len(centers) != 1:
        raise ValueError("a part near a query must have one query")
    return Part(held, named, moment, (centers[0], reach))
