"""Answers to questions, from the cache or the store, and what a caller gets of them."""

from __future__ import annotations

import time
from collections.abc import Hashable
from concurrent.futures import Executor
from functools import partial
from itertools import repeat
from typing import Generic, TypeVar

from ragcache_integrations.core.single_flight import Role, SingleFlight
from ragcache_integrations.core.threads import BackgroundChecks, in_executor
from ragcache_integrations.query_cache import Hit
from ragcache_integrations.retrievers.retrieval import Retrieval, RetrievalTrace, Source
from ragcache_integrations.retrievers.tally import Tally

from .question import Answer, Question, note_of
from .searcher import Searcher

__all__ = ["Answers"]

T = TypeVar("T")

_COUNTED: dict[Role, str] = {"found": "hits", "led": "misses", "joined": "shared"}


class Answers(Generic[T]):
    """Answers questions. Equal ones that come at the same time are searched for once. Thread-safe.

    Args:
        source: How documents are copied.
        searcher: Asks the store.
        executor: Runs what would block a coroutine.
        tally: Counts the answers.
    """

    def __init__(
        self, source: Source[T], searcher: Searcher[T], executor: Executor, tally: Tally
    ) -> None:
        self._copy_document = source.copy
        self._searcher = searcher
        self._executor = executor
        self._tally = tally
        self._searches = SingleFlight[Answer[T]](executor)
        self._checks = BackgroundChecks(
            executor, partial(tally.add, shadow_checks=1), partial(tally.add, shadow_failures=1)
        )

    def fetch(self, question: Question[T]) -> tuple[Answer[T], Role]:
        """Return the answer to a question, and how it was got.

        Raises:
            Exception: Any error of the store.
        """
        landed = self._searches.landed
        hit = self.find(question)
        if hit is not None:
            return hit, "found"
        return self._searches.do(
            self._flight(question),
            partial(self._find_again, question),
            lambda: self._searcher.search(question),
            looked=landed,
        )

    async def afetch(self, question: Question[T]) -> tuple[Answer[T], Role]:
        """Async version of :meth:`fetch`."""
        landed = self._searches.landed
        if question.cache.immediate:
            hit = self.find(question)
        else:  # the executor's threads share connections among all event loops
            hit = await in_executor(self._executor, self.find, question)
        if hit is not None:
            return hit, "found"
        native = question.request.asearch is not None
        return await self._searches.ado(
            self._flight(question),
            partial(self._find_again, question),
            lambda: self._searcher.search(question),
            (lambda: self._searcher.asearch(question)) if native else None,
            looked=landed,
        )

    def find(self, question: Question[T]) -> Hit[T] | None:
        """Look a question up in the cache."""
        if question.private:
            return None
        started = time.perf_counter()
        hit = question.cache.lookup(
            question.query, question.k, question.key, wording=question.wording
        )
        question.lookup_seconds += time.perf_counter() - started
        return hit

    def _find_again(self, question: Question[T]) -> Hit[T] | None:
        """Look a question up under a lock, for which a round trip takes too long."""
        return self.find(question) if question.cache.immediate else None

    def _flight(self, question: Question[T]) -> Hashable:
        """Return a value that equal questions share."""
        if question.private:
            return object()
        k = question.wanted
        # A search that began before the store changed, or before another cache, is not joined.
        now = (id(question.cache), question.version)
        embedding = question.embedding
        around = question.request.flight
        return (question.key, embedding.dtype.str, embedding.tobytes(), k, now, around)

    def finish(
        self, question: Question[T], answer: Answer[T], role: Role, *, native: bool = False
    ) -> Retrieval[T]:
        """Copy the documents of an answer, count and trace it; start its check where it needs one.

        Args:
            question: The question.
            answer: A hit, or what a search found.
            role: How the question got it.
            native: Whether this is a coroutine whose search is one, too.
        """
        hit, candidates = (answer, answer.candidates) if isinstance(answer, Hit) else (None, answer)
        if hit is not None and hit.check:
            acheck = partial(self._searcher.acheck, question) if native else None
            self._checks.start(partial(self._searcher.check, question), acheck)
        scores = repeat(None) if hit is None or hit.scores is None else hit.scores
        note = note_of(hit) if question.request.annotate else None
        copy_document = self._copy_document
        documents = [
            copy_document(candidate.document, score, note)
            for candidate, score in zip(candidates[: question.k], scores, strict=False)
        ]
        self._tally.add(**{_COUNTED[role]: 1, "lookup_seconds": question.lookup_seconds})
        trace = RetrievalTrace(
            shared=role == "joined",
            documents=len(documents),
            embedding_memoised=question.embedded_by != "led",
            embedding_seconds=question.embedded - question.started,
            retrieval_seconds=time.perf_counter() - question.embedded,
        )
        if hit is not None:
            trace.hit, trace.distance, trace.age = True, hit.distance, hit.age
            trace.reranked, trace.recall_bound = hit.reranked, hit.recall_bound
        return Retrieval(documents, trace)
