"""The approximate query cache (Proximity §3, algorithm 1), with proofs and without guesses."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.knobs import takes_fields_of
from ragcache_integrations.errors import CacheFileError

from .certificates import UNIT_SLACK, known_radius
from .entries import (
    NEVER,
    NOWHERE,
    ChangeLog,
    DocumentKey,
    DocumentVectors,
    Entry,
    EntryTable,
    NewEntry,
    check_candidates,
    document_keys,
)
from .files import capture, check_arguments, read, write
from .kernels import kernels
from .lookup import Decisions, Look, Match
from .settings import BaseQueryCache, Settings
from .types import (
    COUNTED,
    Candidate,
    Explanation,
    Hit,
    QueryCacheStats,
    Wording,
)
from .validation import FLOAT32, check_ids, check_key, check_vector, check_vectors

__all__ = ["QueryCache"]

T = TypeVar("T")
Vectors = NDArray[np.float32]

# More candidates than this are ranked apart, into memory that is taken when their number is known.
_MOST_RANKED = 1024


class QueryCache(BaseQueryCache[T]):
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
        unranked_tolerance: The largest distance at which an entry answers whose candidates cannot
            be re-ranked, as their vectors are not known; ``None``: like any other.
        tenant_of: For ``auto``: returns whose questions a cache key is for. A tenant is served by
            what its own questions have taught. ``None``: each key is a tenant.
        tag: Names embedding model and index; :meth:`load` refuses a file with another one.
        seed: Decides hyperplanes and which hits are checked.

    Raises:
        ConfigurationError: An argument is out of its range, or lacks what it needs.
    """

    immediate: ClassVar[bool] = True
    """Whether lookups touch memory alone."""

    @takes_fields_of(Settings)
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kernels = kernels()
        self._lock = make_lock()
        self._clock: Callable[[], int] = time.monotonic_ns
        self._changes = ChangeLog()
        self._counts = dict.fromkeys(COUNTED, 0)
        self._table = self._empty(settings.longest or 0.0)
        self._vectors = DocumentVectors(settings, self._kernels)
        self._decisions = Decisions[T](settings, self._kernels)
        # Nothing but the distance decides.
        self._simple = self._decisions.learnt is None and settings.guarantee is None
        # Of an answer that is proven, words say nothing.
        self._words_decide = settings.required_bound != 1.0
        self._shape = (settings.dim,)
        self._next_expiry = 0
        # Squared lengths that a query may have.
        self._shortest_query, self._longest_query = 0.0, math.inf
        if settings.unit and settings.metric == "l2":
            self._shortest_query = 1 - UNIT_SLACK / 2  # as 32-bit floats tell it
            self._longest_query = 1 + UNIT_SLACK / 2
        renew_after_fork(self)

    def _after_fork(self) -> None:
        if self._lock.locked():  # another thread was in the middle of a change
            self._changes = ChangeLog(self._changes.version + 1)
            self._table = self._empty(self._table.longest)

    def _empty(self, longest: float) -> EntryTable[T]:
        return EntryTable(self._settings, self._kernels, longest)

    def _drop_all(self) -> None:
        """Drop every entry; the lock is held."""
        self._changes.clear()
        self._table = self._empty(self._table.longest)

    def _partition(self, key: Hashable) -> int:
        """Return the number of a cache key.

        Raises:
            ConfigurationError: It is not hashable.
        """
        check_key(key)
        return self._table.partitions.get(key, NOWHERE)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def tolerance(self) -> float:
        """The largest distance at which an unproven lookup of any tenant hits, now."""
        return self._decisions.tolerance

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
        query = check_vector(q, settings.dim)
        table, partition = self._table, self._partition(key)
        slot, distance = table.keys.nearest(query, partition, 1, self._clock())
        near = slot >= 0 and 2 * distance <= table.reach.radius[slot] < math.inf
        return k * (most if near else settings.rerank_factor)

    def lookup(
        self, q: ArrayLike, k: int, key: Hashable = None, *, wording: Wording | None = None
    ) -> Hit[T] | None:
        """Find what was fetched for a query close to ``q``.

        Args:
            q: The query's embedding, shape (dim,).
            k: How many candidates are wanted; fewer come back only where the store had no more.
            key: Namespace, filter and everything else that changes the store's answer. Entries of
                another key never match.
            wording: The query's words. An entry whose words it does not accept never matches,
                unless all of its answer is proven to be the store's.

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
        query, k = self._checked(q, k)
        limit = self._decisions.limit
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
                    query, packed, partition, k, now, limit, ranked
                )
            else:
                length, slot, sequence, square = find(query, packed, partition, k, now, limit)
            if not self._shortest_query < length < self._longest_query:
                self._vectors.prepare_query(q)  # says what is wrong with it
            if slot < 0:
                with self._lock:
                    self._counts["lookups"] += 1
                return None
            if sequence > written:
                continue
            look, distance = Look(table, query, k, now), math.sqrt(square)
            if wording is not None and not self._accepts(table.entries[slot], sequence, wording):
                return self._answer_other_words(look, partition, wording)
            valid, hit = self._conclude(look, slot, sequence, distance, ranked, count)
            if valid:
                return hit

    def _checked(self, q: ArrayLike, k: int) -> tuple[NDArray[np.float32], int]:
        """Return a query and a number as the kernels take them; see :func:`.as_query`."""
        if type(k) is not int or not 0 < k <= sys.maxsize:
            k = min(check_int("k", k, 1), sys.maxsize)
        if (
            type(q) is np.ndarray
            and q.dtype is FLOAT32
            and q.shape == self._shape
            and q.flags.carray
        ):
            return q, k
        return check_vector(q, self._settings.dim), k

    def _accepts(self, entry: Entry[T] | None, sequence: int, wording: Wording) -> bool:
        """Return whether an entry may answer, as far as its words decide."""
        if entry is None or entry.sequence != sequence or entry.text == wording.text:
            return True
        return not self._words_decide or wording.accepts(entry.text)

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
        too_far = entry.readable is None and distance > self._decisions.limit_of(entry)
        if not self._simple or table.disturbed or too_far:
            return self._weigh(look, match)
        if count >= 0 and count != len(entry.candidates):  # documents went since the scan
            return False, None
        hit = self._decisions.answer_from(look, match, None if count < 0 else ranked)
        with self._lock:
            if table is not self._table or table.entries[slot] is not entry:
                return False, None
            self._counts["lookups"] += 1
            self._counts["hits"] += 1
            if hit.recall_bound == 1.0:
                self._counts["proven"] += 1
            table.keys.touch(slot)
        return True, hit

    def _answer_other_words(self, look: Look[T], partition: int, wording: Wording) -> Hit[T] | None:
        """Answer from the nearest entry whose words may be answered alike, and count that."""
        while True:
            with self._lock:
                match = None
                if look.table is self._table:
                    match = self._decisions.next_accepted(look, partition, wording)
                if match is None:
                    self._counts["lookups"] += 1
                    return None
            valid, hit = self._weigh(look, match)
            if valid:
                return hit

    def _weigh(self, look: Look[T], match: Match[T]) -> tuple[bool, Hit[T] | None]:
        """Version of :meth:`_conclude` for caches in which more than the distance decides."""
        table = look.table
        hit, fresh, used = self._decisions.decide(look, match)
        with self._lock:
            if table is not self._table or any(table.entry(slot) is not was for slot, was in used):
                return False, None
            self._counts["lookups"] += 1
            if hit is None:
                if not fresh or self._settings.guarantee is not None:
                    self._counts["unproven" if fresh else "stale"] += 1
                return True, None
            self._counts["hits"] += 1
            if hit.recall_bound == 1.0:
                self._counts["proven"] += 1
            learnt = self._decisions.learnt
            if learnt is not None and not self._decisions.suffices(hit):
                tenant = self._decisions.tenant(match.entry.key)
                hit.check = learnt.wants_check(tenant, match.distance)
            table.keys.touch(match.slot)
        return True, hit

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
        now, table, partition = self._clock(), self._table, self._partition(key)
        written = table.keys.written
        _, packed, _held, _ = table.keys.finding
        _, slots, sequences, squares = self._kernels.nearest_batch(
            rows, packed, partition, k, now, self._decisions.limit
        )
        hits: list[Hit[T] | None] = []
        matches = zip(slots.tolist(), sequences.tolist(), np.sqrt(squares).tolist(), strict=True)
        for query, (slot, sequence, distance) in zip(rows, matches, strict=True):
            if slot < 0:
                with self._lock:
                    self._counts["lookups"] += 1
                hits.append(None)
                continue
            valid, hit = False, None
            if sequence <= written:
                look = Look(table, query, k, now)
                valid, hit = self._conclude(look, slot, sequence, distance)
            hits.append(hit if valid else self.lookup(query, k, key))
        return hits

    def explain(
        self, q: ArrayLike, k: int, key: Hashable = None, *, wording: Wording | None = None
    ) -> Explanation:
        """Explain why a query hits or misses. Is not counted as a lookup.

        Args:
            q: As for :meth:`lookup`.
            k: As for :meth:`lookup`.
            key: As for :meth:`lookup`.
            wording: As for :meth:`lookup`.
        """
        query = check_vector(q, self._settings.dim)
        self._vectors.prepare_query(query)  # says what is wrong with it
        k = min(check_int("k", k, 1), sys.maxsize)
        check_key(key)
        with self._lock:
            look = Look(self._table, query, k, self._clock())
            asked = None if self._settings.required_bound == 1.0 else wording
            return self._decisions.explain(look, self._partition(key), key, asked)

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
        vectors: ArrayLike | None = None,
        wording: Wording | None = None,
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
            vectors: The candidates' vectors, shape (len(candidates), dim), where the search brought
                them along. Otherwise they are read through the cache's ``vectors``.
            wording: The query's words, for lookups that have some, too.

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
        version = self._changes.version
        if store_version is not None:
            version = check_int("store_version", store_version, 0, version)
        documents = document_keys(checked)
        held = tuple(dict.fromkeys(documents))
        known = None
        if ranked and vectors is not None:
            known = self._usable(vectors, documents, held)
        reads = ranked and vectors is None and self._settings.vectors is not None
        while True:
            table = self._table
            # With what came along, nothing is missing, whatever the pool keeps by then.
            missing, fetched = self._read_missing(table, held) if reads else (held, known)
            with self._lock:
                if table is not self._table:  # cleared in the meantime
                    self._counts["dropped"] += 1
                    return False
                readable = None
                if fetched is not None:
                    rows = table.pool.acquire(held, fetched, missing)
                    if rows is None:
                        continue
                    readable = table.rank(query, documents, rows)
                text = "" if wording is None else wording.text
                entry = Entry(key, checked, readable, complete, self._clock(), 0, ranked, text)
                if self._decisions.learnt is not None and version == self._changes.version:
                    look = Look(table, query, k or max(len(checked), 1), self._clock())
                    self._decisions.learn(look, entry, wording, served=False)
                return self._put(query, entry, version)

    def _usable(
        self, vectors: ArrayLike, documents: Sequence[DocumentKey], held: Sequence[DocumentKey]
    ) -> Vectors | None:
        """Return vectors that came along with documents, one for each of those to be held."""
        known = self._vectors.usable(vectors, len(documents))
        if known is None or len(held) == len(documents):
            return known
        rows = {key: row for row, key in reversed(list(enumerate(documents)))}
        return known[[rows[key] for key in held]]

    def _read_missing(
        self, table: EntryTable[T], held: Sequence[DocumentKey]
    ) -> tuple[Sequence[DocumentKey], Vectors | None]:
        """Return which of some documents are not in the pool, and their vectors.

        None of them is referenced meanwhile: an insertion of a document that changes while vectors
        are read must not get its old vector.
        """
        missing = table.pool.missing(held)
        among = [key[0] for key in held]
        return missing, self._vectors.read([key[0] for key in missing], among=among)

    def _put(self, query: Vectors, entry: Entry[T], version: int) -> bool:
        """Put an entry into the table, up to date; return whether that could be."""
        table, metric, lifetime = self._table, self._settings.metric, self._settings.lifetime
        held = () if entry.readable is None else entry.readable.documents
        caught_up = self._changes.catch_up(entry, query, version, metric)
        if caught_up is None:
            table.pool.release(held)
            self._counts["dropped"] += 1
            return False
        left, newest = caught_up
        distances = None
        if left.readable is not None:
            # Of what is left: the others' vectors may be those of after the search.
            distances = left.readable.distances
            if left is not entry:
                table.pool.release(set(held).difference(left.readable.documents))
        radius = known_radius(distances, query, metric, table.longest, complete=entry.complete)
        expires = NEVER
        if lifetime is not None:
            self._expire(table, lifetime)
            expires = entry.born + lifetime
        new = NewEntry(query, left, min(radius, newest), newest, expires)
        self._counts["evictions"] += table.put(new)
        self._counts["insertions"] += 1
        return True

    def _expire(self, table: EntryTable[T], lifetime: int) -> None:
        """Take ended entries out of memory now and then; lookups no longer find them."""
        now = self._clock()
        if now < self._next_expiry:
            return
        self._next_expiry = now + lifetime // 8
        for slot in table.keys.expired(now):
            table.remove(slot)
            self._counts["expired"] += 1

    def report(
        self,
        q: ArrayLike,
        k: int,
        candidates: Sequence[Candidate[T]],
        key: Hashable = None,
        *,
        wording: Wording | None = None,
    ) -> bool | None:
        """Pass ``tolerance="auto"`` the store's result for a query that the cache answered.

        Call it for hits that have ``check`` set.

        Args:
            q: The query's embedding, shape (dim,).
            k: The number of documents, as for the lookup.
            candidates: The store's k documents, best first.
            key: The cache key, as for the lookup.
            wording: The query's words, as for the lookup.

        Returns:
            Whether the answer had at least ``target_recall``; ``None`` where the entry is gone or
            the tolerance is fixed.
        """
        query = self._vectors.prepare_query(q)
        k = check_int("k", k, 1)
        if self._decisions.learnt is None:
            return None
        with self._lock:
            table, readable = self._table, None
            documents = document_keys(candidates)
            if self._settings.vectors is not None and not table.pool.missing(documents):
                readable = table.rank(query, documents)
            entry = Entry(key, tuple(candidates), readable, complete=False, born=0, sequence=0)
            look = Look(table, query, k, self._clock())
            return self._decisions.learn(look, entry, wording, served=True)

    def delete(self, q: ArrayLike, key: Hashable = None) -> bool:
        """Drop the entry of exactly this embedding and key; return whether there was one."""
        query = self._vectors.prepare_query(q)
        with self._lock:
            slot = self._table.keys.same(query, self._partition(key))
            if slot is None:
                return False
            self._table.remove(slot)
            return True

    def guess(self, q: ArrayLike, k: int, key: Hashable = None) -> Hit[T] | None:
        """Guess what the store will return for a query that misses, from documents seen before.

        Args:
            q: As for :meth:`lookup`.
            k: As for :meth:`lookup`.
            key: As for :meth:`lookup`.

        Returns:
            The k nearest documents that the entries nearby hold, and the distance to the nearest of
            these entries. ``None`` where fewer than k are known, or a lookup would hit.
        """
        query = check_vector(q, self._settings.dim)
        k = min(check_int("k", k, 1), sys.maxsize)
        with self._lock:
            partition = self._partition(key)
            look = Look(self._table, query, k, self._clock())
            match = self._decisions.nearest(look._replace(k=1), partition)
            if match is None or self._decisions.decide(look, match)[0] is not None:
                return None
            candidates = self._decisions.guess(look, partition)
            age = (look.now - match.entry.born) / 1e9
        return Hit(candidates, match.distance, age, reranked=True) if candidates else None

    def forget(self, q: ArrayLike, k: int, key: Hashable = None) -> int:
        """Drop all entries that would answer a query; return how many there were.

        Args:
            q: As for :meth:`lookup`.
            k: As for :meth:`lookup`.
            key: As for :meth:`lookup`.
        """
        query = self._vectors.prepare_query(q)
        k = min(check_int("k", k, 1), sys.maxsize)
        count = 0
        with self._lock:
            while True:
                look = Look(self._table, query, k, self._clock())
                match = self._decisions.nearest(look, self._partition(key))
                if match is None or match.distance > self._decisions.limit_of(match.entry):
                    break
                self._table.remove(match.slot)
                count += 1
            self._changes.clear()
        return count

    def discard(self, matches: Callable[[Hashable, Sequence[Candidate[T]], float], bool]) -> int:
        """Drop entries; searches that began before are not inserted any more.

        Args:
            matches: Returns whether to drop an entry, of which it is given the cache key, the
                candidates, and the seconds since it was inserted.

        Returns:
            How many entries were dropped.
        """
        with self._lock:
            now, table = self._clock(), self._table
            slots = [
                slot
                for slot, entry in enumerate(table.entries)
                if entry is not None
                and matches(entry.key, entry.candidates, (now - entry.born) / 1e9)
            ]
            for slot in slots:
                table.remove(slot)
            self._changes.clear()
        return len(slots)

    def clear(self) -> None:
        """Drop every entry; searches that began before are not inserted any more."""
        with self._lock:
            self._drop_all()

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
            snapshot = capture(self._table, self._decisions.learnt, self._clock())
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
        settings = self._settings
        version = self._changes.version
        try:
            now, learnt = self._clock(), self._decisions.learnt
            table, learnt = read(path, settings, self._kernels, now, decode, store_tag, learnt)
        except CacheFileError:
            self.clear()
            raise
        with self._lock:
            # What changed while the file was read.
            changes = self._changes.since(version)
            table.longest = max(table.longest, self._table.longest)
            if changes is None:  # cleared in the meantime
                table, changes = self._empty(table.longest), []
            for change in changes:
                table.drop_documents(change.removed)
                table.add_documents(change.added, change.vectors)
            self._table = table
            if learnt is not None:
                self._decisions.note_learnt(learnt)
            return len(self._table)

    def stats(self) -> QueryCacheStats:
        """Return what the cache holds and what it did."""
        learnt = self._decisions.learnt
        with self._lock:
            return QueryCacheStats(
                entries=len(self._table),
                capacity=self._table.keys.capacity,
                vectors=len(self._table.pool),
                tolerance=self.tolerance,
                learning=None if learnt is None else learnt.report(),
                **self._counts,
            )

    def _change(
        self, removed: tuple[str, ...], added: tuple[str, ...], vectors: ArrayLike | None
    ) -> None:
        check_ids((*removed, *added))
        try:
            added, new = self._vectors.of_new(added, vectors)
        except BaseException:
            self.clear()  # the store has changed in an unknown way
            raise
        with self._lock:
            if new is None:
                self._drop_all()
                return
            self._changes.note(removed, added, new)
            ended = self._table.drop_documents(removed)
            ended += self._table.add_documents(added, new)
            self._counts["invalidated"] += ended
