"""The demo's LlamaIndex applications: a usual one, and the same with our classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

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
from llama_index.core.llms import LLM, CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from typing_extensions import override

from ragcache_integrations.chains.askers import usage_of
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.llama_index import ApproximateCacheRetriever, RAGCacheLLM
from ragcache_workbench.evaluation.systems.llama_index import faiss_store, prompt_documents

from .apps import SYSTEM, App, Corpus, Piece, user_text
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
    return tuple(
        App(corpus, partial(_retrieve, retriever), partial(_answer, model))
        for retriever, model in parts
    )


def _retrieve(retriever: BaseRetriever, question: str) -> list[PromptDocument]:
    return prompt_documents(retriever.retrieve(question))


_PROMPT = ChatPromptTemplate.from_messages(
    [("system", SYSTEM), ("user", user_text("{context_str}", "{query_str}"))]
)


def _answer(model: LLM, context: str, question: str) -> Iterator[Piece]:
    messages = _PROMPT.format_messages(context_str=context, query_str=question)
    for response in model.stream_chat(messages):
        yield response.delta or "", usage_of((response.raw or {}).get("usage"))
