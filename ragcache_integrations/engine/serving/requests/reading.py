"""Bodies of requests: how much is read, what counts as JSON, and the fields that are ours.

This is stricter than :mod:`json`, so that every later reader can handle an accepted request: vLLM
passes parts of it to recursive parsers, to 64-bit integers and to UTF-8 encoders.

Our fields are ``pin``, which pins a request's documents; ``reuse`` and ``link_tokens``, which say
where they are reused; and ``step`` and ``next_steps``, a request's place in a workflow.
"""

from __future__ import annotations

import json
import math
import re
import uuid
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from ragcache_integrations.core.checks import is_number, is_whole
from ragcache_integrations.core.prompt import (
    ENCODE,
    FOREVER,
    LINK_TOKENS,
    NEXT_STEPS,
    PIN,
    PIN_TICKET,
    SPAN_ARGS,
    STEP,
    STEPS_BEFORE,
    check_steps,
    extra_args_from_steps,
)
from ragcache_integrations.engine.protocol import MOST_LINK_TOKENS, REUSES, CacheSettings
from ragcache_integrations.engine.serving.wire import Headers, RequestRefusedError
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "MAX_DEPTH",
    "OwnFields",
    "decoded",
    "parse_json",
    "pin_ticket",
    "read_body",
    "refuse_marks",
]


PIN_FIELD = "pin"
REUSE_FIELDS = REUSE, LINKS = ("reuse", "link_tokens")
STEP_FIELDS = OWN, NEXT = ("step", "next_steps")
FIELDS = frozenset({PIN_FIELD, *REUSE_FIELDS, *STEP_FIELDS})
_MARKS = {
    **dict.fromkeys((ENCODE, LINK_TOKENS), f"{REUSE} and {LINKS}"),
    **dict.fromkeys((STEP, NEXT_STEPS, STEPS_BEFORE), f"{OWN} and {NEXT}"),
    **dict.fromkeys((PIN, PIN_TICKET), PIN_FIELD),
}
"""What only this server passes to the scheduler, and the fields that a client sends instead."""


class OwnFields:
    """Reads the fields that are ours, and passes them on to the scheduler.

    Args:
        settings: Those of the knowledge tree; ``None`` without one.
    """

    def __init__(self, settings: Mapping[str, Any] | None) -> None:
        known = CacheSettings() if settings is None else CacheSettings(**settings)
        self._default, self._links = known.reuse, known.link_tokens
        self._pins = settings is not None

    def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        """Check a request's fields, and translate them for vLLM.

        Args:
            body: The request with the spans of its documents; it is not changed.

        Raises:
            RequestRefusedError: A field is not among what is allowed, or there is nothing to pin.
        """
        xargs = _object(body.get("vllm_xargs"))
        for name, instead in _MARKS.items():
            if name in xargs:
                raise RequestRefusedError(400, f"{name} is not for clients: send {instead}")
        spans = any(name in xargs for name in SPAN_ARGS)
        passed = {**self._reuse(body, spans), **_steps(body), **self._pin(body, spans)}
        if not FIELDS.isdisjoint(body):
            body = {name: value for name, value in body.items() if name not in FIELDS}
        return {**body, "vllm_xargs": {**xargs, **passed}} if passed else body

    def _reuse(self, body: Mapping[str, Any], spans: bool) -> dict[str, Any]:
        reuse, links = (body.get(name) for name in REUSE_FIELDS)
        if reuse is None:
            reuse = self._default
        elif reuse not in REUSES:
            msg = f"{REUSE} must be {' or '.join(map(repr, REUSES))}, got {reuse!r:.100}"
            raise RequestRefusedError(400, msg)
        elif reuse == "anywhere" != self._default:
            msg = (
                f"{REUSE} must be 'prefix' here: this server was not started with --reuse anywhere"
            )
            raise RequestRefusedError(400, msg)
        if links is None:
            links = self._links
        elif reuse != "anywhere":
            msg = f"{LINKS} needs {REUSE}: 'anywhere', here it is {reuse!r}"
            raise RequestRefusedError(400, msg)
        elif not is_whole(links) or not 0 <= links <= MOST_LINK_TOKENS:
            msg = f"{LINKS} must be a whole number from 0 to {MOST_LINK_TOKENS}, got {links!r:.100}"
            raise RequestRefusedError(400, msg)
        return {LINK_TOKENS: links} if spans and reuse == "anywhere" else {}

    def _pin(self, body: Mapping[str, Any], spans: bool) -> dict[str, Any]:
        pin = body.get(PIN_FIELD)
        if pin is None:
            return {}
        if not isinstance(pin, bool) and not (is_number(pin) and 0 <= pin <= FOREVER):
            msg = (
                f"{PIN_FIELD} must be a number of seconds, true for no end, or false or 0 to "
                f"unpin, got {pin!r:.100}"
            )
            raise RequestRefusedError(400, msg)
        if not self._pins or not spans:
            what = (
                "marks no documents" if self._pins else "is for a server without a knowledge tree"
            )
            raise RequestRefusedError(400, f"{PIN_FIELD} has nothing to pin: the request {what}")
        seconds = (FOREVER if pin else 0.0) if isinstance(pin, bool) else float(pin)
        return {PIN: seconds, **({PIN_TICKET: uuid.uuid4().hex} if seconds else {})}


def _steps(body: Mapping[str, Any]) -> dict[str, Any]:
    step, coming = (body.get(name) for name in STEP_FIELDS)
    try:
        checked = check_steps("" if step is None else step, {} if coming is None else coming)
    except ConfigurationError as error:
        raise RequestRefusedError(400, str(error)) from None
    return extra_args_from_steps(*checked)


def refuse_marks(body: dict[str, Any]) -> None:
    """Refuse what only this server passes to the scheduler, on routes without fields of ours.

    vLLM passes ``vllm_xargs`` on unchecked from there, too, and ``extra_args`` of sampling
    parameters.

    Raises:
        RequestRefusedError: Such a name is among them.
    """
    extra_args = _object(body.get("sampling_params")).get("extra_args")
    for name in _MARKS:
        if name in _object(body.get("vllm_xargs")) or name in _object(extra_args):
            raise RequestRefusedError(400, f"{name} is not for clients")


def pin_ticket(body: dict[str, Any]) -> str:
    """The ticket of a request that pins documents; empty for any other."""
    return str(_object(body.get("vllm_xargs")).get(PIN_TICKET, ""))


def _object(value: Any) -> dict[str, Any]:
    """A field's object; an empty one if it is something else, which vLLM refuses itself."""
    return value if isinstance(value, dict) else {}


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
    raise ValueError(f"{name} is no number in JSON")


def _int64(digits: str) -> int:
    if len(digits) > 20 or not -_INT64 <= int(digits) < _INT64:  # noqa: PLR2004 - its digits
        raise ValueError(f"the number {digits[:24]}... is beyond 64 bits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:24]} is too large")
    return number
