"""What a change of the store does to the cache, where it is not simply told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, QueryCache
from ragcache_integrations.retrievers.cached.knobs import CacheKnobs
from ragcache_integrations.retrievers.cached.lazy_cache import Follower, LazyCache, in_memory
from ragcache_integrations.retrievers.stores.changes import Change
from ragcache_integrations.retrievers.stores.facts import StoreFacts

QUERY = np.array([1.0, 1.0], dtype=np.float32)
PLACES = {"near": [1.0, 1.1], "next": [1.0, 1.5], "far": [9.0, 9.0]}


class Followed:
    """A cache with one answer, and its follower."""

    def __init__(self, *, readable: bool = True) -> None:
        self.error: Exception | None = None
        vectors = self.vectors if readable else None
        self.caches = LazyCache[str](CacheKnobs(), StoreFacts(vectors=vectors), "")
        self.follower = Follower(self.caches, vectors)
        self.cache.insert(QUERY, [Candidate("near", "near"), Candidate("next", "next")])

    @property
    def cache(self) -> QueryCache[str]:
        return in_memory(self.caches.for_query(QUERY))

    def vectors(self, ids: Sequence[str]) -> ArrayLike:
        if self.error is not None:
            raise self.error
        return [PLACES[one] for one in ids]

    def change(self, **what: Any) -> None:
        self.follower.documents_changed(Change(**what))

    def answers(self, k: int = 1) -> list[str]:
        hit = self.cache.lookup(QUERY, k)
        return [] if hit is None else [candidate.id for candidate in hit.candidates]


@pytest.fixture
def followed() -> Followed:
    return Followed()


def test_before_the_first_question_there_is_nothing_to_do() -> None:
    caches = LazyCache[str](CacheKnobs(), StoreFacts(), "")
    Follower(caches, None).documents_changed(Change(unknown=True))
    assert caches.current is None


def test_what_is_far_leaves_answers_as_they_are(followed: Followed) -> None:
    followed.change(updated={"far"})
    assert followed.answers() == ["near"]


def test_what_is_gone_is_taken_out(followed: Followed) -> None:
    followed.change(removed={"near"})
    assert followed.answers() == ["next"]


def test_what_went_and_came_again_is_an_update(followed: Followed) -> None:
    followed.change(removed={"near", "next"}, updated={"near"})
    assert followed.answers() == []
    assert followed.cache.stats().invalidated == 1


@pytest.mark.parametrize("change", [{"unknown": True}, {"updated": {"far"}, "unknown": True}])
def test_what_is_not_known_ends_all(followed: Followed, change: dict[str, Any]) -> None:
    followed.change(**change)
    assert followed.answers() == []


def test_what_came_without_vectors_ends_all_and_what_went_does_not() -> None:
    followed = Followed(readable=False)
    followed.change(removed={"near"})
    assert followed.answers() == ["next"]
    followed.change(updated={"far"})
    assert followed.answers() == []


@pytest.mark.parametrize(
    "error", [LookupError("gone already"), ConfigurationError("which is whose is not known")]
)
def test_a_vector_that_cannot_be_read_ends_all(followed: Followed, error: Exception) -> None:
    followed.error = error
    followed.change(updated={"far"})
    assert followed.answers() == []


def test_any_other_error_ends_all_and_is_passed_on(followed: Followed) -> None:
    followed.error = ConnectionError("gone")
    with pytest.raises(ConnectionError):
        followed.change(updated={"far"})
    assert followed.answers() == []


class TestDocumentsWithoutIds:
    def test_any_change_ends_them(self, followed: Followed) -> None:
        cache = followed.cache
        nameless = [Candidate("hash", "text", "hash")]
        followed.follower.insert_nameless(
            cache, cache.store_version, lambda: cache.insert(QUERY, nameless)
        )
        assert followed.answers() == ["hash"]
        followed.change(removed={"far"})
        assert followed.answers() == []

    def test_after_a_change_a_search_from_before_it_is_not_remembered(
        self, followed: Followed
    ) -> None:
        cache = followed.cache
        version = cache.store_version
        followed.change(removed={"near", "next"})
        inserted: list[bool] = []
        followed.follower.insert_nameless(cache, version, lambda: inserted.append(True))
        assert inserted == []

    def test_loaded_ones_are_noted(self, followed: Followed) -> None:
        with followed.follower.waiting() as note_nameless:
            note_nameless()
        followed.change(removed={"far"})
        assert followed.answers() == []
