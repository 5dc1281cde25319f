"""A document that came, went or changed shows in the next answer, or there is none.

The rule, for every hit: it serves what re-ranking its entry's candidates *and* all documents that
came since would give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ragcache_integrations.query_cache import Candidate, Metric, QueryCache
from tests.query_cache.reference import Store, Vector
from tests.support.sizes import examples

METRICS: list[Metric] = ["l2", "cosine", "ip"]
DIM = 3
# Lattice points, so that documents tie and coincide with queries; and some between them.
POINTS = st.tuples(
    st.tuples(*[st.integers(-2, 2)] * DIM).filter(any), st.sampled_from([1.0, 1.0, 1.02, 0.4])
)
K = st.integers(1, 4)
SLACK = 1e-6


def vector(point: tuple[tuple[int, ...], float]) -> Vector:
    return (np.array(point[0], dtype=np.float64) * point[1]).astype(np.float32)


@dataclass
class Search:
    """One search's answer, and what happened since it began."""

    query: Vector
    ids: list[str]
    complete: bool
    version: int
    came: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)


class FreshnessMachine(RuleBasedStateMachine):
    """Searches are exact; some are inserted only after other things have happened."""

    @initialize(
        metric=st.sampled_from(METRICS),
        tolerance=st.sampled_from([0.0, 0.5, 1.5, math.inf]),
        documents=st.lists(POINTS, min_size=1, max_size=8),
    )
    def make(self, metric: Metric, tolerance: float, documents: list[Any]) -> None:
        self.serial = 0
        self.store = Store(metric, {})
        for document in documents:
            self.put(document)
        self.cache = QueryCache[int](
            DIM, 6, tolerance, metric=metric, vectors=self.store.read, rerank_factor=2
        )
        self.searches: list[Search] = []
        self.under_way: list[int] = []
        self.hits = 0

    def put(self, point: Any) -> str:
        self.serial += 1
        self.store.put(f"d{self.serial}", vector(point))
        return f"d{self.serial}"

    @rule(point=POINTS, k=K)
    def begin(self, point: Any, k: int) -> None:
        query = vector(point)
        found = self.store.ranked(query)
        self.under_way.append(len(self.searches))
        self.searches.append(Search(query, found[:k], k > len(found), self.cache.store_version))

    @precondition(lambda self: self.under_way)
    @rule(latest=st.booleans())
    def finish(self, latest: bool) -> None:
        number = self.under_way.pop(-1 if latest else 0)
        one = self.searches[number]
        # The document says which search it was found by.
        self.cache.insert(
            one.query,
            [Candidate(document, number) for document in one.ids],
            complete=one.complete,
            store_version=one.version,
        )

    @rule(points=st.lists(POINTS, min_size=1, max_size=2), told=st.booleans())
    def add(self, points: list[Any], told: bool) -> None:
        ids = [self.put(point) for point in points]
        self.cache.documents_added(ids, self.store.read(ids) if told else None)
        for search in self.searches:
            search.came.update(ids)

    @precondition(lambda self: self.store.vectors)
    @rule(which=st.integers(0, 10**6))
    def remove(self, which: int) -> None:
        gone = sorted(self.store.vectors)[which % len(self.store.vectors)]
        self.store.remove(gone)
        self.cache.documents_removed([gone])
        for search in self.searches:
            search.gone.add(gone)

    @precondition(lambda self: self.store.vectors)
    @rule(which=st.integers(0, 10**6), point=POINTS)
    def update(self, which: int, point: Any) -> None:
        changed = sorted(self.store.vectors)[which % len(self.store.vectors)]
        self.store.put(changed, vector(point))
        self.cache.documents_updated([changed])
        for search in self.searches:
            search.came.add(changed)

    @rule(point=POINTS, k=K)
    def look_up(self, point: Any, k: int) -> None:
        self.check(vector(point), k)

    @precondition(lambda self: self.searches)
    @rule(which=st.integers(0, 10**6), k=K)
    def look_up_again(self, which: int, k: int) -> None:
        self.check(self.searches[which % len(self.searches)].query, k)

    def check(self, query: Vector, k: int) -> None:
        hit = self.cache.lookup(query, k)
        if hit is None:
            return
        self.hits += 1
        numbers = {candidate.document for candidate in hit.candidates}
        if not numbers:  # an empty store's answer
            assert not self.store.vectors
            return
        assert len(numbers) == 1
        one = self.searches[numbers.pop()]
        known = (set(one.ids) | one.came) - one.gone
        values = self.store.values(query, sorted(known))
        best = sorted(values.values())[:k]
        served = sorted(values[document.id] for document in hit.candidates)
        assert served == pytest.approx(best, abs=SLACK)
        if not one.complete:
            assert len(served) == k


TestFreshnessMachine = FreshnessMachine.TestCase
TestFreshnessMachine.settings = examples(150)
