"""Cache keys made of what a search was called with, read as plain data.

An entry of the query cache serves every question with an equal key, so a key has to say all that
changes the store's answer. A value whose meaning is code (a function as filter, an object that
decides by what it holds or by a context variable) says nothing that could be compared: the same
function may let one tenant's documents through now and another's a moment later. Such values are
*opaque*. A search that was called with one is never shared between requests, unless the caller
names its meaning (``filter_key``).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import fractions
import pathlib
import types
import uuid
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from pydantic import BaseModel

__all__ = [
    "OPAQUE",
    "FrozenArguments",
    "freeze_arguments",
    "request_key",
    "visible_settings",
]

OPAQUE = "<opaque>"
"""Stands in a frozen value for what is no plain data. Two of them need not mean the same."""

# Exact types only: a subclass may answer differently whenever it is asked.
_SCALARS = {type(None), bool, int, float, str, bytes}
_MAPPINGS = {dict, OrderedDict, types.MappingProxyType}
_SEQUENCES = {list, tuple}
_SETS = {set, frozenset}
# Immutable, and the same wherever their text is the same.
_PRINTED = {
    dt.date,
    dt.datetime,
    dt.time,
    dt.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    *(pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath),
}
_MAX_DEPTH = 32
"""Containers within containers; what is deeper, or contains itself, is opaque."""


@dataclass(frozen=True)
class FrozenArguments:
    """Arguments of a search as a part of a cache key.

    Attributes:
        key: Equal for equal arguments alone; :data:`OPAQUE` stands for each opaque value.
        opaque: Where the opaque values are, such as ``filter`` or ``params['where'][0]``.
    """

    key: Hashable
    opaque: tuple[str, ...]


def freeze_arguments(arguments: Mapping[str, Any]) -> FrozenArguments:
    """Turn the arguments of a search into a part of a cache key.

    Values of different types make different keys, even where Python holds them equal: a store may
    tell 1 from True.
    """
    freezer = _Freezer()
    frozen = frozenset((name, freezer.freeze(item, name)) for name, item in arguments.items())
    return FrozenArguments(frozen, tuple(freezer.opaque))


class _Freezer:
    """Freezes values, and collects the places of those that are opaque."""

    def __init__(self) -> None:
        self.opaque: list[str] = []

    def freeze(self, value: Any, path: str, depth: int = _MAX_DEPTH) -> Hashable:
        parts = _atom(value)
        if parts is None and depth:
            parts = self._freeze_container(value, path, depth - 1)
        if parts is None:
            self.opaque.append(path)
            return OPAQUE
        return type(value), *parts

    def _freeze_container(self, value: Any, path: str, depth: int) -> tuple[Hashable, ...] | None:
        if type(value) in _SEQUENCES:
            items = enumerate(value)
            return (tuple(self.freeze(item, f"{path}[{i}]", depth) for i, item in items),)
        if type(value) in _SETS:
            return (frozenset(self.freeze(item, path, depth) for item in value),)
        fields = _fields(value)
        return None if fields is None else (self._freeze_mapping(fields, path, depth),)

    def _freeze_mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> Hashable:
        # A set of pairs: the order in which names were written changes no filter's meaning.
        return frozenset(
            (self.freeze(name, path, depth), self.freeze(item, f"{path}[{name!r}]", depth))
            for name, item in value.items()
        )


def _atom(value: Any) -> tuple[Hashable, ...] | None:
    """Return what a value without parts is known by; ``None`` where it has parts, or is opaque."""
    if type(value) in _SCALARS or isinstance(value, Enum):
        return (value,)
    if type(value) in _PRINTED:
        return (str(value),)
    if isinstance(value, np.generic) or (type(value) is np.ndarray and value.dtype.kind != "O"):
        return value.dtype.str, value.shape, value.tobytes()
    return None


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """Return what a mapping or a record of plain data holds; ``None`` where it is neither."""
    if type(value) in _MAPPINGS:
        return dict(value)
    if callable(value) or isinstance(value, type):
        return None
    if isinstance(value, BaseModel):
        # Filters of LlamaIndex, Qdrant and others. Private attributes may matter, too.
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        return vars(value) | (extra or {}) | (private or {})
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return fields | getattr(value, "__dict__", {})
    return None


def request_key(
    arguments: Mapping[str, Any],
    *,
    namespace: str,
    filter_key: str | None,
    named: bool = False,
) -> tuple[Hashable, tuple[str, ...]]:
    """Return the cache key of a question, and where what it cannot say is.

    Args:
        arguments: All that the search is called with but the question and the number of documents.
        namespace: The tenant.
        filter_key: What opaque arguments mean, where the caller says so.
        named: The caller says with this very call whose question it is, by its namespace: that
            names what opaque arguments let through, too.
    """
    frozen = freeze_arguments(arguments)
    opaque = () if named or filter_key is not None else frozen.opaque
    return (namespace, filter_key, frozen.key), opaque


# Attributes of retrievers whose whole content decides what is found.
_FILTERS = {
    *("search_kwargs", "filter", "filters", "kwargs", "vector_store_kwargs"),
    *("_filters", "_kwargs", "_vector_store_kwargs", "_node_ids", "_doc_ids"),
}
_MAX_ITEMS = 16
_MAX_NESTING = 4
_SEARCHES = ("_get_relevant_documents", "_retrieve")


def visible_settings(wrapped: object, path: str = "retriever") -> dict[str, Any]:
    """Return the settings of a wrapped retriever, and of those within it.

    They may be changed after it was wrapped, and become a part of every key: a changed
    ``similarity_top_k``, ``search_kwargs`` or list of weights is honoured, and a function among
    them is seen to be opaque. What else a retriever holds, such as its store or its documents, is
    what is wrapped: it is not looked at.

    Args:
        wrapped: The retriever, or what runs one.
        path: What it is called in messages.
    """
    settings: dict[str, Any] = {}
    for name, value in getattr(wrapped, "__dict__", {}).items():
        if name in _FILTERS or _is_setting(value):
            settings[f"{path}.{name}"] = value
        elif path.count(".") < _MAX_NESTING:
            for number, inner in enumerate(value if isinstance(value, list | tuple) else [value]):
                if number < _MAX_ITEMS and _is_searcher(inner):
                    settings |= visible_settings(inner, f"{path}.{name}[{number}]")
    return settings


def _is_searcher(value: object) -> bool:
    """Whether a value searches, or is a Runnable around something that does."""
    kind = type(value)
    return any(hasattr(kind, name) for name in _SEARCHES) or (
        hasattr(kind, "ainvoke") and hasattr(kind, "invoke")
    )


def _is_setting(value: Any) -> bool:
    if type(value) in _SCALARS or isinstance(value, Enum):
        return True
    return (
        type(value) in {dict, list, tuple}
        and len(value) <= _MAX_ITEMS
        and all(
            type(item) in _SCALARS for item in (value.values() if type(value) is dict else value)
        )
    )
