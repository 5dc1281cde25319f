"""Recognises retrieved documents in prompts of plain text.

The usual chain formats its documents into one string, so that the model's class never gets them.
But they were retrieved a moment ago in the same request, and the prompt contains their texts
verbatim. So the results of the frameworks' retrievers are remembered for the rest of the request,
and its prompts are searched for them. Which request that is, is found out by
:mod:`~ragcache_integrations.prompts.recognition.requests`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.prompt import Prompt, PromptDocument

from .marking import mark_prompt

__all__ = ["MIN_LENGTH", "RetrievedDocuments"]

MIN_LENGTH = 64
"""Characters of the shortest text that is remembered: a shorter one fills no block of KV cache,
and might occur in a prompt by chance."""

CAPACITY = 4096
"""The most documents that are remembered for one request."""

MAX_CHARACTERS = 1 << 24
"""The most characters of these documents together."""

SNIPPET, STRIDE = 32, 16
"""Characters of a snippet, and distance between the places of a prompt that are looked up.

Each text is indexed by the snippets that begin at ``STRIDE`` consecutive places. In every prompt
that contains the text, one of them begins at a multiple of ``STRIDE``, so that no other places have
to be looked up.
"""


class RetrievedDocuments:
    """Documents that were retrieved. Thread-safe; it holds ids and texts, nothing else.

    Documents are identified by their texts: one that is retrieved again keeps its first id. The id
    of another text is not used twice; the second document gets the hash of its text, like those
    without an id. White space around a text is removed, because chains strip it.

    Args:
        capacity: The most documents to remember. The least recently retrieved are forgotten first.
        max_characters: The most characters of all documents together.

    Raises:
        ConfigurationError: An argument is below 1.
    """

    def __init__(self, capacity: int = CAPACITY, max_characters: int = MAX_CHARACTERS) -> None:
        self._capacity = check_int("capacity", capacity, 1)
        self._max_characters = check_int("max_characters", max_characters, 1)
        self._lock = make_lock()
        self._documents: OrderedDict[str, PromptDocument] = OrderedDict()  # by text
        self._ids: set[str] = set()
        self._characters = 0
        self._texts_of: dict[str, set[str]] = {}  # by snippet

    def __len__(self) -> int:
        return len(self._documents)

    def remember(self, documents: Iterable[tuple[object, object]]) -> None:
        """Remember the results of a retriever.

        Args:
            documents: Ids and texts, as the retriever returned them. An id that is empty or no
                string counts as missing. Values that are no texts, and texts shorter than
                :data:`MIN_LENGTH` or longer than ``max_characters``, are ignored.
        """
        for name, value in documents:
            text = value.strip() if isinstance(value, str) else ""
            if MIN_LENGTH <= len(text) <= self._max_characters:
                with self._lock:
                    self._remember(name, text)

    def mark(self, prompt: Prompt) -> Prompt:
        """Mark the documents that :meth:`find` finds."""
        return mark_prompt(prompt, self.find(prompt))

    def find(self, prompt: Prompt) -> list[PromptDocument]:
        """Find the documents whose whole text the prompt contains verbatim.

        It takes one look-up for every :data:`STRIDE` characters, regardless of the number of
        documents.
        """
        texts = (part for part in _parts(prompt) if isinstance(part, str))
        documents: dict[str, PromptDocument] = {}
        with self._lock:
            known = self._texts_of
            for text in texts:
                for place in range(0, len(text) - SNIPPET + 1, STRIDE):
                    for candidate in known.get(text[place : place + SNIPPET], ()):
                        begin = place - _indexed_from(candidate)
                        if candidate not in documents and _contains(text, candidate, begin):
                            documents[candidate] = self._documents[candidate]
        return list(documents.values())

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
    """Index of the first snippet: in the middle, since many texts begin with the same words."""
    return (len(text) - (SNIPPET + STRIDE - 1)) // 2


def _snippets(text: str) -> set[str]:
    first = _indexed_from(text)
    return {text[start : start + SNIPPET] for start in range(first, first + STRIDE)}


def _contains(text: str, document: str, begin: int) -> bool:
    """Whether the document begins at ``begin`` or less than a stride before it."""
    earliest = max(0, begin - STRIDE + 1)
    return text.find(document, earliest, begin + len(document)) >= 0


def _parts(prompt: Prompt) -> Iterator[str | PromptDocument]:
    yield from prompt.parts
    for message in prompt.messages:
        yield from message.parts
