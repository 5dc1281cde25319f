"""Answers in stages: those of the store's own search, or a guess before the answer.

Speculation needs guesses in front of stores that have no stages.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.threads import in_thread
from ragcache_integrations.query_cache import Candidate, Hit, QueryCache
from ragcache_integrations.retrievers.embedder import Embedding
from ragcache_integrations.retrievers.retrieval import DocumentStage, Request, Source
from ragcache_integrations.retrievers.tally import FailureCount, Tally

from .answers import Answers
from .question import Answer, Question, final_stage, only_stage, with_answer
from .questions import Questions
from .searcher import Searcher

__all__ = ["Guesses", "StagedAnswers"]


_WIDTH = 0.1
"""Guesses are counted by their distance, in steps of this."""
_STEPS = 20
_MINIMUM = 0.3
"""The share of right guesses from which on one is worth the start of an answer."""


class Guesses:
    """Learns at which distance from an earlier question a guess is worth being made.

    Every guess is compared with what the store returned, also those that were not passed on, so
    that a distance at which guesses go wrong gets another chance once they no longer do.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        self._right = [0] * _STEPS
        self._made = [0] * _STEPS

    def pays(self, guess: Hit[Any]) -> bool:
        """Whether guesses at such a distance have been right often enough, or are still new."""
        step = _step(guess.distance)
        with self._lock:
            return (self._right[step] + 1) / (self._made[step] + 2) >= _MINIMUM

    def learn(self, guess: Hit[Any], found: Sequence[Candidate[Any]]) -> None:
        """Note whether a guess was what the store returned.

        Args:
            guess: The guess.
            found: What the store returned, as many documents as were asked for.
        """
        step = _step(guess.distance)
        with self._lock:
            self._right[step] += _names(guess.candidates) == _names(found)
            self._made[step] += 1


def _step(distance: float) -> int:
    return min(int(distance / _WIDTH), _STEPS - 1)


def _names(candidates: Sequence[Candidate[Any]]) -> list[tuple[str, str]]:
    return [(candidate.id, candidate.fingerprint) for candidate in candidates]


T = TypeVar("T")


class StagedAnswers(Generic[T]):
    """Answers requests in stages. Thread-safe.

    Args:
        source: How documents are copied.
        questions: Makes questions of the requests.
        answers: Answers questions that have no stages of their own.
        searcher: Asks the store.
        tally: Counts the searches in stages.
        failures: Counts the requests that end by an exception.
    """

    def __init__(
        self,
        source: Source[T],
        questions: Questions[T],
        answers: Answers[T],
        searcher: Searcher[T],
        tally: Tally,
        failures: FailureCount,
    ) -> None:
        self._source = source
        self._questions = questions
        self._answers = answers
        self._searcher = searcher
        self._tally = tally
        self._failures = failures
        self._guesses = Guesses()

    def stages(self, request: Request[T]) -> Generator[DocumentStage[T]]:
        """Answer a question in stages: those of the search, or one where the cache answers.

        Where the search has no stages, a guess from the documents in the cache comes first, as far
        as such guesses have paid off. Only the final stage's documents are cached. Each caller has
        a separate search in stages, which goes at the caller's pace; closing the generator ends it.

        Raises:
            ConfigurationError: The question is no text, or k is not a whole number of at least 1.
            EmbeddingError: The embedding model gave something unusable.
            Exception: Any error of the embedding model or the store.
        """
        if request.stages is None:
            yield from self._guessed_stages(request)
            return
        self._questions.check(request)
        with (
            self._failures,
            closing(self._search(self._questions.ask(request), request.stages)) as stages,
        ):
            for stage in stages:
                if stage.final:
                    break
                yield stage
        yield stage

    async def astages(self, request: Request[T]) -> AsyncGenerator[DocumentStage[T]]:
        """Async version of :meth:`stages`."""
        if request.stages is None:
            async for stage in self._aguessed_stages(request):
                yield stage
            return
        self._questions.check(request)
        with (
            self._failures,
            closing(self._search(await self._questions.aask(request), request.stages)) as stages,
        ):
            while not (stage := await in_thread(next, stages)).final:
                yield stage
        yield stage

    def _guessed_stages(self, request: Request[T]) -> Generator[DocumentStage[T]]:
        """Yield a guess, where one pays, and the answer."""
        begun = time.perf_counter()
        if self._questions.check(request):
            with self._failures:
                retrieval = self._searcher.plain(request, begun)
            yield only_stage(retrieval, begun)
            return
        with self._failures:
            question = self._questions.ask(request)
            guess = _guess(question)
            first = None if guess is None else self._first_stage(question, guess, begun)
            if first is not None:
                yield first
            answer, role = self._answers.fetch(question)
            retrieval = self._answers.finish(question, answer, role)
        if guess is not None:
            self._guesses.learn(guess, _candidates_of(answer)[: question.k])
        yield replace(only_stage(retrieval, begun), number=1 if first is None else 2)

    async def _aguessed_stages(self, request: Request[T]) -> AsyncGenerator[DocumentStage[T]]:
        begun = time.perf_counter()
        if self._questions.check(request):
            with self._failures:
                retrieval = await self._searcher.aplain(request, begun)
            yield only_stage(retrieval, begun)
            return
        with self._failures:
            question = await self._questions.aask(request)
            guess = _guess(question)
            first = None if guess is None else self._first_stage(question, guess, begun)
            if first is not None:
                yield first
            answer, role = await self._answers.afetch(question)
            native = request.asearch is not None
            retrieval = self._answers.finish(question, answer, role, native=native)
        if guess is not None:
            self._guesses.learn(guess, _candidates_of(answer)[: question.k])
        yield replace(only_stage(retrieval, begun), number=1 if first is None else 2)

    def _first_stage(
        self, question: Question[T], guess: Hit[T], begun: float
    ) -> DocumentStage[T] | None:
        """Return a guess as a stage; ``None`` where it does not pay."""
        if not self._guesses.pays(guess):
            return None
        documents = tuple(candidate.document for candidate in guess.candidates)
        stage = DocumentStage(documents, 1, time.perf_counter() - begun, final=False)
        return self._provisional(question, stage)

    def _search(
        self,
        question: Question[T],
        search: Callable[[Embedding, int], Generator[DocumentStage[T]]],
    ) -> Generator[DocumentStage[T]]:
        """Yield stages up to the final one: a hit, or what a search ends with, which is kept."""
        hit = self._answers.find(question)
        if hit is not None:
            yield only_stage(self._answers.finish(question, hit, "found"), question.embedded)
            return
        count = self._searcher.begin(question)
        with (
            self._counting() as passed,
            closing(search(question.embedding, count)) as stages,
        ):
            for stage in stages:
                passed.append(stage)
                if stage.final:
                    break
                yield self._provisional(question, stage)
        final = final_stage(passed)
        candidates = self._searcher.remember(question, final.documents, count)
        yield with_answer(final, self._answers.finish(question, candidates, "led"))

    @contextmanager
    def _counting(self) -> Iterator[list[DocumentStage[T]]]:
        """Count a search in stages as a call of the store; yields the list for its stages."""
        passed: list[DocumentStage[T]] = []
        try:
            yield passed
        finally:
            seconds = passed[-1].elapsed if passed else 0.0
            self._tally.add(store_calls=1, store_seconds=seconds)

    def _provisional(self, question: Question[T], stage: DocumentStage[T]) -> DocumentStage[T]:
        documents = (
            self._source.copy(document, None, None) for document in stage.documents[: question.k]
        )
        return replace(stage, documents=tuple(documents))


def _guess(question: Question[T]) -> Hit[T] | None:
    """Guess what the store will return, from the documents in this process's cache."""
    cache = question.cache
    if question.private or not question.request.ranked or not isinstance(cache, QueryCache):
        return None
    return cache.guess(question.query, question.k, question.key)


def _candidates_of(answer: Answer[T]) -> Sequence[Candidate[T]]:
    return answer.candidates if isinstance(answer, Hit) else answer
