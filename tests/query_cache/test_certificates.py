"""No hit is proven wrongly; and proofs are worth something."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from ragcache_integrations.query_cache import Metric, QueryCache, certificates, lookup
from ragcache_integrations.query_cache.certificates import proven, proven_unit, safe_radius
from ragcache_integrations.query_cache.kernels import kernels
from tests.support.sizes import examples

from .reference import Store, candidates, unit
from .scenes import KINDS, METRICS, Kind, Play, Scene, scenes, share_found, surrounded

hunt = examples(250, suppress_health_check=[HealthCheck.function_scoped_fixture])


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
        settings=settings(max_examples=3000, derandomize=True, phases=[Phase.generate]),
    )


class TestTheHunt:
    """A bound that is too wide does not survive it."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_radius_that_is_too_large_is_found_out(
        self, kind: Kind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(certificates, "safe_radius", enlarged)
        found_out(scenes(kind, changes=False))

    def test_a_combined_bound_that_is_too_wide_is_found_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = certificates.nothing_nearer

        def wrong(keys: Any, radii: Sequence[float], *others: Any) -> bool:
            return right(keys, [radius * 1.05 for radius in radii], *others)

        monkeypatch.setattr(lookup, "nothing_nearer", wrong)
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
        {str(row): unit(document.astype(np.float32)) for row, document in enumerate(documents)},
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

    def test_nothing_is_all_there_is_in_an_empty_store(self) -> None:
        store = Store("l2", {})
        cache = QueryCache[str](2, 5, 2.0, vectors=store.read, exact_search=True, guarantee="exact")
        cache.insert([1, 0], [], complete=True)
        hit = cache.lookup([1, 1], 3)
        assert hit is not None
        assert (hit.candidates, hit.recall_bound) == ((), 1.0)

    def test_a_document_without_a_direction_proves_nothing(self) -> None:
        """Its product with the query is 0, which its distance from it does not tell."""
        vectors = {"zero": np.zeros(2, np.float32), "a": np.array([0.3, 0.954], np.float32)}
        store = Store("cosine", vectors)
        cache = QueryCache[str](2, 5, 1.0, metric="cosine", vectors=store.read, exact_search=True)
        cache.insert([1, 0], candidates(["a", "zero"]), complete=True)
        hit = cache.lookup([1, -0.05], 1)
        assert hit is not None
        assert (hit.candidates[0].id, hit.reranked, hit.recall_bound) == ("a", False, None)


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
        assert count <= sum(distance <= radius - delta for distance in distances)
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
        assert count <= sum(distance <= bound for distance in distances)
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


def test_keys_that_are_kept_as_unit_vectors_are_no_longer_than_radii_allow_for() -> None:
    rng = np.random.default_rng(0)
    for dim in (1, 2, 3, 384, 4096):
        for scale in (1e-15, 1.0, 1e15):
            query = (scale * rng.standard_normal(dim)).astype(np.float32)
            key = kernels().prepare(query, True)[1].astype(np.float64)  # noqa: FBT003 - compiled
            assert math.sqrt(key @ key) <= certificates._UNIT_LENGTH
