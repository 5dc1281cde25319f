"""The entries, and everything that is found by them, kept consistent."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.settings import Settings

from .entry import Entry, NewEntry, Readable
from .freshness import Reach, nearest_new, serves
from .keys import KeyTable
from .pool import DocumentKey, VectorPool

__all__ = ["NOWHERE", "EntryTable", "serving", "without"]

T = TypeVar("T")
Vectors = NDArray[np.float32]

NOWHERE = -2
"""The partition of a cache key that no entry has."""
_PREPARED = False  # a query of unit length already, where it has to be


class EntryTable(Generic[T]):
    """Entries by slot, their keys, their documents' vectors, and which documents they hold.

    Reads may run while one writer writes; writers hold the cache's lock.

    Args:
        settings: The arguments of the cache.
        kernels: The module of compiled or plain loops.
        longest: For ``ip``: the longest document vector so far.
        planes: The hyperplanes; drawn by the seed where ``None``.

    Attributes:
        keys: The queries' embeddings.
        pool: The documents' vectors.
        reach: How far every entry's knowledge reaches.
        longest: For ``ip``: no document of any entry is longer.
        disturbed: Whether documents came that some entry does not know.
        entries: By slot; ``None`` where there is none.
        partitions: Cache keys as numbers, so that arrays can hold them.
    """

    def __init__(
        self,
        settings: Settings,
        kernels: ModuleType,
        longest: float,
        planes: Vectors | None = None,
    ) -> None:
        self.keys = KeyTable(settings, kernels, planes)
        self.pool = VectorPool(settings.dim)
        self.reach = Reach()
        self.longest = longest
        self._metric = settings.metric
        self._inner = settings.metric == "ip"
        self._rank = kernels.rank
        self.disturbed = False
        self.partitions: dict[Hashable, int] = {}
        self._members: dict[Hashable, int] = {}  # how many entries have a cache key
        self._next_partition = 0
        self.entries: list[Entry[T] | None] = []
        self._count = 0
        self._holders: defaultdict[str, set[int]] = defaultdict(set)  # slots by document id
        # Slots whose documents are not noted there yet: most entries go before anybody asks.
        self._unnoted: set[int] = set()
        self._unranked: set[int] = set()  # slots whose entries any change of the store ends

    def __len__(self) -> int:
        return self._count

    def entry(self, slot: int) -> Entry[T] | None:
        """Return the entry in a slot, if there is one."""
        try:
            return self.entries[slot]
        except IndexError:
            return None

    def apart(self, distance: float) -> float:
        """By how much documents' distances may differ between two queries so far apart."""
        return distance * self.longest if self._inner else distance

    def rank(
        self,
        vector: Vectors,
        documents: Sequence[DocumentKey],
        rows: NDArray[np.int64] | None = None,
    ) -> Readable:
        """Return what is needed to re-rank candidates; ``longest`` grows by their vectors.

        Args:
            vector: The query, prepared, shape (dim,).
            documents: The candidates' keys, best first. The pool keeps their vectors already.
            rows: The rows there of those documents that are different ones, in their order.
        """
        held = documents
        if rows is None or len(rows) < len(documents):
            rows, held = self.pool.rows(documents), tuple(dict.fromkeys(documents))
        vectors = self.pool.vectors
        order, distances = self._rank(vector, _PREPARED, vectors, rows, self._inner)
        if self._inner and len(rows):
            lengths = (vectors[rows].astype(np.float64) ** 2).sum(axis=1)
            self.longest = max(self.longest, math.sqrt(lengths.max()))
        return Readable(rows, tuple(held), distances, rows[order])

    def put(self, new: NewEntry[T]) -> bool:
        """Insert an entry; one of the same embedding and key is replaced.

        Returns:
            Whether another entry had to go for it.
        """
        slot = self.keys.same(new.vector, self.partitions.get(new.entry.key, NOWHERE))
        if slot is not None:
            self.remove(slot)
            self._fill(slot, new)
            return False
        count = self._count
        self.add(new)
        return self._count == count

    def add(self, new: NewEntry[T]) -> int:
        """Add an entry whose embedding and key no other entry has; return its slot."""
        slot = self.keys.place(new.vector)
        if self.entry(slot) is not None:
            self.remove(slot)
        self._fill(slot, new)
        return slot

    def _fill(self, slot: int, new: NewEntry[T]) -> None:
        # Lookups read while this writes, without a lock. What they rely on: whoever finds the key
        # in ``keys`` finds everything else of the entry, too. So the key is written last, and all
        # that a lookup reads after it, before: how far the entry's knowledge reaches, the array of
        # document vectors and the rows in it, ``disturbed`` (which makes lookups ask whether the
        # entry is fresh), and the entry itself. Its sequence number is the same in the entry as in
        # the key: a lookup that read another key in this slot takes the two apart by it. The
        # partition may be there before any key has it: a lookup in it finds nothing.
        vector, entry, radius, newest, expires = new
        if entry.key not in self.partitions:
            self.partitions[entry.key] = self._next_partition
            self._members[entry.key] = 0
            self._next_partition += 1
        partition = self.partitions[entry.key]
        self._members[entry.key] += 1
        self._unnoted.add(slot)
        if slot >= len(self.entries):
            self.entries.extend([None] * (slot + 1 - len(self.entries)))
        self.reach.put(slot, radius, newest)
        self.disturbed = self.disturbed or newest < np.inf
        self.keys.show(self.pool.vectors)
        self.keys.list_candidates(slot, _rows(entry))
        sequence = entry.sequence = self.keys.next_sequence()
        if not entry.ranked:
            self._unranked.add(slot)
        self.entries[slot] = entry
        self._count += 1
        self.keys.put(slot, vector, partition, serving(entry, newest), expires, sequence)

    def remove(self, slot: int) -> None:
        """Drop the entry in a slot."""
        entry = self.entries[slot]
        assert entry is not None  # noqa: S101 - its callers look
        # Before its vectors: who finds it afterwards still standing has read the right ones.
        self.entries[slot] = None
        self._unranked.discard(slot)
        self._count -= 1
        self.keys.free(slot)
        if entry.readable is not None:
            self.pool.release(entry.readable.documents)
        if slot in self._unnoted:
            self._unnoted.discard(slot)
        else:
            self._forget(slot, (candidate.id for candidate in entry.candidates))
        self._members[entry.key] -= 1
        if not self._members[entry.key]:
            del self.partitions[entry.key], self._members[entry.key]

    def drop_documents(self, ids: Iterable[str]) -> int:
        """Take documents out of all entries; return how many entries ended by that."""
        gone = set(ids)
        if not gone:
            return 0
        unranked = sorted(self._unranked)
        for slot in unranked:
            self.remove(slot)
        self._note_holders()
        slots = {slot for document in gone for slot in self._holders.get(document, ())}
        return len(unranked) + sum(not self._drop_from(slot, gone) for slot in sorted(slots))

    def add_documents(self, ids: Sequence[str], vectors: Vectors) -> int:
        """Note that documents came; return how many entries ended by that.

        Args:
            ids: Ids of the documents.
            vectors: Their vectors, prepared, shape (len(ids), dim).
        """
        if not len(ids):
            return 0
        if self._inner:
            lengths = np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1))
            self.longest = max(self.longest, float(lengths.max()))
        slots = self.keys.taken()
        if not slots.size:
            return 0
        self.disturbed = True
        distances = nearest_new(self.keys.keys(slots), vectors, self._metric)
        inside = set(self.reach.lower(slots, distances).tolist())
        ended = 0
        for slot in slots.tolist():
            entry = self.entries[slot]
            assert entry is not None  # noqa: S101 - its slot is taken
            if entry.readable is not None and slot not in inside:
                continue
            left = 0 if entry.readable is None else serving(entry, self.reach.newest[slot])
            if left == 0:
                self.remove(slot)
                ended += 1
            elif entry.complete or left < len(entry.candidates):
                self.entries[slot] = replace(entry, complete=False)
                self.keys.serve(slot, left)
        return ended

    def _drop_from(self, slot: int, gone: set[str]) -> bool:
        entry = self.entries[slot]
        assert entry is not None  # noqa: S101 - it holds one of them
        left = without(entry, gone)
        if not left.candidates:
            self.remove(slot)
            return False
        self.entries[slot] = left
        self.keys.list_candidates(slot, _rows(left))
        if entry.readable is not None and left.readable is not None:
            kept = set(left.readable.documents)
            self.pool.release(key for key in entry.readable.documents if key not in kept)
        self._forget(slot, gone)
        self.keys.serve(slot, serving(left, self.reach.newest[slot]))
        return True

    def _note_holders(self) -> None:
        """Note which documents the entries hold that came since the last time."""
        for slot in self._unnoted:
            entry = self.entries[slot]
            assert entry is not None  # noqa: S101 - its slot would have been taken out
            for candidate in entry.candidates:
                self._holders[candidate.id].add(slot)
        self._unnoted.clear()

    def _forget(self, slot: int, ids: Iterable[str]) -> None:
        for document in set(ids):
            holders = self._holders.get(document)
            if holders is not None:
                holders.discard(slot)
                if not holders:
                    del self._holders[document]


def _rows(entry: Entry[Any]) -> NDArray[np.int64] | None:
    return None if entry.readable is None else entry.readable.rows


def without(entry: Entry[T], gone: set[str]) -> Entry[T]:
    """Return an entry without some documents. Their references in the pool are not given back."""
    candidates = entry.candidates
    kept = [place for place, candidate in enumerate(candidates) if candidate.id not in gone]
    readable = entry.readable
    if readable is not None:
        rows = readable.rows[kept]
        readable = Readable(
            rows,
            tuple(key for key in readable.documents if key[0] not in gone),
            readable.distances[np.isin(readable.ranked, rows)],
            readable.ranked[np.isin(readable.ranked, rows)],
        )
    return replace(entry, candidates=tuple(candidates[place] for place in kept), readable=readable)


def serving(entry: Entry[T], newest: float) -> int:
    """Return the largest k that an entry answers for its own query."""
    if newest == np.inf or entry.readable is None:
        return sys.maxsize if entry.complete else len(entry.candidates)
    return serves(entry.readable.distances, newest)
