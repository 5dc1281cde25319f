"""The kinds of vector stores that the query cache knows, one file each.

:func:`register_store` adds another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragcache_integrations.errors import ConfigurationError

from . import chroma, faiss, in_memory, lancedb, milvus, pgvector, qdrant
from .faiss import ids_by_number
from .kind import StoreKind, text_or_number, text_unchanged

__all__ = [
    "LANGCHAIN_KINDS",
    "LLAMA_INDEX_KINDS",
    "StoreKind",
    "ids_by_number",
    "kind_of",
    "register_store",
    "text_or_number",
    "text_unchanged",
]

LANGCHAIN_KINDS = (
    faiss.LANGCHAIN,
    in_memory.LANGCHAIN,
    chroma.LANGCHAIN,
    pgvector.LANGCHAIN,
    pgvector.LANGCHAIN_LEGACY,
    qdrant.LANGCHAIN,
    milvus.LANGCHAIN,
    lancedb.LANGCHAIN,
)
"""Those of LangChain."""

LLAMA_INDEX_KINDS = (
    faiss.LLAMA_INDEX,
    in_memory.LLAMA_INDEX,
    chroma.LLAMA_INDEX,
    pgvector.LLAMA_INDEX,
    qdrant.LLAMA_INDEX,
    milvus.LLAMA_INDEX,
    lancedb.LLAMA_INDEX,
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
