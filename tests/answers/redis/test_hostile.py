"""What others wrote into Redis, in every size and type: misses, which cost nothing afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fuzz.bounds import bounded
from tests.query_cache.redis.servers import RealRedis, redis_server

from .caches import WORDS, Process, ask, new_tag

LARGE = 20 << 20  # bytes, more than the answers of a key may have


@pytest.fixture(scope="module")
def server() -> Iterator[RealRedis]:
    with redis_server() as running:
        yield running


def _field(client: Any, name: bytes, kind: bytes) -> bytes:
    found: bytes = next(field for field in client.hkeys(name) if field[:1] == kind)
    return found


def _large_answer(client: Any, name: bytes) -> None:
    client.hset(name, _field(client, name, b"e"), b"9" * LARGE)


def _large_cap(client: Any, name: bytes) -> None:
    client.hset(name, b"c" + _field(client, name, b"e")[1:], b"9" * LARGE)


def _large_stranger(client: Any, name: bytes) -> None:
    client.hset(name, b"e" + bytes(16), b"%016d" % 10**15 + b"x" * LARGE)


def _many_fields(client: Any, name: bytes) -> None:
    client.hset(name, mapping={b"e%d" % number: b"x" for number in range(10_000)})


def _another_type(client: Any, name: bytes) -> None:
    client.delete(name)
    client.set(name, b"x" * 100)


def _no_time(client: Any, name: bytes) -> None:
    field = _field(client, name, b"e")
    client.hset(name, field, b"nan" + client.hget(name, field)[3:])


def _no_record(client: Any, name: bytes) -> None:
    field = _field(client, name, b"e")
    client.hset(name, field, client.hget(name, field)[:16] + b"\x80\x04K\x01.")  # a pickle


def _no_cap(client: Any, name: bytes) -> None:
    client.hset(name, b"c" + _field(client, name, b"e")[1:], b"nan")


HARMS = [
    *(_large_answer, _large_cap, _many_fields, _another_type, _no_time, _no_record, _no_cap),
]


@pytest.mark.parametrize("tolerance", [0, 0.5])
@pytest.mark.parametrize("harm", HARMS)
def test_what_no_process_wrote_is_a_miss(
    server: RealRedis,
    harm: Callable[[Any, bytes], None],
    tolerance: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tag = new_tag()
    one, other = Process(server, tag, tolerance=tolerance), Process(server, tag)
    with server.client() as client, bounded(), caplog.at_level(logging.WARNING):
        client.flushdb()
        one.answer(ask(WORDS[0]), "yes")
        name = next(name for name in client.scan_iter() if not name.endswith(b":state"))
        harm(client, name)
        for process in (one, other):
            assert process.served(ask(WORDS[0])) is None
        assert one.stats().corrupt == 1
        assert one.stats().failed == 0
        assert caplog.text.count("holds or answers what no process of this version wrote") <= 2
        one.answer(ask(WORDS[0]), "again")
        assert other.served(ask(WORDS[0])) == "again"
        if harm is _no_cap:  # nobody knows how far it may be served
            assert other.served(ask(WORDS[1])) is None


def test_what_lies_next_to_an_answer_does_no_harm(server: RealRedis) -> None:
    tag = new_tag()
    one, other = Process(server, tag), Process(server, tag)
    with server.client() as client, bounded():
        client.flushdb()
        one.answer(ask(WORDS[0]), "yes")
        name = next(name for name in client.scan_iter() if not name.endswith(b":state"))
        _large_stranger(client, name)
        assert other.served(ask(WORDS[0])) == "yes"  # whose words are there
        assert other.served(ask(WORDS[1])) is None
        assert other.stats().corrupt == 1
        assert not client.exists(name)
        one.answer(ask(WORDS[0]), "again")
        assert other.served(ask(WORDS[1])) == "again"
