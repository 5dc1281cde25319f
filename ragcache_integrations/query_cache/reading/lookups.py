"""Looking queries up: the reading side of the query cache."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Hashable
from typing import ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.query_cache.certificates import UNIT_SLACK
from ragcache_integrations.query_cache.entries import (
    NOWHERE,
    ChangeLog,
    DocumentVectors,
    EntryTable,
)
from ragcache_integrations.query_cache.kernels import kernels
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.tolerance import AdaptiveTolerance
from ragcache_integrations.query_cache.types import Explanation, Hit, Metric, QueryCacheStats
from ragcache_integrations.query_cache.validation import (
    as_query,
    check_key,
    check_vector,
    check_vectors,
)

from .answers import Answers, Look, Match
from .decisions import Decisions

__all__ = ["Lookups"]

T = TypeVar("T")
Vectors = NDArray[np.float32]

# More candidates than this are ranked apart, into memory that is taken when their number is known.
_MOST_RANKED = 1024
_COUNTED = (
    "proven", "stale", "unproven", "insertions", "evictions", "expired", "invalidated", "dropped",
)  # fmt: skip


class Lookups(Generic[T]):
    """What :class:`~ragcache_integrations.query_cache.cache.QueryCache` answers.

    A lookup takes no lock while it searches and ranks. At the end it takes the lock for a moment,
    checks that what it read is still valid, and counts itself.

    Args:
        settings: The arguments of the cache.
    """

    immediate: ClassVar[bool] = True
    """Whether lookups touch memory alone."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kernels = kernels()
        self._answers = Answers[T](settings, self._kernels)
        # Squared lengths that a query may have.
        self._shortest_query, self._longest_query = 0.0, math.inf
        if settings.unit and settings.metric == "l2":
            self._shortest_query = 1 - UNIT_SLACK / 2  # as 32-bit floats tell it
            self._longest_query = 1 + UNIT_SLACK / 2
        self._required = settings.required_bound
        self._multi_probe = settings.multi_probe if settings.index == "lsh" else 0
        self._adaptive: AdaptiveTolerance | None = None
        if settings.tolerance == "auto":
            self._adaptive = AdaptiveTolerance(
                target_recall=settings.target_recall,
                max_violation=settings.max_violation,
                start=settings.start_tolerance,
                largest=2.0 if settings.unit else math.inf,
                seed=settings.seed,
            )
        self._decisions = Decisions(settings, self._answers, self._adaptive)
        # Nothing but the distance decides.
        self._simple = self._adaptive is None and self._required is None
        # How far keys are looked for: proofs may allow what the tolerance learnt does not.
        self._limit = math.inf if self._adaptive and settings.proves else self.tolerance
        self._clock: Callable[[], int] = time.monotonic_ns
        self._lock = make_lock()
        self._changes = ChangeLog()
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._lookups = self._hits = 0
        self._vectors = DocumentVectors(settings, self._kernels)
        self._next_expiry = 0
        self._table = EntryTable[T](settings, self._kernels, settings.longest or 0.0)
        renew_after_fork(self)

    def _after_fork(self) -> None:
        if self._lock.locked():  # another thread was in the middle of a change
            self._changes = ChangeLog(self._changes.version + 1)
            self._table = EntryTable[T](self._settings, self._kernels, self._table.longest)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        return self._settings.dim

    @property
    def tolerance(self) -> float:
        """The largest distance at which an unproven lookup hits, now."""
        return self._decisions.tolerance

    @property
    def metric(self) -> Metric:
        """How documents are ranked."""
        return self._settings.metric

    @property
    def store_version(self) -> int:
        """Number that every change of the store's documents increments.

        Read it before a search, hand it to :meth:`insert`.
        """
        return self._changes.version

    def fetch_count(self, k: int, q: ArrayLike | None = None, key: Hashable = None) -> int:
        """Return how many candidates to fetch on a miss: rho times k.

        Without ``vectors`` there is no re-ranking and k are enough.

        Args:
            k: How many are wanted.
            q: The query's embedding; with it, rho may be ``max_rerank_factor``.
            key: As for :meth:`lookup`.
        """
        settings = self._settings
        if settings.vectors is None:
            return k
        most = settings.max_rerank_factor
        if most is None or q is None:
            return k * settings.rerank_factor
        table = self._table
        slot, distance = self._nearest(table, check_vector(q, settings.dim), self._partition(key))
        near = slot >= 0 and 2 * distance <= table.reach.radius[slot] < math.inf
        return k * (most if near else settings.rerank_factor)

    def lookup(self, q: ArrayLike, k: int, key: Hashable = None) -> Hit[T] | None:
        """Find what was fetched for a query close to ``q``.

        Args:
            q: The query's embedding, shape (dim,).
            k: How many candidates are wanted; fewer come back only where the store had no more.
            key: Namespace, filter and everything else that changes the store's answer. Entries of
                another key never match.

        Raises:
            ConfigurationError: ``q``, ``k`` or ``key`` cannot be used.
        """
        # The scan and the ranking hold no lock: a writer may change the table meanwhile. What has
        # been read is used only if none of these races has happened, and looked up again otherwise:
        # 1. A key was being written while the scan read it. ``written`` is read before the scan and
        #    set after each write: a later sequence number may belong to half a key.
        # 2. The slot got another entry, or lost it, between the scan and the look at the entry.
        #    ``_conclude`` compares sequence numbers, which are never used twice.
        # 3. Documents were taken out of the entry since the scan: it no longer serves k, or has
        #    fewer candidates than the kernel ranked.
        # 4. The entry or the whole table was replaced while the answer was made, for instance by
        #    a change of the store. ``_conclude`` looks again under the lock, where it counts.
        # Arrays that grow are replaced, never moved; ``_held`` keeps alive those whose addresses
        # are in ``packed``, which a writer may replace at any time. ``ranks`` says whether the
        # kernel also ranks the candidates of what it finds, into ``ranked``; it ranks none of an
        # entry at distance 0, of one with more candidates than there is room for, or of one whose
        # vectors came after ``packed`` was made.
        query = as_query(q, self._settings.dim)
        if type(k) is not int or not 0 < k <= sys.maxsize:
            k = min(check_int("k", k, 1), sys.maxsize)
        now = self._clock()
        while True:
            table = self._table
            try:
                partition = table.partitions.get(key, NOWHERE)
            except TypeError:
                check_key(key)
                raise
            written = table.keys.written
            find, packed, _held, ranks = table.keys.finding
            ranked, count = None, -1
            if ranks:
                ranked = np.empty(2 * k if k < _MOST_RANKED else 0)
                length, slot, sequence, square, count = find(
                    query, packed, partition, k, now, self._limit, ranked
                )
            else:
                length, slot, sequence, square = find(query, packed, partition, k, now, self._limit)
            if not self._shortest_query < length < self._longest_query:
                self._vectors.prepare_query(q)  # says what is wrong with it
            if slot < 0:
                with self._lock:
                    self._lookups += 1
                return None
            if sequence > written:
                continue
            look, distance = Look(table, query, k, now), math.sqrt(square)
            valid, hit = self._conclude(look, slot, sequence, distance, ranked, count)
            if valid:
                return hit

    def lookup_batch(self, queries: ArrayLike, k: int, key: Hashable = None) -> list[Hit[T] | None]:
        """Batched version of :meth:`lookup`, which takes less time per query.

        Args:
            queries: Their embeddings, shape (n, dim).
            k: How many candidates are wanted for each.
            key: As for :meth:`lookup`.

        Raises:
            ConfigurationError: An argument cannot be used; no query was looked up then.
        """
        rows = np.ascontiguousarray(check_vectors(queries, None, self._settings.dim, "queries"))
        for row in rows:
            self._vectors.prepare_query(row)
        k = min(check_int("k", k, 1), sys.maxsize)
        now = self._clock()
        table = self._table
        partition = self._partition(key)
        written = table.keys.written
        _, arrays = table.keys.reading
        _, slots, sequences, squares = self._kernels.nearest_batch(
            rows, *arrays, partition, k, now, self._limit, self._multi_probe
        )
        hits: list[Hit[T] | None] = []
        matches = zip(slots.tolist(), sequences.tolist(), np.sqrt(squares).tolist(), strict=True)
        for query, (slot, sequence, distance) in zip(rows, matches, strict=True):
            if slot < 0:
                with self._lock:
                    self._lookups += 1
                hits.append(None)
                continue
            valid, hit = False, None
            if sequence <= written:
                look = Look(table, query, k, now)
                valid, hit = self._conclude(look, slot, sequence, distance)
            hits.append(hit if valid else self.lookup(query, k, key))
        return hits

    def explain(self, q: ArrayLike, k: int, key: Hashable = None) -> Explanation:
        """Explain why a query hits or misses. Is not counted as a lookup.

        Args:
            q: As for :meth:`lookup`.
            k: As for :meth:`lookup`.
            key: As for :meth:`lookup`.
        """
        query = check_vector(q, self._settings.dim)
        self._vectors.prepare_query(query)  # says what is wrong with it
        k = min(check_int("k", k, 1), sys.maxsize)
        with self._lock:
            table, tolerance = self._table, self.tolerance
            partition, now = self._partition(key), self._clock()
            entries = table.keys.eligible(partition, k, now)
            slot, distance = self._nearest(table, query, partition, k)
            if slot < 0:
                where = "entry in the buckets searched" if entries else "entry"
                reason = f"no {where} of this key serves k={k}"
                return Explanation(
                    hit=False,
                    reason=reason,
                    distance=None,
                    tolerance=tolerance,
                    recall_bound=None,
                    entries=entries,
                )
            entry = table.entry(slot)
            assert entry is not None  # noqa: S101 - found under the lock
            look, match = Look(table, query, k, now), Match(slot, entry, distance)
            hit, fresh, _ = self._decisions.decide(look, match)
            plain = self._answers.of_entry(look, match)
            reason = self._decisions.reason(hit, plain.recall_bound, fresh, distance)
        bound = plain.recall_bound if hit is None else hit.recall_bound
        return Explanation(hit is not None, reason, distance, tolerance, bound, entries)

    def stats(self) -> QueryCacheStats:
        """Return what the cache holds and what it did."""
        with self._lock:
            return QueryCacheStats(
                entries=len(self._table),
                capacity=self._table.keys.capacity,
                vectors=len(self._table.pool),
                lookups=self._lookups,
                hits=self._hits,
                tolerance=self.tolerance,
                learning=None if self._adaptive is None else self._adaptive.report(),
                **self._counts,
            )

    def _partition(self, key: Hashable) -> int:
        """Return the number of a cache key."""
        check_key(key)
        return self._table.partitions.get(key, NOWHERE)

    def _nearest(
        self, table: EntryTable[T], query: Vectors, partition: int, k: int = 1
    ) -> tuple[int, float]:
        """Return the slot of the nearest key, however far, and its distance; -1 for none."""
        scan, arrays = table.keys.reading
        _, slot, _, square = scan(
            query, *arrays, partition, k, self._clock(), math.inf, self._multi_probe
        )
        return slot, math.sqrt(square)

    def _conclude(
        self,
        look: Look[T],
        slot: int,
        sequence: int,
        distance: float,
        ranked: NDArray[np.float64] | None = None,
        count: int = -1,
    ) -> tuple[bool, Hit[T] | None]:
        """Return whether the match is still valid, and its answer.

        Args:
            look: The lookup.
            slot: Place of the entry in the table.
            sequence: Number of its insertion.
            distance: From the query to its key.
            ranked: What the kernel ranked.
            count: Of how many candidates; -1 where it ranked none.
        """
        table = look.table
        entry = table.entries[slot]
        if entry is None or entry.sequence != sequence:
            return False, None
        if len(entry.candidates) < look.k and not entry.complete:  # documents went since the scan
            return False, None
        match = Match(slot, entry, distance)
        if not self._simple or table.disturbed:
            return self._weigh(look, match)
        if count < 0:
            hit = self._answers.of_entry(look, match)
        elif count == len(entry.candidates):
            assert ranked is not None  # noqa: S101 - something was ranked
            hit = self._answers.of_ranked(look, match, ranked)
        else:  # documents went since the scan
            return False, None
        with self._lock:
            if table is not self._table or table.entries[slot] is not entry:
                return False, None
            self._lookups += 1
            self._hits += 1
            if hit.recall_bound == 1.0:
                self._counts["proven"] += 1
            table.keys.touch(slot)
        return True, hit

    def _weigh(self, look: Look[T], match: Match[T]) -> tuple[bool, Hit[T] | None]:
        """Version of :meth:`_conclude` for caches in which more than the distance decides."""
        table = look.table
        hit, fresh, used = self._decisions.decide(look, match)
        with self._lock:
            if table is not self._table or any(table.entry(slot) is not was for slot, was in used):
                return False, None
            self._lookups += 1
            if hit is None:
                if not fresh or self._required is not None:
                    self._counts["unproven" if fresh else "stale"] += 1
                return True, None
            self._hits += 1
            if hit.recall_bound == 1.0:
                self._counts["proven"] += 1
            if self._adaptive is not None and not self._decisions.suffices(hit):
                hit.check = self._adaptive.wants_check(match.distance)
            table.keys.touch(match.slot)
        return True, hit
