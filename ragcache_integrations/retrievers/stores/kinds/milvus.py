"""Milvus, of both frameworks.

Whether it searches everything depends on its index; it filters before it searches.
https://milvus.io/docs/index-explained.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.query_cache import Metric
from ragcache_integrations.retrievers.stores.facts import MappedVectors, SearchResults, StoreFacts

from .kind import StoreKind, text_or_number

__all__ = ["LANGCHAIN", "LLAMA_INDEX"]

_METRICS: dict[str, Metric] = {"L2": "l2", "COSINE": "cosine", "IP": "ip"}


def _facts(
    client: Any, collection: str, fields: tuple[str, str], metric_type: str, *, numbers: bool
) -> StoreFacts:
    """Return what is known of a collection.

    Args:
        client: A ``MilvusClient``.
        collection: The collection's name.
        fields: The names of the primary key and of the vector.
        metric_type: By what it will rank where it is still to be created, as Milvus names it.
        numbers: Whether primary keys are numbers.
    """
    primary, field = fields
    if client.has_collection(collection):  # by its index, whatever an object over it says
        for name in client.list_indexes(collection, field):
            metric_type = str(client.describe_index(collection, name)["metric_type"])
    metric = _METRICS.get(metric_type)
    if metric is None:
        return StoreFacts(doubt=f"its Milvus collection ranks by {metric_type!r}", inexact=True)

    def read(ids: Sequence[str]) -> Mapping[str, ArrayLike]:
        keys = [int(name) for name in ids] if numbers else list(ids)
        rows = client.get(collection, ids=keys, output_fields=[primary, field])
        return {str(row[primary]): row[field] for row in rows}

    doubt = "it is not known whether its index in Milvus searches everything"
    return StoreFacts(metric=metric, vectors=MappedVectors(read), doubt=doubt, outside=True)


def _facts_for_langchain(store: Any) -> StoreFacts:
    # There is no public way to its fields.
    field, primary = store._vector_field, store._primary_field  # noqa: SLF001
    parameters = store.index_params or {}
    if not isinstance(field, str) or not isinstance(parameters, dict):
        doubt = "it searches several vector fields, which does not rank by one distance"
        return StoreFacts(doubt=doubt, by_text=True)
    metric_type = str(parameters.get("metric_type", "L2"))
    facts = _facts(
        store.client,
        store.collection_name,
        (primary, field),
        metric_type,
        numbers=bool(store.auto_id),
    )

    def search(embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]) -> SearchResults[Any]:
        if store.col is None:
            return SearchResults([], [])
        outputs = store._get_output_fields()  # noqa: SLF001 - what its own search asks for
        rows = store.client.search(
            store.collection_name,
            data=[embedding.tolist()],
            anns_field=field,
            search_params=store.search_params,
            limit=k,
            filter=arguments.get("expr"),
            output_fields=[*outputs, field],
            timeout=store.timeout or arguments.get("timeout"),
        )[0]
        vectors = [row["entity"][field] for row in rows]
        make = store._parse_document  # noqa: SLF001
        return SearchResults([make(dict(row["entity"])) for row in rows], vectors)

    def id_of(document: Any) -> str | None:
        value = document.metadata.get(primary)
        return None if value is None else str(value)

    # ``param`` is none of the harmless arguments: there may be a radius in it.
    return replace(facts, search=search, id_of=id_of, harmless=frozenset({"expr", "timeout"}))


def _facts_for_llama_index(index: Any) -> StoreFacts:
    store = index.vector_store
    fields = ("id", store.embedding_field)
    metric_type = str(store.similarity_metric)
    facts = _facts(store.client, store.collection_name, fields, metric_type, numbers=False)
    return replace(facts, score=_SCORES.get(facts.metric or ""))


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
    proofs="declared",
)
LLAMA_INDEX = StoreKind(
    "Milvus",
    ("llama_index.vector_stores.milvus.base.MilvusVectorStore",),
    "llama-index-vector-stores-milvus",
    _facts_for_llama_index,
    proofs="declared",
)
