"""What is in Redis of answers, damaged or forged: at most a miss, and right again afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st

from ragcache_integrations.answers import Question
from ragcache_integrations.answers.entries import decode_record
from tests.answers.redis.caches import TEXTS, WORDS, Process, ask, new_tag
from tests.query_cache.redis.fake_server import fake_redis, flood, say
from tests.query_cache.redis.servers import RealRedis, patient, redis_server
from tests.support.sizes import examples

from .bounds import bounded
from .hostile import altered_text, damaged

STAMP = 16  # bytes before a record
PIECES = (b"[]", b"{", b"0" * STAMP, b"nan", b"1e300", b"-1", b"9" * 40, b"\xff" * 8)
QUESTIONS = [ask(text, tenant) for text in WORDS for tenant in ("", "a")]


@pytest.fixture(scope="module")
def server() -> Iterator[RealRedis]:
    with redis_server() as running:
        yield running


@st.composite
def value(draw: st.DrawFn, field: bytes, before: bytes) -> bytes:
    """A field's value that nobody has written."""
    stamp, content = before[:STAMP], before[STAMP:]
    with suppress(ValueError, RecursionError):  # it may be forged, and nested deeply
        if field[:1] == b"e" and draw(st.booleans()):
            return stamp + draw(altered_text(json.loads(content))).encode()
    return draw(damaged(before, PIECES))


def forge(data: st.DataObject, client: Any) -> None:
    """Change something of what is there."""
    names = sorted(client.scan_iter())
    name = data.draw(st.sampled_from(names))
    kind = data.draw(st.sampled_from(["value", "value", "value", "exchange", "more", "type"]))
    fields = client.hgetall(name) if client.type(name) == b"hash" else {}
    if kind == "type" or not fields:
        client.delete(name)
        command, *arguments = data.draw(
            st.sampled_from(["SET", "RPUSH", "SADD", "ZADD 1", "HSET f"])
        ).split()
        client.execute_command(command, name, *arguments, b"x")
        return
    field = data.draw(st.sampled_from(sorted(fields)))
    if kind == "exchange":  # an answer of another key, or to other words
        other = data.draw(st.sampled_from(names))
        with suppress(redis.ResponseError):
            others = client.hgetall(other)
            client.hset(name, field, data.draw(st.sampled_from(sorted(others.values()))))
    elif kind == "more":
        client.hset(name, data.draw(st.binary(max_size=18)), data.draw(st.binary(max_size=40)))
    else:
        client.hset(name, field, data.draw(value(field, fields[field])))


def answer_to(question: Question) -> str:
    return f"{question.scope[0]}: {question.text}"


def use(process: Process) -> None:
    """Ask everything: nothing raises, and no tenant gets another's answer."""
    for question in QUESTIONS:
        lookup = process.look_up(question)
        process.flow.explain(question, None)
        if lookup.entry is None:
            process.flow.keep(lookup, answer_to(question))
        else:
            assert lookup.entry.question.scope == question.scope
            assert lookup.entry.question.documents == question.documents


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), ttl=st.sampled_from([None, 1e6]), tolerance=st.sampled_from([0, 0.5]))
def test_forged_values(
    server: RealRedis, data: st.DataObject, ttl: float | None, tolerance: float
) -> None:
    tag = new_tag()
    one, other = (Process(server, tag, ttl=ttl, tolerance=tolerance, capacity=20) for _ in range(2))
    with server.client() as client, bounded():
        client.flushdb()
        use(one)
        for _ in range(data.draw(st.integers(1, 3))):
            forge(data, client)
        for process in (other, one):
            use(process)
        stats = [process.stats() for process in (one, other)]
        assert all(each.failed == each.skipped == each.owed == 0 for each in stats)
        event("noticed" if any(each.corrupt for each in stats) else "not noticed")
        # Whatever it was, it goes.
        one.flow.clear()
        use(other)
        for question in QUESTIONS:
            served = one.served(question)
            if tolerance == 0:
                assert served == answer_to(question)
            else:
                assert served is not None
                assert served.startswith(f"{question.scope[0]}: ")
        for process in (one, other):
            process.flow.close()


@given(st.binary(max_size=200))
def test_whatever_else_there_may_be(content: bytes) -> None:
    with pytest.raises(ValueError, match="a saved answer"):
        decode_record(content, TEXTS)


ANSWERS = [
    *(b"$-1\r\n", b":1\r\n", b"+OK\r\n", b"-ERR no\r\n", b"*0\r\n", b"*5\r\n:1\r\n", b"x\r\n"),
    b"*4\r\n:1\r\n*0\r\n:0\r\n:0\r\n",
    b"*5\r\n:1\r\n*1\r\n$1\r\nx\r\n:0\r\n:0\r\n$1\r\ng\r\n",
    b"*5\r\n:1\r\n*3\r\n$1\r\nx\r\n$1\r\nx\r\n$1\r\nx\r\n:0\r\n:0\r\n$1\r\ng\r\n",
    b"*5\r\n:-1\r\n*0\r\n:0\r\n:0\r\n$1\r\ng\r\n",
    b"*5\r\n:99999999999999999999999\r\n*0\r\n:0\r\n:0\r\n$1\r\ng\r\n",
    b"*5\r\n:1\r\n:1\r\n:0\r\n:0\r\n$1\r\ng\r\n",
    b"*5\r\n:1\r\n*0\r\n:0\r\n:0\r\n:1\r\n",
    b"$999999999999\r\n",
]


@pytest.mark.parametrize("reply", ANSWERS)
def test_whatever_a_server_says_is_a_miss(reply: bytes) -> None:
    with fake_redis(say(reply)) as url, bounded():
        process = Process(patient(url, timeout=0.2, failures=100), new_tag())
        for _ in range(2):
            assert process.served(QUESTIONS[0]) is None
        lookup = process.look_up(QUESTIONS[0])
        process.flow.keep(lookup, "yes")
        assert process.served(QUESTIONS[0]) is None
        process.flow.close()


def test_a_server_that_sends_without_end_is_left() -> None:
    with fake_redis(flood(b"$9999999999\r\n", b"x" * (1 << 16))) as url, bounded():
        process = Process(patient(url, timeout=1.0), new_tag())
        assert process.served(QUESTIONS[0]) is None
        assert process.stats().failed == 1
        process.flow.close()
