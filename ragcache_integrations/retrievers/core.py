"""The engine of the approximate-cache retrievers, free of any framework.

A question is embedded, looked up in the query cache, and on a miss searched for in the store. An
adapter says how that is done in its framework (:class:`Source`, :class:`Request`) and gets the
documents back, with what happened (:class:`RetrievalTrace`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from numpy.typing import ArrayLike

from ragcache_integrations._ids import content_id
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, Hit, Metric, QueryCache, VectorSource
from ragcache_integrations.query_cache.validation import check_whole
from ragcache_integrations.retrievers.embedder import Embedding, QueryEmbedder, Texts
from ragcache_integrations.retrievers.knobs import CacheKnobs
from ragcache_integrations.retrievers.single_flight import Role, SingleFlight
from ragcache_integrations.retrievers.tally import RetrieverStats, Tally

__all__ = ["Request", "Retrieval", "RetrievalTrace", "RetrieverCore", "Source"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Threads for the searches and embeddings that coroutines ask for.
_WORKERS = 32


@dataclass(frozen=True)
class Source(Generic[T]):
    """What is being cached.

    Attributes:
        embed: Embeds texts as one.
        identify: Returns a document's id, if it has one, and its text.
        copy: Returns a document that the caller may change, with a new score where one is given.
        aembed: Embeds without blocking; ``None``: ``embed`` runs in a worker thread.
        k: How many documents to ask for where nobody says; ``None``: it gives what it gives.
        metric: How the store ranks, where it tells.
        vectors: Reads the documents' vectors, where the store can give them.
        dim: Dimension of the embeddings, where the store tells.
    """

    embed: Callable[[Texts], ArrayLike]
    identify: Callable[[T], tuple[str | None, str]]
    copy: Callable[[T, float | None], T]
    aembed: Callable[[Texts], Awaitable[ArrayLike]] | None = None
    k: int | None = None
    metric: Metric | None = None
    vectors: VectorSource | None = None
    dim: int | None = None


@dataclass(frozen=True)
class Request(Generic[T]):
    """One question.

    Attributes:
        texts: The question, or the texts that stand for it.
        search: Asks the store for that many documents, by embedding or however it likes; 0 where
            the source cannot be asked for a number.
        asearch: Does so without blocking; ``None``: ``search`` runs in a worker thread.
        k: How many documents are wanted.
        key: Filter, namespace and whatever else changes the store's answer.
        embedding: The question's embedding, where it is known already.
    """

    texts: Texts
    search: Callable[[Embedding, int], Sequence[T]]
    asearch: Callable[[Embedding, int], Awaitable[Sequence[T]]] | None = None
    k: int | None = None
    key: Hashable = None
    embedding: ArrayLike | None = None


@dataclass(frozen=True, slots=True)
class RetrievalTrace:
    """What happened to one question.

    Attributes:
        hit: The cache answered.
        shared: The search that another, equal question had begun answered.
        documents: How many documents came back.
        distance: On a hit, from the question's embedding to the cached one.
        age: On a hit, seconds since the entry was made.
        reranked: On a hit, whether the candidates were re-ranked for this question.
        recall_bound: On a hit, the recall that is proven; ``None`` where nothing is.
        embedding_memoised: No embedding had to be computed for it.
        embedding_seconds: Time until the embedding was there.
        retrieval_seconds: Time from then on: lookup, search, insertion.
    """

    hit: bool
    shared: bool
    documents: int
    distance: float | None
    age: float | None
    reranked: bool
    recall_bound: float | None
    embedding_memoised: bool
    embedding_seconds: float
    retrieval_seconds: float


@dataclass(frozen=True)
class Retrieval(Generic[T]):
    """The documents, best first, and what happened."""

    documents: list[T]
    trace: RetrievalTrace


# What a flight brings: an entry of the cache, or what a search found.
_Answer = Hit[T] | tuple[Candidate[T], ...]


@dataclass(frozen=True)
class _Plan(Generic[T]):
    """One question's way through the cache, for :class:`SingleFlight`."""

    key: Hashable
    k: int
    find: Callable[[], _Answer[T] | None]
    work: Callable[[], _Answer[T]]
    awork: Callable[[], Coroutine[Any, Any, _Answer[T]]] | None


class RetrieverCore(Generic[T]):
    """Answers questions from the query cache, and from the store where it must.

    Every method may be called from any thread and any event loop. Equal questions asked at the
    same time are embedded and searched once; if that fails, all of them get the exception, and
    nothing is cached.

    Args:
        knobs: How to.
        source: What is being cached.

    Raises:
        ConfigurationError: The metric is not the store's.
    """

    def __init__(self, knobs: CacheKnobs, source: Source[T]) -> None:
        self._knobs = knobs
        self._source = source
        self._metric = _metric(knobs.metric, source.metric)
        if knobs.rerank_factor > 1 and source.vectors is None:
            logger.warning(
                "The store's vectors cannot be read: cached documents are not re-ranked for new "
                "questions, rerank_factor is 1 instead of %d",
                knobs.rerank_factor,
            )
        self._tally = Tally()
        executor = ThreadPoolExecutor(_WORKERS, thread_name_prefix="ragcache-retriever")
        self._executor = executor
        self._embedder = QueryEmbedder(
            source.embed,
            source.aembed,
            memo_size=knobs.embedding_memo,
            dim=source.dim,
            executor=executor,
            tally=self._tally,
        )
        self._searches = SingleFlight[_Answer[T]](executor)
        self._lock = threading.Lock()
        self._cache: QueryCache[T] | None = None
        self._warned = False

    def retrieve(self, request: Request[T]) -> Retrieval[T]:
        """Answer a question.

        Raises:
            ConfigurationError: The question is empty, or k is not a whole number of at least 1.
            EmbeddingError: The embedding model gave something unusable.
            Exception: Whatever the embedding model or the store raises.
        """
        with self._counting(request):
            started = time.perf_counter()
            if request.embedding is not None:
                embedding, role = self._given(request.embedding)
            else:
                embedding, role = self._embedder.embed(request.texts)
            embedded = time.perf_counter()
            plan = self._plan(request, embedding)
            answer = self._searches.do(plan.key, plan.find, plan.work)
            return self._finish(plan, answer, role, started, embedded)

    async def aretrieve(self, request: Request[T]) -> Retrieval[T]:
        """Answer a question without blocking the event loop; otherwise as :meth:`retrieve`."""
        with self._counting(request):
            started = time.perf_counter()
            if request.embedding is not None:
                embedding, role = self._given(request.embedding)
            else:
                embedding, role = await self._embedder.aembed(request.texts)
            embedded = time.perf_counter()
            plan = self._plan(request, embedding)
            answer = await self._searches.ado(plan.key, plan.find, plan.work, plan.awork)
            return self._finish(plan, answer, role, started, embedded)

    def stats(self) -> RetrieverStats:
        """Return what was done so far. Touches memory alone."""
        return self._tally.stats(None if self._cache is None else self._cache.stats())

    def clear(self) -> None:
        """Forget every answer, after the store's documents changed. Touches memory alone.

        Searches under way are not remembered any more. Embeddings of texts are kept.
        """
        with self._lock:
            if self._cache is not None:
                self._cache.clear()

    @contextmanager
    def _counting(self, request: Request[T]) -> Iterator[None]:
        texts = request.texts
        if request.embedding is None and not (
            texts and all(isinstance(text, str) and text.strip() for text in texts)
        ):
            given = texts[0] if len(texts) == 1 else texts
            msg = f"the query must be a non-empty string, got {given!r}"
            raise ConfigurationError(msg)
        if request.k is not None:
            check_whole("k", request.k, 1)
        self._tally.add(requests=1)
        try:
            yield
        except BaseException:
            self._tally.add(failures=1)
            raise

    def _given(self, embedding: ArrayLike) -> tuple[Embedding, Role]:
        return self._embedder.check(embedding, "the query"), "found"

    def _plan(self, request: Request[T], embedding: Embedding) -> _Plan[T]:
        cache = self._cache_of(embedding.size)
        wanted = next((k for k in (request.k, self._knobs.k, self._source.k) if k), None)
        k = sys.maxsize if wanted is None else wanted
        limited = self._source.k is not None
        count = cache.fetch_count(k) if limited else 0
        version = cache.store_version

        def find() -> Hit[T] | None:
            started = time.perf_counter()
            hit = cache.lookup(embedding, k, request.key)
            self._tally.add(lookup_seconds=time.perf_counter() - started)
            return hit

        def remember(found: Sequence[T]) -> tuple[Candidate[T], ...]:
            candidates = tuple(self._candidate(document) for document in found)
            complete = not limited or len(candidates) < count
            # Nothing at all is what a store says that is still to be filled: not worth keeping.
            if candidates:
                self._insert(cache, embedding, candidates, request.key, complete, version)
            return candidates

        def work() -> _Answer[T]:
            with self._tally.call("store"):
                found = request.search(embedding, count)
            return remember(found)

        asearch = request.asearch

        async def awork() -> _Answer[T]:
            assert asearch is not None  # noqa: S101 - not called otherwise
            with self._tally.call("store"):
                found = await asearch(embedding, count)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, remember, found)

        # A search that began before the cache was cleared is not joined after it.
        key = (request.key, embedding.dtype.str, embedding.tobytes(), count, version)
        return _Plan(key, k, find, work, None if asearch is None else awork)

    def _finish(
        self,
        plan: _Plan[T],
        answered: tuple[_Answer[T], Role],
        embedding_role: Role,
        started: float,
        embedded: float,
    ) -> Retrieval[T]:
        answer, role = answered
        hit = answer if isinstance(answer, Hit) else None
        candidates = answer.candidates if isinstance(answer, Hit) else answer
        scores = hit.scores if hit is not None else None
        documents = [
            self._source.copy(one.document, None if scores is None else scores[index])
            for index, one in enumerate(candidates[: plan.k])
        ]
        self._tally.add(**{{"found": "hits", "led": "misses", "joined": "shared"}[role]: 1})
        trace = RetrievalTrace(
            hit=hit is not None,
            shared=role == "joined",
            documents=len(documents),
            distance=None if hit is None else hit.distance,
            age=None if hit is None else hit.age,
            reranked=hit is not None and hit.reranked,
            recall_bound=None if hit is None else hit.recall_bound,
            embedding_memoised=embedding_role != "led",
            embedding_seconds=embedded - started,
            retrieval_seconds=time.perf_counter() - embedded,
        )
        return Retrieval(documents, trace)

    def _cache_of(self, dim: int) -> QueryCache[T]:
        with self._lock:
            if self._cache is None:
                self._cache = QueryCache(
                    dim,
                    self._knobs.capacity,
                    self._knobs.tolerance,
                    eviction=self._knobs.eviction,
                    metric=self._metric,
                    rerank_factor=self._knobs.rerank_factor,
                    vectors=self._source.vectors,
                )
            return self._cache

    def _candidate(self, document: T) -> Candidate[T]:
        document_id, text = self._source.identify(document)
        fingerprint = content_id(text)
        return Candidate(document_id or fingerprint, document, fingerprint)

    def _insert(
        self,
        cache: QueryCache[T],
        embedding: Embedding,
        candidates: tuple[Candidate[T], ...],
        key: Hashable,
        complete: bool,
        version: int,
    ) -> None:
        try:
            cache.insert(embedding, candidates, key, complete=complete, store_version=version)
        except Exception:  # the answer is there, whatever became of remembering it
            level = logging.DEBUG if self._warned else logging.WARNING
            self._warned = True
            logger.log(level, "An answer could not be cached", exc_info=True)


def _metric(wanted: Metric | None, store: Metric | None) -> Metric:
    if wanted is not None and store is not None and wanted != store:
        msg = f"metric={wanted!r} was given, but the store ranks by {store!r}"
        raise ConfigurationError(msg)
    return wanted or store or "l2"
