"""A query cache in a file: what is kept of it.

Kept are the queries' embeddings, what was found for them and what has been learnt since, each
document and each of their vectors once. What follows from these is computed again by
:mod:`.restoration`, and counts are not kept.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.archive import write_archive
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.entries import (
    NEVER,
    DocumentKey,
    Entry,
    EntryTable,
    document_keys,
)
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.tolerance import TenantTolerances
from ragcache_integrations.query_cache.types import Candidate

from .key_encoding import encode_key, encode_learning

__all__ = [
    "FORMAT",
    "MEMBERS",
    "Arrays",
    "Encode",
    "Path",
    "Snapshot",
    "agreed",
    "capture",
    "check_arguments",
    "write",
]

T = TypeVar("T")
Path = str | os.PathLike[str]
Arrays = dict[str, NDArray[Any]]
Encode = Callable[[T], Any]

FORMAT = 3
"""Number of the format; another one for every change that an older version misreads."""

MEMBERS = (
    *("header", "documents", "keys", "planes", "stamps", "serves", "ages", "radius", "newest"),
    *("cap", "vectors", "cache_keys", "complete", "ranked", "readable", "counts", "names", "texts"),
    *("scores", "scored"),
)
"""What arrays a file has."""


@dataclass(frozen=True)
class Snapshot(Generic[T]):
    """What a cache held at one moment.

    Attributes:
        entries: In the order of their insertion.
        documents: Those whose vectors are kept.
        arrays: Numbers of the entries and vectors of the documents, in these orders.
        longest: L2 length of the longest document vector seen.
        learning: What tenants have learnt, as JSON can hold it; ``None`` for a fixed tolerance.
        saved_at: The moment, in nanoseconds of the wall clock.
    """

    entries: list[Entry[T]]
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
        msg = f"path must be a string or a path, got {path!r}"
        raise ConfigurationError(msg)
    if function is not None and not callable(function):
        msg = f"encode and decode must be functions of one argument or None, got {function!r}"
        raise ConfigurationError(msg)
    if not isinstance(store_tag, str):
        msg = f"store_tag must be a string, got {store_tag!r}"
        raise ConfigurationError(msg)


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
    arrays: Arrays = {
        "keys": table.keys.keys(slots),
        "planes": table.keys.planes,
        "stamps": table.keys.stamps(slots),
        "serves": table.keys.served(slots),
        "ages": _whole(min(max(now - entry.born, 0), NEVER) for entry in entries),
        "radius": table.reach.radius[slots],
        "newest": table.reach.newest[slots],
        "cap": table.reach.cap[slots],
        "vectors": vectors,
    }
    learning = encode_learning(learnt)
    return Snapshot(entries, documents, arrays, table.longest, learning, time.time_ns())


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
    candidates = [candidate for entry in entries for candidate in entry.candidates]
    for candidate in candidates:
        if id(candidate.document) not in text_of:
            text = _as_text(candidate, encode)
            text_of[id(candidate.document)] = texts.setdefault(text, len(texts))
    scores = [candidate.score for candidate in candidates]
    arrays: Arrays = snapshot.arrays | {
        "cache_keys": _whole(
            cache_keys.setdefault(entry.key, len(cache_keys)) for entry in entries
        ),
        "complete": np.array([entry.complete for entry in entries], dtype=np.bool_),
        "ranked": np.array([entry.ranked for entry in entries], dtype=np.bool_),
        "readable": np.array([entry.readable is not None for entry in entries], dtype=np.bool_),
        "counts": _whole(len(entry.candidates) for entry in entries),
        "names": _whole(
            names.setdefault(document, len(names)) for document in document_keys(candidates)
        ),
        "texts": _whole(text_of[id(candidate.document)] for candidate in candidates),
        "scores": np.array(
            [np.nan if score is None else score for score in scores], dtype=np.float64
        ),
        "scored": np.array([score is not None for score in scores], dtype=np.bool_),
        "documents": _as_bytes(f"[{','.join(texts)}]"),
    }
    header = {
        "format": FORMAT,
        "settings": agreed(settings, store_tag),
        "saved_at": snapshot.saved_at,
        "longest": snapshot.longest,
        "learning": snapshot.learning,
        "cache_keys": [encode_key(key) for key in cache_keys],
        "wordings": [entry.text for entry in entries],
        "names": list(names),
    }
    arrays["header"] = _as_bytes(json.dumps(header))
    write_archive(path, arrays)


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


def _as_bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode("ascii"), dtype=np.uint8)


def _whole(numbers: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(numbers, dtype=np.int64)
