"""What speculation takes and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, Unpack

from ragcache_integrations.core.generation import CallOptions
from ragcache_integrations.engine import EngineLoad, Generation, Prompt, SamplingOptions

__all__ = [
    "Document",
    "EventKind",
    "SpeculationEvent",
    "SpeculationReport",
    "SpeculativeAnswer",
    "SpeculativeEngine",
    "SpeculatorStats",
    "StageOfDocuments",
]

Document = TypeVar("Document")

EventKind = Literal[
    "stage",
    "final stage",
    "held back",
    "submitted",
    "first token",
    "terminated",
    "failed",
    "confirmed",
]


class SpeculativeEngine(Protocol):
    """What speculation needs of an engine; :class:`RAGCacheEngine` has it."""

    async def astream(
        self,
        prompt: Prompt,
        options: SamplingOptions | None = None,
        **call: Unpack[CallOptions],
    ) -> Any:
        """Submit a prompt; returns an :class:`AsyncGenerationStream`."""

    async def aload(self) -> EngineLoad:
        """How busy the engine is now."""


@dataclass(frozen=True, slots=True)
class StageOfDocuments(Generic[Document]):
    """What a search has found so far.

    Attributes:
        documents: The nearest documents, nearest first, in any type that the application has.
        final: Whether the search is over and these are its result.
    """

    documents: tuple[Document, ...]
    final: bool


@dataclass(frozen=True, slots=True)
class SpeculationEvent:
    """A moment of a request.

    Attributes:
        seconds: Since the request began.
        what: ``stage`` and ``final stage`` (the search gave documents), ``held back`` (the pool
            was full), ``submitted`` (to the engine), ``first token``, ``terminated`` (the
            documents have changed), ``failed`` (a guess alone; the final documents decide) or
            ``confirmed`` (a guess's documents are the final ones).
        number: Of the stage or of the guess, from 1. Where no guess was right, the submission
            of the final documents has the next number of a guess.
    """

    seconds: float
    what: EventKind
    number: int


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """What speculation did for one request.

    Attributes:
        stages: Stages that the search gave, the final one included.
        guesses: Prompts that were let in before the final documents were known.
        aborted: Those of them that were terminated because the documents changed.
        held_back: Guesses that found the pool full, whether they were submitted later or not.
        confirmed: Whether the answer is a guess's.
        search_seconds: From the beginning to the final documents; so far, while it runs.
        overlapped_seconds: The part of it during which the answer's own generation was running
            (RAGCache table 3 reports the rest).
        wasted_prefill_tokens: Prompt tokens computed for terminated guesses; an estimate from the
            speed so far where one was terminated before its first token. What later prompts reuse
            of them is not subtracted.
        events: All that happened, in order.
    """

    stages: int
    guesses: int
    aborted: int
    held_back: int
    confirmed: bool
    search_seconds: float
    overlapped_seconds: float
    wasted_prefill_tokens: int
    events: tuple[SpeculationEvent, ...]

    @property
    def non_overlapped_seconds(self) -> float:
        """Search time during which the answer's generation had not begun."""
        return self.search_seconds - self.overlapped_seconds


@dataclass(frozen=True, slots=True)
class SpeculativeAnswer(Generic[Document]):
    """A whole answer.

    Attributes:
        generation: The answer.
        documents: The final documents, which it was generated from.
        report: What speculation did.
    """

    generation: Generation
    documents: tuple[Document, ...]
    report: SpeculationReport


@dataclass(frozen=True, slots=True)
class SpeculatorStats:
    """What a speculator did so far; the sums of its requests' reports.

    Attributes:
        requests: Requests whose search ended.
        confirmed: Those of them whose answer was a guess's.
        stages, guesses, aborted, held_back, wasted_prefill_tokens, search_seconds,
            overlapped_seconds: As in :class:`SpeculationReport`.
        pending: Requests that are waiting for their prefill or in it, now.
    """

    requests: int = 0
    confirmed: int = 0
    stages: int = 0
    guesses: int = 0
    aborted: int = 0
    held_back: int = 0
    wasted_prefill_tokens: int = 0
    search_seconds: float = 0.0
    overlapped_seconds: float = 0.0
    pending: int = 0
