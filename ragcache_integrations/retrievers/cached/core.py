"""The way of one question through an approximate-cache retriever, free of any framework.

1. A framework's class is asked (``langchain/retriever.py``, ``llama_index/retriever.py``). It sees
   whether what it wraps is as it was (:class:`~..stores.LiveState`), and makes a
   :class:`~..retrieval.Question` of the call (``requests.py`` there): how to search for it, and its
   key, which says all that the answer depends on: arguments, tenant, and, if the application's own
   code may read them, the surroundings of the call (:mod:`..keys.surroundings`).
2. :meth:`RetrieverCore.retrieve` embeds it (:class:`~..embedder.QueryEmbedder`; a repeated text is
   remembered), and takes the cache for it (:class:`.LazyCache`).
3. The query cache is looked up, by embedding, key and words. A **hit** continues with step 5.
4. A **miss** searches the store, once for all that ask the same at the same time. What comes back
   is cached, unless what the key says has changed meanwhile (:meth:`~..Question.may_be_kept`).
5. The documents are copied, counted and traced, and the framework's class reports the trace.

Each way is a flow (:mod:`~ragcache_integrations.core.flows`), for threads and coroutines alike. A
hit in memory never leaves the caller's thread.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Hashable,
    Sequence,
)
from contextlib import aclosing, closing, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from itertools import repeat
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ragcache_integrations.core.flows import (
    Call,
    Flow,
    aoutputs,
    arun,
    call_once,
    next_piece,
    outputs,
    run,
)
from ragcache_integrations.core.forks import make_executor, make_lock
from ragcache_integrations.core.single_flight import Role, SingleFlight
from ragcache_integrations.core.threads import BackgroundChecks
from ragcache_integrations.errors import ConfigurationError, RAGCacheError
from ragcache_integrations.query_cache import Candidate, Explanation, Hit, QueryCache
from ragcache_integrations.query_cache.redis import RedisQueryCache
from ragcache_integrations.query_cache.types import Wording, unanswered
from ragcache_integrations.query_cache.warming import start_warm_up
from ragcache_integrations.retrievers.embedder import DocumentEmbedder, QueryEmbedder
from ragcache_integrations.retrievers.keys import (
    FollowUpWarning,
    TextIdentity,
    filter_mark,
    marks_of,
    may_share,
    namespace_mark,
    normalize_text,
    question_difference,
)
from ragcache_integrations.retrievers.retrieval import (
    DocumentStage,
    Embedding,
    Question,
    RetrievalTrace,
    RetrieverStats,
    Source,
    Tally,
    Texts,
    check_question,
    checked_results,
    note_of,
)
from ragcache_integrations.retrievers.stores import SearchResults

from .knobs import CacheKnobs
from .lazy_cache import Follower, LazyCache, in_memory, why_unranked

__all__ = ["DumpedCache", "Guesses", "RetrieverCore"]

logger = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

Answer = Hit[T] | tuple[Candidate[T], ...]
"""A hit of the cache, or the candidates of a search."""

DumpedCache = tuple[int, bytes]
"""The dimension of a cache's embeddings, and the content of the file of ``save``."""

# Threads for the searches and embeddings that coroutines ask for, and for checks.
_WORKERS = 32
_REMEMBERED, _LONGEST = 1024, 4_000
"""Questions whose words are read once, and the most characters of one."""

_UNRANKED = (
    "%s. Up to a distance of %s they answer other questions as they are: re-rank them with "
    "vectors='embed', where a store is searched by similarity, or choose that distance with "
    "tolerance= (and rerank_factor=1, to hear no more of this)"
)
_COUNTED: dict[Role, str] = {"found": "hits", "led": "misses", "joined": "shared"}


class RetrieverCore(Generic[T]):
    """Answers questions from the query cache, and from the store when the cache has no answer.

    Every method may be called from any thread and any event loop. Equal questions asked at the
    same time are embedded and searched once; if that fails, all of them get the exception, and
    nothing is cached. Methods that return a flow leave it to the caller how it is run.

    Args:
        knobs: The settings, checked.
        source: What the answers come from, and how to read and copy them.

    Attributes:
        caches: The cache, and the store's version that all answers were found under.
        follower: Receives the store's changes.
        executor: Makes the calls of flows that would block a coroutine.

    Raises:
        ConfigurationError: The metric is not the store's, the store cannot carry the guarantee, or
            knobs do not go together.
    """

    def __init__(self, knobs: CacheKnobs, source: Source[T]) -> None:
        self._source = source
        self.default_k = source.k
        documents = None if source.read is None else source.by_id
        self.caches = LazyCache[T](knobs, source.facts, source.tag, documents)
        proves = knobs.guarantee is not None and knobs.version is None
        self.follower = Follower(self.caches, source.facts.vectors, required=proves)
        unranked = why_unranked(source.facts)
        chosen = knobs.tolerance in {0, "auto"} or None not in {
            knobs.tolerance,
            knobs.rerank_factor,
        }
        if unranked and not chosen:
            logger.warning(_UNRANKED, unranked, self.caches.unranked_tolerance)
        self._tally = tally = Tally(unranked)
        self.executor = executor = make_executor(_WORKERS, "ragcache-retriever")
        self._embedder = QueryEmbedder(
            source.embed,
            source.aembed,
            memo_size=knobs.embedding_memo,
            dim=source.facts.dim,
            executor=executor,
            tally=tally,
        )
        self._documents: DocumentEmbedder[T] | None = None
        if knobs.vectors == "embed":
            embed, text_of = source.embed_documents, source.text_of
            assert embed is not None  # noqa: S101 - every store's adapter has both
            assert text_of is not None  # noqa: S101 - for type checkers
            self._documents = DocumentEmbedder(embed, text_of, executor)
        self._searches = SingleFlight[Answer[T]](executor)
        self._checks = BackgroundChecks(
            executor, partial(tally.add, shadow_checks=1), partial(tally.add, shadow_failures=1)
        )
        self._guesses = Guesses()
        self._normalizes = knobs.normalize_text
        # A proof that an answer is the store's own says more than words do.
        self._guards = knobs.guard and knobs.guarantee not in ("exact", 1)
        identity = TextIdentity(source.window, exact=knobs.tolerance == 0, guard=self._guards)
        self._read_words = partial(_words_of, identity, FollowUpWarning(), self._guards)
        self._words_of = lru_cache(_REMEMBERED)(self._read_words)
        self._warned_of_opaque = self._warned_of_insertion = False
        start_warm_up()

    def retrieve(self, question: Question[T]) -> Question[T]:
        """Answer a question; return it, with its documents and with what happened.

        Raises:
            ConfigurationError: The question is no text, or k is not a whole number of at least 1.
            EmbeddingError: The embedding model gave something unusable.
            Exception: Any error of the embedding model or the store.
        """
        return run(self._retrieve(question))

    async def aretrieve(self, question: Question[T]) -> Question[T]:
        """Async version of :meth:`retrieve`."""
        question.in_coroutine = question.asearch is not None
        return await arun(self._retrieve(question), self.executor)

    def stages(self, question: Question[T]) -> Generator[DocumentStage[T]]:
        """Answer a question in stages: those of the search, or one where the cache answers.

        Where the search has no stages, a guess from the documents in the cache comes first, as far
        as such guesses have paid off. Only the final stage's documents are cached. Each caller has
        a separate search in stages, which goes at the caller's pace; closing the generator ends it.

        Raises:
            ConfigurationError: The question is no text, or k is not a whole number of at least 1.
            EmbeddingError: The embedding model gave something unusable.
            Exception: Any error of the embedding model or the store.
        """
        return outputs(self._stages(question))

    async def astages(self, question: Question[T]) -> AsyncGenerator[DocumentStage[T]]:
        """Async version of :meth:`stages`."""
        question.in_coroutine = question.asearch is not None
        async with aclosing(aoutputs(self._stages(question), self.executor)) as stages:
            async for stage in stages:
                yield stage

    def embed(self, question: Question[T]) -> Flow[Embedding]:
        """Return a question's embedding. That of a repeated question is remembered.

        Raises:
            ConfigurationError: As for :meth:`retrieve`.
            EmbeddingError: As for :meth:`retrieve`.
            Exception: Any error of the embedding model.
        """
        check_question(question.texts, question.embedding, question.k)
        if question.embedding is not None:
            return self._embedder.check(question.embedding, "the query")
        vector, _ = yield from self._embedder.embed(
            self._texts(question), question.namespace, question.embeds_around
        )
        return vector

    def explain(self, question: Question[T]) -> Flow[Explanation]:
        """Explain why a question would be answered from the cache, or not. The store is not asked.

        Raises:
            ConfigurationError: As for :meth:`retrieve`.
            EmbeddingError: As for :meth:`retrieve`.
            Exception: Any error of the embedding model.
        """
        check_question(question.texts, question.embedding, question.k)
        yield from self._ask(question)
        cache = question.cache
        if question.private:
            return unanswered(question.private, cache.tolerance)
        what = question.query, question.most, question.entry_key
        explain = partial(cache.explain, *what, wording=question.wording)
        explanation: Explanation = explain() if cache.immediate else (yield Call(explain))
        return explanation

    def forget(self, question: Question[T]) -> Flow[int]:
        """Forget all answers that the cache would give to a question; return how many.

        Raises:
            ConfigurationError: As for :meth:`retrieve`.
            EmbeddingError: As for :meth:`retrieve`.
            Exception: Any error of the embedding model.
        """
        check_question(question.texts, question.embedding, question.k)
        yield from self._ask(question)
        if question.private:
            return 0
        cache = question.cache
        forget = partial(cache.forget, question.query, question.most, question.entry_key)
        forgotten: int = forget() if cache.immediate else (yield Call(forget))
        return forgotten

    def _retrieve(self, question: Question[T]) -> Flow[Question[T]]:
        may_be_empty = question.plain is not None
        unread = check_question(question.texts, question.embedding, question.k, empty=may_be_empty)
        try:
            if unread:
                yield self._plain(question)
                return question
            yield from self._ask(question)
            answer, role = yield from self._fetch(question)
            return self._finish(question, answer, role)
        except BaseException:
            self._tally.add(failures=1)
            raise

    def _plain(self, question: Question[T]) -> Call:
        """Ask the store without the cache, for a question without text."""
        flow = self._ask_plainly(question, time.perf_counter())
        blocks = question.aplain is None
        return Call(partial(run, flow), None if blocks else partial(arun, flow, self.executor))

    def _ask_plainly(self, question: Question[T], begun: float) -> Flow[None]:
        assert question.plain is not None  # noqa: S101 - checked before
        source, k = self._source, question.k or self._source.k
        results = yield from self._asked(question.plain, question.aplain, k or 0)
        self._tally.add(misses=1)
        found = list(checked_results(results, source.kind))[: None if question.whole else k]
        note = note_of(None) if question.annotate else None
        question.documents = [source.copy(document, None, note) for document in found]
        seconds = time.perf_counter() - begun
        question.trace = RetrievalTrace(documents=len(found), retrieval_seconds=seconds)

    # Before the lookup

    def _ask(self, question: Question[T]) -> Flow[None]:
        """Embed a question that was checked, and find out what the cache has to know of it.

        Raises:
            EmbeddingError: The embedding model gave something unusable.
            Exception: Any error of the embedding model, or of the function that reads the version.
        """
        if self.caches.read_version is not None:
            yield Call(self.caches.update_version)
        question.started = time.perf_counter()
        texts = self._texts(question) if self._normalizes else question.texts
        if question.embedding is None:
            question.vector, question.embedded_by = yield from self._embedder.embed(
                texts, question.namespace, question.embeds_around
            )
        else:
            question.vector = self._embedder.check(question.embedding, "the query")
            question.embedded_by = "found"
        question.embedded = time.perf_counter()
        if self.caches.current is None:  # making the cache takes a while
            yield Call(partial(self._prepare, question, texts))
        else:
            self._prepare(question, texts)

    def _texts(self, question: Question[T]) -> Texts:
        if not self._normalizes:
            return question.texts
        # A text of white space and the like alone is a question nevertheless.
        return tuple(normalize_text(text) or text for text in question.texts)

    def _prepare(self, question: Question[T], texts: Texts) -> None:
        question.query = np.asarray(question.vector, np.float32, order="C")
        question.cache = self.caches.for_query(question.query)
        # Which part of the text a model read is not known of an embedding from the caller.
        read_words = self._words_of if sum(map(len, texts)) <= _LONGEST else self._read_words
        identity, question.wording = read_words(
            question.texts, texts, question.unembedded, question.embedding is None
        )
        question.entry_key = question.key if identity is None else (question.key, identity)
        wanted = question.k or self._source.k or 0
        question.most = sys.maxsize if question.whole or not wanted else wanted
        question.wanted = wanted if self._source.k else 0
        question.private = self._why_private(question)
        question.lookup_seconds = 0.0
        question.version = question.cache.store_version

    def _why_private(self, question: Question[T]) -> str:
        """Return why the cache is not for a question; nothing where it is."""
        opaque, around = " and ".join(question.opaque), question.around
        if opaque and not self._warned_of_opaque:
            self._warned_of_opaque = True
            logger.warning(
                "%s is no plain data: answers found under it are not cached, as it is unknown "
                "what it lets through the next time. Name what it means with filter_key=",
                opaque,
            )
        if around is not None and (around.private or opaque):
            private = around.alone_among(question.opaque)
            if private:
                return private
        if opaque:
            return (
                f"{opaque} is no plain data, so nobody knows what else "
                "it would let through: name what it means with filter_key="
            )
        # Other processes rank what they share by distance, and do not hear that this is otherwise.
        if self.caches.shared and not question.ranked:
            return "a search that does not rank by distance alone is not shared between processes"
        # That of any other text was refused if it is zero.
        if (
            question.embedding is not None
            or "".join(question.texts).strip()
            or np.count_nonzero(question.query)
        ):
            return ""
        return "the embedding of this empty text is zero: it has no direction"

    # The lookup

    def _fetch(self, question: Question[T]) -> Flow[tuple[Answer[T], Role]]:
        """Return the answer to a question, and how it was got.

        Raises:
            Exception: Any error of the store.
        """
        landed = self._searches.landed
        # The executor's threads share connections among all event loops.
        find = partial(self._find, question)
        hit = find() if question.cache.immediate else (yield Call(find))
        if hit is not None:
            return hit, "found"
        flight: Hashable = object()
        if not question.private:
            # A search that began before the store changed, or before another cache, is not joined.
            around = () if question.around is None else question.around.flight
            now = (id(question.cache), question.version, around)
            vector = question.vector
            flight = (question.entry_key, vector.dtype.str, vector.tobytes(), question.wanted, now)
        found: tuple[Answer[T], Role] = yield call_once(
            self._searches,
            flight,
            partial(self._find_again, question),
            self._search(question),
            None if question.asearch is None else self.executor,
            looked=landed,
        )
        return found

    def _find(self, question: Question[T]) -> Hit[T] | None:
        """Look a question up in the cache."""
        if question.private:
            return None
        started = time.perf_counter()
        hit = question.cache.lookup(
            question.query, question.most, question.entry_key, wording=question.wording
        )
        question.lookup_seconds += time.perf_counter() - started
        return hit

    def _find_again(self, question: Question[T]) -> Hit[T] | None:
        """Look a question up under a lock, for which a round trip takes too long."""
        return self._find(question) if question.cache.immediate else None

    def _finish(self, question: Question[T], answer: Answer[T], role: Role) -> Question[T]:
        """Copy the documents of an answer, count and trace it; start its check where it needs one.

        Args:
            question: The question.
            answer: A hit, or what a search found.
            role: How the question got it.
        """
        hit, candidates = (answer, answer.candidates) if isinstance(answer, Hit) else (None, answer)
        if hit is not None and hit.check:
            check, native = self._check, question.in_coroutine
            self._checks.start(
                lambda: run(check(question)),
                (lambda: arun(check(question), self.executor)) if native else None,
            )
        scores = repeat(None) if hit is None or hit.scores is None else hit.scores
        note = note_of(hit) if question.annotate else None
        copy_document = self._source.copy
        question.documents = [
            copy_document(candidate.document, score, note)
            for candidate, score in zip(candidates[: question.most], scores, strict=False)
        ]
        self._tally.add(**{_COUNTED[role]: 1, "lookup_seconds": question.lookup_seconds})
        question.trace = trace = RetrievalTrace(
            shared=role == "joined",
            documents=len(question.documents),
            embedding_memoised=question.embedded_by != "led",
            embedding_seconds=question.embedded - question.started,
            retrieval_seconds=time.perf_counter() - question.embedded,
        )
        if hit is not None:
            trace.hit, trace.distance, trace.age = True, hit.distance, hit.age
            trace.reranked, trace.recall_bound = hit.reranked, hit.recall_bound
        return question

    # The search

    def _search(self, question: Question[T]) -> Flow[tuple[Candidate[T], ...]]:
        """Search the store for a question; cache and return what it says.

        Raises:
            Exception: Any error of the store.
        """
        count = self._begin(question)
        documents = yield from self._searched(question, question, count)
        if not question.in_coroutine:
            return self._remember(question, documents, count)
        candidates: tuple[Candidate[T], ...] = yield Call(
            partial(self._remember, question, documents, count)
        )
        return candidates

    def _begin(self, question: Question[T]) -> int:
        """Note the store's version before a search; return how many documents to fetch."""
        question.version = question.cache.store_version
        if not question.wanted or question.private or not question.ranked:
            return question.wanted
        return question.cache.fetch_count(question.most, question.query, question.entry_key)

    def _searched(self, question: Question[T], asked: Question[T], count: int) -> Flow[Sequence[T]]:
        """Search by a question's embedding as it, or its unobserved version, says."""
        around = question.around
        with nullcontext() if around is None else around.watched():
            return (yield from self._asked(asked.search, asked.asearch, question.vector, count))

    def _asked(
        self,
        call: Callable[..., Sequence[T]],
        acall: Callable[..., Awaitable[Sequence[T]]] | None,
        *arguments: Any,
    ) -> Flow[Sequence[T]]:
        """Ask the store; count that, and the time that it takes."""
        native = None if acall is None else partial(acall, *arguments)
        started = time.perf_counter()
        try:
            documents: Sequence[T] = yield Call(partial(call, *arguments), native)
        finally:
            self._tally.add_call("store", started)
        return documents

    def _remember(
        self, question: Question[T], documents: Sequence[T], count: int
    ) -> tuple[Candidate[T], ...]:
        """Cache what a search of ``count`` documents found; return it as candidates."""
        candidates = self._source.candidates(documents)
        vectors = documents.vectors if isinstance(documents, SearchResults) else None
        # An empty result may come from a store that is still to be filled: not worth keeping.
        if candidates and question.may_be_kept():
            try:
                self._insert(question, candidates, count, vectors)
            except Exception as error:  # the answer is there, even if it cannot be cached
                if isinstance(error, ConfigurationError):
                    self.caches.disagree(error)
                level = logging.DEBUG if self._warned_of_insertion else logging.WARNING
                self._warned_of_insertion = True
                logger.log(level, "An answer could not be cached", exc_info=True)
        return candidates

    def _insert(
        self,
        question: Question[T],
        candidates: tuple[Candidate[T], ...],
        count: int,
        vectors: ArrayLike | None,
    ) -> None:
        if self._documents is not None and vectors is None and question.ranked:
            vectors = self._documents.embed(
                candidates, partial(self._insert, question, candidates, count)
            )
        unlimited = self._source.k is None or question.whole
        complete = unlimited or (len(candidates) < count and not question.cut)
        cache = question.cache
        others: dict[str, Any] = {}
        if vectors is not None and not self.caches.shared:
            others["vectors"] = vectors
        if not question.ranked:
            cache, others = in_memory(cache), {"ranked": False}
        insert = partial(
            cache.insert,
            question.query,
            candidates,
            question.entry_key,
            k=None if unlimited else question.most,
            complete=complete,
            store_version=question.version,
            wording=question.wording,
            **others,
        )
        if not [document for document in candidates if document.id == document.fingerprint]:
            insert()
        elif self.caches.shared:
            msg = "documents without ids cannot be shared: other processes could not read them"
            raise ConfigurationError(msg)
        else:
            self.follower.insert_nameless(question.cache, question.version, insert)

    def _check(self, question: Question[T]) -> Flow[None]:
        """Report the store's result for a question that the cache has answered."""
        asked = question.unobserved or question
        documents = yield from self._searched(question, asked, question.wanted)
        cache = in_memory(question.cache)
        if cache.store_version == question.version:  # else it is another store's answer
            cache.report(
                question.query,
                question.most,
                self._source.candidates(documents),
                question.entry_key,
                wording=question.wording,
            )

    # Stages

    def _stages(self, question: Question[T]) -> Flow[None]:
        begun = time.perf_counter()
        may_be_empty = question.plain is not None
        unread = check_question(question.texts, question.embedding, question.k, empty=may_be_empty)
        try:
            if unread:
                yield self._plain(question)
                final = _only_stage(question, begun)
            else:
                yield from self._ask(question)
                by_stages = self._guess if question.stages is None else self._search_stages
                final = yield from by_stages(question, begun)
        except BaseException:  # also the caller's, who closes the generator
            self._tally.add(failures=1)
            raise
        yield final

    def _guess(self, question: Question[T], begun: float) -> Flow[DocumentStage[T]]:
        """Yield a guess at what the store will return, where one pays; return the answer."""
        cache, guess, number = question.cache, None, 1
        if not question.private and question.ranked and isinstance(cache, QueryCache):
            # From the documents in this process's cache.
            guess = cache.guess(question.query, question.most, question.entry_key)
        if guess is not None and self._guesses.pays(guess):
            documents = tuple(candidate.document for candidate in guess.candidates)
            stage = DocumentStage(documents, number, time.perf_counter() - begun, final=False)
            yield self._provisional(question, stage)
            number += 1
        answer, role = yield from self._fetch(question)
        self._finish(question, answer, role)
        if guess is not None:
            found = answer.candidates if isinstance(answer, Hit) else answer
            self._guesses.learn(guess, found[: question.most])
        return replace(_only_stage(question, begun), number=number)

    def _search_stages(self, question: Question[T], _: float) -> Flow[DocumentStage[T]]:
        """Yield the stages of a search but the final one, which is returned as it is kept."""
        find = partial(self._find, question)
        hit = find() if question.cache.immediate else (yield Call(find))
        if hit is not None:
            return _only_stage(self._finish(question, hit, "found"), question.embedded)
        assert question.stages is not None  # noqa: S101 - checked before
        count, around = self._begin(question), question.around
        stage: DocumentStage[T] | None = None
        elapsed = 0.0
        search = question.stages(question.vector, count)
        try:
            with closing(search if around is None else around.each(search)) as pieces:
                while (stage := (yield next_piece(pieces))) is not None:
                    elapsed = stage.elapsed
                    if stage.final:
                        break
                    yield self._provisional(question, stage)
        finally:  # all of it is one call of the store
            self._tally.add(store_calls=1, store_seconds=elapsed)
        if stage is None:
            raise RuntimeError("the search ended without a final stage")
        candidates = yield Call(partial(self._remember, question, stage.documents, count))
        self._finish(question, candidates, "led")
        return replace(stage, documents=tuple(question.documents), trace=question.trace)

    def _provisional(self, question: Question[T], stage: DocumentStage[T]) -> DocumentStage[T]:
        documents = (
            self._source.copy(document, None, None) for document in stage.documents[: question.most]
        )
        return replace(stage, documents=tuple(documents))

    # What is kept, as a whole

    def stats(self) -> RetrieverStats:
        """Return what was done so far. Touches memory alone."""
        cache = self.caches.current
        return self._tally.stats(None if cache is None else cache.stats())

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
            raise ConfigurationError(f"ids must be several strings, got {ids!r:.100}")
        cache = self.caches.to_tell(None)
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

    def save(self, path: str | PathLike[str], *, store_tag: str = "") -> None:
        """Write what is cached to a file.

        Args:
            path: The file.
            store_tag: Names the store's documents as they are, so that :meth:`load` can refuse what
                was found among others.

        Raises:
            ConfigurationError: There has been no question yet; an argument is wrong; or a document
                cannot be written.
            OSError: The file cannot be written. It is as it was.
        """
        cache = self.caches.current
        if cache is None:
            raise ConfigurationError("there is nothing to save before the first question")
        in_memory(cache).save(path, encode=self._source.encode, store_tag=store_tag)

    def load(self, path: str | PathLike[str], *, store_tag: str = "") -> Flow[int]:
        """Replace what is cached by what :meth:`save` wrote, for the same store and model.

        The store must hold what it held then: nothing is known of changes in between.

        Args:
            path: The file.
            store_tag: As passed to :meth:`save`.

        Returns:
            How many answers there are.

        Raises:
            CacheFileError: The file is damaged, or was saved for others. The cache is empty then.
            ConfigurationError: An argument is wrong.
            OSError: The file cannot be read.
            Exception: Any error of the embedding model, which is called if neither the store nor
                a question has shown the dimension.
        """
        dim = self._embedder.dim
        if dim is None:
            embedding, _ = yield from self._embedder.embed(("dimension",))
            dim = embedding.size
        answers: int = yield Call(partial(self._load, dim, path, store_tag))
        return answers

    def dump(self) -> DumpedCache | None:
        """Return what is cached as :meth:`save` writes it; ``None`` where there is nothing to."""
        cache = self.caches.current
        if cache is None or self.caches.shared:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cache.npz"
            self.save(path)
            return cache.dim, path.read_bytes()

    def restore(self, dumped: DumpedCache | None) -> None:
        """Replace what is cached by what :meth:`dump` returned; cache nothing where that fails."""
        if dumped is None:
            return
        dim, content = dumped
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cache.npz"
            path.write_bytes(content)
            try:
                self._load(dim, path, "")
            except RAGCacheError as error:
                logger.warning("The pickled cache is not used: %s", error)

    def _load(self, dim: int, path: str | PathLike[str], store_tag: str) -> int:
        cache, source = in_memory(self.caches.of_dimension(dim)), self._source
        with self.follower.waiting() as note_nameless:

            def decode(saved: Any) -> T:
                document: T = saved if source.decode is None else source.decode(saved)
                if not source.identify(document)[0]:
                    note_nameless()
                return document

            return cache.load(path, decode=decode, store_tag=store_tag)


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


def _words_of(
    identity: TextIdentity,
    follow_ups: FollowUpWarning,
    guards: bool,
    asked: Texts,
    texts: Texts,
    unembedded: Texts,
    embedded: bool,
) -> tuple[Hashable | None, Wording | None]:
    """Return what the key, and what the guard, have to know of a question's words.

    Args:
        identity: Says which texts the key names.
        follow_ups: Hears the question.
        guards: Whether words are compared with those of an entry.
        asked: The question.
        texts: As they are embedded.
        unembedded: Further texts that only the search may read.
        embedded: Whether the model has read the texts.
    """
    for text in asked:
        follow_ups.hear(text)
    wording = None
    if guards:
        texts += unembedded
        if texts:
            wording = Wording("\n".join(texts), may_share, question_difference, _are_kin)
    return identity.of(texts, embedded=embedded), wording


def _are_kin(key: tuple[Hashable, Hashable], other: tuple[Hashable, Hashable]) -> bool:
    """Whether two keys of questions differ in nothing but what identifies their texts."""
    return key[0] == other[0]


def _only_stage(question: Question[T], begun: float) -> DocumentStage[T]:
    """Return a question's answer as the only stage of a search that began then."""
    elapsed = time.perf_counter() - begun
    return DocumentStage(tuple(question.documents), 1, elapsed, final=True, trace=question.trace)
