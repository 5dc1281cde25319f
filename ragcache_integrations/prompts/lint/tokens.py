"""Counts tokens without a tokenizer, and shortens texts for messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import regex

from ragcache_integrations.core.texts import token_weight

__all__ = ["CountTokens", "approximate_tokens", "common_length", "excerpt", "printable"]

CountTokens = Callable[[str], int]

_TOKEN = re.compile(r"[^\W\d_]{1,8}|\d{1,3}|_+|[^\w\s]+|\n+")
_SCRIPTS_TOKEN = regex.compile(
    r"\p{Latin}[\p{Latin}\p{M}]{0,7}|\d{1,3}|_+|[^\w\s\p{M}]+|\n+|(?V1)(?P<other>[\w--\p{Latin}]+)"
)

_EXCERPT = 48
"""The most characters of a text that a message shows."""


def approximate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text in the tokenizers of current models.

    A token is a word or up to eight letters of it, up to three digits, a run of punctuation, or a
    run of line ends. Words of other scripts than the Latin one have as many as
    :func:`~ragcache_integrations.core.texts.token_weight` says.
    """
    if text.isascii():
        return sum(1 for _ in _TOKEN.finditer(text))
    others = [match["other"] for match in _SCRIPTS_TOKEN.finditer(text)]
    return others.count(None) + round(token_weight("".join(filter(None, others))))


def common_length(first: Sequence[object], second: Sequence[object]) -> int:
    """Length of the longest common prefix of two sequences."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def excerpt(text: str) -> str:
    """The beginning of a text, on one line and in quotes."""
    line = printable(" ".join(text.split()))
    return f'"{line}"' if len(line) <= _EXCERPT else f'"{line[: _EXCERPT - 3]}..."'


def printable(text: str) -> str:
    """The text without characters that control a terminal, shortened for a message."""
    text = text[: _EXCERPT + 1]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
