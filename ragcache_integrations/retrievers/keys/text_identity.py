"""When two questions whose embeddings are alike must not be taken for one another.

An embedding model distinguishes two texts only as far as it reads them. All stop at the end of
their window. A tokenizer gives one and the same token for everything that is not in its vocabulary,
such as most Chinese characters for an English model, and an English one spells out words of other
scripts letter by letter, and drops their accents. What answers the question may read more, as a
search for words does.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeGuard

import regex

from ragcache_integrations.core.texts import content_id
from ragcache_integrations.embeddings import MiniLM

from .question_guard import question_marks
from .question_words import TABLES, word_set

__all__ = ["TextIdentity", "TextWindow", "normalize_text", "window_of"]

logger = logging.getLogger(__name__)

TextWindow = Callable[[str], bool]
"""Whether an embedding model leaves out a part of a text, or can't read it."""

PROMPT_TOKENS = 32
"""Tokens of the window that are left for what a model's class writes before a question."""

# Where classes of frameworks keep the model; none of them is public.
_INNER = ("_model", "model", "_client", "client", "_embed_model", "underlying_embeddings")
_MAX_DEPTH = 4


_IMPERATIVES = word_set(TABLES["imperatives"])
_OPENERS = _IMPERATIVES | word_set(TABLES["openers"])
"""Words with which questions begin, in the languages that the guard knows."""

# Quotation marks, apostrophes between letters excepted: what they enclose is meant literally.
_LITERAL = re.compile(
    r"[\"`\u2018\u201a-\u201f\u00ab\u00bb\u2039\u203a\u300c-\u300f\uff02\uff07]"
    r"|(?<![^\W\d_])['\u2019]|['\u2019](?![^\W\d_])"
)
_TYPOGRAPHIC = re.compile(r"(?<=[^\W\d_])[\u2010\u2011\u2019](?=[^\W\d_])")
_OPENING = re.compile(r"([^\W\d_]+)(?:'[^\W\d_]+)?(?=\s)")
_QUESTION_END = re.compile(r"(?<=[^\W_])[?\uff1f\u061f]\Z")
_SENTENCE_END = re.compile(r"(?<=[^\W\d_])\u3002\Z|(?<![^\s])([^\W\d_]{4,})\.\Z")


def normalize_text(text: str) -> str:
    """Return a text without the differences that cannot carry meaning.

    These are:

    - Unicode's canonical form (NFC). Not NFKC, to which ``10²`` is ``102`` and the complex numbers
      are a set named C; so full-width letters count, too.
    - White space around the text, and at the ends of its lines. Inside, each run is a space, unless
      the text has several lines, tabs or quotation marks: code, tables and quotations keep theirs.
    - A typographic apostrophe or hyphen between letters, unless the text has quotation marks.
    - The capital of a word with which questions begin, such as *What* or *The*. The case of all
      other words counts: *5 MW* is not *5 mW*, and *turkey* not *Turkey*.
    - One question mark at the end, after a letter or a digit, and one full stop there, after a word
      of at least four letters. So those of ``??``, ``git add .``, ``5.`` and ``Co.`` count. ``¿``
      before the first letter.

    Args:
        text: A question, an answer, or a turn of a conversation.
    """
    text = unicodedata.normalize("NFC", text).replace("\r\n", "\n").strip()
    if _LITERAL.search(text) is None:
        text = _TYPOGRAPHIC.sub(lambda match: "'" if match[0] == "\u2019" else "-", text)
        if "\n" in text or "\t" in text:
            text = "\n".join(map(str.rstrip, text.split("\n")))
        else:
            text = " ".join(text.split())
    if text.startswith("\u00bf") and text[1:2].isalpha():
        text = text[1:]
    opening = _OPENING.match(text)
    word = "" if opening is None else opening[0]
    plain = word.lower() if word[1:].islower() else ""
    if plain in _OPENERS or plain.partition("'")[0] in _OPENERS:
        text = plain[0] + text[1:]
    if _QUESTION_END.search(text) is not None:
        return text if plain in _IMPERATIVES else text[:-1]
    return text if _SENTENCE_END.search(text) is None else text[:-1]


class TextIdentity:
    """Says which texts belong into the cache key, so that no other text shares the entry.

    Args:
        exact: Compare all texts, regardless of their embeddings.
        window: Returns whether the embedding model leaves out a part of a text; ``None`` where
            that is not known.
        guard: Compare the texts' marks, see :func:`.question_marks`.
    """

    def __init__(self, window: TextWindow | None, *, exact: bool, guard: bool = False) -> None:
        self._exact = exact
        self._window = window
        self._guard = guard

    def of(self, texts: tuple[str, ...], *, embedded: bool = True) -> Hashable | None:
        """Return the texts' marks, and their hashes where their embedding does not identify them.

        Args:
            texts: The texts.
            embedded: Whether the model has read them.
        """
        window = self._window if embedded else None
        hashes: tuple[str, ...] | None = None
        if self._exact or (window is not None and any(map(window, texts))):
            hashes = tuple(map(content_id, texts))
        return (hashes, tuple(map(question_marks, texts))) if self._guard else hashes


def window_of(model: object) -> TextWindow:
    """Return a function that returns whether a model leaves out a part of a text.

    That is its end, beyond the model's window, or what the model's tokenizer does not know: it
    gives an unknown token, takes words of a script apart into letters, or drops the accents of most
    words. The first such text is logged with the cause.

    Knows the offline embedding model, the models of sentence-transformers, and those that keep a
    tokenizer of Hugging Face as fastembed's do, in any class of a framework; other models are
    assumed to read everything. The model is looked for at the first
    call, which must come after a first embedding, since some models are loaded by that.
    """

    @functools.cache
    def reader() -> _Reader | None:
        return next(_readers(model, _MAX_DEPTH), None)

    def leaves_out(text: str) -> bool:
        found = reader()
        return found is not None and found.leaves_out(text)

    return leaves_out


class _Reader:
    """Says what a tokenizer makes of texts.

    Args:
        tokenizer: A ``tokenizers.Tokenizer``; ``None`` for one that is written in Python, of which
            nobody knows whether it may be used meanwhile.
        limit: The most tokens that the model reads.
    """

    def __init__(self, tokenizer: Any, limit: float) -> None:
        self._limit = limit
        self._tokenizer: Any = None
        self._warned = False
        if tokenizer is None:
            return
        # A copy: the model's own refuses to be used by two threads at once, and cuts what it reads.
        content = tokenizer.to_str()
        self._tokenizer = type(tokenizer).from_str(content)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        settings = json.loads(content)
        name, number = settings["model"].get("unk_token"), settings["model"].get("unk_id")
        self._unknown = number if name is None else self._tokenizer.token_to_id(name)
        # Where tokens are bytes, a letter of any script may be several of them.
        self._has_letters = "ByteLevel" not in content

    def leaves_out(self, text: str) -> bool:
        """Whether the model does not read a text as a whole."""
        if self._tokenizer is None:
            return len(text) > self._limit
        encoding = self._tokenizer.encode(text)
        cause = self._cause(text, encoding)
        if cause and not self._warned:
            self._warned = True
            logger.warning(
                "The embedding model cannot read a question: %s. It may take different questions "
                "of the kind for the same, so they are served only what was found for the same "
                "text. Use a multilingual embedding model for other languages than English",
                cause,
            )
        return bool(cause) or len(encoding.ids) > self._limit

    def _cause(self, text: str, encoding: Any) -> str:
        """Return in words why the model can't read a text; an empty text if it can."""
        if self._unknown in encoding.ids:
            begin, end = encoding.offsets[encoding.ids.index(self._unknown)]
            name = unicodedata.name(text[begin:end][:1] or " ", "a character without a name")
            return f"its tokenizer has no token for text that begins with {name}"
        if text.isascii() or not self._has_letters:
            return ""
        words = list(_FOREIGN_WORD.finditer(text))
        places = {place for word in words for place in range(*word.span())}
        pieces = sum(begin in places for begin, end in encoding.offsets if begin < end)
        if words and _letters("".join(word[0] for word in words)) < _LEAST_LETTERS * pieces:
            name = unicodedata.name(words[0][0][0], "a character without a name")
            return f"its tokenizer takes words apart that begin with {name}"
        normalizer = self._tokenizer.normalizer
        if normalizer is not None:
            own = _WORD.findall(text)
            read = [normalizer.normalize_str(word) for word in own]
            if 2 * sum(map(_has_more_accents, own, read)) > len(own):
                return "its tokenizer drops the accents of most words"
        return ""


_WORD = regex.compile(r"\p{L}[\p{L}\p{M}]*")
_FOREIGN_WORD = regex.compile(
    r"(?V1)[\p{L}--\p{Latin}--\p{Han}--\p{Hiragana}--\p{Katakana}]"
    r"[[\p{L}\p{M}]--\p{Latin}--\p{Han}--\p{Hiragana}--\p{Katakana}]+"
)
"""Words of alphabets: a single letter may be a symbol, such as that of the number pi."""
_LEAST_LETTERS = 4 / 3
"""Letters of a token, on average, from which on a vocabulary has words of a script. The bundled
model's has 0.7 to 1.1 of all scripts but the Latin one; multilingual models' have two or more."""


def _letters(text: str) -> int:
    return sum(map(str.isalpha, unicodedata.normalize("NFD", text)))


def _accents(text: str) -> int:
    return sum(map(bool, map(unicodedata.combining, unicodedata.normalize("NFD", text))))


def _has_more_accents(word: str, other: str) -> bool:
    return _accents(word) > _accents(other)


def _readers(model: object, depth: int) -> Iterator[_Reader]:
    """Yield what reads for a model, or for one of those within it."""
    if isinstance(model, MiniLM):
        yield _Reader(model.tokenizer, model.max_tokens)
    elif _is_sentence_transformer(model):
        tokenizer = getattr(model.tokenizer, "backend_tokenizer", None)
        yield _Reader(tokenizer, int(model.max_seq_length) - PROMPT_TOKENS)
    elif (tokenizer := _tokenizer_of(model)) is not None:
        window = (tokenizer.truncation or {}).get("max_length", math.inf)
        yield _Reader(tokenizer, window - PROMPT_TOKENS)
    elif depth:
        for name in _INNER:
            inner = _own(model, name)
            if inner is not None and not isinstance(inner, str):
                yield from _readers(inner, depth - 1)


def _own(model: object, name: str) -> Any:
    private = getattr(model, "__pydantic_private__", None) or {}
    return getattr(model, "__dict__", {}).get(name) or private.get(name)


def _is_sentence_transformer(model: Any) -> TypeGuard[Any]:
    if not type(model).__module__.startswith("sentence_transformers."):
        return False
    return isinstance(getattr(model, "max_seq_length", None), int)


def _tokenizer_of(model: object) -> Any:
    """Return the ``tokenizers.Tokenizer`` that a model keeps, or ``None``."""
    kept = _own(model, "tokenizer") or _own(model, "_tokenizer")
    found = getattr(kept, "backend_tokenizer", kept)
    return found if type(found).__module__.partition(".")[0] == "tokenizers" else None
