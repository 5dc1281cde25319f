"""Recognises retrieved documents in prompts of plain text.

The usual chain formats its documents into one string, so that the model's class never gets them.
But they were retrieved a moment ago in the same request, and the prompt contains their texts
verbatim. So the results of the frameworks' retrievers are remembered for the rest of the request,
and its prompts are searched for them. Which request that is, is found out by
:mod:`~ragcache_integrations.prompts.recognition.requests`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.memo import Memo
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
        capacity = check_int("capacity", capacity, 1)
        self._max_characters = check_int("max_characters", max_characters, 1)
        self._lock = make_lock()
        self._documents: Memo[str, PromptDocument] = Memo(  # by text
            capacity, max_size=self._max_characters, size=lambda text, _: len(text)
        )
        self._ids: set[str] = set()
        self._indexed: dict[str, set[PromptDocument]] = {}  # by snippet

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
            for text in texts:
                for place in range(0, len(text) - SNIPPET + 1, STRIDE):
                    for candidate in self._indexed.get(text[place : place + SNIPPET], ()):
                        own = candidate.text
                        begin = place - _indexed_from(own)
                        if own not in documents and _contains(text, own, begin):
                            documents[own] = candidate
        return list(documents.values())

    def _remember(self, name: object, text: str) -> None:
        if text in self._documents:  # this makes it the most recent one
            return
        own = name if isinstance(name, str) and name not in self._ids else ""
        document = PromptDocument(text, own)
        self._ids.add(document.id)
        for snippet in _snippets(text):
            self._indexed.setdefault(snippet, set()).add(document)
        for _, forgotten in self._documents.put(text, document):
            self._ids.discard(forgotten.id)
            self._remove_from_index(forgotten)

    def _remove_from_index(self, document: PromptDocument) -> None:
        for snippet in _snippets(document.text):
            sharing = self._indexed[snippet]
            sharing.discard(document)
            if not sharing:
                del self._indexed[snippet]


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
