"""The knobs of the approximate-cache retrievers, the same in every framework."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainValidator

from ragcache_integrations.core import knobs as core
from ragcache_integrations.core.checks import check_choice, check_share, or_none
from ragcache_integrations.core.knobs import (
    Accepts,
    Count,
    Flag,
    Positive,
    PositiveOrNone,
    SecondsOrNone,
    Share,
    checked,
    unless_none,
)
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Metric, VectorSource
from ragcache_integrations.query_cache.redis import RedisServer, as_server
from ragcache_integrations.query_cache.types import Eviction
from ragcache_integrations.query_cache.validation import check_below_one, check_tolerance
from ragcache_integrations.retrievers.keys import check_ignores

__all__ = ["CacheKnobs", "SharedKnobs", "check_distance", "knobs_of_cache", "read_knobs"]

Vectors = Literal["embed"] | VectorSource

# They are part of a question, or of what is done with its answer: the cache is the same.
_OF_A_QUESTION = {"k", "namespace", "filter_key", "ignores", "annotate", "pickle_cache"}


def _check_vectors(value: object) -> Any:
    if value is None or callable(value):
        return value
    return check_choice("vectors", value, ("embed",), also="a function of document ids or None")


def _check_version(value: object) -> Any:
    if value is None or (callable(value) and not inspect.iscoroutinefunction(value)):
        return value
    msg = f"version must be a function without arguments, no coroutine, or None, got {value!r}"
    raise ConfigurationError(msg)


def _check_guarantee(value: object) -> Any:
    return value if value == "exact" else check_share("guarantee", value, also="'exact'")


def check_distance(name: str, value: object) -> float | str:
    """Return a tolerance, of this name."""
    return check_tolerance(value, name)


class SharedKnobs(BaseModel):
    """The knobs that caches of documents and caches of answers have in common.

    Attributes:
        start_tolerance: With ``tolerance="auto"``: the tolerance to begin with.
        ttl: Seconds after which an answer is forgotten; ``None`` for never.
        namespace: Answers are never shared between namespaces, such as one for each tenant.
    """

    start_tolerance: Annotated[float | None, checked(or_none(check_distance))] = None
    ttl: SecondsOrNone = None
    guard: Flag = True
    namespace: str = ""
    ignores: Annotated[frozenset[str], BeforeValidator(check_ignores), Accepts(Collection[str])] = (
        frozenset()
    )
    seed: Count = 0
    cache: Annotated[
        RedisServer | None, unless_none(as_server), Accepts(RedisServer | str | None)
    ] = None


class CacheKnobs(SharedKnobs):
    """The settings of an :class:`ApproximateCacheRetriever`.

    Attributes:
        k: Number of documents to return. ``None`` keeps the framework's behaviour: its default
            number for a vector store, all documents of a wrapped retriever.
        tolerance: The largest distance between the embeddings of a question and of an earlier one
            at which the cache answers with the earlier one's documents. It is the L2 distance,
            which is ``sqrt(2 - 2 cos)`` for vectors of unit length. 0 matches only identical
            questions. Larger values hit more often, and are wrong more often. ``None`` means 0.3
            if documents are re-ranked, and 0.05 if they are not or if ``rerank_factor=1``.
            ``auto`` learns the tolerance, see ``target_recall``.
        capacity: With ``cache_index="flat"``: the most questions to remember.
        eviction: Which question is forgotten when the cache is full: ``lru``, the least recently
            used, or ``fifo``, the oldest.
        metric: How documents are ranked: ``l2``, ``cosine`` or ``ip``. ``None`` takes the store's
            metric if it is known, ``l2`` otherwise.
        rerank_factor: On a miss, this many times ``k`` documents are fetched and cached. Hits
            return the ``k`` of them that are closest to the new question. ``None`` means 4 if the
            documents' vectors are known (see ``vectors``), and 1 if they are not.
        vectors: Where the vectors for re-ranking cached documents come from. ``None`` reads them
            from the store, if it can return them. ``embed`` embeds the text of each document once,
            after it was retrieved, with the model that embeds the questions. A function from a
            list of ids to an array of shape (ids, dim) reads them from elsewhere.
        max_rerank_factor: With ``guarantee``: replaces ``rerank_factor`` if a question misses close
            to an earlier one, because more documents prove more hits.
        cache_index: How earlier questions are searched: ``flat`` compares with all of them,
            ``lsh`` with those in one bucket of a hash table, so that the time does not grow with
            their number.
        num_hyperplanes: With ``lsh``: L hyperplanes make ``2**L`` buckets.
        bucket_capacity: With ``lsh``: the most questions to remember in a bucket.
        multi_probe: With ``lsh``: number of neighbouring buckets that are searched, too.
        guarantee: Use a cached answer only if it is proven: ``exact``, that the store would return
            the same documents, except for ties; a number of at most 1, that the recall is at least
            this. Needs a store that returns its vectors and searches all of them. With ``exact``,
            ``guard`` has nothing to add and is left out.
        exact_search: Whether the store searches all of its documents, as a ``guarantee`` requires.
            ``None`` finds out: flat FAISS indexes and the frameworks' in-memory stores do, and
            some databases can be configured to.
        sole_writer: Whether nobody but the wrapped object writes to the store. A ``guarantee`` over
            a store that others can write to needs this, or ``version``.
        version: A function that returns another value after the store has changed, such as one that
            reads a counter which a trigger increments. It is called for every question. Answers
            that were found under another version are forgotten.
        target_recall: With ``tolerance="auto"``: a cached answer with less recall is a violation.
        max_violation: With ``tolerance="auto"``: the largest share of violations. Some cached
            answers are checked in the background by searching the store.
        follow_changes: Whether the cache follows documents that are added, deleted or updated
            through the wrapped object.
            Without this, a ``guarantee`` needs ``version``.
        annotate: Whether returned documents have ``metadata["query_cache"]``, a dict of ``hit``,
            ``distance``, ``recall_bound`` and ``age``.
        tag: Name of the embedding model and the store. ``load`` refuses a file with another tag.
            ``None`` derives it from their classes and the model's name.
        embedding_memo: The most texts whose embeddings are kept, so that a text that occurs again
            in a namespace is not embedded again; 0 for none.
        filter_key: Identifies a filter that is not plain data, such as a function. Answers that
            were found with this filter are shared by questions with the same ``filter_key``.
            Without it, they are never shared, and each such question searches the store. It is
            part of the cache key of all questions.
        ignores: For a wrapped retriever, or a store with code of your own: names of what surrounds
            a call although no documents depend on it, such as a request's id in a context variable,
            or ``thread_id``.
        guard: Whether a question gets an earlier one's documents only if it differs from it in
            nothing that matters: numbers, dates, negations, opposites, comparisons, units, names,
            what is asked for, the order of words, or one word that is not known to mean the same;
            see :func:`~ragcache_integrations.retrievers.keys.question_difference`.
        normalize_text: Whether to ignore, when questions are embedded and compared, differences
            that cannot carry meaning: white space, canonical Unicode spellings (NFC), the capital
            of an opening word such as *What*, one question mark or full stop at the end.
        pickle_cache: Whether a pickle of the retriever includes the cached answers, as ``save``
            writes them. It always includes the settings.
        seed: Seed for drawing the hyperplanes and the answers to check.
        cache: A Redis server, as a URL or a ``RedisServer``, whose cache all processes share;
            ``None`` for a cache in this process's memory. Needs ``tag``, and a store that returns
            documents by id. A shared cache always has ``lsh`` buckets, regardless of
            ``cache_index``, and no ``tolerance="auto"``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    k: PositiveOrNone = None
    tolerance: Annotated[float | Literal["auto"] | None, checked(or_none(check_distance))] = None
    capacity: Positive = 1000
    eviction: Eviction = "lru"
    metric: Metric | None = None
    rerank_factor: PositiveOrNone = None
    vectors: Annotated[Vectors | None, PlainValidator(_check_vectors)] = None
    max_rerank_factor: PositiveOrNone = None
    cache_index: Literal["flat", "lsh"] = "flat"
    num_hyperplanes: Positive = 8
    bucket_capacity: Positive = 20
    multi_probe: Count = 0
    guarantee: Annotated[Literal["exact"] | float | None, unless_none(_check_guarantee)] = None
    exact_search: bool | None = None
    sole_writer: bool = False
    version: Annotated[Callable[[], Hashable] | None, PlainValidator(_check_version)] = None
    target_recall: Share = 0.95
    max_violation: Annotated[float, checked(check_below_one)] = 0.01
    follow_changes: bool = True
    annotate: bool = False
    tag: str | None = None
    embedding_memo: Count = 1024
    filter_key: str | None = None
    normalize_text: bool = False
    pickle_cache: bool = False


def knobs_of_cache(knobs: CacheKnobs) -> CacheKnobs:
    """Return the knobs that the cache depends on; the others are as by default."""
    names = CacheKnobs.model_fields.keys() - _OF_A_QUESTION
    return CacheKnobs(**{name: getattr(knobs, name) for name in names})


def read_knobs(arguments: Mapping[str, Any]) -> CacheKnobs:
    """Return the knobs that keyword arguments set.

    Raises:
        ConfigurationError: A knob is unknown or out of its range.
    """
    return core.read_knobs(CacheKnobs, arguments)
