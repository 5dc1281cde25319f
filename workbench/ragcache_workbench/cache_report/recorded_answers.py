"""Finds the answer in what tools record of a call."""

from __future__ import annotations

import json
from collections.abc import Mapping

__all__ = ["recorded_answer"]

MAX_DEPTH = 12
"""The most envelopes around an answer; LangSmith's have about six."""

_PLACES = ("response", "output", "outputs", "completion", "answer")
"""Where a record of a call has what the model returned."""

_INNER = (
    *("body", "choices", "generations", "candidates", "message", "kwargs"),
    *("content", "parts", "text", "output_text", "output", "answer"),
)
"""Where that has the text, from the outside in."""

_BLOCKS = ("text", "output_text")
"""Types of the blocks that together are one text."""


def recorded_answer(entry: Mapping[str, object]) -> str | None:
    """Return the answer in a record of a call; ``None`` if there is none that can be read.

    Args:
        entry: A line of a batch of OpenAI's, a row of LiteLLM, an observation of Langfuse, a run
            of LangSmith, or anything like them. Values may be JSON in a string.
    """
    return next((text for name in _PLACES if (text := _text(entry.get(name), 0))), None)


def _text(value: object, depth: int) -> str | None:
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, str):
        content = _decoded(value)
        return value if content is None else _text(content, depth + 1) or value
    if isinstance(value, list):
        texts = [text for item in value if (text := _text(item, depth + 1))]
        blocks = any(isinstance(item, Mapping) and item.get("type") in _BLOCKS for item in value)
        return "".join(texts if blocks else texts[:1]) or None  # of several answers the first
    if isinstance(value, Mapping):
        return next((text for name in _INNER if (text := _text(value.get(name), depth + 1))), None)
    return None


def _decoded(text: str) -> object:
    """Return what a string of JSON holds; ``None`` for any other string."""
    if text.lstrip()[:1] not in {"[", "{"}:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
