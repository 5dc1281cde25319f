"""Limits on clients before their key is checked: sizes, timeouts, framing.

uvicorn's parser is written in C and has no limits: it accepts endless and countless headers, bodies
that never end, and requests that do not wait for answers. Here bytes are counted before they are
parsed, and the parser's callbacks before anything is kept. A request that exceeds a bound gets a
4xx, and its connection is closed. Nothing of it reaches the application.

A client is an IPv4 address or an IPv6 network of 64 bits, which one subscriber usually has.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Any

from httptools import HttpRequestParser
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ragcache_integrations.engine.serving.requests import DISCARDED
from ragcache_integrations.engine.serving.settings import ServingSettings
from ragcache_integrations.engine.serving.wire import (
    Refused,
    RequestRefusedError,
    json_headers,
)

__all__ = ["BoundedProtocol", "Bounds", "Client", "Clients", "bound_connections"]


SUBSCRIBER_BITS = 64


@dataclass(slots=True, eq=False)
class Client:
    """A client and its use of the server.

    Attributes:
        name: Its address or network; ``None`` for a Unix socket.
        connections: Number of open connections.
        held_bytes: Size of its unfinished bodies.
    """

    name: str | None
    connections: int = 0
    held_bytes: int = 0


class Clients:
    """The connected clients.

    Args:
        most: The most connections of a client; 0 for no limit.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._connected: dict[str | None, Client] = {}

    def __len__(self) -> int:
        return len(self._connected)

    def enter(self, address: str | None) -> Client:
        """Count a new connection.

        Args:
            address: The client's address; ``None`` for a Unix socket, which is not limited.
        """
        name = None if address is None else _name(address)
        client = self._connected.setdefault(name, Client(name))
        client.connections += 1
        return client

    def leave(self, client: Client) -> None:
        """Count a connection that has ended."""
        client.connections -= 1
        if not client.connections:
            del self._connected[client.name]

    def excess(self, client: Client) -> int:
        """How many connections a client has beyond the limit."""
        if not self._most or client.name is None:
            return 0
        return max(0, client.connections - self._most)


def _name(address: str) -> str:
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Address(int(parsed) >> SUBSCRIBER_BITS << SUBSCRIBER_BITS))
    return str(parsed)


PIECE_BYTES = 1 << 14
"""Bytes passed to the parser at a time, so that what it keeps is counted in time."""

FREE_CHUNKS = 2048
SMALLEST_CHUNK = 64
"""Bytes, including framing. Each chunk of a body costs a call: besides ``FREE_CHUNKS`` of any size,
a body may have one chunk for each ``SMALLEST_CHUNK`` bytes."""

PIPELINED = 16
"""The most requests that wait on a connection while an earlier one is answered."""

HELD = 16
"""The most bytes of a client's unfinished bodies, in sizes of the largest request."""

REFUSED_CONNECTIONS = 32
"""Connections beyond a client's limit that get an answer; further ones are closed without one."""

GRACE_SECONDS = 0.05
"""Added to every time limit, because uvloop's timers fire before it reads what has arrived."""

LINGER_SECONDS = 2.0
LINGER_BYTES = 1 << 20
"""How long and how much a refused client may still send; the bytes are discarded. If the connection
were closed while the client sends, it would see a broken connection and not read the answer."""

UPGRADING = frozenset({b"upgrade", b"http2-settings"})
"""Headers, and words of the header ``Connection``, that ask for another protocol."""

UNREADABLE = "this is no HTTP/1.1 request that can be read"


@dataclass(slots=True)
class Bounds:
    """The limits and counts that all connections of a process share.

    Attributes:
        settings: The limits.
        clients: The connected clients.
        refused: Number of refused requests by status.
    """

    settings: ServingSettings
    clients: Clients
    refused: Refused


class _Phase(Enum):
    """The part of a request that a connection's client is sending."""

    BETWEEN = "between requests"
    HEAD = "request line and headers"
    BODY = "body"
    REFUSED = "refused"
    UPGRADED = "upgraded"


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, within bounds.

    Args:
        bounds: Limits and counts of the process.
        config: uvicorn's configuration.
        server_state: uvicorn's state.
        app_state: The application's state.
        _loop: The event loop; the running one by default.
    """

    def __init__(
        self,
        bounds: Bounds,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._bounds = bounds
        self._settings = bounds.settings
        self._phase = _Phase.BETWEEN
        self._entered: Client | None = None
        self._refusal: RequestRefusedError | None = None
        self._answering: RequestResponseCycle | None = None
        # Bytes of this request, and its bytes since the parser has last reported headers or a piece
        # of a body: the parser may hold that many without having reported them.
        self._received = self._pending = 0
        self._url_bytes = self._head_bytes = self._fields = self._chunks = self._held = 0
        self._discarded = 0
        # The head of a request for a protocol that is not spoken here, without that wish, and the
        # number of the current piece's bytes that the parser took until there.
        self._plain_head, self._taken = b"", 0
        self._watched: _Phase | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Accept a connection unless its client has too many."""
        super().connection_made(transport)
        clients = self._bounds.clients
        self._entered = clients.enter(None if self.client is None else self.client[0])
        excess = clients.excess(self._entered)
        if excess > REFUSED_CONNECTIONS:
            transport.abort()
        elif excess:
            most = self._settings.max_connections_per_client
            msg = f"too many connections: this server accepts {most} from one address"
            self._refuse(RequestRefusedError(429, msg, [(b"retry-after", b"1")]))
        else:
            self._watch(_Phase.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that the connection has counted."""
        self._watch(None)
        self._release()
        if self._stalled is not None:
            self._stalled.cancel()
        if self._entered is not None:
            self._bounds.clients.leave(self._entered)
            self._entered = None
        # uvicorn notifies only the newest request; an earlier one would write to a closed
        # connection.
        if self._answering is not None:
            _disconnect(self._answering)
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes that have arrived, within bounds."""
        if self._phase is _Phase.REFUSED:
            self._discarded += len(data)
            if self._discarded > LINGER_BYTES:
                self.transport.abort()
            return
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            self._received += len(piece)
            self._pending += len(piece)
            super().data_received(piece)
            while self._plain_head and not self._has_ended():
                piece = self._without_upgrade(piece[self._taken :])
                super().data_received(piece)
            if self._has_ended():
                return
            self._check_received()
            if self._has_ended():
                return
        self._watch_next()

    def _has_ended(self) -> bool:
        ended = self._phase in {_Phase.REFUSED, _Phase.UPGRADED}
        return ended or self.transport.is_closing()

    def _check_received(self) -> None:
        most_head, most = self._settings.max_header_bytes, self._settings.max_prompt_bytes
        if self._pending > most_head:
            self._refuse(self._head_too_large())
        elif self._received > most_head + DISCARDED * most:  # with headers and framing
            msg = f"the request is larger than the {most} bytes that this server accepts"
            self._refuse(RequestRefusedError(413, msg))

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to another protocol, which counts it, too."""
        self._phase = _Phase.UPGRADED
        self._watch(None)
        super().handle_websocket_upgrade()
        if self._entered is not None:
            self._bounds.clients.leave(self._entered)
            self._entered = None

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: a request for another protocol is answered in this one.

        The parser raises at the end of such a request's head, and says there how far it has read.
        """
        error = sys.exception()
        self._taken = error.args[0] if error is not None and error.args else 0

    def _without_upgrade(self, rest: bytes) -> bytes:
        """Begin to parse a request again, without its wish for another protocol.

        HTTP says to ignore a wish that cannot be fulfilled, but the parser takes the body for data
        of the other protocol. Java's client sends ``Upgrade: h2c`` with its first requests.

        Returns:
            The request's head and the rest of the bytes.
        """
        head, self._plain_head = self._plain_head, b""
        self.parser = HttpRequestParser(self)
        return head + rest

    def _is_ignored_upgrade(self) -> bool:
        asked: bool = self.parser.should_upgrade()
        return asked and self._get_upgrade() is not None and not self._should_upgrade()

    def _head_without_upgrade(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        for name, value in self.headers:
            words = [word.strip() for word in value.split(b",")] if name == b"connection" else []
            kept = [word for word in words if word.lower() not in UPGRADING]
            if kept:
                lines.append(b"%s: %s" % (name, b", ".join(kept)))
            elif not words and name not in UPGRADING:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    # The parser's callbacks

    def on_message_begin(self) -> None:
        """Begin a request."""
        if len(self.pipeline) >= PIPELINED:
            msg = f"more than {PIPELINED} requests wait for answers on this connection"
            self._stop(RequestRefusedError(400, msg))
        self._phase = _Phase.HEAD
        self._url_bytes = self._head_bytes = self._fields = self._chunks = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a part of the request line."""
        self._url_bytes += len(url)
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header. Trailers are dropped: they are unchecked, and nobody needs them."""
        self._fields += 1
        if self._fields > self._settings.max_headers:
            most = self._settings.max_headers
            self._stop(RequestRefusedError(431, f"this server accepts at most {most} headers"))
        self._count_head(len(name) + len(value) + len(b": \r\n"))
        if self._phase is _Phase.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin the body."""
        if self._is_ignored_upgrade():
            self._plain_head = self._head_without_upgrade()
            return
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle
        self._phase = _Phase.BODY
        self._pending = 0

    def on_chunk_header(self) -> None:
        """Begin a chunk of the body."""
        self._chunks += 1
        if (self._chunks - FREE_CHUNKS) * SMALLEST_CHUNK > self._received:
            self._stop(RequestRefusedError(400, "the body comes in chunks that are too small"))

    def on_body(self, body: bytes) -> None:
        """Count a part of the body."""
        self._pending = 0
        if not self.cycle.response_complete:
            self._hold(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if self._plain_head:
            return
        super().on_message_complete()
        self._release()
        self._phase = _Phase.BETWEEN
        self._received = self._pending = 0
        self._watch(None)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._settings.max_header_bytes:
            self._stop(self._head_too_large())

    def _head_too_large(self) -> RequestRefusedError:
        most = self._settings.max_header_bytes
        if self._url_bytes >= most:
            return RequestRefusedError(414, f"the URL has more than {most} bytes")
        return RequestRefusedError(431, f"request line and headers have more than {most} bytes")

    def _stop(self, refusal: RequestRefusedError) -> None:
        """Stop parsing; uvicorn then calls :meth:`send_400_response`."""
        self._refusal = refusal
        raise refusal

    def _hold(self, size: int) -> None:
        """Count the kept bytes of a body; those beyond the largest request are discarded."""
        client = self._entered
        if client is None:
            return
        most = self._settings.max_prompt_bytes
        size = min(size, most - self._held)
        self._held += size
        client.held_bytes += size
        if client.name and client.held_bytes > HELD * most:
            msg = "too many large requests from one address are being received"
            self._stop(RequestRefusedError(429, msg, [(b"retry-after", b"1")]))

    def _release(self) -> None:
        if self._entered is not None:
            self._entered.held_bytes -= self._held
        self._held = 0

    # Refusing

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's, which says nothing
        """Refuse a request that can't be parsed, or must not be."""
        self._refuse(self._refusal or RequestRefusedError(400, UNREADABLE))

    def _refuse(self, refusal: RequestRefusedError) -> None:
        """Answer in place of the application, and close the connection."""
        in_body = self._phase is _Phase.BODY
        self._phase = _Phase.REFUSED
        self._bounds.refused[refusal.status] += 1
        self._watch(None)
        self._release()
        cycle = self.cycle
        answered = cycle is None or cycle.response_complete
        if not in_body and not answered:
            cycle.keep_alive = False  # an earlier request's answer comes first, and is the last
            return
        if in_body and (answered or self.pipeline or cycle.response_started):
            self._close(LINGER_SECONDS)  # no place for another answer
            return
        if not answered:
            _disconnect(cycle)
        self._unset_keepalive_if_required()
        self.transport.write(_answer(refusal))
        if self.transport.can_write_eof():  # not with TLS
            self.transport.write_eof()
        self.flow.resume_reading()
        self._deadline = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _close(self, seconds: float | None) -> None:
        """Close the connection, even if the client does not read its answer."""
        self.transport.close()
        if seconds is not None and self._deadline is None:
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

    # Time

    def _watch_next(self) -> None:
        """Limit the time until the part that the client is sending is complete."""
        if self._phase is not _Phase.BETWEEN:
            self._watch(self._phase)
        elif self._pending:  # empty lines in front of a request
            self._watch(_Phase.HEAD)
        elif self.timeout_keep_alive_task is None and self.cycle.response_complete:
            # The request's body has ended after its answer; uvicorn has set no time limit.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _watch(self, phase: _Phase | None) -> None:
        if phase is self._watched and phase is not None:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._watched = phase
        head = phase is _Phase.HEAD
        seconds = self._settings.header_seconds if head else self._settings.body_seconds
        if phase is not None and seconds is not None:
            self._deadline = self.loop.call_later(seconds, self._run_out)

    def _run_out(self) -> None:
        """Read once more before the timeout: the loop may have been busy while the rest arrived."""
        self._deadline = self.loop.call_later(GRACE_SECONDS, self._time_out)

    def _time_out(self) -> None:
        phase, self._deadline, self._watched = self._watched, None, None
        if self.flow.read_paused:  # it is the server that does not read
            self._watch(phase)
        elif self._phase is _Phase.BETWEEN and not self._pending:
            self._close(LINGER_SECONDS)  # nothing ever came
        else:
            part = "body" if self._phase is _Phase.BODY else "headers"
            self._refuse(RequestRefusedError(408, f"the request's {part} did not arrive in time"))

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that is no longer used."""
        self._close(self._settings.body_seconds)

    def on_response_complete(self) -> None:
        """End an answer."""
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing():
            self._close(self._settings.body_seconds)

    def pause_writing(self) -> None:
        """Wait for the client to read, within the time limit."""
        super().pause_writing()
        seconds = self._settings.body_seconds
        if seconds is not None and self._stalled is None:
            self._stalled = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Resume, because the client has read."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


def _disconnect(cycle: RequestResponseCycle) -> None:
    cycle.disconnected = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()


def _answer(refusal: RequestRefusedError) -> bytes:
    body = refusal.body
    headers = [*json_headers(body), (b"connection", b"close"), *refusal.headers]
    status = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
    lines = [status.encode(), *(b"%s: %s\r\n" % header for header in headers), b"\r\n", body]
    return b"".join(lines)


def bound_connections(config: Config, bounds: Bounds, *, websockets: bool) -> None:
    """Limit the connections of a server that does not listen yet.

    Args:
        config: uvicorn's configuration of the server.
        bounds: Limits and counts of the process.
        websockets: Whether the application has WebSockets; otherwise none can be opened.
    """
    protocol: Any = functools.partial(BoundedProtocol, bounds)
    config.http_protocol_class = protocol
    upgraded = config.ws_protocol_class if websockets else None
    config.ws_protocol_class = None if upgraded is None else _counted(upgraded, bounds.clients)


def _counted(protocol: Any, clients: Clients) -> type[asyncio.Protocol]:
    """A protocol for WebSockets whose connections are counted, too."""

    class Counted(protocol):  # type: ignore[misc]  # known at run time
        _entered: Client | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._entered = clients.enter(None if self.client is None else self.client[0])

        def connection_lost(self, exc: Exception | None) -> None:
            if self._entered is not None:
                clients.leave(self._entered)
                self._entered = None
            super().connection_lost(exc)

    return Counted
