"""What is known of a staged index."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.retrievers.stores import StoreFacts, faiss_score

from .core import Indexed

__all__ = ["index_facts"]

_BLOCK = 8192  # vectors read at once


def index_facts(index: Indexed, *, normalised: bool = False) -> StoreFacts:
    """Return what is known of a staged index, for a cache in front of it.

    Args:
        index: Returns the index as it is now.
        normalised: Questions are brought to unit length, as the documents were.
    """
    now = index()
    metric, kind = now.metric, type(now.index).__name__

    def vectors(ids: Sequence[str], /) -> NDArray[np.float32]:
        return index().vectors(ids)

    def lengths() -> tuple[float, float] | None:
        shortest, longest, ids = math.inf, 0.0, index().ids
        for begin in range(0, len(ids), _BLOCK):
            rows = vectors(ids[begin : begin + _BLOCK]).astype(np.float64)
            squares = np.einsum("ij,ij->i", rows, rows)
            shortest = min(shortest, math.sqrt(squares.min()))
            longest = max(longest, math.sqrt(squares.max()))
        return (shortest, longest) if ids else None

    return StoreFacts(
        metric="cosine" if normalised else metric,
        vectors=vectors,
        dim=now.dim,
        exact=now.exact_search,
        doubt="" if now.exact_search else f"its FAISS index, an {kind}, leaves vectors out",
        inexact=not now.exact_search,
        lengths=lengths,
        score=lambda distance: faiss_score(distance, metric),
    )
