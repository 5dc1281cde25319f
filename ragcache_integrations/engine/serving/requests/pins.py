"""The field that pins a request's documents: ``pin``."""

from __future__ import annotations

import uuid
from typing import Any

from ragcache_integrations.core.checks import is_number
from ragcache_integrations.core.prompt import FOREVER, PIN, PIN_TICKET, SPAN_ARGS
from ragcache_integrations.engine.serving.refusals import RequestRefusedError

__all__ = ["pass_pin_on", "pin_ticket"]

FIELD = "pin"


def pass_pin_on(body: dict[str, Any], *, pins: bool) -> dict[str, Any]:
    """Check a request's field, and translate it for the scheduler.

    Args:
        body: The request with the spans of its documents; it is not changed.
        pins: Whether there is a knowledge tree, which pins documents.

    Raises:
        RequestRefusedError: The field is not among what is allowed, or there is nothing to pin.
    """
    xargs = body.get("vllm_xargs")
    xargs = xargs if isinstance(xargs, dict) else {}
    for name in (PIN, PIN_TICKET):
        if name in xargs:
            raise RequestRefusedError(400, f"{name} is not for clients: send {FIELD}")
    if FIELD not in body:
        return body
    pin = body[FIELD]
    body = {name: value for name, value in body.items() if name != FIELD}
    if pin is None:
        return body
    if not isinstance(pin, bool) and not (is_number(pin) and 0 <= pin <= FOREVER):
        msg = (
            f"{FIELD} must be a number of seconds, true for no end, or false or 0 to unpin, "
            f"got {pin!r:.100}"
        )
        raise RequestRefusedError(400, msg)
    if not pins or not any(name in xargs for name in SPAN_ARGS):
        what = "marks no documents" if pins else "is for a server without a knowledge tree"
        raise RequestRefusedError(400, f"{FIELD} has nothing to pin: the request {what}")
    seconds = (FOREVER if pin else 0.0) if isinstance(pin, bool) else float(pin)
    ticket = {PIN_TICKET: uuid.uuid4().hex} if seconds else {}
    return {**body, "vllm_xargs": {**xargs, PIN: seconds, **ticket}}


def pin_ticket(body: dict[str, Any]) -> str:
    """The ticket of a request that pins documents; empty for any other."""
    xargs = body.get("vllm_xargs")
    return str(xargs.get(PIN_TICKET, "")) if isinstance(xargs, dict) else ""
