"""What is known of LlamaIndex's indexes and vector stores. Imports none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ragcache_integrations.retrievers.stores import (
    LLAMA_INDEX_KINDS,
    StoreFacts,
    StoreKind,
    StoreMethods,
    brings,
    is_kind,
    kind_of,
)

__all__ = ["INDEX_METHODS", "facts_of", "methods_of", "nodes_of", "spell_ids"]

_OWN = "vector_store_kwargs"
_INDEX = "llama_index.core.indices.vector_store.base"
_BASE = "llama_index.core.vector_stores.types"
_SIMPLE = "llama_index.core.vector_stores.simple"
_FAISS_MAP = "llama_index.vector_stores.faiss.map_store"


def facts_of(index: Any, mode: str, arguments: Collection[str] = ()) -> StoreFacts:
    """Return what is known of an index, searched in a mode with arguments of some names."""
    store = index.vector_store
    unknown = "it is not known how {} searches"
    kind = kind_of(store, LLAMA_INDEX_KINDS)
    facts = None if kind is None else kind.read_facts(index)
    if kind is None or facts is None:
        return StoreFacts(doubt=unknown.format(type(store).__name__))
    known = kind.brings(store, "query")
    if not known or not brings(index, _INDEX, "as_retriever"):
        own = index if known else store
        facts = facts.of_other_searches(unknown.format(type(own).__name__))
    if mode != "default":
        return facts.incomplete(f"vector_store_query_mode={mode!r} does not rank by distance alone")
    if _OWN in arguments:
        doubt = f"{_OWN} may leave documents out"
        return replace(facts, exact=False, doubt=doubt, exhaustive=None)
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


def methods_of(store: Any) -> StoreMethods:
    """Return which methods change a store's nodes."""
    return _methods(kind_of(store, LLAMA_INDEX_KINDS) or _ANY)


def spell_ids(store: Any, ids: Iterable[object]) -> Collection[str] | None:
    """Return how ids of a store's nodes are spelt; ``None`` if that is not known of one."""
    return (kind_of(store, LLAMA_INDEX_KINDS) or _ANY).ids(ids)


_ANY = StoreKind("a vector store", (), "", lambda _: StoreFacts())


@cache
def _methods(kind: StoreKind) -> StoreMethods:
    def added(arguments: Mapping[str, Any], _: Any) -> Collection[str] | None:
        nodes = arguments.get("nodes")
        ids = [node.node_id for node in nodes] if isinstance(nodes, list | tuple) else None
        return None if ids is None else kind.ids(ids)

    def deleted(arguments: Mapping[str, Any], _: Any) -> Collection[str] | None:
        ids, filters = arguments.get("node_ids"), arguments.get("filters")
        return kind.ids(ids) if isinstance(ids, list | tuple) and filters is None else None

    return StoreMethods(
        base=_BASE,
        updates={"add": added, "async_add": added},
        removes={"delete_nodes": deleted, "adelete_nodes": deleted},
        listing=_listed,
        shrinks=frozenset(
            {"delete", "adelete", "delete_nodes", "adelete_nodes", "clear", "aclear"}
        ),
    )


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
