"""Passes documents' spans to the scheduler, in vLLM's ``SamplingParams.extra_args``.

They are three flat lists, because ``vllm_xargs`` of an HTTP request cannot be nested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "ENCODE",
    "FOREVER",
    "LINK_TOKENS",
    "NEXT_STEPS",
    "PIN",
    "PIN_TICKET",
    "SPAN_ARGS",
    "STEP",
    "STEPS_BEFORE",
    "Span",
    "check_spans",
    "extra_args_from_spans",
    "spans_from_extra_args",
]

Span = tuple[str, int, int]
"""A document's id, its first token and the token after its last."""

IDS, STARTS, ENDS = SPAN_ARGS = ("rag_documents", "rag_starts", "rag_ends")
LINK_TOKENS = "rag_link_tokens"
"""Names how many tokens of each document are computed, where the rest is reused at any place."""
ENCODE = "rag_encode"
"""Marks a request whose documents are stored, to be reused at any place."""
PIN = "rag_pin"
"""Seconds for which a request's documents are pinned; 0 unpins them."""
PIN_TICKET = "rag_pin_ticket"
"""Name under which a server's scheduler reports that it can't pin a request's documents."""
STEP = "rag_step"
"""Names the step of a workflow that a request is."""
NEXT_STEPS = "rag_next_steps"
"""Names of the steps that come next."""
STEPS_BEFORE = "rag_steps_before"
"""How many steps are before each of them."""
FOREVER = 1e12
"""Seconds of a pin without an end: JSON has no infinity."""


def check_spans(spans: Sequence[Span], prompt_tokens: int) -> None:
    """Check that spans are ordered, disjoint and within the prompt.

    Args:
        spans: The spans.
        prompt_tokens: Length of the prompt.

    Raises:
        ConfigurationError: A span is empty, runs backwards, overlaps another, or exceeds the
            prompt; or an id is no string or empty.
    """
    previous_end = 0
    for name, start, end in spans:
        if not isinstance(name, str) or not name:
            msg = f"a document's id must be a non-empty string, got {name!r}"
            raise ConfigurationError(msg)
        fault = _fault(start, end, previous_end, prompt_tokens)
        if fault is not None:
            msg = f"document {name!r}: {fault}"
            raise ConfigurationError(msg)
        previous_end = end


def _fault(start: object, end: object, previous_end: int, prompt_tokens: int) -> str | None:
    """What is wrong with a span; ``None`` if nothing is."""
    if not is_whole(start) or not is_whole(end):
        wrong = end if is_whole(start) else start
        return f"a span's ends must be whole numbers, got {wrong!r}"
    if start >= end:
        return f"its span must run forwards over at least a token, got {start} to {end}"
    span = f"its span, {start} to {end}, "
    if start < previous_end:
        return f"{span}must not begin before token {previous_end}, where the one before it ends"
    if end > prompt_tokens:
        return f"{span}exceeds the prompt of {prompt_tokens} tokens"
    return None


def extra_args_from_spans(spans: Sequence[Span]) -> dict[str, Any]:
    """Pack checked spans; the result is empty if there are none."""
    if not spans:
        return {}
    ids, starts, ends = zip(*spans, strict=True)
    return {IDS: list(ids), STARTS: list(starts), ENDS: list(ends)}


def spans_from_extra_args(
    extra_args: Mapping[str, Any] | None, prompt_tokens: int
) -> tuple[Span, ...]:
    """Unpack and check spans; the result is empty if there are none.

    Raises:
        ConfigurationError: As for :func:`check_spans`, or the three lists differ in length.
    """
    if not extra_args or IDS not in extra_args:
        return ()
    lists: list[Any] = [extra_args.get(name) for name in (IDS, STARTS, ENDS)]
    if not all(isinstance(values, list | tuple) for values in lists):
        msg = f"{IDS}, {STARTS} and {ENDS} must be lists, got {lists!r}"
        raise ConfigurationError(msg)
    ids, starts, ends = lists
    if not len(ids) == len(starts) == len(ends):
        msg = (
            f"{IDS}, {STARTS} and {ENDS} must be of one length, "
            f"got {len(ids)}, {len(starts)} and {len(ends)}"
        )
        raise ConfigurationError(msg)
    spans = tuple(zip(ids, starts, ends, strict=True))
    check_spans(spans, prompt_tokens)
    return spans
