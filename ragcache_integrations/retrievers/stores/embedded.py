"""Vector stores within the application's process: in memory, FAISS, Chroma and LanceDB.

For each of them the facts about LangChain's store, and about an index over LlamaIndex's. Chroma and
LanceDB may also be on a server.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.query_cache import Metric

from .facts import (
    EXPONENTIAL_SCORES,
    Client,
    MappedVectors,
    Search,
    SearchResults,
    StoreFacts,
    cosine_of,
    with_searches,
)
from .faiss_vectors import FaissVectors, faiss_facts

__all__ = [
    "chroma_in_langchain",
    "chroma_in_llama_index",
    "faiss_in_langchain",
    "faiss_in_llama_index",
    "ids_by_number",
    "lancedb_in_langchain",
    "lancedb_in_llama_index",
    "memory_in_langchain",
    "memory_in_llama_index",
]

# ------------------------------------------------- in memory: a search compares with every vector


def memory_in_langchain(store: Any) -> StoreFacts:
    """Return the facts about an ``InMemoryVectorStore``."""

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        documents = store.store
        return {name: documents[name]["vector"] for name in ids if name in documents}

    return StoreFacts(
        metric="cosine",
        vectors=MappedVectors(read),
        dim=next((len(document["vector"]) for document in list(store.store.values())), None),
        exact=True,
        doubt="",
        harmless=frozenset({"filter"}),
        arguments=frozenset({"filter"}),
    )


def memory_in_llama_index(index: Any) -> StoreFacts:
    """Return the facts about an index over a ``SimpleVectorStore``."""
    store = index.vector_store

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        vectors = store.data.embedding_dict
        return {name: vectors[name] for name in ids if name in vectors}

    return StoreFacts(
        metric="cosine",
        vectors=MappedVectors(read),
        dim=next((len(vector) for vector in list(store.data.embedding_dict.values())), None),
        exact=True,
        doubt="",
        score=cosine_of,
    )


# ------------------------------------------------------------------------------------------ FAISS


def ids_by_number(index: Any) -> dict[Any, str]:
    """Return the nodes' ids by their numbers in the FAISS store of a ``VectorStoreIndex``."""
    # FaissMapVectorStore keeps a mapping of its own; else the index notes positions.
    own: dict[Any, str] | None = getattr(index.vector_store, "_faiss_id_to_node_id_map", None)
    return index.index_struct.nodes_dict if own is None else own


def faiss_in_langchain(store: Any) -> StoreFacts:
    """Return the facts about a ``FAISS``."""
    vectors = FaissVectors(store.index, lambda: store.index_to_docstore_id)
    normalised = bool(getattr(store, "_normalize_L2", False))
    return replace(
        faiss_facts(store.index, vectors, normalised=normalised),
        filters_afterwards=True,
        harmless=frozenset({"filter", "fetch_k"}),
        arguments=frozenset({"filter", "fetch_k", "score_threshold"}),
    )


def faiss_in_llama_index(index: Any) -> StoreFacts:
    """Return the facts about an index over a ``FaissVectorStore``."""
    client = index.vector_store.client
    return faiss_facts(client, FaissVectors(client, partial(ids_by_number, index)))


# ----------------------------------------------------------------------------------------- Chroma
# It searches a graph (HNSW), which may leave documents out, and filters while it searches.
# https://docs.trychroma.com/docs/collections/configure

_CHROMA_METRICS: dict[str, Metric] = {"l2": "l2", "cosine": "cosine", "ip": "ip"}
_INCLUDED = ("documents", "metadatas", "distances")


def _chroma_facts(collection: Callable[[], Any]) -> StoreFacts:
    """Return the facts about a collection; its store may put another one in its place."""
    metric = _CHROMA_METRICS.get(_chroma_space(collection()))
    if metric is None:
        return StoreFacts(doubt="its Chroma collection names no metric that is known", inexact=True)

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        records = collection().get(ids=list(ids), include=["embeddings"])
        return dict(zip(records["ids"], records["embeddings"], strict=True))

    doubt = "Chroma walks a graph"
    return StoreFacts(
        metric=metric, vectors=MappedVectors(read), doubt=doubt, inexact=True, outside=True
    )


def _chroma_space(collection: Any) -> str:
    configuration = collection.configuration_json
    for index in ("hnsw", "spann"):
        space = (configuration.get(index) or {}).get("space")
        if space:
            return str(space)
    return str((collection.metadata or {}).get("hnsw:space", "l2"))


def chroma_in_langchain(store: Any) -> StoreFacts:
    """Return the facts about a ``Chroma``."""

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
        module = sys.modules["langchain_chroma.vectorstores"]
        pairs = module._results_to_docs_and_vectors(results)  # noqa: SLF001 - no public way
        return SearchResults([document for document, _ in pairs], [vector for _, vector in pairs])

    harmless = frozenset({"filter", "where_document"})
    return replace(_chroma_facts(collection), search=search, harmless=harmless)


def chroma_in_llama_index(index: Any) -> StoreFacts:
    """Return the facts about an index over a ``ChromaVectorStore``."""
    store = index.vector_store

    def watch(vectors: list[Any]) -> Any:
        collection, watched = store.client, copy.copy(store)

        def query(**arguments: Any) -> Any:
            included = {*arguments.pop("include", _INCLUDED), "embeddings"}
            results = collection.query(**arguments, include=list(included))
            vectors.extend(results["embeddings"][0])
            return results

        watched._collection = Client(collection, query=query)  # noqa: SLF001 - no public way
        return watched

    facts = _chroma_facts(lambda: store.client)
    facts = replace(facts, score=EXPONENTIAL_SCORES.get(facts.metric or ""))
    return with_searches(facts, watch, index)


# ---------------------------------------------------------------------------------------- LanceDB
# It searches all rows if there is no vector index, or if a search bypasses it.
# https://lancedb.github.io/lancedb/search/

_LANCEDB_METRICS: dict[str, Metric] = {"l2": "l2", "cosine": "cosine", "dot": "ip"}


def _lancedb_facts(table: Callable[[], Any], key: str, field: str) -> StoreFacts:
    """Return the facts about a table.

    Args:
        table: Returns the table; ``None`` where there is none yet.
        key: The column of the ids.
        field: The column of the vectors.
    """
    metric = _lancedb_metric(table(), field)
    if metric is None:
        return StoreFacts(doubt="it is not known by what its LanceDB index ranks", inexact=True)

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in ids)
        chosen = table().search().where(f"{key} IN ({quoted})").select([key, field])
        rows = chosen.limit(len(ids)).to_arrow()
        return dict(zip(rows[key].to_pylist(), rows[field].to_pylist(), strict=True))

    doubt = "LanceDB may search by an index that leaves rows out"
    return StoreFacts(metric=metric, vectors=MappedVectors(read), doubt=doubt, outside=True)


def _lancedb_metric(table: Any, field: str) -> Metric | None:
    """Return what a table ranks by: L2, unless an index of its vectors says otherwise."""
    for index in [] if table is None else table.list_indices():
        if field in index.columns:
            statistics = table.index_stats(index.name)
            return _LANCEDB_METRICS.get(str(getattr(statistics, "distance_type", "")).lower())
    return "l2"


def _bypassing_indexes(table: Any, metric: Metric | None) -> Any:
    """Return a table that is searched whole, by a metric."""
    name = next((name for name, known in _LANCEDB_METRICS.items() if known == metric), "l2")

    def search(*positional: Any, **named: Any) -> Any:
        return table.search(*positional, **named).distance_type(name).bypass_vector_index()

    return Client(table, search=search)


def lancedb_in_langchain(store: Any) -> StoreFacts:
    """Return the facts about a ``LanceDB``."""
    # There is no public way to its columns.
    key, field = store._id_key, store._vector_key  # noqa: SLF001 - no public way

    facts = _lancedb_facts(store.get_table, key, field)

    def searches(which: Any) -> Search:
        def search(
            embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]
        ) -> SearchResults[Any]:
            rows = which._query(embedding.tolist(), k, **arguments)  # noqa: SLF001 - its own search
            return SearchResults(store.results_to_docs(rows), rows[field].to_pylist())

        return search

    def whole(name: str | None = None) -> Any:
        table = store.get_table(name)  # as it is in the database now
        return None if table is None else _bypassing_indexes(table, facts.metric)

    scanning = copy.copy(store)
    scanning.get_table = whole
    # A filter is none of the harmless arguments: it takes away from the k nearest rows, so that
    # more documents come back where more are fetched.
    return replace(
        facts,
        search=searches(store),
        exhaustive=searches(scanning),
        filters_afterwards=True,
        arguments=frozenset({"prefilter", "query_type", "metrics"}),
    )


def lancedb_in_llama_index(index: Any) -> StoreFacts:
    """Return the facts about an index over a ``LanceDBVectorStore``."""
    store = index.vector_store
    if store.query_type != "vector":
        doubt = f"query_type={store.query_type!r} does not rank by distance alone"
        return StoreFacts(doubt=doubt, by_text=True)
    # Its public way to the table raises where there is none yet.
    field, table = store.vector_column_name, store._table  # noqa: SLF001 - no public way
    facts = _lancedb_facts(lambda: store._table, "id", field)  # noqa: SLF001 - no public way

    def watch(vectors: list[Any], *, exhaustive: bool = False) -> Any:
        table = store.table
        if exhaustive:
            table.checkout_latest()  # rows that others wrote, which are of this version, too
            table = _bypassing_indexes(table, facts.metric)

        def search(**arguments: Any) -> Any:
            query = table.search(**arguments)
            to_pandas = query.to_pandas

            def noted() -> Any:
                frame = to_pandas()
                vectors.extend(frame[field])
                return frame

            query.to_pandas = noted
            return query

        watched = copy.copy(store)
        watched._table = Client(table, search=search)  # noqa: SLF001 - no public way
        return watched

    found = replace(facts, score=EXPONENTIAL_SCORES.get(facts.metric or ""))
    if table is not None and table.version != max(row["version"] for row in table.list_versions()):
        doubt = "its LanceDB table is of an earlier version: call checkout_latest() on it"
        return with_searches(replace(found, doubt=doubt), watch, index)
    return with_searches(found, watch, index, exhaustive=True)
