"""Values of the keys that were used last."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar

from typing_extensions import override

__all__ = ["Memo"]

K = TypeVar("K")
V = TypeVar("V")


class Memo(MutableMapping[K, V]):
    """A mapping within limits: the least recently used values are forgotten first.

    Reading a value counts as a use. A value that is too large for an empty memo is not kept. It is
    not thread-safe: its owner holds a lock::

        memo = Memo[str, list[int]](1000, max_size=10_000, size=lambda text, tokens: len(tokens))
        memo["a text"] = [1, 2]

    Args:
        capacity: The most values.
        max_size: The most that the sizes of all values may add up to.
        size: Returns the size of a value and its key, which must not change; ``None`` for no sizes.

    Attributes:
        held: The sizes of all values together.
    """

    def __init__(
        self,
        capacity: float = math.inf,
        *,
        max_size: float = math.inf,
        size: Callable[[K, V], int] | None = None,
    ) -> None:
        self._capacity = capacity
        self._max_size = max_size
        self._size = size or (lambda _key, _value: 0)
        self._values: OrderedDict[K, V] = OrderedDict()
        self.held = 0

    @override
    def __getitem__(self, key: K) -> V:
        value = self._values[key]
        self._values.move_to_end(key)
        return value

    @override
    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    @override
    def clear(self) -> None:
        self._values.clear()
        self.held = 0

    def put(self, key: K, value: V) -> list[tuple[K, V]]:
        """Set a value; return what is forgotten for it."""
        if key in self._values:
            del self[key]
        size = self._size(key, value)
        if size > self._max_size:
            return []
        self._values[key] = value
        self.held += size
        forgotten = []
        while len(self._values) > self._capacity or self.held > self._max_size:
            item = self._values.popitem(last=False)
            self.held -= self._size(*item)
            forgotten.append(item)
        return forgotten

    @override
    def __delitem__(self, key: K) -> None:
        self.held -= self._size(key, self._values.pop(key))

    @override
    def __iter__(self) -> Iterator[K]:
        return iter(list(self._values))  # a copy, because reading a value changes the order

    @override
    def __len__(self) -> int:
        return len(self._values)
