"""Arguments and usage of calls to the frameworks' models."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from ragcache_integrations.adaptive import ModelRequest
from ragcache_integrations.core.generation import Usage

__all__ = ["MAX_TOKENS_NAMES", "limit_argument", "own_arguments", "usage_of"]

MAX_TOKENS_NAMES = ("max_tokens", "max_output_tokens", "max_new_tokens", "num_predict")
"""Names of the models' argument for the most tokens of an answer."""

_INPUT_NAMES = ("input_tokens", "prompt_tokens")
_OUTPUT_NAMES = ("output_tokens", "completion_tokens")


def own_arguments(request: ModelRequest, *, logprobs: int | None) -> dict[str, Any]:
    """Arguments of a call to a model of this package, besides the prompt.

    Args:
        request: The request.
        logprobs: The model's own setting.
    """
    arguments = {
        "max_tokens": request.max_tokens,
        "logprobs": 0 if request.logprobs and logprobs is None else None,
        "json_schema": request.json_schema,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def limit_argument(request: ModelRequest, fields: Container[str]) -> dict[str, Any]:
    """The limit of an answer as an argument of any other model, if there is one.

    Args:
        request: The request.
        fields: Names of the model's fields.
    """
    name = next((name for name in MAX_TOKENS_NAMES if name in fields), None)
    return {} if name is None or request.max_tokens is None else {name: request.max_tokens}


def usage_of(usage: object) -> Usage | None:
    """Read the usage of a call in LangChain's or OpenAI's form; ``None`` if there is none."""
    prompt, completion = (_first(usage, names) for names in (_INPUT_NAMES, _OUTPUT_NAMES))
    if not isinstance(prompt, int) or not isinstance(completion, int):
        return None
    details = _first(usage, ("input_token_details", "prompt_tokens_details"))
    cached = _first(details, ("cache_read", "cached_tokens"))
    return Usage(prompt, completion, cached if isinstance(cached, int) else 0)


def _first(fields: object, names: tuple[str, ...]) -> object:
    for name in names:
        value = fields.get(name) if isinstance(fields, Mapping) else getattr(fields, name, None)
        if value is not None:
            return value
    return None
