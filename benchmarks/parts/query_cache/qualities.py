"""What the query cache saves and what its hits are worth, on streams of real questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from parts.query_cache.replay import Replayed, replay
from parts.stats.tables import Cell, print_table
from parts.traffic.question_streams import Stream
from parts.vector_search.exact_store import Answers, ExactStore
from ragcache_integrations.query_cache import QueryCache, lookup
from ragcache_workbench.simulation.traces import zipf_ranks

__all__ = [
    "DEPTH",
    "Asked",
    "K",
    "Knobs",
    "Result",
    "ask",
    "generated",
    "paraphrase_distances",
    "print_results",
    "run",
    "with_median",
]

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
K = 5
DEPTH = 250
"""Of the answers that are computed beforehand: the largest re-ranking factor, 50, times k."""


@dataclass(frozen=True)
class Knobs:
    """A query cache's settings; defaults are the sweeps' centre.

    ``together=False`` proves from the nearest entry alone, which is no setting of the cache.
    """

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
    unit_vectors: bool = True
    together: bool = True
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
            unit_vectors=self.unit_vectors,
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

    def pick(self, numbers: Sequence[int]) -> Asked:
        """Some of the questions, by their places in the stream."""
        return Asked(self.store, self.queries[list(numbers)], self.answers.pick(numbers))


def ask(stream: Stream, store: ExactStore, embed: Embed) -> Asked:
    """Embed a stream and search for all of it."""
    queries = embed(stream.texts)
    return Asked(store, queries, store.answer(queries, DEPTH))


def paraphrase_distances(stream: Stream, embed: Embed) -> NDArray[np.float64]:
    """L2 distances of a stream's questions to those that they are rephrasings of."""
    differences = embed(stream.texts).astype(np.float64) - embed(stream.originals)
    return np.asarray(np.linalg.norm(differences, axis=1))


def generated(
    stream: Stream, embed: Embed, length: int, *, exponent: float = 0.8, seed: int = 0
) -> NDArray[np.float32]:
    """More questions than were embedded: each is one, moved as a rephrasing of another moved it.

    Args:
        stream: Gives the questions and the moves.
        embed: Embeds it.
        length: How many to draw, by Zipf's law; those that come twice are left out.
        exponent: Zipf's.
        seed: The same seed draws the same ones.

    Returns:
        Unit vectors, at most ``length``.
    """
    rng = np.random.default_rng([seed, 3])
    originals = embed(sorted(set(stream.originals)))
    moves = embed(stream.texts) - embed(stream.originals)
    topics = np.array(zipf_ranks(len(originals), length, exponent, rng))
    drawn = topics * len(moves) + rng.integers(len(moves), size=length)
    first = np.sort(np.unique(drawn, return_index=True)[1])
    rows = originals[topics[first]] + moves[drawn[first] % len(moves)]
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def with_median(distances: NDArray[np.float64], median: float) -> list[int]:
    """Choose questions so that their median distance is as wanted.

    Args:
        distances: As :func:`paraphrase_distances` gives them.
        median: What is wanted.

    Returns:
        The places of all but the nearest, or all but the farthest, in the order of the stream.
    """
    order = np.argsort(distances, kind="stable")
    nearer = int((distances < median).sum())
    kept = order[max(0, 2 * nearer - len(order)) :][: 2 * nearer]
    return sorted(kept.tolist())


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
    with nullcontext() if knobs.together else patch.object(lookup, "_TOGETHER", 1):
        replayed = replay(knobs.cache(asked.store), asked.queries, asked.store, asked.answers, k=K)
    return Result(name, knobs, replayed)


def print_results(title: str, results: Sequence[Result]) -> None:
    """Print results as a table."""
    print_table(title, HEAD, [result.row() for result in results])
