"""The interface of retrievers that are evaluated, for every framework."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ragcache_integrations.core.blocks import context_value
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "CACHE_FACTS",
    "CURRENT",
    "Noted",
    "Retrieved",
    "Retriever",
    "check_retrievers",
    "no_retriever",
    "noting_embedding",
]


@dataclass(slots=True)
class Noted:
    """What hooks record while a question is being answered.

    Attributes:
        hit: Whether the query cache answered; ``None`` if there is none.
        distance: On a hit, the distance to the question whose entry answered.
        recall_bound: On a hit, the recall that is proven, 0 to 1.
        shared: Whether a concurrent search for the same question answered.
        embedding_seconds: Seconds spent embedding the question; ``None`` if unknown.
    """

    hit: bool | None = None
    distance: float | None = None
    recall_bound: float | None = None
    shared: bool = False
    embedding_seconds: float | None = None


CACHE_FACTS = tuple(fact.name for fact in fields(Noted))
"""Facts that our retrievers report of their query cache."""

CURRENT: ContextVar[Noted | None] = ContextVar("ragcache_evaluation_noted", default=None)
"""Where hooks record facts of the question that the current task or thread is answering."""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The documents retrieved for a question.

    Attributes:
        documents: The documents, best first.
        noted: What hooks recorded meanwhile.
    """

    documents: tuple[PromptDocument, ...]
    noted: Noted = field(default_factory=Noted)


@dataclass(frozen=True, slots=True)
class Retriever:
    """A retriever of either framework, with the state of its query cache.

    Attributes:
        name: A short name for reports.
        search: Retrieves documents; what hooks do not find in :data:`CURRENT` is put into the
            object that it is handed.
        search_store: Retrieves the documents of the store itself; ``None`` if unknown.
        cache: The retriever, if it has a query cache of ours; else ``None``.
    """

    name: str
    search: Callable[[str, Noted], Awaitable[Sequence[PromptDocument]]]
    search_store: Callable[[str], Sequence[PromptDocument]] | None = None
    cache: Any = None

    async def retrieve(self, text: str) -> Retrieved:
        """Retrieve documents without blocking the event loop."""
        noted = Noted()
        with context_value(CURRENT, noted):
            documents = await self.search(text, noted)
        return Retrieved(tuple(documents), noted)

    def reference(self, text: str) -> list[str] | None:
        """Ids of the documents that the store itself returns; ``None`` if unknown."""
        if self.search_store is None:
            return None
        return [document.id for document in self.search_store(text)]

    @property
    def has_state(self) -> bool:
        """Whether there are answers of a query cache to save."""
        return self.cache is not None and self.cache.stats().cache is not None

    def save(self, path: Path) -> None:
        """Write the query cache to a file."""
        if self.cache is not None:
            self.cache.save(path)

    def load(self, path: Path) -> None:
        """Replace the query cache by one that :meth:`save` wrote."""
        if self.cache is not None:
            self.cache.load(path)

    def clear(self) -> None:
        """Empty the query cache."""
        if self.cache is not None:
            self.cache.clear()


def no_retriever() -> Retriever:
    """Retrieves nothing: the model answers without documents."""

    async def search(_text: str, _noted: Noted) -> Sequence[PromptDocument]:
        return ()

    return Retriever("none", search)


def check_retrievers(kind: type, expected: str, *retrievers: Any) -> None:
    """Check that retrievers are those of a framework; ``None`` is one that is not there.

    Raises:
        ConfigurationError: One is not of ``kind``, which ``expected`` describes.
    """
    for part in retrievers:
        if part is not None and not isinstance(part, kind):
            msg = f"retriever must be one of {expected}, got {type(part).__name__}"
            raise ConfigurationError(msg)


@contextmanager
def noting_embedding() -> Iterator[None]:
    """Add the block's time to the record of the question that this context is answering, if any."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        noted = CURRENT.get()
        if noted is not None:
            seconds = time.perf_counter() - begun
            noted.embedding_seconds = (noted.embedding_seconds or 0.0) + seconds
