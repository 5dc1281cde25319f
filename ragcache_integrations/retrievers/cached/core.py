"""The engine of the approximate-cache retrievers, free of any framework.

A question is embedded, looked up in the query cache, and on a miss searched for in the store. An
adapter says how that is done in its framework (:mod:`.retrieval`) and gets the documents back, with
what happened.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterator,
    Sequence,
)
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ragcache_integrations.core.forks import make_executor, make_lock
from ragcache_integrations.core.single_flight import Role, SingleFlight
from ragcache_integrations.core.threads import in_executor, in_thread
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, Explanation, Hit, QueryCache
from ragcache_integrations.query_cache.redis import RedisQueryCache
from ragcache_integrations.query_cache.types import unanswered
from ragcache_integrations.query_cache.warming import start_warm_up
from ragcache_integrations.retrievers.embedder import Embedding, QueryEmbedder, Texts
from ragcache_integrations.retrievers.keys import (
    TextIdentity,
    filter_mark,
    marks_of,
    namespace_mark,
    normalize_text,
)
from ragcache_integrations.retrievers.retrieval import (
    DocumentStage,
    Request,
    Retrieval,
    RetrievalTrace,
    Source,
    check_question,
)
from ragcache_integrations.retrievers.tally import FailureCount, RetrieverStats, Tally

from .background_checks import BackgroundChecks
from .files import CacheFiles
from .follower import Follower
from .guesses import Guesses
from .knobs import CacheKnobs
from .lazy_cache import LazyCache, why_unranked
from .question import (
    Answer,
    Question,
    documents_of,
    final_stage,
    note_of,
    only_stage,
    plain_answer,
    why_private,
    with_answer,
)
from .searcher import Searcher

__all__ = ["RetrieverCore"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# Threads for the searches and embeddings that coroutines ask for, and for checks.
_WORKERS = 32

_UNRANKED = (
    "%s. Up to a distance of %s they answer other questions as they are: re-rank them with "
    "vectors='embed', where a store is searched by similarity, or choose that distance with "
    "tolerance= (and rerank_factor=1, to hear no more of this)"
)

# Of a store whose version has not been read yet.
_NO_VERSION = object()

_COUNTED: dict[Role, str] = {"found": "hits", "led": "misses", "joined": "shared"}


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

    Raises:
        ConfigurationError: The metric is not the store's, the store cannot carry the guarantee, or
            knobs do not go together.
    """

    def __init__(self, knobs: CacheKnobs, source: Source[T]) -> None:
        self._knobs = knobs
        self._source = source
        self.default_k = source.k
        self._caches = LazyCache[T](knobs, source.facts, source.tag, documents_of(source))
        proves = knobs.guarantee is not None and knobs.version is None
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
        self._identity = TextIdentity(source.window, exact=knobs.tolerance == 0)
        self._searcher = Searcher(
            source,
            self._caches,
            self.follower,
            executor=executor,
            tally=self._tally,
            embeds_documents=knobs.vectors == "embed",
        )
        self._searches = SingleFlight[Answer[T]](executor)
        self._checks = BackgroundChecks(executor, self._tally)
        self._guesses = Guesses()
        self._warned_of_opaque = False
        self._version: Hashable = _NO_VERSION
        self._version_lock = make_lock()
        start_warm_up()

    def retrieve(self, request: Request[T]) -> Retrieval[T]:
        """Answer a question.

        Raises:
            ConfigurationError: The question is no text, or k is not a whole number of at least 1.
            EmbeddingError: The embedding model gave something unusable.
            Exception: Any error of the embedding model or the store.
        """
        unread = self._begin(request)
        with self._failures:
            if unread:
                return self._plain(request, time.perf_counter())
            question = self._ask(request)
            return self._finish(question, *self._fetch(question))

    async def aretrieve(self, request: Request[T]) -> Retrieval[T]:
        """Async version of :meth:`retrieve`."""
        unread = self._begin(request)
        with self._failures:
            if unread:
                return await self._aplain(request, time.perf_counter())
            question = await self._aask(request)
            native = request.asearch is not None
            return self._finish(question, *await self._afetch(question), native=native)

    def stages(self, request: Request[T]) -> Generator[DocumentStage[T]]:
        """Answer a question in stages: those of the search, or one where the cache answers.

        Where the search has no stages, a guess from the documents in the cache comes first, as far
        as such guesses have paid off. Only the final stage's documents are cached. Each caller has
        a separate search in stages, which goes at the caller's pace; closing the generator ends it.

        Raises:
            ConfigurationError: As for :meth:`retrieve`.
            EmbeddingError: As for :meth:`retrieve`.
            Exception: Any error of the embedding model or the store.
        """
        if request.stages is None:
            yield from self._guessed_stages(request)
            return
        self._begin(request)
        with (
            self._failures,
            closing(self._stages(self._ask(request), request.stages)) as stages,
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
        self._begin(request)
        with (
            self._failures,
            closing(self._stages(await self._aask(request), request.stages)) as stages,
        ):
            while not (stage := await in_thread(next, stages)).final:
                yield stage
        yield stage

    def explain(self, request: Request[T]) -> Explanation:
        """Explain why a question would be answered from the cache, or not. The store is not asked.

        Raises:
            ConfigurationError: As for :meth:`retrieve`.
            EmbeddingError: As for :meth:`retrieve`.
            Exception: Any error of the embedding model.
        """
        check_question(request.texts, request.embedding, request.k)
        return self._explainer(self._ask(request))()

    async def aexplain(self, request: Request[T]) -> Explanation:
        """Async version of :meth:`explain`."""
        check_question(request.texts, request.embedding, request.k)
        question = await self._aask(request)
        explain = self._explainer(question)
        if question.private or question.cache.immediate:
            return explain()
        return await self._in_thread(explain)

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
        ids: Collection[str] | None,
        older_than: float | None,
    ) -> None:
        """Forget some of the answers, those for which everything holds that is not ``None``.

        Args:
            namespace: They are this tenant's, whose embeddings are forgotten, too.
            filters: They were found under this filter, or ``filter_key``.
            ids: They hold one of these documents.
            older_than: They were found longer ago than this, in seconds.

        Raises:
            ConfigurationError: The filter is no plain data.
        """
        marks = [] if filters is None else [filter_mark(filters)]
        if namespace is not None:
            if not marks and ids is None and older_than is None:
                self._embedder.forget(namespace)
            marks.append(namespace_mark(namespace))
        cache = self._caches.to_tell(None)
        if cache is None:
            return
        if isinstance(cache, RedisQueryCache):
            before = None if older_than is None else time.time() - older_than
            cache.discard(marks, ids=ids, before=before)
            return

        def matches(key: Hashable, candidates: Sequence[Candidate[T]], age: float) -> bool:
            return (
                (older_than is None or age > older_than)
                and (ids is None or any(document.id in held for document in candidates))
                and marks_of(key).issuperset(marks)
            )

        held = frozenset(ids or ())
        cache.discard(matches)

    def is_of_version(self, version: Hashable) -> bool:
        """Whether all answers were found under this version of the store."""
        return self._version == version

    def follow_version(self, version: Hashable, *, unknown: bool = True) -> None:
        """Forget every answer if the store is of another version than they are.

        Args:
            version: The store's version.
            unknown: Whether to forget answers whose version nobody has named yet.
        """
        with self._version_lock:
            named = unknown or self._version is not _NO_VERSION
            if named and version != self._version:
                self._caches.clear(wait=True)
            self._version = version

    def forget(self, request: Request[T]) -> int:
        """Forget all answers that the cache would give to a question; return how many.

        Raises:
            ConfigurationError: As for :meth:`retrieve`.
            EmbeddingError: As for :meth:`retrieve`.
            Exception: Any error of the embedding model.
        """
        check_question(request.texts, request.embedding, request.k)
        return self._forget(self._ask(request))

    async def aforget(self, request: Request[T]) -> int:
        """Async version of :meth:`forget`."""
        check_question(request.texts, request.embedding, request.k)
        question = await self._aask(request)
        if question.cache.immediate:
            return self._forget(question)
        return await self._in_thread(self._forget, question)

    def _forget(self, question: Question[T]) -> int:
        if question.private:
            return 0
        return question.cache.forget(question.query, question.k, question.key)

    def _explainer(self, question: Question[T]) -> Callable[[], Explanation]:
        if not question.private:
            return partial(question.cache.explain, question.query, question.k, question.key)
        return partial(unanswered, question.private, question.cache.tolerance)

    def _begin(self, request: Request[T]) -> bool:
        """Check a request; return whether there is nothing to embed."""
        unread = not request.texts and request.embedding is None
        texts = ("",) if unread and request.plain is not None else request.texts
        check_question(texts, request.embedding, request.k)
        return unread

    def _plain(self, request: Request[T], begun: float) -> Retrieval[T]:
        """Ask the store without the cache."""
        assert request.plain is not None  # noqa: S101 - checked before
        documents = self._tally.timed("store", request.plain, request.k or self._source.k or 0)
        self._tally.add(misses=1)
        return plain_answer(self._source, request, documents, begun)

    async def _aplain(self, request: Request[T], begun: float) -> Retrieval[T]:
        if request.aplain is None:
            return await self._in_thread(self._plain, request, begun)
        searching = request.aplain(request.k or self._source.k or 0)
        documents = await self._tally.atimed("store", searching)
        self._tally.add(misses=1)
        return plain_answer(self._source, request, documents, begun)

    def _fetch(self, question: Question[T]) -> tuple[Answer[T], Role]:
        """Return the answer to a question, and how it was got."""
        landed = self._searches.landed
        hit = self._find(question)
        if hit is not None:
            return hit, "found"
        return self._searches.do(
            self._flight(question),
            partial(self._find_again, question),
            lambda: self._searcher.search(question),
            looked=landed,
        )

    async def _afetch(self, question: Question[T]) -> tuple[Answer[T], Role]:
        landed = self._searches.landed
        if question.cache.immediate:
            hit = self._find(question)
        else:  # the executor's threads share connections among all event loops
            hit = await self._in_thread(self._find, question)
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

    def _guessed_stages(self, request: Request[T]) -> Generator[DocumentStage[T]]:
        """Yield a guess, where one pays, and the answer."""
        begun = time.perf_counter()
        if self._begin(request):
            with self._failures:
                retrieval = self._plain(request, begun)
            yield only_stage(retrieval, begun)
            return
        with self._failures:
            question = self._ask(request)
            guess = self._guess(question)
            first = None if guess is None else self._first_stage(question, guess, begun)
            if first is not None:
                yield first
            answer, role = self._fetch(question)
            retrieval = self._finish(question, answer, role)
        if guess is not None:
            self._guesses.learn(guess, _candidates_of(answer)[: question.k])
        yield replace(only_stage(retrieval, begun), number=1 if first is None else 2)

    async def _aguessed_stages(self, request: Request[T]) -> AsyncGenerator[DocumentStage[T]]:
        begun = time.perf_counter()
        if self._begin(request):
            with self._failures:
                retrieval = await self._aplain(request, begun)
            yield only_stage(retrieval, begun)
            return
        with self._failures:
            question = await self._aask(request)
            guess = self._guess(question)
            first = None if guess is None else self._first_stage(question, guess, begun)
            if first is not None:
                yield first
            answer, role = await self._afetch(question)
            native = request.asearch is not None
            retrieval = self._finish(question, answer, role, native=native)
        if guess is not None:
            self._guesses.learn(guess, _candidates_of(answer)[: question.k])
        yield replace(only_stage(retrieval, begun), number=1 if first is None else 2)

    def _guess(self, question: Question[T]) -> Hit[T] | None:
        """Guess what the store will return, from the documents in this process's cache."""
        cache = question.cache
        if question.private or not question.request.ranked or not isinstance(cache, QueryCache):
            return None
        return cache.guess(question.query, question.k, question.key)

    def _first_stage(
        self, question: Question[T], guess: Hit[T], begun: float
    ) -> DocumentStage[T] | None:
        """Return a guess as a stage; ``None`` where it does not pay."""
        if not self._guesses.pays(guess):
            return None
        documents = tuple(candidate.document for candidate in guess.candidates)
        stage = DocumentStage(documents, 1, time.perf_counter() - begun, final=False)
        return self._provisional(question, stage)

    def _stages(
        self,
        question: Question[T],
        search: Callable[[Embedding, int], Generator[DocumentStage[T]]],
    ) -> Generator[DocumentStage[T]]:
        """Yield stages up to the final one: a hit, or what a search ends with, which is kept."""
        hit = self._find(question)
        if hit is not None:
            yield only_stage(self._finish(question, hit, "found"), question.embedded)
            return
        count = self._searcher.begin(question)
        with (
            self._staging() as passed,
            closing(search(question.embedding, count)) as stages,
        ):
            for stage in stages:
                passed.append(stage)
                if stage.final:
                    break
                yield self._provisional(question, stage)
        final = final_stage(passed)
        candidates = self._searcher.remember(question, final.documents, count)
        yield with_answer(final, self._finish(question, candidates, "led"))

    @contextmanager
    def _staging(self) -> Iterator[list[DocumentStage[T]]]:
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

    def _follow_version(self, version_of_store: Callable[[], object]) -> None:
        """Ask for the store's version, and follow it."""
        version = version_of_store()
        if not isinstance(version, Hashable):  # it may be changed, and equal to itself nevertheless
            msg = f"version= must return a value that does not change, got {version!r:.100}"
            raise ConfigurationError(msg)
        self.follow_version(version, unknown=False)

    def _ask(self, request: Request[T]) -> Question[T]:
        if self._knobs.version is not None:
            self._follow_version(self._knobs.version)
        started = time.perf_counter()
        texts = _normalize(request.texts) if self._knobs.normalize_text else request.texts
        if request.embedding is None:
            embedding, role = self._embedder.embed(texts, request.namespace)
        else:
            embedding, role = self._check_embedding(request.embedding)
        return self._question(request, texts, embedding, role, started)

    async def _aask(self, request: Request[T]) -> Question[T]:
        if self._knobs.version is not None:
            await self._in_thread(self._follow_version, self._knobs.version)
        started = time.perf_counter()
        texts = _normalize(request.texts) if self._knobs.normalize_text else request.texts
        if request.embedding is None:
            embedding, role = await self._embedder.aembed(texts, request.namespace)
        else:
            embedding, role = self._check_embedding(request.embedding)
        arguments = request, texts, embedding, role, started
        if self._caches.current is None:  # making the cache takes a while
            return await self._in_thread(self._question, *arguments)
        return self._question(*arguments)

    def _check_embedding(self, embedding: ArrayLike) -> tuple[Embedding, Role]:
        return self._embedder.check(embedding, "the query"), "found"

    def _question(
        self,
        request: Request[T],
        texts: Texts,
        embedding: Embedding,
        embedded_by: Role,
        started: float,
    ) -> Question[T]:
        embedded = time.perf_counter()
        query = np.asarray(embedding, np.float32, order="C")
        cache = self._caches.for_query(query)
        wanted = request.k or self._source.k or 0
        # Which part of the text a model read is not known of an embedding from the request.
        wording = self._identity.of(texts, embedded=request.embedding is None)
        if request.opaque and not self._warned_of_opaque:
            self._warned_of_opaque = True
            logger.warning(
                "%s is no plain data: answers found under it are not cached, since nobody knows "
                "what it lets through the next time. Name what it means with filter_key=",
                " and ".join(request.opaque),
            )
        return Question(
            request=request,
            embedding=embedding,
            query=query,
            cache=cache,
            version=cache.store_version,
            k=sys.maxsize if request.whole or not wanted else wanted,
            wanted=wanted if self._source.k else 0,
            key=request.key if wording is None else (request.key, wording),
            private=why_private(request, query, shared=self._caches.shared),
            embedded_by=embedded_by,
            started=started,
            embedded=embedded,
        )

    def _in_thread(self, function: Callable[..., R], *arguments: Any) -> Awaitable[R]:
        return in_executor(self._executor, function, *arguments)

    def _flight(self, question: Question[T]) -> Hashable:
        """Return a value that equal questions share."""
        if question.private:
            return object()
        k = question.wanted
        # A search that began before the store changed, or before another cache, is not joined.
        now = (id(question.cache), question.version)
        embedding = question.embedding
        return (question.key, embedding.dtype.str, embedding.tobytes(), k, now)

    def _find(self, question: Question[T]) -> Hit[T] | None:
        if question.private:
            return None
        started = time.perf_counter()
        hit = question.cache.lookup(question.query, question.k, question.key)
        question.lookup_seconds += time.perf_counter() - started
        return hit

    def _find_again(self, question: Question[T]) -> Hit[T] | None:
        """Look a question up under a lock, for which a round trip takes too long."""
        return self._find(question) if question.cache.immediate else None

    def _finish(
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
        copy_document = self._source.copy
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


def _normalize(texts: Texts) -> Texts:
    # A text of white space and the like alone is a question nevertheless.
    return tuple(normalize_text(text) or text for text in texts)


def _candidates_of(answer: Answer[T]) -> Sequence[Candidate[T]]:
    return answer.candidates if isinstance(answer, Hit) else answer
