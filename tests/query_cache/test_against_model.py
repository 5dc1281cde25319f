"""The cache does what a naive model of it does, whatever the order of calls.

The model keeps its entries in a list and computes everything anew. Only what decides ties with new
documents to the last bit (``nearest_new``, ``safe_radius``) is the cache's own; other tests hold
these to what they promise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ragcache_integrations.query_cache import Candidate, Metric, QueryCache
from ragcache_integrations.query_cache.certificates import safe_radius
from ragcache_integrations.query_cache.entries.entry import nearest_new
from ragcache_integrations.query_cache.entries.table import hyperplanes
from ragcache_integrations.query_cache.types import Eviction
from tests.support.sizes import examples

from .reference import Store, Vector, distance, unit

Point = tuple[int, ...]

DIM, PLANES, SEED = 3, 2, 7
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
ID = st.sampled_from(sorted(DOCUMENTS))
IDS = st.lists(ID, max_size=6)
TTL = 8  # nanoseconds, the clock's own unit
COUNTED = (
    "lookups", "hits", "stale", "insertions", "evictions", "expired", "invalidated", "dropped",
)  # fmt: skip


@dataclass(eq=False)
class Row:
    query: Vector
    key: Key
    ids: list[str]
    complete: bool
    serves: float
    inserted: int
    stamp: int
    born: int
    radius: float
    newest: float


@dataclass
class Change:
    version: int
    removed: list[str]
    added: list[str]
    vectors: Vector


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        capacity=st.integers(1, 4),
        tolerance=st.sampled_from([0.0, 0.3, 1.0, math.sqrt(2), 2.0, math.inf]),
        metric=st.sampled_from(["l2", "cosine", "ip"]),
        eviction=st.sampled_from(["lru", "fifo"]),
        reads_vectors=st.booleans(),
        probes=st.sampled_from([None, None, 0, 1, 2]),
        ends=st.booleans(),
    )
    def make(
        self,
        capacity: int,
        tolerance: float,
        metric: Metric,
        eviction: Eviction,
        reads_vectors: bool,
        probes: int | None,
        ends: bool,
    ) -> None:
        self.store = Store(metric, DOCUMENTS)
        lsh = probes is not None
        self.cache = QueryCache[str](
            DIM,
            1 if lsh else capacity,
            tolerance,
            index="lsh" if lsh else "flat",
            num_hyperplanes=PLANES,
            bucket_capacity=capacity,
            multi_probe=probes or 0,
            metric=metric,
            eviction=eviction,
            vectors=self.store.read if reads_vectors else None,
            ttl=TTL * 1e-9 if ends else None,
            seed=SEED,
        )
        self.cache._clock = lambda: self.now
        self.now = 100
        self.capacity, self.tolerance, self.probes = capacity, tolerance, probes
        self.metric, self.eviction, self.reads_vectors = metric, eviction, reads_vectors
        self.ttl: float = TTL if ends else math.inf
        self.next_expiry = 0
        self.rows: list[Row] = []
        self.changes: list[Change] = []
        self.order = self.version = self.forgotten = 0
        self.longest = 0.0
        self.counts = dict.fromkeys(COUNTED, 0)

    def prepared(self, vector: Point) -> Vector:
        array = np.array(vector, dtype=np.float32)
        return unit(array) if self.metric == "cosine" else array

    def tick(self) -> int:
        self.order += 1
        return self.order

    def buckets(self, query: Vector) -> list[int]:
        """Return the query's bucket, and those searched for it beside, in their order."""
        if self.probes is None:
            return [0]
        planes = hyperplanes(PLANES, DIM, SEED).astype(np.float64)
        products = planes @ query.astype(np.float64)
        code = sum(1 << bit for bit in range(PLANES) if products[bit] >= 0)
        flips = sorted(range(PLANES), key=lambda bit: abs(products[bit]))[: self.probes]
        return [code, *(code ^ (1 << bit) for bit in flips)]

    def values(self, ids: list[str], query: Vector) -> list[float]:
        vectors = [self.store.vectors[one].astype(np.float64) for one in ids]
        if self.metric == "ip":
            return [-float((one * query).sum()) for one in vectors]
        return [distance(vector.astype(np.float32), query) for vector in vectors]

    def serves(self, row: Row) -> float:
        if row.newest == math.inf:
            return math.inf if row.complete else len(row.ids)
        return sum(one < row.newest for one in self.values(row.ids, row.query))

    def lengthen(self, ids: list[str]) -> None:
        origin = np.zeros(DIM, dtype=np.float32)
        lengths = [distance(self.store.vectors[one], origin) for one in ids]
        self.longest = max([self.longest, *lengths])

    @rule(
        vector=LATTICE,
        key=KEYS,
        ids=IDS,
        complete=st.booleans(),
        late=st.sampled_from([0, 0, 1, 2, 5]),
    )
    def insert(self, vector: Point, key: Key, ids: list[str], complete: bool, late: int) -> None:
        """Insert what a search found that began some changes ago."""
        complete = complete or not ids
        version = max(self.version - late, 0)
        inserted = self.cache.insert(
            vector,
            [Candidate(one, f"text {one}") for one in ids],
            key,
            complete=complete,
            store_version=version,
        )
        query = self.prepared(vector)
        if self.reads_vectors:
            self.lengthen(ids)
        since = [one for one in self.changes if one.version > version]
        gone = {one for change in since for one in change.removed}
        left = [one for one in ids if one not in gone]
        newest = math.inf
        for change in since:
            new = [row for row, one in enumerate(change.added) if one not in left]
            if new:
                found = nearest_new(query[None], change.vectors[new], self.metric)
                newest = min(newest, float(found[0]))
        lost = newest < math.inf and not self.reads_vectors
        assert inserted == (version >= self.forgotten and not lost and bool(left or not ids))
        if not inserted:
            self.counts["dropped"] += 1
            return
        self.expire()
        radius = math.inf
        if not complete and self.reads_vectors:
            last = max(self.values(left, query))
            length = float(np.linalg.norm(query.astype(np.float64)))
            radius = safe_radius(last, self.metric, DIM, length, self.longest)
        self.counts["insertions"] += 1
        self.make_room(query, key)
        now = self.tick()
        row = Row(
            query, key, left, complete and newest == math.inf, 0, now, now, self.now,
            min(radius, newest), newest,
        )  # fmt: skip
        row.serves = self.serves(row)
        self.rows.append(row)

    def expire(self) -> None:
        """Insertions take what has ended out of memory, eight times in an entry's life."""
        if self.now < self.next_expiry or self.ttl == math.inf:
            return
        self.next_expiry = self.now + TTL // 8
        ended = [row for row in self.rows if row.born + self.ttl <= self.now]
        self.counts["expired"] += len(ended)
        self.rows = [row for row in self.rows if row not in ended]

    def make_room(self, query: Vector, key: Key) -> None:
        same = [r for r in self.rows if r.key == key and distance(r.query, query) == 0]
        bucket = self.buckets(query)[0]
        beside = [row for row in self.rows if self.buckets(row.query)[0] == bucket]
        if same:
            self.rows.remove(same[0])
        elif len(beside) == self.capacity:
            self.rows.remove(min(beside, key=lambda row: row.stamp))
            self.counts["evictions"] += 1

    def ranked(self, row: Row, query: Vector) -> tuple[list[str], list[float]]:
        values = self.values(row.ids, query)
        order = sorted(range(len(values)), key=values.__getitem__)
        sign = -1 if self.metric == "ip" else 1
        return [row.ids[one] for one in order], [sign * values[one] for one in order]

    def fresh(self, row: Row, near: float, k: int) -> bool:
        """Whether no new document belongs into the answer."""
        if row.newest == math.inf:
            return True
        last = sorted(self.values(row.ids, row.query))[min(k, len(row.ids)) - 1]
        apart = near * self.longest if self.metric == "ip" else near
        return 2 * apart <= row.newest - last

    @rule(vector=LATTICE, key=KEYS, k=st.integers(1, 8))
    def lookup(self, vector: Point, key: Key, k: int) -> None:
        self.counts["lookups"] += 1
        query = self.prepared(vector)
        searched = self.buckets(query)
        rows = [
            row
            for row in self.rows
            if row.key == key
            and row.serves >= k
            and row.born + self.ttl > self.now
            and self.buckets(row.query)[0] in searched
        ]
        hit = self.cache.lookup(vector, k, key)
        best = min(rows, key=lambda r: (distance(r.query, query), -r.inserted), default=None)
        if best is None or distance(best.query, query) > self.tolerance:
            assert hit is None
            return
        near = distance(best.query, query)
        if not self.fresh(best, near, k):
            assert hit is None
            self.counts["stale"] += 1
            return
        assert hit is not None
        self.counts["hits"] += 1
        if self.eviction == "lru":
            best.stamp = self.tick()
        assert hit.distance == near
        assert hit.recall_bound is None
        assert hit.age == (self.now - best.born) / 1e9
        assert hit.reranked == (self.reads_vectors and near > 0)
        ids, scores = self.ranked(best, query) if hit.reranked else (best.ids, None)
        assert [candidate.id for candidate in hit.candidates] == ids[:k]
        assert [one.document for one in hit.candidates] == [f"text {one}" for one in ids[:k]]
        assert hit.scores == (None if scores is None else tuple(scores[:k]))

    @rule(by=st.sampled_from([1, 1, 3, TTL, 1000, -2, -TTL]))
    def let_time_pass(self, by: int) -> None:
        """Clocks may jump, too."""
        self.now += by

    @rule(vector=LATTICE, key=KEYS)
    def delete(self, vector: Point, key: Key) -> None:
        query = self.prepared(vector)
        same = [r for r in self.rows if r.key == key and distance(r.query, query) == 0]
        assert self.cache.delete(vector, key) == bool(same)
        self.rows = [row for row in self.rows if row not in same]

    @rule(ids=st.lists(ID, max_size=2))
    def remove_documents(self, ids: list[str]) -> None:
        self.cache.documents_removed(ids)
        self.change(ids, [])

    @rule(ids=st.lists(ID, max_size=2), told=st.booleans())
    def add_documents(self, ids: list[str], told: bool) -> None:
        self.cache.documents_added(ids, self.store.read(ids).reshape(-1, DIM) if told else None)
        if self.reads_vectors or told or not ids:
            self.change([], ids)
        else:
            self.forget()

    @rule(one=ID, point=LATTICE)
    def update_document(self, one: str, point: Point) -> None:
        self.store.put(one, np.array(point, dtype=np.float32))
        self.cache.documents_updated([one])
        if self.reads_vectors:
            self.change([one], [one])
        else:
            self.forget()

    def change(self, removed: list[str], added: list[str]) -> None:
        self.version += 1
        vectors = self.store.read(added).reshape(-1, DIM)
        self.changes.append(Change(self.version, removed, added, vectors))
        for row in self.rows:
            left = [one for one in row.ids if one not in removed]
            if left != row.ids:
                row.ids = left
                row.serves = self.serves(row) if left else -1
        self.drop_dead()
        if not added:
            return
        self.lengthen(added)
        if not self.rows:
            return
        queries = np.stack([row.query for row in self.rows])
        for row, a in zip(self.rows, nearest_new(queries, vectors, self.metric), strict=True):
            inside = a < row.radius or not self.reads_vectors
            row.newest, row.radius = min(row.newest, float(a)), min(row.radius, float(a))
            if inside:
                row.complete = False
                row.serves = self.serves(row) if self.reads_vectors else 0
                row.serves = row.serves or -1
        self.drop_dead()

    def drop_dead(self) -> None:
        dead = [row for row in self.rows if row.serves < 0]
        self.counts["invalidated"] += len(dead)
        self.rows = [row for row in self.rows if row not in dead]

    def forget(self) -> None:
        self.version += 1
        self.forgotten = self.version
        self.changes = []
        self.rows = []

    @precondition(lambda self: self.rows)
    @rule(at_all=st.integers(0, 5))
    def clear(self, at_all: int) -> None:
        if at_all == 0:  # seldom, or nothing ever happens
            self.cache.clear()
            self.forget()

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "cache"):
            return
        stats = self.cache.stats()
        most = self.capacity * (1 if self.probes is None else 1 << PLANES)
        assert len(self.cache) == stats.entries == len(self.rows) <= stats.capacity == most
        assert {name: getattr(stats, name) for name in self.counts} == self.counts
        assert stats.misses == stats.lookups - stats.hits
        assert self.cache.store_version == self.version
        kept = {one for row in self.rows for one in row.ids} if self.reads_vectors else set()
        assert stats.vectors == len(kept)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = examples(200)
