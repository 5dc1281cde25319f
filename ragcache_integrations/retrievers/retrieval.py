"""What the engine of the retrievers takes, gives and counts: sources, questions, answers."""

from __future__ import annotations

import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.forks import make_reentrant_lock
from ragcache_integrations.core.single_flight import Role
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, Hit, QueryCache, QueryCacheStats
from ragcache_integrations.query_cache.redis import RedisQueryCache
from ragcache_integrations.query_cache.types import Wording

from .keys import Surroundings, TextWindow
from .stores import StoreFacts

__all__ = [
    "QUERY_CACHE_METADATA",
    "DocumentStage",
    "Embedding",
    "Note",
    "Question",
    "RetrievalTrace",
    "RetrieverStats",
    "Source",
    "Tally",
    "Texts",
    "check_question",
    "checked_results",
    "note_of",
]

T = TypeVar("T")

Embedding = NDArray[np.floating[Any]]
# What is embedded as one: usually the question alone, or several texts to be averaged.
Texts = tuple[str, ...]

QUERY_CACHE_METADATA = "query_cache"
"""Key of what the knob ``annotate`` puts into the metadata of documents."""


class Note(TypedDict):
    """What is put there: how an answer was found.

    Attributes:
        hit: Whether the cache answered.
        distance: To the question that it was found for; ``None`` for a miss.
        recall_bound: Proven lower bound of the recall; ``None`` where nothing is proven.
        age: Seconds since it was found; ``None`` for a miss.
    """

    hit: bool
    distance: float | None
    recall_bound: float | None
    age: float | None


def note_of(hit: Hit[Any] | None) -> Note:
    """Return what is noted about an answer."""
    if hit is None:
        return Note(hit=False, distance=None, recall_bound=None, age=None)
    return Note(hit=True, distance=hit.distance, recall_bound=hit.recall_bound, age=hit.age)


@dataclass(frozen=True)
class Source(Generic[T]):
    """What is being cached.

    Attributes:
        embed: Embeds texts as one.
        identify: Returns a document's id, if it has one, and its text.
        copy: Returns a document that the caller may change; with a new score, and with a note
            under :data:`QUERY_CACHE_METADATA`, where they are given.
        aembed: Embeds without blocking; ``None``: ``embed`` runs in a worker thread.
        k: The default number of documents; ``None``: the source decides.
        facts: What is known of the store.
        tag: Names embedding model and store.
        encode: Turns a document into what JSON can hold, for saving.
        decode: Turns that into the document again.
        read: Reads documents by id, given with the scores that they had, for a shared cache;
            ``None`` for each that is gone.
        score: Returns the score that the store gave a document, if documents carry it.
        embed_documents: Embeds documents' texts, shape (count, dim); needed, as is the next, for
            ``vectors="embed"``.
        text_of: Returns the text of a document that is embedded.
        spell_ids: Returns how documents' ids are spelt that the store's own methods take; ``None``
            where that is not known of one.
        window: Returns whether the embedding model leaves out a part of a text, if that is known.
        kind: The class of its documents.
    """

    embed: Callable[[Texts], ArrayLike]
    identify: Callable[[T], tuple[str | None, str]]
    copy: Callable[[T, float | None, Note | None], T]
    aembed: Callable[[Texts], Awaitable[ArrayLike]] | None = None
    k: int | None = None
    facts: StoreFacts = field(default_factory=StoreFacts)
    tag: str = ""
    encode: Callable[[T], Any] | None = None
    decode: Callable[[Any], T] | None = None
    read: Callable[[Sequence[tuple[str, float | None]]], Sequence[T | None]] | None = None
    score: Callable[[T], float | None] | None = None
    embed_documents: Callable[[list[str]], ArrayLike] | None = None
    text_of: Callable[[T], str] | None = None
    spell_ids: Callable[[Iterable[object]], Collection[str] | None] = lambda _: None
    window: TextWindow | None = None
    kind: type = object

    def candidates(self, documents: Iterable[T]) -> tuple[Candidate[T], ...]:
        """Return documents as the cache keeps them."""
        identify, score_of = self.identify, self.score
        candidates = []
        for document in checked_results(documents, self.kind):
            document_id, text = identify(document)
            fingerprint = content_id(text)
            score = None if score_of is None else score_of(document)
            candidates.append(Candidate(document_id or fingerprint, document, fingerprint, score))
        return tuple(candidates)

    def by_id(
        self, ids_and_scores: Sequence[tuple[str, float | None]], /
    ) -> list[Candidate[T] | None]:
        """Read documents for a cache that processes share; there is ``read``."""
        assert self.read is not None  # noqa: S101 - checked before
        return [
            None if document is None else self.candidates([document])[0]
            for document in self.read(ids_and_scores)
        ]


@dataclass(slots=True)
class RetrievalTrace:
    """What happened to one question. Not frozen, for the same reason as the question.

    Attributes:
        hit: Whether the cache answered.
        shared: Whether the search of another, equal question answered.
        documents: How many documents came back.
        distance: On a hit, from the question's embedding to the cached one.
        age: On a hit, seconds since the entry was made.
        reranked: On a hit, whether the candidates were re-ranked for this question.
        recall_bound: On a hit, the recall that is proven; ``None`` where nothing is.
        embedding_memoised: Whether its embedding was remembered.
        embedding_seconds: Time until the embedding was there.
        retrieval_seconds: Time from then on: lookup, search, insertion.
    """

    hit: bool = False
    shared: bool = False
    documents: int = 0
    distance: float | None = None
    age: float | None = None
    reranked: bool = False
    recall_bound: float | None = None
    embedding_memoised: bool = False
    embedding_seconds: float = 0.0
    retrieval_seconds: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Question(Generic[T]):
    """One question: as it was asked, what the core finds out about it on its way, and its answer.

    Not frozen, as making a frozen one takes longer. Each is asked once: what is found out about it
    would be overwritten.

    Attributes:
        texts: The question, or the texts that stand for it.
        search: Asks the store for that many documents, by embedding or however it likes; 0 where
            the source cannot be asked for a number.
        asearch: Async version of ``search``; ``None``: ``search`` runs in a worker thread.
        k: How many documents to return.
        key: Filter, namespace and everything else that changes the store's answer.
        namespace: The tenant, whose remembered embeddings alone are used.
        opaque: Arguments whose meaning the key cannot say. The answer is for this question alone
            then: it is neither looked up, nor cached, nor shared with an equal question.
        around: What surrounds the call, if code of the application's own may read that: an answer
            that used what the key does not hold is not kept. ``None``: there is no such code.
        embeds_around: The same, if the embedding model may read it: its embeddings are remembered
            for equal surroundings alone.
        conditions: What must still hold after the search for the answer to be kept, as settings of
            what is wrapped may be changed meanwhile.
        ranked: The search ranks by distance alone. If not, the answer is cached as it is: neither
            more is fetched nor is it re-ranked, and any change of the store ends it.
        whole: All that the search returns is the answer, be it more than k, as a hybrid search's
            is. The key says for which k it is then.
        annotate: Documents are to say what happened, see :data:`QUERY_CACHE_METADATA`.
        embedding: The question's embedding, where it is known already.
        unembedded: Texts that only the search may read. The guard compares them, too.
        cut: The search may leave documents out although the store has more, as one does that
            filters what it found.
        unobserved: The same question, for searches of which nobody who asked is to hear; ``None``
            where nobody does anyway.
        stages: Searches in stages, by embedding, for that many documents; ``None`` where the source
            cannot.
        plain: Asks the store for that many documents as its framework does where there is no text
            to embed, and no embedding; ``None``: such a question is refused.
        aplain: Async version of ``plain``; ``None``: ``plain`` runs in a worker thread.
        in_coroutine: Whether a coroutine asks it and its search is one, too.
        started: When it was asked, by ``time.perf_counter``.
        vector: Its embedding in the model's own precision, for the store.
        embedded_by: How it got its embedding.
        embedded: When it had its embedding.
        query: The embedding in the cache's 32-bit precision.
        cache: The cache that it is looked up in.
        version: The cache's ``store_version`` before the search.
        most: The most documents to return.
        wanted: How many to ask the store for; 0 where it cannot be asked for a number.
        entry_key: The key, with the text's where its embedding does not identify it.
        wording: Its words, where they are compared with those of an entry.
        private: Why neither the cache may answer this question nor keep its answer; empty where
            both are allowed.
        lookup_seconds: Time spent looking it up.
        documents: Its answer, best first.
        trace: What happened to it.
    """

    texts: Texts
    search: Callable[[Embedding, int], Sequence[T]]
    asearch: Callable[[Embedding, int], Awaitable[Sequence[T]]] | None = None
    k: int | None = None
    key: Hashable = None
    namespace: str = ""
    opaque: tuple[str, ...] = ()
    around: Surroundings | None = None
    embeds_around: Surroundings | None = None
    conditions: tuple[Callable[[], bool], ...] = ()
    ranked: bool = True
    whole: bool = False
    annotate: bool = False
    embedding: ArrayLike | None = None
    unembedded: Texts = ()
    cut: bool = False
    unobserved: Question[T] | None = None
    stages: Callable[[Embedding, int], Generator[DocumentStage[T]]] | None = None
    plain: Callable[[int], Sequence[T]] | None = None
    aplain: Callable[[int], Awaitable[Sequence[T]]] | None = None
    in_coroutine: bool = field(default=False, init=False)
    started: float = field(init=False)
    vector: Embedding = field(init=False)
    embedded_by: Role = field(init=False)
    embedded: float = field(init=False)
    query: NDArray[np.float32] = field(init=False)
    cache: QueryCache[T] | RedisQueryCache[T] = field(init=False)
    version: int = field(init=False)
    most: int = field(init=False)
    wanted: int = field(init=False)
    entry_key: Hashable = field(init=False)
    wording: Wording | None = field(init=False)
    private: str = field(init=False)
    lookup_seconds: float = field(init=False)
    documents: list[T] = field(init=False)
    trace: RetrievalTrace = field(init=False)

    def may_be_kept(self) -> bool:
        """Whether the answer is the one that the key says, now that the search is over."""
        around = self.around
        if self.private or (around is not None and around.spoilt()):
            return False
        return all(holds() for holds in self.conditions)


@dataclass(frozen=True, slots=True)
class DocumentStage(Generic[T]):
    """The best documents that a search has found so far.

    Attributes:
        documents: Best first. Those of the final stage are what an ordinary search returns.
        number: Number of the stage, from 1.
        elapsed: Seconds of searching so far; time in which nobody asked for a stage does not count.
        final: Whether the search is over. The last stage is, and no other.
        trace: With the final stage of a query cache: what happened to the question.
    """

    documents: tuple[T, ...]
    number: int
    elapsed: float
    final: bool
    trace: RetrievalTrace | None = None


def check_question(
    texts: Texts, embedding: ArrayLike | None, k: int | None, *, empty: bool = False
) -> bool:
    """Refuse what cannot be asked; return whether there is nothing to embed.

    An empty text is a question as any other: the frameworks' retrievers embed it, too, and a model
    that rephrases questions may well write one.

    Args:
        texts: The question, or the texts that stand for it.
        embedding: The question's embedding, where it is known already; no text is needed then.
        k: How many documents are wanted; ``None`` where nobody says.
        empty: Whether there may be nothing to embed.

    Raises:
        ConfigurationError: The question is no text, or k is not a whole number of at least 1.
    """
    unread = embedding is None and not texts
    if unread and not empty:
        raise ConfigurationError("the query has neither a text to embed nor an embedding")
    for text in () if embedding is not None else texts:
        if not isinstance(text, str):
            query = text if len(texts) == 1 else texts
            raise ConfigurationError(f"the query must be a string, got {query!r}")
    if k is not None:
        check_int("k", k, 1)
    return unread


def checked_results(found: Iterable[T], kind: type = object) -> Iterable[T]:
    """Return what a retriever or a store of an application's found, if it is documents.

    Args:
        found: It should be several documents.
        kind: The class of each.

    Raises:
        ConfigurationError: It is something else, such as ``None``.
    """
    if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping):
        msg = f"a retriever must return a list of documents, got {type(found).__name__}"
        raise ConfigurationError(msg)
    found = found if isinstance(found, Sequence) else list(found)
    for document in found:
        if not isinstance(document, kind):
            raise ConfigurationError(f"a retriever must return documents, got {document!r:.100}")
    return found


_SUMS_OF_CALLS = {kind: (f"{kind}_calls", f"{kind}_seconds") for kind in ("store", "embedding")}
_OUTCOMES = ("hits", "misses", "shared", "failures")


@dataclass(frozen=True, slots=True)
class RetrieverStats:
    """What a retriever did since it was made.

    ``requests = hits + misses + shared + failures``.

    Attributes:
        requests: Questions answered, or ended by an exception.
        hits: Answered from the cache.
        misses: Answered by a new search.
        shared: Answered by the search that the same question, asked at the same time, had begun.
        failures: Ended by an exception or cancelled.
        store_calls: Searches of the store, failed ones and checks among them.
        store_seconds: Time spent searching the store.
        lookup_seconds: Time spent looking up questions that were answered, re-ranking included.
        embedding_calls: Calls of the embedding model, failed ones among them.
        embedding_seconds: Time spent in the embedding model.
        embedding_memo_hits: Embeddings that were taken from the memo instead.
        shadow_checks: Answers of the cache that ``tolerance="auto"`` had checked by a search.
        shadow_failures: Checks that ended by an exception; nothing was learnt from them.
        unranked: Why cached documents are not re-ranked for the questions that they answer; empty
            where they are.
        cache: What the query cache holds; ``None`` before the first question.
    """

    requests: int = 0
    hits: int = 0
    misses: int = 0
    shared: int = 0
    failures: int = 0
    store_calls: int = 0
    store_seconds: float = 0.0
    lookup_seconds: float = 0.0
    embedding_calls: int = 0
    embedding_seconds: float = 0.0
    embedding_memo_hits: int = 0
    shadow_checks: int = 0
    shadow_failures: int = 0
    unranked: str = ""
    cache: QueryCacheStats | None = None


class Tally:
    """The running sums of :class:`RetrieverStats`.

    Args:
        unranked: Why cached documents are not re-ranked.
    """

    def __init__(self, unranked: str = "") -> None:
        # Reentrant: a garbage collection that ends a stream in the midst of this counts it, too.
        self._lock = make_reentrant_lock()
        self._unranked = unranked
        # Any: whole numbers and seconds, as the fields say.
        self._sums: dict[str, Any] = asdict(RetrieverStats())
        del self._sums["cache"], self._sums["unranked"], self._sums["requests"]

    def add(self, **amounts: float) -> None:
        """Add to some of the sums."""
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    def add_call(self, kind: str, started: float) -> None:
        """Count a call of the ``store`` or the ``embedding`` model, and the time that it took.

        Args:
            kind: Which of them was asked.
            started: When, by ``time.perf_counter``.
        """
        calls, total = _SUMS_OF_CALLS[kind]
        with self._lock:
            self._sums[calls] += 1
            self._sums[total] += time.perf_counter() - started

    def stats(self, cache: QueryCacheStats | None) -> RetrieverStats:
        """Return the sums as they are now."""
        with self._lock:
            sums = self._sums.copy()
        requests = sum(sums[outcome] for outcome in _OUTCOMES)
        return RetrieverStats(requests=requests, **sums, unranked=self._unranked, cache=cache)
