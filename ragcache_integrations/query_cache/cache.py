"""The approximate query cache (Proximity §3, algorithm 1), with proofs and without guesses."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.errors import CacheFileError

from .certificates import safe_radius
from .document_changes import DocumentChanges
from .entries import NOWHERE, DocumentKey, Entry, EntryTable, check_candidates, make_readable
from .files import capture, check_arguments, read, write
from .reading import Look, Lookups, Match
from .recall import recall
from .settings import Settings
from .types import (
    Candidate,
    Eviction,
    Metric,
    VectorSource,
)
from .validation import check_ids, check_key

__all__ = ["QueryCache"]

T = TypeVar("T")
Vectors = NDArray[np.float32]

_COUNTED = (
    "proven", "stale", "unproven", "insertions", "evictions", "expired", "invalidated", "dropped",
)  # fmt: skip
_NEVER = np.iinfo(np.int64).max


class QueryCache(Lookups[T], DocumentChanges):
    """Remembers what was fetched for a query, and serves it to queries close by.

    Ask it before the store, and insert what the store returned after a miss::

        cache = QueryCache(dim=384, capacity=1000, tolerance=0.3)
        hit = cache.lookup(embedding, k=4)
        if hit is None:
            cache.insert(embedding, [Candidate(document.id, document) for document in documents])

    A lookup hits when, among the entries of the same ``key`` that serve k, the nearest one's query
    embedding is within ``tolerance``; ties go to the newest. Every method may be called from any
    thread. Lookups wait for each other only to count themselves.

    Args:
        dim: Dimension of the embeddings.
        capacity: For ``flat``: the most entries kept, over all keys.
        tolerance: The largest distance at which a query counts as one seen before; 0 is exact
            match, infinity always hits. A true distance, never squared: L2 for ``l2`` and ``ip``,
            the chord ``sqrt(2 - 2 cos)`` of unit vectors for ``cosine``. ``auto`` learns it: see
            ``target_recall``.
        index: How keys are searched: ``flat`` scans all of them; ``lsh`` scans the bucket of the
            query's hash, in a time that does not depend on the number of entries.
        eviction: Which entry makes room: ``lru`` (least recently used) or ``fifo``; for ``lsh``
            within its bucket.
        metric: How documents are ranked: ``l2``, ``cosine`` or ``ip`` (inner product). Must be
            the store's own.
        num_hyperplanes: For ``lsh``: L random hyperplanes make ``2**L`` buckets.
        bucket_capacity: For ``lsh``: the most entries of a bucket. There are at most
            ``2**L * bucket_capacity`` entries; ``capacity`` does not count.
        rerank_factor: The rho of Proximity §3.3.4: how many times k candidates are worth fetching
            on a miss, since a hit re-ranks them for its own query. Without ``vectors`` it is 1.
        guarantee: Serve proven hits only: ``exact`` those whose k documents are surely the
            store's own up to ties, a share of 1 those whose recall is surely no less. Needs
            ``exact_search`` and ``vectors``. See :mod:`.certificates`.
        ttl: Seconds after which an entry ends.
        vectors: Reads the documents' vectors by id, for re-ranking and proofs.
        multi_probe: For ``lsh``: how many of the buckets that differ in one bit are searched,
            too, the bit the query is least certain of first.
        max_rerank_factor: Rho on misses close to an entry, where a larger radius proves more of
            the next ones. Needs ``guarantee``.
        exact_search: The store's search is exact, by this metric, over all of its documents.
        unit_vectors: For ``l2``: all documents and queries have unit length, which proves more.
        longest: For ``ip``: the length of the store's longest document vector, for proofs.
        target_recall: For ``auto``: a hit with less recall is a violation.
        max_violation: For ``auto``: the largest share of violations among hits.
        start_tolerance: For ``auto``: where to start.
        tag: Names embedding model and index; :meth:`load` refuses a file with another one.
        seed: Decides hyperplanes and which hits are checked.

    Raises:
        ConfigurationError: An argument is out of its range, or lacks what it needs.
    """

    def __init__(
        self,
        dim: int,
        capacity: int,
        tolerance: float | Literal["auto"],
        index: Literal["flat", "lsh"] = "flat",
        eviction: Eviction = "lru",
        metric: Metric = "l2",
        num_hyperplanes: int = 8,
        bucket_capacity: int = 20,
        rerank_factor: int = 4,
        guarantee: Literal["exact"] | float | None = None,
        ttl: float | None = None,
        vectors: VectorSource | None = None,
        *,
        multi_probe: int = 0,
        max_rerank_factor: int | None = None,
        exact_search: bool = False,
        unit_vectors: bool = False,
        longest: float | None = None,
        target_recall: float = 0.95,
        max_violation: float = 0.01,
        start_tolerance: float | None = None,
        tag: str = "",
        seed: int = 0,
    ) -> None:
        settings = Settings(
            dim=dim,
            capacity=capacity,
            tolerance=tolerance,
            index=index,
            eviction=eviction,
            metric=metric,
            num_hyperplanes=num_hyperplanes,
            bucket_capacity=bucket_capacity,
            rerank_factor=rerank_factor,
            guarantee=guarantee,
            ttl=ttl,
            vectors=vectors,
            multi_probe=multi_probe,
            max_rerank_factor=max_rerank_factor,
            exact_search=exact_search,
            unit_vectors=unit_vectors,
            longest=longest,
            target_recall=target_recall,
            max_violation=max_violation,
            start_tolerance=start_tolerance,
            tag=tag,
            seed=seed,
        )
        super().__init__(settings)

    def insert(
        self,
        q: ArrayLike,
        candidates: Sequence[Candidate[T]],
        key: Hashable = None,
        *,
        k: int | None = None,
        complete: bool = False,
        store_version: int | None = None,
        ranked: bool = True,
    ) -> bool:
        """Remember what a search found. An entry of the same embedding and key is replaced.

        Args:
            q: The query's embedding, shape (dim,).
            candidates: What the search found, best first. The entry answers every k up to their
                number.
            key: As in :meth:`lookup`.
            k: How many of them were wanted; all of them by default. ``tolerance="auto"`` learns
                from what an entry nearby would have answered.
            complete: The store had no more to give: the entry answers every k.
            store_version: :attr:`store_version` as it was before the search began. What changed
                since is caught up with, or the insertion dropped.
            ranked: The candidates are in the order of their distances. Otherwise, as after a search
                for diversity, they are never re-ranked, nothing is proven of them, and any change
                of the store ends the entry.

        Returns:
            Whether the entry was inserted.

        Raises:
            ConfigurationError: An argument cannot be used, or ``vectors`` gave unusable ones.
            Exception: Any error of ``vectors`` other than a ``LookupError``. In either case
                nothing was changed.
        """
        query = self._vectors.prepare_query(q)
        checked = check_candidates(candidates, complete=complete)
        check_key(key)
        if k is not None:
            k = check_int("k", k, 1)
        latest = self._changes.version
        version = latest
        if store_version is not None:
            version = check_int("store_version", store_version, 0, latest)
        documents = _keys_of(checked)
        reads = ranked and self._settings.vectors is not None
        while True:
            # Nothing is referenced while vectors are read: an insertion of a document that changes
            # meanwhile must not get its old vector.
            with self._lock:
                table = self._table
                missing = table.pool.missing(documents) if reads else []
            vectors = None
            if reads:
                ids, among = [key[0] for key in missing], [key[0] for key in documents]
                vectors = self._vectors.read(ids, among=among)
            with self._lock:
                if table is not self._table:  # cleared in the meantime
                    self._counts["dropped"] += 1
                    return False
                readable = None
                if vectors is not None:
                    if set(table.pool.missing(documents)) - set(missing):
                        continue
                    table.pool.acquire(missing, vectors)
                    table.pool.acquire_known(set(documents) - set(missing))
                    metric = self._settings.metric
                    readable = make_readable(
                        table, query, checked, documents, metric, self._kernels
                    )
                entry = Entry(key, checked, readable, complete, self._clock(), 0, ranked)
                if self._adaptive is not None and version == self._changes.version:
                    self._learn(table, query, entry, k or max(len(checked), 1), served=False)
                return self._put(table, query, entry, version)

    def report(
        self, q: ArrayLike, k: int, candidates: Sequence[Candidate[T]], key: Hashable = None
    ) -> bool | None:
        """Pass ``tolerance="auto"`` the store's result for a query that the cache answered.

        Call it for hits that have ``check`` set.

        Args:
            q: The query's embedding, shape (dim,).
            k: The number of documents, as for the lookup.
            candidates: The store's k documents, best first.
            key: The cache key, as for the lookup.

        Returns:
            Whether the answer had at least ``target_recall``; ``None`` where the entry is gone or
            the tolerance is fixed.
        """
        query = self._vectors.prepare_query(q)
        k = check_int("k", k, 1)
        if self._adaptive is None:
            return None
        with self._lock:
            table, readable = self._table, None
            documents = _keys_of(candidates)
            if self._settings.vectors is not None and not table.pool.missing(documents):
                metric = self._settings.metric
                readable = make_readable(table, query, candidates, documents, metric, self._kernels)
            entry = Entry(key, tuple(candidates), readable, complete=False, born=0, sequence=0)
            return self._learn(table, query, entry, k, served=True)

    def delete(self, q: ArrayLike, key: Hashable = None) -> bool:
        """Drop the entry of exactly this embedding and key; return whether there was one."""
        query = self._vectors.prepare_query(q)
        check_key(key)
        with self._lock:
            slot = self._table.keys.same(query, self._table.partitions.get(key, NOWHERE))
            if slot is None:
                return False
            self._table.remove(slot)
            return True

    def clear(self) -> None:
        """Drop every entry; searches that began before are not inserted any more."""
        with self._lock:
            self._clear()

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        encode: Callable[[T], Any] | None = None,
        store_tag: str = "",
    ) -> None:
        """Write the entries, and what ``tolerance="auto"`` has learnt, to a file.

        The file, an ``.npz`` without pickled objects, is replaced at once when all is written and
        on the disk. Others use the cache meanwhile; they wait while its vectors are copied.

        Args:
            path: The file. Nothing but a saved cache or an empty file is replaced.
            encode: Turns a document into what JSON can hold. By default documents are that.
            store_tag: Names the store's documents as they are, by a version or a checksum of
                theirs, so that :meth:`load` can refuse what was fetched from others.

        Raises:
            ConfigurationError: An argument is wrong, a document or a cache key cannot be written,
                or there is a file of another kind.
            OSError: The file cannot be written, or there is no file but a pipe or a device.
            Exception: Any error of ``encode``. In all cases the file is as it was.
        """
        check_arguments(path, encode, store_tag)
        with self._lock:
            snapshot = capture(self._table, self._adaptive, self._clock())
        write(path, snapshot, self._settings, encode, store_tag)

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        decode: Callable[[Any], T] | None = None,
        store_tag: str = "",
    ) -> int:
        """Replace all entries by those of a file that :meth:`save` wrote.

        They answer as they did, and end by this cache's ``ttl``, the time since they were saved
        included. The store must hold what it held then: nothing is known of changes in between.
        Changes noted while the file is read are applied to them.

        The file decides what is answered: load none from people you do not trust.

        Args:
            path: The file.
            decode: Turns what ``encode`` returned into the document again.
            store_tag: As passed to :meth:`save`.

        Returns:
            How many entries there are. Where they are more than ``capacity``, the last used ones
            are taken.

        Raises:
            CacheFileError: The file is damaged or another one, ``decode`` failed, or settings
                differ on which the answers depend. The cache is empty then.
            ConfigurationError: An argument is wrong. The cache is as it was.
            OSError: The file is not there (``FileNotFoundError``) or cannot be read. The cache is
                as it was.
        """
        check_arguments(path, decode, store_tag)
        version = self._changes.version
        settings = self._settings
        try:
            table, learnt = read(path, settings, self._kernels, self._clock(), decode, store_tag)
        except CacheFileError:
            self.clear()
            raise
        with self._lock:
            table.longest = max(table.longest, self._table.longest)
            changes = self._changes.since(version)
            if changes is None:  # cleared in the meantime
                table, changes = EntryTable(settings, self._kernels, table.longest), []
            for change in changes:
                table.drop_documents(change.removed)
                table.add_documents(change.added, change.vectors)
            self._table = table
            if learnt is not None:
                self._adaptive = self._decisions.adaptive = learnt
                self._limit = math.inf if settings.proves else learnt.value
            return len(table)

    def _put(self, table: EntryTable[T], query: Vectors, entry: Entry[T], version: int) -> bool:
        """Insert an entry, updated to the store's current version; the lock is held."""
        settings = self._settings
        readable = entry.readable
        held = () if readable is None else readable.documents
        caught_up = self._changes.catch_up(entry, query, version, settings.metric)
        if caught_up is None:
            table.pool.release(held)
            self._counts["dropped"] += 1
            return False
        left, newest = caught_up
        if left.readable is not None:
            kept = set(left.readable.documents)
            table.pool.release(document for document in held if document not in kept)
        radius = -math.inf
        if left.readable is not None:
            radius = math.inf
            if not entry.complete:
                length = float(np.linalg.norm(query.astype(np.float64)))
                radius = safe_radius(
                    # Of what is left: the others' vectors may be those of after the search.
                    float(left.readable.distances[-1]),
                    settings.metric,
                    settings.dim,
                    length,
                    table.longest,
                )
        self._expire(table)
        lifetime = settings.lifetime
        expires = _NEVER if lifetime is None else entry.born + lifetime
        evicted = table.put(query, left, min(radius, newest), newest, expires)
        self._counts["insertions"] += 1
        self._counts["evictions"] += evicted
        return True

    def _expire(self, table: EntryTable[T]) -> None:
        """Take ended entries out of memory now and then; lookups no longer find them."""
        now, lifetime = self._clock(), self._settings.lifetime
        if lifetime is None or now < self._next_expiry:
            return
        self._next_expiry = now + lifetime // 8
        for slot in table.keys.expired(now):
            table.remove(slot)
            self._counts["expired"] += 1

    def _learn(
        self, table: EntryTable[T], query: Vectors, truth: Entry[T], k: int, *, served: bool
    ) -> bool | None:
        """Compare the nearest entry's answer with the store's result; the lock is held."""
        assert self._adaptive is not None  # noqa: S101 - its callers look
        slot, distance = self._nearest(table, query, table.partitions.get(truth.key, NOWHERE), k)
        entry = table.entry(slot) if slot >= 0 else None
        if entry is None:
            return None
        look, match = Look(table, query, k, self._clock()), Match(slot, entry, distance)
        if not self._answers.fresh(look, match):
            return None
        cap = table.reach.cap
        if not served and distance > cap[slot]:  # would not have been served
            return None
        hit = self._answers.of_entry(look, match)
        share = recall(hit, truth, k, self._settings.metric)
        violated = share < self._settings.target_recall
        self._adaptive.observe(distance, violated, served=served)
        if not self._settings.proves:
            self._limit = self._adaptive.value
        if violated and served:
            # Rephrasings of one near-duplicate scatter around its distance.
            cap[slot] = min(cap[slot], distance / 2)
        return not violated

    def _change(
        self, removed: tuple[str, ...], added: tuple[str, ...], vectors: ArrayLike | None
    ) -> None:
        check_ids((*removed, *added))
        try:
            added, new = self._vectors.of_new(added, vectors)
        except BaseException:
            self.clear()  # the store has changed, and nobody knows how
            raise
        with self._lock:
            if new is None:
                self._clear()
                return
            self._changes.note(removed, added, new)
            ended = self._table.drop_documents(removed)
            ended += self._table.add_documents(added, new)
            self._counts["invalidated"] += ended

    def _clear(self) -> None:
        self._changes.clear()
        self._table = EntryTable(self._settings, self._kernels, self._table.longest)


def _keys_of(candidates: Sequence[Candidate[Any]]) -> tuple[DocumentKey, ...]:
    """Return the documents of candidates as the pool of vectors knows them, each once."""
    return tuple({(candidate.id, candidate.fingerprint): None for candidate in candidates})
