"""LangChain's retrievers and models as the evaluation asks them, and the default ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import BaseLLM
from langchain_core.runnables import Runnable, RunnableConfig
from typing_extensions import override

from ragcache_integrations.adaptive import Asker
from ragcache_integrations.chains.askers.langchain import LangChainAsker
from ragcache_integrations.chains.askers.langchain import LangChainModel as AskedModel
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.ids import content_id
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.embeddings.langchain import MiniLMEmbeddings
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.evaluation.datasets import EvalDocument
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.retrievers.cached.langchain.retriever import (
    QUERY_CACHE_EVENT,
    ApproximateCacheRetriever,
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

__all__ = ["LangChainModel", "LangChainRetriever", "chat_model", "faiss_retriever"]


class _TimedEmbeddings(MiniLMEmbeddings):
    """The default embeddings, which note how long a question took."""

    @override
    def embed_query(self, text: str) -> list[float]:
        with noting_embedding():
            return super().embed_query(text)


class _Hooks(AsyncCallbackHandler):
    """Notes what the query cache says of a question."""

    def __init__(self, noted: Noted) -> None:
        self._noted = noted

    @override
    async def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        if name == QUERY_CACHE_EVENT:
            for one in CACHE_FACTS:
                setattr(self._noted, one, data[one])


class LangChainRetriever(CachedState):
    """A retriever, or any Runnable from a question to documents.

    Args:
        retriever: The retriever.
        reference: Tells what the store itself returns; found out where the retriever is an
            :class:`ApproximateCacheRetriever`.
        k: How many documents the store is asked for, to compare with.

    Raises:
        ConfigurationError: It is no Runnable.
    """

    def __init__(
        self,
        retriever: Runnable[str, Any],
        reference: Runnable[str, Any] | None = None,
        k: int | None = None,
    ) -> None:
        for one in (retriever, reference):
            if one is not None and not isinstance(one, Runnable):
                msg = f"retriever must be one of LangChain's retrievers, got {type(one).__name__}"
                raise ConfigurationError(msg)
        super().__init__(retriever if isinstance(retriever, ApproximateCacheRetriever) else None)
        self.name = type(retriever).__name__
        self._retriever = retriever
        self._reference = reference or self._behind(k)

    def _behind(self, k: int | None) -> Runnable[str, Any] | None:
        cache = self._cache
        if not isinstance(cache, ApproximateCacheRetriever):
            return None
        if cache.vectorstore is not None:
            arguments = {**cache.search_kwargs, **({"k": cache.k or k} if cache.k or k else {})}
            return cache.vectorstore.as_retriever(search_kwargs=arguments)
        behind = cache.retriever
        return behind if isinstance(behind, Runnable) else None

    async def retrieve(self, text: str) -> Retrieved:
        """Retrieve documents without blocking the event loop."""
        noted = Noted()
        token = CURRENT.set(noted)
        try:
            found = await self._retriever.ainvoke(text, RunnableConfig(callbacks=[_Hooks(noted)]))
        finally:
            CURRENT.reset(token)
        return Retrieved(tuple(_document(document) for document in _documents(found)), noted)

    def reference(self, text: str) -> list[str] | None:
        """Ids of what the store itself returns."""
        if self._reference is None:
            return None
        return [_document(document).id for document in _documents(self._reference.invoke(text))]


class LangChainModel(EngineModel):
    """A chat model or an LLM.

    Args:
        model: The model.
        random_weights: Whether what it says is noise; found out where ``None``.
        owned: Whether :meth:`close` closes it.

    Raises:
        ConfigurationError: It is no model.
    """

    def __init__(
        self, model: Runnable[Any, Any], *, random_weights: bool | None = None, owned: bool = False
    ) -> None:
        self._asked = AskedModel(model)
        name = _name(self._asked.inner)
        super().__init__(self._asked.own, name, random_weights=random_weights, owned=owned)
        self.whole_answers = isinstance(self._asked.inner, BaseLLM)

    def asker(self, *, options: bool) -> Asker:
        """Who is asked."""
        own, names = self._asked.own is not None, self._asked.fields
        call: Mapping[str, Any] = likeliest_arguments(names, own=own) if options else {}
        return LangChainAsker(self._asked, call=call)


def faiss_retriever(
    documents: Sequence[EvalDocument], index: Any, *, k: int, cache: Mapping[str, Any] | None
) -> LangChainRetriever:
    """The default retriever: FAISS with MiniLM embeddings.

    Args:
        documents: In the order of the index.
        index: Their embeddings.
        k: Documents per question.
        cache: Knobs of the approximate query cache in front; ``None`` for the store alone.

    Raises:
        MissingExtraError: langchain-community is not installed.
        ConfigurationError: The knobs do not go together.
    """
    feature = "The default retriever"
    stores = require("langchain_community.vectorstores", feature=feature, extra="eval")
    docstores = require("langchain_community.docstore", feature=feature, extra="eval")
    held = {document.id: Document(document.text, id=document.id) for document in documents}
    names = dict(enumerate(one.id for one in documents))
    store = stores.FAISS(_TimedEmbeddings(), index, docstores.InMemoryDocstore(held), names)
    plain = store.as_retriever(search_kwargs={"k": k})
    if cache is None:
        return LangChainRetriever(plain, plain)
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=k, **cache)
    return LangChainRetriever(retriever, plain)


def chat_model(**knobs: Any) -> LangChainModel:
    """The default model: :class:`ChatRAGCache`; knobs as it takes them."""
    return LangChainModel(ChatRAGCache(**knobs), owned=True)


def _documents(found: Any) -> Sequence[Document]:
    listed = list(found) if isinstance(found, list | tuple) else [found]
    for one in listed:
        if not isinstance(one, Document):
            msg = f"a retriever must return documents, got {type(one).__name__}"
            raise ConfigurationError(msg)
    return listed


def _document(document: Document) -> PromptDocument:
    text = document.page_content or " "
    return PromptDocument(text, document.id or content_id(text))


def _name(model: Any) -> str:
    for name in ("model_name", "model", "model_id"):
        value = getattr(model, name, None)
        if isinstance(value, str) and value:
            return value
    return type(model).__name__
