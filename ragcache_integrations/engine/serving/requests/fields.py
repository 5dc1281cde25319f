"""Fields of requests that vLLM does not check; fuzzing has found them."""

from __future__ import annotations

from typing import Any

from ragcache_integrations.engine.serving.refusals import RequestRefusedError

__all__ = ["check_fields", "has_grammar"]

_FREE_FORMATS = ("text", "json_object")


def check_fields(body: dict[str, Any]) -> None:
    """Refuse fields on which vLLM would fail with an internal error.

    Raises:
        RequestRefusedError: ``structured_outputs`` is no object.
    """
    outputs = body.get("structured_outputs")
    if outputs is not None and not isinstance(outputs, dict):
        msg = f"structured_outputs must be an object, got {type(outputs).__name__}"
        raise RequestRefusedError(400, msg)


def has_grammar(body: dict[str, Any]) -> bool:
    """Whether a request has a grammar, a schema or the like, which the engine compiles.

    The engine compiles it after accepting the request, and reports a failure as an internal error.
    """
    formatted = body.get("response_format")
    kind = formatted.get("type") if isinstance(formatted, dict) else None
    return bool(body.get("structured_outputs")) or (kind is not None and kind not in _FREE_FORMATS)
