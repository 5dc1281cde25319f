"""How LangChain's vector stores are searched by each of ``search_type``'s values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.embedder import Embedding
from ragcache_integrations.retrievers.stores import StoreFacts

from .stores import has_blocking_coroutines

__all__ = [
    "DEFAULT_K",
    "SEARCH_TYPES",
    "Arguments",
    "AsyncSearch",
    "SearchType",
    "StoreSearches",
    "TextSearch",
    "is_native",
    "methods_of",
]

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


def methods_of(store: VectorStore, search_type: str) -> list[Callable[..., Any]]:
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
        self._blocks = has_blocking_coroutines(store)
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
