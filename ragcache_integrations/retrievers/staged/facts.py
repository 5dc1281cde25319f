"""What is known of a staged index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.retrievers.stores import StoreFacts, extreme_lengths, faiss_score

from .core import Indexed

__all__ = ["index_facts"]


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

    return StoreFacts(
        metric="cosine" if normalised else metric,
        vectors=vectors,
        dim=now.dim,
        exact=now.exact_search,
        doubt="" if now.exact_search else f"its FAISS index, an {kind}, leaves vectors out",
        inexact=not now.exact_search,
        lengths=lambda: extreme_lengths(vectors, index().ids),
        score=lambda distance: faiss_score(distance, metric),
    )
