"""Bodies of requests: how much is read, and what counts as JSON.

This is stricter than :mod:`json`, so that every later reader can handle an accepted request: vLLM
passes parts of it to recursive parsers, to 64-bit integers and to UTF-8 encoders.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ragcache_integrations.engine.serving.refusals import Headers, RequestRefusedError

__all__ = ["MAX_DEPTH", "decoded", "parse_json", "read_body"]

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_DEPTH = 64
"""The most levels of nesting. JSON schemas are nested deepest, two or three levels for each of
theirs."""

DISCARDED = 4
"""A larger body is read and discarded up to this many times the limit: a client that still sends
when the connection is closed never sees the reason."""

CODINGS = {b"gzip": 16 + zlib.MAX_WBITS, b"x-gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
"""Window sizes of zlib for each content coding that a body may have."""

CLOSING: Headers = [(b"connection", b"close")]

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_UNUSUAL_NUMBER = re.compile(rb"\d{19}|\d[eE]\+?\d{3}")
_INT64 = 2**63


async def read_body(receive: Receive, limit: int, declared: bytes | None) -> bytes | None:
    """Read a request's body.

    Args:
        receive: The request's channel.
        limit: The most bytes to read.
        declared: The header ``Content-Length``, if there is one.

    Returns:
        The body; ``None`` if the client has disconnected.

    Raises:
        RequestRefusedError: The body is larger than the limit, or is declared to be.
    """
    most = limit * DISCARDED
    if declared is not None and declared.isdigit() and int(declared[:20]) > most:
        raise _too_large(limit, CLOSING)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise _too_large(limit, CLOSING)
        if size <= limit:
            chunks.append(chunk)
        if not message.get("more_body", False):
            break
    if size > limit:
        raise _too_large(limit)
    return b"".join(chunks)


def decoded(raw: bytes, codings: bytes, limit: int) -> bytes:
    """Decode a body.

    Args:
        raw: The body as it was sent.
        codings: Its content codings, as in the header ``Content-Encoding``; empty for none.
        limit: The most bytes to decode.

    Raises:
        RequestRefusedError: The codings are not supported, the body does not have them, or it would
            be larger than the limit.
    """
    names = [name.strip().lower() for name in codings.split(b",")]
    names = [name for name in names if name not in {b"", b"identity"}]
    if not names:
        return raw
    if len(names) > 1 or names[0] not in CODINGS:
        msg = (
            f"a body may be encoded once, as gzip or deflate, or as nothing, "
            f"got {codings[:100].decode('latin-1')!r}"
        )
        raise RequestRefusedError(415, msg, [(b"accept-encoding", b"gzip, deflate")])
    window = CODINGS[names[0]]
    if names[0] == b"deflate" and not _has_zlib_head(raw):
        window = -zlib.MAX_WBITS  # as many clients understand the name
    decoder = zlib.decompressobj(window)
    try:
        body = decoder.decompress(raw, limit + 1)
    except zlib.error as error:
        raise _damaged(names[0]) from error
    if len(body) > limit:
        raise _too_large(limit)
    if not decoder.eof or decoder.unused_data:
        raise _damaged(names[0])
    return body


def _has_zlib_head(raw: bytes) -> bool:
    return len(raw) > 1 and raw[0] & 0xF == zlib.DEFLATED and (raw[0] << 8 | raw[1]) % 31 == 0


def _damaged(coding: bytes) -> RequestRefusedError:
    return RequestRefusedError(400, f"the body is not one whole {coding.decode()} stream")


def parse_json(raw: bytes) -> Any:
    """Parse a body.

    Raises:
        RequestRefusedError: It is no JSON in UTF-8, is nested too deeply, or holds numbers or
            characters that do not exist.
    """
    careful: dict[str, Any] = {}
    if _UNUSUAL_NUMBER.search(raw):  # hooks cost a call for each number
        careful = {"parse_int": _int64, "parse_float": _finite}
    try:
        value = json.loads(raw.decode(), parse_constant=_no_number, **careful)
        if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
            _check_depth(value)
        if _SURROGATE.search(raw):  # a pair is one character, a single surrogate is none
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        msg = f"the body is no JSON that can be read: {str(error)[:200]}"
        raise RequestRefusedError(400, msg) from error
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for outer in level:
            if isinstance(outer, dict):
                below += [inner for inner in outer.values() if isinstance(inner, dict | list)]
            elif isinstance(outer, list):
                below += [inner for inner in outer if isinstance(inner, dict | list)]
        if not below:
            return
        level = below
    raise _too_deep()


def _too_deep() -> RequestRefusedError:
    return RequestRefusedError(400, f"the body is nested more than {MAX_DEPTH} levels deep")


def _too_large(limit: int, headers: Headers | None = None) -> RequestRefusedError:
    msg = f"the request is larger than the {limit} bytes that this server accepts"
    return RequestRefusedError(413, msg, headers)


def _no_number(name: str) -> None:
    msg = f"{name} is no number in JSON"
    raise ValueError(msg)


def _int64(digits: str) -> int:
    if len(digits) > 20 or not -_INT64 <= int(digits) < _INT64:  # noqa: PLR2004 - its digits
        msg = f"the number {digits[:24]}... is beyond 64 bits"
        raise ValueError(msg)
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        msg = f"the number {digits[:24]} is too large"
        raise ValueError(msg)
    return number
