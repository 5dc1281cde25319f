"""Redis is slow, gone, restarted, full or holds nonsense: lookups miss, and that is all."""

from __future__ import annotations

import logging
import socket
import threading
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.redis.cache import RedisQueryCache, RedisServer
from tests.support.waiting import wait_until

from .servers import PASSWORD, RealRedis, Shelf, free_port, near, patient, queries, redis_server

QUERY = queries(1)[0]


class TestGone:
    def test_everything_goes_on_without(self, caplog: pytest.LogCaptureFixture) -> None:
        shelf = Shelf()
        url = f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{free_port()}"
        cache = shelf.cache(RedisServer(url, retry_after=100))
        with caplog.at_level(logging.DEBUG, "ragcache_integrations"):
            for _ in range(10):
                assert shelf.ask(cache, QUERY) is None
            assert not cache.delete(QUERY)
            told = cache.explain(QUERY, 3)
        assert not told.hit
        assert "does not answer" in told.reason
        stats = cache.stats()
        assert stats.lookups == 10
        assert (stats.failed, stats.skipped) == (3, 7)
        assert stats.hits == stats.insertions == 0
        assert (stats.dropped, stats.lost) == (10, 1)  # without a version; the deletion
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "127.0.0.1" in warnings[0].getMessage()
        assert "s3cret" not in caplog.text
        cache.close()

    async def test_coroutines_go_on_without(self) -> None:
        shelf = Shelf()
        cache = shelf.cache(RedisServer(f"redis://127.0.0.1:{free_port()}", retry_after=100))
        for _ in range(5):
            assert await cache.alookup(QUERY, 3) is None
            assert not await cache.ainsert(QUERY, shelf.search(QUERY, 12))
        assert not (await cache.aexplain(QUERY, 3)).hit
        assert not await cache.adelete(QUERY)
        assert cache.stats().skipped > 0
        await cache.aclose()

    def test_a_host_that_swallows_everything(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
            port = silent.getsockname()[1]
            cache = Shelf().cache(RedisServer(f"redis://127.0.0.1:{port}", retry_after=100))
            for _ in range(5):
                assert cache.lookup(QUERY, 3) is None
            assert (cache.stats().failed, cache.stats().skipped) == (3, 2)

    def test_it_comes_back_by_itself(self, own_redis: RealRedis) -> None:
        shelf = Shelf()
        cache = shelf.cache(patient(own_redis.url))
        shelf.ask(cache, QUERY)
        assert cache.lookup(QUERY, 3) is not None
        own_redis.kill()
        for _ in range(5):
            assert cache.lookup(QUERY, 3) is None
        own_redis.start()
        wait_until(lambda: shelf.ask(cache, QUERY))
        assert cache.stats().failed + cache.stats().skipped >= 5

    @pytest.mark.parametrize("save", [False, True])
    def test_a_restart_loses_entries_and_nothing_else(self, save: bool) -> None:
        shelf = Shelf()
        with redis_server("--save", "3600 1") as server:
            one, other = (shelf.cache(patient(server.url)) for _ in range(2))
            shelf.ask(one, QUERY)
            assert other.lookup(QUERY, 3) is not None
            if save:
                server.run("SAVE")
            # This change is in no file; the entry that it ends is.
            shelf.put("new", near(QUERY, 0.1))
            one.documents_added(["new"])
            server.kill()
            server.start()
            with server.client() as client:
                assert bool(client.keys()) == save
            late = shelf.cache(patient(server.url))
            assert late.lookup(QUERY, 3) is None
            wait_until(lambda: shelf.ask(one, QUERY))
            for cache in (one, other, late):
                wait_until(partial(cache.lookup, QUERY, 3))
                hit = cache.lookup(QUERY, 3)
                assert hit is not None
                assert [candidate.id for candidate in hit.candidates] == shelf.store.ranked(QUERY)[
                    :3
                ]

    def test_killed_under_load(self, own_redis: RealRedis) -> None:
        shelf = Shelf()
        caches = [shelf.cache(patient(own_redis.url)) for _ in range(2)]
        base = queries(10)
        stop = threading.Event()
        wrong: list[object] = []

        def work(number: int) -> None:
            step = number
            while not stop.is_set():
                step += 2
                query = near(base[step % 10], 0.1, step % 3)
                try:
                    hit = shelf.ask(caches[number], query)
                    if hit is not None and hit.recall_bound == 1.0:
                        found = {candidate.id for candidate in hit.candidates}
                        if found != set(shelf.store.ranked(query)[:3]):
                            wrong.append(found)
                except Exception as error:
                    wrong.append(error)
                    return

        threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
        for thread in threads:
            thread.start()

        def more(count: str) -> None:
            now = [getattr(cache.stats(), count) for cache in caches]
            wait_until(
                lambda: sum(getattr(cache.stats(), count) for cache in caches) > sum(now) + 50
            )

        for _ in range(2):
            more("hits")
            own_redis.kill()
            more("misses")
            own_redis.start()
        more("hits")
        stop.set()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestSlow:
    def test_lookups_miss(self, own_redis: RealRedis) -> None:
        shelf = Shelf()
        cache = shelf.cache(patient(own_redis.url, timeout=0.02))
        wait_until(lambda: shelf.ask(cache, QUERY))
        before = cache.stats()
        own_redis.run("CLIENT", "PAUSE", "1500")
        for _ in range(20):
            assert cache.lookup(QUERY, 3) is None
        after = cache.stats()
        assert after.failed - before.failed >= 1
        assert after.skipped > before.skipped
        wait_until(lambda: cache.lookup(QUERY, 3))

    async def test_coroutines_miss(self, own_redis: RealRedis) -> None:
        shelf = Shelf()
        cache = shelf.cache(patient(own_redis.url, timeout=0.02, retry_after=100))
        await cache.alookup(QUERY, 3)
        own_redis.run("CLIENT", "PAUSE", "1000")
        for _ in range(10):
            assert await cache.alookup(QUERY, 3) is None
        assert cache.stats().skipped >= 5
        await cache.aclose()

    def test_a_change_that_does_not_get_through_is_owed(self, own_redis: RealRedis) -> None:
        shelf = Shelf()
        quick = patient(own_redis.url, change_timeout=0.05)
        one, other = shelf.cache(quick), shelf.cache(patient(own_redis.url))
        shelf.ask(one, QUERY)
        wait_until(lambda: shelf.ask(one, QUERY))
        own_redis.run("CLIENT", "PAUSE", "500")
        first = shelf.store.ranked(QUERY)[0]
        shelf.put(first, near(QUERY, 50))
        one.documents_updated([first])
        assert one.stats().owed == 1
        assert one.lookup(QUERY, 3) is None  # without asking
        assert not one.insert(QUERY, shelf.search(QUERY, 12))
        wait_until(lambda: one.stats().owed == 0)
        assert other.lookup(QUERY, 3) is None  # it has been told
        assert shelf.ask(other, QUERY) is None
        wait_until(lambda: one.lookup(QUERY, 3))
        one.close()

    def test_what_is_owed_while_redis_is_gone(self, caplog: pytest.LogCaptureFixture) -> None:
        with redis_server() as server:
            cache = Shelf().cache(patient(server.url))
            server.kill()
            cache.clear_soon()
            assert cache.stats().owed == 1
            server.start()
            wait_until(lambda: cache.stats().owed == 0)
            server.kill()
            cache.clear()
            assert cache.stats().owed == 1
            with caplog.at_level(logging.WARNING, "ragcache_integrations"):
                cache.close()
            assert "did not receive changes" in caplog.text


class TestRefused:
    def test_a_password(self, caplog: pytest.LogCaptureFixture) -> None:
        shelf = Shelf()
        with redis_server("--requirepass", PASSWORD) as server:
            quoted = quote(PASSWORD, safe="")
            address = server.url.replace("redis://", "")
            right = shelf.cache(patient(f"redis://:{quoted}@{address}"))
            shelf.ask(right, QUERY)
            assert right.lookup(QUERY, 3) is not None
            with caplog.at_level(logging.DEBUG, "ragcache_integrations"):
                for url in (server.url, f"redis://:wrong-{quoted}@{address}"):
                    cache = shelf.cache(patient(url, retry_after=100))
                    for _ in range(4):
                        assert cache.lookup(QUERY, 3) is None
                    assert cache.stats().failed == 3
        assert "s3cret" not in caplog.text
        assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 2

    @pytest.mark.parametrize(
        "url",
        [
            f"http://:{PASSWORD}@host",
            f"redis://:{PASSWORD}@host",  # the slash ends the host
            f"redis://:{PASSWORD}@host:port/0",
            "redis://host?decode_responses=true",
            5,
        ],
    )
    def test_no_message_tells_a_password(self, url: Any) -> None:
        with pytest.raises(ConfigurationError, match="url") as caught:
            RedisServer(url)
        assert "s3cret" not in str(caught.value)
        assert caught.value.__cause__ is None

    def test_neither_does_a_server(self) -> None:
        server = RedisServer("rediss://user:s3cret@host:1234/5?ssl_cert_reqs=none")
        assert repr(server) == "RedisServer('rediss://host:1234/5', cluster=False)"
        assert server.without_secrets("a s3cret b") == "a *** b"

    @pytest.mark.parametrize(
        "options",
        [
            {"timeout": 0},
            {"timeout": float("nan")},
            {"connect_timeout": -1},
            {"change_timeout": "1"},
            {"retry_after": float("inf")},
            {"failures": 0},
            {"shards": 0},
            {"shards": 5000},
            {"cluster": 1},
            {"prefix": "{a}"},
        ],
    )
    def test_what_cannot_be(self, options: Any) -> None:
        name = next(iter(options))
        with pytest.raises(ConfigurationError, match=name):
            RedisServer("redis://host", **options)

    def test_no_server_at_all(self) -> None:
        with pytest.raises(ConfigurationError, match="a Redis URL or a RedisServer"):
            RedisQueryCache(5, 3, 0.1, tag="a")  # type: ignore[arg-type]  # the point

    def test_a_full_redis(self) -> None:
        shelf = Shelf()
        with redis_server("--maxmemory", "1024", "--maxmemory-policy", "noeviction") as server:
            cache = shelf.cache(patient(server.url))
            for _ in range(5):
                assert shelf.ask(cache, QUERY) is None
            assert (cache.stats().failed, cache.stats().lost) == (0, 5)
            cache.documents_removed(["id 1"])
            wait_until(lambda: cache.stats().owed == 0)
            with server.client() as client:
                client.config_set("maxmemory", 0)
                shelf.ask(cache, QUERY)
                client.config_set("maxmemory", 1024)
            for _ in range(3):  # touches are refused, too
                assert cache.lookup(QUERY, 3) is not None
            cache.documents_removed(["id 1"])
            wait_until(lambda: cache.stats().owed == 0)
            assert cache.lookup(QUERY, 3) is None


class TestNonsense:
    def test_keys_of_other_kinds(self, shared_redis: RealRedis) -> None:
        shelf = Shelf()
        cache = shelf.cache(patient(shared_redis.url))
        for what in ("bucket", "state", "changes", "both"):
            shelf.ask(cache, QUERY)
            assert cache.lookup(QUERY, 3) is not None
            with shared_redis.client() as client:
                names = {"bucket": _buckets(client, cache)}
                for one in ("state", "changes"):
                    names[one] = [f"ragcache:{{{cache.fingerprint}:0}}:{one}".encode()]
                names["both"] = names["state"] + names["changes"]
                for name in names[what]:
                    client.delete(name)
                    client.set(name, "somebody else's")
            assert cache.lookup(QUERY, 3) is None, what
            shelf.ask(cache, QUERY)
            assert cache.lookup(QUERY, 3) is not None
        assert cache.stats().corrupt == 1
        assert cache.stats().failed == 0

    @pytest.mark.parametrize("part", ["state", "changes"])
    def test_keys_that_redis_evicted(self, shared_redis: RealRedis, part: str) -> None:
        shelf = Shelf()
        one, other = (shelf.cache(patient(shared_redis.url)) for _ in range(2))
        one.documents_removed(["nothing"])
        shelf.ask(one, QUERY)
        other.lookup(QUERY, 3)
        version, found = one.store_version, shelf.search(QUERY, 12)
        shelf.put("new", near(QUERY, 0.1))
        other.documents_added(["new"])
        with shared_redis.client() as client:
            client.delete(f"ragcache:{{{one.fingerprint}:0}}:{part}")
        assert other.lookup(QUERY, 3) is None
        assert not one.insert(QUERY, found, store_version=version)
        assert one.lookup(QUERY, 3) is None
        shelf.ask(other, QUERY)
        assert one.lookup(QUERY, 3) is not None

    def test_an_answer_of_another_shape(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No server answers so: the link to it is replaced."""
        cache = Shelf().cache(RedisServer("redis://127.0.0.1:1"))
        for reply in (
            None,
            [],
            [b"g", 0],
            [b"g", "x", 0, [], [], 0],
            5,
            [b"g", 0, 0, [], [[1]], 0],
        ):
            monkeypatch.setattr(cache._channel.link, "call", lambda *_, reply=reply, **__: reply)
            assert cache.lookup(QUERY, 3) is None
        assert cache.stats().failed == 6

    def test_documents_that_cannot_be_read(
        self, shared_redis: RealRedis, caplog: pytest.LogCaptureFixture
    ) -> None:
        shelf = Shelf()
        cache = shelf.cache(patient(shared_redis.url))

        def broken(_: Any) -> Any:
            raise RuntimeError("the store is gone")

        unreadable = shelf.cache(patient(shared_redis.url), documents=broken)
        shelf.ask(cache, QUERY)
        with caplog.at_level(logging.WARNING, "ragcache_integrations"):
            for _ in range(3):
                assert unreadable.lookup(QUERY, 3) is None
        assert unreadable.stats().failed == 3
        assert caplog.text.count("could not be read") == 1


def _buckets(client: Any, cache: RedisQueryCache[str]) -> list[bytes]:
    """Return the names of a cache's buckets."""
    names: list[bytes] = client.keys(f"*{cache.fingerprint}*")
    return [name for name in names if not name.endswith((b":state", b":changes"))]
