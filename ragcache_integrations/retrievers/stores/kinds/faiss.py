"""FAISS, of both frameworks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ragcache_integrations.retrievers.stores.facts import StoreFacts
from ragcache_integrations.retrievers.stores.faiss_vectors import (
    FaissVectors,
    faiss_facts,
    is_faiss_index,
)

from .kind import StoreKind

__all__ = ["LANGCHAIN", "LLAMA_INDEX", "ids_by_number"]


def ids_by_number(index: Any) -> dict[Any, str]:
    """Return the nodes' ids by their numbers in the FAISS store of a ``VectorStoreIndex``."""
    # FaissMapVectorStore keeps a mapping of its own; else the index notes positions.
    own: dict[Any, str] | None = getattr(index.vector_store, "_faiss_id_to_node_id_map", None)
    return index.index_struct.nodes_dict if own is None else own


def _facts_for_langchain(store: Any) -> StoreFacts:
    vectors = FaissVectors(store.index, lambda: store.index_to_docstore_id)
    normalised = bool(getattr(store, "_normalize_L2", False))
    return replace(
        faiss_facts(store.index, vectors, normalised=normalised),
        filters_afterwards=True,
        harmless=frozenset({"filter", "fetch_k"}),
        arguments=frozenset({"filter", "fetch_k", "score_threshold"}),
    )


def _facts_for_llama_index(index: Any) -> StoreFacts:
    client = index.vector_store.client
    return faiss_facts(client, FaissVectors(client, partial(ids_by_number, index)))


LANGCHAIN = StoreKind(
    "FAISS",
    ("langchain_community.vectorstores.faiss.FAISS",),
    "langchain-community",
    _facts_for_langchain,
    proofs="known",
    recognises=lambda store: (
        is_faiss_index(getattr(store, "index", None)) and hasattr(store, "index_to_docstore_id")
    ),
)
LLAMA_INDEX = StoreKind(
    "FAISS",
    (
        "llama_index.vector_stores.faiss.base.FaissVectorStore",
        "llama_index.vector_stores.faiss.map_store.FaissMapVectorStore",
    ),
    "llama-index-vector-stores-faiss",
    _facts_for_llama_index,
    proofs="known",
    recognises=lambda store: is_faiss_index(store.client),
)
