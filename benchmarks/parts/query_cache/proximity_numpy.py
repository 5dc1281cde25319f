"""Proximity's algorithm 1 in plain NumPy, as one would write it from the paper (§3.1-3.3).

The peer of the benchmark: FLAT, and LSH with random hyperplanes and buckets of FLAT caches, LRU,
L2, no re-ranking. Not thread-safe.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["ProximityFlat", "ProximityLSH"]


class ProximityFlat:
    """Every key is compared.

    Args:
        dim: Dimension of the embeddings.
        capacity: The most entries kept.
        tolerance: The largest L2 distance that hits.
    """

    def __init__(self, dim: int, capacity: int, tolerance: float) -> None:
        self._keys = np.empty((capacity, dim), dtype=np.float32)
        self._values: list[object] = []
        self._used = np.zeros(capacity, dtype=np.int64)
        self._clock = 0
        self._tolerance = tolerance

    def __len__(self) -> int:
        return len(self._values)

    def lookup(self, q: NDArray[np.float32], _k: int = 1) -> object | None:
        """The value of the nearest key, if it is within the tolerance."""
        if not self._values:
            return None
        distances = np.linalg.norm(self._keys[: len(self._values)] - q, axis=1)
        slot = int(distances.argmin())
        if distances[slot] > self._tolerance:
            return None
        self._touch(slot)
        return self._values[slot]

    def insert(self, q: NDArray[np.float32], value: object) -> None:
        """Remember a value; the least recently used one makes room."""
        slot = len(self._values)
        if slot < len(self._keys):
            self._values.append(value)
        else:
            slot = int(self._used.argmin())
            self._values[slot] = value
        self._keys[slot] = q
        self._touch(slot)

    def _touch(self, slot: int) -> None:
        self._clock += 1
        self._used[slot] = self._clock


class ProximityLSH:
    """The keys of one bucket are compared.

    Args:
        dim: Dimension of the embeddings.
        num_hyperplanes: L; there are 2**L buckets, allocated when used.
        bucket_capacity: b.
        tolerance: The largest L2 distance that hits.
        seed: Decides the hyperplanes.
    """

    def __init__(
        self, dim: int, num_hyperplanes: int, bucket_capacity: int, tolerance: float, seed: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        self._planes = rng.standard_normal((num_hyperplanes, dim), dtype=np.float32)
        self._powers = 1 << np.arange(num_hyperplanes)
        self._buckets: dict[int, ProximityFlat] = {}
        self._bucket = (dim, bucket_capacity, tolerance)

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def _hash(self, q: NDArray[np.float32]) -> int:
        return int((self._planes @ q >= 0) @ self._powers)

    def lookup(self, q: NDArray[np.float32], _k: int = 1) -> object | None:
        """The value of the nearest key in the query's bucket, if it is within the tolerance."""
        bucket = self._buckets.get(self._hash(q))
        return None if bucket is None else bucket.lookup(q)

    def insert(self, q: NDArray[np.float32], value: object) -> None:
        """Remember a value; the least recently used one of its bucket makes room."""
        code = self._hash(q)
        if code not in self._buckets:
            self._buckets[code] = ProximityFlat(*self._bucket)
        self._buckets[code].insert(q, value)
