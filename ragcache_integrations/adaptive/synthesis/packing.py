"""Fits documents into the context window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ragcache_integrations.adaptive.asker import Asker
from ragcache_integrations.core.prompt import Prompt, PromptDocument
from ragcache_integrations.errors import PromptTooLongError

from .prompts import SEPARATOR
from .settings import SynthesisSettings

__all__ = ["Packed", "Window"]


@dataclass(frozen=True, slots=True)
class Packed:
    """Documents that fit.

    Attributes:
        places: Position of each in the sequence that was packed.
        documents: The documents; one that was cut has another id, since its text differs.
        shortened: Positions of those that were cut.
    """

    places: tuple[int, ...]
    documents: tuple[PromptDocument, ...]
    shortened: tuple[int, ...] = ()


class Window:
    """The room that a model's context window leaves for documents.

    Args:
        asker: The model, which counts.
        settings: The window and the length of answers, if they are not the model's own.
    """

    def __init__(self, asker: Asker, settings: SynthesisSettings) -> None:
        self._asker = asker
        limits = asker.limits()
        self._size = settings.context_window or limits.context_window
        self._answer = settings.max_tokens or limits.answer_tokens

    @property
    def limited(self) -> bool:
        """Whether the window's size is known."""
        return self._size is not None

    def room(self, frame: Prompt, answer_tokens: int | None = None) -> int:
        """Return the number of tokens that documents may take.

        Args:
            frame: The prompt without its documents.
            answer_tokens: Limit of the answer in tokens; ``None`` for that of final answers.

        Raises:
            PromptTooLongError: Question and instructions alone fill the window.
        """
        assert self._size is not None  # noqa: S101 - for type checkers: called only if limited
        allowed = self._size - (self._answer if answer_tokens is None else answer_tokens)
        taken = self._asker.count_prompt(frame)
        if taken + self.separator >= allowed:
            raise _no_room(taken, max(allowed, 0), self._size)
        return allowed - taken

    def pack(self, documents: Sequence[PromptDocument], frame: Prompt) -> Packed:
        """Choose the documents of one prompt: each that fits in addition to those before it.

        If no document fits, the first is cut.

        Args:
            documents: The documents, most relevant first.
            frame: The prompt without its documents.

        Raises:
            PromptTooLongError: There is no room for documents.
        """
        if not self.limited:
            return Packed(tuple(range(len(documents))), tuple(documents))
        left = self.room(frame)
        places = []
        for place, document in enumerate(documents):
            taken = self.taken_by(document)
            if taken <= left:
                left -= taken
                places.append(place)
        if not places and documents:
            cut = self.cut(documents[0], left)
            return Packed((0,), (cut,), (0,))
        return Packed(tuple(places), tuple(documents[place] for place in places))

    def pack_each(
        self, documents: Sequence[PromptDocument], frame: Prompt, answer_tokens: int | None = None
    ) -> Packed:
        """Choose the documents of prompts with one document each: all, cut if they are too long.

        Args:
            documents: The documents, most relevant first.
            frame: The prompt without its document.
            answer_tokens: Limit of the answer in tokens; ``None`` for that of final answers.

        Raises:
            PromptTooLongError: There is no room for documents.
        """
        if not self.limited:
            return Packed(tuple(range(len(documents))), tuple(documents))
        room = self.room(frame, answer_tokens)
        shortened = tuple(
            place for place, document in enumerate(documents) if self.taken_by(document) > room
        )
        cut = [
            self.cut(document, room) if place in shortened else document
            for place, document in enumerate(documents)
        ]
        return Packed(tuple(range(len(cut))), tuple(cut), shortened)

    def taken_by(self, document: PromptDocument) -> int:
        """Tokens of a document, including the separator after it."""
        return self._asker.count_tokens(document.text) + self.separator

    @cached_property
    def separator(self) -> int:
        """Tokens of the separator after each document."""
        return self._asker.count_tokens(SEPARATOR)

    def cut(self, document: PromptDocument, room: int) -> PromptDocument:
        """Cut a document to a number of tokens.

        Args:
            document: The document.
            room: The most tokens that it may take, including the separator after it.

        Raises:
            PromptTooLongError: Not even one character fits.
        """
        text = longest_prefix(
            document.text, lambda text: self._asker.count_tokens(text) + self.separator <= room
        )
        if not text:
            raise _no_room(self.taken_by(document), room, self._size)
        return PromptDocument(text)


def _no_room(taken: int, allowed: int, size: int | None) -> PromptTooLongError:
    detail = (
        f"a context window of {size} tokens has no room for documents besides the instructions, "
        "the question and the answer"
    )
    return PromptTooLongError(taken, allowed, detail)


def longest_prefix(text: str, fits: Callable[[str], bool]) -> str:
    """Find the longest beginning of a text that fits, to within a word where there are words."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(text[:middle]):
            low = middle
        else:
            high = middle - 1
    kept = text[:low]
    if low < len(text) and not text[low].isspace():
        whole_words = kept.rpartition(" ")[0]
        kept = whole_words if whole_words and fits(whole_words) else kept
    return kept.rstrip()
