"""The tokenizer's interface, and how text becomes tokens.

Every piece of text is tokenised on its own, so that its tokens do not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sized
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from ragcache_integrations.core.prompt import TextEncoder, leading_special_tokens

__all__ = ["Encoder", "Tokenizer"]


class Tokenizer(Protocol):
    """The methods that are used of a tokenizer of Hugging Face transformers."""

    @property
    def unk_token_id(self) -> Any:
        """Id of the unknown token; ``None`` if there is none."""

    @property
    def bos_token(self) -> Any:
        """The token that begins every text; ``None`` if there is none."""

    @property
    def bos_token_id(self) -> Any:
        """Id of :attr:`bos_token`; ``None`` if there is none."""

    def encode(self, text: str, **kwargs: Any) -> Any:
        """Token ids; accepts ``add_special_tokens`` and ``split_special_tokens``."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """A conversation as text; accepts ``tokenize`` and ``add_generation_prompt``."""


class Encoder:
    """Turns texts into tokens. Thread-safe.

    Attributes:
        head: Tokens that the tokenizer puts before every text, such as ``<s>``; often none.
        blank: The placeholder in params: the tokenizer's unknown token, or a space if it has none
            (§3.3: white space does not change the meaning).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encoder = TextEncoder(tokenizer)
        self.head = tuple(leading_special_tokens(tokenizer))
        unknown = tokenizer.unk_token_id
        spaces = () if unknown is not None else (self.text(" ") or self.text("."))
        self.blank: int = spaces[0] if spaces else int(unknown or 0)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Encoder:
        """The encoder of a tokenizer; kept, because copying a large vocabulary takes a second."""
        key = (tokenizer.encode("a", add_special_tokens=True), _size(tokenizer))
        known = _ENCODERS.get(tokenizer)
        if known is None or known[0] != key:
            known = _ENCODERS[tokenizer] = (key, cls(tokenizer))
        return known[1]

    def text(self, text: str) -> tuple[int, ...]:
        """Tokens of a text; control tokens in it, such as ``<|user|>``, are plain text.

        Raises:
            ConfigurationError: It cannot be tokenised, for example because of a lone surrogate.
        """
        return tuple(self._encoder.literal(text))

    def markup(self, text: str) -> tuple[int, ...]:
        """Tokens of the output of a chat template, including control tokens.

        Raises:
            ConfigurationError: It cannot be tokenised.
        """
        return tuple(self._encoder.encode(text))


# By tokenizer, with a key that differs if the tokenizer was changed since.
_ENCODERS: MutableMapping[Tokenizer, tuple[object, Encoder]] = WeakKeyDictionary()


def _size(tokenizer: Tokenizer) -> int | None:
    return len(tokenizer) if isinstance(tokenizer, Sized) else None
