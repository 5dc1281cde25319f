"""Documents come and go, and no process that shares the cache is answered from what is old."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate
from ragcache_integrations.query_cache.redis.cache import RedisQueryCache, RedisServer
from ragcache_integrations.query_cache.redis.records import LARGEST_CHANGE
from tests.query_cache.scenes import share_found

from .servers import DIM, RealRedis, Shelf, near, patient, queries


@pytest.fixture
def server(shared_redis: RealRedis) -> RedisServer:
    return patient(shared_redis.url)


class Two:
    """Two processes' caches over one store, with an answer that both have heard of."""

    def __init__(self, server: RedisServer, **options: Any) -> None:
        self.shelf = Shelf()
        self.one = self.shelf.cache(server, **options)
        self.other = self.shelf.cache(server, **options)
        self.query = queries(1)[0]
        self.shelf.ask(self.one, self.query)
        assert self.ids() == self.best()

    def ids(self, k: int = 3) -> list[str] | None:
        hit = self.other.lookup(self.query, k)
        return None if hit is None else [candidate.id for candidate in hit.candidates]

    def best(self, k: int = 3) -> list[str]:
        return self.shelf.store.ranked(self.query)[:k]


def test_a_document_that_comes_near_ends_answers(server: RedisServer) -> None:
    two = Two(server)
    two.shelf.put("new", near(two.query, 0.1))
    two.one.documents_added(["new"])
    assert two.ids() is None
    assert two.one.lookup(two.query, 3) is None
    two.shelf.ask(two.other, two.query)
    assert two.ids() == two.best()
    assert two.best()[0] == "new"


def test_one_that_comes_far_away_does_not(server: RedisServer) -> None:
    two = Two(server)
    two.shelf.put("new", near(two.query, 50))
    two.one.documents_added(["new"], two.shelf.vectors(["new"]))
    assert two.ids() == two.best()


def test_documents_that_go_are_left_out(server: RedisServer) -> None:
    two = Two(server)
    gone = two.best(1)
    two.shelf.remove(gone[0])
    two.one.documents_removed(gone)
    assert two.ids() == two.best()
    assert gone[0] not in two.best()
    assert two.ids(12) is None  # only eleven are left
    assert two.other.stats().stale == 0


def test_documents_that_move_are_followed(server: RedisServer) -> None:
    two = Two(server)
    away, unmoved = two.best(2)
    two.shelf.put(away, near(two.query, 50))
    two.one.documents_updated([away])
    assert two.ids(1) == [unmoved]
    back = two.shelf.store.ranked(two.query)[-1]
    two.shelf.put(back, near(two.query, 0.01))
    two.one.documents_updated([back])
    assert two.ids(1) is None


def test_a_change_that_nobody_told_of_is_noticed_where_it_can_be(server: RedisServer) -> None:
    two = Two(server)
    first, second = two.best(2)
    two.shelf.remove(first)
    assert two.ids() == two.best()
    two.shelf.texts[second] = "another text"
    assert two.ids() is None
    assert two.other.stats().invalidated == 1


def test_what_was_searched_before_a_change_is_not_taken_for_new(server: RedisServer) -> None:
    shelf = Shelf()
    query = queries(1)[0]
    for options in ({}, {"exact_search": False}):
        one, other = shelf.cache(server, **options), shelf.cache(server, **options)
        one.lookup(query, 3)
        version, found = one.store_version, shelf.search(query, 12)
        shelf.put("new", near(query, 0.1))
        other.documents_added(["new"])
        one.insert(query, found, store_version=version)
        assert other.lookup(query, 3) is None
        assert one.lookup(query, 3) is None
        shelf.remove("new")


def test_a_search_that_knew_the_document_already_is_worth_keeping(server: RedisServer) -> None:
    shelf = Shelf()
    query = queries(1)[0]
    one, other = (shelf.cache(server, exact_search=False) for _ in range(2))
    one.lookup(query, 3)
    version = one.store_version
    shelf.put("new", near(query, 0.1))
    found = shelf.search(query, 12)
    other.documents_added(["new"])
    assert one.insert(query, found, store_version=version)
    hit = other.lookup(query, 3)
    assert hit is not None
    assert hit.candidates[0].id == "new"


def test_a_search_that_began_before_it_was_cleared_is_forgotten(server: RedisServer) -> None:
    two = Two(server)
    version = two.one.store_version
    two.other.clear()
    assert not two.one.insert(two.query, two.shelf.search(two.query, 12), store_version=version)
    assert two.ids() is None
    assert two.one.stats().dropped == 1


def test_a_version_that_was_never_heard_of_is_worth_nothing(server: RedisServer) -> None:
    shelf = Shelf()
    cache = shelf.cache(server)
    assert not cache.insert(queries(1)[0], [shelf.candidate("id 1")], store_version=0)
    assert cache.insert(queries(1)[0], [shelf.candidate("id 1")])


def test_more_changes_than_are_remembered(server: RedisServer) -> None:
    two = Two(server)
    far = near(two.query, 50)[None]
    for number in range(200):
        two.one.documents_added([f"far {number}"], far)
    assert two.ids() == two.best()  # has heard of these
    late = two.shelf.cache(server)
    for number in range(100):
        two.one.documents_added([f"farther {number}"], far)
    assert two.ids() is None  # inserted before the first of those that are known
    assert late.lookup(two.query, 3) is None
    two.shelf.ask(late, two.query)
    assert two.ids() == two.best()


def test_many_documents_at_once_end_everything(server: RedisServer) -> None:
    two = Two(server)
    count = LARGEST_CHANGE // (4 * DIM) + 1
    far = np.tile(near(two.query, 50), (count, 1))
    two.one.documents_added([str(number) for number in range(count)], far)
    assert two.ids() is None
    assert two.other.lookup(two.query, 3) is None


def test_documents_whose_vectors_cannot_be_read_end_everything(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    two = Two(server)
    with caplog.at_level(logging.WARNING, "ragcache_integrations"):
        two.one.documents_added(["nowhere"])
    assert two.ids() is None


@pytest.mark.parametrize(
    ("ids", "vectors", "said", "ended"),
    [
        ([1], None, "ids must be strings", False),
        (["a"], [[1.0]], "must have the shape", True),
        (["a"], [[np.nan] * DIM], "must be finite", True),
    ],
)
def test_what_cannot_be_told(
    server: RedisServer, ids: Any, vectors: Any, said: str, ended: bool
) -> None:
    two = Two(server)
    with pytest.raises(ConfigurationError, match=said):
        two.one.documents_added(ids, vectors)
    assert (two.ids() is None) == ended


def test_nothing_is_told_of_no_documents(server: RedisServer) -> None:
    two = Two(server)
    before = two.other.store_version
    two.one.documents_added([])
    two.one.documents_removed([])
    assert two.ids() == two.best()
    assert two.other.store_version == before


def test_without_vectors_every_new_document_ends_answers(server: RedisServer) -> None:
    two = Two(server, vectors=None, exact_search=False)
    two.one.documents_removed([two.best(1)[0]])
    two.shelf.remove(two.best(1)[0])
    two.shelf.ask(two.one, two.query)
    assert two.ids() == two.best()
    two.one.documents_added(["far"], near(two.query, 50)[None])
    assert two.ids() is None


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_no_answer_is_old_whatever_happens(server: RedisServer, metric: Any) -> None:
    shelf = Shelf(metric)
    caches = [shelf.cache(server, tolerance=1.0, num_hyperplanes=1) for _ in range(3)]
    rng = np.random.default_rng(0)
    base = queries(6)
    hits = proven = 0
    for step in range(600):
        cache: RedisQueryCache[str] = caches[rng.integers(3)]
        chance = rng.random()
        present = list(shelf.store.vectors)
        if chance < 0.1:
            shelf.put(f"new {step}", near(base[rng.integers(6)], float(rng.choice([0.5, 2, 5]))))
            cache.documents_added([f"new {step}"])
        elif chance < 0.15 and len(present) > 20:
            gone = present[rng.integers(len(present))]
            shelf.remove(gone)
            cache.documents_removed([gone])
        elif chance < 0.2:
            moved = present[rng.integers(len(present))]
            shelf.put(moved, near(base[rng.integers(6)], 1.5, step))
            cache.documents_updated([moved])
        query = near(base[rng.integers(6)], float(rng.choice([0, 0.1, 0.5])), step % 5)
        hit = shelf.ask(cache, query)
        if hit is not None:
            hits += 1
            assert {candidate.id for candidate in hit.candidates} <= set(shelf.store.vectors)
            recall = share_found(shelf.store, query, hit, 3)
            assert recall >= (hit.recall_bound or 0)
            proven += hit.recall_bound == 1.0
            if hit.distance == 0:
                assert recall == 1
    assert hits > 50
    assert proven > 20 or metric == "ip"


async def test_a_part_is_forgotten_by_marks(server: RedisServer) -> None:
    shelf = Shelf()
    one, other = (shelf.cache(server, marks=lambda key: [key]) for _ in range(2))
    query = queries(1)[0]
    for key in ("a", "b"):
        shelf.ask(one, query, 1, key)
    await one.adiscard(["a"], ids=["another"])
    assert other.lookup(query, 1, "a") is not None
    await one.adiscard(["a"])
    assert other.lookup(query, 1, "a") is None
    assert other.lookup(query, 1, "b") is not None
    other.discard()
    assert one.lookup(query, 1, "b") is None
    await one.aclose()


class TestForgettingAQuestion:
    """What would answer a question goes, of all processes, and nothing else."""

    @pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
    def test_what_is_near_of_the_same_key(self, server: RedisServer, metric: Any) -> None:
        shelf = Shelf(metric)
        one, other = (shelf.cache(server, marks=lambda key: [key]) for _ in range(2))
        query = queries(1)[0]
        places = [query, near(query, 0.9 * one.tolerance), -query]
        for key in ("a", "b"):
            for place in places:
                one.insert(place, shelf.search(place, 12), key)
        assert other.forget(query, 3, "a") == 2
        assert other.forget(query, 3, "a") == 0
        for cache in (one, other):
            assert cache.lookup(query, 3, "a") is None
            assert cache.lookup(query, 3, "b") is not None
            assert cache.lookup(places[2], 3, "a") is not None

    def test_only_so_far_as_what_is_not_reranked_answers(self, server: RedisServer) -> None:
        shelf = Shelf()
        cache = shelf.cache(server, vectors=None, exact_search=False, unranked_tolerance=0.1)
        query = queries(1)[0]
        away = near(query, 0.3)
        for place in (query, away):
            cache.insert(place, shelf.search(place, 3))
        assert cache.forget(query, 3) == 1
        assert cache.lookup(query, 3) is None
        assert cache.lookup(away, 3) is not None

    async def test_by_coroutines(self, server: RedisServer) -> None:
        two = Two(server)
        assert await two.one.aforget(near(two.query, 0.2), 3) == 1
        assert two.ids() is None
        assert await two.one.aforget(two.query, 3) == 0
        await two.one.aclose()

    def test_a_search_that_began_before_is_forgotten(self, server: RedisServer) -> None:
        two = Two(server, exact_search=False)
        version, found = two.one.store_version, two.shelf.search(two.query, 12)
        assert two.other.forget(two.query, 3) == 1
        two.one.insert(near(two.query, 0.1), found, store_version=version)
        assert two.ids() is None
        two.shelf.ask(two.other, two.query)
        assert two.ids() == two.best()

    def test_though_the_documents_cannot_be_read(self, server: RedisServer) -> None:
        two = Two(server)

        def fail(_: Any) -> Any:
            raise OSError("the store is away")

        assert two.shelf.cache(server, documents=fail).forget(two.query, 3) == 0
        assert two.ids() is None

    def test_nothing_is_known_of_a_redis_that_is_away(self, server: RedisServer) -> None:
        cache = Shelf().cache(RedisServer("redis://127.0.0.1:1", timeout=0.1, change_timeout=0.1))
        assert cache.forget(queries(1)[0], 3) == 0
        assert cache.stats().owed > 0
        cache.close()

    @pytest.mark.parametrize("arguments", [("no vector", 3), (queries(1)[0], 0)])
    def test_wrong_arguments_forget_nothing(self, server: RedisServer, arguments: Any) -> None:
        two = Two(server)
        with pytest.raises(ConfigurationError):
            two.one.forget(*arguments)
        assert two.ids() == two.best()

    def test_nobody_is_answered_with_what_was_forgotten_before_asking(
        self, server: RedisServer
    ) -> None:
        """Several threads of two processes ask while the truth changes, which only forget tells."""
        shelf, query = Shelf(), queries(1)[0]
        caches = [shelf.cache(server, documents=None, vectors=None, exact_search=False)] * 2
        caches += [shelf.cache(server, documents=None, vectors=None, exact_search=False)] * 2
        truth, forgotten, done = [0], [0], threading.Event()

        def ask(cache: RedisQueryCache[str], seed: int) -> int:
            hits = 0
            while not done.is_set():
                least, asked = forgotten[0], near(query, 0.1, seed)
                hit = cache.lookup(asked, 1)
                if hit is None:
                    version, found = cache.store_version, truth[0]
                    candidate: Candidate[Any] = Candidate("answer", None, str(found))
                    cache.insert(asked, [candidate], store_version=version)
                else:
                    hits += 1
                    assert int(hit.candidates[0].fingerprint) >= least
            return hits

        with ThreadPoolExecutor(len(caches)) as pool:
            askers = [pool.submit(ask, cache, seed) for seed, cache in enumerate(caches)]
            for number in range(1, 150):
                truth[0] = number
                caches[number % len(caches)].forget(query, 1)
                forgotten[0] = number
            done.set()
        assert sum(asker.result() for asker in askers) > 0
