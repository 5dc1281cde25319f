"""What is dropped from a cache in memory: because it was asked to, or because the store changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from numpy.typing import ArrayLike

from ragcache_integrations.core.checks import check_int

from .entries import Contents, DocumentVectors
from .lookup import Decisions
from .types import Candidate
from .validation import check_ids

__all__ = ["Removals"]

T = TypeVar("T")


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
            self.clear()  # the store has changed, and nobody knows how
            raise
        with contents.lock:
            if new is None:
                contents.clear()
                return
            contents.changes.note(removed, added, new)
            ended = contents.table.drop_documents(removed)
            ended += contents.table.add_documents(added, new)
            contents.counts["invalidated"] += ended
