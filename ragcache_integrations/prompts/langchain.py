"""Messages for LangChain's models that complete text.

LangChain makes one string of the messages for such a model, and leaves out ``text-plain`` content
blocks: the model would never see the documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Self

from langchain_core.messages import BaseMessage, ChatMessage, HumanMessage, get_buffer_string
from langchain_core.prompt_values import ChatPromptValue, PromptValue
from langchain_core.utils.utils import LC_AUTO_PREFIX
from pydantic import SkipValidation
from typing_extensions import override

from ragcache_integrations.core.prompt import MarkedText, Message, Part, Prompt, PromptDocument
from ragcache_integrations.prompts.rendering import completion_text, merge_texts

__all__ = [
    "BlocksPromptValue",
    "CompletionPromptValue",
    "block_document",
    "message_content",
    "message_role",
    "part_block",
]


class CompletionPromptValue(PromptValue):
    """A text that keeps its documents on the way to the model.

    Attributes:
        text: The prompt.
    """

    text: Annotated[str, SkipValidation]  # pydantic would make a plain string of it

    @classmethod
    def of(cls, prompt: Prompt, *, is_ours: bool) -> Self:
        """Write a conversation as text.

        Args:
            prompt: The conversation.
            is_ours: Whether the model belongs to this package, and reads documents.
        """
        text = completion_text(prompt)
        return cls(text=text if is_ours else str(text))

    @override
    def to_string(self) -> str:
        return self.text

    @override
    def to_messages(self) -> list[BaseMessage]:
        return [HumanMessage(str(self.text))]


class BlocksPromptValue(ChatPromptValue):
    """Messages whose ``text-plain`` blocks are written out for a model that completes text."""

    @override
    def to_string(self) -> str:
        parts: list[Part] = []
        for message in self.messages:
            parts += ["\n"] if parts else []
            parts += _message_parts(message)
        return MarkedText(merge_texts(parts))


def message_content(message: Message, *, is_ours: bool) -> Any:
    """A message's content for a chat model.

    Args:
        message: The message.
        is_ours: Whether the model belongs to this package, and reads documents.
    """
    if not is_ours or all(isinstance(part, str) for part in message.parts):
        return message.text
    return [part_block(part) for part in message.parts]


def message_role(message: BaseMessage) -> str:
    """The role of a message, in the words of chat templates."""
    if isinstance(message, ChatMessage):
        return message.role
    return {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}.get(
        message.type, message.type
    )


def part_block(part: Part) -> dict[str, str]:
    """A content block of a text or a document."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "text-plain", "text": part.text, "id": part.id, "mime_type": "text/plain"}


def block_document(text: str, block: dict[str, Any]) -> PromptDocument:
    """The document of a ``text-plain`` block.

    Args:
        text: The block's text, which is not empty.
        block: The block.
    """
    block_id = str(block.get("id") or "")
    # LangChain makes up random ids; the text's hash is the same the next time.
    return PromptDocument(text, "" if block_id.startswith(LC_AUTO_PREFIX) else block_id)


def _message_parts(message: BaseMessage) -> Iterator[Part]:
    """The result of :func:`get_buffer_string` for a message, but with all its text."""
    if isinstance(message.content, str):
        yield get_buffer_string([message])
        return
    # LangChain writes the role before the content, and tool calls after it.
    around = get_buffer_string([message.model_copy(update={"content": ""})])
    role, colon, rest = around.partition(": ")
    yield role + colon
    for block in message.content:
        yield from _parts(block)
    yield rest


def _parts(block: str | dict[str, Any]) -> Iterator[Part]:
    if isinstance(block, str):
        yield block
        return
    kind, text = block.get("type"), block.get("text")
    if not isinstance(text, str) or not text:
        return
    if kind == "text":
        yield text
    if kind == "text-plain":
        yield block_document(text, block)
