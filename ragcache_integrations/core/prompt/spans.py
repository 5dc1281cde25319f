"""What a request says to the scheduler in vLLM's ``SamplingParams.extra_args``.

It says where its documents are, and which steps of a workflow come next (KVFlow). Everything is a
flat list, because ``vllm_xargs`` of an HTTP request cannot be nested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragcache_integrations.core.checks import check_int, check_text, check_type, is_whole
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "ENCODE",
    "FOREVER",
    "LINK_TOKENS",
    "MOST_NEXT_STEPS",
    "MOST_STEPS_BEFORE",
    "NEXT_STEPS",
    "PIN",
    "PIN_TICKET",
    "SPAN_ARGS",
    "STEP",
    "STEPS_BEFORE",
    "STEP_CHARACTERS",
    "NextSteps",
    "Span",
    "check_spans",
    "check_steps",
    "extra_args_from_spans",
    "extra_args_from_steps",
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
            raise ConfigurationError(f"a document's id must be a non-empty string, got {name!r}")
        fault = _fault(start, end, previous_end, prompt_tokens)
        if fault is not None:
            raise ConfigurationError(f"document {name!r}: {fault}")
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
        raise ConfigurationError(f"{IDS}, {STARTS} and {ENDS} must be lists, got {lists!r}")
    ids, starts, ends = lists
    if not len(ids) == len(starts) == len(ends):
        raise ConfigurationError(
            f"{IDS}, {STARTS} and {ENDS} must be of one length, "
            f"got {len(ids)}, {len(starts)} and {len(ends)}"
        )
    spans = tuple(zip(ids, starts, ends, strict=True))
    check_spans(spans, prompt_tokens)
    return spans


STEP_CHARACTERS = 256
"""Characters of the longest name of a step."""
MOST_NEXT_STEPS = 64
"""The most steps that one request may say come next."""
MOST_STEPS_BEFORE = 1_000_000
"""The most steps that may be before one that comes next."""

NextSteps = tuple[tuple[str, int], ...]
"""Names of steps, and how many steps are before each, which is 1 for the next one."""


def check_steps(step: object, next_steps: object) -> tuple[str, NextSteps]:
    """Check the step that a request is, and those that come next.

    Args:
        step: Name of the request's own step; empty for none.
        next_steps: A mapping from names of steps to how many steps are before each.

    Returns:
        The name, and the steps in the order of the mapping.

    Raises:
        ConfigurationError: A name is empty, too long or no valid Unicode, a number is out of range,
            there are too many, or steps come next and the request is none.
    """
    name = _check_name("step", step) if step != "" else ""
    check_type("next_steps", next_steps, Mapping, "names and numbers of steps")
    steps: Mapping[Any, Any] = next_steps  # type: ignore[assignment]  # checked
    if len(steps) > MOST_NEXT_STEPS:
        msg = f"next_steps must name at most {MOST_NEXT_STEPS} steps, got {len(steps)}"
        raise ConfigurationError(msg)
    checked = tuple(
        (
            _check_name("a name in next_steps", key),
            check_int(f"next_steps[{key!r:.60}]", number, 1, MOST_STEPS_BEFORE),
        )
        for key, number in steps.items()
    )
    if checked and not name:
        raise ConfigurationError("next_steps needs step, the name of the request's own step")
    return name, checked


def extra_args_from_steps(step: str, next_steps: NextSteps) -> dict[str, Any]:
    """Pack checked steps for the scheduler; the result is empty if the request is none."""
    if not step:
        return {}
    if not next_steps:
        return {STEP: step}
    names, before = zip(*next_steps, strict=True)
    return {STEP: step, NEXT_STEPS: list(names), STEPS_BEFORE: list(before)}


def _check_name(what: str, name: object) -> str:
    text = check_text(what, name, "a name")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what} must be valid Unicode, got {text!r:.100}") from None
    if not text or len(text) > STEP_CHARACTERS:
        msg = f"{what} must have 1 to {STEP_CHARACTERS} characters, got {len(text)}"
        raise ConfigurationError(msg)
    return text
