"""The approximate query cache as a LangChain retriever."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Hashable, Sequence
from contextlib import aclosing, closing
from dataclasses import asdict
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, Unpack

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams, RetrieverLike
from langchain_core.runnables import RunnableConfig
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Explanation
from ragcache_integrations.retrievers.copying import freeze
from ragcache_integrations.retrievers.core import RetrieverCore
from ragcache_integrations.retrievers.embedder import Embedding, Texts
from ragcache_integrations.retrievers.knobs import CacheKnobs, KnobArguments, explain_error
from ragcache_integrations.retrievers.langchain_documents import (
    copy_document,
    decode_document,
    encode_document,
)
from ragcache_integrations.retrievers.langchain_runs import AsyncRetrieverRun, RetrieverRun
from ragcache_integrations.retrievers.langchain_stores import (
    METHODS,
    facts_of,
    has_blocking_coroutines,
    reader_of,
)
from ragcache_integrations.retrievers.retrieval import (
    DocumentStage,
    Request,
    RetrievalTrace,
    Source,
)
from ragcache_integrations.retrievers.stage_runs import aobserved, observed
from ragcache_integrations.retrievers.staged import Question
from ragcache_integrations.retrievers.staged_index_changes import STAGED_INDEX_METHODS
from ragcache_integrations.retrievers.staged_langchain import StagedFaissRetriever
from ragcache_integrations.retrievers.store_changes import unwatch, watch
from ragcache_integrations.retrievers.store_facts import StoreFacts, tag_of
from ragcache_integrations.retrievers.tally import RetrieverStats
from ragcache_integrations.vector_search import StagedIndex

__all__ = ["QUERY_CACHE_EVENT", "ApproximateCacheRetriever"]

QUERY_CACHE_EVENT = "query_cache"
"""Name of the custom event that every call sends to its callbacks; its data is a dict of the
:class:`~ragcache_integrations.retrievers.core.RetrievalTrace`."""

# What VectorStore.similarity_search asks for where nobody says.
_DEFAULT_K = 4
_RETRIEVER = "a wrapped retriever tells neither how it searches nor vectors; wrap its store instead"


class ApproximateCacheRetriever(CacheKnobs, BaseRetriever):
    """Answers a question from the documents of an earlier one that is close enough.

    Takes the place of ``store.as_retriever()``, or of any other retriever::

        retriever = ApproximateCacheRetriever.from_vectorstore(store, tolerance=0.3)

    Documents come back as the store gave them. What is added to, deleted from or updated in the
    store through the very object given here is followed; for other changes there are :meth:`attach`
    and :meth:`clear`, and ``ttl``. ``invoke`` and ``ainvoke`` also take ``k``, ``filter`` (for a
    vector store or a :class:`StagedFaissRetriever`) and ``namespace`` for one call. Callbacks get a
    custom event named ``query_cache`` for every call, and traces the metadata ``query_cache_hit``,
    ``query_cache_shared`` and ``query_cache_distance``.

    The knobs are those of :class:`~ragcache_integrations.retrievers.knobs.CacheKnobs`. Safe to
    use from any thread and any event loop at once.

    Attributes:
        vectorstore: The store to search. Exactly one of ``vectorstore`` and ``retriever``.
        retriever: The retriever to ask.
        embeddings: Embeds the questions; where ``None``, the store's own.
        search_kwargs: Arguments for the store's search, such as ``filter``.

    Raises:
        ConfigurationError: An argument is unknown, out of its range or missing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    vectorstore: VectorStore | None = None
    retriever: RetrieverLike | None = None
    embeddings: Embeddings | None = None
    search_kwargs: dict[str, Any] = Field(default_factory=dict)

    _core: RetrieverCore[Document] = PrivateAttr()
    _filters_afterwards: bool = PrivateAttr()

    if not TYPE_CHECKING:  # type checkers know the fields as arguments

        def __init__(self, **arguments: Any) -> None:
            try:
                super().__init__(**arguments)
            except ValidationError as error:
                raise explain_error(error, type(self).model_fields) from error

    def model_post_init(self, context: Any, /) -> None:
        """Wire the cache to what it wraps."""
        super().model_post_init(context)
        if (self.vectorstore is None) == (self.retriever is None):
            msg = "give either vectorstore or retriever, and not both"
            raise ConfigurationError(msg)
        if self.retriever is not None and self.search_kwargs:
            msg = "search_kwargs are for a vectorstore; set them on the wrapped retriever instead"
            raise ConfigurationError(msg)
        if "k" in self.search_kwargs:
            msg = f"give k={self.search_kwargs['k']!r} as an argument, not in search_kwargs"
            raise ConfigurationError(msg)
        freeze(self.search_kwargs)
        embeddings = self._embedding_model
        if embeddings is None:
            msg = "embeddings are needed: there are none to take from what is wrapped"
            raise ConfigurationError(msg)

        async def aembed(texts: Texts) -> ArrayLike:
            return await embeddings.aembed_query(texts[0])

        facts, default_k = self._wrapped()
        self._core = RetrieverCore(
            # Not self: the core would keep it alive in a cycle, and its threads with it.
            CacheKnobs(**{name: getattr(self, name) for name in CacheKnobs.model_fields}),
            Source(
                embed=lambda texts: embeddings.embed_query(texts[0]),
                aembed=aembed if _native(embeddings, Embeddings, "aembed_query") else None,
                identify=lambda document: (document.id, document.page_content),
                copy=copy_document,
                k=default_k,
                facts=facts,
                tag=tag_of(embeddings, self.vectorstore or self.retriever),
                encode=encode_document,
                decode=decode_document,
                read=self._reader(),
            ),
        )
        self._filters_afterwards = facts.filters_afterwards
        if self.follow_changes:
            store, index = self.vectorstore, None
            if self._staged is not None:
                store, index = self._staged.vectorstore, self._staged.index
            if store is not None:
                self._core.follower.follow(store, METHODS)
            if index is not None:
                self._core.follower.follow(index, STAGED_INDEX_METHODS)

    @classmethod
    def from_vectorstore(
        cls,
        vectorstore: VectorStore,
        embeddings: Embeddings | None = None,
        *,
        search_kwargs: dict[str, Any] | None = None,
        **knobs: Unpack[KnobArguments],
    ) -> Self:
        """Wrap a vector store; it is searched by vector, so that a question is embedded once.

        Args:
            vectorstore: The store.
            embeddings: Embeds the questions; where ``None``, the store's own.
            search_kwargs: Arguments for the store's search, such as ``filter``.
            **knobs: See :class:`~ragcache_integrations.retrievers.knobs.CacheKnobs`.

        Raises:
            ConfigurationError: An argument is unknown, out of its range or missing.
        """
        return cls(
            vectorstore=vectorstore,
            embeddings=embeddings,
            search_kwargs=search_kwargs or {},
            **knobs,
        )

    @classmethod
    def from_retriever(
        cls,
        retriever: RetrieverLike,
        embeddings: Embeddings | None = None,
        **knobs: Unpack[KnobArguments],
    ) -> Self:
        """Wrap any retriever, or any Runnable from a question to documents.

        What ``store.as_retriever()`` made is taken apart and its store wrapped instead, unless it
        searches otherwise than by similarity: then the question is embedded only once, and hits
        can be re-ranked.

        Args:
            retriever: The retriever.
            embeddings: Embeds the questions.
            **knobs: See :class:`~ragcache_integrations.retrievers.knobs.CacheKnobs`.

        Raises:
            ConfigurationError: An argument is unknown, out of its range or missing.
        """
        if type(retriever) is VectorStoreRetriever:
            if retriever.search_type == "similarity":
                search_kwargs = dict(retriever.search_kwargs)
                if "k" in search_kwargs:
                    knobs.setdefault("k", search_kwargs.pop("k"))
                return cls.from_vectorstore(
                    retriever.vectorstore, embeddings, search_kwargs=search_kwargs, **knobs
                )
            embeddings = embeddings or retriever.vectorstore.embeddings
        return cls(retriever=retriever, embeddings=embeddings, **knobs)

    def stats(self) -> RetrieverStats:
        """Return what was done so far. Touches memory alone: fine in a coroutine."""
        return self._core.stats()

    def clear(self) -> None:
        """Forget every answer, after the store's documents changed. Touches memory alone."""
        self._core.clear()

    def attach(self, vectorstore: VectorStore | StagedIndex) -> None:
        """Follow what is added to, deleted from or updated in a store through this object.

        For a store behind a wrapped retriever, or another object of the same store; the one that is
        wrapped is followed already, but for ``follow_changes=False``. Methods that the store brings
        for such changes tell the cache when they are done. Changes by other ways, such as another
        process, need :meth:`clear`.

        Raises:
            ConfigurationError: It is no vector store, or its class cannot be watched.
        """
        if isinstance(vectorstore, StagedIndex):
            watch(vectorstore, STAGED_INDEX_METHODS, self._core.follower)
            return
        if not isinstance(vectorstore, VectorStore):
            msg = f"vectorstore must be a VectorStore, got {vectorstore!r}"
            raise ConfigurationError(msg)
        watch(vectorstore, METHODS, self._core.follower)

    def detach(self, vectorstore: VectorStore | StagedIndex) -> None:
        """Follow its changes no more."""
        unwatch(vectorstore, self._core.follower)

    def stages(
        self,
        query: str,
        config: RunnableConfig | None = None,
        *,
        k: int | None = None,
        filter: Any = None,  # noqa: A002 - what LangChain's stores call it
        namespace: str | None = None,
        interval: float | None = None,
    ) -> Generator[DocumentStage[Document]]:
        """Answer in stages, where a :class:`StagedFaissRetriever` is wrapped; else in one.

        An answer of the cache is one stage. Provisional documents are never cached. Each caller
        has a search of its own, also where others ask the same; closing the generator ends it.

        Args:
            query: The question.
            config: As for ``invoke``.
            k: As for ``invoke``.
            filter: As for ``invoke``.
            namespace: As for ``invoke``.
            interval: Seconds that a stage should take, where the wrapped retriever's ``plan`` does
                not say.

        Raises:
            ConfigurationError: An argument cannot be used.
            EmbeddingError: The embedding model gave something unusable.
        """

        def search(run: RetrieverRun) -> Generator[DocumentStage[Document]]:
            child = RunnableConfig(callbacks=run.manager.get_child())
            request = self._request(query, child, k, filter, namespace, interval)
            with closing(self._core.stages(request)) as stages:
                for stage in stages:
                    if stage.trace is not None:
                        _tell(run.manager, stage.trace)
                    yield stage

        return observed(
            lambda: RetrieverRun.start(self, query, config, self._get_ls_params()), search
        )

    async def astages(
        self,
        query: str,
        config: RunnableConfig | None = None,
        *,
        k: int | None = None,
        filter: Any = None,  # noqa: A002 - what LangChain's stores call it
        namespace: str | None = None,
        interval: float | None = None,
    ) -> AsyncGenerator[DocumentStage[Document]]:
        """Do so without blocking the event loop; otherwise as :meth:`stages`."""

        async def search(run: AsyncRetrieverRun) -> AsyncGenerator[DocumentStage[Document]]:
            child = RunnableConfig(callbacks=run.manager.get_child())
            request = self._request(query, child, k, filter, namespace, interval)
            async with aclosing(self._core.astages(request)) as stages:
                async for stage in stages:
                    if stage.trace is not None:
                        await _atell(run.manager, stage.trace)
                    yield stage

        run = aobserved(
            lambda: AsyncRetrieverRun.start(self, query, config, self._get_ls_params()), search
        )
        async with aclosing(run) as stages:
            async for stage in stages:
                yield stage

    def explain(
        self,
        query: str,
        *,
        k: int | None = None,
        filter: Any = None,  # noqa: A002 - what LangChain's stores call it
        namespace: str | None = None,
    ) -> Explanation:
        """Say why a question would be answered from the cache, or not. The store is not asked.

        Args:
            query: The question.
            k: As for ``invoke``.
            filter: As for ``invoke``.
            namespace: As for ``invoke``.

        Raises:
            ConfigurationError: An argument cannot be used.
            EmbeddingError: The embedding model gave something unusable.
        """
        return self._core.explain(self._request(query, None, k, filter, namespace))

    async def aexplain(
        self,
        query: str,
        *,
        k: int | None = None,
        filter: Any = None,  # noqa: A002 - what LangChain's stores call it
        namespace: str | None = None,
    ) -> Explanation:
        """Do so without blocking the event loop; otherwise as :meth:`explain`."""
        return await self._core.aexplain(self._request(query, None, k, filter, namespace))

    def save(self, path: str | PathLike[str], *, store_tag: str = "") -> None:
        """Write what is cached to a file, for :meth:`load`.

        Args:
            path: The file.
            store_tag: Names the store's documents as they are, such as by a version.

        Raises:
            ConfigurationError: There has been no question yet, or a document or a filter cannot be
                written.
            OSError: The file cannot be written. It is as it was.
        """
        self._core.save(path, store_tag=store_tag)

    async def asave(self, path: str | PathLike[str], *, store_tag: str = "") -> None:
        """Do so without blocking the event loop; otherwise as :meth:`save`."""
        await self._core.asave(path, store_tag=store_tag)

    def load(self, path: str | PathLike[str], *, store_tag: str = "") -> int:
        """Replace what is cached by what :meth:`save` wrote; return how many answers that are.

        The store must hold what it held then: nothing is known of changes in between.

        Args:
            path: The file.
            store_tag: What :meth:`save` was given.

        Raises:
            CacheFileError: The file is damaged, or of another model, store, ``tag`` or
                ``store_tag``. Nothing is cached then.
            ConfigurationError: An argument is wrong.
            OSError: The file cannot be read.
        """
        return self._core.load(path, store_tag=store_tag)

    async def aload(self, path: str | PathLike[str], *, store_tag: str = "") -> int:
        """Do so without blocking the event loop; otherwise as :meth:`load`."""
        return await self._core.aload(path, store_tag=store_tag)

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        params = super()._get_ls_params(**kwargs)
        if self.vectorstore is not None:
            params["ls_vector_store_provider"] = type(self.vectorstore).__name__
        embeddings = self.embeddings or (self.vectorstore and self.vectorstore.embeddings)
        if embeddings:
            params["ls_embedding_provider"] = type(embeddings).__name__
        return params

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,  # noqa: A002 - what LangChain's stores call it
        namespace: str | None = None,
    ) -> list[Document]:
        config = RunnableConfig(callbacks=run_manager.get_child())
        request = self._request(query, config, k, filter, namespace)
        retrieval = self._core.retrieve(request)
        _tell(run_manager, retrieval.trace)
        return retrieval.documents

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,  # noqa: A002 - what LangChain's stores call it
        namespace: str | None = None,
    ) -> list[Document]:
        config = RunnableConfig(callbacks=run_manager.get_child())
        request = self._request(query, config, k, filter, namespace)
        retrieval = await self._core.aretrieve(request)
        await _atell(run_manager, retrieval.trace)
        return retrieval.documents

    @property
    def _staged(self) -> StagedFaissRetriever | None:
        return self.retriever if isinstance(self.retriever, StagedFaissRetriever) else None

    @property
    def _embedding_model(self) -> Embeddings | None:
        if self.embeddings is None and self.vectorstore is not None:
            return self.vectorstore.embeddings
        if self.embeddings is None and self._staged is not None:
            return self._staged.embedding_model
        return self.embeddings

    def _wrapped(self) -> tuple[StoreFacts, int | None]:
        """Return what is known of what is wrapped, and the k that it has by default."""
        if self.vectorstore is not None:
            return facts_of(self.vectorstore, self.search_kwargs), _DEFAULT_K
        if self._staged is not None:
            return self._staged.core.facts, self._staged.core.k
        return StoreFacts(doubt=_RETRIEVER), None

    def _reader(self) -> Callable[[Sequence[tuple[str, Any]]], list[Document | None]] | None:
        """Return what reads documents by id, where that can be."""
        if self.vectorstore is not None:
            return reader_of(self.vectorstore)
        return None if self._staged is None else self._staged.core.read

    def _request(
        self,
        query: str,
        config: RunnableConfig | None,
        k: int | None,
        filter_: Any,
        namespace: str | None,
        interval: float | None = None,
    ) -> Request[Document]:
        arguments = dict(self.search_kwargs)
        if filter_ is not None:
            if self.vectorstore is None and self._staged is None:
                msg = "filter is for a vectorstore; set it on the wrapped retriever instead"
                raise ConfigurationError(msg)
            if self._filters_afterwards and self.guarantee is not None:
                name = type(self.vectorstore).__name__
                msg = (
                    f"filter cannot go with guarantee={self.guarantee!r}: {name} filters only what "
                    "it found, so that documents are left out"
                )
                raise ConfigurationError(msg)
            arguments["filter"] = filter_
        key = (self.namespace if namespace is None else namespace, freeze(arguments))
        if self._staged is not None:
            return _ask_staged(self._staged, query, filter_, k, key, interval)
        if self.vectorstore is None:
            return self._ask_retriever(query, config, k, key)
        return self._ask_store(query, arguments, k, key)

    def _ask_retriever(
        self, query: str, config: RunnableConfig | None, k: int | None, key: Hashable
    ) -> Request[Document]:
        retriever = self.retriever
        assert retriever is not None  # noqa: S101 - checked on construction

        def asking(
            config: RunnableConfig | None, unobserved: Request[Document] | None
        ) -> Request[Document]:
            return Request(
                (query,),
                lambda _, __: retriever.invoke(query, config),
                lambda _, __: retriever.ainvoke(query, config),
                k=k,
                key=key,
                unobserved=unobserved,
            )

        return asking(config, asking(RunnableConfig(callbacks=[]), None))

    def _ask_store(
        self, query: str, arguments: dict[str, Any], k: int | None, key: Hashable
    ) -> Request[Document]:
        store = self.vectorstore
        assert store is not None  # noqa: S101 - checked on construction

        def search(embedding: Embedding, count: int) -> Sequence[Document]:
            if _native(store, VectorStore, "similarity_search_by_vector"):
                return store.similarity_search_by_vector(embedding.tolist(), k=count, **arguments)
            return store.similarity_search(query, k=count, **arguments)

        async def asearch(embedding: Embedding, count: int) -> Sequence[Document]:
            return await store.asimilarity_search_by_vector(
                embedding.tolist(), k=count, **arguments
            )

        return Request(
            (query,),
            search,
            # A thread of ours is shared with other callers, and blocks no event loop.
            None if has_blocking_coroutines(store) else asearch,
            k=k,
            key=key,
            cut=self._filters_afterwards and "filter" in arguments,
        )


def _ask_staged(
    staged: StagedFaissRetriever,
    query: str,
    wanted: Any,
    k: int | None,
    key: Hashable,
    interval: float | None,
) -> Request[Document]:
    core = staged.core

    def question(count: int) -> Question:
        return Question((query,), count, wanted, interval)

    return Request(
        (query,),
        lambda embedding, count: core.search(embedding, question(count)),
        k=k,
        key=key,
        stages=lambda embedding, count: core.search_stages(embedding, question(count)),
        astages=lambda embedding, count: core.asearch_stages(embedding, question(count)),
    )


def _tell(run_manager: CallbackManagerForRetrieverRun, trace: RetrievalTrace) -> None:
    event = _note(run_manager, trace)
    run_manager.get_child().on_custom_event(QUERY_CACHE_EVENT, event, run_manager.run_id)


async def _atell(run_manager: AsyncCallbackManagerForRetrieverRun, trace: RetrievalTrace) -> None:
    event = _note(run_manager, trace)
    await run_manager.get_child().on_custom_event(QUERY_CACHE_EVENT, event, run_manager.run_id)


def _note(
    run_manager: CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun,
    trace: RetrievalTrace,
) -> dict[str, Any]:
    """Put what happened into the run's metadata, and return it for the event."""
    event = asdict(trace)
    noted = {f"query_cache_{name}": event[name] for name in ("hit", "shared", "distance")}
    run_manager.metadata.update(noted)  # the dict that tracers were given when the run began
    return event


def _native(instance: object, base: type, method: str) -> bool:
    """Whether an object's class brings its own version of a method of the base class."""
    return getattr(type(instance), method) is not getattr(base, method)
