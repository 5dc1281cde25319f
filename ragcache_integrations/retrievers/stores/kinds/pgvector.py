"""PostgreSQL with pgvector: both classes of ``langchain-postgres``, and LlamaIndex's.

Whether a search goes over everything is the planner's choice, which an index changes; filters are
part of the query, which an index search applies afterwards.
https://github.com/pgvector/pgvector#querying
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Awaitable, Mapping, Sequence
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

from .kind import StoreKind, text_or_number, watched_searches

__all__ = ["LANGCHAIN", "LANGCHAIN_LEGACY", "LLAMA_INDEX"]

_LEGACY = "langchain_postgres.vectorstores"
_CURRENT = "langchain_postgres.v2.vectorstores"
_METRICS: dict[str, Metric] = {
    "cosine": "cosine",
    "l2": "l2",
    "inner": "ip",  # of the older class
    "COSINE_DISTANCE": "cosine",
    "EUCLIDEAN": "l2",
    "INNER_PRODUCT": "ip",
}
_DOUBT = "PostgreSQL may search by an index that leaves rows out"
_FILTER = frozenset({"filter"})
_VECTOR = "ragcache_vector"  # the name of a column of a query's result


class _SequentialScan:
    """Options of a query that keep PostgreSQL from using an index, for its transaction alone."""

    @staticmethod
    def to_parameter() -> list[str]:
        """Return what is set for the transaction."""
        # Where a user has turned sequential scans off, all would be as bad.
        return ["enable_indexscan = off", "enable_bitmapscan = off", "enable_seqscan = on"]


def _unknown(strategy: object) -> StoreFacts:
    return StoreFacts(doubt=f"its table in PostgreSQL ranks by {strategy}", inexact=True)


def _facts_of_legacy(store: Any) -> StoreFacts:
    """Return what is known of a ``PGVector``, whose methods are all private but its searches."""
    strategy = store._distance_strategy  # noqa: SLF001
    metric = _METRICS.get(str(getattr(strategy, "value", strategy)))
    if metric is None:
        return _unknown(strategy)
    rows_of = store._PGVector__query_collection  # noqa: SLF001

    def results_of(rows: Sequence[Any]) -> SearchResults[Any]:
        pairs = store._results_to_docs_and_scores(rows)  # noqa: SLF001
        return SearchResults(
            [document for document, _ in pairs], [row.EmbeddingStore.embedding for row in rows]
        )

    def search(embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]) -> SearchResults[Any]:
        return results_of(rows_of(embedding=embedding.tolist(), k=k, **arguments))

    async def asearch(
        embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]
    ) -> SearchResults[Any]:
        await store.__apost_init__()
        async with store._make_async_session() as session:  # noqa: SLF001
            rows = await store._PGVector__aquery_collection(  # noqa: SLF001
                session=session, embedding=embedding.tolist(), k=k, **arguments
            )
            return results_of(rows)

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        if store.async_mode:
            raise LookupError("a PGVector in async mode has no way to read vectors from other code")
        table = store.EmbeddingStore
        with store._make_sync_session() as session:  # noqa: SLF001
            collection = store.get_collection(session)
            rows = session.query(table.id, table.embedding).filter(
                table.id.in_(list(ids)), table.collection_id == collection.uuid
            )
            return {str(row.id): row.embedding for row in rows}

    facts = StoreFacts(
        metric=metric,
        vectors=MappedVectors(read),
        doubt=_DOUBT,
        harmless=_FILTER,
        outside=True,
    )
    return replace(facts, asearch=asearch) if store.async_mode else replace(facts, search=search)


def _facts_of_current(store: Any) -> StoreFacts:
    """Return what is known of a ``PGVectorStore``, which hides the store that does the work."""
    inner = store._PGVectorStore__vs  # noqa: SLF001
    if inner.hybrid_search_config is not None:
        return StoreFacts(doubt="a hybrid search does not rank by distance alone", by_text=True)
    metric = _METRICS.get(inner.distance_strategy.name)
    if metric is None:
        return _unknown(inner.distance_strategy)
    column = inner.embedding_column

    async def collect(
        which: Any, embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]
    ) -> SearchResults[Any]:
        # The store's own code makes the documents; the rows are kept on their way to it.
        rows: list[Any] = []

        async def query(*positional: Any, **named: Any) -> Any:
            rows.extend(await which._AsyncPGVectorStore__query_collection(*positional, **named))  # noqa: SLF001
            return rows

        watched = copy.copy(which)
        watched._AsyncPGVectorStore__query_collection = query  # noqa: SLF001
        documents = await watched.asimilarity_search_by_vector(embedding.tolist(), k, **arguments)
        return SearchResults(documents, [json.loads(row[column]) for row in rows])

    def searches(
        which: Any,
    ) -> tuple[VectorSearch[SearchResults[Any]], VectorSearch[Awaitable[SearchResults[Any]]]]:
        def search(
            embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]
        ) -> SearchResults[Any]:
            collected = collect(which, embedding, k, arguments)
            results: SearchResults[Any] = store._engine._run_as_sync(collected)  # noqa: SLF001
            return results

        async def asearch(
            embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]
        ) -> SearchResults[Any]:
            collected = collect(which, embedding, k, arguments)
            results: SearchResults[Any] = await store._engine._run_as_async(collected)  # noqa: SLF001
            return results

        return search, asearch

    scanning = copy.copy(inner)
    scanning.index_query_options = _SequentialScan()
    search, asearch = searches(inner)
    exhaustive, aexhaustive = searches(scanning)

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        return _read_rows(store, inner, ids)

    return StoreFacts(
        metric=metric,
        vectors=MappedVectors(read),
        doubt=_DOUBT,
        harmless=_FILTER,
        search=search,
        asearch=asearch,
        exhaustive=exhaustive,
        aexhaustive=aexhaustive,
        outside=True,
    )


def _read_rows(store: Any, inner: Any, ids: Sequence[str]) -> Mapping[str, ArrayLike]:
    """Return vectors by id, from the table of a ``PGVectorStore``."""
    from sqlalchemy import text  # noqa: PLC0415 - it is there where langchain-postgres is

    key, column = inner.id_column, inner.embedding_column
    parameters = {f"id_{place}": name for place, name in enumerate(ids)}
    placeholders = ", ".join(f":{name}" for name in parameters)
    statement = text(
        f'SELECT "{key}" AS key, "{column}" AS vector '  # noqa: S608 - its own names
        f'FROM "{inner.schema_name}"."{inner.table_name}" WHERE "{key}" IN ({placeholders})'
    )

    async def read() -> Mapping[str, ArrayLike]:
        async with inner.engine.connect() as connection:
            rows = await connection.execute(statement, parameters)
            return {str(row.key): json.loads(row.vector) for row in rows}

    by_id: Mapping[str, ArrayLike] = store._engine._run_as_sync(read())  # noqa: SLF001
    return by_id


def _facts_for_llama_index(index: Any) -> StoreFacts:
    store = index.vector_store

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        store._initialize()  # noqa: SLF001 - as its own methods do
        table = store._table_class  # noqa: SLF001
        with store._session() as session:  # noqa: SLF001
            rows = session.query(table.node_id, table.embedding).filter(
                table.node_id.in_(list(ids))
            )
            return {str(row.node_id): _numbers(row.embedding) for row in rows}

    facts = StoreFacts(
        metric="cosine",  # it knows no other
        vectors=MappedVectors(read),
        doubt=_DOUBT,
        outside=True,
        score=lambda chord: 1 - chord * chord / 2,
    )
    if store._customize_query_fn is not None:  # noqa: SLF001
        return replace(facts, doubt="it is not known what customize_query_fn does to its searches")

    def watch(vectors: list[Any], *, exhaustive: bool = False) -> Any:
        def customize(statement: Any, table: Any, **_: Any) -> Any:
            statement = statement.add_columns(table.embedding.label(_VECTOR))
            if exhaustive:  # no index sorts by an expression of a distance
                distance = statement.selected_columns["distance"].element
                statement = statement.order_by(None).order_by(distance + 0)
            return statement

        def read_rows(rows: Sequence[Any]) -> Any:
            vectors.extend(_numbers(row.custom_fields.pop(_VECTOR)) for row in rows)
            return store._db_rows_to_query_result(rows)  # noqa: SLF001

        store._initialize()  # noqa: SLF001 - else the copy would do so again and again
        watched = copy.copy(store)
        watched._customize_query_fn = customize  # noqa: SLF001
        watched._db_rows_to_query_result = read_rows  # noqa: SLF001
        return watched

    search, asearch = watched_searches(index, watch)
    facts = replace(facts, search=search, asearch=asearch)
    if store.use_halfvec:  # of the question, too
        return replace(facts, doubt="pgvector rounds to half precision before it compares")
    exhaustive, aexhaustive = watched_searches(index, partial(watch, exhaustive=True))
    return replace(facts, exhaustive=exhaustive, aexhaustive=aexhaustive)


def _numbers(vector: Any) -> ArrayLike:
    """Return a vector that may be of pgvector's class for half precision."""
    numbers: ArrayLike = vector.to_numpy() if hasattr(vector, "to_numpy") else vector
    return numbers


def _spellings(value: object) -> tuple[str, ...]:
    """Return an id as PostgreSQL may return it: UUIDs in their usual form, where it knows them."""
    unchanged = text_or_number(value)
    try:
        return (*{*unchanged, str(uuid.UUID(str(value)))},)
    except ValueError:
        return unchanged


LANGCHAIN = StoreKind(
    "pgvector",
    (f"{_CURRENT}.PGVectorStore",),
    "langchain-postgres",
    _facts_of_current,
    _spellings,
    vectors_come_along=True,
    proofs="exhaustive",
)
LANGCHAIN_LEGACY = StoreKind(
    "pgvector, older class",
    (f"{_LEGACY}.PGVector",),
    "langchain-postgres",
    _facts_of_legacy,
    vectors_come_along=True,
    proofs="declared",
)
LLAMA_INDEX = StoreKind(
    "pgvector",
    ("llama_index.vector_stores.postgres.base.PGVectorStore",),
    "llama-index-vector-stores-postgres",
    _facts_for_llama_index,
    vectors_come_along=True,
    proofs="exhaustive",
)
