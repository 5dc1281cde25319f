"""Documents once in LlamaIndex's messages: an adapter, see :mod:`.repeats`."""

from __future__ import annotations

from collections.abc import Sequence

from llama_index.core.base.llms.types import CachePoint, ChatMessage, MessageRole, TextBlock

from ragcache_integrations.core.prompt import Part, PromptDocument, part_text

from .repeats import HELD, MIN_WORDS, Repeats, dump_parts, held_parts, is_in_full

__all__ = ["documents_once", "shown_text"]


def documents_once(
    messages: Sequence[ChatMessage], *, min_words: int = MIN_WORDS
) -> list[ChatMessage]:
    """Refer to what earlier documents of the same conversation say already.

    Documents are results of tools, and those of a ``RAGPromptTemplate`` with
    ``documents_once=True``. Applied to its own result it changes nothing; without the first
    messages of its result, what they said comes back in full.

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


def shown_text(message: ChatMessage) -> str:
    """A message's text, without anything between its blocks."""
    return "".join(_texts(message))


def _texts(message: ChatMessage) -> list[str]:
    return [block.text for block in message.blocks if isinstance(block, TextBlock)]


def _read(message: ChatMessage, repeats: Repeats) -> ChatMessage:
    texts = _texts(message)
    parts: tuple[Part, ...] | None = held_parts(message.additional_kwargs, "".join(texts))
    was_held = parts is not None
    if parts is None and message.role == MessageRole.TOOL:
        parts = tuple(PromptDocument(text) for text in texts if text)
    if not parts:
        return message
    # Marks for a provider's cache may follow; an image has no place among the parts, unless it was
    # added to a message that holds its parts already.
    marked = all(isinstance(block, CachePoint) for block in message.blocks[len(texts) :])
    others = [block for block in message.blocks if not isinstance(block, TextBlock)]
    whole = was_held or marked
    read = repeats.read(parts, in_full=is_in_full(message.additional_kwargs) or not whole)
    text = "".join(map(part_text, read))
    if not whole or text == "".join(texts):
        return message
    held = {**message.additional_kwargs, HELD: dump_parts(parts, read)}
    return message.model_copy(
        update={"blocks": [TextBlock(text=text), *others], "additional_kwargs": held}
    )
