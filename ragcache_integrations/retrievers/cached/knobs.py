"""The knobs of the approximate-cache retrievers, the same in every framework."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from functools import partial
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from ragcache_integrations.core.checks import check_choice, check_int, check_share, explain_error
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Metric, VectorSource
from ragcache_integrations.query_cache.redis import RedisServer, as_server
from ragcache_integrations.query_cache.types import Eviction
from ragcache_integrations.query_cache.validation import check_below_one, check_tolerance

__all__ = [
    "CacheKnobs",
    "KnobArguments",
    "knobs_of_cache",
    "read_knobs",
]

_check_max_rerank_factor = partial(check_int, "max_rerank_factor", low=1)
_check_start = partial(check_tolerance, name="start_tolerance")
_check_violation = partial(check_below_one, "max_violation")

# They are part of a question, or of what is done with its answer: the cache is the same.
_OF_A_QUESTION = {"k", "namespace", "filter_key", "annotate", "pickle_cache"}


def _whole(name: str, low: int) -> BeforeValidator:
    return BeforeValidator(partial(check_int, name, low=low))


def _or_none(check: Callable[..., object]) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value is None else check(value))


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
    if value is None or value == "exact":
        return value
    return check_share("guarantee", value, also="'exact'")


class CacheKnobs(BaseModel):
    """What can be set on an approximate-cache retriever.

    Attributes:
        k: How many documents to return. ``None`` keeps the framework's behaviour: its default
            number for a vector store, all documents of a wrapped retriever.
        tolerance: The largest distance between the embeddings of a question and of an earlier one
            at which the earlier one's documents answer it. 0 is exact match, of the embedding and
            of the text. A true distance: L2,
            or for unit vectors the chord ``sqrt(2 - 2 cos)``. Larger values hit more often and
            go wrong more often. ``None`` is 0.3 for documents that are re-ranked, and 0.05 for
            others, also with ``rerank_factor=1``, which leaves nothing to choose from. ``auto``
            learns it: see ``target_recall``.
        capacity: The most questions remembered, for ``cache_index="flat"``.
        eviction: Which question is forgotten for a new one: ``lru`` or ``fifo``.
        metric: How documents are ranked: ``l2``, ``cosine`` or ``ip``. ``None`` takes the store's
            metric if it is known, ``l2`` otherwise.
        rerank_factor: How many times k candidates are fetched on a miss, to be re-ranked for the
            questions that they answer later. ``None`` is 4 where their vectors are known, see
            ``vectors``, and 1 where they are not.
        vectors: Where the vectors of cached documents come from, by which they are re-ranked.
            ``None`` is the store, where it can give them. ``embed`` embeds the documents' texts
            with the questions' model, once each, after they were retrieved. A function from a list
            of ids to an array of shape (ids, dim) reads them elsewhere.
        max_rerank_factor: How many times k, where a question misses close to an earlier one:
            for ``guarantee``, of which more can be proven then.
        cache_index: How earlier questions are searched: ``flat`` looks at all of them, ``lsh`` at
            one bucket of a hash table, in a time that does not grow with their number.
        num_hyperplanes: For ``lsh``: L hyperplanes make ``2**L`` buckets.
        bucket_capacity: For ``lsh``: the most questions remembered in a bucket.
        multi_probe: For ``lsh``: how many neighbouring buckets are searched, too.
        guarantee: Answer from the cache only what is proven: ``exact`` for surely the store's own
            documents, up to ties; a number of at most 1 for surely no less recall. Needs a store
            that gives its vectors and searches all of them.
        exact_search: Whether the store searches all of its documents, which proofs rest on.
            ``None`` finds out: flat FAISS indexes and the frameworks' own stores in memory do, and
            some databases can be made to.
        sole_writer: Nobody writes to the store but the object that is wrapped. A ``guarantee`` over
            a store that others can write to needs this, or ``version``.
        version: A function that returns another value once the store has changed, such as one that
            reads a counter which a trigger increments; called for every question. Answers found
            under another version are forgotten.
        ttl: Seconds after which an answer is forgotten; ``None`` for never.
        target_recall: For ``tolerance="auto"``: an answer from the cache with less recall is a
            violation.
        max_violation: For ``tolerance="auto"``: the largest share of violations. Some answers are
            checked afterwards by a search of the store, off the request's path.
        start_tolerance: For ``tolerance="auto"``: a tolerance to believe in until it is disproved.
        follow_changes: Whether answers follow what is added to, deleted from or updated in the
            store through the very object that is wrapped. Its class becomes one derived from it.
            Where they do not, a ``guarantee`` needs ``version``.
        annotate: Whether documents come back with ``metadata["query_cache"]``, a dict of ``hit``,
            ``distance``, ``recall_bound`` and ``age``.
        tag: Names the embedding model and the store, so that ``load`` refuses what was saved
            for others. ``None`` derives it from their classes and the model's name.
        embedding_memo: The most texts whose embeddings are kept, so that a text that a namespace
            repeats is not embedded again; 0 for none.
        namespace: Part of the cache key: answers are never shared between namespaces.
        filter_key: What a filter means that is no plain data, such as a function: answers found
            under it are shared by questions of one ``filter_key``. Without it they are never
            shared, and each such question searches the store. Also part of every cache key.
        normalize_text: Whether questions are embedded and compared without differences of case,
            white space and Unicode's spellings (NFKC).
        pickle_cache: Whether a pickle of the retriever holds the cached answers, as ``save``
            writes them. A pickle always holds the settings.
        seed: Decides the hyperplanes and which answers are checked.
        cache: A Redis server, by its URL or as a ``RedisServer``, that remembers for all processes
            that use it; ``None`` for this one's memory. Needs ``tag``, and a store that gives
            documents by id. It always has ``lsh`` buckets, regardless of ``cache_index``, and no
            ``tolerance="auto"``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    k: Annotated[int | None, _or_none(partial(check_int, "k", low=1))] = None
    tolerance: Annotated[float | Literal["auto"] | None, _or_none(check_tolerance)] = None
    capacity: Annotated[int, _whole("capacity", 1)] = 1000
    eviction: Eviction = "lru"
    metric: Metric | None = None
    rerank_factor: Annotated[int | None, _or_none(partial(check_int, "rerank_factor", low=1))] = (
        None
    )
    vectors: Annotated[Any, BeforeValidator(_check_vectors)] = None
    max_rerank_factor: Annotated[int | None, _or_none(_check_max_rerank_factor)] = None
    cache_index: Literal["flat", "lsh"] = "flat"
    num_hyperplanes: Annotated[int, _whole("num_hyperplanes", 1)] = 8
    bucket_capacity: Annotated[int, _whole("bucket_capacity", 1)] = 20
    multi_probe: Annotated[int, _whole("multi_probe", 0)] = 0
    guarantee: Annotated[Literal["exact"] | float | None, BeforeValidator(_check_guarantee)] = None
    exact_search: bool | None = None
    sole_writer: bool = False
    version: Annotated[Any, BeforeValidator(_check_version)] = None
    ttl: float | None = None
    target_recall: Annotated[float, BeforeValidator(partial(check_share, "target_recall"))] = 0.95
    max_violation: Annotated[float, BeforeValidator(_check_violation)] = 0.01
    start_tolerance: Annotated[float | None, _or_none(_check_start)] = None
    follow_changes: bool = True
    annotate: bool = False
    tag: str | None = None
    embedding_memo: Annotated[int, _whole("embedding_memo", 0)] = 1024
    namespace: str = ""
    filter_key: str | None = None
    normalize_text: bool = False
    pickle_cache: bool = False
    seed: Annotated[int, _whole("seed", 0)] = 0
    cache: Annotated[RedisServer | None, _or_none(as_server)] = None


class KnobArguments(TypedDict, total=False):
    """The fields of :class:`CacheKnobs` as keyword arguments."""

    k: int | None
    tolerance: float | Literal["auto"] | None
    capacity: int
    eviction: Eviction
    metric: Metric | None
    rerank_factor: int | None
    vectors: Literal["embed"] | VectorSource | None
    max_rerank_factor: int | None
    cache_index: Literal["flat", "lsh"]
    num_hyperplanes: int
    bucket_capacity: int
    multi_probe: int
    guarantee: Literal["exact"] | float | None
    exact_search: bool | None
    sole_writer: bool
    version: Callable[[], Hashable] | None
    ttl: float | None
    target_recall: float
    max_violation: float
    start_tolerance: float | None
    follow_changes: bool
    annotate: bool
    tag: str | None
    embedding_memo: int
    namespace: str
    filter_key: str | None
    normalize_text: bool
    pickle_cache: bool
    seed: int
    cache: RedisServer | str | None


def knobs_of_cache(knobs: CacheKnobs) -> CacheKnobs:
    """Return the knobs that the cache depends on; the others are as by default."""
    names = CacheKnobs.model_fields.keys() - _OF_A_QUESTION
    return CacheKnobs(**{name: getattr(knobs, name) for name in names})


def read_knobs(arguments: KnobArguments) -> CacheKnobs:
    """Return the knobs that keyword arguments set.

    Raises:
        ConfigurationError: A knob is unknown or out of its range.
    """
    try:
        return CacheKnobs(**arguments)
    except ValidationError as error:
        raise explain_error(error, CacheKnobs.model_fields) from error
