from __future__ import annotations

import dataclasses
import logging
import math
import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, Hit, Metric, QueryCache
from ragcache_integrations.query_cache.types import Wording

RNG = np.random.default_rng(0)


def candidates(*ids: str) -> list[Candidate[str]]:
    return [Candidate(one, f"text {one}") for one in ids]


def hit(found: Hit[str] | None) -> Hit[str]:
    assert found is not None
    return found


def ids(answer: Hit[str]) -> list[str]:
    return [candidate.id for candidate in answer.candidates]


class Vectors:
    """A source over a dictionary that notes what it was asked for."""

    def __init__(self, vectors: Mapping[str, ArrayLike]) -> None:
        self.vectors = dict(vectors)
        self.asked: list[list[str]] = []
        self.error: Exception | None = None

    def __call__(self, wanted: Sequence[str]) -> ArrayLike:
        self.asked.append(list(wanted))
        if self.error is not None:
            raise self.error
        return np.array([self.vectors[one] for one in wanted], dtype=np.float32)


LINE = {str(x): [float(x), 0.0] for x in range(100)}


class TestLookup:
    def test_the_same_vector_hits_at_tolerance_zero_and_no_other_does(self) -> None:
        cache = QueryCache[str](384, 10, 0)
        vector = RNG.normal(size=384).astype(np.float32)
        cache.insert(vector, candidates("a"))
        assert hit(cache.lookup(vector.copy(), 1)).distance == 0
        assert hit(cache.lookup(vector.astype(np.float64).tolist(), 1)).distance == 0
        vector[7] = np.nextafter(vector[7], np.float32(2))
        assert cache.lookup(vector, 1) is None

    @pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
    def test_the_same_vector_hits_under_every_metric(self, metric: Metric) -> None:
        cache = QueryCache[str](384, 50, 0, metric=metric)
        vectors = RNG.normal(size=(50, 384))
        for number, vector in enumerate(vectors):
            cache.insert(vector, candidates(str(number)))
        for number, vector in enumerate(vectors):
            assert ids(hit(cache.lookup(vector, 1))) == [str(number)]

    def test_an_infinite_tolerance_hits_whenever_there_is_a_key(self) -> None:
        cache = QueryCache[str](2, 10, math.inf)
        assert cache.lookup([1, 0], 1) is None
        cache.insert([1, 0], candidates("a"), key="mine")
        assert cache.lookup([-3e38, 3e38], 1) is None
        assert ids(hit(cache.lookup([-3e38, 3e38], 1, key="mine"))) == ["a"]

    def test_the_tolerance_is_a_true_distance_and_inclusive(self) -> None:
        cache = QueryCache[str](2, 10, 5.0)
        cache.insert([1, 1], candidates("a"))
        assert hit(cache.lookup([4, 5], 1)).distance == 5
        assert cache.lookup([4, 5.001], 1) is None

    def test_an_entry_serves_every_smaller_k_and_no_larger_one(self) -> None:
        cache = QueryCache[str](2, 10, 0)
        cache.insert([1, 0], candidates("a", "b", "c"))
        assert ids(hit(cache.lookup([1, 0], 2))) == ["a", "b"]
        assert ids(hit(cache.lookup([1, 0], 3))) == ["a", "b", "c"]
        assert cache.lookup([1, 0], 4) is None

    def test_a_complete_entry_serves_every_k(self) -> None:
        cache = QueryCache[str](2, 10, 0)
        cache.insert([1, 0], candidates("a"), complete=True)
        cache.insert([0, 1], [], complete=True)
        assert ids(hit(cache.lookup([1, 0], 10**30))) == ["a"]
        assert ids(hit(cache.lookup([0, 1], 5))) == []

    def test_a_farther_entry_answers_where_the_nearest_has_too_few(self) -> None:
        cache = QueryCache[str](2, 10, 1)
        cache.insert([1, 0], candidates("a"))
        cache.insert([1.5, 0], candidates("b", "c"))
        assert ids(hit(cache.lookup([1, 0], 1))) == ["a"]
        assert ids(hit(cache.lookup([1, 0], 2))) == ["b", "c"]

    def test_a_replaced_entry_answers_with_its_new_candidates(self) -> None:
        cache = QueryCache[str](2, 10, 0)
        cache.insert([1, 0], candidates("a"))
        cache.insert([1, 0], candidates("b"))
        assert len(cache) == 1
        assert ids(hit(cache.lookup([1, 0], 1))) == ["b"]


class TestReranking:
    def test_candidates_are_ranked_for_the_new_query(self) -> None:
        cache = QueryCache[str](2, 10, 2, vectors=Vectors(LINE))
        assert cache.fetch_count(2) == 8
        cache.insert([1, 0], candidates("1", "0", "2", "3"))
        answer = hit(cache.lookup([2.75, 0], 2))
        assert ids(answer) == ["3", "2"]
        assert answer.reranked
        assert answer.scores == (0.25, 0.75)

    def test_the_store_s_order_stands_for_the_same_query(self) -> None:
        cache = QueryCache[str](2, 10, 2, vectors=Vectors(LINE))
        cache.insert([1, 0], candidates("3", "1"))
        answer = hit(cache.lookup([1, 0], 2))
        assert ids(answer) == ["3", "1"]
        assert (answer.reranked, answer.scores) == (False, None)

    def test_without_a_source_nothing_is_ranked(self) -> None:
        cache = QueryCache[str](2, 10, 2)
        assert cache.fetch_count(2) == 2
        cache.insert([1, 0], candidates("1", "2"))
        assert ids(hit(cache.lookup([2, 0], 2))) == ["1", "2"]

    def test_a_vector_is_read_and_kept_once_and_released_with_its_last_entry(self) -> None:
        source = Vectors(LINE)
        cache = QueryCache[str](2, 2, 0, vectors=source)
        cache.insert([1, 0], candidates("1", "2"))
        cache.insert([2, 0], candidates("2", "3"))
        assert source.asked == [["1", "2"], ["3"]]
        assert cache.stats().vectors == 3
        cache.insert([3, 0], candidates("3"))  # evicts the first
        assert cache.stats().vectors == 2
        assert cache.delete([2, 0])
        assert cache.stats().vectors == 1
        cache.clear()
        assert cache.stats().vectors == 0

    def test_one_id_with_other_content_is_another_document(self) -> None:
        source = Vectors({"1": [1.0, 0.0], "9": [9.0, 0.0]})
        cache = QueryCache[str](2, 10, 8, vectors=source)
        cache.insert([0, 1], [Candidate("1", "old", "old"), Candidate("9", "nine")])
        source.vectors["1"] = [20.0, 0.0]
        cache.insert([9, 9], [Candidate("1", "new", "new"), Candidate("9", "nine")])
        assert [candidate.document for candidate in hit(cache.lookup([0, 2], 2)).candidates] == [
            "old",
            "nine",
        ]
        assert [one.document for one in hit(cache.lookup([15.1, 9], 2)).candidates] == [
            "new",
            "nine",
        ]

    def test_an_id_that_two_documents_share_is_not_ranked_by(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        cache = QueryCache[str](2, 10, 9, vectors=Vectors(LINE))
        cache.insert([5, 0], [Candidate("1", "one", "1"), Candidate("1", "other", "2")])
        answer = hit(cache.lookup([1, 0], 2))
        assert [candidate.document for candidate in answer.candidates] == ["one", "other"]
        assert not answer.reranked
        assert "shared by documents" in caplog.text

    def test_an_entry_whose_vectors_are_lacking_is_kept_as_it_is(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        cache = QueryCache[str](2, 10, 9, vectors=Vectors(LINE))
        with caplog.at_level(logging.WARNING):
            cache.insert([1, 0], candidates("3", "unknown", "2"))
            cache.insert([9, 0], candidates("4", "missing"))
        answer = hit(cache.lookup([2, 0], 3))
        assert ids(answer) == ["3", "unknown", "2"]
        assert not answer.reranked
        assert cache.stats().vectors == 0
        assert len(caplog.records) == 1

    @pytest.mark.parametrize(
        "read",
        [
            [[1.0, 2.0, 3.0]],
            [[1.0, 2.0], [1.0, 2.0]],
            [1.0, 2.0],
            [[math.nan, 1.0]],
            [["a", "b"]],
            None,
        ],
    )
    def test_unusable_vectors_are_refused_and_nothing_changes(self, read: Any) -> None:
        cache = QueryCache[str](2, 10, 9, vectors=lambda _: read)
        with pytest.raises(ConfigurationError, match="the documents' vectors"):
            cache.insert([1, 0], candidates("1"))
        assert len(cache) == 0
        assert cache.stats().vectors == 0

    def test_a_source_s_own_error_passes_and_nothing_changes(self) -> None:
        source = Vectors(LINE)
        cache = QueryCache[str](2, 10, 9, vectors=source)
        cache.insert([1, 0], candidates("1", "2"))
        source.error = ConnectionError("gone")
        before = cache.stats()
        with pytest.raises(ConnectionError, match="gone"):
            cache.insert([2, 0], candidates("2", "3"))
        assert cache.stats() == before
        cache.delete([1, 0])
        assert cache.stats().vectors == 0

    def test_unranked_keeps_what_ranking_finds_among_random_vectors(self) -> None:
        documents = RNG.normal(size=(200, 16)).astype(np.float32)
        by_id = {str(number): vector for number, vector in enumerate(documents)}
        cache = QueryCache[str](16, 10, 10, metric="ip", vectors=Vectors(by_id))
        cache.insert(RNG.normal(size=16), candidates(*by_id))
        query = RNG.normal(size=16).astype(np.float32)
        expected = np.argsort(-(documents.astype(np.float64) @ query))[:7]
        assert ids(hit(cache.lookup(query, 7))) == [str(number) for number in expected]


class TestStoreVersion:
    def test_a_search_that_began_before_a_clear_is_dropped(self) -> None:
        cache = QueryCache[str](2, 10, 9, vectors=Vectors(LINE))
        version = cache.store_version
        cache.clear()
        assert not cache.insert([1, 0], candidates("1"), store_version=version)
        assert cache.insert([1, 0], candidates("1"), store_version=cache.store_version)
        assert cache.stats().dropped == 1

    def test_a_clear_while_vectors_are_read_drops_the_insertion(self) -> None:
        def read(wanted: Sequence[str]) -> ArrayLike:
            cache.clear()
            return np.ones((len(wanted), 2))

        cache = QueryCache[str](2, 10, 9, vectors=read)
        assert not cache.insert([1, 0], candidates("1"))
        assert len(cache) == 0
        assert cache.stats().vectors == 0

    @pytest.mark.parametrize("version", [1, -1, 0.0, "0", True])
    def test_a_version_that_cannot_be_is_refused(self, version: Any) -> None:
        cache = QueryCache[str](2, 10, 9)
        with pytest.raises(ConfigurationError, match="store_version"):
            cache.insert([1, 0], candidates("1"), store_version=version)


GOOD: dict[str, Any] = {"dim": 2, "capacity": 10, "tolerance": 0.5}


class TestBadInput:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("dim", 0),
            ("dim", 2.0),
            ("dim", True),
            ("capacity", 0),
            ("capacity", -1),
            ("capacity", "10"),
            ("tolerance", -0.1),
            ("tolerance", math.nan),
            ("tolerance", "0.5"),
            ("tolerance", "AUTO"),
            ("tolerance", True),
            ("tolerance", None),
            ("index", "hnsw"),
            ("eviction", "random"),
            ("eviction", ["lru"]),
            ("metric", "dot"),
            ("num_hyperplanes", 0),
            ("bucket_capacity", 0),
            ("rerank_factor", 0),
            ("rerank_factor", 1.5),
            ("guarantee", "exact"),
            ("guarantee", 1.5),
            ("ttl", 0),
            ("vectors", [1, 2]),
        ],
    )
    def test_constructor(self, name: str, value: Any) -> None:
        with pytest.raises(ConfigurationError, match=name):
            QueryCache(**{**GOOD, name: value})

    def test_unknown_argument(self) -> None:
        with pytest.raises(TypeError, match=r"^QueryCache\(\) .*'tolerence'"):
            QueryCache(**GOOD, tolerence=1)  # type: ignore[call-arg]  # the point

    @pytest.mark.parametrize(
        "embedding",
        [
            [0, 0],
            [math.nan, 1],
            [math.inf, 1],
            [1e300, 1],
            [1e-300, 0],
            [1],
            [1, 2, 3],
            [[1, 2]],
            [],
            ["a", "b"],
            [1j, 1],
            [1, [2]],
            None,
            "text",
        ],
    )
    @pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
    def test_embeddings(self, embedding: Any, metric: Metric) -> None:
        cache = QueryCache[str](**GOOD, metric=metric)
        for call in (
            lambda: cache.lookup(embedding, 1),
            lambda: cache.insert(embedding, candidates("a")),
            lambda: cache.delete(embedding),
        ):
            with pytest.raises(ConfigurationError, match="an embedding must"):
                call()
        assert (len(cache), cache.stats().lookups) == (0, 0)

    @pytest.mark.parametrize("k", [0, -1, 1.0, "1", None, True])
    def test_k(self, k: Any) -> None:
        with pytest.raises(ConfigurationError, match="k must be"):
            QueryCache(**GOOD).lookup([1, 0], k)

    def test_unhashable_key(self) -> None:
        cache = QueryCache[str](**GOOD)
        with pytest.raises(ConfigurationError, match="hashable"):
            cache.lookup([1, 0], 1, key={})  # type: ignore[arg-type]  # the point
        with pytest.raises(ConfigurationError, match="hashable"):
            cache.insert([1, 0], candidates("a"), key=[])  # type: ignore[arg-type]  # the point

    def test_candidates_of_another_kind_and_none_at_all(self) -> None:
        cache = QueryCache[str](**GOOD)
        with pytest.raises(ConfigurationError, match="Candidate"):
            cache.insert([1, 0], ["text"])  # type: ignore[list-item]  # the point
        with pytest.raises(ConfigurationError, match="without candidates"):
            cache.insert([1, 0], [])

    def test_a_later_change_of_the_array_does_not_reach_the_key(self) -> None:
        cache = QueryCache[str](**{**GOOD, "tolerance": 0})
        vector = np.array([1, 0], dtype=np.float32)
        cache.insert(vector, candidates("a"))
        vector[0] = 5
        assert cache.lookup([1, 0], 1) is not None

    def test_the_document_s_type_may_be_named(self) -> None:
        assert Candidate[str]("a", "text").document == "text"
        assert Hit[str]((), 0.0, 0.0).candidates == ()

    def test_stats_are_frozen(self) -> None:
        cache = QueryCache[str](**GOOD)
        cache.insert([1, 0], candidates("a"))
        with pytest.raises(dataclasses.FrozenInstanceError):
            cache.stats().hits = 5  # type: ignore[misc]  # the point


def test_many_threads_get_no_wrong_answer() -> None:
    """Every document names key and embedding it was fetched for: a mixed-up answer shows."""
    threads, calls, points = 8, 1500, 40
    vectors = RNG.normal(size=(points, 8)).astype(np.float32)
    # Per tenant and point three documents; the source knows all of them.
    source = {
        f"{t}/{p}/{r}": vectors[p] + r for t in range(3) for p in range(points) for r in (0, 1)
    }
    cache = QueryCache[str](8, 25, 0.01, vectors=Vectors(source))
    barrier = threading.Barrier(threads)

    def hammer(seed: int) -> int:
        chance = random.Random(seed)
        barrier.wait()
        hits = 0
        for _ in range(calls):
            tenant, point = chance.randrange(3), chance.randrange(points)
            what = chance.random()
            if what < 0.5:
                nearby = vectors[point] + chance.choice([0, 0.001])  # re-ranked, or as it is
                answer = cache.lookup(nearby, 2, key=tenant)
                if answer is not None:
                    hits += 1
                    assert ids(answer) == [f"{tenant}/{point}/{r}" for r in (0, 1)]
            elif what < 0.95:
                found = candidates(*[f"{tenant}/{point}/{r}" for r in (0, 1)])
                cache.insert(vectors[point], found, key=tenant, store_version=None)
            elif what < 0.999:
                cache.delete(vectors[point], key=tenant)
            else:
                cache.clear()
            assert cache.stats().entries <= 25
        return hits

    with ThreadPoolExecutor(threads) as pool:
        hits = sum(pool.map(hammer, range(threads)))
    stats = cache.stats()
    assert stats.hits == hits > 0
    for tenant in range(3):
        for vector in vectors:
            cache.delete(vector, key=tenant)
    assert len(cache) == cache.stats().vectors == 0


class TestWordings:
    """Queries with words are answered by entries of words that they accept."""

    @staticmethod
    def wording(text: str) -> Wording:
        return Wording(text, lambda one, other: one[:1] == other[:1])

    def cache(self, **settings: Any) -> QueryCache[str]:
        cache = QueryCache[str](dim=2, capacity=9, **{"tolerance": 0.5, **settings})
        cache.insert([1.0, 0.0], candidates("a"), wording=self.wording("apple"))
        cache.insert([1.0, 0.1], candidates("b"), wording=self.wording("bread"))
        cache.insert([1.0, 0.2], candidates("c"))
        return cache

    def test_the_nearest_that_is_accepted_answers(self) -> None:
        cache = self.cache()
        assert ids(hit(cache.lookup([1.0, 0.0], 1, wording=self.wording("beer")))) == ["b"]
        assert ids(hit(cache.lookup([1.0, 0.2], 1, wording=self.wording("ale")))) == ["a"]
        assert cache.lookup([1.0, 0.0], 1, wording=self.wording("cake")) is None
        assert ids(hit(cache.lookup([1.0, 0.2], 1))) == ["c"]
        stats = cache.stats()
        assert (stats.lookups, stats.hits) == (4, 3)

    def test_one_beyond_the_tolerance_does_not(self) -> None:
        cache = self.cache(tolerance=0.05)
        assert cache.lookup([1.0, 0.0], 1, wording=self.wording("beer")) is None

    def test_one_that_serves_fewer_does_not(self) -> None:
        assert self.cache().lookup([1.0, 0.0], 2, wording=self.wording("beer")) is None

    def test_explanations_say_so(self) -> None:
        cache = self.cache()
        explained = cache.explain([1.0, 0.0], 1, wording=self.wording("cake"))
        assert (explained.hit, explained.distance) == (False, 0.0)
        assert "of other words" in explained.reason
        explained = cache.explain([1.0, 0.0], 1, wording=self.wording("beer"))
        assert explained.hit
        assert explained.distance == pytest.approx(0.1)

    def test_nothing_is_learnt_of_entries_that_would_not_answer(self) -> None:
        cache = self.cache(tolerance="auto")
        for number in range(50):
            cache.insert(
                [1.0, 0.001 * number], candidates(f"{number}"), wording=self.wording(f"{number}")
            )
        learning = cache.stats().learning
        assert learning is not None
        assert learning.labels < 50

    def test_files_keep_them(self, tmp_path: Path) -> None:
        self.cache().save(tmp_path / "cache.npz")
        loaded = QueryCache[str](dim=2, capacity=9, tolerance=0.5)
        loaded.load(tmp_path / "cache.npz")
        assert ids(hit(loaded.lookup([1.0, 0.0], 1, wording=self.wording("beer")))) == ["b"]
        assert loaded.lookup([1.0, 0.0], 1, wording=self.wording("cake")) is None
