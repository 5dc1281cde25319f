"""What is known of LangChain's vector stores. Knows them by name and imports none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

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

__all__ = ["METHODS", "facts_of", "has_blocking_coroutines", "reader_of"]

_BASE = "langchain_core.vectorstores.base"
_FAISS = "langchain_community.vectorstores.faiss"
_IN_MEMORY = "langchain_core.vectorstores.in_memory"


def facts_of(
    store: Any, search_kwargs: Collection[str], search_type: str = "similarity"
) -> StoreFacts:
    """Return what is known of a store, searched by vector with arguments of some names."""
    if is_faiss_index(getattr(store, "index", None)) and hasattr(store, "index_to_docstore_id"):
        vectors = FaissVectors(store.index, lambda: store.index_to_docstore_id)
        normalised = bool(getattr(store, "_normalize_L2", False))
        facts = faiss_facts(store.index, vectors, normalised=normalised)
        facts = replace(facts, filters_afterwards=True)
        module, harmless, others_known = _FAISS, {"filter", "fetch_k"}, {"score_threshold"}
    elif is_kind(store, f"{_IN_MEMORY}.InMemoryVectorStore"):
        facts = StoreFacts(
            metric="cosine",
            vectors=MappedVectors(lambda document_id: store.store[document_id]["vector"]),
            dim=next((len(document["vector"]) for document in list(store.store.values())), None),
            exact=True,
            doubt="",
        )
        module, harmless, others_known = _IN_MEMORY, {"filter"}, set()
    else:
        return StoreFacts(doubt=f"it is not known how {type(store).__name__} searches")
    searches = ("similarity_search_by_vector", "similarity_search_with_score_by_vector")
    if brings(store, module, *searches):
        facts = replace(facts, arguments=frozenset(harmless | others_known))
    else:
        doubt = facts.doubt or f"it is not known how {type(store).__name__} searches"
        facts = replace(facts, exact=False, doubt=doubt)
    facts = replace(facts, harmless=frozenset(harmless))
    others = sorted(set(search_kwargs) - harmless)
    if search_type != "similarity":
        return facts.incomplete(f"search_type={search_type!r} does not rank by distance alone")
    if others:  # no more ordered by distance, or not complete up to it
        return facts.incomplete(f"search_kwargs={', '.join(others)} may leave documents out")
    if "filter" in search_kwargs and facts.filters_afterwards:
        doubt = "it filters only what it found, so that documents are left out"
        return facts.incomplete(doubt, ranks=True)
    return facts


def reader_of(store: Any) -> Callable[[Sequence[tuple[str, Any]]], list[Any]] | None:
    """Return a function that reads a store's documents by id; ``None`` if it cannot."""
    if not hasattr(store, "get_by_ids") or brings(store, _BASE, "get_by_ids"):
        return None

    def read(ids_and_scores: Sequence[tuple[str, Any]]) -> list[Any]:
        ids = [document_id for document_id, _ in ids_and_scores]
        documents = {document.id: document for document in store.get_by_ids(ids)}
        return [documents.get(document_id) for document_id in ids]

    return read


def has_blocking_coroutines(store: Any) -> bool:
    """Whether a store's search by vector as a coroutine computes in the event loop or a thread."""
    method = "asimilarity_search_by_vector"
    return any(brings(store, module, method) for module in (_BASE, _FAISS, _IN_MEMORY))


def _added(_: Mapping[str, Any], result: Any) -> Collection[str] | None:
    return result if isinstance(result, list) else None


def _deleted(arguments: Mapping[str, Any], result: Any) -> Collection[str] | None:
    others = [value for name, value in arguments.items() if name != "ids" and value]
    ids = arguments.get("ids")
    # Without ids everything may be gone, or what another argument says.
    return ids if isinstance(ids, list | tuple) and not others and result is not False else None


METHODS = StoreMethods(
    base=_BASE,
    updates={
        name: _added
        for method in ("add_texts", "add_documents", "add_embeddings")
        for name in (method, f"a{method}")
    },
    removes=dict.fromkeys(("delete", "adelete"), _deleted),
)
"""Which methods change a store's documents."""
