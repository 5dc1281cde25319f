"""Notices that the settings of a chain, its prompts or its model have changed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import BaseModel

from ragcache_integrations.core.forks import make_lock

__all__ = ["CHANGED", "ChangeWatch"]

logger = logging.getLogger(__name__)

CHANGED = (
    "the chain, its prompt or its model changed while it answered. Nothing is kept of one that "
    "notes something in its own attributes with each answer"
)
"""Why the answer of a chain whose settings changed meanwhile is not kept."""

_MOST_OBJECTS = 3_000
_MOST_ITEMS = 1_000
"""Items of a container that are compared: larger ones are data, such as a store's documents."""
_CODE = (types.FunctionType, types.MethodType)
_PLAIN = (str, int, float, bool, bytes, type(None))

_NOT_WATCHED = (
    *("_get_relevant_documents", "_retrieve"),
    *("similarity_search", "embed_query", "get_query_embedding"),
    *("ignore_llm", "on_event_start", "as_trace", "add_handler"),
)
"""Attributes of retrievers, stores and embedding models, and of what hears callbacks and counts."""

Parts = tuple[Any, ...]


class ChangeWatch:
    """Says whether anything was assigned within an object since it was looked at last.

    Watched are the attributes of pydantic models and of objects of a framework's classes, and of
    classes derived from these, and the items of lists and dicts within them. Of functions and
    methods, the objects of that kind are watched that they name, or that their own object holds.
    What else code does is not, nor are retrievers, whose documents say all, and handlers of
    callbacks. Thread-safe.

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
        self._warned = False
        self._seen = self._look()

    def version(self) -> int:
        """Return a number that is another one after each change."""
        with self._lock:
            # By identity: comparing values could run anybody's code, and take any time. What all
            # is held is gone through first, as telling which of it is watched takes longer.
            for place, (value, read, held, parts) in enumerate(self._seen):
                now = read(value)
                if len(now) == len(held) and all(map(operator.is_, now, held)):
                    continue
                if not _same(self._parts(value), parts):
                    self._seen = self._look()
                    self._version += 1
                    break
                self._seen[place] = value, read, now, parts
            return self._version

    def _look(self) -> list[tuple[Any, Callable[[Any], Parts], Parts, Parts]]:
        """Return the objects within, each with what it holds, and its parts, as they are."""
        seen: dict[int, tuple[Any, Callable[[Any], Parts], Parts, Parts]] = {}
        waiting = [self._root]
        while waiting and len(seen) < _MOST_OBJECTS:
            value = waiting.pop()
            if id(value) in seen or not self._is_watched(value):
                continue
            read, parts = _reader(value), self._parts(value)
            seen[id(value)] = value, read, read(value), parts
            waiting.extend(part for part in parts if not isinstance(part, _PLAIN))
        if len(seen) == _MOST_OBJECTS and not self._warned:
            self._warned = True
            logger.warning("Of a chain, changes of the first %d objects are noticed", len(seen))
        return list(seen.values())

    def _is_watched(self, value: object) -> bool:
        if isinstance(value, dict | list | tuple):
            return len(value) <= _MOST_ITEMS
        return isinstance(value, _CODE) or self._is_known(value)

    def _is_known(self, value: Any) -> bool:
        return _is_known(type(value).__mro__, self._modules)

    def _parts(self, value: Any) -> Parts:
        if isinstance(value, list | tuple):
            return tuple(value)
        if isinstance(value, dict):
            return tuple(_flat(value.items()))
        if isinstance(value, _CODE):
            return tuple(filter(self._is_known, _named_by(value)))
        computed = _computed_once(type(value).__mro__)
        extra = getattr(value, "__pydantic_extra__", None) or {}
        # Copied at once: other threads may set attributes meanwhile.
        items = [*getattr(value, "__dict__", {}).items(), *extra.items()]
        return tuple(_flat(item for item in items if item[0] not in computed))


def _reader(value: Any) -> Callable[[Any], Parts]:
    """Return a function that reads all that the parts of such an object come from."""
    if isinstance(value, list | tuple):
        return tuple
    if isinstance(value, dict):
        return _items
    if isinstance(value, types.MethodType):
        return _method
    if isinstance(value, types.FunctionType):
        return _function
    return _plain_object if getattr(value, "__pydantic_extra__", None) is None else _open_model


def _items(value: dict[Any, Any]) -> Parts:
    return (*value, *value.values())


def _plain_object(value: object) -> Parts:
    own = getattr(value, "__dict__", {})
    return (*own, *own.values())


def _open_model(value: Any) -> Parts:
    return (*_plain_object(value), *_items(value.__pydantic_extra__ or {}))


def _method(value: types.MethodType) -> Parts:
    code = value.__func__
    inner = _function(code) if isinstance(code, types.FunctionType) else ()
    return (value.__self__, *_plain_object(value.__self__), *inner)


def _function(value: types.FunctionType) -> Parts:
    code, more = value.__code__, value.__kwdefaults__
    named = map(value.__globals__.get, code.co_names)
    cells = map(_content, value.__closure__) if value.__closure__ else ()
    return (code, value.__defaults__, *named, *cells, *(more.values() if more else ()))


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return cell


def _named_by(code: types.FunctionType | types.MethodType) -> Iterator[Any]:
    """Yield what a function names, and what the object of a method holds."""
    function: object = code
    if isinstance(code, types.MethodType):
        yield code.__self__
        yield from list(getattr(code.__self__, "__dict__", {}).values())
        function = code.__func__  # which may be any callable
    if isinstance(function, types.FunctionType):
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # not assigned yet
                yield cell.cell_contents
        yield from (function.__globals__.get(name) for name in function.__code__.co_names)
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()


@functools.cache
def _is_known(classes: tuple[type, ...], modules: tuple[str, ...]) -> bool:
    """Whether the attributes of objects of a class are watched, by the class and its bases."""
    known = BaseModel in classes or any(kind.__module__.startswith(modules) for kind in classes)
    return known and not any(hasattr(classes[0], name) for name in _NOT_WATCHED)


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
