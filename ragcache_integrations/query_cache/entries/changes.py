"""What happened to the store, for searches that began before."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.types import Metric

from .entry import Entry
from .freshness import nearest_new
from .table import without

__all__ = ["Change", "ChangeLog"]

T = TypeVar("T")
Vectors = NDArray[np.float32]

_REMEMBERED = 256


@dataclass(frozen=True)
class Change:
    """One change.

    Attributes:
        version: The store's version from then on.
        removed: Ids of documents that are gone.
        added: Ids of documents that are new.
        vectors: Their vectors, shape (len(added), dim), as they are kept.
    """

    version: int
    removed: tuple[str, ...]
    added: tuple[str, ...]
    vectors: Vectors


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

    def note(self, removed: tuple[str, ...], added: tuple[str, ...], vectors: Vectors) -> None:
        """Note a change."""
        self.version += 1
        self._changes.append(Change(self.version, removed, added, vectors))
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
        changes = self.since(version)
        if not changes:
            return None if changes is None else (entry, math.inf)
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
