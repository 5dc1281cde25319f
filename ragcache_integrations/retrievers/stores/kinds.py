"""The kinds of vector stores that the query cache knows; :func:`register_store` adds another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ragcache_integrations.errors import ConfigurationError

from . import embedded, servers
from .facts import StoreKind, text_or_number
from .faiss_vectors import is_faiss_index

__all__ = ["LANGCHAIN_KINDS", "LLAMA_INDEX_KINDS", "kind_of", "register_store"]


def _holds_faiss(store: Any) -> bool:
    index = getattr(store, "index", None)
    return is_faiss_index(index) and hasattr(store, "index_to_docstore_id")


_MODULES = "llama_index.vector_stores"
_PACKAGES = "llama-index-vector-stores"
_WithVectors = partial(StoreKind, vectors_come_along=True)
"""A kind of store whose searches return vectors."""

LANGCHAIN_KINDS = (
    StoreKind(
        "FAISS",
        ("langchain_community.vectorstores.faiss.FAISS",),
        "langchain-community",
        embedded.faiss_in_langchain,
        proofs="known",
        recognises=_holds_faiss,
    ),
    StoreKind(
        "InMemoryVectorStore",
        ("langchain_core.vectorstores.in_memory.InMemoryVectorStore",),
        "langchain-core",
        embedded.memory_in_langchain,
        proofs="known",
    ),
    _WithVectors(
        "Chroma",
        ("langchain_chroma.vectorstores.Chroma",),
        "langchain-chroma",
        embedded.chroma_in_langchain,
    ),
    _WithVectors(
        "pgvector",
        ("langchain_postgres.v2.vectorstores.PGVectorStore",),
        "langchain-postgres",
        servers.pgvector_in_langchain,
        servers.spelt_as_in_postgres,
        proofs="exhaustive",
    ),
    _WithVectors(
        "pgvector, older class",
        ("langchain_postgres.vectorstores.PGVector",),
        "langchain-postgres",
        servers.older_pgvector_in_langchain,
        proofs="declared",
    ),
    _WithVectors(
        "Qdrant",
        ("langchain_qdrant.qdrant.QdrantVectorStore",),
        "langchain-qdrant",
        servers.qdrant_in_langchain,
        servers.spelt_as_in_qdrant,
        proofs="exhaustive",
    ),
    _WithVectors(
        "Milvus",
        ("langchain_milvus.vectorstores.milvus.Milvus",),
        "langchain-milvus",
        servers.milvus_in_langchain,
        text_or_number,
        proofs="flat",
    ),
    _WithVectors(
        "LanceDB",
        ("langchain_community.vectorstores.lancedb.LanceDB",),
        "langchain-community",
        embedded.lancedb_in_langchain,
        proofs="exhaustive",
    ),
)
"""Those of LangChain."""

LLAMA_INDEX_KINDS = (
    StoreKind(
        "FAISS",
        (
            f"{_MODULES}.faiss.base.FaissVectorStore",
            f"{_MODULES}.faiss.map_store.FaissMapVectorStore",
        ),
        f"{_PACKAGES}-faiss",
        embedded.faiss_in_llama_index,
        proofs="known",
        recognises=lambda store: is_faiss_index(store.client),
    ),
    StoreKind(
        "SimpleVectorStore",
        ("llama_index.core.vector_stores.simple.SimpleVectorStore",),
        "llama-index-core",
        embedded.memory_in_llama_index,
        proofs="known",
    ),
    _WithVectors(
        "Chroma",
        (f"{_MODULES}.chroma.base.ChromaVectorStore",),
        f"{_PACKAGES}-chroma",
        embedded.chroma_in_llama_index,
    ),
    _WithVectors(
        "pgvector",
        (f"{_MODULES}.postgres.base.PGVectorStore",),
        f"{_PACKAGES}-postgres",
        servers.pgvector_in_llama_index,
        proofs="exhaustive",
    ),
    _WithVectors(
        "Qdrant",
        (f"{_MODULES}.qdrant.base.QdrantVectorStore",),
        f"{_PACKAGES}-qdrant",
        servers.qdrant_in_llama_index,
        servers.spelt_as_in_qdrant,
        proofs="exhaustive",
    ),
    _WithVectors(
        "Milvus",
        (f"{_MODULES}.milvus.base.MilvusVectorStore",),
        f"{_PACKAGES}-milvus",
        servers.milvus_in_llama_index,
        proofs="flat",
    ),
    _WithVectors(
        "LanceDB",
        (f"{_MODULES}.lancedb.base.LanceDBVectorStore",),
        f"{_PACKAGES}-lancedb",
        embedded.lancedb_in_llama_index,
        proofs="exhaustive",
    ),
)
"""Those of LlamaIndex."""

_registered: list[StoreKind] = []


def register_store(kind: StoreKind) -> None:
    """Add a kind of vector store, for retrievers that are made from now on.

    If several kinds include the same store, the one registered last counts. Return only facts
    (:class:`~ragcache_integrations.retrievers.stores.facts.StoreFacts`) that are certain. For
    example::

        def facts(store):
            def read(ids):
                return {name: store.client.fetch(name).vector for name in ids}

            return StoreFacts(metric="cosine", vectors=MappedVectors(read))

        register_store(StoreKind("My store", ("my_package.store.MyStore",), "my-package", facts))

    Args:
        kind: The kind, for the classes of one framework.

    Raises:
        ConfigurationError: It is something else.
    """
    if not isinstance(kind, StoreKind):
        raise ConfigurationError(f"kind must be a StoreKind, got {kind!r:.100}")
    _registered.insert(0, kind)


def kind_of(store: Any, kinds: Sequence[StoreKind]) -> StoreKind | None:
    """Return the first kind that a store is of, among those registered and others."""
    return next((kind for kind in (*_registered, *kinds) if kind.includes(store)), None)
