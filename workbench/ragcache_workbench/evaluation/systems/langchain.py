"""Adapters for LangChain's retrievers and models, and the default ones."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import BaseLLM
from langchain_core.runnables import Runnable, RunnableConfig
from typing_extensions import override

from ragcache_integrations.chains.langchain import LangChainAsker
from ragcache_integrations.chains.langchain import LangChainModel as AskerModel
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.embeddings.langchain import MiniLMEmbeddings
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.retrievers.cached.langchain.retriever import (
    QUERY_CACHE_EVENT,
    ApproximateCacheRetriever,
)
from ragcache_workbench.evaluation.datasets import EvalDocument

from .base import (
    CACHE_FACTS,
    CURRENT,
    Model,
    Noted,
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

OWN_MODEL = ChatRAGCache


class _TimedEmbeddings(MiniLMEmbeddings):
    """The default embeddings; they record how long a question took."""

    @override
    def embed_query(self, text: str) -> list[float]:
        with noting_embedding():
            return super().embed_query(text)

    @override
    async def aembed_query(self, text: str) -> list[float]:
        with noting_embedding():
            return await super().aembed_query(text)


class _Hooks(AsyncCallbackHandler):
    """Records what the query cache reports of a question."""

    def __init__(self, noted: Noted | None) -> None:
        self._noted = noted

    @override
    async def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        if name == QUERY_CACHE_EVENT and self._noted is not None:
            for fact in CACHE_FACTS:
                setattr(self._noted, fact, data[fact])


def adapted_retriever(
    retriever: Runnable[str, Any], reference: Runnable[str, Any] | None = None, k: int | None = None
) -> Retriever:
    """Adapt a retriever, or any Runnable from a question to documents.

    Args:
        retriever: The retriever.
        reference: Returns the documents of the store itself; ``None`` if unknown. That of an
            :class:`ApproximateCacheRetriever` is known.
        k: Number of documents to search the store for; ``None`` for the retriever's own.

    Raises:
        ConfigurationError: ``retriever`` or ``reference`` is no Runnable.
    """
    check_retrievers(Runnable, "LangChain's retrievers", retriever, reference)
    cache = retriever if isinstance(retriever, ApproximateCacheRetriever) else None
    store = reference
    if reference is None and cache is not None:
        store = _store_retriever(cache, k)

    async def search(text: str) -> Sequence[PromptDocument]:
        config = RunnableConfig(callbacks=[_Hooks(CURRENT.get())])
        return prompt_documents(await retriever.ainvoke(text, config))

    known = None if store is None else lambda text: prompt_documents(store.invoke(text))
    return Retriever(type(retriever).__name__, search, known, cache)


def _store_retriever(cache: ApproximateCacheRetriever, k: int | None) -> Runnable[str, Any] | None:
    if cache.vectorstore is not None:
        arguments = {**cache.search_kwargs, **({"k": cache.k or k} if cache.k or k else {})}
        return cache.vectorstore.as_retriever(search_kwargs=arguments)
    return cache.retriever if isinstance(cache.retriever, Runnable) else None


def adapted_model(
    model: Runnable[Any, Any], *, random_weights: bool | None = None, owned: bool = False
) -> Model:
    """Adapt a chat model or an LLM.

    Args:
        model: The model.
        random_weights: Whether its answers are noise; ``None`` to find out.
        owned: Whether :meth:`Model.close` closes it.

    Raises:
        ConfigurationError: ``model`` is neither.
    """
    asker_model = AskerModel(model)
    return Model(
        functools.partial(LangChainAsker, asker_model),
        asker_model.own,
        _name(asker_model.inner),
        asker_model.fields,
        noise=random_weights,
        owned=owned,
        whole_answers=isinstance(asker_model.inner, BaseLLM),
    )


def faiss_store(documents: Sequence[EvalDocument], index: Any) -> Any:
    """Documents in a FAISS index of their embeddings, as a store of LangChain."""
    from langchain_community.docstore import InMemoryDocstore  # noqa: PLC0415 - takes a second
    from langchain_community.vectorstores import FAISS  # noqa: PLC0415 - takes a second

    by_id = {document.id: Document(document.text, id=document.id) for document in documents}
    ids = dict(enumerate(vector_ids(documents, index)))
    return FAISS(_TimedEmbeddings(), index, InMemoryDocstore(by_id), ids)


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
    plain = store.as_retriever(search_kwargs={"k": k})
    if cache is None:
        return adapted_retriever(plain, plain)
    return adapted_retriever(ApproximateCacheRetriever.from_vectorstore(store, k=k, **cache), plain)


def prompt_documents(output: Any) -> list[PromptDocument]:
    """Return a retriever's documents as prompts have them."""
    items = output if isinstance(output, list | tuple) else [output]
    for item in items:
        if not isinstance(item, Document):
            kind = type(item).__name__
            raise ConfigurationError(f"a retriever must return documents, got {kind}")
    return [
        PromptDocument(text := item.page_content or " ", item.id or content_id(text))
        for item in items
    ]


def _name(model: Any) -> str:
    for name in ("model_name", "model", "model_id"):
        value = getattr(model, name, None)
        if isinstance(value, str) and value:
            return value
    return type(model).__name__
