"""What is evaluated, whichever framework it comes from: a retriever and a model."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ragcache_integrations.adaptive import Asker
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.engine import EngineStats

__all__ = [
    "CACHE_FACTS",
    "CURRENT",
    "CachedState",
    "Model",
    "NoRetriever",
    "Noted",
    "Retrieved",
    "Retriever",
]


@dataclass(slots=True)
class Noted:
    """What is noted of a question while it is on its way.

    Attributes:
        hit: Whether the query cache answered; ``None`` where there is none.
        distance: On a hit, to the question that it was answered from.
        recall_bound: On a hit, the recall that is proven.
        shared: Whether the search of an equal question, asked at the same time, answered.
        embedding_seconds: Time spent embedding the question; ``None`` where that is not known.
    """

    hit: bool | None = None
    distance: float | None = None
    recall_bound: float | None = None
    shared: bool = False
    embedding_seconds: float | None = None


CACHE_FACTS = ("hit", "distance", "recall_bound", "shared", "embedding_seconds")
"""What our retrievers tell of their query cache, by the names of :class:`Noted`."""

CURRENT: ContextVar[Noted | None] = ContextVar("ragcache_evaluation_noted", default=None)
"""Where whoever is asked within a task or a thread of it notes what happens."""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """What was retrieved for a question.

    Attributes:
        documents: Best first.
        noted: What was noted meanwhile.
    """

    documents: tuple[PromptDocument, ...]
    noted: Noted = field(default_factory=Noted)


class Retriever(Protocol):
    """A retriever of either framework."""

    name: str
    """What it is, in a word or two."""

    async def retrieve(self, text: str) -> Retrieved:
        """Retrieve documents without blocking the event loop."""
        ...

    def reference(self, text: str) -> list[str] | None:
        """Ids of what the store itself returns; ``None`` where that is not known."""
        ...

    @property
    def has_state(self) -> bool:
        """Whether there is something to save: answers of the query cache."""
        ...

    def save(self, path: Path) -> None:
        """Write what is cached to a file."""
        ...

    def load(self, path: Path) -> None:
        """Replace what is cached by what :meth:`save` wrote."""
        ...

    def clear(self) -> None:
        """Forget what is cached."""
        ...


class Model(Protocol):
    """A model of either framework."""

    name: str
    """Path or name of the model."""

    random_weights: bool
    """Whether what it says is noise."""

    whole_answers: bool
    """Whether log-probabilities come with whole answers alone, and not with their pieces."""

    eager_first: bool
    """Whether the first piece of an answer is its first token, even if it has no text."""

    def asker(self, *, options: bool) -> Asker:
        """Who is asked; for the likeliest first tokens, where ``options`` are to be chosen."""
        ...

    def backend(self) -> object:
        """The engine or server that answers; ``None`` for a model that is not of this package."""
        ...

    def stats(self) -> EngineStats | None:
        """What the bundled engine did so far; ``None`` for another model."""
        ...

    def reset(self) -> None:
        """Empty the engine's KV cache, if there is one."""
        ...

    def close(self) -> None:
        """Give back what was made for this evaluation."""
        ...


class CachedState:
    """The state of a retriever's query cache, for retrievers of either framework.

    Args:
        cache: The retriever, if it has a query cache of ours; else ``None``.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    @property
    def has_state(self) -> bool:
        """Whether there is something to save."""
        return self._cache is not None and self._cache.stats().cache is not None

    def save(self, path: Path) -> None:
        """Write what is cached to a file."""
        if self._cache is not None:
            self._cache.save(path)

    def load(self, path: Path) -> None:
        """Replace what is cached by what :meth:`save` wrote."""
        if self._cache is not None:
            self._cache.load(path)

    def clear(self) -> None:
        """Forget what is cached."""
        if self._cache is not None:
            self._cache.clear()


class NoRetriever(CachedState):
    """Finds nothing: the model answers by itself."""

    name = "none"

    def __init__(self) -> None:
        super().__init__(None)

    async def retrieve(self, text: str) -> Retrieved:
        """Find nothing."""
        del text
        return Retrieved(())

    def reference(self, text: str) -> list[str] | None:
        """Nothing is known."""
        del text
        return None
