"""One cached answer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.types import Candidate

from .pool import DocumentKey

__all__ = ["NEVER", "Entry", "NewEntry", "Readable", "check_candidates"]

T = TypeVar("T")

NEVER = int(np.iinfo(np.int64).max)
"""When an entry without a lifetime ends, in nanoseconds of the cache's clock."""


class Readable(NamedTuple):
    """Candidates whose vectors are kept.

    Attributes:
        rows: Their rows in the pool of vectors, shape (candidates,).
        documents: The references held there, each once.
        distances: From the key, ascending; negative inner products for ``ip``.
        ranked: Rows in that order.
    """

    rows: NDArray[np.int64]
    documents: tuple[DocumentKey, ...]
    distances: NDArray[np.float64]
    ranked: NDArray[np.int64]


@dataclass(slots=True)
class Entry(Generic[T]):
    """What a search found. Once in the table it is not changed any more, only replaced.

    Attributes:
        key: Namespace, filter and everything else that changes the store's answer.
        candidates: Best first, as the store gave them.
        readable: What is needed to re-rank them; ``None`` where vectors could not be read.
        complete: The store had no more documents.
        born: When it was inserted, in nanoseconds of the cache's clock.
        sequence: Number of the insertion, which the table gives.
        ranked: The candidates are the nearest documents in the order of their distances. If not, a
            document that goes may change the answer though it is not part of it: a search for
            diversity weighs documents against each other that it does not return.
        text: The words of the query, where they are compared, see :class:`.Wording`.
    """

    key: Hashable
    candidates: tuple[Candidate[T], ...]
    readable: Readable | None
    complete: bool
    born: int
    sequence: int
    ranked: bool = True
    text: str = ""


class NewEntry(NamedTuple, Generic[T]):
    """An entry that is to be put into the table.

    Attributes:
        vector: The query's embedding, prepared, shape (dim,).
        entry: Its vectors are referenced in the pool already; the table sets its sequence number.
        radius: Within which of the key every document is known.
        newest: To the nearest document that came after the search.
        expires: When the entry ends, in nanoseconds of the cache's clock.
    """

    vector: NDArray[np.float32]
    entry: Entry[T]
    radius: float
    newest: float
    expires: int = NEVER


def check_candidates(
    candidates: Sequence[Candidate[T]], *, complete: bool
) -> tuple[Candidate[T], ...]:
    """Return the results of a search, if they can be an entry.

    Raises:
        ConfigurationError: An item is no candidate; or there are none, and the store has more.
    """
    checked = tuple(candidates)
    if [candidate for candidate in checked if not isinstance(candidate, Candidate)]:
        msg = f"candidates must be Candidate objects, got {candidates!r}"
        raise ConfigurationError(msg)
    if not checked and not complete:
        msg = "an entry without candidates answers nothing, unless it is complete"
        raise ConfigurationError(msg)
    return checked
