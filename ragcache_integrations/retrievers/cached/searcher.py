"""Searches of the store for what the cache does not answer, and what is kept of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Generic, TypeVar

from numpy.typing import ArrayLike

from ragcache_integrations.core.threads import in_executor
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate
from ragcache_integrations.retrievers.retrieval import Request, Retrieval, Source
from ragcache_integrations.retrievers.stores import SearchResults
from ragcache_integrations.retrievers.tally import Tally

from .document_embedder import DocumentEmbedder
from .follower import Follower
from .lazy_cache import AnyCache, LazyCache
from .question import Question, candidates_of, in_memory, plain_answer

__all__ = ["Searcher"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Searcher(Generic[T]):
    """Asks the store, and caches what it says. Thread-safe.

    Args:
        source: The store, and how to read its documents.
        caches: The cache.
        follower: Hears of the store's changes.
        executor: Runs what would block a coroutine.
        tally: Counts the searches.
        embeds_documents: Whether vectors of documents, for re-ranking, are made of their texts.
    """

    def __init__(
        self,
        source: Source[T],
        caches: LazyCache[T],
        follower: Follower[T],
        *,
        executor: Executor,
        tally: Tally,
        embeds_documents: bool,
    ) -> None:
        self._source = source
        self._caches = caches
        self._follower = follower
        self._executor = executor
        self._tally = tally
        self._documents: DocumentEmbedder[T] | None = None
        if embeds_documents:
            embed, text_of = source.embed_documents, source.text_of
            assert embed is not None  # noqa: S101 - every store's adapter has both
            assert text_of is not None  # noqa: S101
            self._documents = DocumentEmbedder(embed, text_of, executor)
        self._warned = False

    def plain(self, request: Request[T], begun: float) -> Retrieval[T]:
        """Ask the store without the cache, for a question without text.

        Args:
            request: The question; it has a ``plain`` search.
            begun: When it came, by ``time.perf_counter``.

        Raises:
            Exception: Any error of the store.
        """
        assert request.plain is not None  # noqa: S101 - checked before
        documents = self._tally.timed("store", request.plain, request.k or self._source.k or 0)
        self._tally.add(misses=1)
        return plain_answer(self._source, request, documents, begun)

    async def aplain(self, request: Request[T], begun: float) -> Retrieval[T]:
        """Async version of :meth:`plain`."""
        if request.aplain is None:
            return await in_executor(self._executor, self.plain, request, begun)
        searching = request.aplain(request.k or self._source.k or 0)
        documents = await self._tally.atimed("store", searching)
        self._tally.add(misses=1)
        return plain_answer(self._source, request, documents, begun)

    def begin(self, question: Question[T]) -> int:
        """Note the store's version before a search; return how many documents to fetch."""
        question.version = question.cache.store_version
        if not question.wanted or question.private or not question.request.ranked:
            return question.wanted
        return question.cache.fetch_count(question.k, question.query, question.key)

    def search(self, question: Question[T]) -> tuple[Candidate[T], ...]:
        """Search the store for a question; cache and return what it says.

        Raises:
            Exception: Any error of the store.
        """
        count = self.begin(question)
        search = question.request.search
        documents = self._tally.timed("store", search, question.embedding, count)
        return self.remember(question, documents, count)

    async def asearch(self, question: Question[T]) -> tuple[Candidate[T], ...]:
        """Async version of :meth:`search`, for a question whose search is a coroutine."""
        search = question.request.asearch
        assert search is not None  # noqa: S101 - not called otherwise
        count = self.begin(question)
        documents = await self._tally.atimed("store", search(question.embedding, count))
        return await in_executor(self._executor, self.remember, question, documents, count)

    def remember(
        self, question: Question[T], documents: Sequence[T], count: int
    ) -> tuple[Candidate[T], ...]:
        """Cache what a search of ``count`` documents found; return it as candidates."""
        candidates = candidates_of(self._source, documents)
        vectors = documents.vectors if isinstance(documents, SearchResults) else None
        # An empty result may come from a store that is still to be filled: not worth keeping.
        is_current = question.request.is_current
        if candidates and not question.private and (is_current is None or is_current()):
            try:
                self._insert(question, candidates, count, vectors)
            except Exception as error:  # the answer is there, even if it cannot be cached
                if isinstance(error, ConfigurationError):
                    self._caches.disagree(error)
                level = logging.DEBUG if self._warned else logging.WARNING
                self._warned = True
                logger.log(level, "An answer could not be cached", exc_info=True)
        return candidates

    def _insert(
        self,
        question: Question[T],
        candidates: tuple[Candidate[T], ...],
        count: int,
        vectors: ArrayLike | None,
    ) -> None:
        if self._documents is not None and vectors is None and question.request.ranked:
            vectors = self._documents.embed(
                candidates, partial(self._insert, question, candidates, count)
            )
        unlimited = self._source.k is None or question.request.whole
        complete = unlimited or (len(candidates) < count and not question.request.cut)
        cache: AnyCache[T] = question.cache
        others: dict[str, Any] = {}
        if vectors is not None and not self._caches.shared:
            others["vectors"] = vectors
        if not question.request.ranked:
            cache, others = in_memory(cache), {"ranked": False}
        insert = partial(
            cache.insert,
            question.query,
            candidates,
            question.key,
            k=None if unlimited else question.k,
            complete=complete,
            store_version=question.version,
            wording=question.wording,
            **others,
        )
        if not [document for document in candidates if document.id == document.fingerprint]:
            insert()
        elif self._caches.shared:
            msg = "documents without ids cannot be shared: other processes could not read them"
            raise ConfigurationError(msg)
        else:
            self._follower.insert_nameless(question.cache, question.version, insert)

    def check(self, question: Question[T]) -> None:
        """Report the store's result for a question that the cache has answered."""
        request = question.request.unobserved or question.request
        documents = self._tally.timed("store", request.search, question.embedding, question.wanted)
        self._report(question, documents)

    async def acheck(self, question: Question[T]) -> None:
        """Async version of :meth:`check`."""
        request = question.request.unobserved or question.request
        assert request.asearch is not None  # noqa: S101 - not called otherwise
        searching = request.asearch(question.embedding, question.wanted)
        documents = await self._tally.atimed("store", searching)
        self._report(question, documents)

    def _report(self, question: Question[T], documents: Sequence[T]) -> None:
        cache = in_memory(question.cache)
        if cache.store_version == question.version:  # else it is another store's answer
            candidates = candidates_of(self._source, documents)
            cache.report(
                question.query, question.k, candidates, question.key, wording=question.wording
            )
