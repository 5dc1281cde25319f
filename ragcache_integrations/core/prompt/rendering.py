"""Makes tokens of prompts, and tokenises each document separately.

If a prompt is tokenised as one string, the tokens at a document's edges depend on its neighbours.
Here every document, and every stretch of text between documents, is tokenised separately, so that
equal prefixes of documents are equal prefixes of tokens, whose KV caches can be reused.

In a conversation only the chat template's own text can be markup, such as ``<|user|>``: the text of
a user, a tool or a document cannot open a turn.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.memo import Memo

from .chat_template import ChatTemplate
from .prompt import LiteralText, Part, Prompt, PromptDocument
from .text_encoder import TemplateText, TextEncoder, leading_special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["DocumentSpan", "PromptRenderer", "RenderedPrompt", "Rendering"]

MEMO_CHARACTERS = 16_000_000
"""The most characters of the texts whose tokens are remembered; the tokens take as many bytes."""
ENTRY_CHARACTERS = 300
"""Characters that a text counts in addition to its own, for the memory of the objects around it."""


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """A document's tokens in a prompt: ``start`` to ``end``, ``end`` not included."""

    id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt in tokens.

    Attributes:
        token_ids: The whole prompt.
        documents: The documents' spans, in order and disjoint.
    """

    token_ids: list[int]
    documents: tuple[DocumentSpan, ...]


class TokenMemo:
    """Remembers the tokens of the most recent documents, by tenant. Thread-safe.

    Args:
        tokenize: Returns the tokens of a text. It is called without the lock, so several threads
            may call it for the same new text.
        max_characters: The most characters of the remembered texts together; each text counts
            :data:`ENTRY_CHARACTERS` more.
    """

    def __init__(
        self, tokenize: Callable[[str], array[int]], max_characters: int = MEMO_CHARACTERS
    ) -> None:
        self._tokenize = tokenize
        self._lock = make_lock()
        self._known: Memo[tuple[str, str], array[int]]
        self._known = Memo(max_size=max_characters, size=_size)

    def tokens(self, text: str, namespace: str) -> array[int]:
        """The tokens of a text, not to be changed.

        Raises:
            Exception: ``tokenize`` failed.
        """
        key = namespace, text
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        tokens = self._tokenize(text)
        with self._lock:
            self._known[key] = tokens
        return tokens


def _size(key: tuple[str, str], tokens: array[int]) -> int:
    del tokens
    return len(key[1]) + ENTRY_CHARACTERS


class PromptRenderer:
    """Renders prompts with a model's tokenizer and chat template. Thread-safe.

    Args:
        tokenizer: A transformers tokenizer.
        chat_template: The text of a template that replaces the tokenizer's; ``None`` for none.

    Attributes:
        encoder: Makes tokens of text.
        template: Renders conversations. It is false if there is no chat template; roles are written
            as plain text then.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, chat_template: str | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self.encoder = TextEncoder(tokenizer)
        self.template = ChatTemplate(tokenizer, self.encoder, chat_template)
        self._head = leading_special_tokens(tokenizer)
        self._memo = TokenMemo(lambda text: array("i", self.encoder.literal(text)))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, with the chat template that is in use."""
        if self._chat_template is None:
            return self._tokenizer
        tokenizer = copy.copy(self._tokenizer)
        tokenizer.chat_template = self._chat_template
        return tokenizer

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text in which markup counts, without additional special tokens.

        Raises:
            ConfigurationError: ``text`` is no string or has a lone surrogate.
        """
        check_type("text", text, str, "a string")
        return self.encoder.encode(text)

    def render(self, prompt: Prompt, namespace: str = "") -> RenderedPrompt:
        """Tokenise a prompt.

        In a conversation, contents are always text. Raw text may have markup, except in its
        documents and literal parts.

        Args:
            prompt: The prompt.
            namespace: Tenant. Tenants don't share memos of tokens, so that the time of a request
                doesn't reveal the documents of others.

        Raises:
            ConfigurationError: The chat template refuses the messages or changes their contents,
                or the text has a lone surrogate.
        """
        check_type("the prompt", prompt, Prompt, "a Prompt")
        if prompt.messages:
            pieces = self.template.apply(prompt.messages, prompt.tools)
            return self.render_conversation(pieces, namespace)
        return self._join([self._head, *map(self._raw, prompt.parts)], namespace)

    def render_conversation(
        self, pieces: Sequence[TemplateText | Part], namespace: str = ""
    ) -> RenderedPrompt:
        """Tokenise the result of a chat template.

        Args:
            pieces: The template's own text, with the contents in their places.
            namespace: As for :meth:`render`.

        Raises:
            ConfigurationError: The text cannot be tokenised.
        """
        stretches: list[list[TemplateText | str]] = [[]]
        documents: list[PromptDocument] = []
        for piece in pieces:
            if isinstance(piece, PromptDocument):
                documents.append(piece)
                stretches.append([])
            else:
                stretches[-1].append(piece)
        first, *others = self.encoder.mixed(stretches)
        joined: list[list[int] | PromptDocument] = [first]
        for document, token_ids in zip(documents, others, strict=True):
            joined += [document, token_ids]
        return self._join(joined, namespace)

    def _raw(self, part: Part) -> list[int] | PromptDocument:
        if isinstance(part, PromptDocument):
            return part
        return self.encoder.literal(part) if isinstance(part, LiteralText) else self.tokenize(part)

    def _join(self, pieces: Iterable[list[int] | PromptDocument], namespace: str) -> RenderedPrompt:
        """A prompt of tokens and of documents, whose tokens are remembered."""
        token_ids: list[int] = []
        spans: list[DocumentSpan] = []
        for piece in pieces:
            start = len(token_ids)
            if isinstance(piece, PromptDocument):
                token_ids += self._memo.tokens(piece.text, namespace)
                spans.append(DocumentSpan(piece.id, start, len(token_ids)))
            else:
                token_ids += piece
        return RenderedPrompt(token_ids, tuple(spans))


class Rendering:
    """The methods of an engine that its renderer answers."""

    _renderer: PromptRenderer

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer, with the chat template that is in use."""
        return self._renderer.tokenizer

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template; otherwise roles are written as plain text."""
        return bool(self._renderer.template)

    @property
    def supports_tools(self) -> bool:
        """Whether the model's chat template writes tools and their calls."""
        return self._renderer.template.writes_tools

    def render(self, prompt: Prompt) -> RenderedPrompt:
        """The prompt's tokens and the positions of its documents."""
        return self._renderer.render(prompt)

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens."""
        return self._renderer.tokenize(text)

    def count_tokens(self, text: str) -> int:
        """How many tokens a text has, without special tokens."""
        return len(self.tokenize(text))
