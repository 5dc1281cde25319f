"""The settings of a wrapped retriever, and which of them cannot be compared.

A wrapped retriever is a black box, but its settings may be changed after it was wrapped, and a
filter that is code may hide anywhere in it. So the retrievers and Runnables within it are gone
through before each question: settings become a part of the key, and functions that a retriever
holds are opaque (see :mod:`.cache_keys`). The one function that is not is the wrapped one itself:
wrapping a function means that its answers may be kept.

Objects of the application's own classes within, such as a session or a compressor, are gone
through, too: all plain data in their attributes are settings. Of pydantic models of a framework's,
such as a reranker, the declared fields are, and nothing that it notes privately. Objects of other
libraries, such as clients, are known by identity (:attr:`Parts.held`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from pydantic import BaseModel

from .cache_keys import PRINTED
from .own_code import is_own_class

__all__ = [
    "FILTERS",
    "UNREAD",
    "UNREAD_OUTSIDE_RECORDS",
    "Parts",
    "holds_data",
    "is_own_object",
    "is_record",
    "parts_within",
    "settings_within",
    "wrapped_settings",
]


class _Unread:
    """Marks settings beyond those that were read; opaque, as they could be anything."""

    def __call__(self) -> None:
        """Make the object callable, so that keys treat it as opaque."""


UNREAD = _Unread()

_MAX_OBJECTS = 500
_MAX_DEPTH = 50
_MAX_ITEMS = 256
"""Items of plain containers that are compared; a larger one is known by identity and length."""

# Attributes whose whole content decides what is found.
FILTERS = {
    *("search_kwargs", "filter", "filters", "kwargs", "vector_store_kwargs"),
    *("_filters", "_kwargs", "_vector_store_kwargs", "_node_ids", "_doc_ids"),
}
_SEARCHES = ("_get_relevant_documents", "_retrieve", "_query")
_FRAMEWORKS = ("langchain", "llama_index")
_SCALARS = {type(None), bool, int, float, str, bytes}
_HEARING = ("ignore_llm", "on_event_start", "as_trace")
"""Attributes of what hears of runs, whose data say nothing of what is found."""
UNREAD_OUTSIDE_RECORDS = {int, float, dict, list, tuple, set, frozenset}
"""Classes of values in which objects of a store that are no records count and remember."""
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)


def wrapped_settings(wrapped: object) -> dict[str, Any]:
    """Return the settings of a wrapped retriever, and of those within it, by their places.

    Args:
        wrapped: The retriever, or a Runnable around some.

    Returns:
        Plain values; filters of any kind; functions that retrievers hold; and :data:`UNREAD` where
        there are more settings than can be read.
    """
    reader = _Reader()
    reader.read(wrapped, "retriever")
    return reader.settings


class Parts(NamedTuple):
    """What a wrapped retriever consists of.

    Attributes:
        stores: Vector stores and embedding models.
        retrievers: Retrievers, the wrapped one among them.
        others: What else retrievers hold documents in: docstores, graphs.
        held: Objects of other libraries that objects of the application's own hold.
    """

    stores: list[object]
    retrievers: list[object]
    others: list[object]
    held: list[object]

    @property
    def known(self) -> list[object]:
        """What is known by identity, or by what is in keys."""
        return self.retrievers + self.others + self.held


def parts_within(wrapped: object) -> Parts:
    """Return the stores, models and retrievers within a wrapped retriever."""
    reader = _Reader()
    reader.read(wrapped, "retriever")
    return reader.parts


def settings_within(value: object) -> dict[str, Any]:
    """Return the plain data in an object of the application's own that a store holds, by places.

    Numbers and containers count in records alone, as other objects count and remember in them. Of
    a store, a model or a retriever there are none, as these are read apart.
    """
    reader = _Reader(records_alone=True)
    if holds_data(value):
        reader.read_object(value, "")
    return reader.settings


class _Reader:
    def __init__(self, *, records_alone: bool = False) -> None:
        self._records_alone = records_alone
        self.settings: dict[str, Any] = {}
        self.parts = Parts([], [], [], [])
        self._seen: set[int] = set()
        self._depth = 0

    def _enter(self, value: Any) -> bool:
        """Whether to go through an object: it was not visited yet, and is within the limits."""
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        if len(self._seen) > _MAX_OBJECTS or self._depth >= _MAX_DEPTH:
            self.settings["retriever"] = UNREAD
            return False
        return True

    def read(self, value: Any, path: str) -> None:
        """Go through a retriever, a Runnable, a container or a function."""
        if not self._enter(value):
            return
        searches = _has(value, *_SEARCHES)
        if searches:
            self.parts.retrievers.append(value)
        self._depth += 1
        for name, item in _parts(value):
            self._read_part(item, f"{path}{name}", name, searches=searches)
        self._depth -= 1

    def read_object(self, value: Any, path: str) -> None:
        """Go through an object that holds data."""
        if not self._enter(value):
            return
        kind = type(value)
        self.settings[path] = f"{kind.__module__}.{kind.__qualname__}"
        own = is_own_object(value)
        notes = self._records_alone and not is_record(value)
        self._depth += 1
        for name, item in _parts(value) if own else _fields(value):
            if notes and type(item) in UNREAD_OUTSIDE_RECORDS:
                continue
            known = self._read_part(item, f"{path}{name}", name, searches=False)
            if own and not known and item is not None:
                self.parts.held.append(item)
        self._depth -= 1

    def _read_part(self, value: Any, path: str, name: str, *, searches: bool) -> bool:
        """Read a part; return whether it is of a kind that can be read."""
        if name.removeprefix(".") in FILTERS:
            self.settings[path] = value
        elif name == ".config" and isinstance(value, Mapping):
            self.settings[path] = value.get("configurable")
        elif type(value) in _SCALARS or isinstance(value, Enum):
            self.settings[path] = value
        elif type(value) in {dict, list, tuple, set, frozenset}:
            self._read_container(value, path, searches=searches)
        elif _is_store(value):
            self.parts.stores.append(value)
        elif searches and _has(value, "mset", "upsert_nodes", "delete_document"):
            self.parts.others.append(value)
        elif searches and _is_own_code(value):
            self.settings[path] = value
        else:
            return self._read_object(value, path)
        return True

    def _read_object(self, value: Any, path: str) -> bool:
        """Read a part that is no plain data; return whether it is of a kind that can be read."""
        if _is_component(value):
            self.read(value, path)
        elif _is_held(value):
            self.read_object(value, path)
        elif type(value) in PRINTED:
            self.settings[path] = value
        else:
            return False
        return True

    def _read_container(self, value: Any, path: str, *, searches: bool) -> None:
        if _is_plain(value):
            small = len(value) <= _MAX_ITEMS
            self.settings[path] = value if small else (id(value), len(value))
        elif len(value) <= _MAX_OBJECTS:
            for name, item in _parts(value):
                self._read_part(item, f"{path}{name}", name, searches=searches)
        elif any(_is_component(item) or _is_own_code(item) for item in _items(value)):
            self.settings[path] = UNREAD


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, by name."""
    if isinstance(value, dict):
        yield from ((f"[{name!r}]", item) for name, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, functools.partial):
        parts = (value.func, *value.args, *value.keywords.values())
        yield from ((f"({number})", item) for number, item in enumerate(parts))
    elif isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from _reachable(value)
    else:
        yield from _attributes(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, by name, with what its own classes have in their stead."""
    for name in ("__dict__", "__pydantic_extra__", "__pydantic_private__"):
        held = getattr(value, name, None) or {}
        yield from ((f".{name}", item) for name, item in list(held.items()))
    for base in filter(is_own_class, type(value).__mro__):
        for name, item in list(vars(base).items()):
            if isinstance(item, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # not assigned yet
                    yield f".{name}", item.__get__(value)
            elif type(item) in _SCALARS and not name.startswith("__"):
                yield f"@{base.__qualname__}.{name}", item


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the declared fields of a framework's model, by name."""
    declared = value.__dict__
    yield from (
        (f".{name}", declared[name]) for name in type(value).model_fields if name in declared
    )


def _reachable(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the retrievers and Runnables that a function was made around, or names.

    Its other values are its own business, as is what it does.
    """
    names = function.__globals__
    values: list[Any] = [names.get(name) for name in function.__code__.co_names]
    values = [value for value in values if not isinstance(value, _CODE)]
    values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            values.append(cell.cell_contents)
    for value in list(values):
        if type(value) in {dict, list, tuple} and len(value) <= _MAX_OBJECTS:
            values += _items(value)
    components = (value for value in values if _is_component(value) or _is_store(value))
    yield from ((f"<{number}>", value) for number, value in enumerate(components))


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _is_plain(value: Any) -> bool:
    """Whether a container holds plain values alone; looks at the first ones of many."""
    budget = _MAX_ITEMS
    waiting = [value]
    while waiting and budget > 0:
        container = waiting.pop()
        names = container.keys() if isinstance(container, dict) else ()
        for item in (*names, *_items(container)):
            budget -= 1
            if type(item) in {dict, list, tuple, set, frozenset}:
                waiting.append(item)
            elif type(item) not in _SCALARS and not isinstance(item, Enum):
                return False
            if budget <= 0:
                break
    return True


def _has(value: Any, *methods: str) -> bool:
    return any(hasattr(type(value), name) for name in methods)


def _is_component(value: Any) -> bool:
    """Whether a value searches, runs something that does, or is a function around it."""
    if isinstance(value, type) or value is None:
        return False
    return (
        isinstance(value, _CODE)
        or _has(value, *_SEARCHES)
        or (_has(value, "invoke") and _has(value, "ainvoke"))
    )


def _is_store(value: Any) -> bool:
    """Whether a value is a vector store or an embedding model of either framework."""
    if isinstance(value, type) or value is None:
        return False
    return _has(value, "similarity_search", "embed_query", "get_query_embedding") or (
        _has(value, "query") and _has(value, "delete_nodes")
    )


def holds_data(value: object) -> bool:
    """Whether an object neither searches nor runs anything, so that it can only hold data."""
    return not _is_store(value) and not _is_component(value)


def is_own_object(value: object) -> bool:
    """Whether an object holds data as the application says, by a class of its own or by none."""
    kind = type(value)
    return kind is types.SimpleNamespace or any(map(is_own_class, kind.__mro__))


def _is_held(value: Any) -> bool:
    """Whether the plain data in an object's attributes are settings."""
    if isinstance(value, type) or _has(value, *_HEARING):
        return False
    return is_own_object(value) or isinstance(value, BaseModel)


def is_record(value: object) -> bool:
    """Whether an object is a record, which has fields."""
    return isinstance(value, BaseModel | types.SimpleNamespace) or dataclasses.is_dataclass(value)


def _is_own_code(value: Any) -> bool:
    """Whether a value is code that is no part of a framework, nor of a kind that it has."""
    if not callable(value) or isinstance(value, type):
        return False
    if isinstance(value, _CODE):
        return not _is_frameworks(getattr(value, "__module__", None) or "")
    return not any(_is_frameworks(kind.__module__) for kind in type(value).__mro__)


def _is_frameworks(module: str) -> bool:
    return module.startswith(_FRAMEWORKS)
