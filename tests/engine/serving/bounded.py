"""A small application behind the server's bounds, asked over real sockets."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from ragcache_integrations.engine.serving import ServingSettings
from ragcache_integrations.engine.serving.connections import Bounds, Clients, bound_connections
from ragcache_integrations.engine.serving.requests.reading import read_body
from ragcache_integrations.engine.serving.wire import RequestRefusedError

ANSWER_SECONDS = 60.0
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSING = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
UPGRADE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)

Scope = MutableMapping[str, Any]


@dataclass
class Application:
    """Answers with what it was sent, and remembers that.

    Attributes:
        scopes: Of the requests that came.
        bodies: What they held; of a request whose client went away, ``None``.
        gate: A request for ``/waits`` waits for it, once its body was read.
        large: How much ``/large`` answers with.
    """

    most: int
    scopes: list[Scope] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    large: int = 0

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self.connect(scope, receive, send)
            return
        self.scopes.append({**scope, "headers": list(scope["headers"])})
        if scope["path"] == "/early":  # answers without having read
            await self.answer(send, 401, b"no")
            return
        try:
            body = await read_body(receive, self.most, None)
        except RequestRefusedError as refusal:
            await self.answer(send, refusal.status, refusal.body)
            return
        self.bodies.append(body)
        if body is not None:
            if scope["path"] == "/waits":
                await self.gate.wait()
            await self.answer(send, 200, b"x" * self.large if scope["path"] == "/large" else body)

    async def answer(self, send: Any, status: int, body: bytes) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def connect(self, scope: Scope, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass


@dataclass
class Bounded:
    """A running server."""

    application: Application
    bounds: Bounds
    port: int
    state: Any

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def exchange(self, raw: bytes) -> bytes:
        """Send something, and read until the server closes the connection."""
        reader, writer = await self.connect()
        try:
            return await exchange(reader, writer, raw)
        finally:
            writer.close()

    async def healthy(self) -> bool:
        return (await self.exchange(CLOSING)).startswith(b"HTTP/1.1 200 ")

    async def empty(self) -> bool:
        """Once all clients are gone, nothing of them is left."""
        state = self.state
        await until(lambda: not (len(self.bounds.clients) or state.connections or state.tasks))
        return True


async def until(condition: Callable[[], object]) -> None:
    """Wait for what has no event."""
    async with asyncio.timeout(ANSWER_SECONDS):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: bytes) -> bytes:
    answer = b""
    async with asyncio.timeout(ANSWER_SECONDS):
        try:
            if raw:
                writer.write(raw)
            while read := await reader.read(1 << 16):
                answer += read
        except ConnectionError:  # it had more to say than the server would hear
            pass
    return answer


def statuses(answer: bytes) -> list[int]:
    """The statuses of all the answers on a connection."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) [A-Z]", answer)]


def post(body: bytes = b"", *more: bytes, path: bytes = b"/", length: int | None = None) -> bytes:
    told = len(body) if length is None else length
    lines = [b"POST %s HTTP/1.1" % path, b"Host: x", b"Content-Length: %d" % told, *more]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*chunks: bytes, trailers: bytes = b"", path: bytes = b"/", end: bool = True) -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" % path
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + b"\r\n" + framed + (b"0\r\n" + trailers + b"\r\n" if end else b"")


class Noting(logging.Handler):
    """Notes what uvicorn calls an error: the application, or the protocol, has raised."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        self._errors.append(logging.Formatter().format(record))


@asynccontextmanager
async def bounded(
    *, websockets: bool = False, keep_alive: float = 75.0, **limits: Any
) -> AsyncIterator[Bounded]:
    settings = ServingSettings(**limits)
    bounds = Bounds(settings, Clients(settings.max_connections_per_client), Counter())
    application = Application(settings.max_prompt_bytes)
    config = uvicorn.Config(
        application,
        host="127.0.0.1",
        port=0,
        lifespan="off",
        log_config=None,
        ws="websockets-sansio",
        timeout_keep_alive=keep_alive,  # type: ignore[arg-type]  # it need not be whole
        timeout_graceful_shutdown=1,
    )
    config.load()
    bound_connections(config, bounds, websockets=websockets)
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    errors: list[str] = []
    noting = Noting(errors)
    logging.getLogger("uvicorn.error").addHandler(noting)
    try:
        yield Bounded(application, bounds, port, server.server_state)
    finally:
        application.gate.set()
        await server.shutdown()
        logging.getLogger("uvicorn.error").removeHandler(noting)
    assert not errors
