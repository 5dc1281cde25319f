"""LanceDB, of both frameworks.

It searches all rows where there is no vector index, or where a search bypasses it.
https://lancedb.github.io/lancedb/search/
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.query_cache import Metric
from ragcache_integrations.retrievers.stores.facts import (
    MappedVectors,
    SearchResults,
    StoreFacts,
    VectorSearch,
)

from .kind import EXPONENTIAL_SCORES, Client, StoreKind, watched_searches

__all__ = ["LANGCHAIN", "LLAMA_INDEX"]

_METRICS: dict[str, Metric] = {"l2": "l2", "cosine": "cosine", "dot": "ip"}
_DOUBT = "LanceDB may search by an index that leaves rows out"


def _facts(table: Callable[[], Any], key: str, field: str) -> StoreFacts:
    """Return what is known of a table.

    Args:
        table: Returns the table; ``None`` where there is none yet.
        key: The column of the ids.
        field: The column of the vectors.
    """
    metric = _metric(table(), field)
    if metric is None:
        return StoreFacts(doubt="it is not known by what its LanceDB index ranks", inexact=True)

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in ids)
        chosen = table().search().where(f"{key} IN ({quoted})").select([key, field])
        rows = chosen.limit(len(ids)).to_arrow()
        return dict(zip(rows[key].to_pylist(), rows[field].to_pylist(), strict=True))

    return StoreFacts(
        metric=metric,
        vectors=MappedVectors(read),
        doubt=_DOUBT,
        outside=True,
    )


def _metric(table: Any, field: str) -> Metric | None:
    """Return what a table ranks by: L2, unless an index of its vectors says otherwise."""
    for index in [] if table is None else table.list_indices():
        if field in index.columns:
            statistics = table.index_stats(index.name)
            return _METRICS.get(str(getattr(statistics, "distance_type", "")).lower())
    return "l2"


def _bypassing_indexes(table: Any, metric: Metric | None) -> Any:
    """Return a table that is searched whole, by a metric."""
    name = next((name for name, known in _METRICS.items() if known == metric), "l2")

    def search(*positional: Any, **named: Any) -> Any:
        return table.search(*positional, **named).distance_type(name).bypass_vector_index()

    return Client(table, search=search)


def _facts_for_langchain(store: Any) -> StoreFacts:
    # There is no public way to its columns.
    key, field = store._id_key, store._vector_key  # noqa: SLF001

    facts = _facts(store.get_table, key, field)

    def searches(which: Any) -> VectorSearch[SearchResults[Any]]:
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


def _facts_for_llama_index(index: Any) -> StoreFacts:
    store = index.vector_store
    if store.query_type != "vector":
        doubt = f"query_type={store.query_type!r} does not rank by distance alone"
        return StoreFacts(doubt=doubt, by_text=True)
    # Its public way to the table raises where there is none yet.
    field, table = store.vector_column_name, store._table  # noqa: SLF001
    facts = _facts(lambda: store._table, "id", field)  # noqa: SLF001

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
        watched._table = Client(table, search=search)  # noqa: SLF001
        return watched

    search, asearch = watched_searches(index, watch)
    facts = replace(
        facts,
        search=search,
        asearch=asearch,
        score=EXPONENTIAL_SCORES.get(facts.metric or ""),
    )
    if table is not None and table.version != max(row["version"] for row in table.list_versions()):
        doubt = "its LanceDB table is of an earlier version: call checkout_latest() on it"
        return replace(facts, doubt=doubt)
    exhaustive, aexhaustive = watched_searches(index, partial(watch, exhaustive=True))
    return replace(facts, exhaustive=exhaustive, aexhaustive=aexhaustive)


LANGCHAIN = StoreKind(
    "LanceDB",
    ("langchain_community.vectorstores.lancedb.LanceDB",),
    "langchain-community",
    _facts_for_langchain,
    vectors_come_along=True,
    proofs="exhaustive",
)
LLAMA_INDEX = StoreKind(
    "LanceDB",
    ("llama_index.vector_stores.lancedb.base.LanceDBVectorStore",),
    "llama-index-vector-stores-lancedb",
    _facts_for_llama_index,
    vectors_come_along=True,
    proofs="exhaustive",
)
