from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import MutableMapping
from typing import Any

import pytest

from ragcache_integrations.engine.serving.requests.reading import (
    MAX_DEPTH,
    decoded,
    parse_json,
    read_body,
)
from ragcache_integrations.engine.serving.wire import RequestRefusedError


def channel(*messages: dict[str, Any]) -> Any:
    pending = list(messages)

    async def receive() -> MutableMapping[str, Any]:
        return pending.pop(0)

    return receive


def chunk(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_pieces() -> None:
    receive = channel(chunk(b"ab", more=True), chunk(b"", more=True), chunk(b"c"))
    assert await read_body(receive, 3, None) == b"abc"


async def test_a_client_that_goes_away() -> None:
    receive = channel(chunk(b"ab", more=True), {"type": "http.disconnect"})
    assert await read_body(receive, 9, None) is None


@pytest.mark.parametrize("declared", [b"4", b"9" * 40, None])
async def test_a_large_body(declared: bytes | None) -> None:
    with pytest.raises(RequestRefusedError, match="larger than the 3 bytes") as refused:
        await read_body(channel(chunk(b"ab", more=True), chunk(b"cd")), 3, declared)
    assert refused.value.status == 413
    assert ((b"connection", b"close") in refused.value.headers) == (declared == b"9" * 40)


async def test_a_body_without_end() -> None:
    with pytest.raises(RequestRefusedError) as refused:
        await read_body(channel(*[chunk(b"x" * 5, more=True)] * 3), 3, None)
    assert refused.value.headers == [(b"connection", b"close")]


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        -1.5e300,
        2**63 - 1,
        -(2**63),
        "12345678901234567890 is text, and 1e999, too",
        "\N{GRINNING FACE}",
        {"a": [1, 2, {"b": None}]},
        list(range(10_000)),
    ],
)
def test_json(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_depth() -> None:
    assert parse_json(nested(MAX_DEPTH)) is not None
    for depth in (MAX_DEPTH + 1, 1000, 100_000):
        with pytest.raises(RequestRefusedError, match="nested more than"):
            parse_json(nested(depth))
    with pytest.raises(RequestRefusedError, match="nested"):
        parse_json(b'{"a":' * 100 + b"1" + b"}" * 100)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nonsense",
        b"{} {}",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"NaN",
        b"[Infinity]",
        b"[-Infinity]",
        b"1e999",
        b"-1e400",
        str(2**63).encode(),
        str(-(2**63) - 1).encode(),
        b"9" * 5000,
        b"1" + b"0" * 400 + b".5",
        b'"\\ud800"',
        b'{"\\udc00": 1}',
        b'"\\ud800\\ud800"',
    ],
)
def test_no_json(raw: bytes) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        parse_json(raw)
    assert refused.value.status == 400
    error = json.loads(refused.value.body)["error"]
    assert error["code"] == 400
    assert error["type"] == "BadRequestError"
    assert len(error["message"]) < 400


BODY = b'{"model": "m"}' * 3


def zipped(body: bytes) -> bytes:
    """Without the time, which would be in the names of tests."""
    return gzip.compress(body, mtime=0)


def deflated(body: bytes) -> bytes:
    """Without zlib's head and checksum, as many clients send it."""
    return zlib.compress(body)[2:-4]


@pytest.mark.parametrize(
    ("raw", "codings"),
    [
        (BODY, b""),
        (BODY, b"identity"),
        (zipped(BODY), b"gzip"),
        (zipped(BODY), b" X-GZIP ,identity"),
        (zlib.compress(BODY), b"deflate"),
        (deflated(BODY), b"deflate"),
    ],
)
def test_an_encoded_body(raw: bytes, codings: bytes) -> None:
    assert decoded(raw, codings, len(BODY)) == BODY


@pytest.mark.parametrize(
    "codings", [b"br", b"zstd", b"gzip, gzip", b"deflate,gzip", b"compress", b"*"]
)
def test_codings_that_are_not_read(codings: bytes) -> None:
    with pytest.raises(RequestRefusedError, match="gzip or deflate") as refused:
        decoded(zipped(zipped(BODY)), codings, 1000)
    assert refused.value.status == 415
    assert refused.value.headers == [(b"accept-encoding", b"gzip, deflate")]


@pytest.mark.parametrize("compress", [zipped, zlib.compress, deflated])
def test_a_body_that_would_be_too_large(compress: Any) -> None:
    coding = b"gzip" if compress is zipped else b"deflate"
    bomb = compress(bytes(64 << 20))
    assert len(bomb) < 1 << 17
    with pytest.raises(RequestRefusedError, match="larger than the 1000 bytes") as refused:
        decoded(bomb, coding, 1000)
    assert refused.value.status == 413
    assert len(decoded(compress(bytes(1000)), coding, 1000)) == 1000


@pytest.mark.parametrize(
    "raw",
    [
        BODY,
        zipped(BODY)[:-1],
        zipped(BODY)[:-9] + bytes(9),
        zipped(BODY) + b"x",
        zipped(BODY) * 2,
        b"\x1f\x8b",
    ],
)
@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
def test_a_damaged_encoded_body(raw: bytes, coding: bytes) -> None:
    with pytest.raises(RequestRefusedError, match="is not one whole") as refused:
        decoded(raw, coding, 1000)
    assert refused.value.status == 400
