"""When a retriever's cache is made, and on what it relies."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.retrievers.cached.knobs import CacheKnobs
from ragcache_integrations.retrievers.cached.lazy_cache import AnyCache, LazyCache
from ragcache_integrations.retrievers.stores.facts import StoreFacts


class Store:
    """Vectors of some lengths."""

    def __init__(self, *lengths: float) -> None:
        self.all = lengths
        self.read = 0

    def lengths(self) -> tuple[float, float] | None:
        self.read += 1
        return (min(self.all), max(self.all)) if self.all else None

    def facts(self, **others: Any) -> StoreFacts:
        known: dict[str, Any] = {"metric": "l2", "exact": True, "doubt": ""} | others
        return StoreFacts(vectors=lambda _: [[1.0, 0.0]], lengths=self.lengths, **known)


def made(facts: StoreFacts, **knobs: Any) -> LazyCache[str]:
    return LazyCache(CacheKnobs(**knobs), facts, "tag")


def settings(cache: AnyCache[str]) -> Settings:
    found: Settings = cache._settings
    return found


def vector(*numbers: float) -> NDArray[np.float32]:
    return np.array(numbers, dtype=np.float32)


UNIT, LONG = vector(0.6, 0.8), vector(3.0, 4.0)


def test_it_is_made_once_and_with_the_knobs() -> None:
    caches = made(
        Store(1).facts(),
        capacity=7,
        cache_index="lsh",
        num_hyperplanes=3,
        bucket_capacity=5,
        multi_probe=2,
        guarantee=0.5,
        ttl=9.0,
        max_rerank_factor=20,
        target_recall=0.9,
        max_violation=0.1,
        start_tolerance=0.2,
        tolerance="auto",
        seed=3,
    )
    assert caches.current is None
    cache = caches.for_query(UNIT)
    assert caches.for_query(UNIT) is caches.of_dimension(2) is caches.current is cache
    wanted = {
        "dim": 2,
        "capacity": 7,
        "index": "lsh",
        "num_hyperplanes": 3,
        "bucket_capacity": 5,
        "multi_probe": 2,
        "guarantee": 0.5,
        "ttl": 9.0,
        "max_rerank_factor": 20,
        "target_recall": 0.9,
        "max_violation": 0.1,
        "start_tolerance": 0.2,
        "tolerance": "auto",
        "seed": 3,
        "tag": "tag",
        "exact_search": True,
    }
    assert {name: getattr(settings(cache), name) for name in wanted} == wanted


def test_every_knob_that_the_cache_knows_reaches_it() -> None:
    own = {"k", "cache_index", "embedding_memo", "namespace", "follow_changes", "annotate"}
    own |= {
        "cache",
        "filter_key",
        "guard",
        "ignores",
        "normalize_text",
        "pickle_cache",
        "sole_writer",
        "version",
    }
    arguments = made(Store(1).facts())._arguments
    assert CacheKnobs.model_fields.keys() - own <= arguments.keys()


def test_a_tag_of_one_s_own() -> None:
    assert settings(made(Store(1).facts(), tag="own").of_dimension(2)).tag == "own"


class TestUnitVectors:
    @pytest.mark.parametrize(
        ("lengths", "unit"),
        [((1.0,), True), ((1.0, 1 + 1e-7), True), ((0.99, 1.0), False), ((), False)],
    )
    def test_they_are_looked_for(self, lengths: tuple[float, ...], unit: bool) -> None:
        cache = made(Store(*lengths).facts()).for_query(UNIT)
        assert settings(cache).unit_vectors is unit

    @pytest.mark.parametrize("others", [{"exact": False}, {"metric": "cosine"}])
    def test_not_where_they_prove_nothing(self, others: dict[str, Any]) -> None:
        store = Store(1)
        assert not settings(made(store.facts(**others)).for_query(UNIT)).unit_vectors
        assert store.read == 0

    def test_a_longer_question_ends_it(self) -> None:
        caches = made(Store(1).facts())
        first = caches.for_query(UNIT)
        second = caches.for_query(LONG)
        assert second is not first
        assert not settings(second).unit_vectors
        assert caches.for_query(UNIT) is caches.for_query(LONG) is second

    def test_a_longer_question_may_be_the_first(self) -> None:
        caches = made(Store(1).facts())
        assert not settings(caches.for_query(LONG)).unit_vectors
        assert caches.for_query(LONG).lookup(LONG, 1) is None

    def test_a_document_that_the_cache_refuses_ends_it(self) -> None:
        caches = made(Store(1).facts())
        first = caches.for_query(UNIT)
        with pytest.raises(ConfigurationError) as caught:
            first.documents_added(["long"], [LONG])
        caches.disagree(caught.value)
        second = caches.for_query(UNIT)
        assert not settings(second).unit_vectors
        second.documents_added(["long"], [LONG])
        caches.disagree(caught.value)
        assert caches.current is second  # it relies on nothing that could be wrong

    def test_after_clear_they_are_looked_for_again(self) -> None:
        store = Store(1)
        caches = made(store.facts())
        assert settings(caches.for_query(UNIT)).unit_vectors
        store.all = (1.0, 2.0)
        caches.clear()
        cache = caches.for_query(UNIT)
        assert not settings(cache).unit_vectors
        caches.clear()
        assert caches.for_query(UNIT) is cache

    def test_lengths_that_cannot_be_read(self, caplog: pytest.LogCaptureFixture) -> None:
        def broken() -> tuple[float, float]:
            raise LookupError("no way")

        facts = StoreFacts(metric="l2", vectors=lambda _: [], exact=True, lengths=broken)
        with caplog.at_level(logging.WARNING, "ragcache_integrations"):
            assert not settings(made(facts).for_query(UNIT)).unit_vectors
        assert "cannot be read: no way" in caplog.text


class TestInnerProduct:
    def test_the_longest_document_is_known(self) -> None:
        store = Store(1, 5)
        caches = made(store.facts(metric="ip"), guarantee="exact")
        assert settings(caches.for_query(UNIT)).longest == 5
        store.all = (1.0, 7.0)
        caches.clear()
        assert settings(caches.for_query(UNIT)).longest == 7

    def test_an_empty_store_has_none(self) -> None:
        cache = made(Store().facts(metric="ip"), guarantee="exact").for_query(UNIT)
        assert 0 < (settings(cache).longest or math.inf) < 1e-20


class TestBadInput:
    @pytest.mark.parametrize(
        ("facts", "knobs", "said"),
        [
            (Store(1).facts(), {"metric": "ip"}, "metric='ip' was given.*'l2'"),
            (Store(1).facts(), {"max_rerank_factor": 2}, "max_rerank_factor"),
            (Store(1).facts(), {"multi_probe": 9}, "multi_probe"),
            (Store(1).facts(exact=False, doubt="why"), {"guarantee": 1}, "but why; where it"),
            (StoreFacts(exact=True), {"guarantee": 1}, "vectors cannot be read"),
            (
                Store(1).facts(),
                {"guarantee": 1, "follow_changes": False},
                "guarantee=1.0 with follow_changes=False needs to know of changes: version=",
            ),
            (
                Store(1).facts(),
                {"guarantee": 1, "follow_changes": False, "sole_writer": True},
                "guarantee=1.0 with follow_changes=False",
            ),
        ],
    )
    def test_it_is_said_before_the_first_question(
        self, facts: StoreFacts, knobs: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=said):
            made(facts, **knobs)

    def test_a_version_says_what_is_not_followed(self) -> None:
        knobs = {"guarantee": 1, "follow_changes": False, "version": lambda: 0}
        assert settings(made(Store(1).facts(), **knobs).for_query(UNIT)).guarantee == 1
