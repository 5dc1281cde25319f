"""What is needed of a tokenizer, and how text becomes tokens.

Every piece of text is tokenised by itself, so that its tokens do not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sized
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from ragcache_integrations.core.text_encoder import TextEncoder

__all__ = ["Encoder", "Tokenizer"]


class Tokenizer(Protocol):
    """What is used of a tokenizer of Hugging Face transformers."""

    @property
    def unk_token_id(self) -> Any:
        """Id of the token for what is unknown, or ``None``."""

    @property
    def bos_token(self) -> Any:
        """What stands first in every text, or ``None``."""

    @property
    def bos_token_id(self) -> Any:
        """Its id, or ``None``."""

    def encode(self, text: str, **kwargs: Any) -> Any:
        """Token ids; knows ``add_special_tokens`` and ``split_special_tokens``."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """A conversation as text; knows ``tokenize`` and ``add_generation_prompt``."""


class Encoder:
    """Tokens of texts. Thread-safe.

    Attributes:
        head: What the tokenizer puts before every text, such as ``<s>``; often nothing.
        blank: The token that keeps a param's place: the tokenizer's unknown token, or a space where
            it has none (§3.3: white space changes no meaning).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encoder = TextEncoder(tokenizer)
        self.head = _head(tokenizer)
        unknown = tokenizer.unk_token_id
        spaces = () if unknown is not None else (self.text(" ") or self.text("."))
        self.blank: int = spaces[0] if spaces else int(unknown or 0)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Encoder:
        """The encoder of a tokenizer, made once: copying a large vocabulary takes a second."""
        key = (tokenizer.encode("a", add_special_tokens=True), _size(tokenizer))
        known = _ENCODERS.get(tokenizer)
        if known is None or known[0] != key:
            known = _ENCODERS[tokenizer] = (key, cls(tokenizer))
        return known[1]

    def text(self, text: str) -> tuple[int, ...]:
        """Tokens of text: what looks like markup, such as ``<|user|>``, is none.

        Raises:
            ConfigurationError: It cannot be tokenised, for example for a lone surrogate.
        """
        return tuple(self._encoder.literal(text))

    def markup(self, text: str) -> tuple[int, ...]:
        """Tokens of what a chat template wrote, markup among them.

        Raises:
            ConfigurationError: It cannot be tokenised.
        """
        return tuple(self._encoder.encode(text))


# By tokenizer, with what tells that it was changed since.
_ENCODERS: MutableMapping[Tokenizer, tuple[object, Encoder]] = WeakKeyDictionary()


def _size(tokenizer: Tokenizer) -> int | None:
    return len(tokenizer) if isinstance(tokenizer, Sized) else None


def _head(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The special tokens in front of a text."""
    plain = list(tokenizer.encode("a", add_special_tokens=False))
    whole = list(tokenizer.encode("a", add_special_tokens=True))
    return tuple(whole[: whole.index(plain[0])]) if plain and plain[0] in whole else ()
