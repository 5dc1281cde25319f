"""Recognising retrieved documents in prompts that do not name theirs.

The usual chain formats its documents into one string, so that the model's class is never told
which they are. But they were retrieved in the same request a moment ago, and their texts stand in
the prompt as they are. So the frameworks' retrievers are listened to, what they found is
remembered for the rest of the request, and its prompts are searched for it; which request that
is, :mod:`~ragcache_integrations.prompts.recognition.requests` finds out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.prompt import Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.recognition.marking import mark_prompt

__all__ = ["MIN_LENGTH", "RetrievedDocuments"]

MIN_LENGTH = 64
"""Characters of the shortest text that is remembered: a shorter one fills no block of KV cache,
and might stand in a prompt by chance."""

CAPACITY = 4096
"""Documents that are remembered for one request."""

MAX_CHARACTERS = 1 << 24
"""Characters that they may have together."""

SNIPPET, STRIDE = 32, 16
"""Characters of a snippet, and from one place to the next at which a prompt is looked at.

Each text is indexed by the snippets that begin at ``STRIDE`` places in a row. Wherever it stands,
one of them begins at a multiple of ``STRIDE``, so that no other place needs to be looked at.
"""


class RetrievedDocuments:
    """Documents that were retrieved. Thread-safe; holds ids and texts, nothing else.

    A document is its text: retrieved again it is the same, under the id that it had first. An id
    that already stands for another text is not used for a second one; like a document that has
    none, that goes by the hash of its text. White space around a text does not belong to it, since
    chains strip it.

    Args:
        capacity: The most documents to remember. Those retrieved longest ago are forgotten first.
        max_characters: The most characters that they may have together.

    Raises:
        ConfigurationError: An argument is below 1.
    """

    def __init__(self, capacity: int = CAPACITY, max_characters: int = MAX_CHARACTERS) -> None:
        if capacity < 1 or max_characters < 1:
            msg = (
                "capacity and max_characters must be at least 1, "
                f"got {capacity} and {max_characters}"
            )
            raise ConfigurationError(msg)
        self._capacity = capacity
        self._max_characters = max_characters
        self._lock = make_lock()
        self._documents: OrderedDict[str, PromptDocument] = OrderedDict()  # by text
        self._ids: set[str] = set()
        self._characters = 0
        self._texts_of: dict[str, set[str]] = {}  # by snippet

    def __len__(self) -> int:
        return len(self._documents)

    def remember(self, documents: Iterable[tuple[object, object]]) -> None:
        """Remember what was retrieved.

        Args:
            documents: Ids and texts, as a retriever gave them: an id that is no string or empty
                counts as none, and what is no text, or shorter than :data:`MIN_LENGTH` or longer
                than all may be together, is passed over.
        """
        for name, given in documents:
            text = given.strip() if isinstance(given, str) else ""
            if MIN_LENGTH <= len(text) <= self._max_characters:
                with self._lock:
                    self._remember(name, text)

    def mark(self, prompt: Prompt) -> Prompt:
        """Mark what :meth:`find` finds, as if it had been given."""
        return mark_prompt(prompt, self.find(prompt))

    def find(self, prompt: Prompt) -> list[PromptDocument]:
        """Find the documents whose whole text stands verbatim in the prompt.

        They can be marked as if they had been given, see
        :func:`~ragcache_integrations.prompts.recognition.marking.mark_prompt`. Takes one look at
        every :data:`STRIDE` characters, however many documents are remembered.
        """
        texts = (part for part in _parts(prompt) if isinstance(part, str))
        return self._standing_in(texts)

    def _standing_in(self, texts: Iterable[str]) -> list[PromptDocument]:
        found: dict[str, PromptDocument] = {}
        with self._lock:
            known = self._texts_of
            for text in texts:
                for place in range(0, len(text) - SNIPPET + 1, STRIDE):
                    for candidate in known.get(text[place : place + SNIPPET], ()):
                        begin = place - _indexed_from(candidate)
                        if candidate not in found and _stands(candidate, text, begin):
                            found[candidate] = self._documents[candidate]
        return list(found.values())

    def _remember(self, name: object, text: str) -> None:
        if text in self._documents:
            self._documents.move_to_end(text)
            return
        own = name if isinstance(name, str) and name not in self._ids else ""
        document = PromptDocument(text, own)
        self._documents[text] = document
        self._ids.add(document.id)
        self._characters += len(text)
        for snippet in _snippets(text):
            self._texts_of.setdefault(snippet, set()).add(text)
        while len(self._documents) > self._capacity or self._characters > self._max_characters:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        text, document = self._documents.popitem(last=False)
        self._ids.discard(document.id)
        self._characters -= len(text)
        for snippet in _snippets(text):
            sharing = self._texts_of[snippet]
            sharing.discard(text)
            if not sharing:
                del self._texts_of[snippet]


def _indexed_from(text: str) -> int:
    """Where the first indexed snippet begins: amid the text, since many texts begin alike."""
    return (len(text) - (SNIPPET + STRIDE - 1)) // 2


def _snippets(text: str) -> set[str]:
    first = _indexed_from(text)
    return {text[start : start + SNIPPET] for start in range(first, first + STRIDE)}


def _stands(document: str, text: str, begin: int) -> bool:
    """Whether the document begins at ``begin`` or less than a stride before it."""
    earliest = max(0, begin - STRIDE + 1)
    return text.find(document, earliest, begin + len(document)) >= 0


def _parts(prompt: Prompt) -> Iterator[str | PromptDocument]:
    yield from prompt.parts
    for message in prompt.messages:
        yield from message.parts
