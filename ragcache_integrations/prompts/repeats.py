"""Refers to text that a conversation has already, instead of saying it again.

A document that is retrieved in several turns is in the prompt several times; so do the overlap
of neighbouring chunks, and the same lines in two results of a tool. Here the messages of a prompt
are read in order. Text of a document that an earlier document has word for word is replaced
by a reference: ``[as above: "its first words"]`` for a whole document, with as few words as only
this one begins with, and ``[as above, from "the first words" to "its last words"]`` for a part.
If a reference could mean several texts, it begins later, at words that are there once.
What a message becomes depends on it and the messages before it alone, so that the beginning of a
growing conversation keeps its bytes, and with them its KV cache. If the history loses the message
that a reference names, the next prompt has the text in full again: there is nothing to refer to.

References are written, never read: no text of a document is taken for one. Nor can the model
confuse them: where a document imitates a reference, those after it have more brackets than it has.

What messages hold of their documents while a conversation keeps them.

A message whose documents are partly referred to must be whole again when what it refers to is cut
from the history. So it holds all of its parts, under a name in its ``additional_kwargs``, in a form
that JSON can hold. What cannot be read counts as missing: then the message stays as it is. So does
what a message holds whose text was changed since, such as redacted: nothing brings it back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.prompt import LiteralText, Part, Prompt, PromptDocument, part_text
from ragcache_integrations.core.texts import word_spans

__all__ = [
    "HELD",
    "IN_FULL",
    "MIN_WORDS",
    "Repeats",
    "documents_once",
    "dump_parts",
    "held_parts",
    "is_in_full",
    "whole_text",
]


HELD = "ragcache_parts"
IN_FULL = "in_full"


def dump_parts(parts: Sequence[Part], shown: Sequence[Part]) -> dict[str, Any]:
    """Parts in a form that JSON can hold.

    Args:
        parts: All parts of a message.
        shown: Those that its text is made of: the same, or some with references.
    """
    dumped = [
        {"text": part} if isinstance(part, str) else {"text": part.text, "id": part.id}
        for part in parts
    ]
    return {"parts": dumped, "shown": _digest("".join(map(part_text, shown)))}


def held_parts(extras: Mapping[str, Any], shown: str) -> tuple[Part, ...] | None:
    """The parts that a message holds; ``None`` if it holds none that can be read.

    Args:
        extras: The message's ``additional_kwargs``.
        shown: The message's text. Its parts are those of this text only.
    """
    held = extras.get(HELD)
    if not isinstance(held, Mapping) or held.get("shown") != _digest(shown):
        return None
    dumped = held.get("parts")
    if not isinstance(dumped, list) or not dumped:
        return None
    parts: list[Part] = []
    for item in dumped:
        text = item.get("text") if isinstance(item, Mapping) else None
        if not isinstance(text, str) or not text:
            return None
        name = item.get("id")
        parts.append(PromptDocument(text, name) if isinstance(name, str) else text)
    return tuple(parts)


def whole_text(extras: Mapping[str, Any], shown: str) -> str | None:
    """The whole text of a message that holds its parts; ``None`` for other messages."""
    parts = held_parts(extras, shown)
    return None if parts is None else "".join(map(part_text, parts))


def is_in_full(extras: Mapping[str, Any]) -> bool:
    """Whether a message asks to stay as it is."""
    return bool(extras.get(IN_FULL))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


MIN_WORDS = 40
"""Words of the shortest text that is referred to; a reference has ten to twenty tokens."""

LEAST_WORDS = 8
"""Words by which equal text is found, and the least value of ``min_words``."""

MAX_WORDS = 200_000
"""Words of a prompt that can be referred to; text after them is still compared with them."""

NAME_WORDS = range(4, 9)
"""How many of its first words may name a whole document. The fewer, the less a model mistakes the
reference for a text to answer from (``benchmarks/context.py``)."""

FIRST_WORDS, LAST_WORDS = 8, 4
QUOTE_CHARACTERS = 64
"""The most characters of the first words, and of the last, in a reference."""

# From the first of its brackets on, and without trying fewer of them: linear for any text.
_IMITATION = re.compile(r"(?<!\[)(\[++)\s*+as\s++above", re.IGNORECASE)
_QUOTE_BREAKS = re.compile(r'[\s"\[\]]+')

_Name = str | tuple[str, str]
"""The first words of a document, or the first and the last ones."""


@dataclass(frozen=True)
class _Text:
    """A document's text, cut into words."""

    text: str

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Where each word begins and ends."""
        return list(word_spans(self.text))

    @cached_property
    def words(self) -> list[str]:
        return [self.text[begin:end] for begin, end in self.spans]

    @cached_property
    def whole(self) -> str:
        """All words, without the white space around them."""
        return self.cut(0, len(self.words)) if self.words else ""

    def gap(self, number: int) -> str:
        """What is between a word and the next."""
        return self.text[self.spans[number][1] : self.spans[number + 1][0]]

    def cut(self, first: int, end: int) -> str:
        """The text from one word up to another, which it does not include."""
        return self.text[self.spans[first][0] : self.spans[end - 1][1]]

    def quote(self, first: int, end: int) -> str:
        """Words on one line, without what could end a quotation."""
        return _QUOTE_BREAKS.sub(" ", self.cut(first, end)[:QUOTE_CHARACTERS]).strip()

    def outer(self, first: int, end: int) -> tuple[str, str]:
        """The first of these words and the last, as a reference to them quotes them."""
        begins = self.quote(first, min(end, first + FIRST_WORDS))
        return begins, self.quote(max(first, end - LAST_WORDS), end)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Words of a document that are in the prompt in full, from ``first`` up to ``end``."""

    source: _Text
    first: int
    end: int


class Repeats:
    """Reads the messages of one prompt in order. Not thread-safe.

    It takes time and memory in proportion to the text, some microseconds a word.

    Args:
        min_words: Words of the shortest text that is referred to.

    Raises:
        ConfigurationError: ``min_words`` is below 8.
    """

    def __init__(self, min_words: int = MIN_WORDS) -> None:
        self._min_words = check_int("min_words", min_words, LEAST_WORDS)
        self._places: dict[int, tuple[_Stretch, int]] = {}  # by the hash of the words there
        self._several: set[int] = set()  # those hashes whose words are at several places
        self._whole: set[str] = set()  # documents in full
        self._names: dict[_Name, str | None] = {}  # which document has it; several: None
        self._room = MAX_WORDS
        self._brackets = 1

    def read(self, parts: Sequence[Part], *, in_full: bool = False) -> tuple[Part, ...]:
        """Read the next message.

        Args:
            parts: Its text and documents. Only documents are compared, and referred to.
            in_full: Whether the message stays as it is; later ones may still refer to it.

        Returns:
            The parts. A document that has text in common with earlier ones becomes several:
            references, which are text, and documents between them.
        """
        for part in parts:
            if isinstance(part, PromptDocument):
                imitations = _IMITATION.finditer(part.text)
                longest = max((len(match[1]) for match in imitations), default=0)
                self._brackets = max(self._brackets, longest + 1)
        read: list[Part] = []
        for part in parts:
            read += self._read(part, in_full) if isinstance(part, PromptDocument) else [part]
        return tuple(read)

    def _read(self, document: PromptDocument, in_full: bool) -> list[Part]:
        text = _Text(document.text)
        self._note_names(text)
        repeats = [] if in_full else list(self._find(text))
        bounds = [0, *(place for repeat in repeats for place in repeat), len(text.words)]
        for first, end in zip(bounds[::2], bounds[1::2], strict=True):
            self._remember(_Stretch(text, first, end))
        if not repeats:
            self._whole.add(text.whole)
            return [document]
        pieces: list[Part] = []
        position = 0
        for first, end in repeats:
            begin = text.spans[first][0]
            pieces += _piece(text.text[position:begin])
            # Brackets of the text before must not count as the reference's.
            space = "" if begin == 0 or text.text[begin - 1].isspace() else " "
            pieces.append(LiteralText(space + self._reference(text, first, end)))
            position = text.spans[end - 1][1]
        return [*pieces, *_piece(text.text[position:])]

    def _find(self, text: _Text) -> Iterator[tuple[int, int]]:
        """Find the words that an earlier document has, too, first to last."""
        words = text.words
        done = place = 0
        while place + LEAST_WORDS <= len(words):
            known = self._places.get(_hash(words, place))
            if known is not None:
                first, end = _common(text, place, done, *known)
                first = self._unmistakable(text, first, end)
                if self._saves(text, first, end):
                    yield first, end
                    done = place = end
                    continue
                # Parts of it would save less. Each of its words is compared once.
                place = max(place, end - LEAST_WORDS)
            place += 1

    def _saves(self, text: _Text, first: int, end: int) -> bool:
        """Whether a reference to these words is worth it."""
        if end - first < self._min_words:
            return False
        return len(text.cut(first, end)) > 2 * len(self._reference(text, first, end))

    def _remember(self, stretch: _Stretch) -> None:
        last = min(stretch.end - LEAST_WORDS + 1, stretch.first + self._room)
        for place in range(stretch.first, last):
            key, here = _hash(stretch.source.words, place), (stretch, place)
            if self._places.setdefault(key, here) is not here:
                self._several.add(key)
        self._room -= max(0, last - stretch.first)

    def _note_names(self, text: _Text) -> None:
        """Note all that a reference to a whole document may have of it."""
        counts = [count for count in NAME_WORDS if count <= len(text.words)]
        names: list[_Name] = [text.quote(0, count) for count in counts]
        if text.words:
            names.append(text.outer(0, len(text.words)))
        for name in names:
            known = self._names.setdefault(name, text.whole)
            self._names[name] = text.whole if known == text.whole else None

    def _unmistakable(self, text: _Text, first: int, end: int) -> int:
        """The first of some words from which on a reference can mean no other text.

        Words before it, such as the heading that all pages of a site have, are said again.
        """
        if (first, end) == (0, len(text.words)) and (
            self._name(text) or self._names.get(text.outer(first, end)) == text.whole
        ):
            return first
        places = range(first, end - LEAST_WORDS + 1)
        known = (place for place in places if _hash(text.words, place) not in self._several)
        return next(known, end)

    def _reference(self, text: _Text, first: int, end: int) -> str:
        name = self._name(text) if (first, end) == (0, len(text.words)) else ""
        words = f'as above: "{name}"'
        if not name:
            begins, ends = text.outer(first, end)
            words = f'as above, from "{begins}" to "{ends}"'
        return "[" * self._brackets + words + "]" * self._brackets

    def _name(self, text: _Text) -> str:
        """The fewest first words that no other document begins with.

        Returns:
            An empty text if no earlier document is this one as a whole and in full, or others begin
            alike.
        """
        if text.whole not in self._whole:
            return ""
        quotes = (text.quote(0, count) for count in NAME_WORDS)
        return next((each for each in quotes if self._names.get(each) == text.whole), "")


def documents_once(prompt: Prompt, *, min_words: int = MIN_WORDS) -> Prompt:
    """Refer to what earlier documents of the same conversation say already.

    Args:
        prompt: A conversation whose documents are marked. Results of tools count as documents.
        min_words: Words of the shortest text that is referred to.

    Raises:
        ConfigurationError: ``min_words`` is below 8.
    """
    repeats = Repeats(min_words)
    messages = []
    for message in prompt.messages:
        parts: Iterable[Part] = message.parts
        if message.role == "tool":
            parts = map(_as_document, parts)
        messages.append(message.with_parts(repeats.read(tuple(parts))))
    return replace(prompt, messages=tuple(messages))


def _as_document(part: Part) -> Part:
    is_text = isinstance(part, str) and part and not isinstance(part, LiteralText)
    return PromptDocument(part_text(part)) if is_text else part


def _hash(words: Sequence[str], place: int) -> int:
    return hash(tuple(words[place : place + LEAST_WORDS]))


def _common(text: _Text, place: int, done: int, known: _Stretch, other: int) -> tuple[int, int]:
    """The words around a place that a stretch has, too, with the same white space between them.

    Args:
        text: The text.
        place: A word of it.
        done: Its first word that may be referred to.
        known: The stretch.
        other: The word of the stretch's source that may be the same.

    Returns:
        The first word, and the one after the last; the same number if the words differ.
    """
    source, words = known.source, known.source.words
    if text.words[place] != words[other]:
        return place, place
    first, before = place, other
    while (
        first > done
        and before > known.first
        and text.words[first - 1] == words[before - 1]
        and text.gap(first - 1) == source.gap(before - 1)
    ):
        first, before = first - 1, before - 1
    end, after = place + 1, other + 1
    while (
        end < len(text.words)
        and after < known.end
        and text.words[end] == words[after]
        and text.gap(end - 1) == source.gap(after - 1)
    ):
        end, after = end + 1, after + 1
    return first, end


def _piece(text: str) -> list[Part]:
    if not text:
        return []
    return [PromptDocument(text) if text.strip() else text]
