"""What new documents do to entries that do not know them.

A new document x at distance a from an entry's key can enter the top k of a query at distance delta
from the key only if ``a - delta < r_k + delta``, r_k being the distance from the key to its k-th
document. So the entry still serves k to all queries with ``2 * delta <= a - r_k``; and it knows
every document only within ``min(R, a)`` from now on. Under inner product, distances are negative
products and delta counts B times, B no less than any document's length: ``x @ q`` and the k-th
score can each change by ``delta * B``.

Dropping every entry with ``a < max(R, r_k + 2 * tolerance)`` would be right, too, and forget what
questions nearer to the key may still have.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.types import Metric

__all__ = ["Reach", "nearest_new", "serves"]

Vectors = NDArray[np.float32]

_BLOCK = 4096  # keys compared with the new documents at once


class Reach:
    """How far every entry's knowledge reaches, by slot.

    Attributes:
        radius: Every document within it is known.
        newest: To the nearest document that came after the entry.
        cap: The largest distance of a query that the entry may answer unproven.
    """

    def __init__(self) -> None:
        self.radius = np.empty(0)
        self.newest = np.empty(0)
        self.cap = np.empty(0)

    def put(self, slot: int, radius: float, newest: float) -> None:
        """Note a new entry."""
        if slot >= len(self.radius):
            size = max(slot + 1, 2 * len(self.radius), 16)
            for name in ("radius", "newest", "cap"):
                kept = getattr(self, name)
                longer = np.full(size, np.inf)
                longer[: len(kept)] = kept
                setattr(self, name, longer)
        self.radius[slot], self.newest[slot], self.cap[slot] = radius, newest, np.inf

    def lower(self, slots: NDArray[np.intp], distances: NDArray[np.float64]) -> NDArray[np.intp]:
        """Note new documents at some distances from entries; return which of them knew that far."""
        self.newest[slots] = np.minimum(self.newest[slots], distances)
        inside = slots[distances < self.radius[slots]]
        self.radius[slots] = np.minimum(self.radius[slots], distances)
        return inside


def nearest_new(keys: Vectors, vectors: Vectors, metric: Metric) -> NDArray[np.float64]:
    """Return for every key the distance to the nearest of some documents, or a little less.

    Products of 32-bit vectors are off by at most about ``dim * 2**-24`` of their lengths; twice
    that is taken off.

    Args:
        keys: Shape (n, dim), prepared.
        vectors: Shape (m, dim), prepared, m at least 1.
        metric: How the cache ranks documents.

    Returns:
        Shape (n,); negative inner products for ``ip``.
    """
    nearest = np.empty(len(keys))
    squares = (vectors.astype(np.float64) ** 2).sum(axis=1)
    off = (keys.shape[1] + 4) * 2.0**-22
    for begin in range(0, len(keys), _BLOCK):
        block = keys[begin : begin + _BLOCK]
        own = (block.astype(np.float64) ** 2).sum(axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            products = (block @ vectors.T).astype(np.float64)
            slack = off * np.sqrt(own[:, None] * squares) + 2.0**-120
            if metric == "ip":
                low = -products - slack
            else:
                low = np.sqrt(np.maximum(own[:, None] + squares - 2 * (products + slack), 0))
        low[~np.isfinite(low)] = -np.inf if metric == "ip" else 0.0  # overflow: nothing is known
        nearest[begin : begin + _BLOCK] = low.min(axis=1)
    return nearest


def serves(distances: NDArray[np.float64], newest: float) -> int:
    """Return how many of an entry's documents no new one comes before, for its own query.

    Args:
        distances: From the key, ascending.
        newest: To the nearest new document.
    """
    return int(np.searchsorted(distances, newest, side="left"))
