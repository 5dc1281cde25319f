"""Counting the tokens of a model that runs elsewhere, with the best tokenizer at hand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.errors import ConfigurationError

__all__ = ["TokenCounter", "require_unicode"]

logger = logging.getLogger(__name__)

BYTES_PER_TOKEN = 4
FALLBACK_ENCODING = "o200k_base"

Encode = Callable[[str], list[int]]


def require_unicode(text: str) -> str:
    """Pass a text on if it can be encoded.

    Raises:
        ConfigurationError: It is no string, or holds a lone surrogate.
    """
    check_type("text", text, str, "a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"the text holds a lone surrogate (U+{ord(text[error.start]):04X}) at position "
            f"{error.start}: it is no valid Unicode; decode its source with errors='replace'"
        ) from error
    return text


class TokenCounter:
    """Counts with the model's own tokenizer, else with tiktoken, else by length.

    tiktoken knows the encodings of OpenAI's models; for others its newest one is an approximation.
    It fetches an encoding when it is first used. If it can't, or is not installed, one token is
    assumed for four bytes of UTF-8. A warning is logged once if counts are not exact.

    Args:
        model: Name of the model, by which tiktoken picks the encoding.
        tokenizer: Path or hub name of the model's own tokenizer, if known.
    """

    def __init__(self, model: str, tokenizer: str | None = None) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._lock = make_lock()
        self._loaded = False
        self._encode: Encode | None = None

    def count(self, text: str) -> int:
        """Count the tokens of a text, without special tokens.

        Raises:
            ConfigurationError: The tokenizer asked for can't be loaded, or the text is no valid
                Unicode.
            MissingExtraError: A tokenizer was asked for and ``transformers`` is not installed.
        """
        encode = self._encoder()
        if encode is not None:
            return len(encode(require_unicode(text)))
        return -(-len(require_unicode(text).encode()) // BYTES_PER_TOKEN)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens.

        Raises:
            ConfigurationError: No tokenizer is at hand, the one asked for can't be loaded, or
                the text is no valid Unicode.
            MissingExtraError: A tokenizer was asked for and ``transformers`` is not installed.
        """
        encode = self._encoder()
        if encode is None:
            msg = f"no tokenizer is at hand for {self._model!r}: name its own with tokenizer="
            raise ConfigurationError(msg)
        return encode(require_unicode(text))

    def _encoder(self) -> Encode | None:
        with self._lock:
            if not self._loaded:
                self._encode = (
                    self._tiktoken() if self._tokenizer is None else self._own(self._tokenizer)
                )
                self._loaded = True
            return self._encode

    def _own(self, name: str) -> Encode:
        transformers = require(
            "transformers", feature="counting tokens with tokenizer=", extra="tokenizer"
        )
        try:
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError) as error:
            msg = f"no tokenizer can be loaded from {name!r}: {error}"
            raise ConfigurationError(msg) from error

        def encode(text: str) -> list[int]:
            with self._lock:  # it keeps settings between calls, so one at a time
                return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))

        return encode

    def _tiktoken(self) -> Encode | None:
        try:
            tiktoken = require("tiktoken", feature="counting tokens", extra="openai")
            try:
                encoding: Any = tiktoken.encoding_for_model(self._model)
            except KeyError:
                encoding = tiktoken.get_encoding(FALLBACK_ENCODING)
                logger.warning(
                    "tiktoken does not know %r: its tokens are counted as %s would, "
                    "approximately; name the model's own with tokenizer=",
                    self._model,
                    FALLBACK_ENCODING,
                )
        except (ImportError, OSError, ValueError) as error:
            logger.warning(
                "tiktoken can't give an encoding for %r (%s: %s): tokens are counted as a "
                "%dth of the text's bytes; name the model's own with tokenizer=",
                self._model,
                type(error).__name__,
                error,
                BYTES_PER_TOKEN,
            )
            return None
        return lambda text: list(encoding.encode(text, disallowed_special=()))
