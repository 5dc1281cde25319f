"""LlamaIndex's retrievers and LLMs as the evaluation asks them, and the default ones."""

from __future__ import annotations

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
from typing_extensions import override

from ragcache_integrations.adaptive import Asker
from ragcache_integrations.chains.askers.llama_index import LlamaIndexAsker
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.ids import content_id
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.embeddings.llama_index import MiniLMEmbeddings
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.evaluation.datasets import EvalDocument
from ragcache_integrations.llms.knobs import LLMKnobs
from ragcache_integrations.llms.llama_index.model import RAGCacheLLM
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever,
    QueryCacheEvent,
)

from .base import (
    CACHE_FACTS,
    CURRENT,
    CachedState,
    Noted,
    Retrieved,
)
from .models import EngineModel, likeliest_arguments
from .timed import noting_embedding

__all__ = ["LlamaIndexModel", "LlamaIndexRetriever", "faiss_retriever", "language_model"]


class _TimedEmbeddings(MiniLMEmbeddings):
    """The default embeddings, which note how long a question took."""

    @override
    def _get_query_embedding(self, query: str) -> list[float]:
        with noting_embedding():
            return super()._get_query_embedding(query)

    @override
    async def _aget_query_embedding(self, query: str) -> list[float]:
        with noting_embedding():
            return await super()._aget_query_embedding(query)


class _Hooks(BaseEventHandler):
    """Notes what the query cache says of the question under way in this context."""

    @classmethod
    @override
    def class_name(cls) -> str:
        return "EvaluationHooks"

    @override
    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        noted = CURRENT.get()
        if noted is not None and isinstance(event, QueryCacheEvent):
            for one in CACHE_FACTS:
                setattr(noted, one, getattr(event.trace, one))


# LlamaIndex has one chain of dispatchers for the whole process, and no way to remove a handler.
instrument.get_dispatcher().add_event_handler(_Hooks())  # type: ignore[attr-defined]  # re-exported


class LlamaIndexRetriever(CachedState):
    """A retriever.

    Args:
        retriever: The retriever.
        reference: Tells what the store itself returns, where that is known.

    Raises:
        ConfigurationError: It is no retriever.
    """

    def __init__(self, retriever: BaseRetriever, reference: BaseRetriever | None = None) -> None:
        for one in (retriever, reference):
            if one is not None and not isinstance(one, BaseRetriever):
                msg = f"retriever must be one of LlamaIndex's, got {type(one).__name__}"
                raise ConfigurationError(msg)
        super().__init__(retriever if isinstance(retriever, ApproximateCacheRetriever) else None)
        self.name = type(retriever).__name__
        self._retriever = retriever
        self._reference = reference

    async def retrieve(self, text: str) -> Retrieved:
        """Retrieve nodes without blocking the event loop."""
        noted = Noted()
        token = CURRENT.set(noted)
        try:
            found = await self._retriever.aretrieve(text)
        finally:
            CURRENT.reset(token)
        return Retrieved(tuple(_document(one) for one in found), noted)

    def reference(self, text: str) -> list[str] | None:
        """Ids of what the store itself returns."""
        if self._reference is None:
            return None
        return [_document(one).id for one in self._reference.retrieve(text)]


class LlamaIndexModel(EngineModel):
    """An LLM.

    Args:
        model: The LLM.
        random_weights: Whether what it says is noise; found out where ``None``.
        owned: Whether :meth:`close` closes it.

    Raises:
        ConfigurationError: It is no LLM.
    """

    def __init__(
        self, model: LLM, *, random_weights: bool | None = None, owned: bool = False
    ) -> None:
        LlamaIndexAsker(model)  # says what is wrong with it
        self._llm = model
        own = model if isinstance(model, LLMKnobs) else None
        name = str(getattr(model, "model", type(model).__name__))
        super().__init__(own, name, random_weights=random_weights, owned=owned)
        self.whole_answers = False

    def asker(self, *, options: bool) -> Asker:
        """Who is asked."""
        own, names = isinstance(self._llm, LLMKnobs), type(self._llm).model_fields
        call: Mapping[str, Any] = likeliest_arguments(names, own=own) if options else {}
        return LlamaIndexAsker(self._llm, call)


def faiss_retriever(
    documents: Sequence[EvalDocument], index: Any, *, k: int, cache: Mapping[str, Any] | None
) -> LlamaIndexRetriever:
    """The default retriever: FAISS with MiniLM embeddings.

    Args:
        documents: In the order of the index.
        index: Their embeddings.
        k: Documents per question.
        cache: Knobs of the approximate query cache in front; ``None`` for the store alone.

    Raises:
        MissingExtraError: The FAISS store is not installed.
        ConfigurationError: The knobs do not go together.
    """
    stores = require(
        "llama_index.vector_stores.faiss", feature="The default retriever", extra="eval"
    )
    docstore = SimpleDocumentStore()
    docstore.add_documents([TextNode(text=one.text, id_=one.id) for one in documents])
    nodes = {str(position): document.id for position, document in enumerate(documents)}
    over = VectorStoreIndex(
        index_struct=IndexDict(nodes_dict=nodes),
        embed_model=_TimedEmbeddings(),
        storage_context=StorageContext.from_defaults(
            vector_store=stores.FaissVectorStore(index), docstore=docstore
        ),
    )
    plain = over.as_retriever(similarity_top_k=k)
    if cache is None:
        return LlamaIndexRetriever(plain, plain)
    return LlamaIndexRetriever(ApproximateCacheRetriever.from_index(over, k=k, **cache), plain)


def language_model(**knobs: Any) -> LlamaIndexModel:
    """The default model: :class:`RAGCacheLLM`; knobs as it takes them."""
    return LlamaIndexModel(RAGCacheLLM(**knobs), owned=True)


def _document(found: NodeWithScore) -> PromptDocument:
    text = found.node.get_content(MetadataMode.NONE) or " "
    return PromptDocument(text, found.node_id or content_id(text))
