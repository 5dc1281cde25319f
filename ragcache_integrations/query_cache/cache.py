"""The approximate query cache (Proximity §3, algorithm 1)."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.eviction import POLICIES, Eviction
from ragcache_integrations.query_cache.matching import KeyTable, prepare, rank
from ragcache_integrations.query_cache.pool import DocumentKey, VectorPool
from ragcache_integrations.query_cache.types import (
    Candidate,
    Hit,
    Metric,
    QueryCacheStats,
    VectorSource,
)
from ragcache_integrations.query_cache.validation import (
    check_available,
    check_choice,
    check_key,
    check_tolerance,
    check_vector,
    check_vectors,
    check_whole,
)

__all__ = ["QueryCache"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


def _check_unambiguous(ids: Sequence[str]) -> None:
    """Raise where an id stands for several documents, whose vectors it cannot tell apart."""
    if len(set(ids)) < len(ids):
        msg = f"an id is shared by documents of different content, among {ids}"
        raise LookupError(msg)


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    key: Hashable
    candidates: tuple[Candidate[T], ...]
    documents: tuple[DocumentKey, ...]  # references held in the pool, each once
    rows: NDArray[np.intp] | None  # of the candidates in the pool; None: not re-ranked
    born: float


class QueryCache(Generic[T]):
    """Remembers what was fetched for a query, and serves it to queries close by.

    A lookup hits when, among the entries of the same ``key`` that serve k, the nearest one's query
    embedding is within ``tolerance``; ties go to the newest. Every method may be called from any
    thread; none waits for anything but the other calls' array operations, except that ``insert``
    reads vectors through ``vectors``, outside the lock.

    Args:
        dim: Dimension of the embeddings.
        capacity: The most entries kept, over all keys.
        tolerance: The largest distance at which a query counts as one seen before; 0 is exact
            match, infinity always hits. A true distance, never squared: L2 for ``l2`` and ``ip``,
            the chord ``sqrt(2 - 2 cos)`` of unit vectors for ``cosine``.
        index: How keys are searched: ``flat`` scans all of them. (``lsh`` is not available yet.)
        eviction: Which entry makes room: ``lru`` (least recently used) or ``fifo``.
        metric: How documents are ranked: ``l2``, ``cosine`` or ``ip`` (inner product). Must be
            the store's own.
        num_hyperplanes: For ``lsh``.
        bucket_capacity: For ``lsh``.
        rerank_factor: The rho of Proximity §3.3.4: how many times k candidates are worth fetching
            on a miss, since a hit re-ranks them for its own query. Without ``vectors`` it is 1.
        guarantee: Serve proven hits only. (Not available yet.)
        ttl: Age at which entries end. (Not available yet.)
        vectors: Reads the documents' vectors by id, for re-ranking.

    Raises:
        ConfigurationError: An argument is out of its range, or not available yet.
    """

    def __init__(
        self,
        dim: int,
        capacity: int,
        tolerance: float,
        index: Literal["flat", "lsh"] = "flat",
        eviction: Eviction = "lru",
        metric: Metric = "l2",
        num_hyperplanes: int = 8,
        bucket_capacity: int = 20,
        rerank_factor: int = 4,
        guarantee: Literal["exact"] | float | None = None,
        ttl: float | None = None,
        vectors: VectorSource | None = None,
    ) -> None:
        self._dim = check_whole("dim", dim, 1)
        self._capacity = check_whole("capacity", capacity, 1)
        self._tolerance = check_tolerance(tolerance)
        check_choice("index", index, ("flat", "lsh"))
        check_available("index", index, "flat")
        check_choice("eviction", eviction, get_args(Eviction))
        check_choice("metric", metric, get_args(Metric))
        self._metric: Metric = metric
        check_whole("num_hyperplanes", num_hyperplanes, 1)
        check_whole("bucket_capacity", bucket_capacity, 1)
        self._rerank_factor = check_whole("rerank_factor", rerank_factor, 1)
        check_available("guarantee", guarantee, None)
        check_available("ttl", ttl, None)
        if vectors is not None and not callable(vectors):
            msg = f"vectors must be callable with a list of ids, got {vectors!r}"
            raise ConfigurationError(msg)
        self._vectors = vectors
        self._policy = POLICIES[eviction]
        self._lock = threading.Lock()
        self._store_version = 0
        self._lookups = self._hits = self._insertions = self._evictions = self._dropped = 0
        self._warned = False
        self._reset()

    def _reset(self) -> None:
        self._table = KeyTable(self._capacity, self._dim)
        self._eviction = self._policy(self._capacity)
        self._pool = VectorPool(self._dim)
        self._entries: dict[int, _Entry[T]] = {}  # by slot
        self._free: list[int] = []
        # Namespaces as numbers, so that arrays can hold them; with how many entries each has.
        self._partitions: dict[Hashable, tuple[int, int]] = {}
        self._next_partition = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        return self._dim

    @property
    def tolerance(self) -> float:
        """The largest distance at which a lookup hits."""
        return self._tolerance

    @property
    def metric(self) -> Metric:
        """How documents are ranked."""
        return self._metric

    @property
    def store_version(self) -> int:
        """Number that :meth:`clear` increments. Read it before a search, hand it to `insert`."""
        return self._store_version

    def fetch_count(self, k: int) -> int:
        """Return how many candidates to fetch on a miss: ``rerank_factor * k``.

        Without ``vectors`` there is no re-ranking and k are enough.
        """
        return k * self._rerank_factor if self._vectors is not None else k

    def lookup(self, q: ArrayLike, k: int, key: Hashable = None) -> Hit[T] | None:
        """Find what was fetched for a query close to ``q``.

        Args:
            q: The query's embedding, shape (dim,).
            k: How many candidates are wanted; fewer come back only where the store had no more.
            key: Namespace, filter and whatever else changes the store's answer. Entries of
                another key never match.

        Raises:
            ConfigurationError: ``q``, ``k`` or ``key`` cannot be used.
        """
        query = prepare(check_vector(q, self._dim), self._metric)
        k = check_whole("k", k, 1)
        check_key(key)
        vectors = None
        with self._lock:
            self._lookups += 1
            found = self._nearest(query, key, min(k, sys.maxsize), self._tolerance)
            if found is None:
                return None
            slot, distance = found
            self._hits += 1
            self._eviction.used(slot)
            entry = self._entries[slot]
            # The store's own order stands where the query is the same.
            if entry.rows is not None and distance > 0:
                vectors = self._pool.take(entry.rows)
        age = time.monotonic() - entry.born
        if vectors is None:
            return Hit(entry.candidates[:k], distance, age)
        order, scores = rank(vectors, query, self._metric)
        candidates = tuple(entry.candidates[index] for index in order[:k])
        return Hit(candidates, distance, age, reranked=True, scores=tuple(scores[:k]))

    def insert(
        self,
        q: ArrayLike,
        candidates: Sequence[Candidate[T]],
        key: Hashable = None,
        *,
        complete: bool = False,
        store_version: int | None = None,
    ) -> bool:
        """Remember what a search found. An entry of the same embedding and key is replaced.

        Args:
            q: The query's embedding, shape (dim,).
            candidates: What the search found, best first. The entry answers every k up to their
                number.
            key: As in :meth:`lookup`.
            complete: The store had no more to give: the entry answers every k.
            store_version: :attr:`store_version` as it was before the search began. Where it has
                moved on since, the insertion is dropped.

        Returns:
            Whether the entry was inserted.

        Raises:
            ConfigurationError: An argument cannot be used, or ``vectors`` gave unusable ones.
            Exception: Whatever ``vectors`` raises, other than ``LookupError``. In either case
                nothing was changed.
        """
        query = prepare(check_vector(q, self._dim), self._metric)
        found = tuple(candidates)
        if not all(isinstance(candidate, Candidate) for candidate in found):
            msg = f"candidates must be Candidate objects, got {candidates!r}"
            raise ConfigurationError(msg)
        if not found and not complete:
            msg = "an entry without candidates answers nothing, unless it is complete"
            raise ConfigurationError(msg)
        check_key(key)
        if store_version is not None:
            version = check_whole("store_version", store_version, 0)
            if version > self._store_version:
                msg = f"store_version must be at most {self._store_version}, got {version}"
                raise ConfigurationError(msg)
        by_key = {(one.id, one.fingerprint): one for one in found}
        documents = tuple(by_key)
        with self._lock:
            if store_version is not None and store_version < self._store_version:
                self._dropped += 1
                return False
            pool = self._pool
            missing = pool.acquire_known(documents) if self._vectors is not None else []
        vectors = self._read(pool, documents, missing)
        with self._lock:
            if pool is not self._pool:  # cleared in the meantime, and the references with it
                self._dropped += 1
                return False
            held: tuple[DocumentKey, ...] = ()
            rows = None
            if vectors is not None:
                pool.acquire(missing, vectors)
                held, rows = documents, pool.rows((one.id, one.fingerprint) for one in found)
            serves = sys.maxsize if complete else len(found)
            entry = _Entry(key, found, held, rows, time.monotonic())
            self._put(query, entry, serves)
        return True

    def delete(self, q: ArrayLike, key: Hashable = None) -> bool:
        """Drop the entry of exactly this embedding and key; return whether there was one."""
        query = prepare(check_vector(q, self._dim), self._metric)
        check_key(key)
        with self._lock:
            same = self._nearest(query, key, 0, 0.0)
            if same is None:
                return False
            self._remove(same[0])
            self._free.append(same[0])
            return True

    def clear(self) -> None:
        """Drop every entry; searches that began before are not inserted any more."""
        with self._lock:
            self._store_version += 1
            self._reset()

    def stats(self) -> QueryCacheStats:
        """Return what the cache holds and what it did."""
        with self._lock:
            return QueryCacheStats(
                entries=len(self._entries),
                capacity=self._capacity,
                vectors=len(self._pool),
                lookups=self._lookups,
                hits=self._hits,
                insertions=self._insertions,
                evictions=self._evictions,
                dropped=self._dropped,
            )

    def _nearest(
        self, query: NDArray[np.float32], key: Hashable, k: int, limit: float
    ) -> tuple[int, float] | None:
        partition = self._partitions.get(key)
        return None if partition is None else self._table.nearest(query, partition[0], k, limit)

    def _read(
        self, pool: VectorPool, documents: Sequence[DocumentKey], missing: Sequence[DocumentKey]
    ) -> NDArray[np.float32] | None:
        """Read the missing documents' vectors; give the acquired references back on failure."""
        if self._vectors is None:
            return None
        try:
            _check_unambiguous([document_id for document_id, _ in documents])
            if not missing:
                return np.empty((0, self._dim), dtype=np.float32)
            read = self._vectors([document_id for document_id, _ in missing])
            return prepare(check_vectors(read, len(missing), self._dim), self._metric)
        except BaseException as error:
            with self._lock:
                pool.release(set(documents) - set(missing))
            if not isinstance(error, LookupError):
                raise
            if not self._warned:
                self._warned = True
                logger.warning("Not re-ranked, as a document's vector cannot be read: %s", error)
            return None

    def _put(self, query: NDArray[np.float32], entry: _Entry[T], serves: int) -> None:
        same = self._nearest(query, entry.key, 0, 0.0)
        if same is not None:
            slot = same[0]
            self._remove(slot)
        elif self._free:
            slot = self._free.pop()
        elif len(self._entries) < self._capacity:
            slot = len(self._entries)
        else:
            slot = self._eviction.victim()
            self._remove(slot)
            self._evictions += 1
        partition, entries = self._partitions.get(entry.key, (self._next_partition, 0))
        self._partitions[entry.key] = (partition, entries + 1)
        self._next_partition += entries == 0
        self._entries[slot] = entry
        self._table.put(slot, query, partition, serves)
        self._eviction.inserted(slot)
        self._insertions += 1

    def _remove(self, slot: int) -> None:
        entry = self._entries.pop(slot)
        self._pool.release(entry.documents)
        self._table.free(slot)
        partition, entries = self._partitions[entry.key]
        if entries == 1:
            del self._partitions[entry.key]
        else:
            self._partitions[entry.key] = (partition, entries - 1)
