"""Changes of a cache in memory: insertions, removals, and learning from the store's answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import check_int

from .certificates import known_radius
from .entries import (
    NEVER,
    Contents,
    DocumentKey,
    DocumentVectors,
    Entry,
    EntryTable,
    NewEntry,
    check_candidates,
    document_keys,
)
from .lookup import Decisions, Learning, Look
from .settings import Settings
from .types import Candidate, Wording
from .validation import check_ids, check_key

__all__ = ["Insertions", "Removals"]


T = TypeVar("T")
Vectors = NDArray[np.float32]


class Insertions(Generic[T]):
    """Makes entries of what searches found.

    Args:
        settings: The arguments of the cache.
        contents: What the cache holds.
        vectors: Reads the documents' vectors.
        decisions: Has the tolerance that may be learnt.
        learning: Learns it.
    """

    def __init__(
        self,
        settings: Settings,
        contents: Contents[T],
        vectors: DocumentVectors,
        decisions: Decisions[T],
        learning: Learning[T],
    ) -> None:
        self._settings = settings
        self._contents = contents
        self._vectors = vectors
        self._decisions = decisions
        self._learning = learning
        self._lifetime = settings.lifetime
        self._next_expiry = 0
        self._nothing = np.empty((0, settings.dim), dtype=np.float32)

    def insert(
        self,
        q: ArrayLike,
        candidates: Sequence[Candidate[T]],
        key: Hashable,
        k: int | None,
        store_version: int | None,
        vectors: ArrayLike | None,
        *,
        complete: bool,
        ranked: bool,
        wording: Wording | None = None,
    ) -> bool:
        """See :meth:`.cache.QueryCache.insert`."""
        contents = self._contents
        query = self._vectors.prepare_query(q)
        checked = check_candidates(candidates, complete=complete)
        check_key(key)
        if k is not None:
            k = check_int("k", k, 1)
        version = contents.changes.version
        if store_version is not None:
            version = check_int("store_version", store_version, 0, version)
        documents = document_keys(checked)
        held = tuple(dict.fromkeys(documents))
        known = None
        if ranked and vectors is not None:
            known = self._usable(vectors, documents, held)
        reads = ranked and vectors is None and self._settings.vectors is not None
        while True:
            table = contents.table
            # With what came along, nothing is missing, whatever the pool keeps by then.
            missing, fetched = self._read_missing(table, held) if reads else (held, known)
            with contents.lock:
                if table is not contents.table:  # cleared in the meantime
                    contents.counts["dropped"] += 1
                    return False
                readable = None
                if fetched is not None:
                    rows = table.pool.acquire_all(held, missing, fetched)
                    if rows is None:
                        continue
                    readable = table.rank(query, documents, rows)
                text = "" if wording is None else wording.text
                entry = Entry(key, checked, readable, complete, contents.clock(), 0, ranked, text)
                if self._decisions.learnt is not None and version == contents.changes.version:
                    wanted = k or max(len(checked), 1)
                    self._learn(query, entry, wanted, wording, served=False)
                return self._put(query, entry, version)

    def report(
        self,
        q: ArrayLike,
        k: int,
        candidates: Sequence[Candidate[T]],
        key: Hashable,
        wording: Wording | None = None,
    ) -> bool | None:
        """See :meth:`.cache.QueryCache.report`."""
        query = self._vectors.prepare_query(q)
        k = check_int("k", k, 1)
        if self._decisions.learnt is None:
            return None
        contents = self._contents
        with contents.lock:
            table, readable = contents.table, None
            documents = document_keys(candidates)
            if self._settings.vectors is not None and not table.pool.missing(documents):
                readable = table.rank(query, documents)
            entry = Entry(key, tuple(candidates), readable, complete=False, born=0, sequence=0)
            return self._learn(query, entry, k, wording, served=True)

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
        if not missing and len(set(among)) == len(among):
            return missing, self._nothing
        return missing, self._vectors.read([key[0] for key in missing], among=among)

    def _learn(
        self, query: Vectors, truth: Entry[T], k: int, wording: Wording | None, *, served: bool
    ) -> bool | None:
        """Learn from what the store said; as in :meth:`report`."""
        contents = self._contents
        look = Look(contents.table, query, k, contents.clock())
        return self._learning.learn(look, truth, wording, served=served)

    def _put(self, query: Vectors, entry: Entry[T], version: int) -> bool:
        """Put an entry into the table, up to date; return whether that could be."""
        contents = self._contents
        table, metric, lifetime = contents.table, self._settings.metric, self._lifetime
        held = () if entry.readable is None else entry.readable.documents
        caught_up = contents.changes.catch_up(entry, query, version, metric)
        if caught_up is None:
            table.pool.release(held)
            contents.counts["dropped"] += 1
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
        contents.counts["evictions"] += table.put(new)
        contents.counts["insertions"] += 1
        return True

    def _expire(self, table: EntryTable[T], lifetime: int) -> None:
        """Take ended entries out of memory now and then; lookups no longer find them."""
        contents = self._contents
        now = contents.clock()
        if now < self._next_expiry:
            return
        self._next_expiry = now + lifetime // 8
        for slot in table.keys.expired(now):
            table.remove(slot)
            contents.counts["expired"] += 1


class Removals(Generic[T]):
    """Drops entries.

    Args:
        contents: What the cache holds.
        vectors: Reads the documents' vectors.
        decisions: Says which entries answer a query.
    """

    def __init__(
        self, contents: Contents[T], vectors: DocumentVectors, decisions: Decisions[T]
    ) -> None:
        self._contents = contents
        self._vectors = vectors
        self._decisions = decisions

    def delete(self, q: ArrayLike, key: Hashable) -> bool:
        """See :meth:`.cache.QueryCache.delete`."""
        contents, query = self._contents, self._vectors.prepare_query(q)
        with contents.lock:
            slot = contents.table.keys.same(query, contents.partition(key))
            if slot is None:
                return False
            contents.table.remove(slot)
            return True

    def forget(self, q: ArrayLike, k: int, key: Hashable) -> int:
        """See :meth:`.cache.QueryCache.forget`."""
        contents, query = self._contents, self._vectors.prepare_query(q)
        k = min(check_int("k", k, 1), sys.maxsize)
        count = 0
        with contents.lock:
            table = contents.table
            while True:
                partition = contents.partition(key)
                slot, distance = table.keys.nearest(query, partition, k, contents.clock())
                entry = table.entry(slot) if slot >= 0 else None
                if entry is None or distance > self._decisions.limit_of(entry):
                    break
                table.remove(slot)
                count += 1
            contents.changes.clear()
        return count

    def discard(self, matches: Callable[[Hashable, Sequence[Candidate[T]], float], bool]) -> int:
        """See :meth:`.cache.QueryCache.discard`."""
        contents = self._contents
        with contents.lock:
            now, table = contents.clock(), contents.table
            slots = [
                slot
                for slot, entry in enumerate(table.entries)
                if entry is not None
                and matches(entry.key, entry.candidates, (now - entry.born) / 1e9)
            ]
            for slot in slots:
                table.remove(slot)
            contents.changes.clear()
        return len(slots)

    def clear(self) -> None:
        """Drop every entry."""
        with self._contents.lock:
            self._contents.clear()

    def follow(
        self, removed: tuple[str, ...], added: tuple[str, ...], vectors: ArrayLike | None
    ) -> None:
        """Follow a change of the store.

        Args:
            removed: Ids of documents that are gone.
            added: Ids of documents that are new.
            vectors: Their vectors, shape (len(added), dim); ``None``: they are read.

        Raises:
            ConfigurationError: ``vectors`` cannot be used. Every entry was dropped then.
        """
        check_ids((*removed, *added))
        contents = self._contents
        try:
            added, new = self._vectors.of_new(added, vectors)
        except BaseException:
            self.clear()  # the store has changed in an unknown way
            raise
        with contents.lock:
            if new is None:
                contents.clear()
                return
            contents.changes.note(removed, added, new)
            ended = contents.table.drop_documents(removed)
            ended += contents.table.add_documents(added, new)
            contents.counts["invalidated"] += ended
