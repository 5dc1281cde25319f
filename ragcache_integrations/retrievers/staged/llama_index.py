"""Staged FAISS search as a LlamaIndex retriever."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.data_structs import IndexDict
from llama_index.core.indices.vector_store import VectorStoreIndex
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from numpy.typing import ArrayLike

from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.flows import Flow, aoutputs, arun, outputs, run
from ragcache_integrations.core.knobs import read_knobs
from ragcache_integrations.core.threads import in_thread
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.retrieval import DocumentStage, Texts
from ragcache_integrations.retrievers.runs.llama_index import arun_stages, as_bundle, run_stages
from ragcache_integrations.retrievers.sharing import FinishedRetriever
from ragcache_integrations.retrievers.stores import FaissView, ids_by_number, is_faiss_index
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


_INSTEAD = {
    BaseRetriever: "pass the index that it searches",
    BasePydanticVectorStore: "pass the index over it",
    BaseQueryEngine: "pass the index that it searches",
}


class StagedFaissRetriever(FinishedRetriever, BaseRetriever):
    """Searches a FAISS index in stages; also works as an ordinary retriever.

    Drop-in replacement for ``index.as_retriever()``::

        retriever = StagedFaissRetriever.from_index(index)
        retriever.retrieve("a question")
        for stage in retriever.stages("a question"):
            print(stage.number, stage.documents, stage.final)

    Each stage has the best nodes found so far, with their scores. The final stage has those that
    ``retrieve`` returns, which are the same as FAISS's. Flat, IVF and HNSW indexes are supported; a
    flat one is searched in a single stage. Pass either an index over a ``FaissVectorStore`` or a
    ``FaissMapVectorStore``, whose insertions and deletions are followed, or a
    :class:`~ragcache_integrations.vector_search.StagedIndex` with the nodes by id.

    It is safe to use from several threads and event loops at the same time. But FAISS indexes must
    not be changed during a search: a ``StagedIndex`` takes care of that, a vector store does not.

    Args:
        index: The index to search.
        nodes: The nodes of a staged index, by id. It is not copied, so you can add to it.
        embed_model: Embeds the questions; ``None`` for the index's own.
        callback_manager: LlamaIndex's callbacks.
        object_map: Objects by the ids of the nodes that represent them.
        objects: Nodes that represent objects.
        verbose: Whether LlamaIndex prints the steps of recursive retrieval.
        **knobs: See :class:`~ragcache_integrations.retrievers.staged.core.StagedKnobs`.

    Raises:
        ConfigurationError: An argument is unknown, out of its range or missing, or the index
            cannot be searched in stages.
    """

    _FINISHED = frozenset({*StagedKnobs.model_fields, "index", "nodes", "embed_model"})

    def __init__(
        self,
        index: VectorStoreIndex | StagedIndex,
        *,
        nodes: Mapping[str, BaseNode] | None = None,
        embed_model: BaseEmbedding | None = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        objects: list[IndexNode] | None = None,
        verbose: bool = False,
        **knobs: Unpack[StagedArguments],
    ) -> None:
        allowed = "a VectorStoreIndex over FAISS or a StagedIndex"
        check_type("index", index, VectorStoreIndex | StagedIndex, allowed, _INSTEAD)
        # Indexes do not show their embedding model in public.
        model = embed_model or getattr(index, "_embed_model", None)
        if not isinstance(model, BaseEmbedding):
            raise ConfigurationError(f"embed_model must be a BaseEmbedding, got {model!r}")
        self._index = index
        self._nodes = nodes
        self._embed_model = model  # where LlamaIndex's own retrievers have theirs
        searched, find = _index_and_finder(index, nodes)

        def look_up(node_id: str, distance: float) -> NodeWithScore | None:
            node = find(node_id)
            return None if node is None else NodeWithScore(node=node, score=distance)

        async def aembed(texts: Texts) -> ArrayLike:
            return await model.aget_agg_embedding_from_queries(list(texts))

        self._knobs = read_knobs(StagedKnobs, knobs)
        self._k = self._knobs.k
        self._core = StagedCore(
            self._knobs,
            StagedSource(
                index=searched,
                look_up=look_up,
                embed=lambda texts: model.get_agg_embedding_from_queries(list(texts)),
                aembed=aembed,
                k=DEFAULT_SIMILARITY_TOP_K,
                normalised=False,
            ),
        )
        super().__init__(
            callback_manager=callback_manager,
            object_map=object_map or getattr(index, "_object_map", None),
            objects=objects,
            verbose=verbose,
        )

    def _default_k(self) -> int:
        return self._core.k

    def _settings(self) -> dict[str, Any]:
        own = {"index": self._index, "nodes": self._nodes, "embed_model": self._embed_model}
        return super()._settings() | own

    @classmethod
    def from_index(
        cls,
        index: VectorStoreIndex | StagedIndex,
        nodes: Mapping[str, BaseNode] | None = None,
        embed_model: BaseEmbedding | None = None,
        **knobs: Unpack[StagedArguments],
    ) -> Self:
        """Search an index.

        Args:
            index: An index over a FAISS store, or a staged index.
            nodes: The nodes of a staged index, by id. It is not copied, so you can add to it.
            embed_model: Embeds the questions; ``None`` for the index's own.
            **knobs: See :class:`~ragcache_integrations.retrievers.staged.core.StagedKnobs`.

        Raises:
            ConfigurationError: An argument is unknown, out of its range or missing, or the index
                cannot be searched in stages.
        """
        return cls(index, nodes=nodes, embed_model=embed_model, **knobs)

    @property
    def index(self) -> VectorStoreIndex | StagedIndex:
        """The index that is searched."""
        return self._index

    @property
    def filter(self) -> Filter | None:
        """Which documents are searched."""
        filter_: Filter | None = self._knobs.filter
        return filter_

    @property
    def core(self) -> StagedCore[NodeWithScore]:
        """The search without the embedding of questions, for a cache in front of it."""
        return self._core

    def stages(
        self,
        query: QueryType,
        *,
        k: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - the knob's name in both frameworks
        interval: float | None = None,
    ) -> Generator[DocumentStage[NodeWithScore]]:
        """Yield the best nodes found so far, stage by stage.

        Closing the generator ends the search between two stages.

        Args:
            query: The question, as for ``retrieve``.
            k: Number of nodes, instead of the knob ``k``.
            filter: Used instead of the knob ``filter``.
            interval: Duration of a stage in seconds, unless there is a ``plan``.

        Raises:
            ConfigurationError: An argument cannot be used.
            EmbeddingError: The embedding model gave something unusable.
        """
        bundle = as_bundle(query)
        flow = self._stages(bundle, k, filter, interval)
        return run_stages(self, bundle, lambda: outputs(flow))

    async def astages(
        self,
        query: QueryType,
        *,
        k: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - the knob's name in both frameworks
        interval: float | None = None,
    ) -> AsyncGenerator[DocumentStage[NodeWithScore]]:
        """Async version of :meth:`stages`."""
        bundle = as_bundle(query)
        flow = self._stages(bundle, k, filter, interval)
        observing = arun_stages(self, bundle, lambda: aoutputs(flow, self._core.executor))
        async with aclosing(observing) as stages:
            async for stage in stages:
                yield stage

    def to_index(self) -> VectorStoreIndex:
        """Return what is searched as an index over LlamaIndex's ``FaissVectorStore``.

        Needs the package ``llama-index-vector-stores-faiss``.

        Returns:
            The index itself if it is LlamaIndex's. For a staged index, a copy without deleted nodes
            that shares only the nodes with it: later changes of one do not affect the other.

        Raises:
            ConfigurationError: A document of the staged index is not among ``nodes``.
            MissingExtraError: ``llama-index-vector-stores-faiss`` is not installed.
        """
        if not isinstance(self._index, StagedIndex):
            return self._index
        stores = require(
            "llama_index.vector_stores.faiss",
            feature="A LlamaIndex index of a staged one",
            package="llama-index-vector-stores-faiss",
        )
        index, ids = self._index.to_faiss()
        nodes = all_of(ids, self._nodes or {}, "nodes")
        docstore = SimpleDocumentStore()
        docstore.add_documents(list(nodes.values()))
        return VectorStoreIndex(
            index_struct=IndexDict(
                nodes_dict={str(row): node_id for row, node_id in enumerate(ids)}
            ),
            storage_context=StorageContext.from_defaults(
                docstore=docstore, vector_store=stores.FaissVectorStore(index)
            ),
            embed_model=self._embed_model,
            callback_manager=self.callback_manager,
        )

    async def ato_index(self) -> VectorStoreIndex:
        """Async version of :meth:`to_index`; runs in a worker thread."""
        return await in_thread(self.to_index)

    def _stages(
        self,
        query: QueryBundle,
        k: int | None,
        filter_: Filter | None,
        interval: float | None,
    ) -> Flow[None]:
        texts, k = tuple(query.embedding_strs), self._k if k is None else k
        return self._core.stages(texts, k, filter_, interval, embedding=query.embedding)

    def _find(self, query: QueryBundle) -> Flow[list[NodeWithScore]]:
        texts = tuple(query.embedding_strs)
        return self._core.retrieve(texts, self._k, embedding=query.embedding)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return run(self._find(query_bundle))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await arun(self._find(query_bundle), self._core.executor)


def _index_and_finder(
    index: VectorStoreIndex | StagedIndex, nodes: Mapping[str, BaseNode] | None
) -> tuple[Indexed, Callable[[str], BaseNode | None]]:
    """Return a function that returns the index to search, and one that finds its nodes."""
    if isinstance(index, StagedIndex):
        if not isinstance(nodes, Mapping):
            msg = f"a StagedIndex needs nodes, a mapping of its ids to them, got {nodes!r:.100}"
            raise ConfigurationError(msg)
        return always(index), nodes.get
    store = index.vector_store if isinstance(index, VectorStoreIndex) else None
    if store is None or not is_faiss_index(store.client):
        kind = type(index if store is None else store).__name__
        msg = f"index must be a VectorStoreIndex over FAISS or a StagedIndex, got {kind}"
        raise ConfigurationError(msg)
    if nodes is not None:
        raise ConfigurationError("nodes are for a StagedIndex; a VectorStoreIndex has its own")

    def find(node_id: str) -> BaseNode | None:
        return index.docstore.get_node(node_id, raise_error=False)

    return FaissView(lambda: store.client, partial(ids_by_number, index), find), find
