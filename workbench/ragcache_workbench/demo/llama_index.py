"""The demo's LlamaIndex application: a usual query engine, and the same with our classes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import llama_index.core.instrumentation as instrument
from llama_index.core import ChatPromptTemplate, VectorStoreIndex, get_response_synthesizer
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
from llama_index.core.base.response.schema import StreamingResponse
from llama_index.core.data_structs import IndexDict
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatInProgressEvent,
    LLMChatStartEvent,
)
from llama_index.core.instrumentation.events.retrieval import (
    RetrievalEndEvent,
    RetrievalStartEvent,
)
from llama_index.core.llms import LLM, CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import BaseNode, TextNode
from llama_index.core.storage import StorageContext
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.vector_stores.faiss import FaissVectorStore
from pydantic import PrivateAttr
from typing_extensions import override

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.llama_index import (
    ApproximateCacheRetriever,
    MiniLMEmbeddings,
    QueryCacheEvent,
    RAGCacheLLM,
)

from .corpus import SYSTEM, Corpus, passage_text, user_text
from .engines import StockEngine
from .measures import App, Moments
from .settings import DemoSettings

__all__ = ["LlamaIndexApp", "StockLLM", "TimedEmbeddings", "llama_index_apps"]


class TimedEmbeddings(MiniLMEmbeddings):
    """The default embeddings; they measure how long questions take."""

    _seconds: float = PrivateAttr(default=0.0)

    @property
    def seconds(self) -> float:
        """Time spent embedding questions so far."""
        return self._seconds

    @override
    def _get_query_embedding(self, query: str) -> list[float]:
        begun = time.perf_counter()
        embedding = super()._get_query_embedding(query)
        self._seconds += time.perf_counter() - begun
        return embedding


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
            usage = {"prompt_tokens": chunk.prompt_tokens, "prompt_tokens_details": details}
            yield ChatResponse(
                message=ChatMessage(role=MessageRole.ASSISTANT, content=text),
                delta=chunk.text,
                raw={"usage": usage},
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


class _Passages(SimpleDocumentStore):
    """The corpus as a document store of LlamaIndex."""

    def __init__(self, corpus: Corpus) -> None:
        super().__init__()
        self._corpus = corpus

    @override
    def get_document(self, doc_id: str, raise_error: bool = True) -> BaseNode:
        passage = self._corpus.passage(doc_id)
        return TextNode(
            id_=passage.id,
            text=passage_text(passage),
            metadata={"title": passage.title},
            excluded_llm_metadata_keys=["title"],
        )


class _Hooks(BaseEventHandler):
    """Measures the times without changing the query engine."""

    _moments: Moments | None = PrivateAttr(default=None)

    @classmethod
    @override
    def class_name(cls) -> str:
        return "DemoHooks"

    @override
    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        moments = self._moments
        if moments is None:
            return
        match event:
            case RetrievalStartEvent():
                moments.note("retrieving")
            case RetrievalEndEvent():
                moments.note("retrieved")
                moments.document_ids = tuple(node.node_id for node in event.nodes)
            case QueryCacheEvent():
                moments.hit = event.trace.hit
            case LLMChatStartEvent():
                moments.note("llm")
            case LLMChatInProgressEvent():
                moments.note("token")
            case LLMChatEndEvent(response=ChatResponse(raw={"usage": usage})):
                moments.prompt_tokens = usage["prompt_tokens"]
                moments.cached_prompt_tokens = usage["prompt_tokens_details"]["cached_tokens"]
            case _:
                pass


class LlamaIndexApp(App):
    """A query engine that is measured.

    Args:
        retriever: Finds the documents.
        model: Answers from them.
        corpus: Counts the searches.
        embeddings: Measure how long questions take to embed.
    """

    def __init__(
        self, retriever: BaseRetriever, model: LLM, corpus: Corpus, embeddings: TimedEmbeddings
    ) -> None:
        super().__init__(corpus, embeddings)
        prompt = ChatPromptTemplate(
            message_templates=[
                ChatMessage(role=MessageRole.SYSTEM, content=SYSTEM),
                ChatMessage(
                    role=MessageRole.USER, content=user_text("{context_str}", "{query_str}")
                ),
            ]
        )
        self._query_engine = RetrieverQueryEngine(
            retriever,
            get_response_synthesizer(llm=model, text_qa_template=prompt, streaming=True),
        )

    @override
    def _answer(self, question: str, moments: Moments) -> Iterator[str]:
        _HOOKS._moments = moments  # noqa: SLF001 - pydantic has no other place for it
        try:
            response = self._query_engine.query(question)
            assert isinstance(response, StreamingResponse)  # noqa: S101 - for type checkers: streaming=True
            yield from response.response_gen
        finally:
            _HOOKS._moments = None  # noqa: SLF001 - as above


# LlamaIndex has one chain of dispatchers for the whole process, and no way to remove a handler.
_HOOKS = _Hooks()
instrument.get_dispatcher().add_event_handler(_HOOKS)  # type: ignore[attr-defined]  # re-exported


def llama_index_apps(
    corpus: Corpus,
    embeddings: TimedEmbeddings,
    stock: StockEngine,
    ways: Sequence[tuple[RAGCacheEngine, str]],
    settings: DemoSettings,
) -> tuple[LlamaIndexApp, ...]:
    """The query engine before and after: FAISS on stock vLLM, then our two classes.

    Args:
        corpus: Counts the searches.
        embeddings: Measure how long questions take to embed.
        stock: Stock vLLM.
        ways: Engines for applications with our classes, and the namespace of each.
        settings: Settings of the demo.
    """
    nodes = {str(position): document_id for position, document_id in enumerate(corpus.ids)}
    index = VectorStoreIndex(
        index_struct=IndexDict(nodes_dict=nodes),
        embed_model=embeddings,
        storage_context=StorageContext.from_defaults(
            vector_store=FaissVectorStore(corpus.index), docstore=_Passages(corpus)
        ),
    )
    apps: list[tuple[BaseRetriever, LLM]] = [
        (
            index.as_retriever(similarity_top_k=settings.top_k),
            StockLLM(
                engine=stock,
                max_tokens=settings.max_tokens,
                context_window=ways[0][0].max_model_len,
            ),
        ),
        *(
            (
                ApproximateCacheRetriever.from_index(
                    index, k=settings.top_k, tolerance=settings.tolerance, namespace=tenant
                ),
                RAGCacheLLM(engine=engine, namespace=tenant, max_tokens=settings.max_tokens),
            )
            for engine, tenant in ways
        ),
    ]
    return tuple(LlamaIndexApp(*parts, corpus, embeddings) for parts in apps)
