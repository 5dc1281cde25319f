"""What is in Redis, damaged or forged: at most a miss, and right again once it is replaced."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st

from ragcache_integrations.query_cache import Candidate
from ragcache_integrations.query_cache.redis import records as redis_records
from ragcache_integrations.query_cache.redis.cache import RedisQueryCache
from tests.query_cache.redis.servers import (
    DIM,
    RealRedis,
    Shelf,
    near,
    patient,
    queries,
    redis_server,
)
from tests.support.sizes import examples

from .bounds import bounded
from .hostile import WHOLE, altered_text, damaged

LISTED = [["id 1", "fingerprint of text of id 1", 1.0], ["id 2", "another", None]]
STAMP = 16  # bytes before an entry
HEADER = redis_records._HEADER.size
QUERIES = [near(queries(1)[0], 0.2 * step, step) for step in range(4)]
CACHES: list[dict[str, Any]] = [
    {"metric": "l2"},
    {"metric": "cosine", "guarantee": "exact", "tolerance": 1.5, "num_hyperplanes": 1},
    {"metric": "cosine", "guarantee": 0.5, "tolerance": 1.5, "ttl": 60.0},
    {"metric": "ip", "vectors": None, "exact_search": False, "tolerance": 2.0},
]
PIECES = (b"RQ1 ", b"[]", b'[["id 1","f",1]]', b"0" * 16, b"\xff" * 8, b"nan", b"1e300")


@pytest.fixture(scope="module")
def server() -> Iterator[RealRedis]:
    with redis_server() as running:
        yield running


def sealed_record(value: bytes) -> bytes:
    """An entry with the checksum that it should have."""
    body = value[STAMP + 8 :]
    return value[: STAMP + 4] + struct.pack("<I", zlib.crc32(body)) + body


def sealed_change(value: bytes) -> bytes:
    return value[:4] + struct.pack("<I", zlib.crc32(value[8:])) + value[8:]


@st.composite
def record(draw: st.DrawFn, value: bytes) -> bytes:
    """An entry that was damaged, or whose header, embedding or list was forged."""
    list_at = STAMP + HEADER + 4 * DIM
    match draw(st.sampled_from(["bytes", "sealed", "list", "header", "embedding"])):
        case "bytes":
            return draw(damaged(value, PIECES))
        case "sealed":
            return sealed_record(draw(damaged(value, PIECES)).ljust(STAMP + HEADER, b"\0"))
        case "list":
            listed = draw(altered_text(LISTED)).encode()
            size = STAMP + 12
            whole = value[:size] + struct.pack("<I", len(listed)) + value[size + 4 : list_at]
            return sealed_record(whole + listed)
        case "header":
            numbers = st.sampled_from([0.0, -1.0, 1e308, float("inf"), float("nan"), 0.5])
            version = draw(st.sampled_from(WHOLE)) % 2**64
            head = struct.pack("<?xxxQd", draw(st.booleans()), version, draw(numbers))
            at = STAMP + 16
            stamp = draw(st.sampled_from([value[:STAMP], b"0" * STAMP, b"9" * STAMP, b"1 " * 8]))
            return sealed_record(stamp + value[STAMP:at] + head + value[at + len(head) :])
        case _:
            numbers = st.sampled_from([0.0, 1e-45, 1.0, -1.0, 3e38, float("inf"), float("nan")])
            vector = struct.pack(f"<{DIM}f", *draw(st.lists(numbers, min_size=DIM, max_size=DIM)))
            return sealed_record(value[: STAMP + HEADER] + vector + value[list_at:])


@st.composite
def change(draw: st.DrawFn) -> bytes:
    """A change of the store that nobody has made."""
    removed, added = draw(st.sampled_from([([], []), (["id 1"], []), (["id 2"], ["id 3"])]))
    vectors = struct.pack(f"<{DIM * len(added)}f", *[draw(st.floats(width=32))] * DIM * len(added))
    listed = draw(altered_text([removed, added])).encode()
    value = struct.pack("<4sIII", b"RQ1 ", 0, DIM, len(listed)) + vectors + listed
    return sealed_change(value if draw(st.booleans()) else draw(damaged(value, PIECES)))


def forge(data: st.DataObject, client: Any, names: list[bytes]) -> None:
    """Change something of what a cache has in Redis."""
    state = next(one for one in names if one.endswith(b":state"))
    changes = state.replace(b":state", b":changes")
    buckets = [one for one in names if one not in {state, changes} and client.type(one) == b"hash"]
    kind = data.draw(st.sampled_from(["entry", "entry", "entry", "change", "key"]))
    if kind == "entry" and buckets:
        name = data.draw(st.sampled_from(buckets))
        fields = {one: value for one, value in client.hgetall(name).items() if one[:1] == b"e"}
        for field, value in sorted(fields.items()):
            whole = len(value) > STAMP + HEADER + 4 * DIM
            client.hset(name, field, data.draw(record(value) if whole else damaged(value)))
    elif kind == "change" and client.type(state) == b"hash":
        with suppress(redis.ResponseError):  # because of what was forged before
            value = data.draw(change())
            client.rpush(changes, value)
            client.hincrby(state, "v", 1)
            client.hincrby(state, "s", len(value))
    else:
        forge_key(data, client, data.draw(st.sampled_from(names)))


def forge_key(data: st.DataObject, client: Any, name: bytes) -> None:
    """Change any key: a field or an item of it, or its type, or delete it."""
    of_type = client.type(name)
    kind = data.draw(st.sampled_from(["damage", "damage", "more", "type", "gone"]))
    if kind == "damage" and of_type == b"list":
        value = client.lindex(name, -1)
        client.lset(name, -1, sealed_change(data.draw(damaged(value, PIECES)).ljust(16)))
    elif kind in {"damage", "more"} and of_type == b"hash":
        fields = client.hgetall(name)
        field = data.draw(st.sampled_from(sorted(fields)))
        if kind == "more":
            field = field[:1] + data.draw(st.binary(max_size=9))
        client.hset(name, field, data.draw(damaged(fields.get(field, b"12345678"), PIECES)))
    elif kind != "damage":
        client.delete(name)
        if kind == "type":
            make = data.draw(st.sampled_from(["SET", "RPUSH", "SADD", "ZADD 1", "HSET f"]))
            command, *arguments = make.split()
            client.execute_command(command, name, *arguments, b"x")


def use(shelf: Shelf, caches: list[RedisQueryCache[str]], query: Any) -> None:
    """Ask in every way: nothing raises, and what is answered is the store's own."""

    async def ask() -> None:
        for cache in caches:
            check(shelf, await cache.alookup(query, 3))
            await cache.ainsert(query, shelf.search(query, 12))
            await cache.aclose()

    for cache in caches:
        check(shelf, cache.lookup(query, 3))
        cache.explain(query, 3)
        check(shelf, shelf.ask(cache, query))
    asyncio.run(ask())
    caches[0].documents_removed(["id 59"])
    caches[0].delete(query)


def check(shelf: Shelf, hit: Any) -> None:
    for candidate in hit.candidates if hit else ():
        assert isinstance(candidate, Candidate)
        assert candidate.fingerprint == shelf.candidate(candidate.id).fingerprint


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(options=st.sampled_from(CACHES), data=st.data())
def test_forged_values(server: RealRedis, options: dict[str, Any], data: st.DataObject) -> None:
    options = dict(options)
    shelf = Shelf(options.pop("metric"), count=60)
    caches = [shelf.cache(patient(server.url), **options) for _ in range(2)]
    with server.client() as client, bounded():
        client.flushdb()
        for query in QUERIES:
            shelf.ask(caches[0], query)
        caches[0].documents_removed(["id 58"])
        shelf.ask(caches[0], QUERIES[0])
        for _ in range(data.draw(st.integers(1, 3))):
            names = sorted(client.keys())
            if any(name.endswith(b":state") for name in names):
                forge(data, client, names)
        for query in QUERIES[:2]:
            use(shelf, caches, query)
        stats = [cache.stats() for cache in caches]
        assert all(one.failed == one.skipped == one.owed == 0 for one in stats)
        event(f"{'some' if any(one.corrupt for one in stats) else 'none'} noticed")
        # Whatever it was, it goes.
        caches[0].clear()
        shelf.ask(caches[1], QUERIES[0])
        right = [candidate.id for candidate in shelf.search(QUERIES[0], 3)]
        for cache in caches:
            hit = cache.lookup(QUERIES[0], 3)
            assert hit is not None
            assert [candidate.id for candidate in hit.candidates] == right
            cache.close()


@given(st.binary(max_size=100), st.integers(1, 9))
def test_whatever_else_there_may_be(value: bytes, dim: int) -> None:
    assert redis_records.decode_record(value, dim) is None
    assert redis_records.decode_change(value, dim) is None
