"""A query cache out of a file: what is computed again, and what a cache must be to have it.

Hashes and distances are recomputed, because the current kernels may differ from the ones that saved
the file.

Ages: a process's clock says nothing to the next one. An entry is as old as it was, and older by
the time that has passed by the wall clock. Where that is negative it is not known: the entry is no
younger than it was, and with a ``ttl`` it has ended.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.archive import MALFORMED, read_archive
from ragcache_integrations.core.checks import as_number, check_int
from ragcache_integrations.errors import CacheFileError
from ragcache_integrations.query_cache.certificates import are_unit
from ragcache_integrations.query_cache.entries import (
    NEVER,
    Entry,
    EntryTable,
    NewEntry,
    Readable,
    document_keys,
)
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.tolerance import TenantTolerances
from ragcache_integrations.query_cache.types import Candidate
from ragcache_integrations.query_cache.validation import check_vectors

from .key_encoding import decode_key, decode_learning
from .writing import FORMAT, MEMBERS, Arrays, Path, agreed

__all__ = ["Decode", "read"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
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
    """Read what :func:`.writing.write` wrote.

    Args:
        path: The file.
        settings: Those of the cache that is to have it.
        kernels: The module of compiled or plain loops.
        now: What that cache's clock says.
        decode: Turns what ``encode`` returned into the document; ``None`` where it is that.
        store_tag: What :func:`.writing.write` was given.
        learnt: That cache's tolerances; ``None`` if its tolerance is fixed.

    Returns:
        The entries, the last used ones if there is no room for all; and what has been learnt, if
        the cache learns for the same targets.

    Raises:
        CacheFileError: It does not hold a cache like that, or ``decode`` raised something.
        OSError: The file cannot be read.
    """
    arrays = read_archive(path, MEMBERS)
    try:
        header = json.loads(arrays["header"].tobytes())
        _check_header(header, agreed(settings, store_tag))
        documents = _documents(arrays, decode)
        table = _table(header, _Rows(header, arrays, documents, settings), settings, kernels, now)
        learning = header["learning"]
        restored = decode_learning(learning, learnt)
    except MALFORMED as error:
        reason = str(error) if isinstance(error, ValueError) else repr(error)
        msg = f"{path} holds no query cache for this one: {reason[:_LONGEST_REASON]}"
        raise CacheFileError(msg) from error
    if learning is not None and learnt is not None and restored is None:
        logger.info("The saved tolerances are not used: they were learnt for other targets")
    return table, restored


def _check_header(header: dict[str, Any], expected: dict[str, object]) -> None:
    if header["format"] != FORMAT:
        msg = f"its format must be {FORMAT}, got {header['format']!r}"
        raise ValueError(msg)
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
        msg = f"its documents must be a list, got a {type(saved).__name__}"
        raise TypeError(msg)
    if decode is None:
        return saved
    try:
        return [decode(document) for document in saved]
    except Exception as error:
        msg = f"decode raised {error!r}"
        raise ValueError(msg) from error


class _Rows(Generic[T]):
    """The columns of a file, of the right types and lengths, and without a number out of range."""

    def __init__(
        self, header: dict[str, Any], arrays: Arrays, documents: list[T], settings: Settings
    ) -> None:
        self.planes = check_vectors(
            arrays["planes"], settings.planes, settings.dim, "the hyperplanes"
        )
        self.keys = check_vectors(arrays["keys"], None, settings.dim, "the keys")
        self.vectors = check_vectors(arrays["vectors"], None, settings.dim)
        _check_lengths(self.keys, self.vectors, settings)
        self.names = _names(header["names"])
        self.vector_of = {
            document: row for row, document in enumerate(self.names[: len(self.vectors)])
        }
        self.documents = documents
        cache_keys = [decode_key(key) for key in header["cache_keys"]]
        self.wordings = header["wordings"]

        def column(name: str, kind: type[np.generic], length: int) -> NDArray[Any]:
            array = arrays[name]
            if array.dtype != kind or array.shape != (length,):
                msg = f"{name} must be {length} of {kind.__name__}, got {array.shape} {array.dtype}"
                raise ValueError(msg)
            return array

        def numbers(name: str, length: int, below: int) -> list[int]:
            array = column(name, np.int64, length)
            if length and not 0 <= array.min() <= array.max() < below:
                msg = f"{name} must be from 0 and below {below}"
                raise ValueError(msg)
            listed: list[int] = array.tolist()
            return listed

        def distances(name: str, length: int) -> NDArray[np.float64]:
            array = column(name, np.float64, length)
            if np.isnan(array).any():
                msg = f"{name} must be numbers, got NaN"
                raise ValueError(msg)
            return array

        count = len(self.keys)
        if len(self.wordings) != count or not all(isinstance(text, str) for text in self.wordings):
            msg = f"its wordings must be {count} strings"
            raise ValueError(msg)
        self.stamps = column("stamps", np.int64, count)
        self.serves = numbers("serves", count, NEVER + 1)
        self.ages = numbers("ages", count, NEVER + 1)
        self.radius, self.newest, self.cap = (
            distances(name, count) for name in ("radius", "newest", "cap")
        )
        self.cache_keys = [
            cache_keys[number] for number in numbers("cache_keys", count, len(cache_keys))
        ]
        self.complete = column("complete", np.bool_, count).tolist()
        self.ranked = column("ranked", np.bool_, count).tolist()
        self.readable = column("readable", np.bool_, count).tolist()
        self.ends = np.cumsum([0, *numbers("counts", count, len(arrays["names"]) + 1)]).tolist()
        total = self.ends[-1]
        self.name_of = numbers("names", total, len(self.names))
        self.text_of = numbers("texts", total, len(documents))
        self.scores = column("scores", np.float64, total).tolist()
        self.scored = column("scored", np.bool_, total).tolist()

    def candidates(self, row: int) -> tuple[Candidate[T], ...]:
        """Return the candidates of an entry."""
        return tuple(
            self._candidate(number) for number in range(self.ends[row], self.ends[row + 1])
        )

    def _candidate(self, number: int) -> Candidate[T]:
        document_id, fingerprint = self.names[self.name_of[number]]
        score = self.scores[number] if self.scored[number] else None
        return Candidate(document_id, self.documents[self.text_of[number]], fingerprint, score)


def _check_lengths(
    keys: NDArray[np.float32], vectors: NDArray[np.float32], settings: Settings
) -> None:
    """Check what proofs go by: no key is zero, and unit vectors have length 1."""
    if not keys.any(axis=1).all():
        msg = "the keys must not be zero"
        raise ValueError(msg)
    if settings.unit and not (are_unit(keys).all() and are_unit(vectors).all()):
        msg = "the keys and the documents' vectors must have length 1"
        raise ValueError(msg)


def _names(saved: Any) -> list[tuple[str, str]]:
    """Return the documents' ids and fingerprints, no two the same."""
    names = [(document_id, fingerprint) for document_id, fingerprint in saved]
    if not all(isinstance(part, str) for name in names for part in name):
        msg = "its names must be pairs of strings"
        raise TypeError(msg)
    if len(set(names)) < len(names):
        msg = "its names must differ from each other"
        raise ValueError(msg)
    return names


def _table(
    header: dict[str, Any], rows: _Rows[T], settings: Settings, kernels: ModuleType, now: int
) -> EntryTable[T]:
    longest = as_number(header["longest"])
    if not 0 <= longest < math.inf:
        msg = f"longest must be a length, got {header['longest']!r}"
        raise ValueError(msg)
    longest = max(longest, settings.longest or 0.0)
    table = EntryTable[T](settings, kernels, longest, rows.planes)
    passed = time.time_ns() - check_int("saved_at", header["saved_at"], 0)
    lasts = NEVER if settings.lifetime is None else settings.lifetime
    row_of: dict[int, int] = {}
    # In the order of insertion, of which the table makes sequence numbers.
    for row in np.sort(rows.stamps.argsort()[-table.keys.capacity :]).tolist():
        born = now - rows.ages[row] - max(passed, 0)
        ended = settings.ttl is not None and (passed < 0 or born + lasts <= now)
        if ended:
            continue
        candidates = rows.candidates(row)
        readable = _readable(table, rows, row, candidates)
        entry = Entry(
            rows.cache_keys[row],
            candidates,
            readable,
            rows.complete[row],
            born,
            0,
            rows.ranked[row],
            rows.wordings[row],
        )
        expires = NEVER if settings.ttl is None else min(born + lasts, NEVER)
        new = NewEntry(rows.keys[row], entry, rows.radius[row], rows.newest[row], expires)
        slot = table.add(new)
        table.keys.serve(
            slot, min(rows.serves[row], sys.maxsize if entry.complete else len(candidates))
        )
        table.reach.cap[slot] = rows.cap[row]
        row_of[slot] = row
    for slot in sorted(row_of, key=lambda slot: int(rows.stamps[row_of[slot]])):
        table.keys.touch(slot)
    return table


def _readable(
    table: EntryTable[T], saved: _Rows[T], row: int, candidates: tuple[Candidate[T], ...]
) -> Readable | None:
    if not (saved.readable[row] and saved.ranked[row]):
        return None
    documents = document_keys(candidates)
    held = tuple(dict.fromkeys(documents))
    table.pool.acquire(held, saved.vectors[[saved.vector_of[document] for document in held]])
    return table.rank(saved.keys[row], documents)
