"""Distances: matching a query with the cached keys, and ranking documents for it.

Keys and documents are kept in 32-bit floats. Distances are computed on differences directly, in
64-bit floats, and are therefore exact for the kept vectors up to ``(dim + 2) * 2**-53`` of their
size; rounding a vector to 32 bits moves it by at most ``2**-24`` of its length (for ``cosine``, a
chord by at most ``2**-23``). That is the slack: a key whose true distance differs from the
tolerance by less may fall on either side. Equal vectors are at distance 0 exactly.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.types import Metric

__all__ = ["KeyTable", "prepare", "rank"]

Vectors = NDArray[np.float32]

_FREE = -1
# Rows whose differences are held at once; bounds the memory of a lookup that no shortlist helps.
_BLOCK = 4096


def prepare(vectors: Vectors, metric: Metric) -> Vectors:
    """Return vectors as they are kept: of unit length for ``cosine``, unchanged otherwise.

    Args:
        vectors: Shape (dim,) or (n, dim). A zero vector stays zero.
        metric: The cache's metric.
    """
    if metric != "cosine":
        return vectors
    wide = vectors.astype(np.float64)
    lengths = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
    lengths[lengths == 0] = 1
    return np.asarray(wide / lengths, dtype=np.float32)


def squared_distances(vectors: Vectors, query: Vectors) -> NDArray[np.float64]:
    """Return the squared L2 distances of the rows of ``vectors`` to ``query``."""
    differences = vectors.astype(np.float64) - query.astype(np.float64)
    return np.asarray((differences * differences).sum(axis=1))


def rank(vectors: Vectors, query: Vectors, metric: Metric) -> tuple[list[int], list[float]]:
    """Rank documents for a query, best first; equal ones keep their order.

    Args:
        vectors: The documents' vectors as :func:`prepare` leaves them, shape (n, dim).
        query: The query likewise, shape (dim,).
        metric: The cache's metric.

    Returns:
        The row numbers in rank order, and each one's score in that order: L2 distance, chord of
        the unit vectors (``cosine``), or inner product (``ip``).
    """
    if metric == "ip":
        scores = (vectors.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
        order = np.argsort(-scores, kind="stable")
    else:
        scores = np.sqrt(squared_distances(vectors, query))
        order = np.argsort(scores, kind="stable")
    return order.tolist(), scores[order].tolist()


class KeyTable:
    """The keys of a FLAT cache in preallocated arrays, scanned as a whole (Proximity §3.1).

    Keys are compared in L2, also under inner product; for ``cosine`` they are unit vectors, whose
    L2 distance is the chord. A slot is a row of every array.

    Args:
        capacity: Number of slots.
        dim: Dimension of the keys.
    """

    def __init__(self, capacity: int, dim: int) -> None:
        self._keys = np.empty((capacity, dim), dtype=np.float32)
        self._squares = np.empty(capacity, dtype=np.float64)
        self._partitions = np.full(capacity, _FREE, dtype=np.int64)
        self._serves = np.zeros(capacity, dtype=np.int64)
        self._sequence = np.zeros(capacity, dtype=np.int64)
        self._next = 0
        self._used = 0  # slots from here on were never used

    def put(self, slot: int, key: Vectors, partition: int, serves: int) -> None:
        """Write a key.

        Args:
            slot: Where to.
            key: Shape (dim,), prepared.
            partition: Number of the namespace that the key belongs to.
            serves: The largest k that its entry can answer.
        """
        wide = key.astype(np.float64)
        self._keys[slot] = key
        self._squares[slot] = wide @ wide
        self._partitions[slot] = partition
        self._serves[slot] = serves
        self._sequence[slot] = self._next
        self._next += 1
        self._used = max(self._used, slot + 1)

    def free(self, slot: int) -> None:
        """Forget the slot's key."""
        self._partitions[slot] = _FREE

    def nearest(
        self, query: Vectors, partition: int, k: int, limit: float
    ) -> tuple[int, float] | None:
        """Find the nearest key within a distance; of equally near ones the newest.

        Args:
            query: Shape (dim,), prepared.
            partition: Only keys of this namespace count.
            k: Only keys whose entries serve this k count.
            limit: The largest distance that counts.

        Returns:
            Slot and distance, or ``None``.
        """
        eligible = (self._partitions[: self._used] == partition) & (self._serves[: self._used] >= k)
        if not eligible.any():
            return None
        slots = np.flatnonzero(eligible & self._may_be_nearest(query, eligible, limit))
        best: tuple[float, int] | None = None
        for start in range(0, slots.size, _BLOCK):
            block = slots[start : start + _BLOCK]
            squares = squared_distances(self._keys[block], query)
            smallest = squares.min()
            ties = block[squares == smallest]
            slot = int(ties[self._sequence[ties].argmax()])
            newer = best is not None and self._sequence[slot] > self._sequence[best[1]]
            if best is None or smallest < best[0] or (smallest == best[0] and newer):
                best = (float(smallest), slot)
        if best is None or (distance := math.sqrt(best[0])) > limit:
            return None
        return best[1], distance

    def _may_be_nearest(
        self, query: Vectors, eligible: NDArray[np.bool_], limit: float
    ) -> NDArray[np.bool_]:
        """Shortlist by the expansion of ``|k - q|**2``, never losing the nearest.

        The product of 32-bit vectors is off by at most about ``dim * 2**-24`` of their lengths
        (Higham, Accuracy and Stability of Numerical Algorithms, §3.1), plus what underflows and
        what 64-bit sums round off; the bounds take twice that.
        """
        keys, squares = self._keys[: self._used], self._squares[: self._used]
        wide = query.astype(np.float64)
        square = float(wide @ wide)
        with np.errstate(over="ignore", invalid="ignore"):
            products = (keys @ query).astype(np.float64)
        if not np.isfinite(products[eligible]).all():  # overflow: there is nothing to go by
            return eligible
        dim = query.size
        sums = squares + square
        error = (dim + 4) * (2**-22 * np.sqrt(squares * square) + 2**-51 * sums + 2.0**-120)
        estimates = sums - 2 * products
        upper = (estimates + error)[eligible]
        bound = min(upper.min(), limit * limit * (1 + 2**-50))
        return np.asarray(estimates - error <= bound)
