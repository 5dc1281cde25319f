"""Results of a search, whole or in stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["Filter", "Found", "Stage"]

Filter = Mapping[str, Any] | Callable[[Mapping[str, Any]], bool]
"""Which documents count: those whose metadata have these values (of a list: any of them), or those
for whose metadata a function is true."""


class Found(NamedTuple):
    """The nearest documents, nearest first.

    Attributes:
        ids: Ids of the documents; fewer than k where no more were found.
        distances: As FAISS reports them: squared for L2, products for inner product.
    """

    ids: tuple[str, ...]
    distances: tuple[float, ...]


class Stage(NamedTuple):
    """The nearest documents so far, nearest first.

    Attributes:
        ids: Ids of the documents, as in :class:`Found`.
        distances: Their distances, as in :class:`Found`.
        number: Number of the stage, from 1.
        elapsed: Seconds that the search has computed so far. Time in which nobody asked for the
            next stage does not count.
        final: Whether the search is over; then this is its result.
    """

    ids: tuple[str, ...]
    distances: tuple[float, ...]
    number: int
    elapsed: float
    final: bool
