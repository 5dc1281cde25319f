"""What is known of LlamaIndex's indexes and vector stores. Knows them by name and imports none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ragcache_integrations.retrievers.staged.llama_index import ids_of
from ragcache_integrations.retrievers.stores import (
    FaissVectors,
    MappedVectors,
    StoreFacts,
    StoreMethods,
    brings,
    faiss_facts,
    is_faiss_index,
    is_kind,
)

__all__ = ["INDEX_METHODS", "STORE_METHODS", "facts_of", "nodes_of"]

_INDEX = "llama_index.core.indices.vector_store.base"
_BASE = "llama_index.core.vector_stores.types"
_SIMPLE = "llama_index.core.vector_stores.simple"
_FAISS = "llama_index.vector_stores.faiss.base"
_FAISS_MAP = "llama_index.vector_stores.faiss.map_store"


def facts_of(index: Any, mode: str) -> StoreFacts:
    """Return what is known of an index, searched in a mode."""
    store = index.vector_store
    if is_faiss_index(store.client):
        facts = faiss_facts(store.client, FaissVectors(store.client, partial(ids_of, index)))
        known = brings(store, _FAISS, "query") or brings(store, _FAISS_MAP, "query")
    elif is_kind(store, f"{_SIMPLE}.SimpleVectorStore"):
        facts = StoreFacts(
            metric="cosine",
            vectors=MappedVectors(lambda node_id: store.data.embedding_dict[node_id]),
            dim=next((len(vector) for vector in list(store.data.embedding_dict.values())), None),
            exact=True,
            doubt="",
            score=lambda distance: 1 - distance * distance / 2,
        )
        known = brings(store, _SIMPLE, "query")
    else:
        return StoreFacts(doubt=f"it is not known how {type(store).__name__} searches")
    if not known or not brings(index, _INDEX, "as_retriever"):
        own = index if known else store
        doubt = facts.doubt or f"it is not known how {type(own).__name__} searches"
        facts = replace(facts, exact=False, doubt=doubt)
    if mode != "default":
        return facts.incomplete(f"vector_store_query_mode={mode!r} does not rank by distance alone")
    return facts


def nodes_of(index: Any) -> Callable[[Sequence[str]], list[Any]] | None:
    """Return a function that reads an index's nodes by id; ``None`` if it cannot."""
    store = index.vector_store
    if store.stores_text and brings(store, _BASE, "get_nodes"):
        return None

    def read(ids: Sequence[str]) -> list[Any]:
        nodes = {node_id: index.docstore.get_node(node_id, raise_error=False) for node_id in ids}
        missing = [node_id for node_id, node in nodes.items() if node is None]
        if missing and store.stores_text:
            nodes |= {node.node_id: node for node in store.get_nodes(node_ids=missing)}
        return [nodes[node_id] for node_id in ids]

    return read


def _node_ids(arguments: Mapping[str, Any], _: Any) -> Collection[str] | None:
    nodes = arguments.get("nodes")
    return [node.node_id for node in nodes] if isinstance(nodes, list | tuple) else None


def _deleted(arguments: Mapping[str, Any], _: Any) -> Collection[str] | None:
    ids, filters = arguments.get("node_ids"), arguments.get("filters")
    return ids if isinstance(ids, list | tuple) and filters is None else None


def _listed(store: Any) -> Collection[str] | None:
    """Return the ids of all nodes of a store that keeps them in memory, once for each vector."""
    if is_kind(store, f"{_SIMPLE}.SimpleVectorStore"):
        return list(store.data.embedding_dict)
    if is_kind(store, f"{_FAISS_MAP}.FaissMapVectorStore"):
        # Searches name what they find by this mapping, and the other one may say otherwise: ``add``
        # forgets the number of an id that it has already, and numbers vectors by how many there
        # are, so that after a deletion two may have one number.
        return list(store._faiss_id_to_node_id_map.values())  # noqa: SLF001 - no public way
    return None


STORE_METHODS = StoreMethods(
    base=_BASE,
    updates={"add": _node_ids, "async_add": _node_ids},
    removes={"delete_nodes": _deleted, "adelete_nodes": _deleted},
    listing=_listed,
    shrinks=frozenset({"delete", "adelete", "delete_nodes", "adelete_nodes", "clear", "aclear"}),
)
"""Which methods change a store's nodes."""

_INDEX_CHANGES = (
    "delete",
    "delete_nodes",
    "delete_ref_doc",
    "insert",
    "insert_nodes",
    "refresh",
    "refresh_ref_docs",
    "update",
    "update_ref_doc",
)
INDEX_METHODS = StoreMethods(
    base="",
    listing=lambda index: list(index.index_struct.nodes_dict.values()),
    shrinks=frozenset({"delete_ref_doc", "adelete_ref_doc", "delete_nodes", "adelete_nodes"}),
    passes_on=frozenset(name for method in _INDEX_CHANGES for name in (method, f"a{method}")),
)
"""Which methods change an index's nodes; they do so through its store."""
