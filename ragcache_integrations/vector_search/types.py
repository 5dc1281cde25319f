"""What a search gives, whole or in stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Filter", "Found", "Stage"]

Filter = Mapping[str, Any] | Callable[[Mapping[str, Any]], bool]
"""Which documents count: those whose metadata have these values (of a list: any of them), or those
for whose metadata a function is true."""


@dataclass(frozen=True, slots=True)
class Found:
    """The nearest documents, nearest first.

    Attributes:
        ids: Theirs; fewer than k where no more were found.
        distances: As FAISS reports them: squared for L2, products for inner product.
    """

    ids: tuple[str, ...]
    distances: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Stage(Found):
    """The nearest documents so far.

    Attributes:
        number: From 1.
        elapsed: Seconds that the search has computed so far. Time in which nobody asked for the
            next stage does not count.
        final: Whether the search is over; then this is its result.
    """

    number: int
    elapsed: float
    final: bool
