"""Milvus, of both frameworks.

Whether it searches everything depends on its index; it filters before it searches.
https://milvus.io/docs/index-explained.md
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from ragcache_integrations.query_cache import Metric
from ragcache_integrations.retrievers.stores.facts import MappedVectors, StoreFacts

from .kind import Client, StoreKind, text_or_number, watched_search, watched_searches

__all__ = ["LANGCHAIN", "LLAMA_INDEX"]

_METRICS: dict[str, Metric] = {"L2": "l2", "COSINE": "cosine", "IP": "ip"}
_STRONG = {"consistency_level": "Strong"}  # a search sees everything that was written before it


def _facts(
    client: Any,
    collection: str,
    fields: tuple[str, str],
    index: Mapping[str, Any],
    *,
    numbers: bool,
) -> StoreFacts:
    """Return what is known of a collection; ``doubt`` is empty where its index is FLAT.

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
    metric = _METRICS.get(str(index["metric_type"]))
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


def _scanning(facts: StoreFacts, parameters: Any, exhaustive: Mapping[str, Any]) -> StoreFacts:
    """Return the facts of a collection with its exhaustive searches, if it has such.

    Args:
        facts: From :func:`_facts`.
        parameters: The parameters of all of the store's searches, such as a radius.
        exhaustive: The searches, by their names in the facts.
    """
    if not facts.doubt and not _is_plain(parameters):
        doubt = f"its search parameters {parameters!r} may leave entities out"
        return replace(facts, doubt=doubt)
    return replace(facts, **exhaustive) if not facts.doubt else facts


def _is_plain(parameters: Any) -> bool:
    """Whether parameters say no more than how distances are computed."""
    return all(name == "metric_type" or not value for name, value in (parameters or {}).items())


def _facts_for_langchain(store: Any) -> StoreFacts:
    # There is no public way to its fields.
    field, primary = store._vector_field, store._primary_field  # noqa: SLF001
    parameters = store.index_params or {}
    if not isinstance(field, str) or not isinstance(parameters, dict):
        doubt = "it searches several vector fields, which does not rank by one distance"
        return StoreFacts(doubt=doubt, by_text=True)
    facts = _facts(
        store.client,
        store.collection_name,
        (primary, field),
        {"metric_type": "L2", "index_type": "AUTOINDEX"} | parameters,
        numbers=bool(store.auto_id),
    )

    def id_of(document: Any) -> str | None:
        value = document.metadata.get(primary)
        return None if value is None else str(value)

    watch = partial(_watch, store, "_milvus_client", field)
    # ``param`` is none of the harmless arguments: there may be a radius in it.
    facts = replace(
        facts,
        search=watched_search(watch),
        id_of=id_of,
        harmless=frozenset({"expr", "timeout"}),
    )
    exhaustive = {"exhaustive": watched_search(partial(watch, strong=True))}
    return _scanning(facts, store.search_params, exhaustive)


def _facts_for_llama_index(index: Any) -> StoreFacts:
    store = index.vector_store
    fields = ("id", store.embedding_field)
    planned = {"metric_type": store.similarity_metric, "index_type": "FLAT"} | store.index_config
    facts = _facts(store.client, store.collection_name, fields, planned, numbers=False)

    watch = partial(_watch, store, "_milvusclient", store.embedding_field)
    search, asearch = watched_searches(index, watch)
    score = _SCORES.get(facts.metric or "")
    facts = replace(facts, search=search, asearch=asearch, score=score)
    exhaustive, aexhaustive = watched_searches(index, partial(watch, strong=True))
    searches = {"exhaustive": exhaustive, "aexhaustive": aexhaustive}
    return _scanning(facts, store.search_config, searches)


def _watch(
    store: Any, client_name: str, field: str, vectors: list[Any], *, strong: bool = False
) -> Any:
    """Return a store that answers as one of either framework's, and notes vectors.

    Args:
        store: The store.
        client_name: Name of its attribute for the client.
        field: Name of the field with the vectors.
        vectors: Receives them.
        strong: Whether a search sees everything that was written before it.
    """
    client = getattr(store, client_name)
    aclient: Any = getattr(store, f"_async{client_name}", None)

    def complete(arguments: dict[str, Any]) -> dict[str, Any]:
        outputs = [*arguments["output_fields"], field]
        return arguments | {"output_fields": outputs} | (_STRONG if strong else {})

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


# Milvus' own numbers: the squared distance, the cosine or the inner product.
_SCORES: dict[str, Callable[[float], float]] = {
    "l2": lambda distance: distance * distance,
    "cosine": lambda chord: 1 - chord * chord / 2,
    "ip": lambda product: product,
}

LANGCHAIN = StoreKind(
    "Milvus",
    ("langchain_milvus.vectorstores.milvus.Milvus",),
    "langchain-milvus",
    _facts_for_langchain,
    text_or_number,
    vectors_come_along=True,
    proofs="flat",
)
LLAMA_INDEX = StoreKind(
    "Milvus",
    ("llama_index.vector_stores.milvus.base.MilvusVectorStore",),
    "llama-index-vector-stores-milvus",
    _facts_for_llama_index,
    vectors_come_along=True,
    proofs="flat",
)
