"""Small facts about texts: identifiers, words, and characters that UTF-8 cannot encode."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, TypeVar

import regex

__all__ = [
    "CHARACTERS_PER_TOKEN",
    "content_id",
    "estimate_tokens",
    "join_neighbours",
    "split_words",
    "token_weight",
    "without_surrogates",
    "word_spans",
]


Item = TypeVar("Item")


def join_neighbours(
    items: Iterable[Item], is_text: Callable[[Item], bool], join: Callable[[list[Item]], Item]
) -> list[Item]:
    """Join the texts that follow each other among other items.

    Args:
        items: The items.
        is_text: Whether an item may be joined with its neighbours.
        join: Makes one item of several; a text without such neighbours stays as it is.
    """
    joined: list[Item] = []
    for texts, run in groupby(items, is_text):
        found = list(run)
        joined += [join(found)] if texts and len(found) > 1 else found
    return joined


def content_id(text: str) -> str:
    """Hash of a document's text, the same on every machine: 32 hexadecimal digits.

    Lone surrogates are hashed as they are, so that every ``str`` has an id.
    """
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
    return digest.hexdigest()


def without_surrogates(text: str) -> str:
    """Join pairs of surrogates, and replace single ones by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


CHARACTERS_PER_TOKEN = 4
"""Of ASCII. Other characters have half a token for each of their bytes in UTF-8 beyond the first:
Cyrillic, Greek, Arabic and accented letters half a token, Chinese, Japanese, Korean and Thai one.

That is about what the tokenizers of GPT-4 and GPT-4o (cl100k and o200k) have on average in the
translations of Sphinx's messages. Tokens of a character are there 0.24 in English, 0.28 in French,
0.3 to 0.5 in Cyrillic, 0.6 in Arabic, 0.7 in Greek, Hindi and Korean, 0.8 in Japanese, 0.9 in
Chinese and Bengali, and 1.1 in Georgian. ``tests/core/test_words.py`` measures them on other
texts."""

# Scripts without spaces between words, with their punctuation. Unicode's rules for words (UAX #29)
# part most of their characters, since only a dictionary could tell their words.
_WIDE = (
    r"\u2e80-\u2fff\u3001-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
    r"\p{Line_Break=Complex_Context}"
)
_SPACE = r"\s\x1c-\x1f"  # as Python has it
# A character of these up to the next boundary; otherwise all up to white space or to one of these.
_WORD = regex.compile(rf"(?w)[{_WIDE}](?:\B[^{_SPACE}])*|[^{_SPACE}{_WIDE}]+")
_SPACED_WORD = re.compile(r"\S+")


def word_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each word of a text begins and ends.

    A word is what white space parts, with its punctuation. In scripts without spaces, such as
    Chinese, Japanese and Thai, it is a character, a run of katakana, or a letter with its vowel
    signs, as Unicode's rules for words have it.
    """
    pattern: Any = _SPACED_WORD if text.isascii() else _WORD
    return (match.span() for match in pattern.finditer(text))


def split_words(text: str) -> list[str]:
    """Return the words of a text, see :func:`word_spans`."""
    return text.split() if text.isascii() else [text[begin:end] for begin, end in word_spans(text)]


def token_weight(text: str) -> float:
    """Return about how many tokens a text has, with fractions of tokens."""
    plain = len(text.encode("ascii", "ignore"))
    beyond_first = len(text.encode("utf-8", "surrogatepass")) - len(text)
    return plain / CHARACTERS_PER_TOKEN + beyond_first / 2


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has, in any script; at least 1."""
    return max(1, math.ceil(token_weight(text)))
