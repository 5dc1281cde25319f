"""Encoded modules in bounded memory, evicted by the knowledge tree's policies.

A module is encoded once, however many threads need it at the same time. It stays while any of them
uses it, and is evicted when room is needed and its priority is the lowest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ragcache_integrations.core.checks import check_choice, check_int
from ragcache_integrations.core.forks import renew_after_fork
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.node import Node
from ragcache_integrations.knowledge_tree.policies import DEFAULT_POLICY, POLICIES
from ragcache_integrations.knowledge_tree.popularity import Popularity

__all__ = ["ModuleStore", "StoreStats"]

T = TypeVar("T")

CHECK_SECONDS = 0.05
"""Interval in which a waiting thread checks whether to continue."""
REMEMBERED = 4096
"""Evicted modules whose frequency and cost are remembered."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Contents and counters of a store.

    Attributes:
        capacity_bytes: Bytes that it may hold.
        held_bytes: Bytes that its modules take, those being encoded included.
        modules: Modules that it holds, those being encoded included.
        pinned: Modules that are in use now.
        hits: Times that a module was in the store.
        misses: Times that a module had to be encoded.
        evictions: Modules that were evicted to make room.
    """

    capacity_bytes: int
    held_bytes: int = 0
    modules: int = 0
    pinned: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0


@dataclass(slots=True, eq=False)
class _Entry(Generic[T]):
    """A module in the store. While it is being made its value is ``None`` and its maker pins it."""

    node: Node
    size: int
    value: T | None = None
    pins: int = 1
    priority: float = 0.0


class ModuleStore(Generic[T]):
    """Values by key, within a number of bytes. Thread-safe.

    Args:
        capacity_bytes: Bytes that the values may take together, at least 1.
        policy: Which values are evicted first: ``lrfu``, ``pgdsf``, ``gdsf``, ``lru`` or ``lfu``.

    Raises:
        ConfigurationError: An argument is out of its range or unknown.
    """

    def __init__(self, capacity_bytes: int, policy: str = DEFAULT_POLICY) -> None:
        self.capacity_bytes = check_int("a store's bytes", capacity_bytes, 1)
        self._policy = POLICIES[check_choice("policy", policy, tuple(POLICIES))]
        self._changed = threading.Condition()
        self._entries: dict[Hashable, _Entry[T]] = {}
        # By the keys' hashes, because keys hold all tokens. Two keys with the same hash share a
        # history, but never a value.
        self._gone: Memo[int, Node] = Memo(REMEMBERED)
        self._popularity = Popularity(capacity_bytes)
        self._held = 0
        self._clock = 0.0
        self._accesses = 0
        self._hits = self._misses = self._evictions = 0
        renew_after_fork(self)

    def _after_fork(self) -> None:
        # The parent's threads do not exist here, so values that they were making never arrive and
        # their pins never end. The thread that forked may itself use a value: it continues with an
        # entry that is no longer in the store.
        self._changed = threading.Condition()
        self._entries = {
            key: replace(entry, pins=0)
            for key, entry in self._entries.items()
            if entry.value is not None
        }
        self._held = sum(entry.size for entry in self._entries.values())

    @contextmanager
    def lease(
        self,
        key: Hashable,
        name: str,
        size: int,
        tokens: int,
        make: Callable[[], T],
        check: Callable[[], object] = lambda: None,
    ) -> Iterator[T]:
        """Use a value, which the first caller makes; it stays until the block is left.

        A thread that holds a value must not lease another one: if the store has little room, two
        such threads could wait for each other.

        Args:
            key: Equal keys have equal values.
            name: Name of the module, for errors.
            size: Bytes that the value takes.
            tokens: Length of the value; its cost is counted per token.
            make: Makes the value. Its errors are raised here; another waiting thread then makes it.
            check: Called regularly while other threads make the value or hold the room; raises to
                stop waiting.

        Raises:
            ConfigurationError: The value is larger than the store.
            Exception: Any error of ``make`` or ``check``.
        """
        if size > self.capacity_bytes:
            raise ConfigurationError(
                f"module {name!r} takes {size} bytes, the whole store has {self.capacity_bytes}: "
                "raise store_bytes or split the module"
            )
        entry, mine = self._claim(key, name, size, check)
        try:
            value = self._make(key, entry, tokens, make) if mine else entry.value
            yield value  # type: ignore[misc] # only an entry without a maker has no value yet
        finally:
            with self._changed:
                entry.pins -= 1
                self._changed.notify_all()

    def holds(self, key: Hashable) -> bool:
        """Whether a value is in the store; the check does not count as a use."""
        with self._changed:
            entry = self._entries.get(key)
            return entry is not None and entry.value is not None

    def clear(self) -> None:
        """Drop all values that are not in use, and the history of evicted ones."""
        with self._changed:
            self._gone.clear()
            for key in [key for key, entry in self._entries.items() if not entry.pins]:
                self._held -= self._entries.pop(key).size
            self._changed.notify_all()

    def stats(self) -> StoreStats:
        """A snapshot of the store's contents and counters."""
        with self._changed:
            return StoreStats(
                capacity_bytes=self.capacity_bytes,
                held_bytes=self._held,
                modules=len(self._entries),
                pinned=sum(1 for entry in self._entries.values() if entry.pins),
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
            )

    def _claim(
        self, key: Hashable, name: str, size: int, check: Callable[[], object]
    ) -> tuple[_Entry[T], bool]:
        """Pin the entry of a key, or reserve room for a value that the caller then makes.

        Returns:
            The entry, and whether the caller has to make its value.
        """
        with self._changed:
            while True:
                entry = self._entries.get(key)
                if entry is None:
                    if self._make_room(size):
                        return self._reserve(key, name, size), True
                elif entry.value is not None:
                    entry.pins += 1
                    self._hits += 1
                    self._touch(entry)
                    return entry, False
                self._changed.wait(CHECK_SECONDS)
                check()

    def _make_room(self, size: int) -> bool:
        """Evict entries of the lowest priority; none if that would not make enough room."""
        idle = sum(entry.size for entry in self._entries.values() if not entry.pins)
        if self.capacity_bytes - self._held + idle < size:
            return False
        while self.capacity_bytes - self._held < size:
            idle_keys = (key for key, entry in self._entries.items() if not entry.pins)
            key = min(idle_keys, key=lambda idle_key: self._entries[idle_key].priority)
            entry = self._entries.pop(key)
            self._held -= entry.size
            self._evictions += 1
            self._clock = max(self._clock, entry.priority)
            self._gone[hash(key)] = entry.node
        return True

    def _reserve(self, key: Hashable, name: str, size: int) -> _Entry[T]:
        node = self._gone.pop(hash(key), None) or Node((name, None), None, None, ())
        entry: _Entry[T] = _Entry(node, size)
        self._entries[key] = entry
        self._held += size
        self._misses += 1
        return entry

    def _make(self, key: Hashable, entry: _Entry[T], tokens: int, make: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            value = make()
        except BaseException:
            with self._changed:
                if self._entries.get(key) is entry:  # false in a child that was forked in between
                    del self._entries[key]
                    self._held -= entry.size
                self._gone[hash(key)] = entry.node
                self._changed.notify_all()
            raise
        with self._changed:
            entry.node.tokens = tokens
            entry.node.history.total_cost += (time.perf_counter() - began) / max(tokens, 1)
            entry.node.history.computed += 1
            self._touch(entry)
            entry.value = value
            self._changed.notify_all()
        return value

    def _touch(self, entry: _Entry[T]) -> None:
        self._accesses += 1
        self._popularity.advance(entry.size)
        self._popularity.count(entry.node.history, entry.size)
        entry.node.history.frequency += 1
        entry.node.last_access = self._accesses
        entry.priority = self._policy(entry.node, self._clock)
