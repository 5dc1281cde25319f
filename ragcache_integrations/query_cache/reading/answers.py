"""What an entry answers to a query, and how much of it is proven."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.certificates import nothing_nearer, proven, proven_unit
from ragcache_integrations.query_cache.entries import Entry, EntryTable
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.types import Candidate, Hit

__all__ = ["Answers", "Look", "Match", "Used"]

T = TypeVar("T")
Vectors = NDArray[np.float32]
Used = list[tuple[int, Entry[T]]]
"""Entries that an answer comes from, with their slots."""


class Look(NamedTuple, Generic[T]):
    """One lookup of one query.

    Attributes:
        table: The entries at its beginning.
        query: The query's embedding, shape (dim,).
        k: How many candidates to answer with, at least 1.
        now: Its time, in nanoseconds of the cache's clock.
    """

    table: EntryTable[T]
    query: Vectors
    k: int
    now: int


class Match(NamedTuple, Generic[T]):
    """The entry whose key is nearest to a query.

    Attributes:
        slot: Its place in the table.
        entry: The entry, as it was when it was found.
        distance: From the query to its key.
    """

    slot: int
    entry: Entry[T]
    distance: float


_SECOND = 1_000_000_000
# Entries whose knowledge is taken together where the nearest one's does not prove enough. More of
# them hardly prove more.
_TOGETHER = 10


class Answers(Generic[T]):
    """Reads a table. What it read may change meanwhile: its caller looks again, under the lock.

    Args:
        settings: The arguments of the cache.
        kernels: The module of compiled or plain loops.
    """

    def __init__(self, settings: Settings, kernels: ModuleType) -> None:
        self._settings = settings
        self._kernels = kernels
        self._rank = kernels.rank
        self._unit_keys = settings.metric == "cosine"
        self._inner = settings.metric == "ip"
        self._proves = settings.proves
        self._required = settings.required_bound or 0.0

    def fresh(self, look: Look[T], match: Match[T]) -> bool:
        """Whether no document that came after the entry belongs in its answer."""
        table, entry = look.table, match.entry
        newest = table.reach.newest[match.slot]
        if newest == math.inf:
            return True
        if entry.readable is None or entry.complete:  # it is about to be changed
            return False
        distances = entry.readable.distances
        last = distances[min(look.k, len(distances)) - 1]
        return bool(2 * table.apart(match.distance) <= newest - last)

    def of_entry(self, look: Look[T], match: Match[T]) -> Hit[T]:
        """Answer from one entry."""
        table, query, k, now = look
        _, entry, distance = match
        age = (now - entry.born) / _SECOND
        # The store's own order stands where the query is the same.
        if entry.readable is None or distance == 0.0:
            bound = 1.0 if self._proves and distance == 0.0 else None
            return Hit(entry.candidates[:k], distance, age, recall_bound=bound)
        rows = entry.readable.rows
        order, values = self._rank(query, self._unit_keys, table.pool.vectors, rows, self._inner)
        nearest: list[float] = values[:k].tolist()
        bound = None
        if self._proves:
            count = self._count_proven(table, match, nearest)
            bound = count / len(nearest) if nearest else 1.0
        candidates = entry.candidates
        best = tuple([candidates[place] for place in order[:k].tolist()])
        scores = [-value for value in nearest] if self._inner else nearest
        return Hit(best, distance, age, reranked=True, scores=tuple(scores), recall_bound=bound)

    def of_ranked(self, look: Look[T], match: Match[T], ranked: NDArray[np.float64]) -> Hit[T]:
        """Answer from one entry whose candidates the kernel has ranked.

        Args:
            look: The lookup.
            match: The entry.
            ranked: The values of its best candidates, then their positions among all of them.
        """
        _, entry, distance = match
        candidates = entry.candidates
        numbers: list[float] = ranked.tolist()
        best = min(look.k, len(candidates))
        values = numbers[:best]
        bound = None
        if self._proves:
            bound = self._count_proven(look.table, match, values) / best
        if self._inner:
            values = [-value for value in values]
        answer = tuple([candidates[int(place)] for place in numbers[best : 2 * best]])
        age = (look.now - entry.born) / _SECOND
        return Hit(answer, distance, age, True, tuple(values), bound)  # noqa: FBT003 - quicker

    def _count_proven(self, table: EntryTable[T], match: Match[T], values: list[float]) -> int:
        radius = float(table.reach.radius[match.slot])
        if self._settings.unit:
            return proven_unit(values, radius, match.distance)
        return proven(values, radius, table.apart(match.distance))

    def guess(self, look: Look[T], partition: int) -> tuple[Candidate[T], ...]:
        """Return the nearest of the documents that entries nearby hold; k, or none at all."""
        _, candidates = self._known_nearby(look, partition)
        if len(candidates) < look.k:
            return ()
        rows = np.fromiter(candidates, np.int64, len(candidates))
        vectors = look.table.pool.vectors
        order, _ = self._rank(look.query, self._unit_keys, vectors, rows, self._inner)
        known = list(candidates.values())
        return tuple([known[place] for place in order[: look.k].tolist()])

    def _known_nearby(
        self, look: Look[T], partition: int
    ) -> tuple[Used[T], dict[int, Candidate[T]]]:
        """Return the nearest entries, and the documents that they hold by their row in the pool."""
        table = look.table
        used: Used[T] = []
        candidates: dict[int, Candidate[T]] = {}
        for slot in table.keys.neighbours(look.query, partition, look.now, _TOGETHER):
            entry = table.entry(slot)
            if entry is None or table.partitions.get(entry.key) != partition:
                continue  # another took its place
            if entry.readable is not None:
                used.append((slot, entry))
                rows = entry.readable.rows.tolist()
                candidates |= zip(rows, entry.candidates, strict=True)
        return used, candidates

    def of_several(self, look: Look[T], partition: int) -> tuple[Hit[T] | None, Used[T]]:
        """Answer from several entries where all that they know proves what is required.

        Args:
            look: The lookup.
            partition: Number of the cache key that the entries belong to.

        Returns:
            The answer if there is one, and the entries that it comes from.
        """
        table, query, k, now = look
        if not self._settings.unit:
            return None, []
        used, candidates = self._known_nearby(look, partition)
        if len(candidates) < k:
            return None, used
        rows = np.fromiter(candidates, np.int64, len(candidates))
        order, values = self._rank(query, self._unit_keys, table.pool.vectors, rows, self._inner)
        needed = math.ceil(self._required * k)
        chosen = [slot for slot, _ in used]
        keys = table.keys.keys(np.array(chosen)).astype(np.float64)
        prepared = table.keys.prepare(query).astype(np.float64)
        radii = table.reach.radius[chosen].clip(0.0, 2.0).tolist()
        worst = float(values[needed - 1])
        if not nothing_nearer(keys, radii, prepared, worst, self._kernels):
            return None, used
        known = list(candidates.values())
        best = tuple([known[place] for place in order[:k].tolist()])
        distance = float(np.linalg.norm(keys[0] - prepared))
        age = (now - min(entry.born for _, entry in used)) / _SECOND
        scores = tuple(values[:k].tolist())
        return Hit(best, distance, age, reranked=True, scores=scores, recall_bound=needed / k), used
