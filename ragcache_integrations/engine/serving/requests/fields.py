"""Fields of requests that vLLM takes on trust, found by sending it what does not belong there."""

from __future__ import annotations

from typing import Any

from ragcache_integrations.engine.serving.refusals import RequestRefusedError

__all__ = ["check_fields", "has_grammar"]

_FREE_FORMATS = ("text", "json_object")


def check_fields(body: dict[str, Any]) -> None:
    """Refuse what vLLM would answer with an error of its own.

    Raises:
        RequestRefusedError: ``structured_outputs`` is no object.
    """
    outputs = body.get("structured_outputs")
    if outputs is not None and not isinstance(outputs, dict):
        msg = f"structured_outputs must be an object, got {type(outputs).__name__}"
        raise RequestRefusedError(400, msg)


def has_grammar(body: dict[str, Any]) -> bool:
    """Whether a request brings a grammar, a schema or the like, which the engine compiles.

    It does so after the request was accepted, and calls its failure an internal error.
    """
    formatted = body.get("response_format")
    kind = formatted.get("type") if isinstance(formatted, dict) else None
    return bool(body.get("structured_outputs")) or (kind is not None and kind not in _FREE_FORMATS)
