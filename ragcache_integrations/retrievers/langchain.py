"""The approximate query cache as a LangChain retriever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
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
from ragcache_integrations.query_cache import Metric, VectorSource
from ragcache_integrations.retrievers.copying import copy_model, freeze
from ragcache_integrations.retrievers.core import (
    Request,
    Retrieval,
    RetrieverCore,
    Source,
)
from ragcache_integrations.retrievers.embedder import Embedding, Texts
from ragcache_integrations.retrievers.faiss_vectors import (
    FaissVectors,
    faiss_metric,
    is_faiss_index,
)
from ragcache_integrations.retrievers.knobs import CacheKnobs, KnobArguments, explain
from ragcache_integrations.retrievers.tally import RetrieverStats

__all__ = ["QUERY_CACHE_EVENT", "ApproximateCacheRetriever"]

QUERY_CACHE_EVENT = "query_cache"
"""Name of the custom event that every call sends to its callbacks; its data is a dict of the
:class:`~ragcache_integrations.retrievers.core.RetrievalTrace`."""

# What VectorStore.similarity_search asks for where nobody says.
_DEFAULT_K = 4
# Arguments of a FAISS search after which the result is still ordered by distance, and complete.
_RANKED_ARGUMENTS = {"filter", "fetch_k"}


class ApproximateCacheRetriever(CacheKnobs, BaseRetriever):
    """Answers a question from the documents of an earlier one that is close enough.

    Takes the place of ``store.as_retriever()``, or of any other retriever::

        retriever = ApproximateCacheRetriever.from_vectorstore(store, tolerance=0.3)

    Documents come back as the store gave them. When the store's documents change, call
    :meth:`clear`. ``invoke`` and ``ainvoke`` also take ``k``, ``filter`` (for a vector store)
    and ``namespace`` for one call. Callbacks get a custom event named ``query_cache`` for every
    call, and traces the metadata ``query_cache_hit``, ``query_cache_shared`` and
    ``query_cache_distance``.

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

    if not TYPE_CHECKING:  # type checkers know the fields as arguments

        def __init__(self, **arguments: Any) -> None:
            try:
                super().__init__(**arguments)
            except ValidationError as error:
                raise explain(error, type(self).model_fields) from error

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
        embeddings = self.embeddings
        if embeddings is None and self.vectorstore is not None:
            embeddings = self.vectorstore.embeddings
        if embeddings is None:
            msg = "embeddings are needed: there are none to take from what is wrapped"
            raise ConfigurationError(msg)

        async def aembed(texts: Texts) -> ArrayLike:
            return await embeddings.aembed_query(texts[0])

        metric, vectors, dim = _read_faiss(self.vectorstore)
        if not self.search_kwargs.keys() <= _RANKED_ARGUMENTS:
            vectors = None
        self._core = RetrieverCore(
            # Not self: the core would keep it alive in a cycle, and its threads with it.
            CacheKnobs(**{name: getattr(self, name) for name in CacheKnobs.model_fields}),
            Source(
                embed=lambda texts: embeddings.embed_query(texts[0]),
                aembed=aembed if _native(embeddings, Embeddings, "aembed_query") else None,
                identify=lambda document: (document.id, document.page_content),
                copy=lambda document, _: copy_model(document),
                k=None if self.vectorstore is None else _DEFAULT_K,
                metric=metric,
                vectors=vectors,
                dim=dim,
            ),
        )

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
        event = _note(run_manager, retrieval)
        run_manager.get_child().on_custom_event(QUERY_CACHE_EVENT, event, run_manager.run_id)
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
        event = _note(run_manager, retrieval)
        await run_manager.get_child().on_custom_event(QUERY_CACHE_EVENT, event, run_manager.run_id)
        return retrieval.documents

    def _request(
        self,
        query: str,
        config: RunnableConfig,
        k: int | None,
        filter_: Any,
        namespace: str | None,
    ) -> Request[Document]:
        store, retriever = self.vectorstore, self.retriever
        arguments = dict(self.search_kwargs)
        if filter_ is not None:
            if store is None:
                msg = "filter is for a vectorstore; set it on the wrapped retriever instead"
                raise ConfigurationError(msg)
            arguments["filter"] = filter_
        key = (self.namespace if namespace is None else namespace, freeze(arguments))

        if retriever is not None:
            return Request(
                (query,),
                lambda _, __: retriever.invoke(query, config),
                lambda _, __: retriever.ainvoke(query, config),
                k=k,
                key=key,
            )
        assert store is not None  # noqa: S101 - checked on construction

        def search(embedding: Embedding, count: int) -> Sequence[Document]:
            if _native(store, VectorStore, "similarity_search_by_vector"):
                return store.similarity_search_by_vector(embedding.tolist(), k=count, **arguments)
            return store.similarity_search(query, k=count, **arguments)

        async def asearch(embedding: Embedding, count: int) -> Sequence[Document]:
            return await store.asimilarity_search_by_vector(
                embedding.tolist(), k=count, **arguments
            )

        # FAISS's own coroutine is a thread, too; as our thread it is shared with other callers.
        native = _native(store, VectorStore, "asimilarity_search_by_vector")
        threaded = not native or _faiss_of(store) is not None
        return Request((query,), search, None if threaded else asearch, k=k, key=key)


def _note(
    run_manager: CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun,
    retrieval: Retrieval[Document],
) -> dict[str, Any]:
    """Put what happened into the run's metadata, and return it for the event."""
    event = asdict(retrieval.trace)
    noted = {f"query_cache_{name}": event[name] for name in ("hit", "shared", "distance")}
    run_manager.metadata.update(noted)  # the dict that tracers were given when the run began
    return event


def _native(instance: object, base: type, method: str) -> bool:
    """Whether an object's class brings its own version of a method of the base class."""
    return getattr(type(instance), method) is not getattr(base, method)


def _faiss_of(store: VectorStore | None) -> Any | None:
    """Return the index of a store that keeps FAISS positions like langchain-community's."""
    index = getattr(store, "index", None)
    return index if is_faiss_index(index) and hasattr(store, "index_to_docstore_id") else None


def _read_faiss(
    store: VectorStore | None,
) -> tuple[Metric | None, VectorSource | None, int | None]:
    """Return metric, vectors and dimension, as far as the store tells."""
    index = _faiss_of(store)
    if index is None:
        return None, None, None
    metric = faiss_metric(index)
    if getattr(store, "_normalize_L2", False):  # documents and questions become unit vectors
        metric = "cosine" if metric is not None else None
    vectors = FaissVectors(index, lambda: store.index_to_docstore_id)  # type: ignore[union-attr]  # looked for above
    return metric, vectors if metric and vectors.readable() else None, int(index.d)
