"""What a client of ``ragcache serve`` may send before its key is checked, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.serving.bounded import (
    CLOSING,
    HEALTH,
    UPGRADE,
    Bounded,
    bounded,
    chunked,
    exchange,
    post,
    statuses,
)
from tests.support.sizes import examples

from . import bounds
from .hostile import damaged

# Parts of requests, good and bad, that are put together in any way and cut anywhere.
PARTS = [
    *(HEALTH, CLOSING, UPGRADE, post(b"abc"), post(b"abc", length=9), post(path=b"/early")),
    *(chunked(b"a", b"b"), chunked(b"a" * 99, end=False), chunked(trailers=b"X: y\r\n")),
    *(b"GET / HTTP/1.1\r\n", b"POST /early HTTP/1.0\r\n", b"Content-Length: 5\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"\r\n", b"\n", b"\r"),
    *(b"Connection: keep-alive, Upgrade\r\n", b"Upgrade: h2c\r\n", b"0\r\n\r\n", b"5\r\nabcde"),
    post(b"abc", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA"),
    *(b"X: " + b"y" * 2000, b"X: y\r\n" * 30, b"/" * 3000, b"x" * 5000, b"f" * 16 + b"\r\n"),
]
REQUESTS = st.lists(st.one_of(st.sampled_from(PARTS), st.binary(max_size=40)), max_size=6)
WHOLE = [
    *(HEALTH, CLOSING, UPGRADE, post(b"abc" * 20), chunked(b"a" * 30, b"b", trailers=b"X: y\r\n")),
    HEALTH.replace(b"Host", b"X-A: b\r\nAuthorization: Bearer key\r\nAccept: a, b\r\nHost"),
    post(b"abc", b"Expect: 100-continue", b"Connection: keep-alive") + post(b"def") + CLOSING,
]
DAMAGED = st.sampled_from(WHOLE).flatmap(
    lambda whole: damaged(whole, tuple(part for part in PARTS if len(part) < 100))
)
LIMITS: dict[str, Any] = {
    "header_seconds": 0.05,
    "body_seconds": 0.05,
    "max_header_bytes": 1000,
    "max_headers": 20,
    "max_prompt_bytes": 2000,
}


@examples(60)
@given(st.lists(REQUESTS.map(b"".join) | DAMAGED, min_size=1, max_size=8), st.data())
def test_whatever_is_sent(raws: list[bytes], data: st.DataObject) -> None:
    """Whatever is sent is answered with a 2xx or a 4xx, and leaves nothing behind."""
    cuts = [(raw, data.draw(st.integers(0, len(raw)))) for raw in raws]
    websockets = data.draw(st.booleans())

    async def send() -> None:
        async with bounded(keep_alive=0.05, websockets=websockets, **LIMITS) as server:
            sending = (send_cut(server, *cut, end=websockets) for cut in cuts)
            for answer in await asyncio.gather(*sending):
                assert not answer or answer.startswith(b"HTTP/1.1 ")
                assert all(status < 500 for status in statuses(answer))
            for scope in server.application.scopes:
                assert len(scope["headers"]) <= 20
                assert sum(len(name) + len(value) for name, value in scope["headers"]) <= 1000
            assert all(len(body or b"") <= 2000 for body in server.application.bodies)
            assert await server.empty()
            assert await server.healthy()

    with bounds.bounded():
        asyncio.run(send())


async def send_cut(server: Bounded, raw: bytes, cut: int, *, end: bool) -> bytes:
    """Send something in two pieces, and the end of the stream where nothing else would end it."""
    reader, writer = await server.connect()
    try:
        writer.write(raw[:cut])
        await asyncio.sleep(0)
        if not raw[cut:]:
            writer.write_eof()
        elif end:
            writer.write(raw[cut:])
            raw = b""
            writer.write_eof()
        return await exchange(reader, writer, raw[cut:])
    finally:
        writer.close()
