"""Saves a query cache to a file, and loads it.

A file keeps the queries' embeddings, the candidates found for them and what has been learnt since,
each document and each vector once. Everything that follows from these is recomputed on loading,
because the current kernels may differ from the ones that saved the file. Counts are not kept.

Cache keys are written as JSON, which distinguishes ``None``, booleans, whole numbers, floats and
strings. Everything else becomes a list that begins with the name of its kind. Types and members of
enumerations, which occur in frozen filters, are written by name. Reading looks names up among the
loaded modules; it imports none and calls nothing, so no file can make it run code.

An entry's age is its saved age plus the elapsed wall-clock time, because one process's monotonic
clock says nothing to the next. If the elapsed time is negative, the wall clock went back and the
age is unknown: the entry counts as no younger than it was, and with a ``ttl`` it has expired.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from types import ModuleType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from ragcache_integrations.core.archive import MALFORMED, read_archive, write_archive
from ragcache_integrations.core.checks import check_text
from ragcache_integrations.errors import CacheFileError, ConfigurationError
from ragcache_integrations.query_cache.certificates import are_unit
from ragcache_integrations.query_cache.entries import (
    NEVER,
    DocumentKey,
    Entry,
    EntryTable,
    NewEntry,
    document_keys,
)
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.tolerance import MOST_TENANTS, TenantTolerances
from ragcache_integrations.query_cache.types import Candidate
from ragcache_integrations.query_cache.validation import check_vectors

__all__ = [
    "FORMAT",
    "Arrays",
    "Decode",
    "Encode",
    "Path",
    "Snapshot",
    "agreed",
    "capture",
    "check_arguments",
    "decode_key",
    "decode_learning",
    "encode_key",
    "encode_learning",
    "read",
    "write",
]

logger = logging.getLogger(__name__)


_PLAIN = (type(None), bool, int, float, str)
# Says that it lives in builtins, and does not.
_NONE_TYPE = ["builtins", "NoneType"]


def encode_key(key: Hashable) -> Any:
    """Return a cache key as JSON can hold it.

    Raises:
        ConfigurationError: It holds something that :func:`decode_key` could not give back.
    """
    if type(key) in _PLAIN:
        return key
    if type(key) is bytes:
        return ["bytes", key.hex()]
    if type(key) is tuple:
        return ["tuple", *(encode_key(part) for part in key)]
    if type(key) is frozenset:
        return ["frozenset", *sorted((encode_key(part) for part in key), key=json.dumps)]
    encoded: list[str] | None = None
    if isinstance(key, type):
        encoded = ["type", *_name(key)]
    elif isinstance(key, Enum):
        encoded = ["enum", *_name(type(key)), str(key.name)]
    try:
        if encoded is not None and decode_key(encoded) is key:
            return encoded
    except ValueError:
        pass  # a type that is made inside a function, for example
    raise ConfigurationError(
        "what a saved cache's keys hold must be None, bool, int, float, str, bytes, tuples, "
        f"frozensets, or types and enum members found in their modules, got {key!r}"
    )


def decode_key(encoded: Any) -> Hashable:
    """Return the cache key that :func:`encode_key` wrote.

    Raises:
        ValueError: It wrote no such thing, or a type in it is not loaded.
    """
    if type(encoded) in _PLAIN:
        plain: Hashable = encoded
        return plain
    match encoded:
        case ["bytes", str(digits)]:
            return bytes.fromhex(digits)
        case ["tuple", *parts]:
            return tuple(decode_key(part) for part in parts)
        case ["frozenset", *parts]:
            return frozenset(decode_key(part) for part in parts)
        case ["type", str(module), str(name)]:
            return _find(module, name)
        case ["enum", str(module), str(name), str(member)]:
            kind = _find(module, name)
            if issubclass(kind, Enum) and member in kind.__members__:
                return kind.__members__[member]
    raise ValueError(f"a cache key must be one that was saved, got {encoded!r}")


def _name(kind: type) -> list[str]:
    return [kind.__module__, kind.__qualname__]


def encode_learning(learnt: TenantTolerances | None) -> list[Any] | None:
    """Return what tenants have learnt as JSON can hold it; ``None`` if the tolerance is fixed.

    A tenant whose key cannot be written is left out, and starts again.
    """
    if learnt is None:
        return None
    encoded = []
    for tenant, state in learnt.states():
        try:
            encoded.append([encode_key(tenant), state])
        except ConfigurationError:
            continue
    return encoded


def decode_learning(saved: Any, learnt: TenantTolerances | None) -> TenantTolerances | None:
    """Return tolerances that continue from what :func:`encode_learning` wrote.

    Args:
        saved: What it wrote.
        learnt: The tolerances of the cache that is to have them.

    Returns:
        ``None`` if that cache does not learn, or for other targets.

    Raises:
        ValueError: It wrote no such thing.
    """
    if learnt is None or saved is None:
        return None
    if not isinstance(saved, list) or len(saved) > MOST_TENANTS:
        raise ValueError(f"what was learnt must be a list of at most {MOST_TENANTS} tenants")
    return learnt.restore((decode_key(tenant), state) for tenant, state in saved)


def _find(module: str, name: str) -> type:
    if [module, name] == _NONE_TYPE:
        return type(None)
    value: object = sys.modules.get(module)
    for part in name.split("."):
        # Not getattr, which modules and classes may answer by running code.
        value = getattr(value, "__dict__", {}).get(part)
    if isinstance(value, type):
        return value
    msg = f"the type {module}.{name} of a cache key is not there: import {module} before"
    raise ValueError(msg)


T = TypeVar("T")
Path = str | os.PathLike[str]
Arrays = dict[str, NDArray[Any]]
Encode = Callable[[T], Any]

FORMAT = 4
"""Number of the format; another one for every change that an older version misreads."""

_ARRAYS = ("header", "documents", "keys", "planes", "vectors")

Count = Annotated[int, Field(ge=0, le=NEVER)]
Distance = Annotated[float, Field(ge=-math.inf)]  # which NaN is not


class _Row(NamedTuple):
    """An entry without its query.

    Attributes:
        stamp: When it was put in or last used.
        serves: The largest k that it answers.
        age: Nanoseconds since it was inserted.
        radius: Within which of the key every document is known.
        newest: To the nearest document that came after it.
        cap: The largest distance at which it answers unproven.
        cache_key: The number of its cache key in the header.
        complete: The store had no more documents.
        ranked: The candidates are in the order of their distances.
        readable: Its candidates' vectors are kept.
        text: The query's words.
        candidates: For each, the numbers of its name in the header and of its document, and its
            score.
    """

    stamp: Annotated[int, Field(ge=-NEVER, le=NEVER)]
    serves: Count
    age: Count
    radius: Distance
    newest: Distance
    cap: Distance
    cache_key: Count
    complete: bool
    ranked: bool
    readable: bool
    text: str
    candidates: list[tuple[Count, Count, float | None]]


class _Header(BaseModel):
    """What a file holds besides arrays and documents; in ``names``, those with vectors come first.

    ``format`` and ``settings`` are compared before.
    """

    saved_at: Count
    longest: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    learning: list[Any] | None
    cache_keys: list[Any]
    names: list[DocumentKey]
    entries: list[_Row]


@dataclass(frozen=True)
class Snapshot(Generic[T]):
    """What a cache held at one moment.

    Attributes:
        entries: In the order of their insertion.
        columns: Their numbers, in the order of the first fields of a row.
        documents: Those whose vectors are kept.
        arrays: The entries' keys and the documents' vectors, in these orders, and the hyperplanes.
        longest: L2 length of the longest document vector seen.
        learning: What tenants have learnt, as JSON can hold it; ``None`` for a fixed tolerance.
        saved_at: The moment, in nanoseconds of the wall clock.
    """

    entries: list[Entry[T]]
    columns: tuple[NDArray[Any], ...]
    documents: list[DocumentKey]
    arrays: Arrays
    longest: float
    learning: list[Any] | None
    saved_at: int


def check_arguments(path: object, function: object, store_tag: object) -> None:
    """Check what :meth:`QueryCache.save` and :meth:`QueryCache.load` were given.

    Raises:
        ConfigurationError: It cannot be used.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"path must be a string or a path, got {path!r}")
    if function is not None and not callable(function):
        msg = f"encode and decode must be functions of one argument or None, got {function!r}"
        raise ConfigurationError(msg)
    check_text("store_tag", store_tag)


def capture(table: EntryTable[T], learnt: TenantTolerances | None, now: int) -> Snapshot[T]:
    """Copy what a cache holds; its lock is held.

    Args:
        table: The entries.
        learnt: The learnt tolerances; ``None`` if the tolerance is fixed.
        now: What its clock says. Entries that have ended are left out.
    """
    slots = table.keys.taken()
    slots = slots[~np.isin(slots, table.keys.expired(now))]
    entries = cast("list[Entry[T]]", [table.entry(slot) for slot in slots.tolist()])  # all taken
    documents, vectors = table.pool.contents()
    arrays = {"keys": table.keys.keys(slots), "planes": table.keys.planes, "vectors": vectors}
    columns = (
        table.keys.stamps(slots),
        table.keys.served(slots),
        np.array([min(max(now - entry.born, 0), NEVER) for entry in entries], dtype=np.int64),
        table.reach.radius[slots],
        table.reach.newest[slots],
        table.reach.cap[slots],
    )
    learning = encode_learning(learnt)
    return Snapshot(entries, columns, documents, arrays, table.longest, learning, time.time_ns())


def write(
    path: Path,
    snapshot: Snapshot[T],
    settings: Settings,
    encode: Encode[T] | None,
    store_tag: str,
) -> None:
    """Write a snapshot to a file.

    Args:
        path: The file.
        snapshot: What to write.
        settings: The arguments of the cache, checked.
        encode: Turns a document into what JSON can hold; ``None`` where it is such a thing.
        store_tag: What :func:`read` has to be given, too.

    Raises:
        ConfigurationError: A document or a cache key cannot be written. The file is as it was.
        OSError: The file cannot be written. It is as it was.
    """
    entries = snapshot.entries
    cache_keys: dict[Hashable, int] = {}
    names = {document: number for number, document in enumerate(snapshot.documents)}
    texts: dict[str, int] = {}
    # Most documents stand in several entries, often as the same object: encode that once.
    text_of: dict[int, int] = {}
    for candidate in chain.from_iterable(entry.candidates for entry in entries):
        if id(candidate.document) not in text_of:
            text = _as_text(candidate, encode)
            text_of[id(candidate.document)] = texts.setdefault(text, len(texts))
    columns = (column.tolist() for column in snapshot.columns)
    rows = [
        (
            *numbers,
            cache_keys.setdefault(entry.key, len(cache_keys)),
            *(entry.complete, entry.ranked, entry.readable is not None, entry.text),
            [
                (
                    names.setdefault((candidate.id, candidate.fingerprint), len(names)),
                    text_of[id(candidate.document)],
                    None if candidate.score is None else float(candidate.score),
                )
                for candidate in entry.candidates
            ],
        )
        for entry, *numbers in zip(entries, *columns, strict=True)
    ]
    header = {
        "format": FORMAT,
        "settings": agreed(settings, store_tag),
        "saved_at": snapshot.saved_at,
        "longest": snapshot.longest,
        "learning": snapshot.learning,
        "cache_keys": [encode_key(key) for key in cache_keys],
        "names": list(names),
        "entries": rows,
    }
    for name, text in (("header", json.dumps(header)), ("documents", f"[{','.join(texts)}]")):
        snapshot.arrays[name] = np.frombuffer(text.encode("ascii"), np.uint8)
    write_archive(path, snapshot.arrays)


def agreed(settings: Settings, store_tag: str) -> dict[str, object]:
    """Return the settings that must agree, or answers and proofs would be wrong."""
    names = ["dim", "metric", "index", "tag", "exact_search", "unit_vectors"]
    if settings.index == "lsh":
        names += ["num_hyperplanes", "bucket_capacity", "seed"]
    same: dict[str, object] = {name: getattr(settings, name) for name in names}
    if settings.metric == "ip":
        same["longest is given"] = settings.longest is not None
    return same | {"store_tag": store_tag}


def _as_text(candidate: Candidate[T], encode: Encode[T] | None) -> str:
    """Return a document as JSON."""
    document: Any = candidate.document
    if encode is not None:
        document = encode(document)
    try:
        text = json.dumps(document)
        # JSON makes lists of tuples and strings of numbers, without a word.
        if encode is not None or json.loads(text) == document:
            return text
    except (TypeError, ValueError, RecursionError) as error:
        reason = f": {error}"
    else:
        reason = ""
    what = "encode must turn every document into JSON" if encode else "documents must be JSON"
    kind = type(document).__name__
    msg = f"{what} to be saved, got {kind} for {candidate.id!r}{reason}. See encode= and decode="
    raise ConfigurationError(msg)


Decode = Callable[[Any], T]

_LONGEST_REASON = 500  # characters, as it may repeat what the file holds


def read(
    path: Path,
    settings: Settings,
    kernels: ModuleType,
    now: int,
    decode: Decode[T] | None,
    store_tag: str,
    learnt: TenantTolerances | None = None,
) -> tuple[EntryTable[T], TenantTolerances | None]:
    """Read what :func:`write` wrote.

    Args:
        path: The file.
        settings: Those of the cache that is to have it.
        kernels: The module of compiled or plain loops.
        now: What that cache's clock says.
        decode: Turns what ``encode`` returned into the document; ``None`` where it is that.
        store_tag: What :func:`write` was given.
        learnt: That cache's tolerances; ``None`` if its tolerance is fixed.

    Returns:
        The entries, the last used ones if there is no room for all; and what has been learnt, if
        the cache learns for the same targets.

    Raises:
        CacheFileError: It does not hold a cache like that, or ``decode`` raised something.
        OSError: The file cannot be read.
    """
    arrays = read_archive(path, _ARRAYS)
    try:
        raw = json.loads(arrays["header"].tobytes())
        _check_agreed(raw, agreed(settings, store_tag))
        header = _Header.model_validate(raw)
        table = _table(header, arrays, _documents(arrays, decode), settings, kernels, now)
        restored = decode_learning(header.learning, learnt)
    except MALFORMED as error:
        reason = str(error) if isinstance(error, ValueError) else repr(error)
        msg = f"{path} holds no query cache for this one: {reason[:_LONGEST_REASON]}"
        raise CacheFileError(msg) from error
    if header.learning is not None and learnt is not None and restored is None:
        logger.info("The saved tolerances are not used: they were learnt for other targets")
    return table, restored


def _check_agreed(header: dict[str, Any], expected: dict[str, object]) -> None:
    if header["format"] != FORMAT:
        raise ValueError(f"its format must be {FORMAT}, got {header['format']!r}")
    saved = header["settings"]
    differences = [
        f"{name} is {value!r} here and {saved.get(name)!r} there"
        for name, value in expected.items()
        if saved.get(name) != value
    ]
    if differences:
        raise ValueError(", ".join(differences))


def _documents(arrays: Arrays, decode: Decode[T] | None) -> list[T]:
    saved = json.loads(arrays["documents"].tobytes())
    if not isinstance(saved, list):
        raise TypeError(f"its documents must be a list, got a {type(saved).__name__}")
    if decode is None:
        return saved
    try:
        return [decode(document) for document in saved]
    except Exception as error:
        raise ValueError(f"decode raised {error!r}") from error


def _check_lengths(
    keys: NDArray[np.float32], vectors: NDArray[np.float32], settings: Settings
) -> None:
    """Check what proofs go by: no key is zero, and unit vectors have length 1."""
    if not keys.any(axis=1).all():
        raise ValueError("the keys must not be zero")
    if settings.unit and not (are_unit(keys).all() and are_unit(vectors).all()):
        raise ValueError("the keys and the documents' vectors must have length 1")


def _table(
    header: _Header,
    arrays: Arrays,
    documents: list[T],
    settings: Settings,
    kernels: ModuleType,
    now: int,
) -> EntryTable[T]:
    dim, rows = settings.dim, header.entries
    planes = check_vectors(arrays["planes"], settings.planes, dim, "the hyperplanes")
    keys = check_vectors(arrays["keys"], len(rows), dim, "the keys")
    vectors = check_vectors(arrays["vectors"], None, dim)
    _check_lengths(keys, vectors, settings)
    vector_of = dict(zip(header.names, vectors, strict=False))
    if len(set(header.names)) < len(header.names):
        raise ValueError("its names must differ from each other")
    cache_keys = [decode_key(key) for key in header.cache_keys]
    table = EntryTable[T](settings, kernels, max(header.longest, settings.longest or 0.0), planes)
    passed = time.time_ns() - header.saved_at
    lasts = NEVER if settings.lifetime is None else settings.lifetime
    order = sorted(range(len(rows)), key=lambda number: rows[number].stamp)
    row_of: dict[int, int] = {}
    # In the order of insertion, of which the table makes sequence numbers.
    for number in sorted(order[-table.keys.capacity :]):
        row = rows[number]
        born = now - row.age - max(passed, 0)
        ended = settings.ttl is not None and (passed < 0 or born + lasts <= now)
        if ended:
            continue
        candidates = tuple(
            Candidate(header.names[name][0], documents[text], header.names[name][1], score)
            for name, text, score in row.candidates
        )
        readable = None
        if row.readable and row.ranked:
            held = document_keys(candidates)
            named = tuple(dict.fromkeys(held))
            table.pool.acquire(named, np.array([vector_of[name] for name in named]))
            readable = table.rank(keys[number], held)
        entry = Entry(
            cache_keys[row.cache_key],
            candidates,
            readable,
            row.complete,
            born,
            0,
            row.ranked,
            row.text,
        )
        expires = NEVER if settings.ttl is None else min(born + lasts, NEVER)
        new = NewEntry(keys[number], entry, row.radius, row.newest, expires)
        slot = table.add(new)
        most = sys.maxsize if entry.complete else len(candidates)
        table.keys.serve(slot, min(row.serves, most))
        table.reach.cap[slot] = row.cap
        row_of[slot] = number
    for slot in sorted(row_of, key=lambda slot: rows[row_of[slot]].stamp):
        table.keys.touch(slot)
    return table
