"""Vector stores of LlamaIndex, filled and asked."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from pydantic import PrivateAttr

from ragcache_integrations.llama_index import ApproximateCacheRetriever

__all__ = ["INDEXES", "LlamaIndexStore"]


class TableModel(BaseEmbedding):
    """Embeddings that were computed beforehand."""

    _vectors: Mapping[str, list[float]] = PrivateAttr()

    @classmethod
    def of(cls, vectors: Mapping[str, list[float]]) -> TableModel:
        """Make one of vectors by text."""
        model = cls()
        model._vectors = vectors
        return model

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vectors[query]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vectors[text]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._vectors[query]


class LlamaIndexStore:
    """A store, and our retriever in front of it.

    Args:
        store: An empty store.
        vectors: By text.
        k: Nodes to find.
    """

    def __init__(
        self, store: BasePydanticVectorStore, vectors: Mapping[str, list[float]], k: int
    ) -> None:
        self._store = store
        self._model = TableModel.of(vectors)
        self._k = k
        self._index: VectorStoreIndex

    def add(self, passages: Mapping[str, str]) -> None:
        """Add texts by id."""
        nodes = [
            TextNode(
                id_=str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
                text=text,
                metadata={"passage": name},
                excluded_embed_metadata_keys=["passage"],
            )
            for name, text in passages.items()
        ]
        context = StorageContext.from_defaults(vector_store=self._store)
        self._index = VectorStoreIndex(nodes, storage_context=context, embed_model=self._model)
        self._own = self._index.as_retriever(similarity_top_k=self._k)

    def search(self, question: str) -> list[str]:
        """Return the ids that the store itself finds."""
        return _names(self._own.retrieve(question))

    def retriever(self, **knobs: Any) -> ApproximateCacheRetriever:
        """Put our retriever in front of the store."""
        return ApproximateCacheRetriever.from_index(self._index, k=self._k, **knobs)

    def ask(self, retriever: ApproximateCacheRetriever, question: str) -> list[str]:
        """Return the ids that our retriever finds."""
        return _names(retriever.retrieve(question))


def _names(nodes: Sequence[NodeWithScore]) -> list[str]:
    return [node.metadata["passage"] for node in nodes]


def _faiss(dim: int, _: Path, __: str) -> BasePydanticVectorStore:
    import faiss  # noqa: PLC0415 - its package may be missing
    from llama_index.vector_stores.faiss import FaissMapVectorStore  # noqa: PLC0415 - it, too

    return FaissMapVectorStore(faiss.IndexIDMap2(faiss.IndexFlatL2(dim)))


def _chroma(_: int, __: Path, ___: str) -> BasePydanticVectorStore:
    import chromadb  # noqa: PLC0415 - its package may be missing
    from llama_index.vector_stores.chroma import ChromaVectorStore  # noqa: PLC0415 - it, too

    collection = chromadb.EphemeralClient().create_collection(f"bench-{uuid.uuid4().hex}")
    return ChromaVectorStore(chroma_collection=collection)


def _pgvector(dim: int, _: Path, uri: str) -> BasePydanticVectorStore:
    from llama_index.vector_stores.postgres import PGVectorStore  # noqa: PLC0415 - may be missing

    return PGVectorStore(
        connection_string=uri,
        async_connection_string=uri,
        table_name=f"bench_{uuid.uuid4().hex}",
        schema_name="public",
        embed_dim=dim,
    )


def _qdrant(_: int, __: Path, ___: str) -> BasePydanticVectorStore:
    from llama_index.vector_stores.qdrant import QdrantVectorStore  # noqa: PLC0415 - may be missing
    from qdrant_client import QdrantClient  # noqa: PLC0415 - its package may be missing

    return QdrantVectorStore("bench", QdrantClient(":memory:"))


def _milvus(dim: int, folder: Path, _: str) -> BasePydanticVectorStore:
    from llama_index.vector_stores.milvus import MilvusVectorStore  # noqa: PLC0415 - may be missing

    return MilvusVectorStore(uri=str(folder / "milvus.db"), dim=dim)


def _lancedb(_: int, folder: Path, __: str) -> BasePydanticVectorStore:
    from llama_index.vector_stores.lancedb import LanceDBVectorStore  # noqa: PLC0415 - may be missing

    return LanceDBVectorStore(uri=str(folder / "lance"))


INDEXES: dict[str, Callable[[int, Path, str], BasePydanticVectorStore]] = {
    "LlamaIndex, in memory": lambda _, __, ___: SimpleVectorStore(),
    "LlamaIndex, faiss": _faiss,
    "LlamaIndex, chroma": _chroma,
    "LlamaIndex, pgvector": _pgvector,
    "LlamaIndex, qdrant": _qdrant,
    "LlamaIndex, milvus": _milvus,
    "LlamaIndex, lancedb": _lancedb,
}
"""Make an empty store from a dimension, an empty folder and PostgreSQL's address."""
