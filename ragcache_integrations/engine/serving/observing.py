"""Observes answers on their way to the client, for the log and the metrics; and the log itself."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

from ragcache_integrations.core.generation import Usage

from .wire import Headers, RequestRefusedError, json_headers

__all__ = ["Observer", "RequestLog", "Send", "respond"]

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

EVENT_STREAM = b"text/event-stream"
ERROR_EVENT = b'data: {"error"'
ERRORS = range(400, 600)
INTERNAL_ERROR = 500

OPENING = b'"delta":{"role":"assistant","content":""'
"""Part of the first event of a chat's stream, which comes before the first token."""

UNSPECIFIC = "Internal server error"
NO_GRAMMAR = "the request's grammar, regular expression or JSON schema can't be compiled"


STANDARD_OUTPUT = 1


class RequestLog:
    """Writes the log of requests: one JSON object per line.

    It contains no prompts and no answers; prompts only if the server's settings say so.

    Args:
        stream: Stream to write to; the process's standard output if ``None``.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        # Not sys.stdout, which vLLM may decorate with the names of its processes.
        self._stream = stream or os.fdopen(os.dup(STANDARD_OUTPUT), "w", encoding="utf-8")
        self._failed = False

    def write(self, event: str, **fields: Any) -> None:
        """Write one line; fields that are ``None`` are left out.

        If it cannot be written, such as on a full disk, requests are served nevertheless.

        Args:
            event: What has happened.
            fields: Further values of the line.
        """
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        known = {name: value for name, value in fields.items() if value is not None}
        line = json.dumps({"time": time, "event": event, **known}) + "\n"
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError) as error:  # ValueError: it was closed
            if not self._failed:
                sys.stderr.write(f"ragcache: the log of requests cannot be written: {error}\n")
            self._failed = True
        else:
            self._failed = False


class Observer:
    """Passes one request's answer from vLLM to the client.

    On request, a stream reports its usage in a separate last chunk. We always request it, and drop
    the chunk if the client has not. A stream that begins with an error becomes a plain answer with
    the error's status: vLLM checks some fields only after the stream has begun.

    Args:
        send: Sends a message to the client.
        request_id: The value of the answer's header ``X-Request-Id``.
        hide_usage: Whether to drop a stream's usage, which the client has not requested.
        grammar: Whether the request has a grammar. If it can't be compiled, vLLM reports an
            internal error, which becomes a 400.
        late_refusal: Asks, once the answer begins, why the request is refused after all; ``None``
            where nothing but vLLM refuses it. The answer is then dropped, and a 400 sent.

    Attributes:
        status: HTTP status; ``None`` before anything was sent.
        complete: Whether the whole answer was sent.
        failed: Whether vLLM raised, or a stream ended with an error.
        first_byte_ms: Milliseconds from the request to the first byte of the answer's body.
    """

    def __init__(
        self,
        send: Send,
        request_id: str,
        *,
        hide_usage: bool,
        grammar: bool = False,
        late_refusal: Callable[[], str | None] | None = None,
    ) -> None:
        self._send = send
        self._request_id = request_id.encode()
        self._hide_usage = hide_usage
        self._began = time.monotonic()
        self._streams = False
        self._grammar = grammar
        self._late_refusal = late_refusal
        self._held: list[Message] = []
        self._refused = False
        self._streamed_usage: Usage | None = None
        self.status: int | None = None
        self.complete = False
        self.failed = False
        self.first_byte_ms: float | None = None

    def crashed(self) -> None:
        """Note that vLLM raised; if nothing was sent before, its outer layer sends a 500."""
        self.failed = True
        if self.status is None:
            self.status, self.complete = INTERNAL_ERROR, True

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the request arrived."""
        return round(1000 * (time.monotonic() - self._began), 1)

    async def send(self, message: Message) -> None:
        """Pass on a message of the answer."""
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif message["type"] == "http.response.body":
            await self._continue(message)
        else:
            await self._send(message)

    async def _begin(self, start: Message) -> None:
        self._held.clear()  # an answer that never began
        headers = list(start.get("headers", ()))
        self._streams = any(
            name.lower() == b"content-type" and value.startswith(EVENT_STREAM)
            for name, value in headers
        )
        start = {**start, "headers": [*headers, (b"x-request-id", self._request_id)]}
        may_turn = self._late_refusal or (self._grammar and start["status"] == INTERNAL_ERROR)
        if self._streams or may_turn:
            self._held.append(start)  # until the body shows whether it is an error
        else:
            self.status = start["status"]
            await self._send(start)

    async def _continue(self, message: Message) -> None:
        body: bytes = message.get("body", b"")
        ends = not message.get("more_body", False)
        if self.first_byte_ms is None:
            self.first_byte_ms = self.elapsed_ms
        if self._held:
            refusal = self._refusal(body)
            if refusal is not None:
                self._held.clear()
                await self._refuse(*refusal)
            elif self._streams and not ends and OPENING in body:
                self._held.append(message)
                return
            else:
                await self._release()
        if not self._refused:
            if self._streams:
                message = {**message, "body": self._read_events(body)}
            await self._send(message)
            self.complete = self.complete or ends

    async def _release(self) -> None:
        held, self._held = self._held, []
        self.status = held[0]["status"]
        for message in held:
            await self._send(message)

    def _refusal(self, body: bytes) -> tuple[int, bytes] | None:
        """The status and body of an answer that consists of an error; ``None`` for others."""
        if self._late_refusal is not None and (why := self._late_refusal()) is not None:
            return 400, RequestRefusedError(400, why).body
        error = body.partition(b"\n\n")[0].removeprefix(b"data: ")
        try:
            details = json.loads(error)["error"]
            status = int(details["code"])
        except (ValueError, KeyError, TypeError):
            return None
        if self._grammar and details.get("message") == UNSPECIFIC:
            return 400, RequestRefusedError(400, NO_GRAMMAR).body
        return (status, error) if status in ERRORS else None

    async def _refuse(self, status: int, body: bytes) -> None:
        self._refused = True
        self.status = status
        await respond(self._send, status, body, [(b"x-request-id", self._request_id)])
        self.complete = True

    def usage(self, scope: MutableMapping[str, Any]) -> Usage | None:
        """The request's usage, if its answer is complete.

        Args:
            scope: The request's ASGI scope, in which vLLM stores the usage.
        """
        if self._streamed_usage is not None:
            return self._streamed_usage
        metadata = (scope.get("state") or {}).get("request_metadata")
        usage = getattr(metadata, "final_usage_info", None)
        return None if usage is None else _usage(usage.model_dump())

    def _read_events(self, body: bytes) -> bytes:
        if body.startswith(ERROR_EVENT):
            self.failed = True
        if b'"usage":{' not in body:
            return body
        kept = []
        for event in body.split(b"\n\n"):
            is_usage = (
                event.startswith(b"data: {") and b'"usage":{' in event and self._is_usage(event)
            )
            if not (is_usage and self._hide_usage):
                kept.append(event)
        return b"\n\n".join(kept)

    def _is_usage(self, event: bytes) -> bool:
        try:
            data = json.loads(event[len(b"data: ") :])
            if data["choices"]:
                return False
            self._streamed_usage = _usage(data["usage"])
        except (ValueError, KeyError, TypeError):
            return False
        return True


async def respond(send: Send, status: int, body: bytes, more: Headers | None = None) -> None:
    """Send a whole answer.

    Args:
        send: Sends a message to the client.
        status: HTTP status.
        body: JSON.
        more: Headers in addition to those of every answer.
    """
    headers = [*json_headers(body), *(more or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _usage(fields: dict[str, Any]) -> Usage:
    details = fields.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=fields.get("prompt_tokens") or 0,
        completion_tokens=fields.get("completion_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
    )
