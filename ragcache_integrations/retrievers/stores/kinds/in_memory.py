"""The stores that the frameworks themselves keep in memory. They compare with every vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from ragcache_integrations.retrievers.stores.facts import MappedVectors, StoreFacts

from .kind import StoreKind

__all__ = ["LANGCHAIN", "LLAMA_INDEX"]


def _facts_for_langchain(store: Any) -> StoreFacts:
    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        documents = store.store
        return {name: documents[name]["vector"] for name in ids if name in documents}

    return StoreFacts(
        metric="cosine",
        vectors=MappedVectors(read),
        dim=next((len(document["vector"]) for document in list(store.store.values())), None),
        exact=True,
        doubt="",
        harmless=frozenset({"filter"}),
        arguments=frozenset({"filter"}),
    )


def _facts_for_llama_index(index: Any) -> StoreFacts:
    store = index.vector_store

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        vectors = store.data.embedding_dict
        return {name: vectors[name] for name in ids if name in vectors}

    return StoreFacts(
        metric="cosine",
        vectors=MappedVectors(read),
        dim=next((len(vector) for vector in list(store.data.embedding_dict.values())), None),
        exact=True,
        doubt="",
        score=lambda distance: 1 - distance * distance / 2,
    )


LANGCHAIN = StoreKind(
    "InMemoryVectorStore",
    ("langchain_core.vectorstores.in_memory.InMemoryVectorStore",),
    "langchain-core",
    _facts_for_langchain,
    proofs="known",
)
LLAMA_INDEX = StoreKind(
    "SimpleVectorStore",
    ("llama_index.core.vector_stores.simple.SimpleVectorStore",),
    "llama-index-core",
    _facts_for_llama_index,
    proofs="known",
)
