"""Hunts for a hit whose proof is wrong, against a search of all documents in 64-bit floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from ragcache_integrations.query_cache import Hit, Metric, QueryCache, answers, certificates
from ragcache_integrations.query_cache import cache as cache_module
from ragcache_integrations.query_cache.certificates import proven, proven_unit, safe_radius

from .reference import Store, Vector, candidates, unit

Kind = Literal["l2", "unit", "cosine", "ip"]
Guarantee = Literal["exact"] | float | None
KINDS: list[Kind] = ["l2", "unit", "cosine", "ip"]
METRICS: dict[Kind, Metric] = {"l2": "l2", "unit": "l2", "cosine": "cosine", "ip": "ip"}
SEEDS = st.integers(0, 2**32 - 1)
# Where 32-bit squares vanish, where they are ordinary, and where they overflow.
SCALES = st.sampled_from([1.0, 1.0, 1.0, 1e-3, 1e-17, 1e-19, 1e-22, 1e-38, 1e3, 1e18, 1e25])
STEPS = st.sampled_from([0.0, 1e-7, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0])

hunt = settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


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
    ids = {one.id for one in hit.candidates}
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
                ids = [one.id for one in hit.candidates]
                self.wrong.append(f"{query}: {ids} has a recall of {recall}, {bound} was proven")


class TestCounterExamples:
    @pytest.mark.parametrize("kind", KINDS)
    @hunt
    @given(data=st.data())
    def test_no_hit_has_less_recall_than_proven(self, kind: Kind, data: st.DataObject) -> None:
        scene = data.draw(scenes(kind))
        assert Play(scene).wrong == []

    @pytest.mark.parametrize("kind", ["unit", "cosine"])
    @hunt
    @given(data=st.data())
    def test_several_entries_together_prove_no_wrong_answer(
        self, kind: Kind, data: st.DataObject
    ) -> None:
        scene = data.draw(surrounded(kind))
        assert Play(scene).wrong == []


def enlarged(*arguments: Any) -> float:
    """Return a radius that is a twentieth too large."""
    radius = safe_radius(*arguments)
    _, metric, _, length, longest = arguments
    return radius + 0.05 * (length * longest if metric == "ip" else abs(radius))


def found_out(scenery: st.SearchStrategy[Scene]) -> None:
    """Raise unless some scene shows a wrong hit."""
    find(
        scenery,
        lambda scene: bool(Play(scene).wrong),
        settings=settings(
            max_examples=3000, deadline=None, derandomize=True, phases=[Phase.generate]
        ),
    )


class TestTheHunt:
    """A bound that is too wide does not survive it."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_radius_that_is_too_large_is_found_out(
        self, kind: Kind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache_module, "safe_radius", enlarged)
        found_out(scenes(kind, changes=False))

    def test_a_combined_bound_that_is_too_wide_is_found_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = certificates.nothing_nearer

        def wrong(keys: Any, radii: Sequence[float], *others: Any) -> bool:
            return right(keys, [radius * 1.05 for radius in radii], *others)

        monkeypatch.setattr(answers, "nothing_nearer", wrong)
        found_out(surrounded("unit"))


def clustered_hits(
    kind: Kind, guarantee: Literal["exact"] | None, *, seed: int = 0, dim: int = 32, rho: int = 8
) -> list[float]:
    """Return the recall of every hit that is proven exact, on questions asked in other words.

    Documents in clusters, questions near them, asked six times over with a little noise. Every
    question that is not answered exactly is searched for.
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(15, dim))
    documents = (centres[:, None] + 0.9 * rng.normal(size=(15, 30, dim))).reshape(-1, dim)
    store = Store(
        METRICS[kind],
        {str(row): unit(one.astype(np.float32)) for row, one in enumerate(documents)},
    )
    cache = QueryCache[str](
        dim,
        1000,
        math.inf,
        metric=METRICS[kind],
        unit_vectors=kind == "unit",
        exact_search=True,
        guarantee=guarantee,
        vectors=store.read,
    )
    questions = centres.repeat(2, axis=0) + 0.5 * rng.normal(size=(30, dim))
    k, recalls = 3, []
    for number in rng.permutation(180) % 30:
        wide = questions[number] + 0.12 * rng.normal(size=dim)
        query = unit(wide.astype(np.float32))
        hit = cache.lookup(query, k)
        if hit is not None and hit.recall_bound == 1:
            recalls.append(share_found(store, query, hit, k))
        else:
            cache.insert(query, candidates(store.search(query, rho * k) or []))
    return recalls


class TestWorth:
    """What a proof is worth: a bound that is never met would pass every hunt."""

    def test_angles_prove_more_than_chords_and_several_entries_more_than_one(self) -> None:
        chords = clustered_hits("l2", None)
        angles = clustered_hits("unit", None)
        together = clustered_hits("unit", "exact")
        assert {*chords, *angles, *together} == {1.0}
        assert 10 < len(chords) < len(angles) < len(together)
        assert len(clustered_hits("cosine", "exact")) == pytest.approx(len(together), abs=2)
        assert len(together) > 0.3 * 180

    def test_more_candidates_prove_more(self) -> None:
        counts = [len(clustered_hits("unit", "exact", rho=rho)) for rho in (2, 8, 32)]
        assert counts == sorted(counts)
        assert counts[0] < counts[2]

    @pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
    @pytest.mark.parametrize("kind", ["l2", "ip"])
    def test_ordinary_numbers_of_any_size_are_proven(self, kind: Kind, scale: float) -> None:
        rng = np.random.default_rng(0)
        vectors = (scale * rng.normal(size=(60, 8))).astype(np.float32)
        key = (scale * rng.normal(size=8)).astype(np.float32)
        queries = [key + np.float32(step * scale) for step in (1e-4, 1e-3, 1e-2)]
        scene = Scene(kind, 8, vectors, [(key, 12, 1)], [], [(q, 2) for q in queries], "exact")
        played = Play(scene)
        assert played.wrong == []
        assert played.cache.stats().proven == 3

    def test_all_is_known_where_the_store_had_no_more(self) -> None:
        vectors = np.eye(4, dtype=np.float32)
        away = np.full(4, -9.0, dtype=np.float32)
        scene = Scene("l2", 4, vectors, [(vectors[0], 5, 1)], [], [(away, 3)], None)
        played = Play(scene)
        assert played.wrong == []
        assert played.cache.stats().proven == 1


class TestBounds:
    @given(
        distances=st.lists(st.floats(0, 10), max_size=8).map(sorted),
        radius=st.floats(0, 12),
        delta=st.floats(0, 12),
    )
    def test_what_is_proven_is_within_what_is_known(
        self, distances: list[float], radius: float, delta: float
    ) -> None:
        count = proven(distances, radius, delta)
        assert count <= sum(one <= radius - delta for one in distances)
        assert count >= sum(one < (radius - delta) * (1 - 1e-9) - 1e-9 for one in distances)

    @given(
        distances=st.lists(st.floats(0, 2), max_size=8).map(sorted),
        radius=st.floats(0, 2),
        delta=st.floats(0, 2),
    )
    def test_chords_of_unit_vectors_prove_by_their_angles(
        self, distances: list[float], radius: float, delta: float
    ) -> None:
        count = proven_unit(distances, radius, delta)
        angle = 2 * (math.asin(min(radius, 2) / 2) - math.asin(min(delta, 2) / 2))
        bound = 2 * math.sin(angle / 2) if angle > 0 else -1.0
        assert count <= sum(one <= bound for one in distances)
        # The angle is never less than what the triangle inequality of chords gives.
        if radius < 1.85:
            assert count >= proven(distances, radius - 1e-4, delta + 1e-4)

    @pytest.mark.parametrize("bound", [proven, proven_unit])
    def test_everything_is_proven_where_everything_is_known(
        self, bound: Callable[[list[float], float, float], int]
    ) -> None:
        assert bound([0.5, 1.0, 2.0], math.inf, 2.0) == 3
        assert bound([0.5, 1.0, 2.0], -math.inf, 0.0) == 0

    @pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
    def test_a_radius_shrinks_by_rounding_only(self, metric: Metric) -> None:
        for dim in (8, 384, 1536):
            radius = safe_radius(0.8, metric, dim, 1.0, 1.0)
            assert 0.8 - 2e-3 < radius < 0.8
        assert safe_radius(math.inf, metric, 8, 1.0, 1.0) == math.inf

    @pytest.mark.parametrize("metric", ["l2", "ip"])
    def test_nothing_is_known_where_32_bit_numbers_overflow_or_vanish(self, metric: Metric) -> None:
        assert safe_radius(1.0, metric, 8, 1e20, 1e20) == -math.inf
        small = -1e-50 if metric == "ip" else 1e-25
        assert safe_radius(small, metric, 8, 1e-25, 1e-25) <= min(0.0, 1e10 * small)
