"""Embeddings that are a function of the text: real models are slow here, and not the point."""

from __future__ import annotations

from collections.abc import Callable

from langchain_core.embeddings import Embeddings
from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import PrivateAttr

Embed = Callable[[str], list[float]]


class LangChainEmbeddings(Embeddings):
    """LangChain's, by a function."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed

    def embed_query(self, text: str) -> list[float]:
        return self._embed(text)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self._embed(text) for text in texts]


class LlamaIndexEmbeddings(BaseEmbedding):
    """LlamaIndex's, by a function."""

    _embed: Embed = PrivateAttr()

    def __init__(self, embed: Embed) -> None:
        super().__init__()
        self._embed = embed

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embed(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._embed(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embed(text)
