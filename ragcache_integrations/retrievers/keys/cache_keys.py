"""Cache keys made of what a search was called with, read as plain data.

An entry of the query cache serves every question with an equal key, so a key has to say all that
changes the store's answer. A value whose meaning is code (a function as filter, an object that
decides by what it holds or by a context variable) says nothing that could be compared: the same
function may let one tenant's documents through now and another's a moment later. Such values are
*opaque*. A search that was called with one is never shared between requests, unless the caller
names its meaning (``filter_key``).
"""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import decimal
import fractions
import functools
import math
import pathlib
import types
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pydantic import BaseModel

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.sharing import Identity

from .own_code import NAMES, is_own_class

__all__ = [
    "NO_ARGUMENTS",
    "OPAQUE",
    "PRINTED",
    "FrozenArguments",
    "Naming",
    "RequestKey",
    "Snapshot",
    "Snapshots",
    "fields_of",
    "filter_mark",
    "freeze_arguments",
    "marks_of",
    "nameless_values",
    "namespace_mark",
    "opaque_values",
    "said_besides",
    "tenant_of",
]

OPAQUE = "<opaque>"
"""Replaces, in a frozen value, what is no plain data. Two of them need not mean the same."""

# Exact types only: a subclass may answer differently whenever it is asked.
_SCALARS = {type(None), bool, int, float, str, bytes}
_MAPPINGS = {dict, OrderedDict, types.MappingProxyType}
_SEQUENCES = {list, tuple}
_SETS = {set, frozenset}
PRINTED = {
    dt.date,
    dt.datetime,
    dt.time,
    dt.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    *(pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath),
}
"""Classes whose objects are immutable, and equal where their texts are."""
_KNOWN = NAMES["known_records"]
_GENERATED = NAMES["generated"]
_FILTERS = {"filter", "filters", "expr", "where_document"}
"""Arguments of the frameworks' and the stores' searches that say which documents may be found."""
_MAX_DEPTH = 32
"""Containers within containers; what is deeper, or contains itself, is opaque."""


class FrozenArguments(NamedTuple):
    """Arguments of a search as a part of a cache key.

    Attributes:
        key: Equal for equal arguments alone; :data:`OPAQUE` replaces each opaque value.
        opaque: The opaque values and where they are, such as ``filter`` or ``params['where'][0]``.
    """

    key: frozenset[Hashable]
    opaque: tuple[tuple[str, Any], ...]

    def with_others(self, others: FrozenArguments) -> FrozenArguments:
        """Return these arguments and others, which have other names."""
        return FrozenArguments(self.key | others.key, self.opaque + others.opaque)


def freeze_arguments(arguments: Mapping[str, Any]) -> FrozenArguments:
    """Turn the arguments of a search into a part of a cache key.

    Values of different types make different keys, even where Python holds them equal: a store may
    distinguish 1 from True.
    """
    if not arguments:
        return NO_ARGUMENTS.frozen
    freezer = _Freezer()
    frozen = frozenset((name, freezer.freeze(item, name)) for name, item in arguments.items())
    return FrozenArguments(frozen, tuple(freezer.opaque))


class _Freezer:
    """Freezes values, and collects the places of those that are opaque."""

    def __init__(self) -> None:
        self.opaque: list[tuple[str, Any]] = []

    def freeze(self, value: Any, path: str, depth: int = _MAX_DEPTH) -> Hashable:
        parts = _atom(value)
        if parts is None and depth:
            parts = self._freeze_container(value, path, depth - 1)
        if parts is None:
            self.opaque.append((path, value))
            return OPAQUE
        return type(value), *parts

    def _freeze_container(self, value: Any, path: str, depth: int) -> tuple[Hashable, ...] | None:
        if type(value) in _SEQUENCES:
            items = enumerate(value)
            return (tuple(self.freeze(item, f"{path}[{i}]", depth) for i, item in items),)
        if type(value) in _SETS:
            return (frozenset(self.freeze(item, path, depth) for item in value),)
        if isinstance(value, Enum) and not callable(value):
            # What a member is made of may be changed, too.
            return value, self.freeze(value.value, path, depth)
        fields = fields_of(value)
        return None if fields is None else (self._freeze_mapping(fields, path, depth),)

    def _freeze_mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> Hashable:
        # A set of pairs: the order in which names were written changes no filter's meaning.
        return frozenset(
            (self.freeze(name, path, depth), self.freeze(item, f"{path}[{name!r}]", depth))
            for name, item in value.items()
        )


def _atom(value: Any) -> tuple[Hashable, ...] | None:
    """Return the identity of a value without parts; ``None`` where it has parts, or is opaque."""
    if type(value) is float and (math.isnan(value) or not value):
        return (repr(value),)  # NaN equals nothing, not even itself, and -0.0 equals 0.0
    if type(value) in _SCALARS:
        return (value,)
    if type(value) in PRINTED:
        return (str(value),)
    if isinstance(value, np.generic) or (type(value) is np.ndarray and value.dtype.kind != "O"):
        return value.dtype.str, value.shape, value.tobytes()
    return None


def fields_of(value: Any) -> Mapping[Any, Any] | None:
    """Return the items of a mapping or a record of plain data; ``None`` where it is neither."""
    if type(value) in _MAPPINGS:
        return dict(value)
    kind: Any = type(value)
    if callable(value) or isinstance(value, type) or not _is_record(kind):
        return None
    if isinstance(value, BaseModel):
        # Filters of LlamaIndex, Qdrant and others. Private attributes may matter, too.
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        return vars(value) | (extra or {}) | (private or {})
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return fields | getattr(value, "__dict__", {})
    return None


@functools.lru_cache(maxsize=1024)
def _is_record(kind: type) -> bool:
    """Whether a class of records holds data and does nothing.

    Filters of the frameworks and of stores' clients have methods that only convert them. A class of
    somebody else's with methods may decide by anything, also where it derives from one of these.
    """
    return all(
        _is_known(base) or all(map(_is_data, vars(base).items()))
        for base in kind.__mro__
        if base not in {object, BaseModel}
    )


def _is_known(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _KNOWN


def _is_data(item: tuple[str, Any]) -> bool:
    name, value = item
    if name in _GENERATED or name.startswith(("__pydantic_", "_abc_")):
        return True
    return not (callable(value) or hasattr(type(value), "__get__"))


def said_besides(**values: Any) -> dict[str, Any]:
    """Return those of a call's texts and mappings that may say more than their words and items.

    An object of a class of the application's own, such as a subclass of ``str``, may have
    attributes that a step reads.
    """
    return {
        name: value
        for name, value in values.items()
        if type(value) not in {str, dict} and any(map(is_own_class, type(value).__mro__))
    }


class Naming(NamedTuple):
    """Who says what opaque arguments mean.

    Attributes:
        filter_key: The name, of the call or of the retriever.
        by_call: Whether the name comes with the call; it names all of the call's arguments.
        namespace_by_call: Whether the namespace comes with the call.
        own: The opaque values that the retriever was made with. Its ``filter_key``, and a
            namespace, name these alone: a function that came later may mean anything.
    """

    filter_key: str | None = None
    by_call: bool = False
    namespace_by_call: bool = False
    own: frozenset[Identity] = frozenset()

    def names(self, value: Any) -> bool:
        """Whether the meaning of an opaque value is named."""
        if self.by_call:
            return True
        named = self.namespace_by_call or self.filter_key is not None
        return named and Identity(value) in self.own


RequestKey: TypeAlias = tuple[str, str | None, frozenset[Hashable]]
"""The cache key of a question: the tenant, the name of the meaning of opaque arguments, and the
key of all that the search is called with but the question and the number of documents."""


def tenant_of(key: Hashable) -> Hashable:
    """Return whose questions a cache key is for: namespace and filters, without the question.

    Filters separate tenants in many applications, so what is learnt under one holds for no other.
    """
    while isinstance(key, tuple) and key and isinstance(key[0], tuple):
        key = key[0]
    return key


def nameless_values(frozen: FrozenArguments, naming: Naming) -> tuple[str, ...]:
    """Return the places of the opaque values among arguments whose meaning is not named."""
    return tuple(path for path, value in frozen.opaque if not naming.names(value))


def namespace_mark(namespace: str) -> Hashable:
    """Return the mark of the cache keys of a namespace."""
    return ("namespace", namespace)


def filter_mark(meaning: Any) -> Hashable:
    """Return the mark of the cache keys of a filter, or of a ``filter_key``.

    Raises:
        ConfigurationError: The filter is code, which cannot be compared.
    """
    freezer = _Freezer()
    frozen = freezer.freeze(meaning, "filter")
    if freezer.opaque:
        places = " and ".join(place for place, _ in freezer.opaque)
        msg = f"{places} is no plain data, which could be compared: name its filter_key instead"
        raise ConfigurationError(msg)
    return ("filter", frozen)


def marks_of(key: Hashable) -> frozenset[Hashable]:
    """Return the marks of a cache key, which may be part of a longer key."""
    match tenant_of(key):
        case [str(namespace), filter_key, frozenset() as arguments]:
            marks = {("filter", value) for name, value in arguments if name in _FILTERS}
            named = () if filter_key is None else (filter_mark(filter_key),)
            return frozenset({namespace_mark(namespace), *marks, *named})
    return frozenset()


def opaque_values(arguments: Mapping[str, Any]) -> frozenset[Identity]:
    """Return the opaque values among arguments."""
    return frozenset(Identity(value) for _, value in freeze_arguments(arguments).opaque)


class Snapshot(NamedTuple):
    """The arguments of a search at one time.

    Attributes:
        frozen: Their key.
        arguments: A copy of them that nobody changes; where some are opaque, they themselves.
    """

    frozen: FrozenArguments
    arguments: Mapping[str, Any]

    def copies(self) -> Callable[[], Mapping[str, Any]]:
        """Return a function that returns the arguments as they are now, even if they change later.

        Each search gets a separate copy, as a store may change its arguments.
        """
        if not self.arguments:
            return dict
        if self.frozen.opaque:
            return partial(dict, copy.deepcopy(dict(self.arguments)))
        return partial(copy.deepcopy, self.arguments)


NO_ARGUMENTS = Snapshot(FrozenArguments(frozenset(), ()), {})
"""Those of a call without any."""


class Snapshots:
    """Copies arguments where they differ from those of the last question.

    Equal keys of plain data mean equal arguments, also deep within. Thread-safe.
    """

    def __init__(self) -> None:
        # The key of the last arguments, and a copy of them that nobody else has.
        self._last: tuple[Hashable, Mapping[str, Any]] = (None, {})

    def of(self, arguments: Mapping[str, Any]) -> Snapshot:
        """Return arguments as they are now: a later change affects no answer under their key."""
        if not arguments:
            return NO_ARGUMENTS
        frozen = freeze_arguments(arguments)
        if frozen.opaque:  # opaque ones have equal keys although they are not
            return Snapshot(frozen, arguments)
        last, copied = self._last
        if last != frozen.key:
            copied = copy.deepcopy(dict(arguments))
            # Of the copy: another thread may have changed them while they were copied.
            frozen = freeze_arguments(copied)
            if not frozen.opaque:
                self._last = frozen.key, copied  # as one: another thread must not mix two of them
        return Snapshot(frozen, copied)
