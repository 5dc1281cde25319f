"""Small indexes of every kind, and FAISS's own answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.vector_search import Found, Stage, StagedIndex

Vectors = NDArray[np.float32]

DIM = 12
COUNT = 1500


def cloud(count: int, seed: int, dim: int = DIM) -> Vectors:
    """Vectors in clusters, as embeddings are."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(12, dim)) * 2
    rows = centres[rng.integers(12, size=count)] + rng.normal(size=(count, dim))
    return rows.astype(np.float32)


def _ivf(inner: Any, vectors: Vectors) -> Any:
    inner.cp.niter = 3
    inner.cp.min_points_per_centroid = 1
    inner.train(vectors)
    inner.add(vectors)
    inner.nprobe = 12
    return inner


def flat(vectors: Vectors, metric: int = faiss.METRIC_L2) -> Any:
    index = faiss.IndexFlat(vectors.shape[1], metric)
    index.add(vectors)
    return index


def ivf(vectors: Vectors, metric: int = faiss.METRIC_L2) -> Any:
    dim = vectors.shape[1]
    return _ivf(faiss.IndexIVFFlat(faiss.IndexFlat(dim, metric), dim, 24, metric), vectors)


def ivf_pq(vectors: Vectors, metric: int = faiss.METRIC_L2) -> Any:
    dim = vectors.shape[1]
    quantiser = faiss.IndexFlat(dim, metric)
    return _ivf(faiss.IndexIVFPQ(quantiser, dim, 24, 4, 5, metric), vectors)


def ivf_sq(vectors: Vectors, metric: int = faiss.METRIC_L2) -> Any:
    dim, bits = vectors.shape[1], faiss.ScalarQuantizer.QT_8bit
    quantiser = faiss.IndexFlat(dim, metric)
    return _ivf(faiss.IndexIVFScalarQuantizer(quantiser, dim, 24, bits, metric), vectors)


def hnsw(vectors: Vectors, metric: int = faiss.METRIC_L2, *, links: int = 8) -> Any:
    index = faiss.IndexHNSWFlat(vectors.shape[1], links, metric)
    index.add(vectors)
    index.hnsw.efSearch = 32
    return index


def transformed(vectors: Vectors, metric: int = faiss.METRIC_L2) -> Any:
    rotation = faiss.RandomRotationMatrix(vectors.shape[1], vectors.shape[1])
    rotation.init(3)
    quantiser = faiss.IndexFlat(vectors.shape[1], metric)
    inner = faiss.IndexIVFFlat(quantiser, vectors.shape[1], 24, metric)
    inner.cp.niter, inner.cp.min_points_per_centroid, inner.nprobe = 3, 1, 12
    whole = faiss.IndexPreTransform(rotation, inner)
    whole.train(vectors)
    whole.add(vectors)
    return whole


MAKERS: dict[str, Callable[..., Any]] = {
    "flat": flat,
    "ivf": ivf,
    "ivf_pq": ivf_pq,
    "ivf_sq": ivf_sq,
    "hnsw": hnsw,
    "transformed": transformed,
}
# In a graph of few links some vectors may not be reached; in one of so many they are.
CONNECTED = MAKERS | {"hnsw": partial(hnsw, links=200)}
METRICS = {"l2": faiss.METRIC_L2, "ip": faiss.METRIC_INNER_PRODUCT}


def names(count: int) -> list[str]:
    return [f"d{number}" for number in range(count)]


def staged(kind: str, vectors: Vectors | None = None, **options: Any) -> StagedIndex:
    rows = cloud(COUNT, 1) if vectors is None else vectors
    return StagedIndex(MAKERS[kind](rows), names(len(rows)), **options)


def last(stages: Sequence[Stage]) -> Stage:
    """Check what holds for any stages, and return the final one."""
    assert [one.number for one in stages] == list(range(1, len(stages) + 1))
    assert [one.final for one in stages] == [False] * (len(stages) - 1) + [True]
    spent = [stage.elapsed for stage in stages]
    assert spent == sorted(spent)
    assert spent[0] > 0
    return stages[-1]


def assert_same(one: Found | Stage, other: Found | Stage) -> None:
    """The same documents, but that those of the same distance may stand for each other."""
    assert len(one.ids) == len(other.ids)
    assert len(set(one.ids)) == len(one.ids)
    np.testing.assert_allclose(one.distances, other.distances, rtol=2e-5, atol=2e-5)
    if one.ids != other.ids:
        for left, right, distance in zip(one.ids, other.ids, other.distances, strict=True):
            ties = np.isclose(other.distances, distance, rtol=2e-5, atol=2e-5).sum()
            edge = np.isclose(other.distances[-1], distance, rtol=2e-5, atol=2e-5)
            assert left == right or ties > 1 or edge


def share_same(pairs: Sequence[tuple[Found | Stage, Found]]) -> float:
    """Share of the pairs with the same documents in the same order, or at the same distances."""
    same = [
        one.ids == other.ids
        or (
            len(one.ids) == len(other.ids)
            and np.allclose(one.distances, other.distances, rtol=1e-5, atol=1e-6)
        )
        for one, other in pairs
    ]
    return float(np.mean(same))
