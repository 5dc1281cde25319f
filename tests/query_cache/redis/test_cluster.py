"""A Redis Cluster: every operation stays within a slot, and the buckets are spread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis.crc import key_slot

from ragcache_integrations.query_cache.redis.cache import RedisQueryCache, RedisServer
from ragcache_integrations.query_cache.redis.link import Budget
from ragcache_integrations.query_cache.redis.requests import Request

from .servers import RealRedis, Shelf, near, patient, queries, redis_server


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealRedis]:
    """One node in cluster mode that has all slots; it refuses what touches two of them."""
    with redis_server("--cluster-enabled", "yes") as server:
        server.run("CLUSTER", "ADDSLOTS", *map(str, range(16384)))
        end = time.monotonic() + 30
        while b"cluster_state:ok" not in server.run("CLUSTER", "INFO"):
            assert time.monotonic() < end
            time.sleep(0.01)
        yield server


def watched(cache: RedisQueryCache[str], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return a list that gets the keys of every call."""
    seen: list[list[str]] = []
    call = cache._channel.link.call

    def noting(request: Request, budget: Budget) -> Any:
        seen.append(list(request.keys))
        return call(request, budget)

    monkeypatch.setattr(cache._channel.link, "call", noting)
    return seen


def test_it_shares_and_follows(cluster: RealRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    server = patient(cluster.url, cluster=True)
    options: dict[str, Any] = {"num_hyperplanes": 6, "multi_probe": 2}
    one, other = (shelf.cache(server, **options) for _ in range(2))
    seen = watched(one, monkeypatch)
    base = queries(80)
    for query in base:
        shelf.ask(one, query)
        assert other.lookup(query, 3) is not None
        one.lookup(near(query, 0.1), 3)
    assert one.delete(base[0])
    one.documents_updated(["id 1"])
    shelf.put("new", near(base[1], 0.01))
    one.documents_added(["new"])
    assert other.lookup(base[1], 3) is None
    one.clear()
    assert all(other.lookup(query, 3) is None for query in base)
    for keys in seen:
        assert len({key_slot(key.encode()) for key in keys}) == 1, keys
    assert len({key_slot(keys[0].encode()) for keys in seen}) > 12
    assert one.stats().failed == one.stats().lost == one.stats().owed == 0


async def test_coroutines(cluster: RealRedis) -> None:
    shelf = Shelf()
    cache = shelf.cache(patient(cluster.url, cluster=True), multi_probe=1)
    for query in queries(5):
        assert await cache.alookup(query, 3) is None
        version = cache.store_version
        assert await cache.ainsert(query, shelf.search(query, 12), store_version=version)
        assert await cache.alookup(query, 3) is not None
    await cache.aclear()
    assert await cache.alookup(queries(5)[0], 3) is None
    assert cache.stats().failed == cache.stats().owed == 0
    await cache.aclose()


def test_a_lookup_of_one_bucket_is_one_call(
    cluster: RealRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Shelf().cache(patient(cluster.url, cluster=True), num_hyperplanes=6)
    seen = watched(cache, monkeypatch)
    cache.lookup(queries(1)[0], 3)
    assert len(seen) == 1


def test_a_cluster_that_is_gone() -> None:
    cache = Shelf().cache(RedisServer("redis://127.0.0.1:1", cluster=True, retry_after=100))
    for _ in range(5):
        assert cache.lookup(queries(1)[0], 3) is None
    assert (cache.stats().failed, cache.stats().skipped) == (3, 2)
