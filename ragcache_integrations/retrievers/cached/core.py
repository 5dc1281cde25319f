"""The engine of the approximate-cache retrievers, free of any framework.

A question is embedded, looked up in the query cache, and on a miss searched for in the store. An
adapter says how that is done in its framework (:mod:`..retrieval`) and gets the documents back,
with what happened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Sequence,
)
from functools import partial
from typing import Any, Generic, TypeVar

from ragcache_integrations.core.forks import make_executor
from ragcache_integrations.core.threads import in_executor
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, Explanation
from ragcache_integrations.query_cache.redis import RedisQueryCache
from ragcache_integrations.query_cache.types import unanswered
from ragcache_integrations.query_cache.warming import start_warm_up
from ragcache_integrations.retrievers.embedder import Embedding, QueryEmbedder
from ragcache_integrations.retrievers.keys import (
    filter_mark,
    marks_of,
    namespace_mark,
)
from ragcache_integrations.retrievers.retrieval import (
    Request,
    Retrieval,
    Source,
    check_question,
)
from ragcache_integrations.retrievers.tally import FailureCount, RetrieverStats, Tally

from .answers import Answers
from .files import CacheFiles
from .follower import Follower
from .knobs import CacheKnobs
from .lazy_cache import LazyCache, why_unranked
from .question import Question, documents_of
from .questions import Questions
from .searcher import Searcher
from .staged_answers import StagedAnswers
from .store_version import StoreVersion

__all__ = ["RetrieverCore"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Threads for the searches and embeddings that coroutines ask for, and for checks.
_WORKERS = 32

_UNRANKED = (
    "%s. Up to a distance of %s they answer other questions as they are: re-rank them with "
    "vectors='embed', where a store is searched by similarity, or choose that distance with "
    "tolerance= (and rerank_factor=1, to hear no more of this)"
)


class RetrieverCore(Generic[T]):
    """Answers questions from the query cache, and from the store when the cache has no answer.

    Every method may be called from any thread and any event loop. Equal questions asked at the
    same time are embedded and searched once; if that fails, all of them get the exception, and
    nothing is cached.

    Args:
        knobs: The settings, checked.
        source: What the answers come from, and how to read and copy them.

    Attributes:
        follower: Receives the store's changes.
        files: Saves and loads what is cached.
        staged: Answers questions in stages.
        version: The store's version that all answers were found under.

    Raises:
        ConfigurationError: The metric is not the store's, the store cannot carry the guarantee, or
            knobs do not go together.
    """

    def __init__(self, knobs: CacheKnobs, source: Source[T]) -> None:
        self._source = source
        self.default_k = source.k
        self._caches = LazyCache[T](knobs, source.facts, source.tag, documents_of(source))
        proves = knobs.guarantee is not None and knobs.version is None
        self.version = StoreVersion(self._caches, knobs.version)
        self.follower = Follower(self._caches, source.facts.vectors, required=proves)
        unranked = why_unranked(source.facts)
        chosen = knobs.tolerance in {0, "auto"} or None not in {
            knobs.tolerance,
            knobs.rerank_factor,
        }
        if unranked and not chosen:
            logger.warning(_UNRANKED, unranked, self._caches.unranked_tolerance)
        self._tally = Tally(unranked)
        self._failures = FailureCount(self._tally)
        executor = make_executor(_WORKERS, "ragcache-retriever")
        self._executor = executor
        self._embedder = QueryEmbedder(
            source.embed,
            source.aembed,
            memo_size=knobs.embedding_memo,
            dim=source.facts.dim,
            executor=executor,
            tally=self._tally,
        )
        self.files = CacheFiles(source, self._caches, self._embedder, self.follower, executor)
        self._searcher = Searcher(
            source,
            self._caches,
            self.follower,
            executor=executor,
            tally=self._tally,
            embeds_documents=knobs.vectors == "embed",
        )
        self._questions = Questions(
            source, knobs, self._caches, self.version, self._embedder, executor
        )
        self._answers = Answers(source, self._searcher, executor, self._tally)
        self.staged = StagedAnswers(
            source, self._questions, self._answers, self._searcher, self._tally, self._failures
        )
        start_warm_up()

    def retrieve(self, request: Request[T]) -> Retrieval[T]:
        """Answer a question.

        Raises:
            ConfigurationError: The question is no text, or k is not a whole number of at least 1.
            EmbeddingError: The embedding model gave something unusable.
            Exception: Any error of the embedding model or the store.
        """
        unread = self._questions.check(request)
        with self._failures:
            if unread:
                return self._searcher.plain(request, time.perf_counter())
            question = self._questions.ask(request)
            return self._answers.finish(question, *self._answers.fetch(question))

    async def aretrieve(self, request: Request[T]) -> Retrieval[T]:
        """Async version of :meth:`retrieve`."""
        unread = self._questions.check(request)
        with self._failures:
            if unread:
                return await self._searcher.aplain(request, time.perf_counter())
            question = await self._questions.aask(request)
            native = request.asearch is not None
            answer, role = await self._answers.afetch(question)
            return self._answers.finish(question, answer, role, native=native)

    def embed(self, request: Request[T]) -> Embedding:
        """Return a question's embedding. That of a repeated question is remembered.

        Raises:
            ConfigurationError: As for :meth:`retrieve`.
            EmbeddingError: As for :meth:`retrieve`.
            Exception: Any error of the embedding model.
        """
        check_question(request.texts, request.embedding, request.k)
        return self._questions.embed(request)[0]

    async def aembed(self, request: Request[T]) -> Embedding:
        """Async version of :meth:`embed`."""
        check_question(request.texts, request.embedding, request.k)
        return (await self._questions.aembed(request))[0]

    def explain(self, request: Request[T]) -> Explanation:
        """Explain why a question would be answered from the cache, or not. The store is not asked.

        Raises:
            ConfigurationError: As for :meth:`retrieve`.
            EmbeddingError: As for :meth:`retrieve`.
            Exception: Any error of the embedding model.
        """
        check_question(request.texts, request.embedding, request.k)
        return self._explainer(self._questions.ask(request))()

    async def aexplain(self, request: Request[T]) -> Explanation:
        """Async version of :meth:`explain`."""
        check_question(request.texts, request.embedding, request.k)
        question = await self._questions.aask(request)
        explain = self._explainer(question)
        if question.private or question.cache.immediate:
            return explain()
        return await in_executor(self._executor, explain)

    @property
    def shared(self) -> bool:
        """Whether other processes use the cache, too."""
        return self._caches.shared

    def stats(self) -> RetrieverStats:
        """Return what was done so far. Touches memory alone."""
        cache = self._caches.current
        return self._tally.stats(None if cache is None else cache.stats())

    def clear(self) -> None:
        """Forget every answer, after the store's documents changed. Touches memory alone.

        Searches under way are not remembered any more. Embeddings of texts are kept.
        """
        self._caches.clear()

    def discard(
        self,
        namespace: str | None,
        filters: Any,
        ids: Collection[str | int] | None,
        older_than: float | None,
    ) -> None:
        """Forget some of the answers, those for which everything holds that is not ``None``.

        Args:
            namespace: They are this tenant's, whose embeddings are forgotten, too.
            filters: They were found under this filter, or ``filter_key``.
            ids: They hold one of these documents, or may: documents without ids may be any.
            older_than: They were found longer ago than this, in seconds.

        Raises:
            ConfigurationError: The filter is no plain data, or an id of a type that no document of
                this kind of store has.
        """
        marks = [] if filters is None else [filter_mark(filters)]
        if namespace is not None:
            if not marks and ids is None and older_than is None:
                self._embedder.forget(namespace)
            marks.append(namespace_mark(namespace))
        spelt = None if ids is None else self._source.spell_ids(ids)
        if spelt is None and not all(isinstance(name, str) for name in ids or ()):
            msg = f"ids must be several strings, got {ids!r:.100}"
            raise ConfigurationError(msg)
        cache = self._caches.to_tell(None)
        if cache is None:
            return
        if isinstance(cache, RedisQueryCache):
            before = None if older_than is None else time.time() - older_than
            cache.discard(marks, ids=spelt, before=before)
            return

        def matches(key: Hashable, candidates: Sequence[Candidate[T]], age: float) -> bool:
            return (
                (older_than is None or age > older_than)
                and (spelt is None or any(may_be(document) for document in candidates))
                and marks_of(key).issuperset(marks)
            )

        def may_be(document: Candidate[T]) -> bool:
            return document.id in held or document.id == document.fingerprint

        held = frozenset(spelt or ())
        cache.discard(matches)

    def forget(self, request: Request[T]) -> int:
        """Forget all answers that the cache would give to a question; return how many.

        Raises:
            ConfigurationError: As for :meth:`retrieve`.
            EmbeddingError: As for :meth:`retrieve`.
            Exception: Any error of the embedding model.
        """
        check_question(request.texts, request.embedding, request.k)
        return self._forget(self._questions.ask(request))

    async def aforget(self, request: Request[T]) -> int:
        """Async version of :meth:`forget`."""
        check_question(request.texts, request.embedding, request.k)
        question = await self._questions.aask(request)
        if question.cache.immediate:
            return self._forget(question)
        return await in_executor(self._executor, self._forget, question)

    def _forget(self, question: Question[T]) -> int:
        if question.private:
            return 0
        return question.cache.forget(question.query, question.k, question.key)

    def _explainer(self, question: Question[T]) -> Callable[[], Explanation]:
        if not question.private:
            return partial(
                question.cache.explain,
                question.query,
                question.k,
                question.key,
                wording=question.wording,
            )
        return partial(unanswered, question.private, question.cache.tolerance)
