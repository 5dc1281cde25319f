"""Requests for hosted models whose prompt caching is steered by fields of the request.

Sources: https://developers.openai.com/api/docs/guides/prompt-caching (``prompt_cache_key``,
``prompt_cache_breakpoint``) and
https://platform.claude.com/docs/en/build-with-claude/prompt-caching (``cache_control``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ragcache_integrations.core.ids import content_id
from ragcache_integrations.core.prompt import Message
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.layout.layout import SEAM, LaidOutPrompt, RenderedPart, Turn

__all__ = [
    "CacheLifetime",
    "anthropic_mark",
    "anthropic_request",
    "marked_texts",
    "openai_cache_key",
    "openai_request",
]

CacheLifetime = Literal["5m", "1h"]
"""How long Anthropic keeps a marked prefix that nobody asks for."""

_LIFETIMES = ("5m", "1h")

Mark = Mapping[str, Any]


def anthropic_mark(lifetime: CacheLifetime) -> dict[str, str]:
    """Anthropic's mark behind a prefix that shall be cached.

    Raises:
        ConfigurationError: The lifetime is none that Anthropic offers.
    """
    if lifetime not in _LIFETIMES:
        msg = f"cache_control must be '5m', '1h' or None, got {lifetime!r}"
        raise ConfigurationError(msg)
    return {"type": "ephemeral", "ttl": lifetime}


def openai_cache_key(prompt: LaidOutPrompt, *, tenant: str = "") -> str:
    """The ``prompt_cache_key`` of a request: the same for all that share their fixed parts.

    OpenAI sends requests of one key to the same machine, about fifteen a minute; give a ``tenant``
    to tell busier streams apart. 41 characters, of the 64 that are allowed.
    """
    return "ragcache-" + content_id(f"{tenant}\n{prompt.cache_key}" if tenant else prompt.cache_key)


def openai_request(
    prompt: LaidOutPrompt, *, tenant: str = "", breakpoints: bool = False
) -> dict[str, Any]:
    """The fields of an OpenAI chat completion that the prompt decides.

    Args:
        prompt: A prompt; its history is made of ``{"role": ..., "content": ...}`` mappings, or of
            the engine's messages.
        tenant: See :func:`openai_cache_key`.
        breakpoints: Whether to mark the ends of the shared prefixes, for models that know
            ``prompt_cache_breakpoint`` (gpt-5.6 and later); others refuse it.

    Returns:
        ``messages`` and ``prompt_cache_key``.

    Raises:
        ConfigurationError: The history holds something else.
    """
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}} if breakpoints else None
    return {
        "messages": _messages(prompt, mark),
        "prompt_cache_key": openai_cache_key(prompt, tenant=tenant),
    }


def anthropic_request(
    prompt: LaidOutPrompt, *, lifetime: CacheLifetime | None = "5m"
) -> dict[str, Any]:
    """The fields of an Anthropic message that the prompt decides.

    Args:
        prompt: A prompt; its history as for :func:`openai_request`.
        lifetime: How long marked prefixes are kept; ``None`` marks none.

    Returns:
        ``messages``, and ``system`` where there is a system text. At most two blocks are marked, of
        the four that are allowed. Prefixes below the model's least length are not cached.

    Raises:
        ConfigurationError: The history holds something else, or the lifetime is unknown.
    """
    mark = {"cache_control": anthropic_mark(lifetime)} if lifetime is not None else None
    messages = _messages(prompt, mark)
    system: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            content = message["content"]
            system += [{"type": "text", "text": content}] if isinstance(content, str) else content
    request: dict[str, Any] = {"system": system} if system else {}
    return request | {"messages": [m for m in messages if m["role"] != "system"]}


def marked_texts(turn: Turn, boundaries: tuple[RenderedPart, ...]) -> list[tuple[str, bool]]:
    """Cut a turn behind every boundary.

    Returns:
        Texts that concatenated are the turn's, and whether a boundary follows each.
    """
    texts: list[tuple[str, bool]] = []
    text = ""
    for number, part in enumerate(turn.parts):
        text += (SEAM if number else "") + part.text
        if any(part is boundary for boundary in boundaries):
            texts.append((text, True))
            text = ""
    return [*texts, (text, False)] if text else texts


def _messages(prompt: LaidOutPrompt, mark: Mark | None) -> list[dict[str, Any]]:
    boundaries = prompt.cache_boundaries if mark is not None else ()
    messages: list[dict[str, Any]] = []
    for turn in prompt.turns:
        if isinstance(turn, Turn):
            texts = marked_texts(turn, boundaries)
            content: Any = turn.text
            if mark is not None and any(marked for _, marked in texts):
                content = [
                    {"type": "text", "text": text, **(mark if marked else {})}
                    for text, marked in texts
                ]
            messages.append({"role": turn.role, "content": content})
            continue
        given = [_as_mapping(message) for message in turn.messages]
        if mark is not None and any(turn is boundary for boundary in boundaries):
            given[-1] = _with_mark(given[-1], mark)
        messages += given
    return messages


def _as_mapping(message: object) -> dict[str, Any]:
    if isinstance(message, Message):
        return {"role": message.role, "content": message.text}
    if isinstance(message, Mapping) and "role" in message:
        return dict(message)
    msg = f"a history must hold mappings with a role, got a {type(message).__name__}"
    raise ConfigurationError(msg)


def _with_mark(message: dict[str, Any], mark: Mark) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str) and content:
        return {**message, "content": [{"type": "text", "text": content, **mark}]}
    if isinstance(content, list) and content and isinstance(content[-1], Mapping):
        return {**message, "content": [*content[:-1], {**content[-1], **mark}]}
    return message  # nothing that a mark could be put on
