"""Requests for hosted models whose prompt caching is controlled by fields of the request.

Sources: https://developers.openai.com/api/docs/guides/prompt-caching (``prompt_cache_key``,
``prompt_cache_breakpoint``) and
https://platform.claude.com/docs/en/build-with-claude/prompt-caching (``cache_control``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from ragcache_integrations.core.checks import check_choice
from ragcache_integrations.core.ids import content_id
from ragcache_integrations.core.prompt import Message
from ragcache_integrations.errors import ConfigurationError

from .layout import SEAM, LaidOutPrompt, RenderedPart, Turn

__all__ = [
    "CacheLifetime",
    "anthropic_mark",
    "anthropic_request",
    "marked_texts",
    "openai_cache_key",
    "openai_request",
]

CacheLifetime = Literal["5m", "1h"]
"""How long Anthropic keeps a marked prefix after its last use."""


Mark = Mapping[str, Any]


def anthropic_mark(lifetime: CacheLifetime) -> dict[str, str]:
    """Anthropic's mark after a prefix that is to be cached.

    Raises:
        ConfigurationError: Anthropic doesn't offer this lifetime.
    """
    check_choice("cache_control", lifetime, get_args(CacheLifetime), also="None")
    return {"type": "ephemeral", "ttl": lifetime}


def openai_cache_key(prompt: LaidOutPrompt, *, tenant: str = "") -> str:
    """The ``prompt_cache_key`` of a request: the same for all that share their fixed parts.

    OpenAI sends about fifteen requests a minute of the same key to one machine. The key has 41 of
    the 64 characters that are allowed.

    Args:
        prompt: The prompt.
        tenant: Separates busier streams of requests.
    """
    return "ragcache-" + content_id(f"{tenant}\n{prompt.cache_key}" if tenant else prompt.cache_key)


def openai_request(
    prompt: LaidOutPrompt, *, tenant: str = "", breakpoints: bool = False
) -> dict[str, Any]:
    """The fields of an OpenAI chat completion that depend on the prompt.

    Args:
        prompt: A prompt; its history consists of ``{"role": ..., "content": ...}`` mappings, or of
            the engine's messages.
        tenant: See :func:`openai_cache_key`.
        breakpoints: Whether to mark the ends of the shared prefixes, for models that support
            ``prompt_cache_breakpoint`` (gpt-5.6 and later); others refuse it.

    Returns:
        ``messages`` and ``prompt_cache_key``.

    Raises:
        ConfigurationError: The history holds other objects.
    """
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}} if breakpoints else None
    return {
        "messages": _messages(prompt, mark),
        "prompt_cache_key": openai_cache_key(prompt, tenant=tenant),
    }


def anthropic_request(
    prompt: LaidOutPrompt, *, lifetime: CacheLifetime | None = "5m"
) -> dict[str, Any]:
    """The fields of an Anthropic message that depend on the prompt.

    Args:
        prompt: A prompt; its history as for :func:`openai_request`.
        lifetime: How long marked prefixes are kept; ``None`` marks none.

    Returns:
        ``messages``, and ``system`` if there is a system text. At most two blocks are marked, of
        the four that are allowed. Prefixes below the model's minimum length are not cached.

    Raises:
        ConfigurationError: The history holds other objects, or the lifetime is unknown.
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
    """Cut a turn after every boundary.

    Returns:
        Texts whose concatenation is the turn's text, and whether a boundary follows each.
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
        history = [_as_mapping(message) for message in turn.messages]
        if mark is not None and any(turn is boundary for boundary in boundaries):
            history[-1] = _with_mark(history[-1], mark)
        messages += history
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
    return message  # there is no content to put a mark on
