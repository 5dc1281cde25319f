"""What the query cache saves and what its hits are worth, on streams of real questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parts.embedded import Embedder
from parts.exact_store import Answers, ExactStore
from parts.question_streams import Stream
from parts.replay import Replayed, replay
from parts.tables import Cell, print_table
from ragcache_integrations.query_cache import QueryCache

__all__ = ["Asked", "Knobs", "Result", "ask", "paraphrase_distance", "print_results", "run"]

K = 5
DEPTH = 250
"""Of the answers that are computed beforehand: the largest re-ranking factor, 50, times k."""


@dataclass(frozen=True)
class Knobs:
    """A query cache's settings; defaults are the sweeps' centre."""

    tolerance: float | Literal["auto"] = 0.5
    index: Literal["flat", "lsh"] = "flat"
    capacity: int = 2000
    num_hyperplanes: int = 8
    bucket_capacity: int = 20
    multi_probe: int = 0
    eviction: Literal["lru", "fifo"] = "lru"
    rerank_factor: int = 20
    max_rerank_factor: int | None = None
    guarantee: Literal["exact"] | None = None
    exact_search: bool = True
    target_recall: float = 0.95
    max_violation: float = 0.01
    start_tolerance: float | None = None
    seed: int = 0

    def cache(self, store: ExactStore) -> QueryCache[int]:
        """An empty cache in front of a store of unit vectors that are searched exactly."""
        capacity = self.capacity
        if self.index == "lsh":
            capacity = self.bucket_capacity << self.num_hyperplanes
        return QueryCache(
            store.dim,
            capacity,
            self.tolerance,
            index=self.index,
            eviction=self.eviction,
            num_hyperplanes=self.num_hyperplanes,
            bucket_capacity=self.bucket_capacity,
            rerank_factor=self.rerank_factor,
            guarantee=self.guarantee,
            vectors=store.read,
            multi_probe=self.multi_probe,
            max_rerank_factor=self.max_rerank_factor,
            exact_search=self.exact_search,
            unit_vectors=True,
            target_recall=self.target_recall,
            max_violation=self.max_violation,
            start_tolerance=self.start_tolerance,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Asked:
    """A stream, embedded, with the true answers of a store.

    Attributes:
        store: The store.
        queries: Embeddings of the questions in the order in which they are asked.
        answers: What the store says.
    """

    store: ExactStore
    queries: NDArray[np.float32]
    answers: Answers


def ask(stream: Stream, store: ExactStore, embed: Embedder) -> Asked:
    """Embed a stream and search for all of it."""
    queries = embed(stream.texts)
    return Asked(store, queries, store.answer(queries, DEPTH))


def paraphrase_distance(stream: Stream, embed: Embedder) -> float:
    """Median L2 distance of a stream's rephrasings to the questions they are rephrasings of."""
    differences = embed(stream.texts).astype(np.float64) - embed(stream.originals)
    return float(np.median(np.linalg.norm(differences, axis=1)))


@dataclass(frozen=True)
class Result:
    """One replay and what was replayed.

    Attributes:
        name: Of the row in its table.
        knobs: The cache's settings.
        replayed: What came of it.
    """

    name: str
    knobs: Knobs
    replayed: Replayed

    def row(self) -> list[Cell]:
        """Cells of the table."""
        one = self.replayed
        return [
            self.name,
            one.calls_saved,
            one.hit_recall,
            one.worst_recall,
            one.poor,
            one.certified,
            one.occupancy,
            one.lookup_us,
        ]

    def as_dict(self) -> dict[str, Any]:
        """The main figures, rounded for JSON."""
        one = self.replayed
        figures = {
            "calls_saved": one.calls_saved,
            "hit_recall": one.hit_recall,
            "worst_recall": one.worst_recall,
            "below_0.8": one.poor,
            "certified": one.certified,
        }
        return {
            name: None if figure is None else round(figure, 5) for name, figure in figures.items()
        }


HEAD = ("", "calls saved", "hit recall", "worst", "< 0.8", "certified", "entries", "lookup us")


def run(asked: Asked, knobs: Knobs, name: str) -> Result:
    """Replay a stream with a new cache."""
    replayed = replay(knobs.cache(asked.store), asked.queries, asked.store, asked.answers, k=K)
    return Result(name, knobs, replayed)


def print_results(title: str, results: Sequence[Result]) -> None:
    """Print results as a table."""
    print_table(title, HEAD, [result.row() for result in results])
