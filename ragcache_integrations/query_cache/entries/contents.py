"""What a cache in memory holds, and what happened to it.

What happened to the store, for searches that began before.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.types import COUNTED, Metric
from ragcache_integrations.query_cache.validation import check_key

from .entry import Entry, nearest_new
from .table import NOWHERE, EntryTable, without

__all__ = ["Change", "ChangeLog", "Contents", "Part"]


T = TypeVar("T")
Vectors = NDArray[np.float32]

_REMEMBERED = 256
_ROUNDING = 2.0**-20


@dataclass(frozen=True)
class Part:
    """A part of what is cached: the entries for which everything holds that is there.

    Attributes:
        marks: Their cache key has all of these marks.
        ids: They hold one of these documents; ``None``: any.
        before: They were inserted before this moment, in microseconds since 1970; ``None``:
            at any time.
        near: Their key is within a distance of this query, prepared, shape (dim,); ``None``:
            anywhere.
    """

    marks: frozenset[str] = frozenset()
    ids: frozenset[str] | None = None
    before: int | None = None
    near: tuple[Vectors, float] | None = None

    def holds(self, marks: Collection[str], ids: Iterable[str], born: int, query: Vectors) -> bool:
        """Whether an entry belongs to it.

        Args:
            marks: The marks of its cache key.
            ids: Ids of the documents that it holds.
            born: When it was inserted, in microseconds.
            query: Its key, prepared, shape (dim,).
        """
        return (
            self.marks <= set(marks)
            and (self.before is None or born < self.before)
            and (self.ids is None or not self.ids.isdisjoint(ids))
            and (self.near is None or _is_within(*self.near, query))
        )


def _is_within(center: Vectors, distance: float, query: Vectors) -> bool:
    apart = float(np.linalg.norm(center.astype(np.float64) - query))
    # No entry may stay that the kernels, which sum in another order, find within the distance.
    return apart <= distance * (1 + _ROUNDING)


@dataclass(frozen=True)
class Change:
    """One change.

    Attributes:
        version: The store's version from then on.
        removed: Ids of documents that are gone.
        added: Ids of documents that are new.
        vectors: Their vectors, shape (len(added), dim), as they are kept.
        forgotten: Which of the answers found before are forgotten, of the same documents or not.
    """

    version: int
    removed: tuple[str, ...]
    added: tuple[str, ...]
    vectors: Vectors
    forgotten: Part | None = None


class ChangeLog:
    """The latest changes. Its owner holds the lock.

    Args:
        version: Where to begin: changes up to it are not known.

    Attributes:
        version: Number of changes so far.
    """

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self._forgotten = version  # changes up to this version are not known any more
        self._changes: deque[Change] = deque()

    def copy(self) -> ChangeLog:
        """Return another one that knows the same."""
        copied = ChangeLog(self.version)
        copied._forgotten = self._forgotten
        copied._changes = self._changes.copy()
        return copied

    @property
    def forgets(self) -> bool:
        """Whether parts of what is cached are among what is forgotten."""
        return any(change.forgotten is not None for change in self._changes)

    def note(
        self,
        removed: tuple[str, ...],
        added: tuple[str, ...],
        vectors: Vectors,
        forgotten: Part | None = None,
    ) -> None:
        """Note a change."""
        self.version += 1
        self._changes.append(Change(self.version, removed, added, vectors, forgotten))
        if len(self._changes) > _REMEMBERED:
            self._forgotten = self._changes.popleft().version

    def clear(self) -> None:
        """Note that anything may have changed."""
        self.version += 1
        self._forgotten = self.version
        self._changes.clear()

    def since(self, version: int) -> list[Change] | None:
        """Return the changes after a version; ``None`` where they are not all known."""
        if version < self._forgotten:
            return None
        return [change for change in self._changes if change.version > version]

    def catch_up(
        self, entry: Entry[T], query: Vectors, version: int, metric: Metric
    ) -> tuple[Entry[T], float] | None:
        """Apply to an answer what changed since its search began.

        Args:
            entry: The entry with the answer.
            query: The entry's key, prepared, shape (dim,).
            version: The store's version before the search began.
            metric: How the cache ranks documents.

        Returns:
            What is left of it, and the distance from the key to the nearest document that it may
            lack; ``None`` where it is out of date.
        """
        if version == self.version:
            return entry, math.inf
        changes = self.since(version)
        if changes is None:
            return None
        left = without(entry, {document_id for change in changes for document_id in change.removed})
        newest = math.inf
        known = {candidate.id for candidate in left.candidates}
        for change in changes:
            new = [row for row, document_id in enumerate(change.added) if document_id not in known]
            if new:
                newest = min(newest, *nearest_new(query[None], change.vectors[new], metric))
        if newest < math.inf:
            if entry.readable is None:
                return None
            left = replace(left, complete=False)
        if entry.candidates and not left.candidates:
            return None
        return left, float(newest)


class Contents(Generic[T]):
    """The entries of a cache, the changes of its store, and its counts.

    Who changes any of them holds the lock. The table is replaced as a whole where all entries go.

    Args:
        settings: The arguments of the cache.
        kernels: The module of compiled or plain loops.

    Attributes:
        lock: Held for every change, and for what has to be seen in one state.
        table: The entries.
        changes: The latest changes of the store.
        counts: How often what is counted happened, by the names in :data:`.types.COUNTED`.
        clock: Returns the time, in nanoseconds.
    """

    def __init__(self, settings: Settings, kernels: ModuleType) -> None:
        self._settings = settings
        self._kernels = kernels
        self.lock = make_lock()
        self.clock: Callable[[], int] = time.monotonic_ns
        self.changes = ChangeLog()
        self.counts = dict.fromkeys(COUNTED, 0)
        self.table = self._empty(settings.longest or 0.0)
        renew_after_fork(self)

    def _after_fork(self) -> None:
        if self.lock.locked():  # another thread was in the middle of a change
            self.changes = ChangeLog(self.changes.version + 1)
            self.table = self._empty(self.table.longest)

    def _empty(self, longest: float) -> EntryTable[T]:
        return EntryTable(self._settings, self._kernels, longest)

    def partition(self, key: Hashable) -> int:
        """Return the number of a cache key.

        Raises:
            ConfigurationError: It is not hashable.
        """
        check_key(key)
        return self.table.partitions.get(key, NOWHERE)

    def clear(self) -> None:
        """Drop every entry; searches that began before are not inserted any more."""
        self.changes.clear()
        self.table = self._empty(self.table.longest)

    def replace(self, table: EntryTable[T], version: int) -> None:
        """Take another table's entries, and apply to them what changed meanwhile.

        Args:
            table: The entries.
            version: The version of the store that they are of.
        """
        table.longest = max(table.longest, self.table.longest)
        changes = self.changes.since(version)
        if changes is None:  # cleared in the meantime
            table, changes = self._empty(table.longest), []
        for change in changes:
            table.drop_documents(change.removed)
            table.add_documents(change.added, change.vectors)
        self.table = table
