"""What entries do with documents that came, went or changed, case by case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, Hit, Metric, QueryCache
from ragcache_integrations.query_cache.entries.changes import _REMEMBERED
from ragcache_integrations.query_cache.entries.entry import nearest_new, serves
from tests.query_cache.reference import Store, Vector, candidates
from tests.support.sizes import examples

METRICS: list[Metric] = ["l2", "cosine", "ip"]


def line(*numbers: float) -> dict[str, Vector]:
    """Return documents on a line, named by where they are."""
    return {f"{x:g}": np.array([x, 0], dtype=np.float32) for x in numbers}


def cached(
    documents: dict[str, Vector], *, k: int, metric: Metric = "l2", **arguments: Any
) -> tuple[QueryCache[str], Store]:
    """Return a cache with one search, for (1, 0)."""
    store = Store(metric, documents)
    cache = QueryCache[str](2, 10, 5.0, metric=metric, vectors=store.read, **arguments)
    query = np.array([1, 0], dtype=np.float32)
    found = store.ranked(query)
    cache.insert(query, candidates(found[:k]), complete=k > len(found))
    return cache, store


def ids(hit: Hit[str] | None) -> list[str] | None:
    return None if hit is None else [candidate.id for candidate in hit.candidates]


class TestAdded:
    def test_a_document_far_away_changes_nothing(self) -> None:
        cache, store = cached(line(1, 2, 3), k=2)
        store.vectors |= line(50)
        cache.documents_added(["50"])
        assert ids(cache.lookup([1, 0], 2)) == ["1", "2"]
        assert ids(cache.lookup([1.5, 0], 1)) in (["1"], ["2"])
        assert cache.stats().invalidated == 0

    def test_it_stands_in_the_way_of_those_queries_only_whose_answer_it_may_change(self) -> None:
        """The second document is 1 away from the key, the new one 3: queries up to 1 are safe."""
        cache, store = cached(line(1, 2, 9), k=2)
        store.vectors |= line(4)
        cache.documents_added(["4"])
        assert ids(cache.lookup([1.9, 0], 2)) == ["2", "1"]
        assert cache.lookup([2.1, 0], 2) is None
        assert cache.stats().stale == 1
        assert ids(cache.lookup([2.1, 0], 1)) == ["2"]  # the first is 0 away from the key
        assert cache.lookup([2.6, 0], 1) is None

    def test_an_entry_goes_on_answering_for_what_is_nearer_than_a_new_document(self) -> None:
        cache, store = cached(line(1, 2, 3, 4), k=4)
        store.vectors |= line(2.5)
        cache.documents_added(["2.5"])
        assert ids(cache.lookup([1, 0], 2)) == ["1", "2"]
        assert cache.lookup([1, 0], 3) is None
        assert cache.stats().entries == 1

    def test_an_entry_goes_where_a_new_document_is_the_nearest(self) -> None:
        cache, store = cached(line(2, 3), k=2)
        store.vectors |= line(1)
        cache.documents_added(["1"])
        assert cache.stats().entries == 0
        assert cache.stats().invalidated == 1
        assert cache.stats().vectors == 0

    @pytest.mark.parametrize("documents", [line(1, 2), {}])
    def test_an_entry_that_had_everything_has_not_any_more(
        self, documents: dict[str, Vector]
    ) -> None:
        cache, store = cached(documents, k=5)
        assert ids(cache.lookup([1, 0], 9)) == list(documents)
        store.vectors |= line(70)
        cache.documents_added(["70"])
        for k in (3, 9):
            assert cache.lookup([1, 0], k) is None
        expected = [list(documents)[:2]] if documents else [None]
        assert [ids(cache.lookup([1, 0], 2))] == expected

    @pytest.mark.parametrize("given", [[[9.0, 0.0]], None])
    def test_vectors_are_given_or_read(self, given: ArrayLike | None) -> None:
        cache, store = cached(line(1, 2), k=2)
        store.vectors |= line(9)
        cache.documents_added(["9"], given)
        assert len(cache) == 1
        if given is None:
            return
        cache, _ = cached(line(1, 2), k=2)
        cache.documents_added(["unknown"], [[1.1, 0.0]])
        assert cache.lookup([1, 0], 2) is None

    def test_everything_goes_where_a_vector_cannot_be_read(self) -> None:
        cache, _ = cached(line(1, 2), k=2)
        version = cache.store_version
        cache.documents_added(["unknown"])
        assert len(cache) == 0
        assert not cache.insert([1, 0], candidates(["1"]), store_version=version)

    def test_everything_goes_where_there_are_no_vectors(self) -> None:
        for change in ("documents_added", "documents_updated"):
            cache = QueryCache[str](2, 10, 1.0)
            cache.insert([1, 0], candidates(["1"]))
            getattr(cache, change)(["2"])
            assert len(cache) == 0

    @pytest.mark.parametrize("wrong", [[[1.0]], [[math.nan, 0.0]], [[1.0, 0.0]] * 2, "text"])
    def test_everything_goes_where_a_vector_cannot_be_used(self, wrong: Any) -> None:
        cache, _ = cached(line(1, 2), k=2)
        with pytest.raises(ConfigurationError, match="the documents' vectors must"):
            cache.documents_added(["9"], wrong)
        assert len(cache) == 0

    def test_an_entry_without_vectors_goes(self) -> None:
        cache, store = cached(line(1, 2), k=2)
        cache.insert([3, 0], candidates(["unreadable"]))
        store.vectors |= line(60)
        cache.documents_added(["60"])
        assert ids(cache.lookup([3, 0], 1)) == ["1"] or ids(cache.lookup([3, 0], 1)) == ["2"]

    def test_under_inner_products_a_long_document_reaches_further(self) -> None:
        """A new one of length 100 may win for queries a little off, though it scores 0 here."""
        cache, store = cached(line(3, 2), k=1, metric="ip")
        store.vectors["long"] = np.array([0, 100], dtype=np.float32)
        cache.documents_added(["long"])
        assert ids(cache.lookup([1, 0], 1)) == ["3"]
        query = np.array([1, 0.1], dtype=np.float32)
        assert store.ranked(query)[0] == "long"
        assert cache.lookup(query, 1) is None
        assert cache.lookup([1, 0.001], 1) is not None


class TestRemoved:
    def test_what_is_gone_is_not_served(self) -> None:
        cache, store = cached(line(1, 2, 3), k=3)
        store.remove("1")
        cache.documents_removed(["1"])
        assert ids(cache.lookup([1, 0], 2)) == ["2", "3"]
        assert cache.lookup([1, 0], 3) is None
        assert cache.stats().vectors == 2

    def test_a_complete_entry_stays_complete(self) -> None:
        cache, _ = cached(line(1, 2), k=5)
        cache.documents_removed(["1"])
        assert ids(cache.lookup([1, 0], 5)) == ["2"]

    def test_an_entry_with_nothing_left_goes(self) -> None:
        cache, _ = cached(line(1, 2), k=2)
        cache.documents_removed(["1", "2", "unknown"])
        assert (len(cache), cache.stats().vectors, cache.stats().invalidated) == (0, 0, 1)

    def test_no_vectors_are_needed(self) -> None:
        cache = QueryCache[str](2, 10, 1.0)
        cache.insert([1, 0], candidates(["1", "2"]))
        cache.documents_removed(["1"])
        assert ids(cache.lookup([1, 0], 1)) == ["2"]
        assert cache.lookup([1, 0], 2) is None

    def test_every_version_of_a_document_goes(self) -> None:
        cache, _ = cached(line(1, 2), k=2)
        cache.insert([2, 0], [Candidate("1", "other", "print"), Candidate("2", "text 2")])
        cache.documents_removed(["1"])
        assert ids(cache.lookup([1, 0], 1)) == ids(cache.lookup([2, 0], 1)) == ["2"]

    @pytest.mark.parametrize("wrong", [[1], [None], ["a", 2.0]])
    def test_ids_are_strings(self, wrong: Any) -> None:
        cache, _ = cached(line(1, 2), k=2)
        for change in ("documents_added", "documents_removed", "documents_updated"):
            with pytest.raises(ConfigurationError, match="ids must be strings, got"):
                getattr(cache, change)(wrong)
        assert len(cache) == 1


class TestUnderWay:
    """Searches that began before a change and are inserted after it."""

    def insert(self, cache: QueryCache[str], found: Sequence[str], version: int) -> bool:
        return cache.insert([1, 0], candidates(found), store_version=version)

    def test_a_document_that_went_is_left_out(self) -> None:
        cache, store = cached(line(1, 2, 3), k=1)
        version = cache.store_version
        store.remove("2")
        cache.documents_removed(["2"])
        store.vectors |= line(2)  # its vector may still be readable
        assert self.insert(cache, ["1", "2", "3"], version)
        assert ids(cache.lookup([1, 0], 2)) == ["1", "3"]
        assert cache.lookup([1, 0], 3) is None
        assert cache.stats().vectors == 2

    def test_a_document_that_came_is_reckoned_with(self) -> None:
        cache, store = cached(line(1, 3), k=1)
        version = cache.store_version
        store.vectors |= line(2)
        cache.documents_added(["2"])
        assert self.insert(cache, ["1", "3"], version)
        assert ids(cache.lookup([1, 0], 1)) == ["1"]
        assert cache.lookup([1, 0], 2) is None

    def test_a_search_that_saw_it_already_is_taken_as_it_is(self) -> None:
        cache, store = cached(line(1, 3), k=1)
        version = cache.store_version
        store.vectors |= line(2)
        cache.documents_added(["2"])
        assert self.insert(cache, ["1", "2"], version)
        assert ids(cache.lookup([1, 0], 2)) == ["1", "2"]

    def test_one_that_began_afterwards_too(self) -> None:
        cache, store = cached(line(1, 3), k=1)
        store.vectors |= line(2)
        cache.documents_added(["2"])
        assert self.insert(cache, ["1", "2"], cache.store_version)
        assert ids(cache.lookup([1, 0], 2)) == ["1", "2"]

    def test_a_document_that_changed_is_not_known_to_be_where_it_is_now(self) -> None:
        """The search knew everything up to 2 away; where its second document is now tells more."""
        cache, store = cached(line(1), k=1, exact_search=True)
        version = cache.store_version
        store.vectors |= line(1, 3, 4)
        found = ["1", "3"]
        store.vectors["3"] = np.array([9, 0], dtype=np.float32)
        cache.documents_updated(["3"])
        assert self.insert(cache, found, version)
        hit = cache.lookup([1.9, 0], 1)
        assert hit is not None
        assert hit.recall_bound == 0

    def test_nothing_is_inserted_that_too_much_happened_since(self) -> None:
        cache, store = cached(line(1, 2), k=2)
        version = cache.store_version
        for number in range(_REMEMBERED):
            store.vectors |= line(100 + number)
            cache.documents_added([f"{100 + number}"])
        assert self.insert(cache, ["1", "2"], version)
        cache.documents_added(["100"])
        assert not self.insert(cache, ["1", "2"], version)
        assert self.insert(cache, ["1", "2"], version + 1)
        assert ids(cache.lookup([1, 0], 2)) == ["1", "2"]
        assert cache.stats().dropped == 1

    def test_a_vector_that_changes_while_another_s_are_read_is_read_again(self) -> None:
        """The slow insertion knows an old vector; one that begins meanwhile must not get it."""
        store = Store("l2", line(1, 2, 3))
        slow = [True]

        def read(wanted: Sequence[str]) -> Vector:
            if "3" in wanted and slow:
                slow.clear()
                store.vectors["2"] = np.array([40, 0], dtype=np.float32)
                cache.documents_updated(["2"])
                cache.insert([9, 0], candidates(["2", "1"]))
            return store.read(wanted)

        cache = QueryCache[str](2, 10, 1.0, vectors=read)
        cache.insert([1, 0], candidates(["1", "2"]))
        cache.insert([5, 0], candidates(["2", "3"]))
        hit = cache.lookup([9.5, 0], 2)
        assert hit is not None
        assert hit.scores == (8.5, 30.5)
        assert ids(cache.lookup([5, 0], 1)) == ["3"]
        for key in ([1, 0], [5, 0], [9, 0]):
            cache.delete(key)
        assert cache.stats().vectors == 0


class TestNearestNew:
    @pytest.mark.parametrize("metric", METRICS)
    @examples(200)
    @given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1.0, 1e-30, 1e-10, 1e10, 1e37]))
    def test_it_is_never_more_than_the_distance_and_hardly_less(
        self, metric: Metric, seed: int, scale: float
    ) -> None:
        rng = np.random.default_rng(seed)
        dim = int(rng.choice([1, 3, 384]))
        scale = 1.0 if metric == "cosine" else scale
        store = Store(
            metric,
            {str(n): (scale * rng.normal(size=dim)).astype(np.float32) for n in range(5)},
        )
        keys = (scale * rng.normal(size=(4, dim))).astype(np.float32)
        if metric == "cosine":
            keys /= np.linalg.norm(keys, axis=1, keepdims=True)
        keys[0] = store.vectors["3"]  # not new to this one
        found = nearest_new(keys, store.read(["0", "1", "2", "3", "4"]), metric)
        for key, low in zip(keys, found, strict=True):
            true = min(store.values(key).values())
            length = float(np.linalg.norm(key.astype(np.float64)))
            size = length * max(
                np.linalg.norm(v.astype(np.float64)) for v in store.vectors.values()
            )
            assert low <= true + 1e-12 * size
            if 1e-18 < scale < 1e18:
                off = (dim + 4) * 2.0**-21 * size
                assert low >= true - (off if metric == "ip" else math.sqrt(off))

    @given(st.lists(st.integers(0, 5), max_size=6).map(sorted), st.integers(0, 6))
    def test_what_ties_with_a_new_document_is_not_served_any_more(
        self, distances: list[int], newest: int
    ) -> None:
        assert serves(np.array(distances, float), newest) == sum(
            distance < newest for distance in distances
        )
