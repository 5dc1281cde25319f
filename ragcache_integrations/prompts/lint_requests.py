"""Reading recorded requests, whatever their form, as text in the order in which a model sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragcache_integrations.errors import ConfigurationError

__all__ = ["RecordedRequest", "read_requests", "recorded_request"]

_ENVELOPES = ("body", "request", "params", "kwargs")
_SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request that was sent to a model.

    Attributes:
        model: The model's name.
        tools: The tools' definitions as they were sent, in JSON.
        system: The text of the system messages at the beginning.
        history: The messages between: role and text of each.
        last: The text of the last user message.
        rest: Messages behind it, such as tool calls and their results.
    """

    model: str
    tools: str
    system: str
    history: tuple[tuple[str, str], ...]
    last: str
    rest: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """All of it, in the order in which chat templates write it."""
        turns = [("tools", self.tools), ("system", self.system), *self.history]
        turns += [("user", self.last), *self.rest]
        return "".join(f"<{role}>{text}" for role, text in turns if text)


def read_requests(path: Path) -> list[RecordedRequest]:
    """Read a log of requests.

    Args:
        path: JSON lines, one request in each, or one JSON array of requests.

    Raises:
        ConfigurationError: The file cannot be read, or a line holds no request.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"cannot read {path}: {error}"
        raise ConfigurationError(msg) from error
    if _is_array(text.strip()):
        entries = _parsed(text, str(path))
        return [recorded_request(entry, f"{path}, entry {n}") for n, entry in enumerate(entries, 1)]
    return [
        recorded_request(_parsed(line, f"{path}, line {number}"), f"{path}, line {number}")
        # Not splitlines(): it also splits at characters that JSON may hold as they are.
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]


def recorded_request(entry: object, where: str = "the request") -> RecordedRequest:
    """Read one request.

    Args:
        entry: The body of a request to OpenAI's chat completions, completions or responses, or to
            Anthropic's messages; the same inside of ``body`` (as in OpenAI's batch files),
            ``request``, ``params`` or ``kwargs``; a list of messages; or a prompt as one string.
        where: Names it in errors.

    Raises:
        ConfigurationError: It is none of these.
    """
    if isinstance(entry, str):
        return RecordedRequest("", "", "", (), entry)
    if isinstance(entry, list | tuple):
        return _conversation(entry, {}, where)
    if not isinstance(entry, Mapping):
        msg = f"{where} must be a request's body, messages or text, got a {type(entry).__name__}"
        raise ConfigurationError(msg)
    for name in ("messages", "prompt", "input"):
        given = entry.get(name)
        if isinstance(given, str):
            system = entry.get("instructions") or entry.get("system") or ""
            return RecordedRequest(_model(entry), _tools(entry), _text(system, where), (), given)
        if isinstance(given, list | tuple):
            return _conversation(given, entry, where)
    for name in _ENVELOPES:
        if isinstance(entry.get(name), Mapping):
            return recorded_request(entry[name], where)
    msg = f"{where} has neither messages, prompt nor input, only {sorted(map(str, entry))}"
    raise ConfigurationError(msg)


def _conversation(
    messages: Sequence[object], entry: Mapping[str, Any], where: str
) -> RecordedRequest:
    turns = [_turn(message, where) for message in messages]
    system = [_text(entry.get("system") or entry.get("instructions") or "", where)]
    while turns and turns[0][0] in _SYSTEM:
        system.append(turns.pop(0)[1])
    users = [place for place, (role, _) in enumerate(turns) if role == "user"]
    last = users[-1] if users else len(turns)
    return RecordedRequest(
        model=_model(entry),
        tools=_tools(entry),
        system="\n".join(text for text in system if text),
        history=tuple(turns[:last]),
        last=turns[last][1] if users else "",
        rest=tuple(turns[last + 1 :]),
    )


def _turn(message: object, where: str) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        msg = f"{where}: a message must be a mapping, got a {type(message).__name__}"
        raise ConfigurationError(msg)
    role = {"human": "user", "ai": "assistant"}.get(str(message.get("role")), message.get("role"))
    text = _text(message.get("content", message.get("output")), where)
    calls = message.get("tool_calls") or message.get("arguments")
    return str(role or message.get("type") or "user"), text + (json.dumps(calls) if calls else "")


def _text(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "".join(_text(block, where) for block in content)
    if isinstance(content, Mapping):
        for name in ("text", "content"):
            if isinstance(content.get(name), str | list):
                return _text(content[name], where)
        return json.dumps(content)
    msg = f"{where}: content must be text or blocks, got a {type(content).__name__}"
    raise ConfigurationError(msg)


def _model(entry: Mapping[str, Any]) -> str:
    return str(entry.get("model") or "")


def _tools(entry: Mapping[str, Any]) -> str:
    tools = entry.get("tools") or entry.get("functions")
    return json.dumps(tools, ensure_ascii=False) if tools else ""


def _is_array(text: str) -> bool:
    """Whether it is one array, sound or not, and no list of messages in each line."""
    if not text.startswith("["):
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return True
    return end == len(text)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        msg = f"{where} is no JSON: {error}"
        raise ConfigurationError(msg) from error
