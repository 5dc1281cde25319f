"""Scenes in which a proof may turn out wrong: documents, searches, changes, queries.

:class:`Play` lets one happen with a real store's own search in 32-bit floats, and compares every
hit with a search of all documents in 64-bit floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from ragcache_integrations.query_cache import Hit, Metric, QueryCache

from .reference import Store, Vector, candidates, unit

Kind = Literal["l2", "unit", "cosine", "ip"]
Guarantee = Literal["exact"] | float | None
KINDS: list[Kind] = ["l2", "unit", "cosine", "ip"]
METRICS: dict[Kind, Metric] = {"l2": "l2", "unit": "l2", "cosine": "cosine", "ip": "ip"}
SEEDS = st.integers(0, 2**32 - 1)
# Where 32-bit squares vanish, where they are ordinary, and where they overflow.
SCALES = st.sampled_from([1.0, 1.0, 1.0, 1e-3, 1e-17, 1e-19, 1e-22, 1e-38, 1e3, 1e18, 1e25])
STEPS = st.sampled_from([0.0, 1e-7, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0])


def slack(store: Store, query: Vector, worst: float, *, same: bool) -> float:
    """By how much more than the k-th a document's distance may come out and still be a tie.

    ``same``: the answer is the store's own, to the same query, in 32-bit floats.
    """
    lengths = [float(np.linalg.norm(v.astype(np.float64))) for v in store.vectors.values()]
    longest = max([*lengths, float(np.linalg.norm(query.astype(np.float64)))])
    dim = len(query)
    if not same:  # unit vectors are rounded to 32 bits, once here and once in the store
        return {"l2": 1e-6 * worst, "cosine": 1e-6, "ip": 1e-9 * longest**2}[store.metric]
    off = (dim + 4) * 2.0**-22 * longest**2 + dim * 2.0**-124
    if store.metric == "ip":
        return off
    return math.sqrt(worst * worst + 2 * off) - worst + 1e-6


def share_found(store: Store, query: Vector, hit: Hit[str], k: int) -> float:
    """Return the recall of a hit; whatever is as near as the k-th document counts."""
    values = store.values(query)
    wanted = min(k, len(values))
    if not wanted:
        return 1.0
    worst = sorted(values.values())[wanted - 1]
    worst += slack(store, query, worst, same=hit.distance == 0)
    ids = {candidate.id for candidate in hit.candidates}
    return sum(values.get(one, math.inf) <= worst for one in ids) / wanted


@dataclass
class Scene:
    """Documents, what is cached of their searches, what happens to them, and queries."""

    kind: Kind
    dim: int
    vectors: Vector
    searches: list[tuple[Vector, int, int]]  # query, how many are fetched, in what batch
    changes: list[tuple[str, int, Vector]]  # what, which document, its vector
    queries: list[tuple[Vector, int]]
    guarantee: Guarantee


@st.composite
def scenes(draw: st.DrawFn, kind: Kind, *, changes: bool = True) -> Scene:
    dim = draw(st.sampled_from([1, 2, 2, 3, 8, 40]))
    rng = np.random.default_rng(draw(SEEDS))
    count = draw(st.integers(1, 14))
    form = draw(st.sampled_from(["lattice", "random", "cluster", "far off"]))
    if form == "lattice":
        points = rng.integers(-2, 3, (count + 8, dim)).astype(float)
    elif form == "cluster":
        points = rng.normal(size=dim) + 0.2 * rng.normal(size=(count + 8, dim))
    else:
        points = rng.normal(size=(count + 8, dim)) + 1000 * (form == "far off")
    points[~points.any(axis=1), 0] = 1
    points = points[rng.integers(len(points), size=len(points))]  # some come twice
    of_length_1 = kind in {"unit", "cosine"}
    points *= 1.0 if of_length_1 else draw(SCALES)

    def finished(point: Any) -> Vector:
        vector = np.asarray(point, dtype=np.float32)
        if not vector.any():
            vector[0] = 1
        return unit(vector) if of_length_1 else vector

    documents, others = points[:count], points[count:]
    near = np.concatenate([documents, others[:2]])
    keys = near[rng.integers(len(near), size=draw(st.integers(1, 4)))]
    k = draw(st.integers(1, 3))
    searches = [
        (finished(key), k * draw(st.integers(1, 4)), draw(st.sampled_from([1, 32]))) for key in keys
    ]
    happened = []
    for _ in range(draw(st.integers(0, 3)) if changes else 0):
        what = draw(st.sampled_from(["added", "removed", "updated"]))
        point = rng.choice(others) if rng.random() < 0.5 else rng.choice(keys) * 1.01
        happened.append((what, int(rng.integers(count)), finished(point)))
    # From a key towards a document: where a bound that is too wide is wrong first.
    queries = []
    for _ in range(8):
        key, aim = rng.choice(keys), rng.choice(points)
        queries.append((finished(key + draw(STEPS) * (aim - key)), k))
    guarantee: Guarantee = draw(st.sampled_from([None, "exact", 0.6]))
    return Scene(
        kind, dim, np.array([finished(d) for d in documents]), searches, happened, queries,
        guarantee,
    )  # fmt: skip


@st.composite
def surrounded(draw: st.DrawFn, kind: Kind) -> Scene:
    """Keys all around the queries, each of which by itself proves little."""
    rng = np.random.default_rng(draw(SEEDS))
    dim = draw(st.sampled_from([2, 3, 6]))
    centre = rng.normal(size=dim)
    spread = draw(st.sampled_from([0.05, 0.3, 1.0]))

    def around(count: int) -> Vector:
        points = centre + spread * rng.normal(size=(count, dim))
        return np.array([unit(point.astype(np.float32)) for point in points])

    k = draw(st.integers(1, 3))
    return Scene(
        kind,
        dim,
        around(draw(st.integers(5, 60))),
        [(key, k * draw(st.integers(2, 6)), 1) for key in around(8)],
        [],
        [(query, k) for query in around(12)],
        draw(st.sampled_from(["exact", 0.6])),
    )


class Play:
    """A scene as it happens.

    Attributes:
        cache: The cache.
        store: The store.
        wrong: What was wrong with hits.
    """

    def __init__(self, scene: Scene) -> None:
        metric = METRICS[scene.kind]
        vectors = {str(row): vector for row, vector in enumerate(scene.vectors)}
        self.store = Store(metric, vectors)
        longest = float(np.linalg.norm(scene.vectors.astype(np.float64), axis=1).max())
        self.cache = QueryCache[str](
            scene.dim,
            20,
            math.inf,
            metric=metric,
            unit_vectors=scene.kind == "unit",
            longest=longest if scene.kind == "ip" else None,
            exact_search=True,
            guarantee=scene.guarantee,
            vectors=lambda ids: [(self.old | self.store.vectors)[one] for one in ids],
        )
        self.old: dict[str, Vector] = {}  # vectors of what is gone, which a store may still know
        self.wrong: list[str] = []
        self._scene = scene
        *soon, last = [*scene.searches]
        for search in soon:
            self.insert(*self.search(*search))
        # One search begins before what happens, and is inserted afterwards.
        late = self.search(*last)
        if not scene.changes:
            self.insert(*late)
        self.check()
        for number, (what, which, vector) in enumerate(scene.changes):
            self.change(f"new {number}" if what == "added" else str(which), what, vector)
            self.check()
        if scene.changes:
            self.insert(*late)
            self.check()

    def search(
        self, query: Vector, count: int, batch: int
    ) -> tuple[Vector, list[str] | None, bool, int]:
        complete = count > len(self.store.vectors)
        found = self.store.search(query, count, batch)
        return query, found, complete, self.cache.store_version

    def insert(self, query: Vector, found: list[str] | None, complete: bool, version: int) -> None:
        if found:
            self.cache.insert(query, candidates(found), complete=complete, store_version=version)

    def change(self, one: str, what: str, vector: Vector) -> None:
        if what == "added":
            self.store.put(one, vector)
            self.cache.documents_added([one])
        elif one in self.store.vectors and what == "updated":
            self.store.put(one, vector)
            self.cache.documents_updated([one])
        elif one in self.store.vectors:
            self.old[one] = self.store.vectors[one]
            self.store.remove(one)
            self.cache.documents_removed([one])

    def check(self) -> None:
        """Look every query up."""
        guarantee = self._scene.guarantee
        needed = 1.0 if guarantee == "exact" else guarantee
        for query, k in self._scene.queries:
            hit = self.cache.lookup(query, k)
            if hit is None or not self.store.vectors:
                continue
            bound = hit.recall_bound
            if needed is not None and (bound is None or bound < needed):
                self.wrong.append(f"served with a bound of {bound} under {guarantee}")
            recall = share_found(self.store, query, hit, k)
            if bound is not None and recall < bound - 1e-12:
                ids = [candidate.id for candidate in hit.candidates]
                self.wrong.append(f"{query}: {ids} has a recall of {recall}, {bound} was proven")
