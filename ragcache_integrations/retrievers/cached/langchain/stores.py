"""What is known of LangChain's vector stores, and how each of ``search_type``'s values searches.

Imports none of the stores.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Literal, get_args

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.retrieval import Embedding
from ragcache_integrations.retrievers.stores import (
    LANGCHAIN_KINDS,
    StoreFacts,
    StoreKind,
    StoreMethods,
    brings,
    kind_of,
)

__all__ = [
    "DEFAULT_K",
    "SEARCH_TYPES",
    "Arguments",
    "AsyncSearch",
    "SearchType",
    "StoreSearches",
    "TextSearch",
    "facts_of",
    "identify_by",
    "is_native",
    "methods_of",
    "reader_of",
    "searches_of",
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


def _has_blocking_coroutines(store: Any) -> bool:
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


SearchType = Literal["similarity", "mmr", "similarity_score_threshold"]
SEARCH_TYPES = get_args(SearchType)

DEFAULT_K = 4
"""What ``VectorStore.similarity_search`` asks for where nobody says."""

TextSearch = Callable[[str, Embedding, int], Sequence[Document]]
AsyncSearch = Callable[[Embedding, int], Awaitable[Sequence[Document]]]
Arguments = Callable[[], Mapping[str, Any]]

# The methods for each, the first that a store brings itself is used.
_METHODS = {
    "similarity": ("similarity_search_by_vector", "similarity_search"),
    "mmr": ("max_marginal_relevance_search_by_vector", "max_marginal_relevance_search"),
    "similarity_score_threshold": ("similarity_search_with_relevance_scores",),
}


def searches_of(store: VectorStore, search_type: str) -> list[Callable[..., Any]]:
    """Return the methods of a store that may take a search's arguments."""
    return [getattr(store, name) for name in _METHODS[search_type]]


class StoreSearches:
    """The searches that a store brings, found out once: they are its class's.

    Args:
        store: The store.
        facts: What is known of it.
    """

    def __init__(self, store: VectorStore, facts: StoreFacts) -> None:
        self._store = store
        self._facts = facts
        self._native = {
            name: is_native(store, VectorStore, name)
            for name in (*_METHODS["similarity"], *_METHODS["mmr"])
        }
        self._blocks = _has_blocking_coroutines(store)
        if facts.by_text:
            self._native["similarity_search_by_vector"] = False
        # Vectors that say nothing of the store's order are not worth their way.
        ranks = facts.vectors is not None
        self._bring, self._abring = (facts.search, facts.asearch) if ranks else (None, None)

    def search(
        self, search_type: str, arguments: Mapping[str, Any], snapshot: Arguments
    ) -> TextSearch:
        """Return what searches the store for a question, by its embedding where the store can.

        Args:
            search_type: How to search, such as ``mmr``.
            arguments: The arguments of the search, to be checked.
            snapshot: Returns a copy of the same arguments at each call.

        Raises:
            ConfigurationError: The store has no such search, or an argument that it needs is
                missing.
        """
        store = self._store
        if search_type == "similarity_score_threshold":
            if not isinstance(arguments.get("score_threshold"), int | float):
                msg = "search_type='similarity_score_threshold' needs score_threshold, from 0 to 1"
                raise ConfigurationError(msg)

            def search_above(query: str, _: Embedding, count: int) -> list[Document]:
                search = store.similarity_search_with_relevance_scores
                return [document for document, _ in search(query, k=count, **snapshot())]

            return search_above
        by_vector, by_text = _METHODS[search_type]
        bring = self._bring
        if search_type == "similarity" and bring and arguments.keys() <= self._facts.harmless:
            return lambda _, embedding, count: bring(embedding, count, snapshot())
        if self._native[by_vector]:
            method = getattr(store, by_vector)
            return lambda _, embedding, count: method(embedding.tolist(), k=count, **snapshot())
        # LangChain's base class has no search for diversity; every store has one for similarity.
        if search_type == "mmr" and not self._native[by_text]:
            kind = type(store).__name__
            msg = f"search_type='mmr' needs a store that has it, which {kind} does not"
            raise ConfigurationError(msg)
        method = getattr(store, by_text)
        return lambda query, _, count: method(query, k=count, **snapshot())

    def asearch(
        self, search_type: str, arguments: Mapping[str, Any], snapshot: Arguments
    ) -> AsyncSearch | None:
        """Return a coroutine function that searches the store; ``None`` where it would block."""
        if search_type != "similarity" or self._facts.by_text:
            return None
        bring = self._abring
        if bring is not None and arguments.keys() <= self._facts.harmless:
            return lambda embedding, count: bring(embedding, count, snapshot())
        # Vectors that come along are worth a thread.
        if self._blocks or self._bring is not None:
            return None
        method = self._store.asimilarity_search_by_vector
        return lambda embedding, count: method(embedding.tolist(), k=count, **snapshot())


def is_native(instance: object, base: type, method: str) -> bool:
    """Whether an object's class brings its own version of a method of the base class."""
    return getattr(type(instance), method) is not getattr(base, method)
