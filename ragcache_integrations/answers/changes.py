"""Notices that the settings of a chain, its prompts or its model have changed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel

from ragcache_integrations.core.forks import make_lock

__all__ = ["ChangeWatch"]

_MOST_OBJECTS = 300
_MOST_ITEMS = 64
"""Items of a container that are compared: larger ones are data, such as a store's documents."""
_PLAIN = (str, int, float, bool, bytes, type(None))

_NOT_WATCHED = (
    *("_get_relevant_documents", "_retrieve"),
    *("ignore_llm", "on_event_start", "as_trace", "add_handler"),
)
"""Attributes of retrievers, and of what hears callbacks and counts."""

Parts = tuple[Any, ...]


class ChangeWatch:
    """Says whether anything was assigned within an object since it was looked at last.

    Watched are the attributes of pydantic models and of a framework's own objects, and the items of
    small lists and dicts within them. What code does is not, nor are retrievers, whose documents
    say all, and handlers of callbacks. Thread-safe.

    Args:
        root: The object, such as a chain.
        modules: Beginnings of the names of the modules whose objects are gone through, besides
            pydantic models.
    """

    def __init__(self, root: object, modules: tuple[str, ...]) -> None:
        self._root = root
        self._modules = modules
        self._lock = make_lock()
        self._version = 0
        self._seen = self._look()

    def version(self) -> int:
        """Return a number that is another one after each change."""
        with self._lock:
            # By identity: comparing values could run anybody's code, and take any time.
            if not all(_same(_parts(value), parts) for value, parts in self._seen):
                self._seen = self._look()
                self._version += 1
            return self._version

    def _look(self) -> list[tuple[Any, Parts]]:
        """Return the objects within, each with its parts as they are."""
        seen: dict[int, tuple[Any, Parts]] = {}
        waiting = [self._root]
        while waiting and len(seen) < _MOST_OBJECTS:
            value = waiting.pop()
            if id(value) in seen or not self._is_watched(value):
                continue
            parts = _parts(value)
            seen[id(value)] = value, parts
            waiting.extend(part for part in parts if not isinstance(part, _PLAIN))
        return list(seen.values())

    def _is_watched(self, value: object) -> bool:
        if isinstance(value, type) or any(hasattr(value, name) for name in _NOT_WATCHED):
            return False
        if isinstance(value, dict | list | tuple):
            return len(value) <= _MOST_ITEMS
        known = isinstance(value, BaseModel) or type(value).__module__.startswith(self._modules)
        return known and hasattr(value, "__dict__")


def _parts(value: Any) -> Parts:
    if isinstance(value, list | tuple):
        return tuple(value)
    if isinstance(value, dict):
        return tuple(_flat(value.items()))
    computed = _computed_once(type(value).__mro__)
    return tuple(_flat(item for item in vars(value).items() if item[0] not in computed))


def _flat(items: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
    return itertools.chain.from_iterable(list(items))


@functools.cache
def _computed_once(classes: tuple[type, ...]) -> frozenset[str]:
    """Return the attributes that are computed when they are first read."""
    return frozenset(
        name
        for base in classes
        for name, value in vars(base).items()
        if isinstance(value, functools.cached_property)
    )


def _same(now: Parts, before: Parts) -> bool:
    return len(now) == len(before) and all(map(_is, now, before))


def _is(one: object, other: object) -> bool:
    return one is other or (type(one) in _PLAIN and type(one) is type(other) and one == other)
