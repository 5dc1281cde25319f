"""How LangChain's vector stores are searched by each of ``search_type``'s values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.stores import has_blocking_coroutines
from ragcache_integrations.retrievers.embedder import Embedding

__all__ = [
    "DEFAULT_K",
    "SEARCH_TYPES",
    "SearchType",
    "asearch_of",
    "is_native",
    "methods_of",
    "search_of",
]

SearchType = Literal["similarity", "mmr", "similarity_score_threshold"]
SEARCH_TYPES = get_args(SearchType)

DEFAULT_K = 4
"""What ``VectorStore.similarity_search`` asks for where nobody says."""

Search = Callable[[Embedding, int], Sequence[Document]]

# The methods for each, the first that a store brings itself is used.
_METHODS = {
    "similarity": ("similarity_search_by_vector", "similarity_search"),
    "mmr": ("max_marginal_relevance_search_by_vector", "max_marginal_relevance_search"),
    "similarity_score_threshold": ("similarity_search_with_relevance_scores",),
}


def methods_of(store: VectorStore, search_type: str) -> list[Callable[..., Any]]:
    """Return the methods of a store that may take a search's arguments."""
    return [getattr(store, name) for name in _METHODS[search_type]]


def search_of(
    store: VectorStore, search_type: str, query: str, arguments: Mapping[str, Any]
) -> Search:
    """Return what searches a store for a question, by its embedding where the store can.

    Raises:
        ConfigurationError: The store has no such search, or an argument that it needs is missing.
    """
    if search_type == "similarity_score_threshold":
        if not isinstance(arguments.get("score_threshold"), int | float):
            msg = "search_type='similarity_score_threshold' needs score_threshold, from 0 to 1"
            raise ConfigurationError(msg)

        def search_above(_: Embedding, count: int) -> list[Document]:
            found = store.similarity_search_with_relevance_scores(query, k=count, **arguments)
            return [document for document, _ in found]

        return search_above
    by_vector, by_text = _METHODS[search_type]
    if is_native(store, VectorStore, by_vector):
        method = getattr(store, by_vector)
        return lambda embedding, count: method(embedding.tolist(), k=count, **arguments)
    # LangChain's base class has no search for diversity; one for similarity every store must have.
    if search_type == "mmr" and not is_native(store, VectorStore, by_text):
        msg = f"search_type='mmr' needs a store that has it, which {type(store).__name__} does not"
        raise ConfigurationError(msg)
    method = getattr(store, by_text)
    return lambda _, count: method(query, k=count, **arguments)


def asearch_of(
    store: VectorStore, arguments: Mapping[str, Any]
) -> Callable[[Embedding, int], Awaitable[Sequence[Document]]] | None:
    """Return what searches a store by similarity as a coroutine; ``None`` where it would block."""
    if has_blocking_coroutines(store):
        return None

    def asearch(embedding: Embedding, count: int) -> Awaitable[Sequence[Document]]:
        return store.asimilarity_search_by_vector(embedding.tolist(), k=count, **arguments)

    return asearch


def is_native(instance: object, base: type, method: str) -> bool:
    """Whether an object's class brings its own version of a method of the base class."""
    return getattr(type(instance), method) is not getattr(base, method)
