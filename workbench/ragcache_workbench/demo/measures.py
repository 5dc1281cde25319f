"""The measurements of each question, and their sums and means over a stream."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from .corpus import Corpus


__all__ = ["App", "Figures", "Moments", "Observation", "figures", "ttft_ratio"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One question, answered by one application.

    Attributes:
        store_calls: Searches of the vector store.
        embedding_ms: Time to embed the question; 0 if its embedding was cached.
        retrieval_ms: Other time in the retriever: searching the store or the cache.
        ttft_ms: Time from the call of the LLM to its first token.
        first_token_ms: Time from the question to the first token.
        end_to_end_ms: Time from the question to the last token.
        prompt_tokens: Length of the prompt.
        cached_prompt_tokens: Prompt tokens whose KV cache was reused.
        hit: Whether the documents came from the query cache.
        document_ids: Ids of the retrieved documents, best first.
        answer: The model's answer.
    """

    store_calls: int
    embedding_ms: float
    retrieval_ms: float
    ttft_ms: float
    first_token_ms: float
    end_to_end_ms: float
    prompt_tokens: int
    cached_prompt_tokens: int
    hit: bool
    document_ids: tuple[str, ...]
    answer: str


class Moments:
    """Records the times of a question; each application's hooks fill it in.

    Args:
        searches: Returns the number of searches of the store so far.
        embedding_seconds: Returns the seconds spent embedding questions so far.

    Attributes:
        hit: Whether the documents came from the query cache.
        document_ids: Ids of the retrieved documents, best first.
        prompt_tokens: Length of the prompt.
        cached_prompt_tokens: Prompt tokens whose KV cache was reused.
    """

    def __init__(self, searches: Callable[[], int], embedding_seconds: Callable[[], float]) -> None:
        self.hit = False
        self.document_ids: tuple[str, ...] = ()
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self._searches, self._embedding_seconds = searches, embedding_seconds
        self._at: dict[str, float] = {}
        self._searched, self._embedded = searches(), embedding_seconds()
        self.note("question")

    def note(self, what: Literal["question", "retrieving", "retrieved", "llm", "token"]) -> None:
        """Record the time of an event, the first time that it happens."""
        self._at.setdefault(what, time.perf_counter())

    def observation(self, answer: str) -> Observation:
        """Return the measurements of a complete answer."""
        at, end = self._at, time.perf_counter()
        embedding = self._embedding_seconds() - self._embedded
        return Observation(
            store_calls=self._searches() - self._searched,
            embedding_ms=1000 * embedding,
            retrieval_ms=1000 * (at["retrieved"] - at["retrieving"] - embedding),
            ttft_ms=1000 * (at["token"] - at["llm"]),
            first_token_ms=1000 * (at["token"] - at["question"]),
            end_to_end_ms=1000 * (end - at["question"]),
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            hit=self.hit,
            document_ids=self.document_ids,
            answer=answer,
        )


class App(ABC):
    """A RAG application that is measured.

    Args:
        corpus: Counts the searches.
        embeddings: Measure how long questions take to embed.
    """

    def __init__(self, corpus: Corpus, embeddings: Timed) -> None:
        self._corpus, self._embeddings = corpus, embeddings

    def ask(self, question: str) -> Observation:
        """Answer a question."""
        moments = Moments(lambda: self._corpus.index.searches, lambda: self._embeddings.seconds)
        return moments.observation("".join(self._answer(question, moments)))

    @abstractmethod
    def _answer(self, question: str, moments: Moments) -> Iterator[str]:
        """Answer a question piece by piece, and note what happens when."""


class Timed(Protocol):
    """Embeddings that measure how long questions take."""

    @property
    def seconds(self) -> float:
        """Time spent embedding questions so far."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A whole stream of questions: counts are sums, times are means per question."""

    store_calls: int
    embedding_ms: float
    retrieval_ms: float
    ttft_ms: float
    end_to_end_ms: float
    prompt_tokens: int
    cached_prompt_tokens: int
    hits: int
    hit_recall: float | None


def figures(observations: Sequence[Observation], hit_recall: float | None) -> Figures:
    """Summarise the measurements of a stream.

    Args:
        observations: The observations of one side; at least one.
        hit_recall: Recall of the documents from the query cache; ``None`` without a hit.
    """
    means = ("embedding_ms", "retrieval_ms", "ttft_ms", "end_to_end_ms")
    sums = ("store_calls", "prompt_tokens", "cached_prompt_tokens")
    kinds: dict[str, Any] = {
        **dict.fromkeys(means, statistics.fmean),
        **dict.fromkeys(sums, sum),
    }
    summed: dict[str, Any] = {
        name: kind(getattr(seen, name) for seen in observations) for name, kind in kinds.items()
    }
    return Figures(**summed, hits=sum(seen.hit for seen in observations), hit_recall=hit_recall)


def ttft_ratio(before: Sequence[Observation], after: Sequence[Observation]) -> float:
    """Median of the ratios after / before of the same question's time to first token."""
    pairs = zip(before, after, strict=True)
    return statistics.median(new.ttft_ms / old.ttft_ms for old, new in pairs)
