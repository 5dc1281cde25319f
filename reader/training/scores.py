"""How good answers are. Where the reader is trained, the toolkit itself is not installed."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

__all__ = ["f1", "not_found"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def f1(answer: str, references: Iterable[str]) -> float:
    """SQuAD's F1 with the reference that has most in common, as the toolkit computes it."""
    return max(_f1(_words(answer), _words(one)) for one in references)


def not_found(answer: str) -> bool:
    """Whether it says that the documents do not tell."""
    return "not in the document" in answer.lower()


def _words(text: str) -> list[str]:
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split()


def _f1(given: list[str], right: list[str]) -> float:
    common = sum((Counter(given) & Counter(right)).values())
    return 2 * common / (len(given) + len(right)) if common else 0.0
