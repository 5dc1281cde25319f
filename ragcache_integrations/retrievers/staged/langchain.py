"""Staged FAISS search as a LangChain retriever."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
from langchain_core.runnables import RunnableConfig
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from numpy.typing import ArrayLike
from pydantic import ConfigDict, PrivateAttr, SkipValidation

from ragcache_integrations.core.checks import check_one_of, check_type
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.flows import aoutputs, arun, outputs, run
from ragcache_integrations.core.threads import in_thread
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.retrieval import DocumentStage, Texts
from ragcache_integrations.retrievers.runs import aobserved, observed
from ragcache_integrations.retrievers.runs.langchain import RetrieverRun
from ragcache_integrations.retrievers.sharing import Identity, Rebuildable
from ragcache_integrations.retrievers.stores import FaissView, is_faiss_index
from ragcache_integrations.vector_search import StagedIndex
from ragcache_integrations.vector_search.searches import Filter

from .core import (
    Indexed,
    StagedCore,
    StagedKnobs,
    StagedSource,
    all_of,
    always,
)

if TYPE_CHECKING:
    from ragcache_integrations._arguments import StagedArguments

__all__ = ["StagedFaissRetriever"]

# The default of VectorStore.similarity_search.
_INSTEAD = {
    VectorStore: "from_vectorstore() takes a store",
    VectorStoreRetriever: "from_vectorstore() takes its vectorstore",
    StagedIndex: "from_index() takes an index",
}
_DEFAULT_K = 4


class StagedFaissRetriever(Rebuildable, StagedKnobs, BaseRetriever):
    """Searches a FAISS index in stages; also works as an ordinary retriever.

    Drop-in replacement for ``store.as_retriever()``::

        retriever = StagedFaissRetriever.from_vectorstore(store)
        retriever.invoke("a question")
        for stage in retriever.stages("a question"):
            print(stage.number, stage.documents, stage.final)

    Each stage has the best documents found so far. The final stage has those that ``invoke``
    returns, which are the same as FAISS's. Flat, IVF and HNSW indexes are supported; a flat one is
    searched in a single stage. Pass either a FAISS store, whose additions and deletions are
    followed, or a :class:`~ragcache_integrations.vector_search.StagedIndex` with the documents by
    id.

    ``invoke`` and ``ainvoke`` accept ``k`` and ``filter`` for one call. It is safe to use from
    several threads and event loops at the same time. But FAISS indexes must not be changed during a
    search: a ``StagedIndex`` takes care of that, a store does not.

    The knobs are those of :class:`~ragcache_integrations.retrievers.staged.core.StagedKnobs`.

    Attributes:
        vectorstore: A FAISS store. Pass either ``vectorstore`` or ``index``.
        index: A staged index.
        documents: The documents of ``index``, by id. It is not copied, so you can add to it.
        embeddings: Embeds the questions; ``None`` for the store's own.

    Raises:
        ConfigurationError: An argument is unknown, out of its range or missing, or the store's
            index cannot be searched in stages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    vectorstore: VectorStore | None = None
    index: StagedIndex | None = None
    documents: SkipValidation[Mapping[str, Document] | None] = None
    embeddings: Embeddings | None = None

    _core: StagedCore[Document] = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Connect the search to its store or index."""
        super().model_post_init(context)
        embeddings = self.embedding_model
        if embeddings is None:
            raise ConfigurationError("embeddings are needed: there are none to take from a store")
        # Not self: the core would keep it alive in a cycle, and its threads with it.
        # k and filter are part of each question.
        knobs = StagedKnobs(plan=self.plan, embedding_memo=self.embedding_memo)
        searched = (self.vectorstore, self.index, self.documents, embeddings)
        self._core = self.shared_state.core(
            tuple(map(Identity, (*searched, self.plan, self.embedding_memo))),
            lambda: StagedCore(knobs, _source(*searched)),
        )

    @classmethod
    def from_vectorstore(
        cls,
        vectorstore: VectorStore,
        embeddings: Embeddings | None = None,
        **knobs: Unpack[StagedArguments],
    ) -> Self:
        """Search a FAISS store.

        Args:
            vectorstore: The store.
            embeddings: Embeds the questions; ``None`` for the store's own.
            **knobs: See :class:`~ragcache_integrations.retrievers.staged.core.StagedKnobs`.

        Raises:
            ConfigurationError: An argument is unknown or out of its range, it is not a FAISS
                store, or its index cannot be searched in stages.
        """
        check_type("vectorstore", vectorstore, VectorStore, "a FAISS store", _INSTEAD)
        return cls(vectorstore=vectorstore, embeddings=embeddings, **knobs)

    @classmethod
    def from_index(
        cls,
        index: StagedIndex,
        documents: Mapping[str, Document],
        embeddings: Embeddings,
        **knobs: Unpack[StagedArguments],
    ) -> Self:
        """Search a staged index.

        Args:
            index: The index.
            documents: Its documents by id. It is not copied, so you can add to it.
            embeddings: Embeds the questions.
            **knobs: See :class:`~ragcache_integrations.retrievers.staged.core.StagedKnobs`.

        Raises:
            ConfigurationError: An argument is unknown or out of its range.
        """
        check_type("index", index, StagedIndex, "a StagedIndex", _INSTEAD)
        return cls(index=index, documents=documents, embeddings=embeddings, **knobs)

    @property
    def embedding_model(self) -> Embeddings | None:
        """Embeds the questions: ``embeddings``, or the store's own."""
        if self.embeddings is None and self.vectorstore is not None:
            return self.vectorstore.embeddings
        return self.embeddings

    @property
    def core(self) -> StagedCore[Document]:
        """The search without the embedding of questions, for a cache in front of it."""
        return self._core

    def stages(
        self,
        query: str,
        config: RunnableConfig | None = None,
        *,
        k: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - what LangChain's stores call it
        interval: float | None = None,
    ) -> Generator[DocumentStage[Document]]:
        """Yield the best documents found so far, stage by stage. Callbacks see one run.

        Closing the generator ends the search between two stages.

        Args:
            query: The question.
            config: LangChain's configuration of the run, as for ``invoke``.
            k: Number of documents, instead of the knob ``k``.
            filter: Used instead of the knob ``filter``.
            interval: Duration of a stage in seconds, unless there is a ``plan``.

        Raises:
            ConfigurationError: An argument cannot be used.
            EmbeddingError: The embedding model gave something unusable.
        """
        flow = self._core.stages(*self._asked(query, k, filter), interval)
        start = partial(RetrieverRun.start, self, query, config)
        return observed(start, lambda _: outputs(flow))

    async def astages(
        self,
        query: str,
        config: RunnableConfig | None = None,
        *,
        k: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - what LangChain's stores call it
        interval: float | None = None,
    ) -> AsyncGenerator[DocumentStage[Document]]:
        """Async version of :meth:`stages`."""
        flow = self._core.stages(*self._asked(query, k, filter), interval)
        start = partial(RetrieverRun.astart, self, query, config)
        observing = aobserved(start, lambda _: aoutputs(flow, self._core.executor))
        async with aclosing(observing):
            async for stage in observing:
                yield stage

    def to_vectorstore(self) -> VectorStore:
        """Return what is searched as LangChain's ``FAISS`` (package ``langchain-community``).

        Returns:
            The store itself if you passed one. For a staged index, a copy without deleted documents
            that shares nothing with it: later changes of one do not affect the other.

        Raises:
            ConfigurationError: A document of the index is not among ``documents``.
            MissingExtraError: ``langchain-community`` is not installed.
        """
        if self.vectorstore is not None or self.index is None or self.documents is None:
            return cast("VectorStore", self.vectorstore)
        feature = "A LangChain store of a staged index"
        stores = require(
            "langchain_community.vectorstores.faiss", feature=feature, package="langchain-community"
        )
        docstores = require(
            "langchain_community.docstore", feature=feature, package="langchain-community"
        )
        index, ids = self.index.to_faiss()
        ranks = "MAX_INNER_PRODUCT" if self.index.metric == "ip" else "EUCLIDEAN_DISTANCE"
        return cast(
            "VectorStore",
            stores.FAISS(
                self.embedding_model,
                index,
                docstores.InMemoryDocstore(all_of(ids, self.documents, "documents")),
                dict(enumerate(ids)),
                distance_strategy=stores.DistanceStrategy[ranks],
            ),
        )

    async def ato_vectorstore(self) -> VectorStore:
        """Async version of :meth:`to_vectorstore`; runs in a worker thread."""
        return await in_thread(self.to_vectorstore)

    def _asked(
        self, query: str, k: int | None, filter_: Filter | None
    ) -> tuple[Texts, int | None, Filter | None]:
        """Return what is asked for, with the knobs where the call says nothing."""
        return (query,), self.k if k is None else k, self.filter if filter_ is None else filter_

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        params = super()._get_ls_params(**kwargs)
        params["ls_vector_store_provider"] = type(self.vectorstore or self.index).__name__
        params["ls_embedding_provider"] = type(self.embedding_model).__name__
        return params

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002 - LangChain's signature
        k: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - what LangChain's stores call it
    ) -> list[Document]:
        return run(self._core.retrieve(*self._asked(query, k, filter)))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,  # noqa: ARG002 - LangChain's signature
        k: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - what LangChain's stores call it
    ) -> list[Document]:
        return await arun(self._core.retrieve(*self._asked(query, k, filter)), self._core.executor)


def _source(
    store: VectorStore | None,
    index: StagedIndex | None,
    documents: Mapping[str, Document] | None,
    embeddings: Embeddings,
) -> StagedSource[Document]:
    async def aembed(texts: Texts) -> ArrayLike:
        return await embeddings.aembed_query(texts[0])

    own_coroutine = type(embeddings).aembed_query is not Embeddings.aembed_query
    check_one_of("vectorstore", store, "index", index)
    if index is not None:
        if not isinstance(documents, Mapping):
            msg = f"index needs documents, a mapping of its ids to them, got {documents!r:.100}"
            raise ConfigurationError(msg)
        searched, normalised = always(index), False
        find: Callable[[str], Document | None] = documents.get
    else:
        if documents is not None:
            raise ConfigurationError("documents are for an index; a vectorstore has its own")
        searched, find = _of_store(store)
        normalised = bool(getattr(store, "_normalize_L2", False))  # LangChain has no public name
    return StagedSource(
        index=searched,
        look_up=lambda document_id, _: find(document_id),
        embed=lambda texts: embeddings.embed_query(texts[0]),
        aembed=aembed if own_coroutine else None,
        k=_DEFAULT_K,
        normalised=normalised,
    )


def _of_store(store: Any) -> tuple[Indexed, Callable[[str], Document | None]]:
    """Return a store's index, and a function that finds its documents."""
    if not (is_faiss_index(getattr(store, "index", None)) and hasattr(store, "docstore")):
        msg = f"vectorstore must be LangChain's FAISS, got {type(store).__name__}"
        raise ConfigurationError(msg)

    def find(document_id: str) -> Document | None:
        document = store.docstore.search(document_id)
        return document if isinstance(document, Document) else None  # else a message: it has none

    return FaissView(lambda: store.index, lambda: store.index_to_docstore_id, find), find
