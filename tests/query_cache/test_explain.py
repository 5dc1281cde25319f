"""``explain`` says of every query what ``lookup`` does, and why in words that fit."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, QueryCache
from tests.support.sizes import examples

from .reference import Store, candidates

SEEDS = st.integers(0, 2**32 - 1)
KEYS = [None, "tenant"]
NEAR = "the nearest entry is at distance "


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what a cache is made with, but for ``vectors``."""
    metric = draw(st.sampled_from(["l2", "cosine", "ip"]))
    exact = draw(st.booleans())
    return {
        "dim": 3,
        "capacity": 8,
        "tolerance": draw(st.sampled_from([0.0, 0.4, 1.0, math.inf, "auto"])),
        "start_tolerance": draw(st.sampled_from([None, 0.5])),
        "index": draw(st.sampled_from(["flat", "lsh"])),
        "num_hyperplanes": 2,
        "multi_probe": draw(st.integers(0, 1)),
        "metric": metric,
        "longest": 5.0 if metric == "ip" else None,
        "exact_search": exact,
        "guarantee": draw(st.sampled_from([None, "exact", 0.5])) if exact else None,
        "ttl": draw(st.sampled_from([None, 5e-9])),
    }


class TestAgreement:
    @examples(250)
    @given(made=arguments(), seed=SEEDS)
    def test_with_lookup_in_any_state(self, made: dict[str, Any], seed: int) -> None:
        rng = np.random.default_rng(seed)
        points = rng.integers(-2, 3, (20, 3)).astype(np.float32)
        points[~points.any(axis=1), 0] = 1
        store = Store(made["metric"], {str(n): point for n, point in enumerate(points[:12])})
        cache = QueryCache[str](**made, vectors=store.read)
        now = [100]
        cache._clock = lambda: now[0]
        for _ in range(40):
            what, query, k = rng.random(), rng.choice(points), int(rng.integers(1, 5))
            key = KEYS[rng.integers(2)]
            if rng.random() < 0.3:
                query = query + rng.normal(scale=0.1, size=3).astype(np.float32)
            if what < 0.4:
                found = store.ranked(query)[: 2 * k]
                cache.insert(query, candidates(found), key, k=k, complete=len(found) < 2 * k)
            elif what < 0.45 and len(store.vectors) > 2:
                gone = rng.choice(sorted(store.vectors))
                store.remove(gone)
                cache.documents_removed([gone])
            elif what < 0.5:
                store.put(f"new {what}", rng.choice(points))
                cache.documents_added([f"new {what}"])
            elif what < 0.55:
                now[0] += 2
            else:
                self.compare(cache, query, k, key)

    def compare(self, cache: QueryCache[str], query: Any, k: int, key: str | None) -> None:
        before = cache.stats()
        said = cache.explain(query, k, key)
        assert cache.stats() == before
        hit = cache.lookup(query, k, key)
        assert said.hit == (hit is not None)
        # Each key is a tenant, whose tolerance is its own.
        assert said.tolerance == cache._decisions.tolerance_of(key)
        assert (said.distance is None) == (not said.reason.startswith(NEAR))
        if said.distance is not None:
            assert said.reason.startswith(f"{NEAR}{said.distance:.4g}")
            assert said.entries > 0
        if hit is None:
            assert ", but" in said.reason or ", beyond" in said.reason or said.distance is None
        else:
            # What several entries prove together counts from the nearest, whatever it serves.
            assert said.distance is not None
            assert hit.distance <= said.distance + 1e-7
            assert hit.distance == said.distance or hit.recall_bound is not None
            assert said.recall_bound == hit.recall_bound
            assert ", within" in said.reason or said.reason.endswith("but its answer is proven")


LINE = Store("l2", {str(x): np.array([x, 1], dtype=np.float32) for x in range(1, 9)})


def cached(**arguments: Any) -> QueryCache[str]:
    """Return a cache that knows the two documents nearest to (1, 1), or more for larger k."""
    made: dict[str, Any] = {
        "dim": 2,
        "capacity": 10,
        "tolerance": 1.0,
        "vectors": LINE.read,
    } | arguments
    cache = QueryCache[str](**made)
    cache.insert([1, 1], candidates(["1", "2"]), "mine")
    return cache


def reason(cache: QueryCache[str], x: float, k: int = 1, key: str = "mine") -> str:
    return cache.explain([x, 1], k, key).reason


class TestWords:
    def test_of_a_hit(self) -> None:
        assert reason(cached(), 1.25) == f"{NEAR}0.25, within the tolerance of 1"

    def test_of_a_miss_by_distance(self) -> None:
        said = cached().explain([5, 1], 1, "mine")
        assert said.reason == f"{NEAR}4, beyond the tolerance of 1"
        assert (said.hit, said.distance, said.tolerance, said.entries) == (False, 4.0, 1.0, 1)

    def test_of_a_miss_by_key(self) -> None:
        said = cached().explain([1, 1], 1, "yours")
        assert said.reason == "no entry of this key serves k=1"
        assert (said.distance, said.recall_bound, said.entries) == (None, None, 0)

    def test_of_a_miss_by_k(self) -> None:
        assert reason(cached(), 1, 3) == "no entry of this key serves k=3"

    def test_of_a_miss_by_hash(self) -> None:
        cache = cached(index="lsh")
        said = cache.explain([-1, -1], 1, "mine")
        assert said.reason == "no entry in the buckets searched of this key serves k=1"
        assert said.entries == 1

    def test_of_a_miss_by_time(self) -> None:
        cache = cached(ttl=60)
        now = cache._clock()
        cache._clock = lambda: now + 61 * 10**9
        assert reason(cache, 1) == "no entry of this key serves k=1"

    def test_of_a_new_document(self) -> None:
        cache = cached()
        cache.documents_added(["new"], [[2.5, 1.0]])
        assert reason(cache, 1.9) == (f"{NEAR}0.9, but newer documents may belong in the answer")

    def test_of_a_proof(self) -> None:
        """Everything within 1 is known; the second document is 1.25 away from the query."""
        cache = cached(exact_search=True, guarantee=0.8)
        assert reason(cache, 1.25) == f"{NEAR}0.25, within the tolerance of 1"
        assert reason(cache, 1.25, 2) == (
            f"{NEAR}0.25, but of the recall of 0.80 asked for, 0.50 is proven"
        )
        assert cache.explain([1.25, 1], 2, "mine").recall_bound == 0.5

    def test_of_an_answer_of_which_nothing_is_known(self) -> None:
        cache = cached(exact_search=True, guarantee="exact")
        cache.insert([5, 1], [Candidate("unreadable", "text")], "mine")
        assert reason(cache, 5.5) == (
            f"{NEAR}0.5, but of the recall of 1.00 asked for, nothing is proven of it"
        )

    def test_of_a_proof_beyond_what_is_learnt(self) -> None:
        cache = cached(exact_search=True, tolerance="auto")
        assert reason(cache, 1.25) == f"{NEAR}0.25; beyond the tolerance, but its answer is proven"

    def test_of_a_failed_check(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cache = cached(tolerance="auto", start_tolerance=2.0)
        assert cache.lookup([1.5, 1], 1, "mine") is not None
        assert cache.report([1.5, 1], 1, candidates(["another"]), "mine") is False
        # As the tolerance may have grown, in the meantime.
        monkeypatch.setattr(cache._decisions, "tolerance_of", lambda _key: 2.0)
        assert reason(cache, 1.5) == (
            f"{NEAR}0.5, but a check of an answer of this entry at such a distance failed"
        )
        assert reason(cache, 1.2) == f"{NEAR}0.2, within the tolerance of 2"


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (([1.0], 1), "an embedding must have the shape (2,), got (1,)"),
            (([0, 0], 1), "an embedding must not be zero: the zero vector has no direction"),
            (([math.nan, 0], 1), "an embedding must be finite in 32-bit floats"),
            (([1, 0], 0), "k must be a whole number of at least 1, got 0"),
            (([1, 0], 1, []), "key must be hashable, got []"),
        ],
    )
    def test_is_refused_as_lookup_refuses_it(self, arguments: Any, words: str) -> None:
        cache = cached()
        for call in (cache.explain, cache.lookup):
            with pytest.raises(ConfigurationError, match=re.escape(words)):
                call(*arguments)
