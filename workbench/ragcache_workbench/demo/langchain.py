"""The demo's LangChain applications: a usual one, and the same with our classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnablePassthrough
from typing_extensions import override

from ragcache_integrations.chains.askers import usage_of
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.langchain import ApproximateCacheRetriever, ChatRAGCache
from ragcache_workbench.evaluation.systems.langchain import faiss_store, prompt_documents

from .apps import SYSTEM, App, Corpus, Found, Piece, user_text
from .engines import StockEngine
from .settings import DemoSettings

__all__ = ["make_apps"]

_ROLES = {"human": "user", "ai": "assistant"}


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
    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        text = "".join(str(chunk.text) for chunk in self._stream(messages))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=text))])


def make_apps(
    corpus: Corpus,
    stock: StockEngine,
    ways: Sequence[tuple[RAGCacheEngine, str]],
    settings: DemoSettings,
) -> tuple[App, ...]:
    """The application before and after: a FAISS retriever on stock vLLM, then our two classes.

    Args:
        corpus: Has the documents, and counts the searches.
        stock: Stock vLLM.
        ways: Engines for applications with our classes, and the namespace of each.
        settings: Settings of the demo.
    """
    store = faiss_store(corpus.documents, corpus.index)
    prompt = ChatPromptTemplate.from_messages(
        [("system", SYSTEM), ("human", user_text("{context}", "{question}"))]
    )
    parts: list[tuple[BaseRetriever, BaseChatModel]] = [
        (
            store.as_retriever(search_kwargs={"k": settings.top_k}),
            StockChatModel(engine=stock, max_tokens=settings.max_tokens),
        )
    ]
    for engine, tenant in ways:
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, k=settings.top_k, tolerance=settings.tolerance, namespace=tenant
        )
        model = ChatRAGCache(engine=engine, namespace=tenant, max_tokens=settings.max_tokens)
        parts.append((retriever, model))
    return tuple(
        App(corpus, partial(_stream, retriever, prompt | model)) for retriever, model in parts
    )


def _stream(
    retriever: BaseRetriever, answer: Runnable[Any, Any], question: str, found: Found
) -> Iterator[Piece]:
    def context(documents: Sequence[Document]) -> str:
        found(prompt_documents(documents))
        return "\n\n".join(document.page_content for document in documents)

    chain = {"context": retriever | context, "question": RunnablePassthrough()} | answer
    for chunk in chain.stream(question):
        yield str(chunk.text), usage_of(chunk.usage_metadata)
