"""What each of several processes does that share a cache and a store; an importable module."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache import Candidate
from ragcache_integrations.query_cache.redis.cache import RedisQueryCache

from .servers import DIM, near, patient, queries

COUNT = 80
K = 3
OPERATIONS = 1200


class SharedStore:
    """Documents in memory that processes share.

    Args:
        memory: The memory: a row for each document, of a number of its content (0: it is not
            there) and its vector.
        lock: Held by whoever reads it, or changes it and has not told so yet.
    """

    def __init__(self, memory: Any, lock: RLock) -> None:
        self.lock = lock
        self.rows: NDArray[np.float64] = np.frombuffer(memory).reshape(COUNT, DIM + 1)

    def candidate(self, row: int) -> Candidate[str]:
        return Candidate(str(row), f"text {row}", fingerprint=f"{row} {self.rows[row, 0]}")

    def documents(
        self, wanted: Sequence[tuple[str, float | None]], /
    ) -> list[Candidate[str] | None]:
        with self.lock:
            rows = [int(one) for one, _ in wanted]
            return [self.candidate(row) if self.rows[row, 0] else None for row in rows]

    def vectors(self, ids: Sequence[str], /) -> NDArray[np.float32]:
        rows = [int(one) for one in ids]
        with self.lock:
            if not self.rows[rows, 0].all():
                raise LookupError("one of them is gone")
            return self.rows[rows, 1:].astype(np.float32)

    def distances(self, query: NDArray[np.float32]) -> NDArray[np.float64]:
        differences = self.rows[:, 1:].astype(np.float32).astype(np.float64) - query
        found: NDArray[np.float64] = np.sqrt((differences**2).sum(axis=1))
        found[self.rows[:, 0] == 0] = np.inf
        return found

    def search(self, query: NDArray[np.float32], count: int) -> list[Candidate[str]]:
        with self.lock:
            distances = self.distances(query)
            order = np.argsort(distances, kind="stable")[:count].tolist()
            return [self.candidate(row) for row in order if np.isfinite(distances[row])]


def work(
    url: str, memory: Any, lock: RLock, together: Barrier, seed: int, tolerance: float
) -> dict[str, Any]:
    """Ask and change for a while; return what happened, and what was wrong."""
    store = SharedStore(memory, lock)
    cache = RedisQueryCache[str](
        patient(url), DIM, tolerance, num_hyperplanes=2, vectors=store.vectors,
        documents=store.documents, exact_search=True, tag="two processes",
    )  # fmt: skip
    cache.lookup(queries(1)[0], K, "nobody's key")
    together.wait(100)
    rng = np.random.default_rng(seed)
    base = queries(12)
    wrong: list[str] = []
    counts = {"hits": 0, "proven": 0}
    for step in range(OPERATIONS):
        if rng.random() < 0.04:
            change(store, cache, rng)
        query = near(base[rng.integers(12)], float(rng.choice([0, 0.05, 0.2])), step % 4)
        with lock:  # nobody changes the store between the answer and the check of it
            hit = cache.lookup(query, K)
            if hit is not None:
                counts["hits"] += 1
                distances = store.distances(query)
                worst = np.sort(distances)[K - 1] * (1 + 1e-6)
                ids = [int(candidate.id) for candidate in hit.candidates]
                if hit.distance > tolerance or not np.isfinite(distances[ids]).all():
                    wrong.append(f"{ids} at {hit.distance}")
                right = sum(distances[one] <= worst for one in ids) / K
                if right < (hit.recall_bound or 0):
                    wrong.append(f"{right} instead of {hit.recall_bound}")
                counts["proven"] += hit.recall_bound == 1.0
        if hit is None:
            version = cache.store_version
            found = store.search(query, 4 * K)
            cache.insert(query, found, store_version=version)
    stats = cache.stats()
    cache.close()
    return {"wrong": wrong, **counts, "failed": stats.failed + stats.skipped}


def change(store: SharedStore, cache: RedisQueryCache[str], rng: np.random.Generator) -> None:
    row = int(rng.integers(COUNT))
    with store.lock:
        was = store.rows[row, 0]
        if was and rng.random() < 0.3:
            store.rows[row, 0] = 0
            cache.documents_removed([str(row)])
            return
        store.rows[row, 1:] = near(queries(12)[rng.integers(12)], float(rng.choice([0.1, 1, 4])))
        store.rows[row, 0] = rng.integers(1, 2**40)
        if was:
            cache.documents_updated([str(row)])
        else:
            cache.documents_added([str(row)])


def run(results: Queue[dict[str, Any]], *arguments: Any) -> None:
    results.put(work(*arguments))
