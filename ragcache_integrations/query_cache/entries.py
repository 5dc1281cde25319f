"""One cached answer."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.pool import DocumentKey
from ragcache_integrations.query_cache.types import Candidate

__all__ = ["Entry", "Readable"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Readable:
    """Candidates whose vectors are kept.

    Attributes:
        rows: Theirs in the pool.
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
        key: Namespace, filter and whatever else changes the store's answer.
        candidates: Best first, as the store gave them.
        readable: What is needed to re-rank them; ``None`` where vectors could not be read.
        complete: The store had no more documents.
        born: When it was inserted, in nanoseconds of the cache's clock.
        sequence: Number of the insertion, which the table gives.
    """

    key: Hashable
    candidates: tuple[Candidate[T], ...]
    readable: Readable | None
    complete: bool
    born: int
    sequence: int
