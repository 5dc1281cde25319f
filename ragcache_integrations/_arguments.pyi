# Knobs as keyword arguments: for type checkers alone, written by tools/knobs.py.
import collections.abc
import typing

import ragcache_integrations.adaptive.profile
import ragcache_integrations.adaptive.resources
import ragcache_integrations.adaptive.types
import ragcache_integrations.prompts.order.settings
import ragcache_integrations.query_cache.redis.server
import ragcache_integrations.query_cache.types
import ragcache_integrations.vector_search.searches

class CacheArguments(typing.TypedDict, total=False):
    start_tolerance: float | None
    ttl: float | None
    guard: bool
    namespace: str
    ignores: collections.abc.Collection[str]
    seed: int
    cache: ragcache_integrations.query_cache.redis.server.RedisServer | str | None
    k: int | None
    tolerance: float | typing.Literal["auto"] | None
    capacity: int
    eviction: typing.Literal["lru", "fifo"]
    metric: typing.Literal["l2", "cosine", "ip"] | None
    rerank_factor: int | None
    vectors: typing.Literal["embed"] | ragcache_integrations.query_cache.types.VectorSource | None
    max_rerank_factor: int | None
    cache_index: typing.Literal["flat", "lsh"]
    num_hyperplanes: int
    bucket_capacity: int
    multi_probe: int
    guarantee: typing.Literal["exact"] | float | None
    exact_search: bool | None
    sole_writer: bool
    version: collections.abc.Callable[[], collections.abc.Hashable] | None
    target_recall: float
    max_violation: float
    follow_changes: bool
    annotate: bool
    tag: str | None
    embedding_memo: int
    filter_key: str | None
    normalize_text: bool
    pickle_cache: bool

class AnswerArguments(typing.TypedDict, total=False):
    start_tolerance: float | None
    ttl: float | None
    guard: bool
    namespace: str
    ignores: collections.abc.Collection[str]
    seed: int
    cache: ragcache_integrations.query_cache.redis.server.RedisServer | str | None
    tolerance: float | typing.Literal["auto"]
    error: float
    confidence: float
    largest_tolerance: float
    check_rate: float
    capacity: int
    tag: str

class StagedArguments(typing.TypedDict, total=False):
    k: int | None
    plan: ragcache_integrations.vector_search.searches.StagePlan | None
    filter: (
        collections.abc.Mapping[str, typing.Any]
        | collections.abc.Callable[[collections.abc.Mapping[str, typing.Any]], bool]
        | None
    )
    embedding_memo: int

class SpeculationArguments(typing.TypedDict, total=False):
    speculate: bool
    max_prefill_bs: int | None
    stage_interval: float | None

class MapReduceArguments(typing.TypedDict, total=False):
    max_tokens: int | None
    context_window: int | None
    max_concurrency: int
    ranking: typing.Literal["auto", "logprobs", "self_rated"]
    num_chunks: int | None
    intermediate_length: int

class AdaptiveArguments(typing.TypedDict, total=False):
    mode: typing.Literal["adaptive", "gradual", "largest", "median", "fixed"]
    config: ragcache_integrations.adaptive.types.SynthesisConfig | None
    method: typing.Literal["stuff", "map_reduce", "map_rerank"] | None
    num_chunks: int | None
    intermediate_length: int | None
    max_chunks: int
    min_confidence: float
    profile_timeout: float
    latency_budget: float | None
    golden_every: int | None
    golden_token_budget: int
    max_tokens: int | None
    context_window: int | None
    max_concurrency: int
    ranking: typing.Literal["auto", "logprobs", "self_rated"]
    profiler: typing.Literal["llm", "heuristic"] | ragcache_integrations.adaptive.profile.Profiler
    corpus: str
    chunk_size: int | None
    profile_tolerance: float
    load: str | ragcache_integrations.adaptive.resources.LoadSource | None

class OrderArguments(typing.TypedDict, total=False):
    max_displacement: int | None
    pin_top: int
    uncached: typing.Literal["auto", "relevance", "popularity"]
    cache_tokens: int | None
    engine: ragcache_integrations.prompts.order.settings.TreeSource | None
    refresh_seconds: float
    min_saved_share: float

class OrderKnobArguments(typing.TypedDict, total=False):
    max_displacement: int | None
    pin_top: int
    uncached: typing.Literal["auto", "relevance", "popularity"]
    cache_tokens: int | None
    engine: ragcache_integrations.prompts.order.settings.TreeSource | None
    refresh_seconds: float
    min_saved_share: float
    namespace: str

class HistoryArguments(typing.TypedDict, total=False):
    policy: typing.Literal["half", "oldest"]
    threshold: float
    summary_tokens: int
    summary_instruction: str
    prefill: bool
    idle_wait: float
    timeout: float | None
    documents_once: bool
