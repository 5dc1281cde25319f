"""What is known of LangChain's vector stores. Imports none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

from ragcache_integrations.retrievers.stores import (
    LANGCHAIN_KINDS,
    StoreFacts,
    StoreKind,
    StoreMethods,
    brings,
    kind_of,
)

__all__ = [
    "facts_of",
    "has_blocking_coroutines",
    "identify_by",
    "methods_of",
    "reader_of",
    "spell_ids",
]

_BASE = "langchain_core.vectorstores.base"
# Their coroutines compute in the event loop.
_COMPUTING = ("langchain_community.vectorstores.faiss", "langchain_core.vectorstores.in_memory")
_SEARCHES = ("similarity_search_by_vector", "similarity_search_with_score_by_vector")


def facts_of(
    store: Any, search_kwargs: Collection[str], search_type: str = "similarity"
) -> StoreFacts:
    """Return what is known of a store, searched by vector with arguments of some names."""
    unknown = f"it is not known how {type(store).__name__} searches"
    kind = kind_of(store, LANGCHAIN_KINDS)
    facts = None if kind is None else kind.read_facts(store)
    if kind is None or facts is None:
        return StoreFacts(doubt=unknown)
    searches = [name for name in _SEARCHES if hasattr(store, name)]
    if not kind.brings(store, *searches):
        facts = facts.of_other_searches(unknown)
    others = sorted(set(search_kwargs) - facts.harmless)
    if search_type != "similarity":
        return facts.incomplete(f"search_type={search_type!r} does not rank by distance alone")
    if others:  # no more ordered by distance, or not complete up to it
        return facts.incomplete(f"search_kwargs={', '.join(others)} may leave documents out")
    if "filter" in search_kwargs and facts.filters_afterwards:
        doubt = "it filters only what it found, so that documents are left out"
        return facts.incomplete(doubt, ranks=True)
    return facts


def identify_by(
    id_of: Callable[[Any], str | None] | None,
) -> Callable[[Any], tuple[str | None, str]]:
    """Return a function that returns a document's id, if it has one, and its text."""
    if id_of is None:
        return attrgetter("id", "page_content")
    return lambda document: (document.id or id_of(document), document.page_content)


def reader_of(
    store: Any, facts: StoreFacts
) -> Callable[[Sequence[tuple[str, Any]]], list[Any]] | None:
    """Return a function that reads a store's documents by id; ``None`` if it cannot."""
    if not hasattr(store, "get_by_ids") or brings(store, _BASE, "get_by_ids"):
        return None
    identify = identify_by(facts.id_of)

    def read(ids_and_scores: Sequence[tuple[str, Any]]) -> list[Any]:
        ids = [document_id for document_id, _ in ids_and_scores]
        documents = {identify(document)[0]: document for document in store.get_by_ids(ids)}
        return [documents.get(document_id) for document_id in ids]

    return read


def has_blocking_coroutines(store: Any) -> bool:
    """Whether a store's search by vector as a coroutine computes in the event loop or a thread."""
    method = "asimilarity_search_by_vector"
    return any(brings(store, module, method) for module in (_BASE, *_COMPUTING))


def methods_of(store: Any) -> StoreMethods:
    """Return which methods change a store's documents."""
    return _methods(kind_of(store, LANGCHAIN_KINDS) or _ANY)


def spell_ids(store: Any, ids: Iterable[object]) -> Collection[str] | None:
    """Return how ids of a store's documents are spelt; ``None`` if that is not known of one."""
    return (kind_of(store, LANGCHAIN_KINDS) or _ANY).ids(ids)


_ANY = StoreKind("a vector store", (), "", lambda _: StoreFacts())


@cache
def _methods(kind: StoreKind) -> StoreMethods:
    def added(_: Mapping[str, Any], result: Any) -> Collection[str] | None:
        return kind.ids(result) if isinstance(result, list) else None

    def deleted(arguments: Mapping[str, Any], result: Any) -> Collection[str] | None:
        others = [value for name, value in arguments.items() if name != "ids" and value]
        ids = arguments.get("ids")
        # Without ids everything may be gone, or what another argument says.
        if not isinstance(ids, list | tuple) or others or result is False:
            return None
        return kind.ids(ids)

    return StoreMethods(
        base=_BASE,
        updates={
            name: added
            for method in ("add_texts", "add_documents", "add_embeddings")
            for name in (method, f"a{method}")
        },
        removes=dict.fromkeys(("delete", "adelete"), deleted),
    )
