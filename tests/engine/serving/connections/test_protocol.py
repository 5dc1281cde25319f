"""What a client may send before anybody looks at it, over real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ragcache_integrations.engine.serving import connections
from ragcache_integrations.engine.serving.connections import Clients
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
    until,
)

MEBIBYTE = 1 << 20


def get(*headers: bytes, url: bytes = b"/health") -> bytes:
    lines = [b"GET %s HTTP/1.1" % url, b"Host: x", b"Connection: close", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


class TestHeads:
    async def test_as_many_headers_as_allowed_and_no_more(self) -> None:
        async with bounded(max_headers=10) as server:
            most = [b"X-%d: y" % number for number in range(8)]
            assert statuses(await server.exchange(get(*most))) == [200]
            assert statuses(await server.exchange(get(*most, b"Z: z"))) == [431]
            assert len(server.application.scopes) == 1

    async def test_as_many_bytes_as_allowed_and_no_more(self) -> None:
        async with bounded(max_header_bytes=2000) as server:
            # "/health", the first two headers, and the last one's name and framing
            rest = 2000 - len(b"/healthHost: x\r\nConnection: close\r\nA: \r\n")
            assert statuses(await server.exchange(get(b"A: " + b"a" * rest))) == [200]
            answer = await server.exchange(get(b"A: " + b"a" * (rest + 1)))
            assert statuses(answer) == [431]
            assert b"connection: close" in answer
            error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
            assert error["code"] == 431
            assert "more than 2000 bytes" in error["message"]

    async def test_a_long_url(self) -> None:
        async with bounded(max_header_bytes=2000) as server:
            assert statuses(await server.exchange(get(url=b"/" + b"a" * 1900))) == [200]
            assert statuses(await server.exchange(get(url=b"/" + b"a" * 2000))) == [414]
            assert len(server.application.scopes) == 1

    @pytest.mark.parametrize(
        "endless",
        [
            b"GET /" + b"a" * MEBIBYTE,
            b"GET /health HTTP/1.1\r\nX: " + b"a" * MEBIBYTE,
            b"GET /health HTTP/1.1\r\n" + b"a" * MEBIBYTE,
            b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 200_000,
            b"GET /health HTTP/1.1\r\nX:" + b" " * MEBIBYTE,
            b"\r\n" * MEBIBYTE,
            HEALTH + b"\r\n" * MEBIBYTE,
            HEALTH + b"GET /health HTTP/1.1\r\nX: " + b"a" * MEBIBYTE,
        ],
        ids=["url", "value", "name", "number", "spaces", "nothing", "after one", "second head"],
    )
    async def test_without_end(self, endless: bytes) -> None:
        async with bounded() as server:
            reader, writer = await server.connect()
            fed: list[int] = []
            protocol = await the_protocol(server)
            protocol.parser = Recording(protocol.parser, fed)
            answer = await exchange(reader, writer, endless)
            writer.close()
            first = [200] if endless.startswith(HEALTH) else []
            assert statuses(answer) in (first, [400], [414], [431])
            # No more was parsed than the limit, one piece, and what an earlier request had.
            assert sum(fed) <= 65_536 + 2 * connections.PIECE_BYTES
            assert await server.empty()
            assert await server.healthy()

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"GET",
            b"GET / HTTP/1.1\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\n",
            b"\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 5",
        ],
    )
    async def test_that_never_end(self, raw: bytes) -> None:
        async with bounded(header_seconds=0.1) as server:
            answer = await server.exchange(raw)
            assert statuses(answer) == ([408] if raw else [])
            assert not server.application.scopes
            assert await server.empty()

    async def test_that_drip(self) -> None:
        """Each byte in time is not in time all together."""
        async with bounded(header_seconds=0.3) as server:
            reader, writer = await server.connect()
            drops = asyncio.create_task(drip(writer))
            assert statuses(await exchange(reader, writer, b"GET / HTTP/1.1\r\nX: ")) == [408]
            drops.cancel()
            writer.close()
            assert await server.empty()

    async def test_a_connection_is_kept_longer_than_a_head_may_take(self) -> None:
        async with bounded(header_seconds=0.1) as server:
            reader, writer = await server.connect()
            for _ in range(2):
                writer.write(HEALTH)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                await asyncio.sleep(0.3)
            assert statuses(await exchange(reader, writer, b"GET / HT")) == [408]
            writer.close()


class TestBodies:
    async def test_that_never_end(self) -> None:
        async with bounded(body_seconds=0.1) as server:
            assert statuses(await server.exchange(post(b"abc", length=9))) == [408]
            assert statuses(await server.exchange(chunked(b"abc", end=False))) == [408]
            assert server.application.bodies == [None, None]
            assert await server.empty()

    async def test_that_drip(self) -> None:
        async with bounded(body_seconds=0.3) as server:
            reader, writer = await server.connect()
            drops = asyncio.create_task(drip(writer))
            assert statuses(await exchange(reader, writer, post(length=10_000))) == [408]
            drops.cancel()
            writer.close()
            assert await server.empty()

    async def test_behind_an_answer_that_came_early(self) -> None:
        async with bounded(body_seconds=0.1) as server:
            answer = await server.exchange(post(b"abc", path=b"/early", length=9))
            assert statuses(answer) == [401]
            assert await server.empty()

    async def test_a_connection_goes_on_behind_an_early_answer(self) -> None:
        async with bounded() as server:
            reader, writer = await server.connect()
            writer.write(post(b"abc", path=b"/early", length=9))
            assert (await reader.readuntil(b"no")).startswith(b"HTTP/1.1 401")
            assert statuses(await exchange(reader, writer, b"defghi" + CLOSING)) == [200]
            writer.close()

    async def test_without_end(self) -> None:
        async with bounded(max_prompt_bytes=1000, max_header_bytes=1000) as server:
            for path in (b"/", b"/early"):
                whole = chunked(*[b"x" * 1000] * 3000, path=path, end=False)
                assert statuses(await server.exchange(whole))[:1] in ([], [413], [401])
            assert await server.empty()
            assert await server.healthy()

    @pytest.mark.parametrize("path", [b"/", b"/early"])
    async def test_the_framing_without_end(self, path: bytes) -> None:
        head = b"POST %s HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" % path
        async with bounded() as server:
            for endless in (
                b"5;" + b"e" * MEBIBYTE,
                b"0\r\nX: " + b"t" * MEBIBYTE,
                b"0\r\n" + b"X: y\r\n" * 100_000,
                b"0" * MEBIBYTE,
            ):
                answer = await server.exchange(head + endless)
                assert statuses(answer) in ([], [400], [401], [431])
            assert await server.empty()
            assert None in server.application.bodies or path == b"/early"

    async def test_refused_before_it_was_asked_for(self) -> None:
        """The application would ask for a body whose connection has had its answer."""
        head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
        async with bounded() as server:
            assert statuses(await server.exchange(head + b"no chunk\r\n")) == [400]
            assert server.application.bodies == [None]

    async def test_in_chunks_that_are_too_small(self) -> None:
        few = [b"x"] * (connections.FREE_CHUNKS - 1)  # and the last one, which is empty
        async with bounded() as server:
            request = chunked(*few).replace(b"Host", b"Connection: close\r\nHost")
            assert statuses(await server.exchange(request)) == [200]
            answer = await server.exchange(chunked(*few * 2))
            assert statuses(answer) == [400]
            assert b"too small" in answer
            large = [b"x" * 2 * connections.SMALLEST_CHUNK] * connections.FREE_CHUNKS
            request = chunked(*few, *large, *large).replace(b"Host", b"Connection: close\r\nHost")
            assert statuses(await server.exchange(request)) == [200]

    async def test_of_one_client_all_together(self) -> None:
        async with bounded(max_prompt_bytes=1000) as server:
            waiting = []
            for _ in range(connections.HELD):
                waiting.append(await server.connect())
                waiting[-1][1].write(post(b"x" * 999, length=1000))
            client = server.bounds.clients.enter("127.0.0.1")
            await until(lambda: client.held_bytes == connections.HELD * 999)
            server.bounds.clients.leave(client)
            answer = await server.exchange(post(b"x" * 999, length=1000))
            assert statuses(answer) == [429]
            assert b"retry-after" in answer
            for reader, writer in waiting:
                writer.write(b"x")
                assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
                writer.close()
            assert await server.empty()


class TestTrailers:
    async def test_are_no_headers(self) -> None:
        """Whoever has stripped a header from the head has not looked there."""
        trailers = b"Authorization: Bearer key\r\nX-Forwarded-For: 1.2.3.4\r\n"
        async with bounded() as server:
            raw = chunked(b"abc", trailers=trailers) + CLOSING
            assert statuses(await server.exchange(raw)) == [200, 200]
            names = [name for name, _ in server.application.scopes[0]["headers"]]
            assert names == [b"host", b"transfer-encoding"]


class TestSmuggling:
    """What two readers could understand differently is refused."""

    @pytest.mark.parametrize(
        "head",
        [
            b"Content-Length: 3\r\nContent-Length: 3",
            b"Content-Length: 3\r\nContent-Length: 30",
            b"Content-Length: 3, 3",
            b"Content-Length: 3\r\nTransfer-Encoding: chunked",
            b"Transfer-Encoding: chunked\r\nContent-Length: 3",
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
            b"Transfer-Encoding: chunked, identity",
            b"Transfer-Encoding: xchunked",
            b"Transfer-Encoding : chunked",
            b"Content-Length : 3",
            b"Content-Length: +3",
            b"Content-Length: -3",
            b"Content-Length: 0x3",
            b"Content-Length: 3 3",
            b"Content-Length: 99999999999999999999999999",
            b"X: y\nContent-Length: 3",
            b"X: y\rContent-Length: 3",
            b"X: y\0",
            b" X: folded",
            b"X",
            b": y",
        ],
    )
    async def test_is_refused(self, head: bytes) -> None:
        raw = b"POST / HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\nabc" + HEALTH
        async with bounded() as server:
            answer = await server.exchange(raw)
            assert statuses(answer) == [400]
            assert b"connection: close" in answer
            assert len(server.application.bodies) <= 1
            assert not any(server.application.bodies)

    @pytest.mark.parametrize(
        "raw",
        [
            b"GET / HTTP/9.9\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"G\xc3\x84T / HTTP/1.1\r\n\r\n",
            b"GET /\xc3\xa4 HTTP/1.1\r\n\r\n",
            b"GET http:// HTTP/1.1\r\n\r\n",
            b"GET http://host HTTP/1.1\r\n\r\n",
            b"CONNECT host:80 HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"\0" * 100,
            b"hello\r\n\r\n",
        ],
    )
    async def test_what_is_no_request(self, raw: bytes) -> None:
        async with bounded() as server:
            assert statuses(await server.exchange(raw)) == [400]
            assert not server.application.scopes
            assert server.bounds.refused == {400: 1}

    async def test_old_clients(self) -> None:
        async with bounded() as server:
            assert statuses(await server.exchange(b"GET /health HTTP/1.0\r\n\r\n")) == [200]
            assert statuses(await server.exchange(b"GET /health\r\n\r\n")) == [200]


class TestPipelining:
    async def test_answers_come_in_order(self) -> None:
        async with bounded() as server:
            raw = post(b"one") + post(b"two") + CLOSING
            assert statuses(await server.exchange(raw)) == [200, 200, 200]
            assert server.application.bodies == [b"one", b"two", b""]

    async def test_a_thousand_requests_at_once(self) -> None:
        async with bounded() as server:
            reader, writer = await server.connect()
            answering = asyncio.create_task(
                exchange(reader, writer, post(path=b"/waits") + HEALTH * 1000)
            )
            await until(lambda: server.application.bodies)
            assert len((await the_protocol(server)).pipeline) <= connections.PIPELINED
            server.application.gate.set()
            answered = statuses(await answering)
            writer.close()
            assert answered == [200] * (1 + connections.PIPELINED)
            assert await server.empty()

    async def test_a_client_that_goes_away(self) -> None:
        """The request that is being answered is told, not only the last one that came."""
        async with bounded() as server:
            _, writer = await server.connect()
            writer.write(post(path=b"/waits") + HEALTH * 3)
            await until(lambda: server.application.bodies)
            answering = (await the_protocol(server))._answering
            writer.transport.abort()
            await until(lambda: answering.disconnected)
            server.application.gate.set()
            assert await server.empty()
            assert len(server.application.scopes) == 1

    async def test_nonsense_behind_a_request(self) -> None:
        """Its answer comes whole, and the connection ends."""
        async with bounded() as server:
            reader, writer = await server.connect()
            answering = asyncio.create_task(
                exchange(reader, writer, post(b"abc", path=b"/waits") + b"nonsense\r\n\r\n")
            )
            await until(lambda: server.application.bodies)
            server.application.gate.set()
            answer = await answering
            writer.close()
            assert statuses(answer) == [200]
            assert answer.endswith(b"\r\n\r\nabc")
            assert await server.empty()


class TestClients:
    async def test_as_many_connections_as_allowed_and_no_more(self) -> None:
        async with bounded(max_connections_per_client=2) as server:
            mine = [await server.connect() for _ in range(2)]
            answer = await server.exchange(HEALTH)
            assert statuses(answer) == [429]
            assert b"2 from one address" in answer
            # Another address is another client.
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, local_addr=("127.0.0.2", 0)
            )
            assert statuses(await exchange(reader, writer, CLOSING)) == [200]
            writer.close()
            for reader, writer in mine:
                assert statuses(await exchange(reader, writer, CLOSING)) == [200]
                writer.close()
            assert await server.empty()
            assert await server.healthy()

    async def test_far_too_many_are_not_even_answered(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "REFUSED_CONNECTIONS", 3)
        async with bounded(max_connections_per_client=1) as server:
            mine = [await server.connect() for _ in range(20)]
            answers = [
                await exchange(reader, writer, b"") if number else b""
                for number, (reader, writer) in enumerate(mine)
            ]
            for _, writer in mine:
                writer.close()
            assert sorted(map(len, answers))[:17] == [0] * 17
            assert await server.empty()

    async def test_a_client_that_does_not_read(self) -> None:
        async with bounded(body_seconds=0.2) as server:
            server.application.large = 64 * MEBIBYTE
            _, writer = await server.connect()
            writer.write(get(url=b"/large"))
            await until(lambda: server.application.bodies)
            assert await server.empty()
            writer.close()

    def test_who_is_a_client(self) -> None:
        clients = Clients(2)
        addresses = ["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2"]
        entered = [clients.enter(address) for address in addresses]
        assert len(clients) == 3
        assert entered[0] is entered[1]
        assert entered[3] is entered[4]
        assert not any(map(clients.excess, entered))
        third = clients.enter("fe80::1%eth0"), clients.enter("2001:db8:0:0:9::")
        assert clients.excess(third[1]) == 1
        for client in (*entered, *third):
            clients.leave(client)
        assert not len(clients)

    def test_a_unix_socket_is_not_limited(self) -> None:
        clients = Clients(1)
        assert {clients.excess(clients.enter(None)) for _ in range(9)} == {0}

    def test_no_limit(self) -> None:
        clients = Clients(0)
        assert {clients.excess(clients.enter("10.0.0.1")) for _ in range(9)} == {0}


class TestUpgrades:
    async def test_nobody_upgrades_where_there_is_nothing_to_upgrade_to(self) -> None:
        async with bounded() as server:
            for upgrade in (UPGRADE, UPGRADE.replace(b"websocket", b"h2c")):
                reader, writer = await server.connect()
                writer.write(upgrade)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                assert statuses(await exchange(reader, writer, CLOSING)) == [200]
                writer.close()
            assert {scope["type"] for scope in server.application.scopes} == {"http"}

    @pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"unknown/1"])
    @pytest.mark.parametrize("step", [1 << 20, 1, 7, 64])
    @pytest.mark.parametrize("in_chunks", [False, True])
    async def test_a_wish_for_another_protocol_takes_no_body(
        self, protocol: bytes, step: int, in_chunks: bool
    ) -> None:
        """Java's client sends one with its first request."""
        words = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\n" % protocol
        words += b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
        one = (chunked(b"body") if in_chunks else post(b"body")).replace(b"Host: x\r\n", b"")
        line, rest = one.split(b"\r\n", 1)
        sent = (line + b"\r\nHost: x\r\nX-Kept: y\r\n" + words + rest) * 3 + CLOSING
        async with bounded() as server:
            reader, writer = await server.connect()
            for at in range(0, len(sent), step):
                writer.write(sent[at : at + step])
                await asyncio.sleep(0)
            assert statuses(await exchange(reader, writer, b"")) == [200] * 4
            writer.close()
            assert server.application.bodies == [b"body"] * 3 + [b""]
            for scope in server.application.scopes[:3]:
                headers = dict(scope["headers"])
                assert headers[b"x-kept"] == b"y"
                assert not headers.keys() & {b"upgrade", b"http2-settings", b"connection"}
            assert await server.empty()

    async def test_the_bounds_hold_for_such_requests(self) -> None:
        wish = b"Connection: close, upgrade\r\nUpgrade: h2c\r\n"
        head = b"POST / HTTP/1.1\r\nHost: x\r\n" + wish
        async with bounded(max_headers=5, max_prompt_bytes=1000) as server:
            assert statuses(await server.exchange(head + b"A: b\r\nC: d\r\nE: f\r\n\r\n")) == [431]
            twice = b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"
            assert statuses(await server.exchange(head + twice)) == [400]
            long = b"Content-Length: 5000\r\n\r\n" + b"a" * 5000
            assert statuses(await server.exchange(head + long)) == [413]
            assert await server.empty()

    async def test_who_upgrades_stays_counted(self) -> None:
        async with bounded(websockets=True, max_connections_per_client=1) as server:
            reader, writer = await server.connect()
            writer.write(UPGRADE)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
            assert statuses(await server.exchange(HEALTH)) == [429]
            writer.transport.abort()
            assert await server.empty()
            assert await server.healthy()


class Recording:
    """A parser that says how much it is fed."""

    def __init__(self, parser: Any, fed: list[int]) -> None:
        self._parser, self._fed = parser, fed

    def feed_data(self, data: bytes) -> None:
        self._fed.append(len(data))
        self._parser.feed_data(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


async def the_protocol(server: Bounded) -> Any:
    """The server's end of the only connection."""
    await until(lambda: server.state.connections)
    (protocol,) = server.state.connections
    return protocol


async def drip(writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        writer.write(b"x")
        await asyncio.sleep(0.02)
