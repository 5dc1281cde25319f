"""Adapters for LlamaIndex's retrievers and LLMs, and the default ones."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import llama_index.core.instrumentation as instrument
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.data_structs import IndexDict
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.llms import LLM
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from llama_index.core.storage import StorageContext
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.vector_stores.faiss import FaissVectorStore
from typing_extensions import override

from ragcache_integrations.chains.llama_index import LlamaIndexAsker
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.embeddings.llama_index import MiniLMEmbeddings
from ragcache_integrations.llms.base import BaseRAGCacheLLM
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever,
    QueryCacheEvent,
)
from ragcache_workbench.evaluation.datasets import EvalDocument

from .base import (
    CACHE_FACTS,
    CURRENT,
    Model,
    Retriever,
    check_retrievers,
    noting_embedding,
    vector_ids,
)

__all__ = [
    "OWN_MODEL",
    "adapted_model",
    "adapted_retriever",
    "faiss_retriever",
    "faiss_store",
    "prompt_documents",
]

OWN_MODEL = RAGCacheLLM


class _TimedEmbeddings(MiniLMEmbeddings):
    """The default embeddings; they record how long a question took."""

    @override
    def _get_query_embedding(self, query: str) -> list[float]:
        with noting_embedding():
            return super()._get_query_embedding(query)

    @override
    async def _aget_query_embedding(self, query: str) -> list[float]:
        with noting_embedding():
            return await super()._aget_query_embedding(query)


class _Hooks(BaseEventHandler):
    """Records what the query cache reports of the question that this context is answering."""

    @classmethod
    @override
    def class_name(cls) -> str:
        return "EvaluationHooks"

    @override
    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        noted = CURRENT.get()
        if noted is not None and isinstance(event, QueryCacheEvent):
            for fact in CACHE_FACTS:
                setattr(noted, fact, getattr(event.trace, fact))


# LlamaIndex has one chain of dispatchers for the whole process, and no way to remove a handler.
instrument.get_dispatcher().add_event_handler(_Hooks())  # type: ignore[attr-defined]  # re-exported


def adapted_retriever(
    retriever: BaseRetriever, reference: BaseRetriever | None = None, _k: int | None = None
) -> Retriever:
    """Adapt a retriever.

    Args:
        retriever: The retriever.
        reference: Returns the documents of the store itself; ``None`` if unknown.

    Raises:
        ConfigurationError: ``retriever`` or ``reference`` is no retriever.
    """
    check_retrievers(BaseRetriever, "LlamaIndex's retrievers", retriever, reference)

    async def search(text: str) -> Sequence[PromptDocument]:
        return prompt_documents(await retriever.aretrieve(text))

    known = None if reference is None else lambda text: prompt_documents(reference.retrieve(text))
    cache = retriever if isinstance(retriever, ApproximateCacheRetriever) else None
    return Retriever(type(retriever).__name__, search, known, cache)


def adapted_model(model: LLM, *, random_weights: bool | None = None, owned: bool = False) -> Model:
    """Adapt an LLM.

    Args:
        model: The LLM.
        random_weights: Whether its answers are noise; ``None`` to find out.
        owned: Whether :meth:`Model.close` closes it.

    Raises:
        ConfigurationError: ``model`` is no LLM.
    """
    LlamaIndexAsker(model)  # raises an error if it is none
    return Model(
        functools.partial(LlamaIndexAsker, model),
        model if isinstance(model, BaseRAGCacheLLM) else None,
        str(getattr(model, "model", type(model).__name__)),
        type(model).model_fields,
        noise=random_weights,
        owned=owned,
    )


def faiss_store(documents: Sequence[EvalDocument], index: Any) -> VectorStoreIndex:
    """Documents in a FAISS index of their embeddings, as an index of LlamaIndex."""
    docstore = SimpleDocumentStore()
    docstore.add_documents(
        [TextNode(text=document.text, id_=document.id) for document in documents]
    )
    nodes = {str(position): name for position, name in enumerate(vector_ids(documents, index))}
    return VectorStoreIndex(
        index_struct=IndexDict(nodes_dict=nodes),
        embed_model=_TimedEmbeddings(),
        storage_context=StorageContext.from_defaults(
            vector_store=FaissVectorStore(index), docstore=docstore
        ),
    )


def faiss_retriever(
    documents: Sequence[EvalDocument], index: Any, *, k: int, cache: Mapping[str, Any] | None
) -> Retriever:
    """The default retriever: FAISS with MiniLM embeddings.

    Args:
        documents: The documents, in the order of the index.
        index: A FAISS index of their embeddings.
        k: Number of documents per question; at least 1.
        cache: Knobs of an approximate query cache before the store; ``None`` for no cache.

    Raises:
        ConfigurationError: A knob of the cache cannot be used.
    """
    store = faiss_store(documents, index)
    plain = store.as_retriever(similarity_top_k=k)
    if cache is None:
        return adapted_retriever(plain, plain)
    return adapted_retriever(ApproximateCacheRetriever.from_index(store, k=k, **cache), plain)


def prompt_documents(nodes: Sequence[NodeWithScore]) -> list[PromptDocument]:
    """Return a retriever's nodes as prompts have them."""
    return [
        PromptDocument(
            text := node.node.get_content(MetadataMode.NONE) or " ",
            node.node_id or content_id(text),
        )
        for node in nodes
    ]
