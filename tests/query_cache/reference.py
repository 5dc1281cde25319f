"""A store, and what a search of it should say: the slow way, in 64-bit floats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache import Candidate, Metric

Vector = NDArray[np.float32]
Wide = NDArray[np.float64]


def unit(vector: Vector) -> Vector:
    """Return a vector of length 1; zero stays zero."""
    wide = vector.astype(np.float64)
    length = math.sqrt((wide * wide).sum())
    return (wide / length).astype(np.float32) if length else vector


def distance(one: Vector, other: Vector) -> float:
    difference = one.astype(np.float64) - other.astype(np.float64)
    return math.sqrt((difference * difference).sum())


def candidates(ids: Sequence[str]) -> list[Candidate[str]]:
    return [Candidate(one, f"text {one}") for one in ids]


class Store:
    """Documents, and their search by FAISS in 32-bit floats.

    Args:
        metric: How documents are ranked. For ``cosine`` the store holds unit vectors and searches
            by their products, as is usual.
        vectors: The documents' vectors by id.
    """

    def __init__(self, metric: Metric, vectors: Mapping[str, Vector]) -> None:
        self.metric = metric
        self.vectors: dict[str, Vector] = {}
        for one, vector in vectors.items():
            self.put(one, vector)

    def put(self, one: str, vector: Vector) -> None:
        self.vectors[one] = unit(vector) if self.metric == "cosine" else vector

    def remove(self, one: str) -> None:
        del self.vectors[one]

    def read(self, ids: Sequence[str]) -> Vector:
        """Read vectors; what a cache takes as ``vectors``."""
        return np.array([self.vectors[one] for one in ids], dtype=np.float32)

    def search(self, query: Vector, count: int, batch: int = 1) -> list[str] | None:
        """Return the best documents' ids, ``None`` where the numbers overflow.

        Args:
            query: The embedding.
            count: How many are wanted.
            batch: How many queries are searched at once; from 20 on, FAISS computes differently.
        """
        ids = list(self.vectors)
        if not ids:
            return []
        queries = np.tile(unit(query) if self.metric == "cosine" else query, (batch, 1))
        dim = queries.shape[1]
        index = faiss.IndexFlatL2(dim) if self.metric == "l2" else faiss.IndexFlatIP(dim)
        index.add(np.array([self.vectors[one] for one in ids]))
        count = min(count, len(ids))
        values, rows = index.search(queries, count)
        if rows[-1].min() < 0 or not np.isfinite(values[-1]).all():
            return None
        return [ids[row] for row in rows[-1]]

    def values(self, query: Vector, ids: Sequence[str] | None = None) -> dict[str, float]:
        """Return how far documents are: distances, chords, or negative products."""
        wide = query.astype(np.float64)
        if self.metric == "cosine":
            wide = _unit(wide)
        found = {}
        for one in self.vectors if ids is None else ids:
            vector = self.vectors[one].astype(np.float64)
            if self.metric == "cosine":
                vector = _unit(vector)
            if self.metric == "ip":
                found[one] = -float((vector * wide).sum())
            else:
                found[one] = math.sqrt(((vector - wide) ** 2).sum())
        return found

    def ranked(self, query: Vector) -> list[str]:
        """Return all ids, the best first."""
        values = self.values(query)
        return sorted(values, key=values.__getitem__)


def _unit(wide: Wide) -> Wide:
    return wide / (math.sqrt((wide * wide).sum()) or 1.0)
