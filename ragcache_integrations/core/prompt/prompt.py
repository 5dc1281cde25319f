"""Prompts for the engine: messages whose documents are marked.

Contents of messages, including documents, are text: markup in them (``<|user|>``) has no effect.
Raw text belongs to the application, so markup in it counts, except in documents and
:class:`LiteralText`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ragcache_integrations.core.checks import check_text, unknown_name
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError

from .tools import Tool, ToolCall, check_unique

__all__ = ["LiteralText", "MarkedText", "Message", "Part", "Prompt", "PromptDocument", "part_text"]

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class PromptDocument:
    """A retrieved document inside a prompt.

    Attributes:
        text: The document's text, exactly as in the prompt.
        id: Identifies the document across requests; by default a hash of the text.
    """

    text: str
    id: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not isinstance(self.id, str):
            msg = f"a document's text and id must be strings, got {self.text!r} and {self.id!r}"
            raise ConfigurationError(msg)
        if not self.text:
            raise ConfigurationError("a document's text must not be empty")
        if not self.id:
            object.__setattr__(self, "id", content_id(self.text))


class LiteralText(str):
    """Text in which nothing is markup, even in raw text, such as a user's question.

    Slices of it are literal, too; other operations return plain strings.
    """

    __slots__ = ()

    def __getitem__(self, key: Any) -> LiteralText:
        return LiteralText(super().__getitem__(key))


Part = str | PromptDocument
"""A part of a content: text or a document."""


class MarkedText(str):
    """Text that keeps its parts while frameworks pass it on as a string.

    :meth:`Prompt.raw` reads the parts, so that documents don't have to be searched for. Slicing and
    joining return plain strings.

    Attributes:
        parts: Text, literal or not, and documents, in order.
    """

    __slots__ = ("parts",)

    parts: tuple[Part, ...]

    def __new__(cls, parts: Iterable[Part]) -> Self:
        """Make the text of its parts."""
        kept = tuple(parts)
        text = super().__new__(cls, "".join(map(part_text, kept)))
        text.parts = kept
        return text

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.parts,)


def part_text(part: Part) -> str:
    """The text of a part."""
    return part if isinstance(part, str) else part.text


def _parts(content: Part | Iterable[Part]) -> tuple[Part, ...]:
    parts = (content,) if isinstance(content, str | PromptDocument) else tuple(content)
    for part in parts:
        if not isinstance(part, str | PromptDocument):
            msg = f"a prompt is made of str and PromptDocument, got {type(part).__name__}"
            raise ConfigurationError(msg)
    return parts


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """One message: a role and its content, in parts.

    Attributes:
        role: One of ``system``, ``user``, ``assistant``, ``tool``.
        parts: Plain text and documents, in order.
        tool_calls: The tools that this message of the assistant calls.
        tool_call_id: Id of the call whose result this is; empty for other messages.
        reasoning: What the assistant thought before it answered, for a server that wants it back.
        reasoning_field: The field of the message in which the server takes it.

    Raises:
        ConfigurationError: The role is unknown, a value is of the wrong type, or a message calls
            tools, or has thoughts, that is none of the assistant.
    """

    role: str
    parts: tuple[Part, ...]
    tool_calls: tuple[ToolCall, ...]
    tool_call_id: str
    reasoning: str
    reasoning_field: str

    def __init__(
        self,
        role: str,
        content: Part | Iterable[Part],
        *,
        tool_calls: Iterable[ToolCall] = (),
        tool_call_id: str = "",
        reasoning: str = "",
        reasoning_field: str = "",
    ) -> None:
        if role not in ROLES:
            raise ConfigurationError(unknown_name("role", str(role), ROLES))
        calls = tuple(tool_calls)
        if (calls or reasoning) and role != "assistant":
            msg = f"only messages of the assistant call tools or think, got the role {role!r}"
            raise ConfigurationError(msg)
        object.__setattr__(self, "role", role)
        object.__setattr__(self, "parts", _parts(content))
        object.__setattr__(self, "tool_calls", calls)
        object.__setattr__(self, "tool_call_id", check_text("tool_call_id", tool_call_id))
        object.__setattr__(self, "reasoning", check_text("reasoning", reasoning))
        object.__setattr__(self, "reasoning_field", check_text("reasoning_field", reasoning_field))

    def with_parts(self, parts: Iterable[Part]) -> Message:
        """The same message with its content in other parts."""
        other = copy.copy(self)
        object.__setattr__(other, "parts", _parts(parts))
        return other

    @property
    def text(self) -> str:
        """The content as one string."""
        return "".join(map(part_text, self.parts))


@dataclass(frozen=True, slots=True)
class Prompt:
    """The input of a model, either a conversation or raw text.

    Each part is tokenised separately, so that equal prefixes of documents are equal prefixes of
    tokens and their KV caches can be reused::

        Prompt.rag("Who discovered radium?", ["Marie Curie ...", "Radium is ..."])

    Attributes:
        messages: The conversation, which is rendered by the model's chat template.
        parts: Raw text, which is not. Exactly one of the two attributes is not empty.
        tools: Tools that the model may call, each with a name of its own; only in a conversation.
    """

    messages: tuple[Message, ...] = ()
    parts: tuple[Part, ...] = ()
    tools: tuple[Tool, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.messages) == bool(self.parts):
            raise ConfigurationError("a prompt needs either messages or parts, and not both")
        if self.tools:
            if self.parts:
                msg = "tools are for conversations: a prompt of raw text has no place for them"
                raise ConfigurationError(msg)
            check_unique(self.tools)
        if not any(document_or_text for document_or_text in self.all_parts):
            raise ConfigurationError("the prompt is empty")

    @classmethod
    def rag(
        cls,
        query: str,
        documents: Sequence[PromptDocument | str] = (),
        *,
        system: str = "",
        separator: str = "\n\n",
    ) -> Prompt:
        """The usual question over documents: system, documents, query.

        Args:
            query: The question.
            documents: The retrieved documents, in the order of the prompt.
            system: System text; empty for none.
            separator: Text after every document.
        """
        if not isinstance(query, str) or not query.strip():
            raise ConfigurationError(f"the query must be a non-empty string, got {query!r}")
        if isinstance(documents, str):
            msg = f"documents must be several, such as a list, got {documents!r:.60}"
            raise ConfigurationError(msg)
        content: list[Part] = []
        for document in documents:
            content += [PromptDocument(document) if isinstance(document, str) else document]
            content += [separator] if separator else []
        head = (Message("system", system),) if system else ()
        return cls(messages=(*head, Message("user", [*content, query])))

    @classmethod
    def raw(cls, content: Part | Iterable[Part]) -> Prompt:
        """Text that the model continues, without a chat template.

        Markup in it counts, except in documents and :class:`LiteralText`.

        Args:
            content: Text and documents, or a :class:`MarkedText`.
        """
        return cls(parts=content.parts if isinstance(content, MarkedText) else _parts(content))

    @property
    def documents(self) -> tuple[PromptDocument, ...]:
        """The documents in the order of the prompt."""
        return tuple(part for part in self.all_parts if isinstance(part, PromptDocument))

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """Text and documents of all messages, or of the raw text."""
        return self.parts or tuple(part for message in self.messages for part in message.parts)
