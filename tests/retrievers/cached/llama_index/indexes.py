"""Indexes and embeddings for the tests of the LlamaIndex retriever."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import faiss
import numpy as np
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.vector_stores.faiss import FaissMapVectorStore, FaissVectorStore
from pydantic import PrivateAttr

DIM = 16


class Words(BaseEmbedding):
    """A point per text, far from all others; ``text~1`` lies close to ``text``.

    No language model: the tests need questions at known distances.
    """

    _queries: list[str] = PrivateAttr(default_factory=list)

    @property
    def queries(self) -> list[str]:
        return self._queries

    def _get_query_embedding(self, query: str) -> list[float]:
        self._queries.append(query)
        base, _, shift = query.partition("~")
        point = _noise(base) * 3
        if shift:
            point += _noise(query) * 0.05
        return [float(x) for x in point]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        await asyncio.sleep(0)
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return [float(x) for x in _noise(text) * 3]


def _noise(text: str) -> Any:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return np.random.default_rng(seed).normal(size=DIM)


def nodes(count: int = 200) -> list[TextNode]:
    return [
        TextNode(
            id_=f"node {number}",
            text=f"text {number}",
            metadata={"half": number % 2, "tags": ["a"]},
        )
        for number in range(count)
    ]


def index_over(store: BasePydanticVectorStore | None = None, count: int = 200) -> VectorStoreIndex:
    context = StorageContext.from_defaults(vector_store=store or SimpleVectorStore())
    return VectorStoreIndex(nodes(count), storage_context=context, embed_model=Words())


def faiss_index(kind: str = "l2") -> VectorStoreIndex:
    """Return an index over FAISS; or over the simple store, for what both must do."""
    if kind == "simple":
        return index_over(SimpleVectorStore())
    if kind == "map":
        return index_over(FaissMapVectorStore(faiss.IndexIDMap2(faiss.IndexFlatL2(DIM))))
    flat = faiss.IndexFlatIP(DIM) if kind == "ip" else faiss.IndexFlatL2(DIM)
    return index_over(FaissVectorStore(flat))


def words_of(index: VectorStoreIndex) -> Words:
    assert isinstance(index._embed_model, Words)
    return index._embed_model


def ids(found: list[NodeWithScore]) -> list[str]:
    return [one.node_id for one in found]


def scores(found: list[NodeWithScore]) -> list[float]:
    return [one.get_score(raise_error=True) for one in found]
