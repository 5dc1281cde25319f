"""Qdrant, of both frameworks.

It searches a graph (HNSW), or all points with ``exact=True`` among its search parameters, and
filters while it searches. Under cosine it keeps vectors at unit length.
https://qdrant.tech/documentation/concepts/search/

A collection on several nodes acknowledges a write once ``write_consistency_factor`` of its
replicas have it, one by default, and a search asks any of them: it may miss a document that was
written before it began. Nothing can be proven of such a collection, with any consistency of reads:
one that takes what all replicas agree on misses the document, too.
https://qdrant.tech/documentation/guides/distributed_deployment/#consistency-guarantees
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from numpy.typing import ArrayLike

from ragcache_integrations.query_cache import Metric
from ragcache_integrations.retrievers.stores.facts import MappedVectors, StoreFacts

from .kind import Client, StoreKind, watched_search, watched_searches

__all__ = ["LANGCHAIN", "LLAMA_INDEX"]

_METRICS: dict[str, Metric] = {"Cosine": "cosine", "Euclid": "l2", "Dot": "ip"}
_COSINE = "Cosine"  # of a collection that LlamaIndex still has to create
_DOUBT = "Qdrant walks a graph"
_LATE_REPLICAS = (
    "a Qdrant collection with several replicas may answer from one that lacks new documents, "
    "unless its write_consistency_factor is the number of replicas"
)
_HYBRID = "its retrieval mode is {}, which does not rank by distance alone"


def _spellings(value: object) -> tuple[str, ...]:
    """Return an id as Qdrant returns it: UUIDs in their usual form, numbers as they are."""
    if isinstance(value, int):
        return (str(value),)
    try:
        return (str(uuid.UUID(str(value))),)
    except ValueError:
        return ()


def _facts(
    client: Any, collection: str, name_vector: Callable[[], str], parameters: Any, distance: str
) -> StoreFacts:
    """Return what is the same in both frameworks.

    Args:
        client: A client that blocks.
        collection: The collection's name.
        name_vector: Returns the name of the vectors.
        parameters: The collection's; ``None`` where there is none yet.
        distance: What it ranks by.
    """
    metric = _METRICS.get(distance)
    if metric is None:
        return StoreFacts(doubt=f"its Qdrant collection ranks by {distance}", inexact=True)

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        wanted = [int(name) if name.isdecimal() else name for name in ids]
        vector_name = name_vector()
        which = [vector_name] if vector_name else True
        points = client.retrieve(collection, wanted, with_payload=False, with_vectors=which)
        return {str(point.id): _vector(point, vector_name) for point in points}

    doubt = _why_unprovable(parameters, name_vector()) or _DOUBT
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


def _vector(point: Any, name: str) -> list[float]:
    vector: list[float] = point.vector[name] if isinstance(point.vector, dict) else point.vector
    return vector


def _exact() -> Any:
    """Return the parameters of a search of all points."""
    from qdrant_client.models import SearchParams  # noqa: PLC0415 - it is there where a client is

    return SearchParams(exact=True)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _facts_for_langchain(store: Any) -> StoreFacts:
    if store.retrieval_mode.value != "dense":
        return StoreFacts(doubt=_HYBRID.format(store.retrieval_mode.value), by_text=True)
    client, collection, vector_name = store.client, store.collection_name, store.vector_name
    parameters = _parameters(client, collection)
    distance = _distance(parameters, vector_name) or store.distance.value

    def watch(vectors: list[Any], *, exhaustive: bool = False) -> Any:
        watched = _watch(store, vectors, exhaustive=exhaustive)
        # It would ask the server for the collection before each search.
        watched._validate_collection_for_dense = lambda **_: None  # noqa: SLF001 - no public way
        return watched

    facts = replace(
        _facts(client, collection, lambda: vector_name, parameters, distance),
        search=watched_search(watch),
        id_of=lambda document: _text(document.metadata.get("_id")),
        harmless=frozenset({"filter", "search_params", "consistency"}),
    )
    if _why_unprovable(parameters, vector_name):
        return facts
    return replace(facts, exhaustive=watched_search(partial(watch, exhaustive=True)))


def _facts_for_llama_index(index: Any) -> StoreFacts:
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
    # The store names its vectors otherwise once it has created its collection.
    facts = _facts(
        client, store.collection_name, lambda: store.dense_vector_name, parameters, distance
    )
    facts = replace(facts, score=_SCORES.get(facts.metric or ""))
    if store.enable_hybrid:  # it asks for several searches at once
        return facts

    search, asearch = watched_searches(index, partial(_watch, store))
    exhaustive, aexhaustive = watched_searches(index, partial(_watch, store, exhaustive=True))
    facts = replace(facts, search=search, asearch=asearch)
    if _why_unprovable(parameters, store.dense_vector_name):
        return facts
    return replace(facts, exhaustive=exhaustive, aexhaustive=aexhaustive)


def _watch(store: Any, vectors: list[Any], *, exhaustive: bool = False) -> Any:
    """Return a store that answers as one of either framework's, and notes vectors."""
    # There is no public way. LangChain's stores have no client for coroutines.
    client: Any = store._client  # noqa: SLF001
    aclient: Any = getattr(store, "_aclient", None)

    def more(arguments: dict[str, Any]) -> dict[str, Any]:
        name = arguments["using"]
        parameters = {"search_params": _exact()} if exhaustive else {}
        return arguments | parameters | {"with_vectors": [name] if name else True}

    def note(response: Any, name: str) -> Any:
        for point in response.points:
            vectors.append(_vector(point, name))
            point.vector = None  # or the node would have it
        return response

    def query(**arguments: Any) -> Any:
        return note(client.query_points(**more(arguments)), arguments["using"])

    async def aquery(**arguments: Any) -> Any:
        response = await aclient.query_points(**more(arguments))
        return note(response, arguments["using"])

    watched = copy.copy(store)
    watched._client = Client(client, query_points=query)  # noqa: SLF001
    if aclient is not None:
        watched._aclient = Client(aclient, query_points=aquery)  # noqa: SLF001
    return watched


# Qdrant's scores: the cosine, the inner product, or the distance itself.
_SCORES: dict[str, Callable[[float], float]] = {
    "cosine": lambda chord: 1 - chord * chord / 2,
    "ip": lambda product: product,
    "l2": lambda distance: distance,
}

LANGCHAIN = StoreKind(
    "Qdrant",
    ("langchain_qdrant.qdrant.QdrantVectorStore",),
    "langchain-qdrant",
    _facts_for_langchain,
    _spellings,
    vectors_come_along=True,
    proofs="exhaustive",
)
LLAMA_INDEX = StoreKind(
    "Qdrant",
    ("llama_index.vector_stores.qdrant.base.QdrantVectorStore",),
    "llama-index-vector-stores-qdrant",
    _facts_for_llama_index,
    _spellings,
    vectors_come_along=True,
    proofs="exhaustive",
)
