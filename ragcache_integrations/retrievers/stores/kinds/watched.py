"""Searches of LlamaIndex's indexes that note the vectors of what they find."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from ragcache_integrations.retrievers.stores.facts import SearchResults, VectorSearch

__all__ = ["Client", "watched_searches"]


class Client:
    """A client of a database some of whose methods are others.

    Args:
        client: The client.
        **methods: The methods, by their names.
    """

    def __init__(self, client: Any, **methods: Callable[..., Any]) -> None:
        self._client = client
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def watched_searches(
    index: Any, watch: Callable[[list[Any]], Any]
) -> tuple[VectorSearch[SearchResults[Any]], VectorSearch[Awaitable[SearchResults[Any]]]]:
    """Return searches of an index through its framework's own retriever.

    So nodes are made, completed from the document store and traced as always. The searches'
    arguments are those of ``index.as_retriever``, and ``query_bundle``, which has the embedding.

    Args:
        index: A ``VectorStoreIndex``.
        watch: Returns a store that answers as the index's own, and adds the vector of each node
            that it finds to a list.

    Returns:
        The search, and its async version, which blocks where the store has no coroutines.
    """

    def prepare(k: int, arguments: Mapping[str, Any], vectors: list[Any]) -> tuple[Any, Any]:
        others = dict(arguments)
        bundle = others.pop("query_bundle")
        retriever = index.as_retriever(similarity_top_k=k, **others)
        retriever._vector_store = watch(vectors)  # noqa: SLF001 - there is no public way
        return retriever, bundle

    def search(_: NDArray[Any], k: int, arguments: Mapping[str, Any]) -> SearchResults[Any]:
        vectors: list[Any] = []
        retriever, bundle = prepare(k, arguments, vectors)
        return SearchResults(retriever._retrieve(bundle), vectors)  # noqa: SLF001

    async def asearch(_: NDArray[Any], k: int, arguments: Mapping[str, Any]) -> SearchResults[Any]:
        vectors: list[Any] = []
        retriever, bundle = prepare(k, arguments, vectors)
        return SearchResults(await retriever._aretrieve(bundle), vectors)  # noqa: SLF001

    return search, asearch
