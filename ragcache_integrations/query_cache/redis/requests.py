"""What is sent to Redis, and what its answers mean. Nothing here waits for anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.entries import Part
from ragcache_integrations.query_cache.settings import Settings

from .link import Arguments, Call, check_reply
from .matching import Fetched
from .records import (
    LARGEST_BUCKET,
    LARGEST_CHANGE,
    Names,
    Record,
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
from .shards import Known, Shards

__all__ = ["Request", "Requests"]

Vectors = NDArray[np.float32]

# A process of a larger bucket_capacity may share the buckets.
_OTHERS = 1 << 16
_TOUCH, _DELETE = b"t", b"d"
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


class Requests:
    """Makes requests and reads answers.

    Args:
        settings: The arguments of the cache, checked.
        names: Names of the keys in Redis.
        kernels: The module of compiled or plain loops.
        marks: Returns the marks of a cache key.

    Attributes:
        shards: What is known of the shards.
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
        self.shards = Shards(names.shards, settings.dim)

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
        known = self.shards.learn(request.shard, request.known, generation, base, changes)
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
            self.shards.note(entry.shard, entry.bucket, entry.id, _TOUCH)

    def drop(self, entry: Fetched) -> None:
        """Have an invalid entry deleted with the next lookup."""
        self.shards.note(entry.shard, entry.bucket, entry.id, _DELETE + entry.value[:16])

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
        known = self.shards.known(shard)
        notes = self.shards.take_notes(shard) if noting else []
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
        known = known or self.shards.known(shard)
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
