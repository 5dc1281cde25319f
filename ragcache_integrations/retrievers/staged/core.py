"""The engine of the staged retrievers, free of any framework.

A question is embedded and searched for in stages; an adapter says how documents are looked up in
its framework. The search itself is :class:`~ragcache_integrations.vector_search.StagedIndex`'s.
"""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, PlainValidator

from ragcache_integrations.core.flows import Call, Flow, next_piece
from ragcache_integrations.core.forks import make_executor
from ragcache_integrations.core.knobs import Count, PositiveOrNone
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.embedder import QueryEmbedder
from ragcache_integrations.retrievers.retrieval import (
    DocumentStage,
    Embedding,
    Tally,
    Texts,
    check_question,
)
from ragcache_integrations.retrievers.stores import (
    StoreFacts,
    StoreMethods,
    extreme_lengths,
    faiss_score,
)
from ragcache_integrations.vector_search import Found, Stage, StagedIndex, StagePlan
from ragcache_integrations.vector_search.searches import Filter, faiss

__all__ = [
    "STAGED_INDEX_METHODS",
    "Indexed",
    "StagedCore",
    "StagedKnobs",
    "StagedSource",
    "all_of",
    "always",
]


def _facts_of(index: Indexed, *, normalised: bool) -> StoreFacts:
    """Return what is known of a staged index, for a cache in front of it.

    Args:
        index: Returns the index as it is now.
        normalised: Questions are brought to unit length, as the documents were.
    """
    now = index()
    metric, kind = now.metric, type(now.index).__name__

    def vectors(ids: Sequence[str], /) -> NDArray[np.float32]:
        return index().vectors(ids)

    return StoreFacts(
        metric="cosine" if normalised else metric,
        vectors=vectors,
        dim=now.dim,
        exact=now.exact_search,
        doubt="" if now.exact_search else f"its FAISS index, an {kind}, leaves vectors out",
        inexact=not now.exact_search,
        lengths=lambda: extreme_lengths(vectors, index().ids),
        score=lambda distance: faiss_score(distance, metric),
    )


def _ids(arguments: Mapping[str, Any], _: Any) -> Collection[str] | None:
    ids = arguments["ids"]
    return ids if isinstance(ids, list | tuple) else None  # what else there is may be used up


STAGED_INDEX_METHODS = StoreMethods(
    base="",
    updates=dict.fromkeys(("add", "aadd", "update", "aupdate"), _ids),
    removes=dict.fromkeys(("delete", "adelete"), _ids),
)
"""Those of :class:`~ragcache_integrations.vector_search.StagedIndex`."""


T = TypeVar("T")

# Threads for the embeddings and searches that coroutines ask for.
_WORKERS = 32
_TRIES = 3  # of a search during which a store is changed


def _check_plan(value: object) -> StagePlan | None:
    if value is None or isinstance(value, StagePlan):
        return value
    msg = f"plan must be a StagePlan, such as StagePlan(number=8), or None, got {value!r}"
    raise ConfigurationError(msg)


def _check_filter(value: object) -> Any:
    if value is None or isinstance(value, Mapping) or callable(value):
        return value
    msg = f"filter must be a mapping of metadata or a function of it, or None, got {value!r}"
    raise ConfigurationError(msg)


class StagedKnobs(BaseModel):
    """The settings of a :class:`StagedFaissRetriever`.

    Attributes:
        k: Number of documents to return; ``None`` for the framework's default number.
        plan: How a search is divided into stages, a
            :class:`~ragcache_integrations.vector_search.StagePlan`. ``None`` means eight stages,
            or stages of the ``interval`` that the caller chooses.
        filter: Search only documents whose metadata have these values (any of them if a value is a
            list), or for whose metadata this function is true.
        embedding_memo: The most texts whose embeddings are kept, so that a repeated text is not
            embedded again; 0 for none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    k: PositiveOrNone = None
    plan: Annotated[StagePlan | None, PlainValidator(_check_plan)] = None
    filter: Annotated[Filter | None, PlainValidator(_check_filter)] = None
    embedding_memo: Count = 1024


class Indexed(Protocol):
    """Returns an index as it is now."""

    def __call__(self, *, described: bool = False) -> StagedIndex:
        """Return the index; ``described``: with metadata to filter by."""


@dataclass(frozen=True)
class StagedSource(Generic[T]):
    """What is searched.

    Attributes:
        index: The index.
        look_up: Returns a document by its id and its distance, as the index reports it; ``None``
            where there is none.
        embed: Embeds texts as one.
        aembed: Embeds without blocking; ``None``: ``embed`` runs in a worker thread.
        k: How many documents to return where nobody says.
        normalised: Questions are brought to unit length, as the documents were.
    """

    index: Indexed
    look_up: Callable[[str, float], T | None]
    embed: Callable[[Texts], ArrayLike]
    aembed: Callable[[Texts], Awaitable[ArrayLike]] | None
    k: int
    normalised: bool


class StagedCore(Generic[T]):
    """Answers questions from an index, at once or in stages.

    Every method may be called from any thread and any event loop.

    Args:
        knobs: The settings, checked.
        source: What is searched.

    Attributes:
        k: How many documents are returned where a question does not say.
        facts: What is known of the index, for a cache in front.
        executor: Makes the calls of flows that would block a coroutine.
    """

    def __init__(self, knobs: StagedKnobs, source: StagedSource[T]) -> None:
        self._knobs = knobs
        self._source = source
        self.k = knobs.k or source.k
        self.facts = _facts_of(source.index, normalised=source.normalised)
        self.executor = make_executor(_WORKERS, "ragcache-staged")
        self._embedder = QueryEmbedder(
            source.embed,
            source.aembed,
            memo_size=knobs.embedding_memo,
            dim=self.facts.dim,
            executor=self.executor,
            tally=Tally(),
        )

    @property
    def read(self) -> Callable[[Sequence[tuple[str, float | None]]], list[T | None]]:
        """Returns documents by ids, with the scores that they had; ``None`` for those gone."""
        look_up = self._source.look_up
        return lambda documents: [
            look_up(document_id, score or 0.0) for document_id, score in documents
        ]

    def retrieve(
        self,
        texts: Texts,
        k: int | None,
        filter_: Filter | None = None,
        *,
        embedding: ArrayLike | None = None,
    ) -> Flow[list[T]]:
        """Return the best documents, best first.

        Args:
            texts: The question, or several texts to be embedded as one.
            k: How many documents to return; the knob's number where ``None``.
            filter_: Used instead of the knob ``filter``, if not ``None``.
            embedding: The question's embedding, where it is known already.

        Raises:
            ConfigurationError: The question cannot be asked, or a document is missing.
            EmbeddingError: The embedding model gave something unusable.
            Exception: Any error of the embedding model.
        """
        vector = yield from self._embed(texts, embedding, k)
        # In a thread, for coroutines: documents may lie in a database.
        documents: list[T] = yield Call(partial(self.search, vector, k, filter_))
        return documents

    def stages(
        self,
        texts: Texts,
        k: int | None,
        filter_: Filter | None = None,
        interval: float | None = None,
        *,
        embedding: ArrayLike | None = None,
    ) -> Flow[None]:
        """Yield the best documents so far, the last time those of :meth:`retrieve`.

        Closing it ends the search between two stages. Arguments and errors are those of
        :meth:`retrieve` and :meth:`search_stages`.
        """
        vector = yield from self._embed(texts, embedding, k)
        with closing(self.search_stages(vector, k, filter_, interval)) as search:
            while (stage := (yield next_piece(search))) is not None:
                yield stage

    # By embedding, for a cache in front that has one.

    def search(self, embedding: Embedding, k: int | None, filter_: Filter | None = None) -> list[T]:
        """Return the best documents for an embedding."""
        vector, k, filter_ = self._make_query(embedding), k or self.k, self._filter(filter_)
        tries = 0
        while True:
            tries += 1
            index = self._index(filter_)
            version = index.version
            try:
                results = index.search(vector, k, filter=filter_)
                return list(self._look_up(index, filter_, version, results))
            except ConfigurationError:
                if self._is_final(index, filter_, tries):
                    raise

    def search_stages(
        self,
        embedding: Embedding,
        k: int | None,
        filter_: Filter | None = None,
        interval: float | None = None,
    ) -> Generator[DocumentStage[T]]:
        """Yield the best documents so far for an embedding.

        Args:
            embedding: The question's embedding.
            k: As for :meth:`retrieve`.
            filter_: As for :meth:`retrieve`.
            interval: Seconds that a stage should take, where the knob ``plan`` does not say.
        """
        vector, k, filter_ = self._make_query(embedding), k or self.k, self._filter(filter_)
        plan: StagePlan | None = self._knobs.plan
        if plan is None and interval is not None:
            plan = StagePlan(seconds=interval)
        tries, number, elapsed, before = 0, 0, 0.0, 0.0
        while True:
            tries += 1
            index = self._index(filter_)
            try:
                version = index.version  # before the stage that may find what is then deleted
                with closing(index.stages(vector, k, plan=plan, filter=filter_)) as search:
                    for stage in search:
                        number, elapsed = number + 1, before + stage.elapsed
                        documents = self._look_up(index, filter_, version, stage)
                        yield DocumentStage(documents, number, elapsed, final=stage.final)
                        version = index.version
            except ConfigurationError:
                if self._is_final(index, filter_, tries):
                    raise
                before = elapsed
            else:
                return

    def _filter(self, filter_: Filter | None) -> Filter | None:
        knob: Filter | None = self._knobs.filter
        return knob if filter_ is None else filter_

    def _index(self, filter_: Filter | None) -> StagedIndex:
        return self._source.index(described=filter_ is not None)

    def _is_final(self, index: StagedIndex, filter_: Filter | None, tries: int) -> bool:
        """Whether an error has nothing to do with a store that was being changed."""
        return tries >= _TRIES or self._index(filter_) is index

    def _embed(self, texts: Texts, embedding: ArrayLike | None, k: int | None) -> Flow[Embedding]:
        check_question(texts, embedding, k)
        if embedding is not None:
            return self._embedder.check(embedding, "the query")
        return (yield from self._embedder.embed(texts))[0]

    def _make_query(self, embedding: Embedding) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = np.array([embedding], dtype=np.float32)
        if self._source.normalised:
            faiss().normalize_L2(rows)  # the stores' own way, to the last bit
        vector: NDArray[np.float32] = rows[0]
        return vector

    def _look_up(
        self, index: StagedIndex, filter_: Filter | None, version: int, results: Found | Stage
    ) -> tuple[T, ...]:
        documents: list[T] = []
        for document_id, distance in zip(results.ids, results.distances, strict=True):
            document = self._source.look_up(document_id, distance)
            if document is not None:
                documents.append(document)
            elif index.version == version and self._index(filter_) is index:
                msg = f"the index holds {document_id!r}, but there is no such document"
                raise ConfigurationError(msg)
            # Else it was deleted meanwhile.
        return tuple(documents)


def always(index: StagedIndex) -> Indexed:
    """Return an index that follows its own changes, as it is now."""

    def searched(*, described: bool = False) -> StagedIndex:
        del described  # it has what metadata it was given
        return index

    return searched


def all_of(ids: Sequence[str], known: Mapping[str, T], name: str) -> dict[str, T]:
    """Return the values of ids, in their order.

    Raises:
        ConfigurationError: An id is unknown.
    """
    missing = [document_id for document_id in ids if document_id not in known]
    if missing:
        msg = f"{name} must hold all that the index does, {missing[0]!r} is missing"
        raise ConfigurationError(msg)
    return {document_id: known[document_id] for document_id in ids}
