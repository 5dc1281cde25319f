"""Answers that are to be JSON: by which schema, where the JSON is in them, and whether it is whole.

Under a grammar an answer is JSON alone. Servers without one answer as the model likes: in a fence
of Markdown, with a sentence before it, or after the thoughts of a model that reasons. The arguments
of tool calls are JSON, too.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from ragcache_integrations.core.prompt import ToolCall
from ragcache_integrations.engine.schema_limits import INTEGER_DIGITS
from ragcache_integrations.errors import ConfigurationError, StructuredOutputError

__all__ = [
    "RESPONSE_FORMAT",
    "call_arguments",
    "call_arguments_so_far",
    "format_arguments",
    "json_so_far",
    "whole_json",
]

logger = logging.getLogger(__name__)

MAX_FENCES = 64
RESPONSE_FORMAT = "response_format"
"""The argument of a call that holds a schema in OpenAI's form."""

_CAUSES = {
    "content_filter": "a filter of the server cut the answer off (finish_reason content_filter)",
    "abort": "the server aborted the answer (finish_reason abort)",
}
"""Reasons for which an answer ended before it was complete."""

_THOUGHT = re.compile(r"<think(?:ing)?>")
_THOUGHT_END = re.compile(r"</think(?:ing)?>")
_SPACE: Any = re.compile(r"\s*")
_FENCE_END = re.compile(r"\s*```")
_FENCE = re.compile(r"```[\w+-]*")


def format_arguments(form: object) -> dict[str, Any]:
    """What OpenAI's ``response_format`` says, as ``json_schema`` and ``strict``.

    Args:
        form: ``{"type": "json_schema", "json_schema": {"schema": ..., "strict": ...}}``, or one of
            the type ``json_object`` or ``text``; ``None`` for no form.

    Raises:
        ConfigurationError: It has another form.
    """
    kind = form.get("type") if isinstance(form, Mapping) else None
    if form is None or kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    named = form.get("json_schema") if isinstance(form, Mapping) else None
    if kind == "json_schema" and isinstance(named, Mapping) and "schema" in named:
        return {"json_schema": named["schema"], "strict": named.get("strict")}
    raise ConfigurationError(
        f'{RESPONSE_FORMAT} must be {{"type": "json_schema", "json_schema": {{"name": ..., '
        f'"schema": ...}}}}, got {form!r:.200}'
    )


def whole_json(
    text: str,
    finish_reason: str | None = None,
    max_tokens: int | None = None,
    refusal: str = "",
) -> str:
    """The JSON of an answer that has ended.

    Args:
        text: The answer's text.
        finish_reason: Why the answer ended; ``None`` if unknown.
        max_tokens: The limit of its tokens; ``None`` if unknown.
        refusal: Why the model does not answer, in its own words; empty if it says nothing of that.

    Raises:
        StructuredOutputError: The model refuses, a filter cut the answer off, or it has no complete
            JSON, or a number that was cut off.
    """
    cut = finish_reason == "length"
    whole, problem = _find(text)
    if whole is None or refusal or finish_reason in _CAUSES:
        message = _why_not(problem, finish_reason, max_tokens, refusal)
        raise StructuredOutputError(message, text, finish_reason, max_tokens, refusal)
    if cut and _has_long_integer(whole):
        raise StructuredOutputError(
            f"the answer holds an integer of {INTEGER_DIGITS} digits, at which integers are cut "
            "off: its length ran out. Set minimum and maximum in the schema to allow more",
            text,
            finish_reason,
            max_tokens,
        )
    if cut:
        logger.warning(
            "a structured answer is as long as it may be%s: a value may be cut short",
            _at(max_tokens),
        )
    return whole


def json_so_far(text: str) -> str:
    """The JSON of an answer that has not ended yet; empty while it is not known to have begun."""
    if not _begins_json(text):
        end = _THOUGHT_END.search(text)
        if end is None and _THOUGHT.match(text.lstrip()):
            return ""
        text = text if end is None else text[end.end() :]
        fence = None if _begins_json(text) else _FENCE.search(text)
        text = text if fence is None else text[fence.end() :]
    return text[: _end_of_json(text, 0)].strip() if _begins_json(text) else ""


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
    raise StructuredOutputError(
        f"the arguments of the call of {call.name!r} are no JSON object: {problem}. If the answer "
        f"was cut off, raise max_tokens. Got {call.arguments[:200]!r}",
        call.arguments,
    )


def call_arguments_so_far(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call that may not be complete; empty until they are."""
    try:
        return call_arguments(call)
    except StructuredOutputError:
        return {}


def _find(text: str) -> tuple[str | None, str]:
    """The JSON in an answer, or why there is none."""
    ends = [end.end() for end in _THOUGHT_END.finditer(text)]
    starts = (0, *ends[:1], *ends[-1:])  # the JSON itself may hold the words that end a thought
    for find in (_json_alone, _json_in_fence):
        for start in starts:
            whole = find(text[start:])
            if whole is not None:
                return whole, ""
    return None, _problem(text[starts[-1] :])


def _json_alone(text: str) -> str | None:
    end = _end_of_json(text, 0)
    return text[:end].strip() if end is not None and not text[end:].strip() else None


def _json_in_fence(text: str) -> str | None:
    """The content of the only fence with JSON; ``None`` if there are several."""
    fences = list(_fenced(text))
    if len(fences) != 1:
        return None
    begin, end = fences[0]
    return None if _thinks(text[:begin]) or _thinks(text[end:]) else text[begin:end].strip() or None


def _fenced(text: str) -> Iterator[tuple[int, int]]:
    """Begin and end of the JSON in each fence, none of them within another's JSON.

    One that was cut off is empty.
    """
    position = 0
    for _ in range(MAX_FENCES):
        fence = _FENCE.search(text, position)
        if fence is None:
            return
        position = fence.end()
        end = _end_of_json(text, position)
        close = None if end is None else _FENCE_END.match(text, end)
        if end is not None and close is not None:
            yield position, end
            position = close.end()
        elif _begins_json(text[position:]):
            yield position, position  # cut off, and what follows is within it
            return


def _thinks(text: str) -> bool:
    return bool(_THOUGHT.search(text) or _THOUGHT_END.search(text))


def _end_of_json(text: str, begin: int) -> int | None:
    """Where the JSON ends that begins here; ``None`` where none does, or it is not whole."""
    try:
        return int(_DECODER.raw_decode(text, _SPACE.match(text, begin).end())[1])
    except (ValueError, RecursionError):
        return None


def _problem(text: str) -> str:
    if _THOUGHT.match(text.lstrip()):
        return "its thoughts have not ended"
    try:
        _DECODER.decode(text.strip())
    except (ValueError, RecursionError) as error:
        return str(error)
    return "it is not clear which part it is"


def _out_of_length(max_tokens: int | None) -> str:
    return (
        f"the length of the answer ran out{_at(max_tokens)}, before its JSON was complete: raise "
        "max_tokens (where the context window is full, shorten the prompt), or limit the schema by "
        "maxLength, maxItems, minimum and maximum"
    )


def _why_not(problem: str, finish_reason: str | None, max_tokens: int | None, refusal: str) -> str:
    """Why an answer has no JSON, as far as its server has said it."""
    if refusal:
        return f"the model refused to answer: {' '.join(refusal.split()):.500}"
    if finish_reason == "length":
        return _out_of_length(max_tokens)
    if finish_reason in _CAUSES:
        return f"{_CAUSES[finish_reason]}, so that it is not complete"
    return (
        f"the answer is no complete JSON: {problem}. If it was cut off, its max_tokens"
        f"{'' if max_tokens is None else f'={max_tokens}'} were too few"
    )


def _at(max_tokens: int | None) -> str:
    return "" if max_tokens is None else f" at max_tokens={max_tokens}"


def _begins_json(text: str) -> bool:
    return text.lstrip().startswith(("{", "[", '"'))


def _has_long_integer(text: str) -> bool:
    digits: list[int] = []

    def note(number: str) -> int:
        digits.append(len(number.lstrip("-")))
        return 0

    json.loads(text, parse_int=note)
    return max(digits, default=0) >= INTEGER_DIGITS


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER: Any = json.JSONDecoder(parse_constant=_refuse)
