"""The knobs of the approximate-cache retrievers, the same in every framework."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from reprlib import repr as short_repr
from typing import Annotated, TypedDict

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Metric
from ragcache_integrations.query_cache.eviction import Eviction
from ragcache_integrations.query_cache.validation import check_tolerance, check_whole

__all__ = ["CacheKnobs", "KnobArguments", "explain", "read_knobs"]


def _whole(name: str, low: int) -> BeforeValidator:
    return BeforeValidator(partial(check_whole, name, low=low))


def _check_k(value: object) -> int | None:
    return None if value is None else check_whole("k", value, 1)


class CacheKnobs(BaseModel):
    """What can be set on an approximate-cache retriever.

    Attributes:
        k: How many documents to return. ``None`` keeps what the framework does by itself: its
            default number for a vector store, all that a wrapped retriever gives.
        tolerance: The largest distance between the embeddings of a question and of an earlier one
            at which the earlier one's documents answer it. 0 is exact match. A true distance: L2,
            or for unit vectors the chord ``sqrt(2 - 2 cos)``. Larger values hit more often and
            go wrong more often.
        capacity: The most questions remembered.
        eviction: Which question is forgotten for a new one: ``lru`` or ``fifo``.
        metric: How documents are ranked: ``l2``, ``cosine`` or ``ip``. ``None`` takes the store's
            own where it tells, ``l2`` otherwise.
        rerank_factor: How many times k candidates are fetched on a miss, to be re-ranked for the
            questions that they answer later. 1 where the store cannot give its vectors (FAISS
            stores can).
        embedding_memo: The most texts whose embeddings are kept, so that a repeated text is not
            embedded again; 0 for none.
        namespace: Part of the cache key: answers are never shared between namespaces.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    k: Annotated[int | None, BeforeValidator(_check_k)] = None
    tolerance: Annotated[float, BeforeValidator(check_tolerance)] = 0.3
    capacity: Annotated[int, _whole("capacity", 1)] = 1000
    eviction: Eviction = "lru"
    metric: Metric | None = None
    rerank_factor: Annotated[int, _whole("rerank_factor", 1)] = 4
    embedding_memo: Annotated[int, _whole("embedding_memo", 0)] = 1024
    namespace: str = ""


class KnobArguments(TypedDict, total=False):
    """The fields of :class:`CacheKnobs` as keyword arguments."""

    k: int | None
    tolerance: float
    capacity: int
    eviction: Eviction
    metric: Metric | None
    rerank_factor: int
    embedding_memo: int
    namespace: str


def read_knobs(arguments: KnobArguments) -> CacheKnobs:
    """Return the knobs that keyword arguments set.

    Raises:
        ConfigurationError: One is unknown or out of its range.
    """
    try:
        return CacheKnobs(**arguments)
    except ValidationError as error:
        raise explain(error, CacheKnobs.model_fields) from error


def explain(error: ValidationError, allowed: Iterable[str]) -> ConfigurationError:
    """Say what was given and what is allowed.

    Args:
        error: What pydantic found.
        allowed: Names of the arguments there are.
    """
    found = []
    for detail in error.errors(include_url=False):
        name = ".".join(str(part) for part in detail["loc"])
        cause = detail.get("ctx", {}).get("error")
        if detail["type"] == "extra_forbidden":
            found.append(f"unknown argument {name!r}: allowed are {', '.join(sorted(allowed))}")
        elif isinstance(cause, ConfigurationError):
            found.append(str(cause))
        else:
            given = short_repr(detail["input"])
            found.append(f"{name}: {detail['msg']}, got {given}" if name else detail["msg"])
    return ConfigurationError("; ".join(found))
