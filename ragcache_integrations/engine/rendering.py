"""From prompts to tokens: each document tokenised by itself.

Tokenising a prompt as one string lets the tokens at a document's edges depend on its neighbours.
Here every document, and every stretch of text between documents, is tokenised on its own, so that
equal prefixes of documents are equal prefixes of tokens, whose KV caches can be reused.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ragcache_integrations.engine.prompt import Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["DocumentSpan", "PromptRenderer", "RenderedPrompt"]

MEMO_CHARACTERS = 16_000_000
"""How much text at most has its tokens remembered; as much again in bytes for the tokens."""
ENTRY_CHARACTERS = 300
"""What a text counts for beside its own: the objects around it, which many short ones have, too."""

# Private-use characters: no chat template and no real text contains them.
_OPEN, _CLOSE = "\ue000", "\ue001"


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """Where a document stands in a prompt: tokens ``start`` to ``end``, ``end`` not included."""

    id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt in tokens.

    Attributes:
        token_ids: The whole prompt.
        documents: The documents' spans, in order and without overlap.
    """

    token_ids: list[int]
    documents: tuple[DocumentSpan, ...]


class TokenMemo:
    """Remembers the tokens of the most recent documents, by tenant. Thread-safe.

    Args:
        tokenize: Tells the tokens of a text. Called without the lock, so that threads which meet
            a new text at once may each call it.
        max_characters: The most characters that the remembered texts have together, each counted
            with :data:`ENTRY_CHARACTERS` more.
    """

    def __init__(
        self, tokenize: Callable[[str], array[int]], max_characters: int = MEMO_CHARACTERS
    ) -> None:
        self._tokenize = tokenize
        self._max_characters = max_characters
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], array[int]] = OrderedDict()
        self._characters = 0

    def tokens(self, text: str, namespace: str) -> array[int]:
        """The tokens of a text, not to be changed.

        Raises:
            Exception: Whatever ``tokenize`` raises.
        """
        key = namespace, text
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        tokens = self._tokenize(text)
        with self._lock:
            if key not in self._known and _size(text) <= self._max_characters:
                self._known[key] = tokens
                self._characters += _size(text)
            while self._characters > self._max_characters:
                (_, oldest), _ = self._known.popitem(last=False)
                self._characters -= _size(oldest)
        return tokens


def _size(text: str) -> int:
    return len(text) + ENTRY_CHARACTERS


class PromptRenderer:
    """Renders prompts with a model's tokenizer and chat template. Thread-safe.

    Args:
        tokenizer: A transformers tokenizer.
        chat_template: Used instead of the tokenizer's own template.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, chat_template: str | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template or tokenizer.chat_template
        self._encode_text, self._encode_literal = _encoders(tokenizer)
        self._head = _leading_special_tokens(tokenizer)
        self._memo = TokenMemo(self._tokenize_document)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model brings a chat template; otherwise roles are written as plain text."""
        return bool(self._chat_template)

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a piece of text, no special token added.

        Raises:
            ConfigurationError: ``text`` is no string or holds a lone surrogate.
        """
        if not isinstance(text, str):
            msg = f"text must be a string, got {type(text).__name__}"
            raise ConfigurationError(msg)
        try:
            tokens: list[int] = self._encode_text(text)
        except (UnicodeEncodeError, TypeError) as error:
            raise _surrogate_error(text) from error
        return tokens

    def render(self, prompt: Prompt, namespace: str = "") -> RenderedPrompt:
        """Tokenise a prompt.

        Args:
            prompt: The prompt.
            namespace: The tenant. What is remembered of one is not looked at for another: how long
                it takes tells nobody what others have asked.

        Raises:
            ConfigurationError: The chat template refuses the messages, or the text holds a lone
                surrogate.
        """
        if not isinstance(prompt, Prompt):
            msg = f"the prompt must be a Prompt, got {type(prompt).__name__}"
            raise ConfigurationError(msg)
        if prompt.messages:
            pieces = self._apply_chat_template(prompt)
            token_ids: list[int] = []
        else:
            pieces = list(prompt.parts)
            token_ids = list(self._head)
        spans = []
        for piece in pieces:
            start = len(token_ids)
            if isinstance(piece, str):
                token_ids += self.tokenize(piece)
            else:
                token_ids += self._memo.tokens(piece.text, namespace)
                spans.append(DocumentSpan(piece.id, start, len(token_ids)))
        return RenderedPrompt(token_ids, tuple(spans))

    def _tokenize_document(self, text: str) -> array[int]:
        # Markup in a document is text: a retrieved page must not be able to open a chat turn.
        try:
            return array("i", self._encode_literal(text))
        except (UnicodeEncodeError, TypeError) as error:
            raise _surrogate_error(text) from error

    def _apply_chat_template(self, prompt: Prompt) -> list[str | PromptDocument]:
        """Run the template over placeholders and put the documents back between its pieces."""
        documents = prompt.documents
        numbers = itertools.count()
        conversation = [
            {
                "role": message.role,
                "content": "".join(
                    part if isinstance(part, str) else f"{_OPEN}{next(numbers)}{_CLOSE}"
                    for part in message.parts
                ),
            }
            for message in prompt.messages
        ]
        rendered = self._render_conversation(conversation)
        pieces: list[str | PromptDocument] = []
        for number, document in enumerate(documents):
            before, mark, rendered = rendered.partition(f"{_OPEN}{number}{_CLOSE}")
            if not mark:
                break
            pieces += [before, document]
        pieces.append(rendered)
        if any(isinstance(piece, str) and _OPEN in piece for piece in pieces) or len(pieces) != (
            2 * len(documents) + 1
        ):
            # The template drops, repeats or reorders parts, or the text holds the marks itself.
            plain = [{"role": m.role, "content": m.text} for m in prompt.messages]
            return [self._render_conversation(plain)]
        return [piece for piece in pieces if piece]

    def _render_conversation(self, conversation: list[dict[str, str]]) -> str:
        if not self.has_chat_template:
            turns = [f"{turn['role']}: {turn['content']}\n" for turn in conversation]
            return "".join(turns) + "assistant: "
        import jinja2  # noqa: PLC0415 - comes with the tokenizer

        try:
            return str(
                self._tokenizer.apply_chat_template(
                    conversation,
                    chat_template=self._chat_template,
                    tokenize=False,
                    add_generation_prompt=True,
                )
            )
        except jinja2.TemplateError as error:
            msg = f"the model's chat template refuses these messages: {error}"
            raise ConfigurationError(msg) from error


def _encoders(tokenizer: PreTrainedTokenizerBase) -> tuple[Any, Any]:
    """Functions ``str -> list[int]``: one reads markup such as ``<|user|>``, one does not."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer written in Python

        def text(string: str) -> list[int]:
            return list(tokenizer.encode(string, add_special_tokens=False))

        def literal(string: str) -> list[int]:
            return list(
                tokenizer.encode(string, add_special_tokens=False, split_special_tokens=True)
            )

        return text, literal
    # Copies: their settings are never changed again, so they may be used from many threads.
    from tokenizers import Tokenizer  # noqa: PLC0415 - comes with the tokenizer

    def encoder(*, literal: bool) -> Any:
        copy = Tokenizer.from_str(backend.to_str())
        copy.no_truncation()
        copy.no_padding()
        copy.encode_special_tokens = literal
        return lambda string: copy.encode(string, add_special_tokens=False).ids

    return encoder(literal=False), encoder(literal=True)


def _leading_special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What the tokenizer puts before a text, such as ``<s>``."""
    plain = tokenizer.encode("a", add_special_tokens=False)
    whole = tokenizer.encode("a", add_special_tokens=True)
    return list(whole[: whole.index(plain[0])]) if plain and plain[0] in whole else []


def _surrogate_error(text: str) -> ConfigurationError:
    place = next((i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
    if place is None:
        return ConfigurationError("the text cannot be tokenised")
    return ConfigurationError(
        f"the text holds a lone surrogate (U+{ord(text[place]):04X}) at position {place}: "
        "it is no valid Unicode; decode the source with errors='replace' or drop it"
    )
