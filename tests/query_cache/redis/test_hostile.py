"""Whatever is in Redis, and whatever a server answers: at most a miss, in bounded time."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import threading
import time
import zlib
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.query_cache.redis import link as redis_bounds
from ragcache_integrations.query_cache.redis import records as redis_records
from ragcache_integrations.query_cache.redis.cache import RedisQueryCache, RedisServer
from ragcache_integrations.query_cache.redis.link import Budget, Link
from tests.query_cache.reference import Vector

from .fake_server import Answer, drip, fake_redis, flood, say
from .servers import DIM, RealRedis, Shelf, near, patient, queries

QUERY = queries(1)[0]
NOW = 1_800_000_000_000_000


def forged_record(
    listed: bytes,
    *,
    complete: bool = True,
    version: int = 0,
    radius: float = 1.0,
    embedding: Vector = QUERY,
) -> bytes:
    """An entry with a right checksum."""
    told = DIM, len(listed), complete, version, radius
    head: bytes = redis_records._HEADER.pack(b"RQ2 ", 0, *told)
    body: bytes = head[8:] + embedding.astype("<f4").tobytes() + listed
    stamp: bytes = b"%016dRQ2 " % NOW
    return stamp + struct.pack("<I", zlib.crc32(body)) + body


def forged_change(listed: bytes, vectors: bytes = b"") -> bytes:
    body = vectors + listed
    return struct.pack("<4sIII", b"RQ2 ", zlib.crc32(body), DIM, len(listed)) + body


LISTS = {
    "deep": b"[" * 100_000,
    "deep and closed": b"[" * 5000 + b"]" * 5000,
    "huge score": b'["",[["id 1","f",1' + b"0" * 400 + b"]]]",
    "score of 5,000 digits": b'["",[["id 1","f",' + b"1" * 5000 + b"]]]",
    "true for a score": b'["",[["id 1","f",true]]]',
    "text for a score": b'["",[["id 1","f","1"]]]',
    "object": b'{"abc":1}',
    "text": b'"abc"',
    "texts of three letters": b'["abc","def"]',
    "half a character": b'["",[["\\ud800","f",1]]]',
    "half a character in a fingerprint": b'["",[["id 1","\\udc00",1]]',
    "null for an id": b'["",[[null,"f",1]]]',
    "a number for the words": b'[1,[["id 1","f",1]]]',
    "no JSON": b"\xff" * 10,
    "nothing": b"",
    "pickle": b"\x80\x04\x95\x10.",
    "too long": json.dumps(["", [["x" * 100, "f", 1.0]] * 12_000]).encode(),
}


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def keys_of(server: RealRedis, cache: RedisQueryCache[str]) -> tuple[bytes, bytes, bytes]:
    """The state, the changes, and the bucket of a cache with one entry."""
    with server.client() as client:
        names = client.keys(f"*{cache.fingerprint}*")
    state = next(name for name in names if name.endswith(b":state"))
    bucket = next(one for one in names if not one.endswith((b":state", b":changes")))
    return state, state.replace(b":state", b":changes"), bucket


def filled(server: RealRedis, shelf: Shelf, **options: Any) -> RedisQueryCache[str]:
    cache = shelf.cache(patient(server.url), **options)
    shelf.ask(cache, QUERY)
    assert cache.lookup(QUERY, 3) is not None
    return cache


@pytest.mark.parametrize("listed", LISTS.values(), ids=list(LISTS))
def test_a_forged_entry_is_a_miss_and_goes(
    own_redis: RealRedis, shelf: Shelf, listed: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cache = filled(own_redis, shelf)
    _, _, bucket = keys_of(own_redis, cache)
    with own_redis.client() as client:
        (field,) = [one for one in client.hgetall(bucket) if one[:1] == b"e"]
        for _ in range(2):
            client.hset(bucket, field, forged_record(listed))
            assert cache.lookup(QUERY, 3) is None
        assert asyncio.run(one_lookup(cache)) is None
        assert client.hget(bucket, field) is None  # the next lookup took the order along
    assert shelf.ask(cache, QUERY) is None
    assert cache.lookup(QUERY, 3) is not None  # it is an honest one again
    told = [
        record for record in caplog.records if "no process of this version" in record.getMessage()
    ]
    assert [one.levelno for one in told if one.levelno >= logging.WARNING] == [logging.WARNING]
    assert cache.stats().corrupt > 0
    cache.close()


async def one_lookup(cache: RedisQueryCache[str]) -> Any:
    try:
        return await cache.alookup(QUERY, 3)
    finally:
        await cache.aclose()


@pytest.mark.parametrize(
    "options",
    [{"version": 2**63}, {"version": 1}, {"radius": np.nan}, {"radius": np.inf, "complete": False}],
    ids=str,
)
def test_an_entry_cannot_know_what_nobody_knows(
    own_redis: RealRedis, shelf: Shelf, options: dict[str, Any]
) -> None:
    cache = filled(own_redis, shelf)
    _, _, bucket = keys_of(own_redis, cache)
    one = shelf.candidate("id 1")
    listed = json.dumps(["", [[one.id, one.fingerprint, 1.0]]]).encode()
    with own_redis.client() as client:
        (field,) = [one for one in client.hgetall(bucket) if one[:1] == b"e"]
        client.hset(bucket, field, forged_record(listed))
        assert cache.lookup(QUERY, 3) is not None  # so it is this that is refused:
        client.hset(bucket, field, forged_record(listed, **options))
    assert cache.lookup(QUERY, 3) is None
    assert cache.stats().corrupt == 1


@pytest.mark.parametrize("length", [0.0, 0.5, 1.0])
def test_a_unit_vector_of_another_length_is_no_entry(
    own_redis: RealRedis, shelf: Shelf, length: float
) -> None:
    """Proofs would divide by it."""
    shelf = Shelf("cosine")
    cache = filled(own_redis, shelf, guarantee="exact", tolerance=1.5)
    _, _, bucket = keys_of(own_redis, cache)
    one = shelf.candidate(shelf.store.ranked(QUERY)[0])
    listed = json.dumps(["", [[one.id, one.fingerprint, 1.0]]]).encode()
    embedding = QUERY / np.linalg.norm(QUERY) * length
    with own_redis.client() as client:
        (field,) = [one for one in client.hgetall(bucket) if one[:1] == b"e"]
        client.hset(bucket, field, forged_record(listed, embedding=embedding))
    assert (cache.lookup(QUERY, 1) is None) == (length != 1)
    assert cache.stats().corrupt == (length != 1)


CHANGES = {
    "deep": b"[" * 100_000,
    "deep and closed": b"[" * 5000 + b"]" * 5000,
    "object": b'{"a":1,"b":2}',
    "texts": b'["ab","cd"]',
    "no JSON": b"\xff" * 10,
    "NaN": b"NaN",
    "lists": b'[[["a"]],[]]',
    "half a character": b'[["\\ud800"],[]]',
    "no vectors": b'[[],["a"]]',
    "too long": json.dumps([["y" * 100] * 3000, []]).encode(),
}


@pytest.mark.parametrize("listed", CHANGES.values(), ids=list(CHANGES))
def test_a_forged_change_ends_entries_and_no_process(
    own_redis: RealRedis, shelf: Shelf, listed: bytes
) -> None:
    caches = [filled(own_redis, shelf), shelf.cache(patient(own_redis.url))]
    assert caches[1].lookup(QUERY, 3) is not None
    state, changes, _ = keys_of(own_redis, caches[0])
    value = forged_change(listed)
    with own_redis.client() as client:
        client.rpush(changes, value)
        client.hincrby(state, "v", 1)
        client.hincrby(state, "s", len(value))
    for cache in caches:
        assert cache.lookup(QUERY, 3) is None
        assert cache.lookup(near(QUERY, 5), 3) is None
    assert shelf.ask(caches[0], QUERY) is None
    assert all(cache.lookup(QUERY, 3) is not None for cache in caches)
    first = shelf.store.ranked(QUERY)[0]
    shelf.remove(first)
    caches[0].documents_removed([first])  # and changes go on
    for cache in caches:
        hit = cache.lookup(QUERY, 3)
        assert hit is None or first not in {candidate.id for candidate in hit.candidates}
        assert cache.stats().owed == 0


STATES: dict[str, dict[str, str | bytes]] = {
    "too large": {"v": "1e300", "f": "1e300"},
    "beyond what is counted": {"v": str(2**60), "f": str(2**60)},
    "no number": {"v": "nan"},
    "in another base": {"v": "0x10"},
    "negative": {"v": "-1", "f": "-1"},
    "broken": {"v": "0.5", "f": "0.5"},
    "infinite": {"s": "inf"},
    "negative bytes": {"s": "-1"},
    "a long name": {"g": b"g" * 100_000},
    "a name of bytes": {"g": b"\xff\x00'}}\n"},
}


@pytest.mark.parametrize("state", STATES.values(), ids=list(STATES))
def test_a_forged_state_is_begun_again(
    own_redis: RealRedis, shelf: Shelf, state: dict[str, str | bytes]
) -> None:
    cache = filled(own_redis, shelf)
    name, _, _ = keys_of(own_redis, cache)
    with own_redis.client() as client:
        client.hset(name, mapping=state)
        assert shelf.ask(cache, QUERY) is None
        assert cache.lookup(QUERY, 3) is not None
        client.hset(name, mapping=state)
    cache.documents_removed(["id 1"])
    assert cache.stats().owed == cache.stats().failed == 0


def test_keys_of_other_types_are_replaced(own_redis: RealRedis, shelf: Shelf) -> None:
    cache = filled(own_redis, shelf)
    for name in keys_of(own_redis, cache):
        for make in (("SET", "x"), ("RPUSH", "x"), ("SADD", "x"), ("ZADD", "1", "x")):
            own_redis.run("DEL", name.decode())
            own_redis.run(make[0], name.decode(), *make[1:])
            cache.lookup(QUERY, 3)
            shelf.ask(cache, QUERY)
            assert cache.lookup(QUERY, 3) is not None
    assert cache.stats().failed == 0


@pytest.mark.parametrize("size", [(1, 40 << 20), (70_000, 8)], ids=["long", "many"])
def test_what_is_too_large_is_deleted_and_not_fetched(
    own_redis: RealRedis, shelf: Shelf, size: tuple[int, int]
) -> None:
    cache = filled(own_redis, shelf)
    _, _, bucket = keys_of(own_redis, cache)
    with own_redis.client() as client:
        client.hset(bucket, mapping={f"e{one}": b"x" * size[1] for one in range(size[0])})
        assert cache.lookup(QUERY, 3) is None
        assert not client.exists(bucket)
    assert cache.stats().corrupt == 1
    shelf.ask(cache, QUERY)
    assert cache.lookup(QUERY, 3) is not None


def test_a_stamp_that_is_no_number_stops_no_insertion(own_redis: RealRedis, shelf: Shelf) -> None:
    cache = filled(own_redis, shelf, num_hyperplanes=1, bucket_capacity=2)
    _, _, bucket = keys_of(own_redis, cache)
    with own_redis.client() as client:
        for query in (near(QUERY, 0.01, seed) for seed in range(6)):
            assert cache.insert(query, shelf.search(query, 12))
            for field in client.hgetall(bucket):
                if field[:1] == b"t":
                    client.hset(bucket, field, b"nan")
    assert cache.stats().lost == 0


def test_an_entry_that_is_too_large_is_not_inserted(own_redis: RealRedis, shelf: Shelf) -> None:
    cache = filled(own_redis, shelf, vectors=None, documents=None, exact_search=False)
    one = shelf.candidate("id 1")
    long = [one._replace(id=f"{number}" + "x" * 1000) for number in range(1200)]
    assert not cache.insert(QUERY, long)
    assert cache.stats().dropped == 1


ANSWERS: dict[str, bytes] = {
    "nested arrays": b"*1\r\n" * 5000,
    "deeply nested arrays": b"*1\r\n" * 200_000,
    "an array of 2e9": b"*2000000000\r\n:1\r\n",
    "8e9 bytes": b"$8000000000\r\nabc",
    "a negative array": b"*-5\r\n",
    "negative bytes": b"$-7\r\n",
    "no number": b":abc\r\n",
    "a long number": b":" + b"9" * 10_000 + b"\r\n",
    "moved": b"-MOVED 1 10.255.255.1:6379\r\n",
    "ask": b"-ASK 1 127.0.0.1:1\r\n",
    "loading": b"-LOADING x\r\n",
    "no script for ever": b"-NOSCRIPT x\r\n",
    "an empty array": b"*0\r\n",
    "too many answers": b"*0\r\n" * 50,
    "HTTP": b"HTTP/1.1 400 Bad\r\n\r\n",
    "a push": b">2\r\n+a\r\n+b\r\n",
    "nothing": b"$-1\r\n",
    "text": b"$3\r\nabc\r\n",
    "six numbers": b"*6\r\n" + b":1\r\n" * 6,
    "a generation that is an array": b"*6\r\n*0\r\n:0\r\n:0\r\n*0\r\n*1\r\n*0\r\n:0\r\n",
    "a time that is too large": (
        b"*6\r\n$1\r\ng\r\n:0\r\n:9223372036854775807\r\n*0\r\n*1\r\n*0\r\n:0\r\n"
    ),
    "negative numbers": (b"*6\r\n$1\r\ng\r\n:-5\r\n:-1\r\n*1\r\n$1\r\nx\r\n*1\r\n*0\r\n:-3\r\n"),
    "errors among the changes": (
        b"*6\r\n$1\r\ng\r\n:0\r\n:1\r\n*1\r\n-ERR x\r\n*1\r\n*0\r\n:0\r\n"
    ),
    "two buckets for one": (b"*6\r\n$1\r\ng\r\n:0\r\n:1\r\n*0\r\n*2\r\n*0\r\n*0\r\n:0\r\n"),
    "half an entry": b"*6\r\n$1\r\ng\r\n:0\r\n:1\r\n*0\r\n*1\r\n*1\r\n$1\r\ne\r\n:0\r\n",
    "two numbers that are none": b"*2\r\n:-1\r\n:-1\r\n",
}


def impatient(url: str) -> RedisServer:
    return RedisServer(
        url,
        timeout=0.05,
        connect_timeout=0.5,
        change_timeout=0.1,
        failures=10**6,
        retry_after=0.05,
    )


@pytest.mark.parametrize("content", ANSWERS.values(), ids=list(ANSWERS))
def test_no_answer_raises(shelf: Shelf, content: bytes) -> None:
    with fake_redis(say(content)) as url:
        cache = shelf.cache(impatient(url))
        assert cache.lookup(QUERY, 3) is None
        assert not cache.insert(QUERY, shelf.search(QUERY, 3))
        assert not cache.delete(QUERY)
        assert not cache.explain(QUERY, 3).hit
        cache.documents_removed(["id 1"])
        cache.clear()

        async def all_of_it() -> None:
            assert await cache.alookup(QUERY, 3) is None
            assert not await cache.ainsert(QUERY, shelf.search(QUERY, 3))
            assert not await cache.adelete(QUERY)
            await cache.adocuments_removed(["id 1"])
            await cache.aclose()

        asyncio.run(all_of_it())
        stats = cache.stats()
        assert stats.hits == stats.insertions == 0
        assert stats.failed + stats.skipped == stats.lookups == 2
        cache.close()


ENDLESS: dict[str, Answer] = {
    "drips bytes": drip(b"*6\r\n$2000000\r\n"),
    "drips a line": drip(b"+"),
    "drips an array": drip(b"*2000000000\r\n", b":1\r\n"),
    "drips errors": drip(b"*2000000000\r\n", b"-x\r\n"),
    "floods with bytes": flood(b"$8000000000\r\n", b"x" * (1 << 20)),
    "floods with a line": flood(b"+", b"x" * (1 << 20)),
    "floods with numbers": flood(b"*2000000000\r\n", b":1\r\n" * 10_000),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_operation_ends_with_its_budget(
    shelf: Shelf, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeouts of single reads are so long here that nothing else would end it."""
    exceeded: list[str] = []
    take = Budget.take

    def watched(self: Budget, count: int) -> None:
        try:
            take(self, count)
        except ConnectionError as error:
            exceeded.append(str(error))
            raise

    floods = kind.startswith("floods")

    def budget(self: Link, *, patient: bool = False) -> Budget:
        del self
        return Budget(60 if floods else 0.3, patient=patient)

    monkeypatch.setattr(Budget, "take", watched)
    monkeypatch.setattr(Link, "budget", budget)
    monkeypatch.setattr(redis_bounds, "LARGEST_ANSWER", 1 << 20)
    with fake_redis(ENDLESS[kind]) as url:
        server = RedisServer(url, timeout=600, connect_timeout=600, change_timeout=600)
        cache = shelf.cache(server)
        assert cache.lookup(QUERY, 3) is None
        assert bool(exceeded) == floods
        assert asyncio.run(one_lookup(cache)) is None
        cache.documents_removed(["id 1"])
        assert cache.stats().owed == 1
        assert cache.stats().failed == 2
        cache.close()


def test_a_dripping_server_is_left_alone(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    with fake_redis(drip(b"+")) as url:
        server = RedisServer(url, timeout=0.02, connect_timeout=0.02, retry_after=100)
        cache = shelf.cache(server)
        for _ in range(10):
            assert cache.lookup(QUERY, 3) is None
        assert (cache.stats().failed, cache.stats().skipped) == (3, 7)
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_a_budget_is_of_the_whole_operation() -> None:
    budget = Budget(100)
    budget.take(redis_bounds.LARGEST_ANSWER - 1)
    budget.take(1)
    with pytest.raises(ConnectionError, match="more than"):
        budget.take(1)
    assert 0 < budget.seconds() <= 100
    budget.deadline = time.monotonic() - 1
    with pytest.raises(TimeoutError, match="too long"):
        budget.seconds()


def test_the_thread_that_tells_of_changes_survives_anything(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_redis(say(b"-ERR x\r\n")) as url:
        cache = shelf.cache(impatient(url))
        failures = iter([RecursionError("deep"), MemoryError("large"), ZeroDivisionError("odd")])
        told = threading.Event()

        def call(*arguments: Any, **options: Any) -> Any:
            error = next(failures, None)
            if error is not None:
                raise error
            told.set()
            return 1

        monkeypatch.setattr(cache._channel.link, "call", call)
        cache.clear_soon()
        assert told.wait(30)
        cache.close()
    warnings = [
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    ]
    assert warnings == ["Redis cannot receive changes of the store"]


def test_a_thread_that_cannot_be_started_is_tried_again(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_redis(say(b":1\r\n")) as url:
        cache = shelf.cache(impatient(url))

        def fail(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            cache.clear_soon()
        assert cache.stats().owed == 1
        assert cache.lookup(QUERY, 3) is None
        pause = threading.Event()
        for _ in range(3000):
            if not cache.stats().owed:
                break
            pause.wait(0.01)
        assert cache.stats().owed == 0
        cache.close()
