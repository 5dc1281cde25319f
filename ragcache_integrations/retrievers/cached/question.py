"""One question on its way through the engine of the retrievers, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.single_flight import Role
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, Hit, QueryCache
from ragcache_integrations.query_cache.redis import DocumentSource
from ragcache_integrations.query_cache.types import Wording
from ragcache_integrations.retrievers.embedder import Embedding
from ragcache_integrations.retrievers.retrieval import (
    DocumentStage,
    Note,
    Request,
    Retrieval,
    RetrievalTrace,
    Source,
    checked_results,
)

from .lazy_cache import AnyCache

__all__ = [
    "Answer",
    "Question",
    "candidates_of",
    "documents_of",
    "final_stage",
    "in_memory",
    "note_of",
    "only_stage",
    "plain_answer",
    "why_private",
    "with_answer",
]

T = TypeVar("T")

Answer = Hit[T] | tuple[Candidate[T], ...]
"""A hit of the cache, or the candidates of a search."""


@dataclass(slots=True)
class Question(Generic[T]):
    """One question on its way through the cache. Not frozen, for the same reason as the request.

    Attributes:
        request: The request as it came.
        embedding: In the model's own precision, for the store.
        query: The embedding in the cache's 32-bit precision.
        cache: The cache that it is looked up in.
        version: The cache's ``store_version`` before the search.
        k: The most documents to return.
        wanted: How many to ask the store for; 0 where it cannot be asked for a number.
        key: The request's key, with the text's where its embedding does not identify it.
        wording: Its words, where they are compared with those of an entry.
        private: Why neither the cache may answer this question nor keep its answer; empty where
            both are allowed.
        embedded_by: How it got its embedding.
        started: When it came, by ``time.perf_counter``.
        embedded: When it had its embedding, by the same clock.
        lookup_seconds: Time spent looking it up.
    """

    request: Request[T]
    embedding: Embedding
    query: NDArray[np.float32]
    cache: AnyCache[T]
    version: int
    k: int
    wanted: int
    key: Hashable
    wording: Wording | None
    private: str
    embedded_by: Role
    started: float
    embedded: float
    lookup_seconds: float = 0.0


def why_private(request: Request[T], query: NDArray[np.float32], *, shared: bool) -> str:
    """Return why the cache is not for a question; nothing where it is."""
    if request.alone:
        return request.alone
    if request.opaque:
        return (
            f"{' and '.join(request.opaque)} is no plain data, so nobody knows what else "
            "it would let through: name what it means with filter_key="
        )
    # Other processes rank what they share by distance, and do not hear that this is otherwise.
    if shared and not request.ranked:
        return "a search that does not rank by distance alone is not shared between processes"
    # That of any other text was refused if it is zero.
    if request.embedding is not None or "".join(request.texts).strip() or np.count_nonzero(query):
        return ""
    return "the embedding of this empty text is zero: it has no direction"


def plain_answer(
    source: Source[T], request: Request[T], results: Sequence[T], begun: float
) -> Retrieval[T]:
    """Return the documents of a question without text, for which there is no cache."""
    results = list(checked_results(results, source.kind))
    k = None if request.whole else request.k or source.k
    note = note_of(None) if request.annotate else None
    documents = [source.copy(document, None, note) for document in results[:k]]
    seconds = time.perf_counter() - begun
    return Retrieval(documents, RetrievalTrace(documents=len(documents), retrieval_seconds=seconds))


def note_of(hit: Hit[Any] | None) -> Note:
    """Return what is noted about an answer."""
    if hit is None:
        return Note(hit=False, distance=None, recall_bound=None, age=None)
    return Note(hit=True, distance=hit.distance, recall_bound=hit.recall_bound, age=hit.age)


def candidates_of(source: Source[T], documents: Iterable[T]) -> tuple[Candidate[T], ...]:
    """Return documents as the cache keeps them."""
    identify, score_of = source.identify, source.score
    candidates = []
    for document in checked_results(documents, source.kind):
        document_id, text = identify(document)
        fingerprint = content_id(text)
        score = None if score_of is None else score_of(document)
        candidates.append(Candidate(document_id or fingerprint, document, fingerprint, score))
    return tuple(candidates)


def documents_of(source: Source[T]) -> DocumentSource[T] | None:
    """Return a function that reads documents for a shared cache, if the source can."""
    read: Callable[[Sequence[tuple[str, float | None]]], Sequence[T | None]] | None = source.read
    if read is None:
        return None

    def documents(
        ids_and_scores: Sequence[tuple[str, float | None]], /
    ) -> list[Candidate[T] | None]:
        return [
            None if document is None else candidates_of(source, [document])[0]
            for document in read(ids_and_scores)
        ]

    return documents


def in_memory(cache: AnyCache[T]) -> QueryCache[T]:
    """Return a cache that is this process's own.

    Raises:
        ConfigurationError: The cache is a shared one.
    """
    if isinstance(cache, QueryCache):
        return cache
    msg = "a shared cache is neither saved nor loaded: Redis has it"
    raise ConfigurationError(msg)


def only_stage(retrieval: Retrieval[T], begun: float) -> DocumentStage[T]:
    """Return an answer as the only stage of a search that began then."""
    elapsed = time.perf_counter() - begun
    return DocumentStage(tuple(retrieval.documents), 1, elapsed, final=True, trace=retrieval.trace)


def final_stage(passed: Sequence[DocumentStage[T]]) -> DocumentStage[T]:
    """Return the last stage of a search.

    Raises:
        RuntimeError: The search ended without one.
    """
    if passed and passed[-1].final:
        return passed[-1]
    msg = "the search ended without a final stage"
    raise RuntimeError(msg)


def with_answer(stage: DocumentStage[T], retrieval: Retrieval[T]) -> DocumentStage[T]:
    """Return a final stage with the documents of an answer."""
    return replace(stage, documents=tuple(retrieval.documents), trace=retrieval.trace)
