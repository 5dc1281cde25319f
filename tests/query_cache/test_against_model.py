"""The cache does what a naive model of it does, whatever the order of calls."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from numpy.typing import NDArray

from ragcache_integrations.query_cache import Candidate, Metric, QueryCache
from ragcache_integrations.query_cache.eviction import Eviction

Vector = NDArray[np.float32]
Point = tuple[int, ...]

DIM = 3
LATTICE = st.tuples(*[st.integers(-2, 2)] * DIM).filter(any)
Key = str | tuple[str, int] | None
KEYS = st.sampled_from([None, "tenant", ("tenant", 1)])
# Lattice points make ties and equal vectors common.
DOCUMENTS = {
    str(number): np.array(
        [(number * 7) % 5 - 2, (number * 3) % 5 - 2, number % 3 - 1], dtype=np.float32
    )
    for number in range(12)
}
IDS = st.lists(st.sampled_from(sorted(DOCUMENTS)), max_size=6)


def unit(vector: Vector) -> Vector:
    wide = vector.astype(np.float64)
    length = math.sqrt((wide * wide).sum())
    return (wide / length).astype(np.float32) if length else vector


def distance(one: Vector, other: Vector) -> float:
    difference = one.astype(np.float64) - other.astype(np.float64)
    return math.sqrt((difference * difference).sum())


@dataclass(eq=False)
class Row:
    query: Vector
    key: Key
    ids: list[str]
    serves: float
    inserted: int
    stamp: int


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        capacity=st.integers(1, 4),
        tolerance=st.sampled_from([0.0, 0.3, 1.0, math.sqrt(2), 2.0, math.inf]),
        metric=st.sampled_from(["l2", "cosine", "ip"]),
        eviction=st.sampled_from(["lru", "fifo"]),
        reads_vectors=st.booleans(),
    )
    def make(
        self,
        capacity: int,
        tolerance: float,
        metric: Metric,
        eviction: Eviction,
        reads_vectors: bool,
    ) -> None:
        self.cache = QueryCache[str](
            DIM,
            capacity,
            tolerance,
            metric=metric,
            eviction=eviction,
            vectors=(lambda ids: np.stack([DOCUMENTS[one] for one in ids]))
            if reads_vectors
            else None,
        )
        self.capacity, self.tolerance = capacity, tolerance
        self.metric, self.eviction, self.reads_vectors = metric, eviction, reads_vectors
        self.rows: list[Row] = []
        self.clock = 0
        self.version = 0
        self.counts = dict.fromkeys(("lookups", "hits", "insertions", "evictions", "dropped"), 0)

    def prepared(self, vector: Point | Vector) -> Vector:
        array = np.array(vector, dtype=np.float32)
        return unit(array) if self.metric == "cosine" else array

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def ranked(self, row: Row, query: Vector) -> tuple[list[str], list[float]]:
        documents = [self.prepared(DOCUMENTS[one]) for one in row.ids]
        if self.metric == "ip":
            scores = [float((d.astype(np.float64) * query).sum()) for d in documents]
            order = sorted(range(len(scores)), key=lambda index: -scores[index])
        else:
            scores = [distance(d, query) for d in documents]
            order = sorted(range(len(scores)), key=lambda index: scores[index])
        return [row.ids[index] for index in order], [scores[index] for index in order]

    @rule(vector=LATTICE, key=KEYS, ids=IDS, complete=st.booleans(), stale=st.booleans())
    def insert(self, vector: Point, key: Key, ids: list[str], complete: bool, stale: bool) -> None:
        complete = complete or not ids
        version = self.version - 1 if stale and self.version else self.version
        inserted = self.cache.insert(
            vector,
            [Candidate(one, f"text {one}") for one in ids],
            key,
            complete=complete,
            store_version=version,
        )
        assert inserted == (version == self.version)
        if not inserted:
            self.counts["dropped"] += 1
            return
        self.counts["insertions"] += 1
        query = self.prepared(vector)
        same = [r for r in self.rows if r.key == key and distance(r.query, query) == 0]
        if same:
            self.rows.remove(same[0])
        elif len(self.rows) == self.capacity:
            self.rows.remove(min(self.rows, key=lambda row: row.stamp))
            self.counts["evictions"] += 1
        now = self.tick()
        self.rows.append(Row(query, key, ids, math.inf if complete else len(ids), now, now))

    @rule(vector=LATTICE, key=KEYS, k=st.integers(1, 8))
    def lookup(self, vector: Point, key: Key, k: int) -> None:
        self.counts["lookups"] += 1
        query = self.prepared(vector)
        rows = [row for row in self.rows if row.key == key and row.serves >= k]
        hit = self.cache.lookup(vector, k, key)
        best = min(rows, key=lambda r: (distance(r.query, query), -r.inserted), default=None)
        if best is None or distance(best.query, query) > self.tolerance:
            assert hit is None
            return
        assert hit is not None
        self.counts["hits"] += 1
        if self.eviction == "lru":
            best.stamp = self.tick()
        near = distance(best.query, query)
        assert hit.distance == near
        assert hit.recall_bound is None
        assert hit.age >= 0
        assert hit.reranked == (self.reads_vectors and near > 0)
        ids, scores = self.ranked(best, query) if hit.reranked else (best.ids, None)
        assert [one.id for one in hit.candidates] == ids[:k]
        assert [one.document for one in hit.candidates] == [f"text {one}" for one in ids[:k]]
        assert hit.scores == (None if scores is None else tuple(scores[:k]))

    @rule(vector=LATTICE, key=KEYS)
    def delete(self, vector: Point, key: Key) -> None:
        query = self.prepared(vector)
        same = [r for r in self.rows if r.key == key and distance(r.query, query) == 0]
        assert self.cache.delete(vector, key) == bool(same)
        self.rows = [row for row in self.rows if row not in same]

    @precondition(lambda self: self.rows)
    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.version += 1
        self.rows = []

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "cache"):
            return
        stats = self.cache.stats()
        assert len(self.cache) == stats.entries == len(self.rows) <= self.capacity
        assert {name: getattr(stats, name) for name in self.counts} == self.counts
        assert stats.misses == stats.lookups - stats.hits
        assert self.cache.store_version == self.version
        kept = {one for row in self.rows for one in row.ids} if self.reads_vectors else set()
        assert stats.vectors == len(kept)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
