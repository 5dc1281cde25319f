"""What is sent to Redis, and what its answers mean. Nothing here waits for anything.

Every shard of a shared cache numbers the changes of the store that it received, within a
generation. A lookup says which of them are known here, and gets the others with the answer. A
change is sent after it was made, so a search that begins after a version was received sees all
changes up to that version.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.query_cache.entries import ChangeLog, Part
from ragcache_integrations.query_cache.settings import Settings

from .link import Arguments, Call, check_reply
from .matching import Fetched, Known
from .records import (
    LARGEST_BUCKET,
    LARGEST_CHANGE,
    Names,
    Record,
    decode_change,
    encode_change,
)
from .scripts import (
    CHANGE,
    CLEAR,
    DELETE,
    INSERT,
    LOOK_UP,
    MOST_CHANGES,
    Script,
)

__all__ = ["Request", "Requests"]

Vectors = NDArray[np.float32]

# A process of a larger bucket_capacity may share the buckets.
_OTHERS = 1 << 16
_TOUCH, _DELETE = b"t", b"d"
_REMEMBERED = 64  # versions
_MOST_NOTES = 64  # that wait for the next lookup
_CHANGES = (CHANGE, CLEAR)  # must not get lost


@dataclass(frozen=True, slots=True)
class Request(Call):
    """A call of a script.

    Attributes:
        known: What was known of the shard when the request was made.
        key: The cache key that a lookup is for.
    """

    known: Known
    key: Hashable = None


@dataclass
class _Shard:
    known: Known = field(default_factory=lambda: Known(b"", ChangeLog()))
    # As received by this process: its number then, generation, version.
    versions: deque[tuple[int, bytes, int]] = field(
        default_factory=lambda: deque(maxlen=_REMEMBERED)
    )
    # What the next lookup is to do in Redis besides: bucket and id of an entry, and what with it.
    notes: dict[tuple[str, bytes], bytes] = field(default_factory=dict)


class Requests:
    """Makes requests, reads answers, and remembers what they say of the shards. Thread-safe.

    Args:
        settings: The arguments of the cache, checked.
        names: Names of the keys in Redis.
        kernels: The module of compiled or plain loops.
        marks: Returns the marks of a cache key.

    Attributes:
        number: Grows with every reply that holds news of a shard.
    """

    def __init__(
        self,
        settings: Settings,
        names: Names,
        kernels: ModuleType,
        marks: Callable[[Hashable], Iterable[Hashable]] | None,
    ) -> None:
        self._settings = settings
        self._names = names
        self._kernels = kernels
        self._marks_of = marks
        self._lock = make_lock()
        self._shards = [_Shard() for _ in range(names.shards)]
        self.number = 0

    def lookups(self, query: Vectors, key: Hashable, *, noting: bool = True) -> list[Request]:
        """Return the requests that look a query up: one for each shard concerned.

        Args:
            query: Prepared, shape (dim,).
            key: The cache key.
            noting: Let Redis do what was postponed to the next lookup.

        Raises:
            ConfigurationError: ``key`` means nothing in another process.
        """
        partition = self._names.partition(key)
        buckets: dict[int, list[str]] = {}
        for code in self._buckets(query):
            shard = self._names.shard_of(code)
            buckets.setdefault(shard, []).append(self._names.of_bucket(code, partition))
        return [
            replace(self._look_up(shard, some, noting=noting), key=key)
            for shard, some in buckets.items()
        ]

    def first(self, shard: int) -> Request:
        """Return a request for a shard's version and changes alone."""
        return self._look_up(shard, [], noting=False)

    def take(self, request: Request, reply: Any) -> tuple[list[Fetched], int, int] | None:
        """Read the reply to a lookup.

        Returns:
            The entries of its buckets, the server's time in microseconds, and how many values of
            buckets were not a cache's; ``None`` where the reply may be out of date, as the shard
            was reset meanwhile.

        Raises:
            TypeError, ValueError: It is not a lookup's reply.
        """
        generation, base, now, changes, contents, foreign = reply
        check_reply((base, now, foreign), chain([generation, *changes], *contents))
        if len(contents) != request.arguments[3] or sum(map(len, changes)) > LARGEST_CHANGE:
            msg = "an answer must have the buckets asked for, and no more changes than are kept"
            raise ValueError(msg)
        known = self._learn(request.shard, request.known, generation, base, changes)
        if known is None:
            return None
        buckets = request.keys[2:]
        marks = self._marks(request.key) if known.changes.forgets else frozenset()
        entries = [
            Fetched(request.shard, bucket, bytes(name[1:]), bytes(value), known, marks)
            for bucket, fields in zip(buckets, contents, strict=False)
            for name, value in zip(fields[::2], fields[1::2], strict=True)
            if name[:1] == b"e"
        ]
        return entries, now, foreign

    def touch(self, entry: Fetched) -> None:
        """Note with the next lookup that an entry answered, so that it is kept longer."""
        if self._settings.eviction == "lru":
            self._note(entry.shard, entry.bucket, entry.id, _TOUCH)

    def drop(self, entry: Fetched) -> None:
        """Have an invalid entry deleted with the next lookup."""
        self._note(entry.shard, entry.bucket, entry.id, _DELETE + entry.value[:16])

    def shard_of(self, query: Vectors) -> int:
        """Return the shard that a prepared query belongs to."""
        return self._names.shard_of(int(self._kernels.bucket(query, self._names.planes)))

    def insertion(
        self, record: Record, encoded: bytes, key: Hashable, generation: bytes
    ) -> Request:
        """Return the request that inserts an entry, made in a shard's generation."""
        shard, bucket = self._bucket(record.key, key)
        arguments: Arguments = [
            generation,
            record.version,
            self._names.of_entry(record.key),
            encoded,
            self._settings.bucket_capacity,
            # A radius is that of vectors read after the search, so they must be those of before.
            int(self._settings.proves),
        ]
        return self._request(shard, INSERT, [bucket], arguments)

    def deletion(self, query: Vectors, key: Hashable) -> Request:
        """Return the request that deletes an entry."""
        shard, bucket = self._bucket(query, key)
        return self._request(shard, DELETE, [bucket], [self._names.of_entry(query)])

    def changes(
        self, removed: Sequence[str], added: Sequence[str], vectors: Vectors
    ) -> list[Request]:
        """Return the requests that send a change of the store to every shard."""
        return self._to_all(encode_change(removed, added, vectors))

    def forgettings(
        self,
        marks: Iterable[Hashable],
        ids: Collection[str] | None = None,
        before: float | None = None,
        near: tuple[Vectors, float] | None = None,
    ) -> list[Request]:
        """Return the requests that make every shard forget a part.

        Args:
            marks: Of its cache keys, each of which is a mark of itself.
            ids: Of documents, one of which its entries hold.
            before: When its entries were inserted, in seconds since 1970.
            near: A prepared query, and how far from it their keys are at most.
        """
        hashed = frozenset(map(self._names.partition, marks))
        moment = None if before is None else int(before * 1e6)
        part = Part(hashed, None if ids is None else frozenset(ids), moment, near)
        nothing = np.empty((0, self._settings.dim), dtype=np.float32)
        return self._to_all(encode_change((), (), nothing, part))

    def _marks(self, key: Hashable) -> frozenset[str]:
        """Return the marks of a cache key, as hashes."""
        marks = () if self._marks_of is None else self._marks_of(key)
        return frozenset(map(self._names.partition, (key, *marks)))

    def _to_all(self, change: bytes) -> list[Request]:
        """Return the requests that send every shard a change, or clear it where that is large."""
        if len(change) > LARGEST_CHANGE:
            return self.clearings()
        arguments: Arguments = [change, MOST_CHANGES, LARGEST_CHANGE]
        return [self._request(shard, CHANGE, [], arguments) for shard in range(self._names.shards)]

    def clearings(self) -> list[Request]:
        """Return the requests that make every shard forget its entries."""
        return [self.clearing(shard) for shard in range(self._names.shards)]

    def clearing(self, shard: int) -> Request:
        """Return the request that clears a shard."""
        return self._request(shard, CLEAR, [], [])

    def _look_up(self, shard: int, buckets: list[str], *, noting: bool) -> Request:
        known = self.known(shard)
        notes = self._take_notes(shard) if noting else []
        arguments: Arguments = [
            known.generation,
            known.changes.version,
            len(buckets),
            2 * self._settings.bucket_capacity + 1 + _OTHERS,
            LARGEST_BUCKET,
        ]
        for _, entry_id, what in notes:
            arguments += [entry_id, what]
        noted = [bucket for bucket, _, _ in notes]
        return self._request(shard, LOOK_UP, [*buckets, *noted], arguments, known)

    def _request(
        self,
        shard: int,
        script: Script,
        buckets: list[str],
        arguments: Arguments,
        known: Known | None = None,
    ) -> Request:
        keys = [*self._names.of_shard(shard), *buckets]
        # The generation that the shard gets if it has to begin again.
        new = os.urandom(12).hex().encode()
        known = known or self.known(shard)
        patient = script in _CHANGES
        return Request(shard, script, keys, [new, *arguments], known, patient=patient)

    def _bucket(self, query: Vectors, key: Hashable) -> tuple[int, str]:
        code = int(self._kernels.bucket(query, self._names.planes))
        bucket = self._names.of_bucket(code, self._names.partition(key))
        return self._names.shard_of(code), bucket

    def _buckets(self, query: Vectors) -> list[int]:
        """Return the bucket of a query, and the neighbouring ones that are searched, too."""
        code = int(self._kernels.bucket(query, self._names.planes))
        if not self._settings.multi_probe:
            return [code]
        products = self._kernels.signs(query, self._names.planes)
        flips = np.argsort(np.abs(products), kind="stable")[: self._settings.multi_probe]
        return [code, *(code ^ (1 << int(bit)) for bit in flips)]

    def known(self, shard: int) -> Known:
        """Return what is known of a shard now."""
        return self._shards[shard].known

    def version_at(self, shard: int, number: int) -> tuple[bytes, int] | None:
        """Return the generation and version that a shard was known to have.

        Args:
            shard: Number of the shard, from 0.
            number: :attr:`number` at that moment.

        Returns:
            ``None`` where nothing was known, or that is forgotten.
        """
        with self._lock:
            for number_then, generation, version in reversed(self._shards[shard].versions):
                if number_then <= number:
                    return generation, version
        return None

    def _learn(
        self, shard: int, before: Known, generation: bytes, base: int, changes: list[bytes]
    ) -> Known | None:
        """Take in what a shard answered.

        Args:
            shard: Number of the shard, from 0.
            before: What was known when the request was made.
            generation: The shard's generation, as answered.
            base: The version before the first of the changes.
            changes: Those after it, as Redis keeps them.

        Returns:
            What is known now; ``None`` where the shard was reset meanwhile, and its answer may be
            out of date.
        """
        kept = self._shards[shard]
        with self._lock:
            now = kept.known
            if now.generation not in {generation, before.generation}:
                return None
            version = base + len(changes)
            if now.generation == generation and now.changes.version >= version:
                return now
            if now.generation == generation and base <= now.changes.version:
                log = now.changes.copy()
            else:  # it is new, or some of its changes are forgotten already
                log = ChangeLog(base)
            for encoded in changes[log.version - base :]:
                change = decode_change(encoded, self._settings.dim)
                if change is None:  # the change is unknown
                    log.clear()
                else:
                    log.note(*change)
            kept.known = Known(generation, log)
            self.number += 1
            kept.versions.append((self.number, generation, version))
            return kept.known

    def _note(self, shard: int, bucket: str, entry_id: bytes, what: bytes) -> None:
        """Leave something for the next lookup to do, such as ``t`` for a touch."""
        notes = self._shards[shard].notes
        with self._lock:
            if len(notes) < _MOST_NOTES:
                notes[bucket, entry_id] = what

    def _take_notes(self, shard: int) -> list[tuple[str, bytes, bytes]]:
        """Return and forget the notes: bucket, entry id, and action."""
        kept = self._shards[shard]
        if not kept.notes:
            return []
        with self._lock:
            notes, kept.notes = kept.notes, {}
        return [(bucket, entry_id, what) for (bucket, entry_id), what in notes.items()]
