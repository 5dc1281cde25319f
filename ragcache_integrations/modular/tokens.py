"""What is needed of a tokenizer, and how text becomes tokens.

Every piece of text is tokenised by itself, so that its tokens do not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sized
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from ragcache_integrations._lazy import require
from ragcache_integrations.errors import ConfigurationError

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
        self._text, self._markup = _encoders(tokenizer)
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
        """Tokens of text: what looks like a special token, such as ``<|user|>``, is not one.

        Raises:
            ConfigurationError: It cannot be tokenised, for example for a lone surrogate.
        """
        return self._encoded(self._text, text)

    def markup(self, text: str) -> tuple[int, ...]:
        """Tokens of what a chat template wrote, special tokens among them.

        Raises:
            ConfigurationError: It cannot be tokenised.
        """
        return self._encoded(self._markup, text)

    @staticmethod
    def _encoded(encode: Callable[[str], list[int]], text: str) -> tuple[int, ...]:
        try:
            return tuple(encode(text))
        except (UnicodeEncodeError, TypeError) as error:
            msg = f"the text {text[:40]!r} cannot be tokenised: is it valid Unicode?"
            raise ConfigurationError(msg) from error


# By tokenizer, with what tells that it was changed since.
_ENCODERS: MutableMapping[Tokenizer, tuple[object, Encoder]] = WeakKeyDictionary()


def _size(tokenizer: Tokenizer) -> int | None:
    return len(tokenizer) if isinstance(tokenizer, Sized) else None


def _encoders(
    tokenizer: Tokenizer,
) -> tuple[Callable[[str], list[int]], Callable[[str], list[int]]]:
    """Functions that leave special tokens in a text alone, and that read them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer written in Python

        def encoder(*, split: bool) -> Callable[[str], list[int]]:
            return lambda text: list(
                tokenizer.encode(text, add_special_tokens=False, split_special_tokens=split)
            )

        return encoder(split=True), encoder(split=False)
    # Copies, as this is a setting of the whole tokenizer, which other threads may be using.
    tokenizers = require("tokenizers", feature="modular attention reuse", extra="modular")
    serialised = backend.to_str()

    def copy(*, split: bool) -> Callable[[str], list[int]]:
        own = tokenizers.Tokenizer.from_str(serialised)
        own.no_truncation()
        own.no_padding()
        own.encode_special_tokens = split
        return lambda text: list(own.encode(text, add_special_tokens=False).ids)

    return copy(split=True), copy(split=False)


def _head(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The special tokens in front of a text."""
    plain = list(tokenizer.encode("a", add_special_tokens=False))
    whole = list(tokenizer.encode("a", add_special_tokens=True))
    return tuple(whole[: whole.index(plain[0])]) if plain and plain[0] in whole else ()
