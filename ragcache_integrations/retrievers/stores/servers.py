"""Vector stores on a server: PostgreSQL with pgvector, Qdrant and Milvus.

For each of them the facts about LangChain's store, and about an index over LlamaIndex's.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.query_cache import Metric

from .facts import (
    AsyncSearch,
    Client,
    MappedVectors,
    Search,
    SearchResults,
    StoreFacts,
    cosine_of,
    text_or_number,
    with_searches,
)

__all__ = [
    "milvus_in_langchain",
    "milvus_in_llama_index",
    "older_pgvector_in_langchain",
    "pgvector_in_langchain",
    "pgvector_in_llama_index",
    "qdrant_in_langchain",
    "qdrant_in_llama_index",
    "spelt_as_in_postgres",
    "spelt_as_in_qdrant",
]


def _text(value: object) -> str | None:
    return None if value is None else str(value)


# --------------------------------------------------------------------------------------- pgvector
# Both classes of ``langchain-postgres``, and LlamaIndex's. Whether a search goes over everything is
# the planner's choice, which an index changes; filters are part of the query, which an index search
# applies afterwards. https://github.com/pgvector/pgvector#querying

_PGVECTOR_METRICS: dict[str, Metric] = {
    "cosine": "cosine",
    "l2": "l2",
    "inner": "ip",  # of the older class
    "COSINE_DISTANCE": "cosine",
    "EUCLIDEAN": "l2",
    "INNER_PRODUCT": "ip",
}
_INDEXED = "PostgreSQL may search by an index that leaves rows out"
_FILTER = frozenset({"filter"})
_VECTOR = "ragcache_vector"  # the name of a column of a query's result


class _SequentialScan:
    """Options of a query that keep PostgreSQL from using an index, for its transaction alone."""

    @staticmethod
    def to_parameter() -> list[str]:
        """Return what is set for the transaction."""
        # Where a user has turned sequential scans off, all would be as bad.
        return ["enable_indexscan = off", "enable_bitmapscan = off", "enable_seqscan = on"]


def _of_unknown_strategy(strategy: object) -> StoreFacts:
    return StoreFacts(doubt=f"its table in PostgreSQL ranks by {strategy}", inexact=True)


def older_pgvector_in_langchain(store: Any) -> StoreFacts:
    """Return the facts about a ``PGVector``, whose methods are all private but its searches."""
    strategy = store._distance_strategy  # noqa: SLF001 - no public way
    metric = _PGVECTOR_METRICS.get(str(getattr(strategy, "value", strategy)))
    if metric is None:
        return _of_unknown_strategy(strategy)
    rows_of = store._PGVector__query_collection  # noqa: SLF001 - no public way

    def results_of(rows: Sequence[Any]) -> SearchResults[Any]:
        pairs = store._results_to_docs_and_scores(rows)  # noqa: SLF001 - no public way
        return SearchResults(
            [document for document, _ in pairs], [row.EmbeddingStore.embedding for row in rows]
        )

    def search(embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]) -> SearchResults[Any]:
        return results_of(rows_of(embedding=embedding.tolist(), k=k, **arguments))

    async def asearch(
        embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]
    ) -> SearchResults[Any]:
        await store.__apost_init__()
        async with store._make_async_session() as session:  # noqa: SLF001 - no public way
            rows = await store._PGVector__aquery_collection(  # noqa: SLF001 - no public way
                session=session, embedding=embedding.tolist(), k=k, **arguments
            )
            return results_of(rows)

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        if store.async_mode:
            raise LookupError("a PGVector in async mode has no way to read vectors from other code")
        table = store.EmbeddingStore
        with store._make_sync_session() as session:  # noqa: SLF001 - no public way
            collection = store.get_collection(session)
            rows = session.query(table.id, table.embedding).filter(
                table.id.in_(list(ids)), table.collection_id == collection.uuid
            )
            return {str(row.id): row.embedding for row in rows}

    vectors = MappedVectors(read)
    facts = StoreFacts(
        metric=metric, vectors=vectors, doubt=_INDEXED, harmless=_FILTER, outside=True
    )
    return replace(facts, asearch=asearch) if store.async_mode else replace(facts, search=search)


def pgvector_in_langchain(store: Any) -> StoreFacts:
    """Return the facts about a ``PGVectorStore``, which hides the store that does the work."""
    inner, engine = store._PGVectorStore__vs, store._engine  # noqa: SLF001 - no public way
    if inner.hybrid_search_config is not None:
        return StoreFacts(doubt="a hybrid search does not rank by distance alone", by_text=True)
    metric = _PGVECTOR_METRICS.get(inner.distance_strategy.name)
    if metric is None:
        return _of_unknown_strategy(inner.distance_strategy)
    column = inner.embedding_column

    async def collect(
        which: Any, embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]
    ) -> SearchResults[Any]:
        # The store's own code makes the documents; the rows are kept on their way to it.
        rows: list[Any] = []

        async def query(*positional: Any, **named: Any) -> Any:
            rows.extend(await which._AsyncPGVectorStore__query_collection(*positional, **named))  # noqa: SLF001 - no public way
            return rows

        watched = copy.copy(which)
        watched._AsyncPGVectorStore__query_collection = query  # noqa: SLF001 - no public way
        documents = await watched.asimilarity_search_by_vector(embedding.tolist(), k, **arguments)
        return SearchResults(documents, [json.loads(row[column]) for row in rows])

    def searches(which: Any) -> tuple[Search, AsyncSearch]:
        def search(*asked: Any) -> Any:
            return engine._run_as_sync(collect(which, *asked))  # noqa: SLF001 - no public way

        async def asearch(*asked: Any) -> Any:
            return await engine._run_as_async(collect(which, *asked))  # noqa: SLF001 - no public way

        return search, asearch

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        by_id: Mapping[str, ArrayLike] = engine._run_as_sync(_read_rows(inner, ids))  # noqa: SLF001 - no public way
        return by_id

    scanning = copy.copy(inner)
    scanning.index_query_options = _SequentialScan()
    search, asearch = searches(inner)
    exhaustive, aexhaustive = searches(scanning)
    return StoreFacts(
        metric=metric,
        vectors=MappedVectors(read),
        doubt=_INDEXED,
        harmless=_FILTER,
        search=search,
        asearch=asearch,
        exhaustive=exhaustive,
        aexhaustive=aexhaustive,
        outside=True,
    )


async def _read_rows(inner: Any, ids: Sequence[str]) -> Mapping[str, ArrayLike]:
    """Return vectors by id, from the table of a ``PGVectorStore``."""
    from sqlalchemy import text  # noqa: PLC0415 - it is there where langchain-postgres is

    key, column = inner.id_column, inner.embedding_column
    parameters = {f"id_{place}": name for place, name in enumerate(ids)}
    placeholders = ", ".join(f":{name}" for name in parameters)
    statement = text(
        f'SELECT "{key}" AS key, "{column}" AS vector '  # noqa: S608 - its own names
        f'FROM "{inner.schema_name}"."{inner.table_name}" WHERE "{key}" IN ({placeholders})'
    )
    async with inner.engine.connect() as connection:
        rows = await connection.execute(statement, parameters)
        return {str(row.key): json.loads(row.vector) for row in rows}


def pgvector_in_llama_index(index: Any) -> StoreFacts:
    """Return the facts about an index over a ``PGVectorStore``."""
    store = index.vector_store

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        store._initialize()  # noqa: SLF001 - as its own methods do
        table = store._table_class  # noqa: SLF001 - no public way
        with store._session() as session:  # noqa: SLF001 - no public way
            rows = session.query(table.node_id, table.embedding).filter(
                table.node_id.in_(list(ids))
            )
            return {str(row.node_id): _numbers(row.embedding) for row in rows}

    vectors = MappedVectors(read)
    facts = StoreFacts(  # it knows no other metric
        metric="cosine", vectors=vectors, doubt=_INDEXED, outside=True, score=cosine_of
    )
    if store._customize_query_fn is not None:  # noqa: SLF001 - no public way
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
            return store._db_rows_to_query_result(rows)  # noqa: SLF001 - no public way

        store._initialize()  # noqa: SLF001 - else the copy would do so again and again
        watched = copy.copy(store)
        watched._customize_query_fn = customize  # noqa: SLF001 - no public way
        watched._db_rows_to_query_result = read_rows  # noqa: SLF001 - no public way
        return watched

    if store.use_halfvec:  # of the question, too
        facts = replace(facts, doubt="pgvector rounds to half precision before it compares")
    return with_searches(facts, watch, index, exhaustive=not store.use_halfvec)


def _numbers(vector: Any) -> ArrayLike:
    """Return a vector that may be of pgvector's class for half precision."""
    numbers: ArrayLike = vector.to_numpy() if hasattr(vector, "to_numpy") else vector
    return numbers


def spelt_as_in_postgres(value: object) -> tuple[str, ...]:
    """Return an id as PostgreSQL may return it: UUIDs in their usual form, where it knows them."""
    unchanged = text_or_number(value)
    try:
        return (*{*unchanged, str(uuid.UUID(str(value)))},)
    except ValueError:
        return unchanged


# ----------------------------------------------------------------------------------------- Qdrant
# It searches a graph (HNSW), or all points with ``exact=True`` among its search parameters, and
# filters while it searches. Under cosine it keeps vectors at unit length.
# https://qdrant.tech/documentation/concepts/search/
#
# A collection on several nodes acknowledges a write once ``write_consistency_factor`` of its
# replicas have it, one by default, and a search asks any of them: it may miss a document that was
# written before it began. Nothing can be proven of such a collection, with any consistency of
# reads: one that takes what all replicas agree on misses the document, too.
# https://qdrant.tech/documentation/guides/distributed_deployment/#consistency-guarantees

_QDRANT_METRICS: dict[str, Metric] = {"Cosine": "cosine", "Euclid": "l2", "Dot": "ip"}
_COSINE = "Cosine"  # of a collection that LlamaIndex still has to create
_LATE_REPLICAS = (
    "a Qdrant collection with several replicas may answer from one that lacks new documents, "
    "unless its write_consistency_factor is the number of replicas"
)
# Qdrant's scores: the cosine, the inner product, or the distance itself.
_QDRANT_SCORES: dict[str, Callable[[float], float]] = {
    "cosine": cosine_of,
    "ip": float,
    "l2": float,
}


def spelt_as_in_qdrant(value: object) -> tuple[str, ...]:
    """Return an id as Qdrant returns it: UUIDs in their usual form, numbers as they are."""
    if isinstance(value, int):
        return (str(value),)
    try:
        return (str(uuid.UUID(str(value))),)
    except ValueError:
        return ()


def _qdrant_facts(
    client: Any, collection: str, name_vector: Callable[[], str], distance: str, why: str
) -> StoreFacts:
    """Return what is the same in both frameworks.

    Args:
        client: A client that blocks.
        collection: The collection's name.
        name_vector: Returns the name of the vectors.
        distance: What it ranks by.
        why: Why a search of all points proves nothing; empty where it does.
    """
    metric = _QDRANT_METRICS.get(distance)
    if metric is None:
        return StoreFacts(doubt=f"its Qdrant collection ranks by {distance}", inexact=True)

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        wanted = [int(name) if name.isdecimal() else name for name in ids]
        vector_name = name_vector()
        which = [vector_name] if vector_name else True
        points = client.retrieve(collection, wanted, with_payload=False, with_vectors=which)
        return {str(point.id): _qdrant_vector(point, vector_name) for point in points}

    doubt = why or "Qdrant walks a graph"
    return StoreFacts(
        metric=metric, vectors=MappedVectors(read), doubt=doubt, inexact=True, outside=True
    )


def _parameters(client: Any, collection: str) -> Any:
    """Return a collection's parameters; ``None`` where there is none."""
    if not client.collection_exists(collection):
        return None
    return client.get_collection(collection).config.params


def _distance(parameters: Any, name: str) -> str | None:
    """Return what a collection ranks by, which is not what objects say; ``None`` where none is."""
    if parameters is None:
        return None
    vectors = parameters.vectors
    distance: str = (vectors[name] if isinstance(vectors, dict) else vectors).distance.value
    return distance


def _why_unprovable(parameters: Any, name: str) -> str:
    """Return why a search of all points proves nothing; empty where it does."""
    replicas = getattr(parameters, "replication_factor", None) or 1
    if replicas > (getattr(parameters, "write_consistency_factor", None) or 1):
        return _LATE_REPLICAS
    vectors = getattr(parameters, "vectors", None)
    described = vectors.get(name) if isinstance(vectors, dict) else vectors
    datatype = getattr(described, "datatype", None)
    if datatype is not None and datatype.value != "float32":  # of the question, too
        return f"its Qdrant collection rounds vectors to {datatype.value} before it compares them"
    return ""


def _qdrant_vector(point: Any, name: str) -> list[float]:
    vector: list[float] = point.vector[name] if isinstance(point.vector, dict) else point.vector
    return vector


def _exact() -> Any:
    """Return the parameters of a search of all points."""
    from qdrant_client.models import SearchParams  # noqa: PLC0415 - it is there where a client is

    return SearchParams(exact=True)


def qdrant_in_langchain(store: Any) -> StoreFacts:
    """Return the facts about a ``QdrantVectorStore``."""
    mode = store.retrieval_mode.value
    if mode != "dense":
        doubt = f"its retrieval mode is {mode}, which does not rank by distance alone"
        return StoreFacts(doubt=doubt, by_text=True)
    client, collection, vector_name = store.client, store.collection_name, store.vector_name
    parameters = _parameters(client, collection)
    distance = _distance(parameters, vector_name) or store.distance.value
    why = _why_unprovable(parameters, vector_name)

    def watch(vectors: list[Any], *, exhaustive: bool = False) -> Any:
        watched = _watched_qdrant(store, vectors, exhaustive=exhaustive)
        # It would ask the server for the collection before each search.
        watched._validate_collection_for_dense = lambda **_: None  # noqa: SLF001 - no public way
        return watched

    facts = replace(
        _qdrant_facts(client, collection, lambda: vector_name, distance, why),
        id_of=lambda document: _text(document.metadata.get("_id")),
        harmless=frozenset({"filter", "search_params", "consistency"}),
    )
    return with_searches(facts, watch, exhaustive=not why)


def qdrant_in_llama_index(index: Any) -> StoreFacts:
    """Return the facts about an index over a ``QdrantVectorStore``."""
    store = index.vector_store
    client = store.client
    if client is None:
        return StoreFacts(doubt="it is not known how an asynchronous Qdrant client searches")
    planned = store._dense_config  # noqa: SLF001 - what it will create
    parameters = _parameters(client, store.collection_name)
    distance = _distance(parameters, store.dense_vector_name)
    if distance is None:
        distance = _COSINE if planned is None else planned.distance.value
        parameters = SimpleNamespace(  # of the collection that it will create
            replication_factor=store._replication_factor,  # noqa: SLF001 - public nowhere
            write_consistency_factor=store._write_consistency_factor,  # noqa: SLF001 - the same
            vectors=planned,
        )
    why = _why_unprovable(parameters, store.dense_vector_name)
    # The store names its vectors otherwise once it has created its collection.
    facts = _qdrant_facts(
        client, store.collection_name, lambda: store.dense_vector_name, distance, why
    )
    facts = replace(facts, score=_QDRANT_SCORES.get(facts.metric or ""))
    if store.enable_hybrid:  # it asks for several searches at once
        return facts
    return with_searches(facts, partial(_watched_qdrant, store), index, exhaustive=not why)


def _watched_qdrant(store: Any, vectors: list[Any], *, exhaustive: bool = False) -> Any:
    """Return a store that answers as one of either framework's, and notes vectors."""
    # There is no public way. LangChain's stores have no client for coroutines.
    client: Any = store._client  # noqa: SLF001 - no public way
    aclient: Any = getattr(store, "_aclient", None)

    def more(arguments: dict[str, Any]) -> dict[str, Any]:
        name = arguments["using"]
        parameters = {"search_params": _exact()} if exhaustive else {}
        return arguments | parameters | {"with_vectors": [name] if name else True}

    def note(response: Any, name: str) -> Any:
        for point in response.points:
            vectors.append(_qdrant_vector(point, name))
            point.vector = None  # or the node would have it
        return response

    def query(**arguments: Any) -> Any:
        return note(client.query_points(**more(arguments)), arguments["using"])

    async def aquery(**arguments: Any) -> Any:
        response = await aclient.query_points(**more(arguments))
        return note(response, arguments["using"])

    watched = copy.copy(store)
    watched._client = Client(client, query_points=query)  # noqa: SLF001 - no public way
    if aclient is not None:
        watched._aclient = Client(aclient, query_points=aquery)  # noqa: SLF001 - no public way
    return watched


# ----------------------------------------------------------------------------------------- Milvus
# Whether it searches everything depends on its index; it filters before it searches.
# https://milvus.io/docs/index-explained.md

_MILVUS_METRICS: dict[str, Metric] = {"L2": "l2", "COSINE": "cosine", "IP": "ip"}
_STRONG = {"consistency_level": "Strong"}  # a search sees everything that was written before it
# Milvus' own numbers: the squared distance, the cosine or the inner product.
_MILVUS_SCORES: dict[str, Callable[[float], float]] = {
    "l2": lambda distance: distance * distance,
    "cosine": cosine_of,
    "ip": float,
}


def _milvus_facts(
    client: Any,
    collection: str,
    fields: tuple[str, str],
    index: Mapping[str, Any],
    *,
    numbers: bool,
) -> StoreFacts:
    """Return the facts about a collection; ``doubt`` is empty where its index is FLAT.

    Args:
        client: A ``MilvusClient``.
        collection: The collection's name.
        fields: The names of the primary key and of the vector.
        index: The ``metric_type`` and ``index_type`` of the index that is still to be created.
        numbers: Whether primary keys are numbers.
    """
    primary, field = fields
    if client.has_collection(collection):  # by its index, whatever an object over it says
        for name in client.list_indexes(collection, field):
            index = client.describe_index(collection, name)
    metric = _MILVUS_METRICS.get(str(index["metric_type"]))
    if metric is None:
        doubt = f"its Milvus collection ranks by {index['metric_type']!r}"
        return StoreFacts(doubt=doubt, inexact=True)

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        keys = [int(name) for name in ids] if numbers else list(ids)
        rows = client.get(collection, ids=keys, output_fields=[primary, field], **_STRONG)
        return {str(row[primary]): row[field] for row in rows}

    kind = index["index_type"]
    doubt = "" if kind == "FLAT" else f"its {kind} index in Milvus may leave entities out"
    return StoreFacts(metric=metric, vectors=MappedVectors(read), doubt=doubt, outside=True)


def _with_milvus_searches(
    facts: StoreFacts, parameters: Any, watch: Callable[..., Any], index: Any = None
) -> StoreFacts:
    """Return the facts about a collection with its searches; exhaustive ones, if it has such.

    Args:
        facts: From :func:`_milvus_facts`.
        parameters: The parameters of all of the store's searches, such as a radius.
        watch: As for :func:`.with_searches`.
        index: As for :func:`.with_searches`.
    """
    if not facts.doubt and not _is_plain(parameters):
        doubt = f"its search parameters {parameters!r} may leave entities out"
        facts = replace(facts, doubt=doubt)
    return with_searches(facts, watch, index, exhaustive=not facts.doubt)


def _is_plain(parameters: Any) -> bool:
    """Whether parameters say no more than how distances are computed."""
    return all(name == "metric_type" or not value for name, value in (parameters or {}).items())


def milvus_in_langchain(store: Any) -> StoreFacts:
    """Return the facts about a ``Milvus``."""
    # There is no public way to its fields.
    field, primary = store._vector_field, store._primary_field  # noqa: SLF001 - no public way
    parameters = store.index_params or {}
    if not isinstance(field, str) or not isinstance(parameters, dict):
        doubt = "it searches several vector fields, which does not rank by one distance"
        return StoreFacts(doubt=doubt, by_text=True)
    facts = _milvus_facts(
        store.client,
        store.collection_name,
        (primary, field),
        {"metric_type": "L2", "index_type": "AUTOINDEX"} | parameters,
        numbers=bool(store.auto_id),
    )
    # ``param`` is none of the harmless arguments: there may be a radius in it.
    facts = replace(
        facts,
        id_of=lambda document: _text(document.metadata.get(primary)),
        harmless=frozenset({"expr", "timeout"}),
    )
    watch = partial(_watched_milvus, store, "_milvus_client", field)
    return _with_milvus_searches(facts, store.search_params, watch)


def milvus_in_llama_index(index: Any) -> StoreFacts:
    """Return the facts about an index over a ``MilvusVectorStore``."""
    store = index.vector_store
    fields = ("id", store.embedding_field)
    planned = {"metric_type": store.similarity_metric, "index_type": "FLAT"} | store.index_config
    facts = _milvus_facts(store.client, store.collection_name, fields, planned, numbers=False)
    facts = replace(facts, score=_MILVUS_SCORES.get(facts.metric or ""))
    watch = partial(_watched_milvus, store, "_milvusclient", store.embedding_field)
    return _with_milvus_searches(facts, store.search_config, watch, index)


def _watched_milvus(
    store: Any, client_name: str, field: str, vectors: list[Any], *, exhaustive: bool = False
) -> Any:
    """Return a store that answers as one of either framework's, and notes vectors.

    Args:
        store: The store.
        client_name: Name of its attribute for the client.
        field: Name of the field with the vectors.
        vectors: Receives them.
        exhaustive: Whether a search sees everything that was written before it.
    """
    client = getattr(store, client_name)
    aclient: Any = getattr(store, f"_async{client_name}", None)

    def complete(arguments: dict[str, Any]) -> dict[str, Any]:
        outputs = [*arguments["output_fields"], field]
        return arguments | {"output_fields": outputs} | (_STRONG if exhaustive else {})

    def note(results: Any) -> Any:
        vectors.extend(row["entity"][field] for row in results[0])
        return results

    def search(*collection: str, **arguments: Any) -> Any:
        return note(client.search(*collection, **complete(arguments)))

    async def asearch(**arguments: Any) -> Any:
        return note(await aclient.search(**complete(arguments)))

    watched = copy.copy(store)
    setattr(watched, client_name, Client(client, search=search))
    if aclient is not None:
        setattr(watched, f"_async{client_name}", Client(aclient, search=asearch))
    return watched
