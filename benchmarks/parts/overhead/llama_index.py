"""LlamaIndex's side: VectorStoreIndex and MockLLM, and ours around the same index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode
from pydantic import PrivateAttr

from parts.overhead.backends import InstantBackend
from parts.overhead.contests import Contest
from parts.overhead.subtraction import Stopwatch
from ragcache_integrations.llama_index import ApproximateCacheRetriever, RAGCacheLLM

__all__ = ["llms", "retrievers"]


class _Known(BaseEmbedding):
    """Gives embeddings that are known beforehand. What LlamaIndex does around them is timed, too.

    Both sides call the two methods that are timed, whatever these call.
    """

    _vectors: Mapping[str, list[float]] = PrivateAttr()
    _stopwatch: Stopwatch = PrivateAttr()

    def __init__(self, vectors: Mapping[str, list[float]], stopwatch: Stopwatch) -> None:
        super().__init__(model_name="known")
        self._vectors = vectors
        self._stopwatch = stopwatch

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vectors[query]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._vectors[query]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vectors[text]

    def get_agg_embedding_from_queries(self, *args: Any, **kwargs: Any) -> list[float]:
        return self._stopwatch.timed(super().get_agg_embedding_from_queries)(*args, **kwargs)

    async def aget_agg_embedding_from_queries(self, *args: Any, **kwargs: Any) -> list[float]:
        method = super().aget_agg_embedding_from_queries
        return await self._stopwatch.atimed(method)(*args, **kwargs)


def retrievers(
    vectors: Mapping[str, list[float]],
    texts: Sequence[str],
    *,
    rerank_factor: int,
    asynchronous: bool,
) -> Contest:
    """Return ours and the framework's own retriever of the same index.

    Args:
        vectors: Embeddings of questions and of texts.
        texts: What the index holds.
        rerank_factor: How many times as many documents of a miss are kept for re-ranking.
        asynchronous: Ask by coroutines.
    """
    stopwatch = Stopwatch()
    nodes = [
        TextNode(
            id_=f"d{number}",
            text=text,
            embedding=vectors[text],
            metadata={"source": f"{number}.md", "page": number},
        )
        for number, text in enumerate(texts)
    ]
    index = VectorStoreIndex(nodes, embed_model=_Known(vectors, stopwatch))
    store: Any = index.vector_store
    # The coroutine ``aquery`` of this store ends in it, too. Its class takes no assignments.
    vars(store)["query"] = stopwatch.timed(store.query)
    plain = index.as_retriever()
    ours = ApproximateCacheRetriever.from_index(index, rerank_factor=rerank_factor)
    if asynchronous:
        return Contest(plain.aretrieve, ours.aretrieve, stopwatch)
    return Contest(plain.retrieve, ours.retrieve, stopwatch)


def llms(*, asynchronous: bool) -> Contest:
    """Return our LLM over a backend that answers at once, and a mock."""
    plain, ours = MockLLM(), RAGCacheLLM(engine=InstantBackend())
    if asynchronous:
        return Contest(
            lambda text: plain.achat([ChatMessage(text)]),
            lambda text: ours.achat([ChatMessage(text)]),
            Stopwatch(),
        )
    return Contest(
        lambda text: plain.chat([ChatMessage(text)]),
        lambda text: ours.chat([ChatMessage(text)]),
        Stopwatch(),
    )
