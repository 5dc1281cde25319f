"""The demo's LangChain application: a usual chain, and the same chain with our classes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_community.docstore.base import Docstore
from langchain_community.vectorstores import FAISS
from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnablePassthrough
from typing_extensions import override

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.langchain import (
    QUERY_CACHE_EVENT,
    ApproximateCacheRetriever,
    ChatRAGCache,
    MiniLMEmbeddings,
)

from .corpus import SYSTEM, Corpus, passage_text, user_text
from .engines import StockEngine
from .measures import App, Moments
from .settings import DemoSettings

__all__ = ["LangChainApp", "StockChatModel", "TimedEmbeddings", "langchain_apps"]

_ROLES = {"human": "user", "ai": "assistant"}


class TimedEmbeddings(MiniLMEmbeddings):
    """The default embeddings; they measure how long questions take."""

    seconds = 0.0

    @override
    def embed_query(self, text: str) -> list[float]:
        begun = time.perf_counter()
        embedding = super().embed_query(text)
        self.seconds += time.perf_counter() - begun
        return embedding


class StockChatModel(BaseChatModel):
    """Stock vLLM as a LangChain chat model, and nothing more."""

    engine: Any
    max_tokens: int

    @property
    @override
    def _llm_type(self) -> str:
        return "stock-vllm"

    @override
    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        turns = [
            {"role": _ROLES.get(message.type, message.type), "content": message.text}
            for message in messages
        ]
        for number, chunk in enumerate(self.engine.stream(turns, self.max_tokens)):
            message = AIMessageChunk(content=chunk.text)
            if number == 0:  # LangChain adds up what it finds on several chunks
                message.usage_metadata = UsageMetadata(
                    input_tokens=chunk.prompt_tokens,
                    output_tokens=0,
                    total_tokens=chunk.prompt_tokens,
                    input_token_details=InputTokenDetails(cache_read=chunk.cached_tokens),
                )
            yield ChatGenerationChunk(message=message)

    @override
    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        text = "".join(str(chunk.text) for chunk in self._stream(messages))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=text))])


class _Passages(Docstore):  # type: ignore[misc]  # langchain-community has no types
    """The corpus as a document store of LangChain."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    @override
    def search(self, search: str) -> Document:
        passage = self._corpus.passage(search)
        return Document(passage_text(passage), id=passage.id, metadata={"title": passage.title})


class _Hooks(BaseCallbackHandler):
    """Measures the times without changing the chain."""

    raise_error = True

    def __init__(self, moments: Moments) -> None:
        self._moments = moments

    @override
    def on_retriever_start(self, *args: Any, **kwargs: Any) -> None:
        self._moments.note("retrieving")

    @override
    def on_retriever_end(self, documents: Sequence[Document], **kwargs: Any) -> None:
        self._moments.note("retrieved")
        self._moments.document_ids = tuple(str(document.id) for document in documents)

    @override
    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        if name == QUERY_CACHE_EVENT:
            self._moments.hit = data["hit"]

    @override
    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self._moments.note("llm")

    @override
    def on_llm_new_token(self, *args: Any, **kwargs: Any) -> None:
        self._moments.note("token")

    @override
    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        generation = response.generations[0][0]
        if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
            usage = generation.message.usage_metadata
            if usage is not None:
                self._moments.prompt_tokens = usage["input_tokens"]
                details = usage.get("input_token_details", {})
                self._moments.cached_prompt_tokens = details.get("cache_read", 0)


class LangChainApp(App):
    """A chain that answers questions from retrieved documents, and is measured.

    Args:
        retriever: Finds the documents.
        model: Answers from them.
        corpus: Counts the searches.
        embeddings: Measure how long questions take to embed.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        model: BaseChatModel,
        corpus: Corpus,
        embeddings: TimedEmbeddings,
    ) -> None:
        super().__init__(corpus, embeddings)
        prompt = ChatPromptTemplate.from_messages(
            [("system", SYSTEM), ("human", user_text("{context}", "{question}"))]
        )
        self._chain: Runnable[str, str] = (
            {"context": retriever | _join, "question": RunnablePassthrough()}
            | prompt
            | model
            | StrOutputParser()
        )

    @override
    def _answer(self, question: str, moments: Moments) -> Iterator[str]:
        return self._chain.stream(question, {"callbacks": [_Hooks(moments)]})


def _join(documents: Sequence[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


def langchain_apps(
    corpus: Corpus,
    embeddings: TimedEmbeddings,
    stock: StockEngine,
    ways: Sequence[tuple[RAGCacheEngine, str]],
    settings: DemoSettings,
) -> tuple[LangChainApp, ...]:
    """The chain before and after: a FAISS retriever on stock vLLM, then our two classes.

    Args:
        corpus: Counts the searches.
        embeddings: Measure how long questions take to embed.
        stock: Stock vLLM.
        ways: Engines for applications with our classes, and the namespace of each.
        settings: Settings of the demo.
    """
    ids = dict(enumerate(corpus.ids))
    store = FAISS(embeddings, corpus.index, _Passages(corpus), ids)
    apps: list[tuple[BaseRetriever, BaseChatModel]] = [
        (
            store.as_retriever(search_kwargs={"k": settings.top_k}),
            StockChatModel(engine=stock, max_tokens=settings.max_tokens),
        ),
        *(
            (
                ApproximateCacheRetriever.from_vectorstore(
                    store, k=settings.top_k, tolerance=settings.tolerance, namespace=tenant
                ),
                ChatRAGCache(engine=engine, namespace=tenant, max_tokens=settings.max_tokens),
            )
            for engine, tenant in ways
        ),
    ]
    return tuple(LangChainApp(*parts, corpus, embeddings) for parts in apps)
