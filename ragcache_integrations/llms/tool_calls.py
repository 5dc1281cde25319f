"""Arguments of tool calls, read from the JSON that a model wrote."""

from __future__ import annotations

import json
from typing import Any

from ragcache_integrations.core.prompt import ToolCall
from ragcache_integrations.errors import StructuredOutputError

__all__ = ["call_arguments", "call_arguments_so_far"]


def call_arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments of a complete call.

    Raises:
        StructuredOutputError: They are no JSON object, such as those of an answer that was cut off,
            or hold text that is no valid Unicode.
    """
    problem = "they are another JSON value"
    try:
        arguments = json.loads(call.arguments)
        if isinstance(arguments, dict):
            # JSON can escape half a character, which no later turn could send back.
            json.dumps(arguments, ensure_ascii=False).encode()
            return arguments
    except (ValueError, RecursionError) as error:
        problem = str(error)
    msg = (
        f"the arguments of the call of {call.name!r} are no JSON object: {problem}. If the answer "
        f"was cut off, raise max_tokens. Got {call.arguments[:200]!r}"
    )
    raise StructuredOutputError(msg, call.arguments)


def call_arguments_so_far(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call that may not be complete; empty until they are."""
    try:
        return call_arguments(call)
    except StructuredOutputError:
        return {}
