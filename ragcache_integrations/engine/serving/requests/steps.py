"""Fields that say which step of a workflow a request is: ``step`` and ``next_steps``."""

from __future__ import annotations

from typing import Any

from ragcache_integrations.core.prompt import (
    NEXT_STEPS,
    STEP,
    STEPS_BEFORE,
    check_steps,
    extra_args_from_steps,
)
from ragcache_integrations.engine.serving.refusals import RequestRefusedError
from ragcache_integrations.errors import ConfigurationError

__all__ = ["pass_steps_on"]

FIELDS = OWN, NEXT = ("step", "next_steps")


def pass_steps_on(body: dict[str, Any]) -> dict[str, Any]:
    """Check a request's fields, and translate them for the scheduler.

    Args:
        body: The request; it is not changed.

    Raises:
        RequestRefusedError: A field is not among what is allowed.
    """
    xargs = body.get("vllm_xargs")
    xargs = xargs if isinstance(xargs, dict) else {}
    for name in (STEP, NEXT_STEPS, STEPS_BEFORE):
        if name in xargs:
            raise RequestRefusedError(400, f"{name} is not for clients: send {OWN} and {NEXT}")
    if not any(name in body for name in FIELDS):
        return body
    step, coming = (body.get(name) for name in FIELDS)
    try:
        checked = check_steps("" if step is None else step, {} if coming is None else coming)
    except ConfigurationError as error:
        raise RequestRefusedError(400, str(error)) from None
    body = {name: value for name, value in body.items() if name not in FIELDS}
    passed = extra_args_from_steps(*checked)
    return {**body, "vllm_xargs": {**xargs, **passed}} if passed else body
