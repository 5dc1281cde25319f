"""What happened to the store and to what is cached, for searches that began before."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.types import Metric

from .entry import Entry, nearest_new
from .table import without

__all__ = ["Change", "ChangeLog", "Part"]


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
