"""Fields of requests that vLLM does not check; fuzzing has found them."""

from __future__ import annotations

from typing import Any

from ragcache_integrations.core.prompt import (
    ENCODE,
    LINK_TOKENS,
    NEXT_STEPS,
    PIN,
    PIN_TICKET,
    STEP,
    STEPS_BEFORE,
)
from ragcache_integrations.engine.serving.refusals import RequestRefusedError

__all__ = ["check_fields", "has_grammar", "object_in", "refuse_marks", "with_strict_tools"]

_MARKS = (ENCODE, LINK_TOKENS, PIN, PIN_TICKET, STEP, NEXT_STEPS, STEPS_BEFORE)
_FREE_FORMATS = ("text", "json_object")


def check_fields(body: dict[str, Any]) -> None:
    """Refuse fields on which vLLM would fail with an internal error.

    Raises:
        RequestRefusedError: ``structured_outputs`` is no object.
    """
    object_in(body, "structured_outputs")


def object_in(body: dict[str, Any], name: str) -> dict[str, Any]:
    """The object in a field; an empty one if there is none.

    Raises:
        RequestRefusedError: The field is no object.
    """
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        msg = f"{name} must be an object, got {type(value).__name__}"
        raise RequestRefusedError(400, msg)
    return value or {}


def refuse_marks(body: dict[str, Any]) -> None:
    """Refuse what only this server passes to the scheduler, on routes without fields of ours.

    vLLM passes ``vllm_xargs`` on unchecked from there, too, and ``extra_args`` of sampling
    parameters.

    Raises:
        RequestRefusedError: Such a name is among them.
    """
    sampling = body.get("sampling_params")
    places = (
        body.get("vllm_xargs"),
        sampling.get("extra_args") if isinstance(sampling, dict) else None,
    )
    for name in _MARKS:
        if any(isinstance(place, dict) and name in place for place in places):
            raise RequestRefusedError(400, f"{name} is not for clients")


def has_grammar(body: dict[str, Any]) -> bool:
    """Whether a request has a grammar, a schema, tools or the like, which the engine compiles.

    The engine compiles it after accepting the request, and reports a failure as an internal error.
    """
    formatted = body.get("response_format")
    kind = formatted.get("type") if isinstance(formatted, dict) else None
    formed = kind is not None and kind not in _FREE_FORMATS
    return bool(body.get("structured_outputs")) or formed or bool(body.get("tools"))


def with_strict_tools(body: dict[str, Any]) -> dict[str, Any]:
    """A request whose forced tool calls follow the tools' schemas, as on the local engine.

    vLLM would leave the arguments of tools free that do not say ``strict``.
    """
    tools = body.get("tools")
    if body.get("tool_choice") in (None, "auto", "none") or not isinstance(tools, list):
        return body
    return {**body, "tools": [_strict(tool) for tool in tools]}


def _strict(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or function.get("strict") is not None:
        return tool
    return {**tool, "function": {**function, "strict": True}}
