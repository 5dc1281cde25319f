"""One cached answer, the documents' vectors that entries share, and what changes do to an entry.

A new document x at distance a from an entry's key can enter the top k of a query at distance delta
from the key only if ``a - delta < r_k + delta``, r_k being the distance from the key to its k-th
document. So the entry still serves k to all queries with ``2 * delta <= a - r_k``; and it knows
every document only within ``min(R, a)`` from now on. Under inner product, distances are negative
products and delta counts B times, B no less than any document's length: ``x @ q`` and the k-th
score can each change by ``delta * B``.

Dropping every entry with ``a < max(R, r_k + 2 * tolerance)`` would be right, too, but would also
drop entries that still serve questions nearer to their keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.types import Candidate, Metric

__all__ = [
    "NEVER",
    "DocumentKey",
    "Entry",
    "NewEntry",
    "Reach",
    "Readable",
    "VectorPool",
    "check_candidates",
    "document_keys",
    "nearest_new",
    "serves",
]


DocumentKey = tuple[str, str]
"""A document's id and the fingerprint of its content."""


def document_keys(candidates: Iterable[Candidate[Any]]) -> list[DocumentKey]:
    """Return the keys of the candidates' documents, in their order."""
    return [(candidate.id, candidate.fingerprint) for candidate in candidates]


class VectorPool:
    """Reference-counted rows of one array that grows as needed.

    Not thread-safe: the cache that owns it holds its lock.

    Args:
        dim: Dimension of the vectors.

    Attributes:
        vectors: The array that rows are in; a row stays as it is while its document is referenced.
    """

    def __init__(self, dim: int) -> None:
        self.vectors = np.empty((16, dim), dtype=np.float32)
        self._rows: dict[DocumentKey, int] = {}
        self._references: list[int] = []  # by row
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def missing(self, keys: Iterable[DocumentKey]) -> list[DocumentKey]:
        """Return the documents that are not kept."""
        return [key for key in keys if key not in self._rows]

    def acquire(
        self,
        keys: Sequence[DocumentKey],
        vectors: NDArray[np.float32],
        missing: Sequence[DocumentKey] | None = None,
    ) -> NDArray[np.int64] | None:
        """Reference documents, keeping the vectors of those that are new.

        Args:
            keys: The documents, each once.
            vectors: The vectors of ``missing``, shape (len(missing), dim).
            missing: Those of them that :meth:`missing` returned before their vectors were read;
                ``None`` for all.

        Returns:
            The documents' row numbers, shape (len(keys),); ``None`` where others are missing by
            now, and then nothing is referenced.
        """
        missing = keys if missing is None else missing
        rows = self._rows
        if missing:
            if not set(self.missing(keys)).issubset(missing):
                return None
            for key, vector in zip(missing, vectors, strict=True):
                if key not in rows:
                    self._add(key, vector)
        try:
            held = [rows[key] for key in keys]
        except KeyError:
            return None
        references = self._references
        for row in held:
            references[row] += 1
        return np.array(held, dtype=np.int64)

    def _add(self, key: DocumentKey, vector: NDArray[np.float32]) -> int:
        """Keep a vector without references; return its row."""
        if self._free:
            row = self._free.pop()
        else:
            row = len(self._references)
            self._references.append(0)
        if row == len(self.vectors):
            self.vectors = np.concatenate([self.vectors, np.empty_like(self.vectors)])
        self.vectors[row] = vector
        self._rows[key] = row
        return row

    def release(self, keys: Iterable[DocumentKey]) -> None:
        """Give references back; drop each vector that has none left."""
        for key in keys:
            row = self._rows[key]
            self._references[row] -= 1
            if not self._references[row]:
                del self._rows[key]
                self._free.append(row)

    def rows(self, keys: Iterable[DocumentKey]) -> NDArray[np.int64]:
        """Return the row numbers of referenced documents."""
        return np.array(list(map(self._rows.__getitem__, keys)), dtype=np.int64)

    def contents(self) -> tuple[list[DocumentKey], NDArray[np.float32]]:
        """Return the documents and a copy of their vectors, shape (documents, dim)."""
        return list(self._rows), self.vectors[list(self._rows.values())]


Vectors = NDArray[np.float32]

_BLOCK = 4096  # keys compared with the new documents at once


class Reach:
    """How far every entry's knowledge reaches, by slot.

    Attributes:
        radius: Every document within it is known.
        newest: To the nearest document that came after the entry.
        cap: The largest distance of a query that the entry may answer unproven.
    """

    def __init__(self) -> None:
        self.radius = np.empty(0)
        self.newest = np.empty(0)
        self.cap = np.empty(0)

    def put(self, slot: int, radius: float, newest: float) -> None:
        """Note a new entry."""
        if slot >= len(self.radius):
            size = max(slot + 1, 2 * len(self.radius), 16)
            for name in ("radius", "newest", "cap"):
                kept = getattr(self, name)
                longer = np.full(size, np.inf)
                longer[: len(kept)] = kept
                setattr(self, name, longer)
        self.radius[slot], self.newest[slot], self.cap[slot] = radius, newest, np.inf

    def lower(self, slots: NDArray[np.intp], distances: NDArray[np.float64]) -> NDArray[np.intp]:
        """Note new documents at some distances from entries; return which of them knew that far."""
        self.newest[slots] = np.minimum(self.newest[slots], distances)
        inside = slots[distances < self.radius[slots]]
        self.radius[slots] = np.minimum(self.radius[slots], distances)
        return inside


def nearest_new(keys: Vectors, vectors: Vectors, metric: Metric) -> NDArray[np.float64]:
    """Return for every key the distance to the nearest of some documents, or a little less.

    Products of 32-bit vectors are off by at most about ``dim * 2**-24`` of their lengths; twice
    that is taken off.

    Args:
        keys: Shape (n, dim), prepared.
        vectors: Shape (m, dim), prepared, m at least 1.
        metric: How the cache ranks documents.

    Returns:
        Shape (n,); negative inner products for ``ip``.
    """
    nearest = np.empty(len(keys))
    squares = (vectors.astype(np.float64) ** 2).sum(axis=1)
    off = (keys.shape[1] + 4) * 2.0**-22
    for begin in range(0, len(keys), _BLOCK):
        block = keys[begin : begin + _BLOCK]
        own = (block.astype(np.float64) ** 2).sum(axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            products = (block @ vectors.T).astype(np.float64)
            slack = off * np.sqrt(own[:, None] * squares) + 2.0**-120
            if metric == "ip":
                low = -products - slack
            else:
                low = np.sqrt(np.maximum(own[:, None] + squares - 2 * (products + slack), 0))
        low[~np.isfinite(low)] = -np.inf if metric == "ip" else 0.0  # overflow: nothing is known
        nearest[begin : begin + _BLOCK] = low.min(axis=1)
    return nearest


def serves(distances: NDArray[np.float64], newest: float) -> int:
    """Return how many of an entry's documents no new one comes before, for its own query.

    Args:
        distances: From the key, ascending.
        newest: To the nearest new document.
    """
    return int(np.searchsorted(distances, newest, side="left"))


T = TypeVar("T")

NEVER = int(np.iinfo(np.int64).max)
"""When an entry without a lifetime ends, in nanoseconds of the cache's clock."""


class Readable(NamedTuple):
    """Candidates whose vectors are kept.

    Attributes:
        rows: Their rows in the pool of vectors, shape (candidates,).
        documents: The references held there, each once.
        distances: From the key, ascending; negative inner products for ``ip``.
        ranked: Rows in that order.
    """

    rows: NDArray[np.int64]
    documents: tuple[DocumentKey, ...]
    distances: NDArray[np.float64]
    ranked: NDArray[np.int64]


@dataclass(slots=True)
class Entry(Generic[T]):
    """What a search found. Once in the table it is not changed any more, only replaced.

    Attributes:
        key: Namespace, filter and everything else that changes the store's answer.
        candidates: Best first, as the store gave them.
        readable: What is needed to re-rank them; ``None`` where vectors could not be read.
        complete: The store had no more documents.
        born: When it was inserted, in nanoseconds of the cache's clock.
        sequence: Number of the insertion, which the table gives.
        ranked: The candidates are the nearest documents in the order of their distances. If not, a
            document that goes may change the answer though it is not part of it: a search for
            diversity weighs documents against each other that it does not return.
        text: The words of the query, where they are compared, see :class:`.Wording`.
    """

    key: Hashable
    candidates: tuple[Candidate[T], ...]
    readable: Readable | None
    complete: bool
    born: int
    sequence: int
    ranked: bool = True
    text: str = ""


class NewEntry(NamedTuple, Generic[T]):
    """An entry that is to be put into the table.

    Attributes:
        vector: The query's embedding, prepared, shape (dim,).
        entry: Its vectors are referenced in the pool already; the table sets its sequence number.
        radius: Within which of the key every document is known.
        newest: To the nearest document that came after the search.
        expires: When the entry ends, in nanoseconds of the cache's clock.
    """

    vector: NDArray[np.float32]
    entry: Entry[T]
    radius: float
    newest: float
    expires: int = NEVER


def check_candidates(
    candidates: Sequence[Candidate[T]], *, complete: bool
) -> tuple[Candidate[T], ...]:
    """Return the results of a search, if they can be an entry.

    Raises:
        ConfigurationError: An item is no candidate; or there are none, and the store has more.
    """
    checked = tuple(candidates)
    if [candidate for candidate in checked if not isinstance(candidate, Candidate)]:
        raise ConfigurationError(f"candidates must be Candidate objects, got {candidates!r}")
    if not checked and not complete:
        msg = "an entry without candidates answers nothing, unless it is complete"
        raise ConfigurationError(msg)
    return checked
