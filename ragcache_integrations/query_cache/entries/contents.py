"""What a cache in memory holds, and what happened to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from types import ModuleType
from typing import Generic, TypeVar

from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.types import COUNTED
from ragcache_integrations.query_cache.validation import check_key

from .changes import ChangeLog
from .table import NOWHERE, EntryTable

__all__ = ["Contents"]

T = TypeVar("T")


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
