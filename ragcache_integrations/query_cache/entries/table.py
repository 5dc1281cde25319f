"""The entries with their keys and indexes, kept consistent.

Cached keys are in arrays: a lookup scans all of them (FLAT) or those of one bucket (LSH). Keys are
compared in L2, also under inner product; for ``cosine`` they are unit vectors, whose L2 distance is
the chord. Distances are computed on differences directly, in 64-bit floats, and are therefore exact
for the kept 32-bit vectors up to ``(dim + 2) * 2**-53`` of their size; rounding to 32 bits moves a
vector by at most ``2**-24`` of its length (for ``cosine``, a chord by at most ``2**-23``). That is
the slack: a key whose true distance differs from the tolerance by less may fall on either side.
Equal vectors are at distance 0 exactly.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.kernels import (
    COLUMNS,
    EXPIRES,
    FREE,
    PARTITION,
    SEQUENCE,
    SERVES,
    address,
)
from ragcache_integrations.query_cache.settings import Settings

from .entry import DocumentKey, Entry, NewEntry, Reach, Readable, VectorPool, nearest_new, serves

__all__ = ["NOWHERE", "EntryTable", "KeyTable", "hyperplanes", "serving", "without"]


Vectors = NDArray[np.float32]

# The first dimensions of all keys lie together: mostly they suffice to rule a key out. Random
# directions do so from a share of tolerance**2 / 2 on, an eighth at a tolerance of 0.5.
_HEAD, _HEAD_SHARE = 128, 1 / 6
_ZERO = np.float32(0)
_STARTS = 16  # dimensions by which keys are told apart before they are compared
# Scans of at least this many numbers take longer than releasing and reacquiring the GIL.
_LONG_SCAN = 1 << 22


def hyperplanes(count: int, dim: int, seed: int) -> Vectors:
    """Draw random hyperplanes through the origin (Proximity §3.2): normal vectors, (count, dim)."""
    return np.random.default_rng(seed).standard_normal((count, dim), dtype=np.float32)


class KeyTable:
    """Keys by slot. FLAT is one bucket of all slots; LSH is ``2**L`` buckets.

    Reads may run during a write: a slot that changed meanwhile has another sequence number,
    and arrays that grew are replaced, never moved. Writers exclude each other through their owner.

    Attributes:
        planes: The hyperplanes, shape (L, dim); none for FLAT.
        finding: The kernel that finds the nearest key, what it has to know of the table, what has
            to be held on to while it runs, and whether it ranks candidates, too; replaced as a
            whole.
        written: Sequence number of the last key that was written in full. A scan that began after
            looking at it, and comes back with a later one, may have read half of that key.

    Args:
        settings: The arguments of the cache.
        kernels: The module of compiled or plain loops.
        planes: The hyperplanes; drawn by the seed where ``None``.
    """

    def __init__(
        self, settings: Settings, kernels: ModuleType, planes: Vectors | None = None
    ) -> None:
        dim = settings.dim
        if planes is None:
            planes = hyperplanes(settings.planes, dim, settings.seed)
        self.planes = planes
        self._dim = dim
        self._per_bucket = settings.bucket_capacity if settings.planes else settings.capacity
        self._unit = settings.metric == "cosine"
        self._touches = settings.eviction == "lru"
        self._multi_probe = settings.probes
        self._inner = settings.metric == "ip"
        self._ranks = settings.vectors is not None
        self._kernels = kernels
        self._table = np.full(1 << len(planes), -1, dtype=np.int32)
        self._buckets = 0
        self._used = 0  # slots from here on were never used
        self._freed = 0  # FLAT: how many of the others are free again
        self._clock = self.written = 0
        head = min(dim, max(_HEAD, int(dim * _HEAD_SHARE)))
        self._heads = np.empty((0, head), dtype=np.float32)
        self._tails = np.empty((0, dim - head), dtype=np.float32)
        self._meta = np.empty((0, COLUMNS), dtype=np.int64)
        self._stamps = np.empty(0, dtype=np.int64)
        # The same numbers, quicker to write one by one.
        self._marks, self._facts = memoryview(self._stamps.data), memoryview(self._meta.data)
        # Slots by how their keys begin: finding an equal key must not take a scan.
        self._by_start: defaultdict[bytes, list[int]] = defaultdict(list)
        # Address and number of every slot's candidates' rows among the documents' vectors.
        self._lists = np.empty((0, 2), dtype=np.int64)
        # What is at those addresses. Who still reads shorter arrays holds on to a shorter list.
        self._rows: list[NDArray[np.int64] | None] = []
        self._documents = np.empty((0, dim), dtype=np.float32)
        self.finding: tuple[Callable[..., Any], Any, tuple[Any, ...], bool]
        self._publish()

    @property
    def capacity(self) -> int:
        """The most keys there can be."""
        return len(self._table) * self._per_bucket

    def prepare(self, vector: Vectors) -> Vectors:
        """Return a vector as keys are kept."""
        prepared: Vectors = self._kernels.prepare(vector, self._unit)[1]
        return prepared

    def same(self, key: Vectors, partition: int) -> int | None:
        """Return the slot of exactly this key, whether its entry has ended or not.

        Args:
            key: Shape (dim,), prepared.
            partition: The cache key that it belongs to.
        """
        for slot in self._by_start.get(_start(key), ()):
            if self._meta[slot, PARTITION] == partition and np.array_equal(self.key(slot), key):
                return slot
        return None

    def nearest(self, query: Vectors, partition: int, k: int, now: int) -> tuple[int, float]:
        """Return the slot of the nearest key, however far, and its distance; slot -1 for none."""
        _, packed, _held, _ = self.finding
        _, slot, _, square = self._scan(query, packed, partition, k, now, math.inf)
        return slot, math.sqrt(square)

    def neighbours(self, query: Vectors, partition: int, now: int, count: int) -> list[int]:
        """Find the slots of several keys, nearest first.

        Args:
            query: Shape (dim,), as it came.
            partition: Only keys of this cache key count.
            now: Only keys that end later count.
            count: How many at most.
        """
        _, packed, _held, _ = self.finding
        slots, _ = self._kernels.neighbours(query, packed, partition, 1, now, math.inf, count)
        nearest: list[int] = slots.tolist()
        return nearest

    def key(self, slot: int) -> Vectors:
        """Return a copy of the key in a slot."""
        return np.concatenate([self._heads[slot], self._tails[slot]])

    def keys(self, slots: NDArray[np.intp]) -> Vectors:
        """Return a copy of the keys in some slots, shape (len(slots), dim)."""
        return np.concatenate([self._heads[slots], self._tails[slots]], axis=1)

    def bucket_of(self, key: Vectors) -> int:
        """Return the hash of a prepared key: the sides of the hyperplanes that it is on."""
        return int(self._kernels.bucket(key, self.planes)) if len(self.planes) else 0

    def place(self, key: Vectors) -> int:
        """Return the slot for a new key: a free one, or that of the entry that has to go.

        Args:
            key: Shape (dim,), prepared.
        """
        bucket = self.bucket_of(key)
        row = int(self._table[bucket])
        if row < 0:
            row = self._buckets
            self._buckets += 1
            if len(self.planes):
                self._grow((row + 1) * self._per_bucket)
            self._table[bucket] = row
        begin = row * self._per_bucket
        end = begin + self._per_bucket
        if not len(self.planes) and self._used < end:  # FLAT's only bucket fills up bit by bit
            self._grow(self._used + 1)
            if not self._freed:
                return self._used
            end = self._used
        return begin + int(self._stamps[begin:end].argmin())

    def next_sequence(self) -> int:
        """Return the sequence number of the next insertion."""
        self._clock += 1
        return self._clock

    def show(self, documents: Vectors) -> None:
        """Let readers rank by the documents' vectors, where the array of these is another one."""
        if self._ranks and documents is not self._documents:
            self._documents = documents
            self._publish()

    def list_candidates(self, slot: int, rows: NDArray[np.int64] | None) -> None:
        """Note which rows of the documents' vectors the slot's candidates have.

        Args:
            slot: The entry's slot.
            rows: One row for each candidate; ``None`` where they have no vectors.
        """
        # A compiled reader keeps Python's lock: it sees the old address or the new one with the
        # number that belongs to it, as both are written at once, and both arrays are there until
        # this is done.
        if not self._ranks:
            return
        old = self._rows[slot]
        self._lists[slot] = (0, 0) if rows is None else (address(rows), len(rows))
        self._rows[slot] = rows
        del old

    def put(
        self, slot: int, key: Vectors, partition: int, serves: int, expires: int, sequence: int
    ) -> None:
        """Write a key; readers find it from now on.

        Args:
            slot: The slot to write to.
            key: Shape (dim,), prepared.
            partition: Number of the cache key that it belongs to.
            serves: The largest k that its entry can answer.
            expires: When its entry ends, in nanoseconds of the cache's clock.
            sequence: Number of the insertion.
        """
        head = self._heads.shape[1]
        self._heads[slot], self._tails[slot] = key[:head], key[head:]
        facts = self._facts
        facts[slot, SERVES], facts[slot, EXPIRES], facts[slot, SEQUENCE] = serves, expires, sequence
        facts[slot, PARTITION] = partition  # until then the slot counts as free
        self._marks[slot] = sequence
        self._by_start[_start(key)].append(slot)
        if slot < self._used:
            self._freed -= 1
        else:
            self._used = slot + 1
        self.written = sequence

    def serve(self, slot: int, serves: int) -> None:
        """Change the largest k that the slot's entry can answer."""
        self._meta[slot, SERVES] = serves

    def touch(self, slot: int) -> None:
        """Note that the slot's entry answered a query."""
        if self._touches:
            self._clock += 1
            self._marks[slot] = self._clock

    def free(self, slot: int) -> None:
        """Forget the slot's key."""
        self._facts[slot, PARTITION] = FREE
        self._marks[slot] = -1
        self._freed += 1
        start = _start(self._heads[slot])
        self._by_start[start].remove(slot)
        if not self._by_start[start]:
            del self._by_start[start]
        self.list_candidates(slot, None)

    def served(self, slots: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the largest k that entries can answer."""
        served: NDArray[np.int64] = self._meta[slots, SERVES]
        return served

    def stamps(self, slots: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return when entries were put or last touched, as numbers that only grow."""
        return self._stamps[slots]

    def expired(self, now: int) -> list[int]:
        """Return the slots whose entries have ended."""
        meta = self._meta[: self._used]
        ended: list[int] = np.flatnonzero(
            (meta[:, PARTITION] != FREE) & (meta[:, EXPIRES] <= now)
        ).tolist()
        return ended

    def taken(self) -> NDArray[np.intp]:
        """Return the slots that hold keys, in the order of their insertion."""
        meta = self._meta[: self._used]
        slots = np.flatnonzero(meta[:, PARTITION] != FREE)
        ordered: NDArray[np.intp] = slots[meta[slots, SEQUENCE].argsort()]
        return ordered

    def eligible(self, partition: int, k: int, now: int) -> int:
        """Return how many keys in all buckets could match at some distance."""
        meta = self._meta[: self._used]
        fits = (meta[:, PARTITION] == partition) & (meta[:, SERVES] >= k)
        return int((fits & (meta[:, EXPIRES] > now)).sum())

    def _grow(self, slots: int) -> None:
        if slots <= len(self._stamps):
            return
        size = min(max(slots, 2 * len(self._stamps), 16), self.capacity)
        if len(self.planes):
            size = -(-size // self._per_bucket) * self._per_bucket
        more = size - len(self._stamps)
        self._heads = _extend(self._heads, more, 0)
        self._tails = _extend(self._tails, more, 0)
        self._meta = _extend(self._meta, more, FREE)
        self._stamps = _extend(self._stamps, more, -1)
        self._lists = _extend(self._lists, more, 0)
        self._rows = self._rows + [None] * more
        self._marks, self._facts = memoryview(self._stamps.data), memoryview(self._meta.data)
        # A lookup that still reads the shorter arrays must not see buckets beyond them.
        self._table = self._table.copy()
        self._publish()

    def _publish(self) -> None:
        """Let readers see the arrays as they are now, all at once."""
        arrays: tuple[Any, ...] = (
            self._unit,
            self.planes,
            self._table,
            self._per_bucket,
            self._heads,
            self._tails,
            self._meta,
        )
        # Slots that were never used are free, and passed over like all that are.
        long = not len(self.planes) and len(self._meta) * self._dim >= _LONG_SCAN
        ranks = self._ranks and not long
        kernels = self._kernels
        self._scan = kernels.nearest_unlocked if long else kernels.nearest
        documents = self._documents, self._lists, self._inner
        self.finding = (
            kernels.answer if ranks else self._scan,
            kernels.pack(*arrays, self._multi_probe, *documents),
            (arrays, documents, self._rows),
            ranks,
        )


def _start(key: Vectors) -> bytes:
    """Return how a key begins; the same for keys that are equal, of which -0 and 0 are."""
    return (key[:_STARTS] + _ZERO).tobytes()


def _extend(array: NDArray[Any], more: int, fill: int) -> NDArray[Any]:
    """Return a longer copy. Empty memory is not touched where it is not written."""
    longer = np.empty((len(array) + more, *array.shape[1:]), dtype=array.dtype)
    longer[: len(array)] = array
    if fill:
        longer[len(array) :] = fill
    return longer


T = TypeVar("T")

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
