"""The interface of retrievers that are evaluated, for every framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
    "FrameworkRetriever",
    "NoRetriever",
    "Noted",
    "Retrieved",
    "Retriever",
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


class Retriever(ABC):
    """A retriever of either framework, with the state of its query cache.

    Args:
        name: A short name for reports.
        cache: The retriever, if it has a query cache of ours; else ``None``.
    """

    def __init__(self, name: str, cache: Any = None) -> None:
        self.name = name
        self._cache = cache

    @abstractmethod
    async def retrieve(self, text: str) -> Retrieved:
        """Retrieve documents without blocking the event loop."""

    @abstractmethod
    def reference(self, text: str) -> list[str] | None:
        """Ids of the documents that the store itself returns; ``None`` if unknown."""

    @property
    def has_state(self) -> bool:
        """Whether there are answers of a query cache to save."""
        return self._cache is not None and self._cache.stats().cache is not None

    def save(self, path: Path) -> None:
        """Write the query cache to a file."""
        if self._cache is not None:
            self._cache.save(path)

    def load(self, path: Path) -> None:
        """Replace the query cache by one that :meth:`save` wrote."""
        if self._cache is not None:
            self._cache.load(path)

    def clear(self) -> None:
        """Empty the query cache."""
        if self._cache is not None:
            self._cache.clear()


class FrameworkRetriever(Retriever):
    """What the adapters of both frameworks' retrievers have in common.

    Args:
        retriever: The retriever.
        reference: Returns the documents of the store itself; ``None`` if unknown.
        kind: The framework's class of retrievers.
        cached: Our class of retrievers with a query cache.
        expected: Describes ``kind``, for the message.

    Raises:
        ConfigurationError: ``retriever`` or ``reference`` is not of ``kind``.
    """

    def __init__(
        self, retriever: Any, reference: Any, *, kind: type, cached: type, expected: str
    ) -> None:
        for part in (retriever, reference):
            if part is not None and not isinstance(part, kind):
                msg = f"retriever must be one of {expected}, got {type(part).__name__}"
                raise ConfigurationError(msg)
        cache = retriever if isinstance(retriever, cached) else None
        super().__init__(type(retriever).__name__, cache)
        self._retriever = retriever
        self._reference = reference

    @abstractmethod
    async def _search(self, text: str, noted: Noted) -> Sequence[PromptDocument]:
        """Retrieve documents; the query cache's facts go into ``noted``."""

    @abstractmethod
    def _search_reference(self, text: str) -> Sequence[PromptDocument]:
        """Retrieve the documents of the store itself."""

    async def retrieve(self, text: str) -> Retrieved:
        """Retrieve documents without blocking the event loop."""
        noted = Noted()
        with context_value(CURRENT, noted):
            documents = await self._search(text, noted)
        return Retrieved(tuple(documents), noted)

    def reference(self, text: str) -> list[str] | None:
        """Ids of the documents that the store itself returns; ``None`` if unknown."""
        if self._reference is None:
            return None
        return [document.id for document in self._search_reference(text)]


class NoRetriever(Retriever):
    """Retrieves nothing: the model answers without documents."""

    def __init__(self) -> None:
        super().__init__("none")

    async def retrieve(self, text: str) -> Retrieved:  # noqa: ARG002 - the interface's
        """Retrieve nothing."""
        return Retrieved(())

    def reference(self, text: str) -> None:
        """There is no store."""
