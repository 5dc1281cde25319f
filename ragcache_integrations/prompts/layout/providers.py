"""Requests for hosted models whose prompt caching is controlled by fields of the request.

Sources: https://developers.openai.com/api/docs/guides/prompt-caching (``prompt_cache_key``,
``prompt_cache_breakpoint``) and
https://platform.claude.com/docs/en/build-with-claude/prompt-caching (``cache_control``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from ragcache_integrations.core.checks import check_choice
from ragcache_integrations.core.prompt import Message
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError

from .layout import SEAM, LaidOutPrompt, RenderedPart, Turn

__all__ = [
    "CacheLifetime",
    "anthropic_mark",
    "anthropic_request",
    "check_lifetime",
    "marked_content",
    "openai_cache_key",
    "openai_request",
    "turn_content",
    "write_messages",
]

CacheLifetime = Literal["5m", "1h"]
"""How long Anthropic keeps a marked prefix after its last use."""


Mark = Mapping[str, Any]
M = TypeVar("M")

MarkedTexts = list[tuple[str, bool]]
"""Texts, and whether a prefix that is to be cached ends with each."""


def check_lifetime(lifetime: CacheLifetime | None) -> None:
    """Check a lifetime.

    Raises:
        ConfigurationError: Anthropic doesn't offer it.
    """
    if lifetime is not None:
        anthropic_mark(lifetime)


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


def write_messages(
    prompt: LaidOutPrompt,
    write: Callable[[Turn, MarkedTexts], M],
    read: Callable[[Sequence[Any]], list[M]],
    mark: Callable[[M], M] | None,
) -> list[M]:
    """Make messages of a prompt.

    Args:
        prompt: The prompt.
        write: Makes a message of a turn, whose text is cut after every prefix that is to be cached.
        read: Reads the messages of a history.
        mark: Marks a message as the end of such a prefix; ``None`` to mark none.
    """
    boundaries = prompt.cache_boundaries if mark is not None else ()
    messages: list[M] = []
    for turn in prompt.turns:
        if isinstance(turn, Turn):
            messages.append(write(turn, _marked_texts(turn, boundaries)))
            continue
        history = read(turn.messages)
        if mark is not None and any(turn is boundary for boundary in boundaries):
            history[-1] = mark(history[-1])
        messages += history
    return messages


def turn_content(turn: Turn, texts: MarkedTexts, mark: Mark | None) -> Any:
    """A turn's text; or blocks of it, with a mark where a prefix ends that is to be cached."""
    if mark is None or not any(ends for _, ends in texts):
        return turn.text
    return [{"type": "text", "text": text, **(mark if ends else {})} for text, ends in texts]


def _marked_texts(turn: Turn, boundaries: tuple[RenderedPart, ...]) -> MarkedTexts:
    """Cut a turn after every boundary.

    Returns:
        Texts whose concatenation is the turn's text, and whether a boundary follows each.
    """
    texts: MarkedTexts = []
    text = ""
    for number, part in enumerate(turn.parts):
        text += (SEAM if number else "") + part.text
        if any(part is boundary for boundary in boundaries):
            texts.append((text, True))
            text = ""
    return [*texts, (text, False)] if text else texts


def _messages(prompt: LaidOutPrompt, mark: Mark | None) -> list[dict[str, Any]]:
    def write(turn: Turn, texts: MarkedTexts) -> dict[str, Any]:
        return {"role": turn.role, "content": turn_content(turn, texts, mark)}

    def read(history: Sequence[object]) -> list[dict[str, Any]]:
        return list(map(_as_mapping, history))

    add_mark = None if mark is None else partial(_with_mark, mark=mark)
    return write_messages(prompt, write, read, add_mark)


def _as_mapping(message: object) -> dict[str, Any]:
    if isinstance(message, Message):
        return {"role": message.role, "content": message.text}
    if isinstance(message, Mapping) and "role" in message:
        return dict(message)
    msg = f"a history must hold mappings with a role, got a {type(message).__name__}"
    raise ConfigurationError(msg)


def _with_mark(message: dict[str, Any], mark: Mark) -> dict[str, Any]:
    content = marked_content(message.get("content"), mark)
    return {**message, "content": content} if content else message


def marked_content(content: Any, mark: Mark) -> Any:
    """The content of a message with a mark at its end, unless there is nothing to put it on."""
    *blocks, last = [content] if isinstance(content, str) else content or [None]
    if isinstance(last, str) and last:
        last = {"type": "text", "text": last}
    return [*blocks, {**last, **mark}] if isinstance(last, Mapping) else content
