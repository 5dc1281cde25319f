"""Searches of the store for what the cache does not answer, and what is kept of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.flows import Call, Flow
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.core.threads import is_ending
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, Hit, VectorsPendingError
from ragcache_integrations.query_cache.redis import DocumentSource
from ragcache_integrations.retrievers.retrieval import (
    Note,
    Question,
    Retrieval,
    RetrievalTrace,
    Source,
    checked_results,
)
from ragcache_integrations.retrievers.stores import SearchResults, StoreFacts
from ragcache_integrations.retrievers.tally import Tally

from .knobs import CacheKnobs
from .lazy_cache import Follower, LazyCache, in_memory

__all__ = [
    "Searcher",
    "candidates_of",
    "documents_of",
    "note_of",
    "with_chosen_vectors",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Vectors = NDArray[np.float32]

_CAPACITY = 20_000
"""Documents whose vectors are kept: 30 MB of 384 numbers each."""


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

    def plain(self, question: Question[T], begun: float) -> Flow[Retrieval[T]]:
        """Ask the store without the cache, for a question without text.

        Args:
            question: The question; it has a ``plain`` search.
            begun: When it came, by ``time.perf_counter``.

        Raises:
            Exception: Any error of the store.
        """
        assert question.plain is not None  # noqa: S101 - checked before
        source, k = self._source, question.k or self._source.k
        results = yield from self._asked(question.plain, question.aplain, k or 0)
        self._tally.add(misses=1)
        found = list(checked_results(results, source.kind))[: None if question.whole else k]
        note = note_of(None) if question.annotate else None
        documents = [source.copy(document, None, note) for document in found]
        seconds = time.perf_counter() - begun
        trace = RetrievalTrace(documents=len(documents), retrieval_seconds=seconds)
        return Retrieval(documents, trace)

    def begin(self, question: Question[T]) -> int:
        """Note the store's version before a search; return how many documents to fetch."""
        question.version = question.cache.store_version
        if not question.wanted or question.private or not question.ranked:
            return question.wanted
        return question.cache.fetch_count(question.most, question.query, question.entry_key)

    def search(self, question: Question[T]) -> Flow[tuple[Candidate[T], ...]]:
        """Search the store for a question; cache and return what it says.

        Raises:
            Exception: Any error of the store.
        """
        count = self.begin(question)
        documents = yield from self._asked(
            question.search, question.asearch, question.vector, count
        )
        if not question.in_coroutine:
            return self.remember(question, documents, count)
        candidates: tuple[Candidate[T], ...] = yield Call(
            partial(self.remember, question, documents, count)
        )
        return candidates

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

    def remember(
        self, question: Question[T], documents: Sequence[T], count: int
    ) -> tuple[Candidate[T], ...]:
        """Cache what a search of ``count`` documents found; return it as candidates."""
        candidates = candidates_of(self._source, documents)
        vectors = documents.vectors if isinstance(documents, SearchResults) else None
        # An empty result may come from a store that is still to be filled: not worth keeping.
        is_current = question.is_current
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
        if self._documents is not None and vectors is None and question.ranked:
            vectors = self._documents.embed(
                candidates, partial(self._insert, question, candidates, count)
            )
        unlimited = self._source.k is None or question.whole
        complete = unlimited or (len(candidates) < count and not question.cut)
        cache = question.cache
        others: dict[str, Any] = {}
        if vectors is not None and not self._caches.shared:
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
        elif self._caches.shared:
            msg = "documents without ids cannot be shared: other processes could not read them"
            raise ConfigurationError(msg)
        else:
            self._follower.insert_nameless(question.cache, question.version, insert)

    def check(self, question: Question[T]) -> Flow[None]:
        """Report the store's result for a question that the cache has answered."""
        asked = question.unobserved or question
        documents = yield from self._asked(
            asked.search, asked.asearch, question.vector, question.wanted
        )
        cache = in_memory(question.cache)
        if cache.store_version == question.version:  # else it is another store's answer
            cache.report(
                question.query,
                question.most,
                candidates_of(self._source, documents),
                question.entry_key,
                wording=question.wording,
            )


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


def with_chosen_vectors(facts: StoreFacts, knobs: CacheKnobs) -> StoreFacts:
    """Return the facts of a store as it is searched, with vectors from where ``vectors=`` says.

    Raises:
        ConfigurationError: The store does not rank by the distance of vectors alone.
    """
    if knobs.vectors is None:
        return facts if knobs.guarantee is None else facts.searched_exhaustively()
    if facts.by_text:
        msg = f"vectors={knobs.vectors!r} cannot re-rank what the store returns: {facts.doubt}"
        raise ConfigurationError(msg)
    return facts.with_vectors(_unread if knobs.vectors == "embed" else knobs.vectors)


def _unread(ids: Sequence[str]) -> NoReturn:
    """Read no vectors: they are computed from documents, and not known by their ids.

    Raises:
        VectorsPendingError: Always.
    """
    raise VectorsPendingError(f"the vectors of {len(ids)} documents are computed from their texts")


class DocumentEmbedder(Generic[T]):
    """Embeds documents that were retrieved, each text once, in a thread.

    Args:
        embed: Embeds texts, shape (count, dim).
        text_of: Returns the text of a document that is embedded: with metadata, in LlamaIndex.
        executor: Runs what is off the path of requests.
    """

    def __init__(
        self,
        embed: Callable[[list[str]], ArrayLike],
        text_of: Callable[[T], str],
        executor: Executor,
    ) -> None:
        self._embed = embed
        self._text_of = text_of
        self._executor = executor
        self._lock = make_lock()
        self._embedding = make_lock()  # one call at a time, so that nothing is embedded twice
        self._vectors: Memo[str, Vectors] = Memo(_CAPACITY)  # by their texts' hashes
        self._warned = False
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._vectors = Memo(_CAPACITY)  # a thread of the parent may have been changing it

    def embed(
        self, candidates: Sequence[Candidate[T]], use: Callable[[Vectors], object]
    ) -> Vectors | None:
        """Return the vectors of documents, or embed them in a thread.

        Args:
            candidates: The documents.
            use: Receives the vectors, shape (len(candidates), dim), in that thread.

        Returns:
            ``None`` where a thread embeds them.
        """
        texts = [self._text_of(candidate.document) for candidate in candidates]
        keys = list(map(content_id, texts))
        vectors = self._known(keys)
        if vectors is None:
            self._executor.submit(self._embed_missing, texts, keys, use)
        return vectors

    def _known(self, keys: Sequence[str]) -> Vectors | None:
        with self._lock:
            vectors = [self._vectors.get(key) for key in keys]
        known = [vector for vector in vectors if vector is not None]
        return np.stack(known) if known and len(known) == len(vectors) else None

    def _embed_missing(
        self, texts: Sequence[str], keys: Sequence[str], use: Callable[[Vectors], object]
    ) -> None:
        try:
            with self._embedding:
                with self._lock:
                    missing = {
                        key: text
                        for key, text in zip(keys, texts, strict=True)
                        if key not in self._vectors
                    }
                if missing:
                    rows = np.asarray(self._embed(list(missing.values())), dtype=np.float32)
                    with self._lock:
                        self._vectors.update(zip(missing, rows, strict=True))
            vectors = self._known(keys)
            if vectors is not None:  # else they are more than are kept
                use(vectors)
        except Exception as error:  # the answer is served; others are only not re-ranked
            level = logging.DEBUG if self._warned or is_ending(error) else logging.WARNING
            self._warned = True
            logger.log(level, "Documents could not be embedded to be re-ranked", exc_info=True)
