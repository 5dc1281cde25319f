"""Documents once in LangChain's messages: an adapter, see :mod:`.repeats`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from ragcache_integrations.core.prompt import Part, PromptDocument, part_text
from ragcache_integrations.prompts.langchain import block_document, part_block

from .repeats import HELD, MIN_WORDS, Repeats, dump_parts, held_parts, is_in_full

__all__ = ["documents_once", "shown_text"]

MARK = "cache_control"
_FIELDS = {"type", "text", "id", "mime_type", MARK}


def documents_once(
    messages: Sequence[BaseMessage], *, min_words: int = MIN_WORDS
) -> list[BaseMessage]:
    """Refer to what earlier documents of the same conversation say already.

    Documents are results of tools, ``text-plain`` content blocks, and those of a
    ``RAGPromptTemplate`` with ``documents_once=True``. Applied to its own result it changes
    nothing; without the first messages of its result, what they said comes back in full. In an
    agent::

        @wrap_model_call
        def once(request, handler):
            return handler(request.override(messages=documents_once(request.messages)))

    Args:
        messages: All messages of the prompt. One with ``additional_kwargs={"in_full": True}`` stays
            as it is.
        min_words: Words of the shortest text that is referred to.

    Returns:
        The messages; those with references hold their whole text in ``additional_kwargs``.

    Raises:
        ConfigurationError: ``min_words`` is below 8.
    """
    repeats = Repeats(min_words)
    return [_read(message, repeats) for message in messages]


def shown_text(message: BaseMessage) -> str:
    """A message's text, that of documents in its content blocks included."""
    if isinstance(message.content, str):
        return message.content
    return "".join(filter(None, map(_block_text, message.content)))


def _block_text(block: str | dict[str, Any]) -> str | None:
    text = block if isinstance(block, str) else block.get("text")
    return text if isinstance(text, str) else None


def _read(message: BaseMessage, repeats: Repeats) -> BaseMessage:
    extras = message.additional_kwargs
    parts = held_parts(extras, shown_text(message))
    is_tool = isinstance(message, ToolMessage)
    if parts is None and isinstance(message.content, list):
        return _read_blocks(message, message.content, repeats)
    if parts is None and is_tool and message.content:
        parts = (PromptDocument(str(message.content)),)
    if parts is None:
        return message
    read = repeats.read(parts, in_full=is_in_full(extras))
    content: Any = "".join(map(part_text, read))
    if isinstance(message.content, list):
        # An image that was added since has no place among the parts, and follows them.
        others = (item for item in message.content if _block_text(item) is None)
        content = [*_blocks(read, message), *others]
    if content == message.content:
        return message
    held = {**extras, HELD: dump_parts(parts, read)}
    return message.model_copy(update={"content": content, "additional_kwargs": held})


def _read_blocks(message: BaseMessage, blocks: Sequence[Any], repeats: Repeats) -> BaseMessage:
    """Read a message of content blocks; if all are text, it can hold its parts."""
    kinds = {"text", "text-plain"} if isinstance(message, ToolMessage) else {"text-plain"}
    parts: list[Part] = []
    whole = True
    for item in blocks:
        block = {"type": "text", "text": item} if isinstance(item, str) else item
        kind, text = block.get("type"), block.get("text")
        if not set(block) <= _FIELDS:
            whole = False  # such as an image, which has no place among parts
        elif isinstance(text, str) and text and kind in kinds:
            parts.append(block_document(text, block))
        elif isinstance(text, str) and text and kind == "text":
            parts.append(text)
        else:
            whole = False
    read = repeats.read(parts, in_full=is_in_full(message.additional_kwargs) or not whole)
    if read == tuple(parts):
        return message
    held = {**message.additional_kwargs, HELD: dump_parts(parts, read)}
    content = _blocks(read, message)
    return message.model_copy(update={"content": content, "additional_kwargs": held})


def _blocks(parts: Sequence[Part], message: BaseMessage) -> list[dict[str, Any]]:
    """Content blocks of the parts, with the mark for a provider's cache after the last of them."""
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": part_text(part)}
        if isinstance(message, ToolMessage)
        else part_block(part)
        for part in parts
    ]
    last = message.content[-1]
    if isinstance(last, dict) and MARK in last:
        blocks[-1][MARK] = last[MARK]
    return blocks
