"""A guess is made of all documents that entries of its cache key hold now, and of no others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ragcache_integrations.query_cache import Candidate, Metric, QueryCache
from ragcache_integrations.query_cache.reading import answers
from tests.support.sizes import examples

from .reference import Vector, distance, unit

DIM, CAPACITY = 4, 5
KEYS = st.sampled_from(["ann", "bob"])
QUERY = st.integers(0, 5)
ID = st.integers(0, 9)
# So far apart that none is within the tolerance of another, and without ties.
QUERIES = np.random.default_rng(1).normal(size=(6, DIM)).astype(np.float32)
PROBES = np.random.default_rng(2).normal(size=(2, DIM)).astype(np.float32)


def vector_of(number: int, version: int) -> Vector:
    """Return the vector of a document's content."""
    found: Vector = np.random.default_rng([number, version]).normal(size=DIM).astype(np.float32)
    return found


@dataclass(eq=False)
class Row:
    key: str
    query: int
    documents: list[tuple[int, int]]  # number and version


class Guessing(RuleBasedStateMachine):
    """Entries come and go in all ways; a list of them says what a guess may be made of."""

    @initialize(metric=st.sampled_from(["l2", "cosine", "ip"]))
    def begin(self, metric: Metric) -> None:
        self.metric = metric
        self.versions = dict.fromkeys(range(10), 0)
        self.cache = QueryCache[str](DIM, CAPACITY, 1e-3, metric=metric, vectors=self.vectors)
        self.rows: list[Row] = []

    def vectors(self, ids: object) -> list[Vector]:
        assert isinstance(ids, list)
        return [vector_of(int(name), self.versions[int(name)]) for name in ids]

    def nearest(self, held: set[tuple[int, int]], probe: Vector) -> list[tuple[int, int]]:
        def value(document: tuple[int, int]) -> float:
            vector = vector_of(*document)
            if self.metric == "ip":
                return -float(vector.astype(np.float64) @ probe)
            if self.metric == "cosine":
                return distance(unit(vector), unit(probe))
            return distance(vector, probe)

        return sorted(held, key=value)

    def drop(self, key: str, query: int) -> int:
        before = len(self.rows)
        self.rows = [row for row in self.rows if (row.key, row.query) != (key, query)]
        return before - len(self.rows)

    @rule(key=KEYS, query=QUERY, numbers=st.lists(ID, min_size=1, max_size=4, unique=True))
    def insert(self, key: str, query: int, numbers: list[int]) -> None:
        documents = [(number, self.versions[number]) for number in numbers]
        candidates = [Candidate(str(number), key, str(version)) for number, version in documents]
        assert self.cache.insert(QUERIES[query], candidates, key)
        self.drop(key, query)
        self.rows = [*self.rows, Row(key, query, documents)][-CAPACITY:]

    @rule(key=KEYS, query=QUERY)
    def delete(self, key: str, query: int) -> None:
        assert self.cache.delete(QUERIES[query], key) == bool(self.drop(key, query))

    @rule(key=KEYS, query=QUERY)
    def forget(self, key: str, query: int) -> None:
        assert self.cache.forget(QUERIES[query], 1, key) == self.drop(key, query)

    @rule(key=KEYS)
    def discard(self, key: str) -> None:
        self.cache.discard(lambda held, _candidates, _age: held == key)
        self.rows = [row for row in self.rows if row.key != key]

    @rule(number=ID)
    def change(self, number: int) -> None:
        """A document goes; when it is found again, it is another one."""
        self.versions[number] += 1
        self.cache.documents_removed([str(number)])
        for row in self.rows:
            row.documents = [document for document in row.documents if document[0] != number]
        self.rows = [row for row in self.rows if row.documents]

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.rows = []

    @invariant()
    def guesses_are_the_nearest_of_what_is_held(self) -> None:
        for key in ("ann", "bob"):
            rows = [row for row in self.rows if row.key == key]
            held = {document for row in rows for document in row.documents}
            for probe in PROBES:
                nearest = self.nearest(held, probe)
                for k in (1, 3):
                    guess = self.cache.guess(probe, k, key)
                    if len(held) < k:
                        assert guess is None
                        continue
                    assert guess is not None
                    assert {candidate.document for candidate in guess.candidates} == {key}
                    found = [(int(one.id), int(one.fingerprint)) for one in guess.candidates]
                    assert found == nearest[:k]


TestGuessing = Guessing.TestCase
TestGuessing.settings = examples(60, stateful_step_count=25)


def held_by(cache: QueryCache[None], query: int, *numbers: int) -> None:
    cache.insert(QUERIES[query], [Candidate(str(number), None) for number in numbers])


def test_the_entries_used_last_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_MOST_ENTRIES", 2)
    cache = QueryCache[None](
        DIM, 9, 1e-3, vectors=lambda ids: [vector_of(int(name), 0) for name in ids]
    )
    for query in range(4):
        held_by(cache, query, query)
    assert cache.lookup(QUERIES[0], 1) is not None
    guess = cache.guess(PROBES[0], 2)
    assert guess is not None
    assert {candidate.id for candidate in guess.candidates} == {"0", "3"}
    assert cache.guess(PROBES[0], 3) is None


def test_so_many_documents_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_MOST_DOCUMENTS", 3)
    cache = QueryCache[None](
        DIM, 9, 1e-3, vectors=lambda ids: [vector_of(int(name), 0) for name in ids]
    )
    held_by(cache, 0, 1, 2, 3)
    held_by(cache, 1, 3, 4, 5)
    for probe in PROBES:
        guess = cache.guess(probe, 3)
        assert guess is not None
        assert {candidate.id for candidate in guess.candidates} == {"3", "4", "5"}


def test_no_other_tenant_s_documents_while_all_come_and_go() -> None:
    cache = QueryCache[str](
        DIM, 20, 1e-3, vectors=lambda ids: [vector_of(int(name), 0) for name in ids]
    )
    done = threading.Event()

    def change(key: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for step in range(400):
            numbers = rng.choice(300, 5, replace=False).tolist()
            query = rng.normal(size=DIM).astype(np.float32)
            cache.insert(query, [Candidate(str(number), key) for number in numbers], key)
            if step % 10 == 0:
                cache.discard(lambda held, _candidates, _age: held == key)
            if step % 50 == 0:
                cache.clear()

    def guess(key: str) -> int:
        made = 0
        while not done.is_set():
            found = cache.guess(PROBES[0], 3, key)
            if found is not None:
                made += 1
                assert {candidate.document for candidate in found.candidates} == {key}
                assert len({candidate.id for candidate in found.candidates}) == 3
        return made

    with ThreadPoolExecutor(4) as pool:
        guessers = [pool.submit(guess, key) for key in ("ann", "bob")]
        changers = [pool.submit(change, key, seed) for seed, key in enumerate(("ann", "bob"))]
        for changer in changers:
            changer.result()
        done.set()
        assert all(guesser.result() for guesser in guessers)
