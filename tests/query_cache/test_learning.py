"""``tolerance="auto"`` in the cache: what it learns from, and what comes of it.

The tests of ``adaptive_tolerance`` show that what it learns is sound. Here: that the cache tells it
the truth, and heeds it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, Metric, QueryCache
from ragcache_integrations.query_cache.tolerance import AdaptiveTolerance

from .reference import Store, Vector, candidates

DIM, K, RHO = 16, 3, 4
LINE = {str(x): np.array([x, 1], dtype=np.float32) for x in range(1, 20)}


def learner(cache: QueryCache[Any], tenant: Hashable = None) -> AdaptiveTolerance:
    learnt = cache._decisions.learnt
    assert learnt is not None
    return learnt._of(tenant)


class Labels:
    """Notes what a cache tells its learner."""

    def __init__(self, cache: QueryCache[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[float, bool, bool]] = []
        right = learner(cache).observe

        def observe(distance: float, violated: bool, *, served: bool) -> None:
            self.seen.append((round(distance, 6), violated, served))
            right(distance, violated, served=served)

        monkeypatch.setattr(learner(cache), "observe", observe)


def cached(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> tuple[QueryCache[str], Labels]:
    """Return a cache that knows documents 1 to 4 for (1, 1)."""
    made: dict[str, Any] = {
        "tolerance": "auto",
        "vectors": Store("l2", LINE).read,
        "target_recall": 0.6,
    }
    cache = QueryCache[str](2, 10, **made | arguments)
    labels = Labels(cache, monkeypatch)
    cache.insert([1, 1], candidates(["1", "2", "3", "4"]), k=2)
    assert labels.seen == []
    return cache, labels


def store_says(*ids: str) -> list[Candidate[str]]:
    return candidates(ids)


class TestLabels:
    def test_a_miss_tells_whether_the_nearest_entry_had_answered_well(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache, labels = cached(monkeypatch)
        cache.insert([1.5, 1], store_says("1", "2", "3"), k=2)
        assert labels.seen == [(0.5, False, False)]
        cache.insert([9, 1], store_says("9", "8", "10"), k=2)  # the nearest is at 1.5
        assert labels.seen[1:] == [(7.5, True, False)]

    def test_half_an_answer_is_judged_by_the_recall_wanted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for target, violated in ((0.5, False), (0.51, True)):
            cache, labels = cached(monkeypatch, target_recall=target)
            cache.insert([4.4, 1], store_says("4", "5", "3"), k=2)  # of which it knows 4, and 3
            assert labels.seen == [(3.4, violated, False)]

    def test_a_document_as_near_as_the_store_s_last_one_is_as_good(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """3 and 5 are both 1 away from 4; the store happened to prefer the other."""
        cache, labels = cached(monkeypatch, target_recall=1.0)
        cache.insert([4, 1], store_says("4", "5", "3"), k=2)
        assert labels.seen == [(3.0, False, False)]

    def test_k_is_what_was_wanted_not_what_was_fetched(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache, labels = cached(monkeypatch)
        cache.insert([2, 1], store_says("2", "1", "3", "4", "5", "6"), k=3)
        assert labels.seen == [(1.0, False, False)]
        cache.insert([2.5, 1], store_says("2", "3", "1", "4", "5", "6", "7"))  # k=7
        assert labels.seen[1:] == []  # no entry had answered that

    def test_nothing_is_learnt_from_other_keys_and_stale_entries(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache, labels = cached(monkeypatch)
        cache.insert([1.5, 1], store_says("1", "2"), "another key", k=2)
        cache.documents_added(["6.1"], [[6.1, 1.0]])
        cache.insert([4, 1], store_says("4", "3"), k=2)  # 6.1 might have been nearer
        assert labels.seen == []

    def test_nothing_is_learnt_from_a_search_that_something_overtook(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache, labels = cached(monkeypatch)
        version = cache.store_version
        cache.documents_removed(["17"])
        cache.insert([1.5, 1], store_says("1", "2"), k=2, store_version=version)
        assert labels.seen == []

    def test_without_vectors_documents_are_told_by_their_names(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache, labels = cached(monkeypatch, vectors=None)
        cache.insert([1.5, 1], store_says("2", "1"), k=2)
        cache.insert([1.5, 1.25], store_says("2", "5"), k=2)
        cache.insert([1.5, 1.5], [Candidate("2", "other", "changed"), *store_says("5")], k=1)
        assert labels.seen == [(0.5, False, False), (0.25, True, False), (0.25, True, False)]

    @pytest.mark.parametrize("metric", ["cosine", "ip"])
    def test_for_every_metric(self, metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(0)
        store = Store(metric, {str(n): rng.normal(size=4).astype(np.float32) for n in range(40)})
        cache = QueryCache[str](4, 100, "auto", metric=metric, vectors=store.read)
        labels = Labels(cache, monkeypatch)
        expected = []
        first = rng.normal(size=4).astype(np.float32)
        cache.insert(first, candidates(store.ranked(first)[:8]), k=3)
        known = store.ranked(first)[:8]
        for scale in (0.01, 0.1, 0.5, 2.0):
            query = (first + rng.normal(scale=scale, size=4)).astype(np.float32)
            best = store.ranked(query)[:3]
            values = store.values(query)
            answer = sorted(known, key=values.__getitem__)[:3]
            expected.append(answer != best)
            cache.insert(query, candidates(best), k=3)
            cache.delete(query)
        assert [violated for _, violated, _ in labels.seen] == expected
        assert set(expected) == {True, False}


class TestReport:
    def test_a_good_answer_and_a_bad_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cache, labels = cached(monkeypatch, start_tolerance=4.0)
        hit = cache.lookup([1.5, 1], 2)
        assert hit is not None
        assert hit.check  # nothing but the start speaks for it
        assert cache.report([1.5, 1], 2, store_says("1", "2")) is True
        assert cache.report([4.4, 1], 2, store_says("4", "5")) is False
        assert labels.seen == [(0.5, False, True), (3.4, True, True)]
        assert cache.tolerance < 3.4
        report = cache.stats().learning
        assert report is not None
        assert (report.shadow_checks, report.failures, report.hits) == (2, 1, 1)

    def test_a_failed_check_caps_the_entry_well_within_its_distance(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Even where the tolerance allows more: others do better than this one."""
        cache, labels = cached(monkeypatch, start_tolerance=4.0)
        cache.insert([100, 1], store_says("19", "18"), k=1)
        assert cache.report([2.5, 1], 1, store_says("another")) is False
        labels.seen.clear()
        cache.insert([2.5, 1], store_says("1", "2"), k=1)
        assert labels.seen == []  # it would not have been served
        cache.delete([2.5, 1])
        monkeypatch.setattr(cache._decisions, "tolerance_of", lambda _key: 4.0)
        cache._decisions.limit = 4.0
        assert cache.lookup([2.5, 1], 1) is None
        assert cache.lookup([2, 1], 1) is None
        assert cache.lookup([1.5, 1], 1) is not None
        assert cache.lookup([97, 1], 1) is not None
        # A search there makes an entry of its own, and one in the same place begins anew.
        cache.insert([1, 1], store_says("1", "2", "3"), k=1)
        cache._decisions.limit = 4.0
        assert cache.lookup([2.5, 1], 1) is not None

    def test_a_proven_hit_needs_no_check_and_heeds_no_tolerance(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache, _ = cached(monkeypatch, exact_search=True)
        assert cache.tolerance == 0
        hit = cache.lookup([1.4, 1], 2)
        assert hit is not None
        assert (hit.recall_bound, hit.check) == (1.0, False)
        assert cache.lookup([3, 1], 2) is None  # known up to 3 from the key; too far to prove
        report = cache.stats().learning
        assert report is not None
        assert report.hits == 0

    def test_one_key_teaches_nothing_to_another(self) -> None:
        """By default each key is a tenant; ``tenant_of`` says which keys are one's."""
        for tenant_of, theirs in ((None, 0.0), (lambda key: key[0], 0.0), (lambda _: 0, 1.0)):
            cache = QueryCache[str](2, 2000, "auto", tenant_of=tenant_of, max_violation=0.2)
            for number in range(400):
                cache.insert([5 * number, 1], store_says("1"), ("ann", 1), k=1)
                cache.insert([5 * number + 1, 1], store_says("1"), ("ann", 1), k=1)
            assert cache.lookup([1.9, 1], 1, ("ann", 1)) is not None
            for key in (("bob", 1), ("ann", 2)):
                cache.insert([0, 1], store_says("1"), key)
            hit = cache.lookup([0.9, 1], 1, ("bob", 1))
            assert (hit is not None) == (theirs > 0)
            explained = cache.explain([0.9, 1], 1, ("bob", 1))
            assert (explained.hit, explained.tolerance > 0) == (theirs > 0, theirs > 0)
            mine = cache.lookup([0.9, 1], 1, ("ann", 2))
            assert (mine is not None) == (tenant_of is not None)

    def test_the_same_query_needs_no_check(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cache, _ = cached(monkeypatch)
        for _ in range(100):
            hit = cache.lookup([1, 1], 2)
            assert hit is not None
            assert not hit.check

    def test_nothing_comes_of_it_where_the_entry_is_gone_or_nothing_is_learnt(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache, labels = cached(monkeypatch, start_tolerance=4.0)
        assert cache.report([1.5, 1], 2, store_says("1", "2"), "another key") is None
        cache.clear()
        assert cache.report([1.5, 1], 2, store_says("1", "2")) is None
        assert labels.seen == []
        fixed = QueryCache[str](2, 10, 1.0)
        fixed.insert([1, 1], candidates(["1"]))
        assert fixed.report([1, 1], 1, candidates(["1"])) is None
        assert fixed.stats().learning is None

    def test_it_keeps_no_vectors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cache, _ = cached(monkeypatch, start_tolerance=4.0)
        before = cache.stats().vectors
        cache.report([1.5, 1], 2, store_says("1", "9"))
        assert cache.stats().vectors == before == 4

    def test_bad_input(self) -> None:
        cache = QueryCache[str](2, 10, "auto")
        for query, k, words in (([0, 0], 1, "zero"), ([1, 0], 0, "k must be")):
            with pytest.raises(ConfigurationError, match=words):
                cache.report(query, k, [])


def stream(seed: int, count: int, topics: int = 40) -> tuple[Store, list[Vector]]:
    """Return a store and questions about few topics, in ever other words.

    Most are 0.15 from their topic, one in eight 1.6. Topics are about 5 apart: a cache that takes
    everything for a repetition is wrong nearly always.
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(topics, DIM))
    documents = (centres[:, None] + 0.45 * rng.normal(size=(topics, 20, DIM))).reshape(-1, DIM)
    store = Store(
        "l2", {str(n): document.astype(np.float32) for n, document in enumerate(documents)}
    )
    queries = []
    for topic in rng.integers(topics, size=count):
        apart = rng.normal(size=DIM)
        apart *= (0.15 if rng.random() < 0.875 else 1.6) / np.linalg.norm(apart)
        queries.append((centres[topic] + apart).astype(np.float32))
    return store, queries


def run(start: float | None, store: Store, queries: Sequence[Vector]) -> dict[str, float]:
    """Answer a stream as a retriever does, and judge every hit."""
    cache = QueryCache[str](
        DIM, 4000, "auto", vectors=store.read, start_tolerance=start, rerank_factor=RHO,
        target_recall=0.6, max_violation=0.05,
    )  # fmt: skip
    calls = hits = violations = 0
    for query in queries:
        version = cache.store_version
        hit = cache.lookup(query, K)
        values = store.values(query)
        best = sorted(values, key=values.__getitem__)
        if hit is None:
            calls += 1
            found = candidates(best[: cache.fetch_count(K)])
            cache.insert(query, found, k=K, store_version=version)
            continue
        hits += 1
        right = sum(candidate.id in best[:K] for candidate in hit.candidates) / K
        violations += right < 0.6
        if hit.check:
            calls += 1
            assert cache.report(query, K, candidates(best[:K])) == (right >= 0.6)
    report = cache.stats().learning
    assert report is not None
    assert report.shadow_checks == calls - (len(queries) - hits)
    return {
        "saved": 1 - calls / len(queries),
        "violated": violations / max(hits, 1),
        "tolerance": cache.tolerance,
    }


class TestStream:
    @pytest.mark.parametrize("start", [None, 0.01, 50.0], ids=["none", "too low", "too high"])
    def test_a_tolerance_is_found_from_wherever_it_starts(self, start: float | None) -> None:
        store, queries = stream(0, 1200)
        found = run(start, store, queries)
        assert found["violated"] < 0.05
        assert 0.2 < found["tolerance"] < 3.0
        assert found["saved"] > 0.6

    def test_where_no_answer_carries_over_nothing_is_served_for_long(self) -> None:
        rng = np.random.default_rng(1)
        store, _ = stream(1, 0)
        queries = [3 * rng.normal(size=DIM).astype(np.float32) for _ in range(600)]
        found = run(50.0, store, queries)
        assert found["tolerance"] < 5
        assert found["saved"] < 0.05

    def test_an_unsettled_tolerance_is_not_infinite(self) -> None:
        cache = QueryCache[str](2, 10, "auto", start_tolerance=math.inf)
        assert cache.tolerance == 1e4
