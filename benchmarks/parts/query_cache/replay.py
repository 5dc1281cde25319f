"""A stream of questions through a query cache in front of an exact store, and what came of it."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parts.vector_search.exact_store import Answers, ExactStore
from ragcache_integrations.query_cache import QueryCache

__all__ = ["POOR", "Replayed", "replay"]

POOR = 0.8


@dataclass(frozen=True)
class Replayed:
    """What a cache did with a stream.

    Attributes:
        queries: Questions asked.
        misses: Answered by the store.
        checks: Hits that were searched for in the store as well, to learn from.
        recall: True k-recall of each hit, ties counted as right.
        proven: Lower bound of it that the cache gave; 0 where it gave none.
        occupancy: Entries in the end.
        lookup_us: Median time of a lookup, in microseconds.
    """

    queries: int
    misses: int
    checks: int
    recall: NDArray[np.float64]
    proven: NDArray[np.float64]
    occupancy: int
    lookup_us: float

    @property
    def calls_saved(self) -> float:
        """Share of the questions that cost no search of the store, checks counted as searches."""
        return 1 - (self.misses + self.checks) / self.queries

    @property
    def hit_rate(self) -> float:
        """Share of the questions that hit."""
        return 1 - self.misses / self.queries

    @property
    def hit_recall(self) -> float | None:
        """Mean recall of the hits."""
        return float(self.recall.mean()) if self.recall.size else None

    @property
    def worst_recall(self) -> float | None:
        """The smallest recall of a hit."""
        return float(self.recall.min()) if self.recall.size else None

    @property
    def poor(self) -> float:
        """Share of the hits with a recall below 0.8."""
        return self.below(POOR)

    @property
    def certified(self) -> float:
        """Share of the hits whose recall is proven to be 1."""
        return float((self.proven >= 1).mean()) if self.proven.size else 0.0

    def below(self, recall: float) -> float:
        """Share of the hits with a smaller recall."""
        return float((self.recall < recall).mean()) if self.recall.size else 0.0


def replay(
    cache: QueryCache[int],
    queries: NDArray[np.float32],
    store: ExactStore,
    answers: Answers,
    *,
    k: int = 5,
) -> Replayed:
    """Ask every question of the cache, and the store where that has no answer.

    Args:
        cache: Reads documents' vectors from the store.
        queries: The questions' embeddings, shape (queries, dim).
        store: Holds the documents.
        answers: What it says for every query.
        k: Documents wanted.

    Raises:
        RuntimeError: The cache asks for more documents than were computed.
    """
    depth = answers.documents.shape[1]
    hits: list[int] = []
    served: list[list[int]] = []
    proven: list[float] = []
    lookups: list[int] = []
    checks = 0
    for number, query in enumerate(queries):
        began = time.perf_counter_ns()
        hit = cache.lookup(query, k)
        lookups.append(time.perf_counter_ns() - began)
        if hit is None or hit.check:
            wanted = cache.fetch_count(k, query)
            if wanted > depth and depth < len(store):
                msg = f"the cache asks for {wanted} documents, only {depth} were computed"
                raise RuntimeError(msg)
            found = store.candidates(answers.documents[number, :wanted])
            if hit is None:
                cache.insert(query, found, k=k)
            else:
                checks += 1
                cache.report(query, k, found)
        if hit is not None:
            hits.append(number)
            served.append([candidate.document for candidate in hit.candidates])
            proven.append(hit.recall_bound or 0.0)
    return Replayed(
        queries=len(queries),
        misses=len(queries) - len(hits),
        checks=checks,
        recall=store.recall(queries[hits], served, answers.pick(hits)),
        proven=np.array(proven),
        occupancy=len(cache),
        lookup_us=statistics.median(lookups) / 1e3,
    )
