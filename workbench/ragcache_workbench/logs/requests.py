"""Reads recorded requests of many forms.

Messages of many forms become text, in the order in which a model sees it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ragcache_integrations.core.texts import content_id, without_surrogates
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "RecordedRequest",
    "Turn",
    "decoded",
    "dump_json",
    "export_entries",
    "looks_like_messages",
    "message_turn",
    "recorded_requests",
    "text_of",
]


Turn = tuple[str, str]
"""Role and text of a message."""

MAX_DEPTH = 50
"""The most levels of nested blocks; a request has about five."""

_ROLES = {
    "human": "user",
    "humanmessage": "user",
    "ai": "assistant",
    "aimessage": "assistant",
    "aimessagechunk": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "systemmessage": "system",
    "toolmessage": "tool",
    "functionmessage": "function",
}

_CONTENTS = ("content", "parts", "output", "value")
_MEDIA = re.compile(r"image|audio|video|file|document|media|inline_?data", re.IGNORECASE)


def looks_like_messages(value: object) -> bool:
    """Whether a value is a list of mappings, as messages are."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(item, Mapping) for item in value)
    )


def message_turn(message: object, where: str) -> Turn:
    """Role and text of a message.

    Args:
        message: A message in the form of OpenAI, Anthropic, Gemini or ShareGPT, or one that
            LangChain serialised.
        where: Names the request in errors.

    Raises:
        ConfigurationError: It has none of these forms.
    """
    if not isinstance(message, Mapping):
        msg = f"{where}: a message must be a mapping, got a {type(message).__name__}"
        raise ConfigurationError(msg)
    message = _unwrap(message)
    name = str(message.get("role") or message.get("from") or message.get("type") or "user")
    role = _ROLES.get(name.lower(), name[:32])
    content = next((message[name] for name in _CONTENTS if message.get(name) is not None), None)
    calls = message.get("tool_calls") or message.get("function_call") or message.get("arguments")
    return role, text_of(content, where) + (dump_json(calls, where) if calls else "")


def _unwrap(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take a message out of the envelope that LangChain serialises it in."""
    kwargs, data = message.get("kwargs"), message.get("data")
    if isinstance(kwargs, Mapping) and "lc" in message:
        names = message.get("id")
        kind = names[-1] if isinstance(names, list) and names else "user"
        return {"role": kind, **kwargs}
    if isinstance(data, Mapping) and "content" in data:
        return {"role": message.get("type"), **data}
    return message


def text_of(content: object, where: str, depth: int = 0) -> str:
    """The text of a message's content.

    Images, recordings and files are replaced by short marks, the same for equal ones.

    Args:
        content: Text, a block, or a list of both.
        where: Names the request in errors.
        depth: Number of levels above the content.

    Raises:
        ConfigurationError: It is neither text nor blocks, or nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise ConfigurationError(f"{where}: content must be nested at most {MAX_DEPTH} levels deep")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "".join(text_of(block, where, depth + 1) for block in content)
    if isinstance(content, Mapping):
        return _block_text(content, where, depth)
    msg = f"{where}: content must be text or blocks, got a {type(content).__name__}"
    raise ConfigurationError(msg)


def _block_text(block: Mapping[str, Any], where: str, depth: int) -> str:
    for name in ("text", "content", "parts"):
        if isinstance(block.get(name), str | list | tuple):
            return text_of(block[name], where, depth + 1)
    source = block.get("source")
    if isinstance(source, Mapping) and str(source.get("type")) in {"text", "content"}:
        return text_of(source.get("data") or source.get("content"), where, depth + 1)
    kind = _media_kind(block)
    json_text = dump_json(block, where)
    return f"<{kind} {content_id(json_text)[:8]}>" if kind else json_text


def _media_kind(block: Mapping[str, Any]) -> str:
    """The kind of media of a block; empty for a block that is no media."""
    names = [block["type"]] if isinstance(block.get("type"), str) else list(block)
    match = next((match for name in names if (match := _MEDIA.search(str(name)))), None)
    return match.group().lower() if match else ""


def dump_json(value: object, where: str) -> str:
    """Write a value as JSON, with its own order of keys, as it was sent.

    Raises:
        ConfigurationError: The value contains itself, or is nested too deeply.
    """
    try:
        return json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} cannot be written as JSON: {error}") from error


MAX_NESTED = 8
"""The most envelopes around a prompt."""

MAX_PROMPTS = 2048
"""The most prompts in one request, as in OpenAI's API."""

_PROMPTS = ("messages", "prompt", "prompts", "input", "inputs", "contents", "conversations")
_ENVELOPES = ("body", "request", "params", "kwargs", "request_body", "proxy_server_request")
_LISTS = ("observations", "runs", "child_runs", "data")
_INSTRUCTIONS = ("system", "instructions", "systemInstruction", "system_instruction")
_SYSTEM = ("system", "developer")

# Types of Langfuse's observations that are no requests to a generative model.
_OTHER_OBSERVATIONS = frozenset(
    ("SPAN", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL")
)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request that was sent to a model.

    Attributes:
        model: The model's name.
        tools: The definitions of the tools as they were sent, in JSON.
        system: The text of the system messages at the beginning.
        history: Role and text of each message between.
        last: The text of the last user message.
        rest: Role and text of each message after it, such as tool calls and their results.
        token_ids: Whether ``last`` holds token ids such as ``15339# 11#`` rather than text.
    """

    model: str
    tools: str
    system: str
    history: tuple[Turn, ...]
    last: str
    rest: tuple[Turn, ...] = ()
    token_ids: bool = False

    @property
    def text(self) -> str:
        """The whole request, in the order of chat templates."""
        turns = [("tools", self.tools), ("system", self.system), *self.history]
        turns += [("user", self.last), *self.rest]
        return "".join(f"<{role}>{text}" for role, text in turns if text)


def recorded_requests(entry: object, where: str = "the request") -> list[RecordedRequest]:
    """Read an entry of a log.

    Args:
        entry: The body of a request to OpenAI's chat completions, completions or responses, to
            Anthropic's messages or to Gemini; such a body inside ``body`` (as in OpenAI's batch
            files), ``request``, ``params`` or ``kwargs``; a row of LiteLLM, an observation or a
            trace of Langfuse, a run of LangSmith; a list of messages; or a prompt as one string.
            Their values may be JSON in a string.
        where: Names the entry in errors.

    Returns:
        One request; several if the entry holds several prompts or several entries.

    Raises:
        ConfigurationError: The entry has none of these forms.
    """
    try:
        return list(_read(entry, (), where))
    except RecursionError as error:
        raise ConfigurationError(f"{where} is nested too deeply") from error


def export_entries(entry: object) -> list[object] | None:
    """The entries of an export that holds several; ``None`` if ``entry`` is a single one."""
    if not isinstance(entry, Mapping) or any(entry.get(name) for name in ("messages", "prompt")):
        return None
    lists = [entry[name] for name in _LISTS if looks_like_messages(entry.get(name))]
    return [item for items in lists for item in items] if lists else None


Envelopes = tuple[Mapping[str, Any], ...]
"""The mappings around a prompt, from the inside out; any of them may name the model and tools."""


def _read(entry: object, around: Envelopes, where: str) -> Iterator[RecordedRequest]:
    if isinstance(entry, Mapping):
        yield from _read_mapping(entry, around, where)
    elif isinstance(entry, str | list | tuple):
        yield from _prompts(entry, _base(around, where), where)
    else:
        msg = f"{where} must be a request's body, messages or text, got a {type(entry).__name__}"
        raise ConfigurationError(msg)


def _read_mapping(
    entry: Mapping[str, Any], around: Envelopes, where: str
) -> Iterator[RecordedRequest]:
    if len(around) > MAX_NESTED:
        raise ConfigurationError(f"{where} is nested too deeply")
    if (items := export_entries(entry)) is not None:
        yield from _read_entries(items, (entry, *around), where)
        return
    _check_kind(entry, where)
    around = (entry, *_asides(entry), *around)
    for name in _PROMPTS:
        value = decoded(entry.get(name), messages_only=name != "inputs")
        if value and (not isinstance(value, Mapping) or _holds_prompt(value)):
            if name == "messages" and isinstance(value, list | tuple) and isinstance(value[0], str):
                raise ConfigurationError(f"{where}: a message must be a mapping, got a str")
            yield from _read(value, around, where)
            return
    for name in _ENVELOPES:
        value = decoded(entry.get(name))
        if isinstance(value, Mapping) and value:
            yield from _read(value, around, where)
            return
    names = [name[:32] for name in sorted(map(str, entry))[:8]]
    msg = f"{where} has neither messages, prompt nor input that can be read; its keys: {names}"
    raise ConfigurationError(msg)


def _read_entries(
    items: Sequence[object], around: Envelopes, where: str
) -> Iterator[RecordedRequest]:
    """The requests among some entries: a trace also has entries that are no requests."""
    first_error: ConfigurationError | None = None
    read = 0
    for item in items:
        try:
            requests = list(_read(item, around, where))
        except ConfigurationError as error:
            first_error = first_error or error
            continue
        read += len(requests)
        yield from requests
    if first_error is not None and not read:
        raise first_error


def _check_kind(entry: Mapping[str, Any], where: str) -> None:
    """Refuse a tracer's record of something that is no model, although it has an input."""
    run, kind = entry.get("run_type"), entry.get("type")
    other = run if isinstance(run, str) and run != "llm" else kind
    if isinstance(other, str) and (other == run or other in _OTHER_OBSERVATIONS):
        msg = f"{where} is of type {other[:32]!r}, which is no request to a model"
        raise ConfigurationError(msg)


def _holds_prompt(value: Mapping[str, Any]) -> bool:
    return any(value.get(name) for name in (*_PROMPTS, *_ENVELOPES))


def decoded(value: object, *, messages_only: bool = False) -> object:
    """The value of a string of JSON; any other value stays as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in {"[", "{"}:
        return value
    try:
        content = json.loads(value)
    except (ValueError, RecursionError):
        return value
    if messages_only and content and not _has_messages(content):
        return value  # a prompt that happens to be JSON
    return content


def _has_messages(content: object) -> bool:
    if isinstance(content, Mapping):
        return _holds_prompt(content)
    if not looks_like_messages(content):
        return False
    names = {"role", "content", "lc", "from"}
    return all(not names.isdisjoint(message) for message in content)  # type: ignore[attr-defined]


def _base(around: Envelopes, where: str) -> RecordedRequest:
    """The fields that all prompts of one entry share."""
    tools = decoded(_first(around, ("tools", "functions")))
    return RecordedRequest(
        model=without_surrogates(str(_first(around, ("model",)) or "")[:64]),
        tools=without_surrogates(dump_json(tools, where)) if tools else "",
        system=without_surrogates(text_of(_first(around, _INSTRUCTIONS), where)),
        history=(),
        last="",
    )


def _first(around: Envelopes, names: Sequence[str]) -> Any:
    """The first of the named fields that is not empty, from the inside out."""
    return next((at[name] for at in around for name in names if at.get(name)), None)


def _asides(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The mappings in which LangSmith and LiteLLM keep other fields of the request."""
    extra = entry.get("extra")
    invocation = extra.get("invocation_params") if isinstance(extra, Mapping) else None
    for value in (invocation, decoded(entry.get("proxy_server_request"))):
        if isinstance(value, Mapping):
            yield value


def _prompts(
    value: str | Sequence[object], base: RecordedRequest, where: str, depth: int = 0
) -> Iterator[RecordedRequest]:
    """The requests of a text, a conversation, or several texts, token ids or conversations."""
    kinds = {type(item) for item in value} if not isinstance(value, str) else set()
    if isinstance(value, str):
        yield replace(base, last=without_surrogates(value))
    elif kinds == {int}:
        # The mark distinguishes token ids from numbers that are times or ids of requests.
        yield replace(base, last=" ".join(f"{number}#" for number in value), token_ids=True)
    elif kinds and kinds <= {str, list, tuple} and depth < MAX_NESTED:
        if len(value) > MAX_PROMPTS:
            msg = f"{where} must have at most {MAX_PROMPTS} prompts, got {len(value)}"
            raise ConfigurationError(msg)
        for item in value:
            yield from _prompts(item, base, where, depth + 1)  # type: ignore[arg-type]
    else:
        yield _conversation(value, base, where)


def _conversation(messages: Sequence[object], base: RecordedRequest, where: str) -> RecordedRequest:
    turns = [message_turn(message, where) for message in messages]
    turns = [(without_surrogates(role), without_surrogates(text)) for role, text in turns]
    system = [base.system]
    while turns and turns[0][0] in _SYSTEM:
        system.append(turns.pop(0)[1])
    users = [place for place, (role, _) in enumerate(turns) if role == "user"]
    last = users[-1] if users else len(turns)
    return replace(
        base,
        system="\n".join(text for text in system if text),
        history=tuple(turns[:last]),
        last=turns[last][1] if users else "",
        rest=tuple(turns[last + 1 :]),
    )
