"""Chroma, of both frameworks.

It searches a graph (HNSW), which may leave documents out, and filters while it searches.
https://docs.trychroma.com/docs/collections/configure
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.query_cache import Metric
from ragcache_integrations.retrievers.stores.facts import MappedVectors, SearchResults, StoreFacts

from .kind import EXPONENTIAL_SCORES, Client, StoreKind, watched_searches

__all__ = ["LANGCHAIN", "LLAMA_INDEX"]

_LANGCHAIN_MODULE = "langchain_chroma.vectorstores"
_METRICS: dict[str, Metric] = {"l2": "l2", "cosine": "cosine", "ip": "ip"}
_DOUBT = "Chroma walks a graph"
_INCLUDED = ("documents", "metadatas", "distances")


def _facts(collection: Callable[[], Any]) -> StoreFacts:
    """Return what is known of a collection; its store may put another one in its place."""
    metric = _METRICS.get(_space(collection()))
    if metric is None:
        return StoreFacts(doubt="its Chroma collection names no metric that is known", inexact=True)

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        records = collection().get(ids=list(ids), include=["embeddings"])
        return dict(zip(records["ids"], records["embeddings"], strict=True))

    return StoreFacts(
        metric=metric, vectors=MappedVectors(read), doubt=_DOUBT, inexact=True, outside=True
    )


def _space(collection: Any) -> str:
    configuration = collection.configuration_json
    for index in ("hnsw", "spann"):
        space = (configuration.get(index) or {}).get("space")
        if space:
            return str(space)
    return str((collection.metadata or {}).get("hnsw:space", "l2"))


def _facts_for_langchain(store: Any) -> StoreFacts:
    def collection() -> Any:
        return store._collection  # noqa: SLF001 - there is no public way to search it

    def search(embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]) -> SearchResults[Any]:
        results = collection().query(
            query_embeddings=[embedding.tolist()],
            n_results=k,
            where=arguments.get("filter"),
            where_document=arguments.get("where_document"),
            include=[*_INCLUDED, "embeddings"],
        )
        make = sys.modules[_LANGCHAIN_MODULE]._results_to_docs_and_vectors  # noqa: SLF001
        pairs = make(results)
        return SearchResults([document for document, _ in pairs], [vector for _, vector in pairs])

    return replace(
        _facts(collection),
        search=search,
        harmless=frozenset({"filter", "where_document"}),
    )


def _facts_for_llama_index(index: Any) -> StoreFacts:
    store = index.vector_store
    facts = _facts(lambda: store.client)

    def watch(vectors: list[Any]) -> Any:
        collection, watched = store.client, copy.copy(store)

        def query(**arguments: Any) -> Any:
            included = {*arguments.pop("include", _INCLUDED), "embeddings"}
            results = collection.query(**arguments, include=list(included))
            vectors.extend(results["embeddings"][0])
            return results

        watched._collection = Client(collection, query=query)  # noqa: SLF001 - no public way
        return watched

    search, asearch = watched_searches(index, watch)
    score = EXPONENTIAL_SCORES.get(facts.metric or "")
    return replace(facts, search=search, asearch=asearch, score=score)


LANGCHAIN = StoreKind(
    "Chroma",
    (f"{_LANGCHAIN_MODULE}.Chroma",),
    "langchain-chroma",
    _facts_for_langchain,
    vectors_come_along=True,
)
LLAMA_INDEX = StoreKind(
    "Chroma",
    ("llama_index.vector_stores.chroma.base.ChromaVectorStore",),
    "llama-index-vector-stores-chroma",
    _facts_for_llama_index,
    vectors_come_along=True,
)
