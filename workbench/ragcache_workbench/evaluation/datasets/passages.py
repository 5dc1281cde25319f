"""Collects the documents of a data set that gives each question its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .base import EvalDocument
from .qmsum import CHUNK_CHARACTERS, chunked

__all__ = ["Passages", "answering", "pieces"]

_SENTENCE = re.compile(r"(?<=[.!?])\s+")


class Passages:
    """Documents in the order in which they come; the same text of two questions is one document.

    Args:
        prefix: Begins their ids.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._documents: dict[str, EvalDocument] = {}

    def add(self, text: str, title: str = "") -> str:
        """Add a document, unless it is there, and return its id.

        Args:
            text: Its text.
            title: A line before the text; empty for none.

        Raises:
            ValueError: It is no text, or empty.
        """
        if not isinstance(title, str) or not isinstance(text, str) or not text.strip():
            msg = f"a passage must be a text that is not empty, got {(title, text)!r:.60}"
            raise ValueError(msg)
        whole = f"{title}\n{text}" if title else text
        name = f"{self._prefix}-{len(self._documents)}"
        return self._documents.setdefault(whole, EvalDocument(name, whole)).id

    def add_long(self, text: str, title: str = "") -> dict[str, str]:
        """Add a long text in :func:`pieces`, and return these by their ids."""
        return {self.add(piece, title): piece for piece in pieces(text)}

    @property
    def documents(self) -> list[EvalDocument]:
        """The documents, each once."""
        return list(self._documents.values())


def pieces(text: str, size: int = CHUNK_CHARACTERS) -> list[str]:
    """Cut a long text between lines; a line that is too long, between sentences.

    Args:
        text: The text.
        size: A piece ends with the line or sentence that reaches this many characters.

    Returns:
        The pieces, none of which is empty. None is longer than twice ``size``.
    """
    units = [unit for line in text.split("\n") if line.strip() for unit in _units(line, size)]
    return ["\n".join(units[first:end]) for first, end in chunked(units, size)]


def _units(line: str, size: int) -> list[str]:
    if len(line) <= size:
        return [line]
    sentences = (sentence for sentence in _SENTENCE.split(line) if sentence.strip())
    return [
        part
        for sentence in sentences
        for start in range(0, len(sentence), size)
        if (part := sentence[start : start + size]).strip()
    ]


def answering(texts: dict[str, str], answers: Sequence[str]) -> tuple[str, ...]:
    """Ids of the texts that hold an answer word for word, in any case; all if none does.

    Args:
        texts: Texts by their ids.
        answers: Right answers.
    """
    lowered = [answer.lower() for answer in answers if answer.strip()]
    holding = tuple(name for name, text in texts.items() if _holds_any(text.lower(), lowered))
    return holding or tuple(texts)


def _holds_any(text: str, answers: Iterable[str]) -> bool:
    return any(answer in text for answer in answers)
