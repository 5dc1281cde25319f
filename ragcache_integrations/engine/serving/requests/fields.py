"""Fields of requests that vLLM does not check; fuzzing has found them."""

from __future__ import annotations

from typing import Any

from ragcache_integrations.engine.serving.refusals import RequestRefusedError

__all__ = ["check_fields", "has_grammar", "object_in"]

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


def has_grammar(body: dict[str, Any]) -> bool:
    """Whether a request has a grammar, a schema or the like, which the engine compiles.

    The engine compiles it after accepting the request, and reports a failure as an internal error.
    """
    formatted = body.get("response_format")
    kind = formatted.get("type") if isinstance(formatted, dict) else None
    return bool(body.get("structured_outputs")) or (kind is not None and kind not in _FREE_FORMATS)
