"""The demo's LlamaIndex applications: a usual one, and the same with our classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import llama_index.core.instrumentation as instrument
from llama_index.core import ChatPromptTemplate
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent
from llama_index.core.llms import LLM, CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle
from typing_extensions import override

from ragcache_integrations.chains.askers import usage_of
from ragcache_integrations.core.generation import Usage
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.llama_index import ApproximateCacheRetriever, RAGCacheLLM
from ragcache_workbench.evaluation.systems.llama_index import faiss_store, prompt_documents

from .apps import SYSTEM, App, Corpus, Found, Piece, user_text
from .engines import StockEngine
from .settings import DemoSettings

__all__ = ["make_apps"]


class StockLLM(CustomLLM):
    """Stock vLLM as a LlamaIndex chat model, and nothing more."""

    engine: Any
    max_tokens: int
    context_window: int

    @property
    @override
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=self.context_window, num_output=self.max_tokens, is_chat_model=True
        )

    @override
    def to_payload(self) -> dict[str, Any]:
        return {"class_name": self.class_name()}  # the engine is nothing to be logged

    @llm_chat_callback()
    @override
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer a conversation piece by piece."""
        turns = [
            {"role": message.role.value, "content": message.content or ""} for message in messages
        ]
        text = ""
        for chunk in self.engine.stream(turns, self.max_tokens):
            text += chunk.text
            details = {"cached_tokens": chunk.cached_tokens}
            usage = {"prompt_tokens": chunk.prompt_tokens, "completion_tokens": 0}
            yield ChatResponse(
                message=ChatMessage(role=MessageRole.ASSISTANT, content=text),
                delta=chunk.text,
                raw={"usage": {**usage, "prompt_tokens_details": details}},
            )

    @llm_completion_callback()
    @override
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        """Answer a text as if it were the user's."""
        for response in self.stream_chat([ChatMessage(role=MessageRole.USER, content=prompt)]):
            yield CompletionResponse(text=response.message.content or "", delta=response.delta)

    @llm_completion_callback()
    @override
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a text as if it were the user's."""
        text = "".join(piece.delta or "" for piece in self.stream_complete(prompt))
        return CompletionResponse(text=text)


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
    window, most = ways[0][0].max_model_len, settings.max_tokens
    parts: list[tuple[BaseRetriever, LLM]] = [
        (
            store.as_retriever(similarity_top_k=settings.top_k),
            StockLLM(engine=stock, max_tokens=most, context_window=window),
        )
    ]
    for engine, tenant in ways:
        retriever = ApproximateCacheRetriever.from_index(
            store, k=settings.top_k, tolerance=settings.tolerance, namespace=tenant
        )
        model = RAGCacheLLM(engine=engine, namespace=tenant, max_tokens=most)
        parts.append((retriever, model))
    return tuple(App(corpus, partial(_stream, *each)) for each in parts)


_PROMPT = ChatPromptTemplate.from_messages(
    [("system", SYSTEM), ("user", user_text("{context_str}", "{query_str}"))]
)


class _Observed(BaseNodePostprocessor):
    """Hands the retriever's nodes on, and says what they are."""

    found: Any

    @override
    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        self.found(prompt_documents(nodes))
        return nodes


class _Usage(BaseEventHandler):
    """The tokens of the latest call, which a query engine's stream does not have."""

    latest: Usage | None = None

    @override
    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        if isinstance(event, LLMChatEndEvent) and event.response is not None:
            self.latest = usage_of((event.response.raw or {}).get("usage"))


def _stream(retriever: BaseRetriever, model: LLM, question: str, found: Found) -> Iterator[Piece]:
    query_engine = RetrieverQueryEngine.from_args(
        retriever,
        llm=model,
        text_qa_template=_PROMPT,
        node_postprocessors=[_Observed(found=found)],
        streaming=True,
    )
    dispatcher = instrument.get_dispatcher()  # type: ignore[attr-defined]  # re-exported
    heard, handlers = _Usage(), dispatcher.event_handlers
    handlers.append(heard)
    try:
        response: Any = query_engine.query(question)
        for text in response.response_gen:
            yield text, None
        yield "", heard.latest
    finally:
        handlers.remove(heard)
