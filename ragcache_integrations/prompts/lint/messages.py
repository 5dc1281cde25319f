"""Reads messages of many forms as text, in the order in which a model sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ragcache_integrations.core.ids import content_id
from ragcache_integrations.errors import ConfigurationError

__all__ = ["Turn", "dump_json", "looks_like_messages", "message_turn", "text_of"]

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
        msg = f"{where}: content must be nested at most {MAX_DEPTH} levels deep"
        raise ConfigurationError(msg)
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
        msg = f"{where} cannot be written as JSON: {error}"
        raise ConfigurationError(msg) from error
