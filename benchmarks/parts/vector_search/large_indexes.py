"""FAISS indexes of many vectors, built once and kept in the user's cache folder.

The vectors are MiniLM embeddings of real passages, as many as there are, and generated neighbours
of them beyond (``parts/vector_search/exact_store.py``).
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from parts.vector_search.exact_store import pad
from ragcache_integrations.resources.cache import build_once, cache_home

__all__ = ["KINDS", "Kind", "clusters", "large_index"]

Kind = Literal["ivf", "ivf_pq", "hnsw"]
KINDS: tuple[Kind, ...] = ("ivf", "ivf_pq", "hnsw")

PER_CENTROID = 48  # training vectors per cluster; FAISS warns below 39
BLOCK = 50_000
LINKS, BUILD_BREADTH = 16, 40  # FAISS calls them M and efConstruction; the latter is its default
_VERSION = 1


def clusters(size: int) -> int:
    """Clusters of an IVF index: 1024 as in RAGCache §7, fewer for few vectors."""
    return min(1024, max(16, size // 100))


def large_index(kind: Kind, size: int, real: NDArray[np.float32], seed: int = 0) -> Any:
    """Load an index, or build it first: minutes for a graph of a million vectors.

    Args:
        kind: Of 1024 clusters, flat or product-quantised (48 bytes per vector); or a graph.
        size: How many vectors.
        real: The real ones, of unit length, shape (n, d).
        seed: Of the generated ones.
    """
    content = hashlib.sha256(real.tobytes()).hexdigest()[:16]
    name = f"index-{_VERSION}-{kind}-{size}-{seed}-{content}"

    def build(folder: Path) -> None:
        vectors = pad(real, size, seed)[:size]
        np.random.default_rng(seed).shuffle(vectors)
        began = time.perf_counter()
        faiss.write_index(_build(kind, vectors), str(folder / "index.faiss"))
        print(f"built {kind}, {size} vectors, in {time.perf_counter() - began:.0f} s", flush=True)

    folder = build_once(cache_home() / "benchmarks" / name, build)
    return faiss.read_index(str(folder / "index.faiss"))


def _build(kind: Kind, vectors: NDArray[np.float32]) -> Any:
    dim = vectors.shape[1]
    index: Any
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dim, LINKS)
        index.hnsw.efConstruction = BUILD_BREADTH
    else:
        count = clusters(len(vectors))
        quantiser = faiss.IndexFlatL2(dim)
        if kind == "ivf":
            index = faiss.IndexIVFFlat(quantiser, dim, count)
        else:
            index = faiss.IndexIVFPQ(quantiser, dim, count, dim // 8, 8)
            index.pq.cp.niter = 10
        index.cp.niter = 10
        index.train(vectors[: max(PER_CENTROID * count, 256 * 40)])
    for start in range(0, len(vectors), BLOCK):
        index.add(vectors[start : start + BLOCK])
    return index
