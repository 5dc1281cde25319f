"""What hosted models and several replicas would make of the traffic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter, methodcaller

from ragcache_integrations.core.checks import check_number
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from ragcache_integrations.prompts.provider_caches import DAY, PROVIDERS, ProviderCache
from ragcache_workbench.reports import percent
from ragcache_workbench.simulation import (
    ROUTINGS,
    Characterisation,
    ReplicasResult,
    Trace,
    TraceRequest,
    Workload,
    simulate_replicas,
)

__all__ = [
    "MEASURES",
    "REQUESTS_PER_DAY",
    "ProviderShare",
    "Replicas",
    "compare_routings",
    "duration",
    "provider_shares",
]

REQUESTS_PER_DAY = 1000.0
"""Where nobody says how many there are; the linter's default, too."""


@dataclass(frozen=True, slots=True)
class ProviderShare:
    """What a provider's cache does for some traffic.

    Attributes:
        cache: The cache.
        cached: Share of the prompts' tokens that are read from it.
        price: What the prompts cost, as a share of what they would cost if nothing were cached.
    """

    cache: ProviderCache
    cached: float
    price: float


def provider_shares(trace: Trace, requests_per_day: float) -> list[ProviderShare]:
    """Compute what each provider's cache holds of a trace, and what the prompts cost.

    Requests are taken to arrive at even intervals. A prompt is found as far as its documents are
    those of a recent one, in the same order; the last document and the question count if all before
    them is the same.

    Args:
        trace: The traffic.
        requests_per_day: How many requests like these a day has.

    Raises:
        ConfigurationError: The number is not above 0.
    """
    per_day = check_number("requests_per_day", requests_per_day, 0, above=True)
    return [_share(trace, cache, per_day) for cache in PROVIDERS.values()]


def _share(trace: Trace, cache: ProviderCache, per_day: float) -> ProviderShare:
    window = cache.lifetime * per_day / DAY
    latest: dict[tuple[int, object], tuple[int, int]] = {}
    total = cached = 0
    paid = 0.0
    for number, request in enumerate(trace.requests):
        tokens = trace.prompt_tokens(request)
        shared = trace.system_tokens + _shared_tokens(request, number, window, latest)
        # The request before this one is recent, or none is.
        held = min(tokens, cache.cached(shared)) if min(number, window) >= 1 else 0
        total, cached = total + tokens, cached + held
        paid += cache.billed(tokens, held)
    return ProviderShare(cache, cached / total, paid / total)


def _shared_tokens(
    request: TraceRequest,
    number: int,
    window: float,
    latest: dict[tuple[int, object], tuple[int, int]],
) -> int:
    """Tokens after the system's text that a prompt has in common with a recent one, at most.

    Args:
        request: The request.
        number: Its place in the trace.
        window: How many of the latest requests are recent.
        latest: Of each beginning of a prompt, named by the number of the beginning without its last
            part and by that part: its own number, and the last request that had it. This request is
            added.
    """
    parts: list[tuple[object, int]] = [(document, document[1]) for document in request.documents]
    if request.question is not None:
        parts.append((request.question, request.question_tokens))
    shared = parent = 0
    is_recent = True
    for part, tokens in ((request.namespace, 0), *parts):
        known = latest.get((parent, part))
        is_recent = is_recent and known is not None and number - known[1] <= window
        shared += tokens if is_recent else 0
        name = len(latest) + 1 if known is None else known[0]
        latest[parent, part] = name, number
        parent = name
    return shared


BLOCK_SIZE = 32
LOAD = 0.8
"""Share of the requests a second that the replicas could serve without any cache."""


def duration(seconds: float) -> str:
    """A time as text with three digits, in seconds or milliseconds."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


MEASURES: dict[str, tuple[str, Callable[[ReplicasResult], float], Callable[[float], str]]] = {
    "token_hit_rate": ("tokens", attrgetter("token_hit_rate"), percent),
    "saved_share": ("saved", attrgetter("saved_share"), percent),
    "ttft_mean": ("mean TTFT", attrgetter("mean_ttft"), duration),
    "ttft_median": ("median", methodcaller("ttft_quantile", 0.5), duration),
    "ttft_p95": ("95 %", methodcaller("ttft_quantile", 0.95), duration),
    "busiest_share": ("busiest replica", attrgetter("busiest_share"), percent),
}
"""The columns of a result: heading, value and format. They are tokens found,
prefill time saved, seconds to the first token, and the largest share of the requests."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """Several replicas under the same requests, with each way of routing.

    Attributes:
        replicas: How many there are.
        tokens: Memory of each replica in tokens.
        memory: Where that comes from, in words.
        rate: Requests a second for all together.
        results: What was found, by the name of the routing.
    """

    replicas: int
    tokens: int
    memory: str
    rate: float
    results: dict[str, ReplicasResult]

    def as_dict(self) -> dict[str, object]:
        """All of it as plain data for JSON; times are in seconds."""
        return {
            "replicas": self.replicas,
            "tokens_each": self.tokens,
            "rate": self.rate,
            "routings": {
                name: {measure: value(result) for measure, (_, value, _) in MEASURES.items()}
                for name, result in self.results.items()
            },
        }

    def rows(self) -> list[tuple[str, ...]]:
        """A row of text for each way of routing, below the heads of :data:`MEASURES`."""
        return [
            (
                name.replace("_", " "),
                *(write(value(result)) for _, value, write in MEASURES.values()),
            )
            for name, result in self.results.items()
        ]

    def note(self) -> str:
        """How the figures came about, in a sentence."""
        return (
            f"{self.replicas} replicas are simulated with {self.tokens:,} tokens of memory each: "
            f"{self.memory}. Requests arrive at random, {self.rate:.3g} a second, and each replica "
            "computes one at a time: compare the ways of routing, and do not expect these seconds."
        )


def compare_routings(
    workload: Workload,
    result: Characterisation,
    costs: PrefillCostModel,
    *,
    replicas: int,
    rate: float | None = None,
) -> Replicas:
    """Simulate replicas with each way of routing.

    Args:
        workload: The traffic. By session it is only routed if it has sessions.
        result: What one cache finds for it.
        costs: Prefill times.
        replicas: How many replicas, from 1 to 1,000. The recommended memory is divided among them;
            each holds the longest request at least.
        rate: Requests a second for all together; ``None`` for 80 % of what the replicas could serve
            without any cache.

    Raises:
        ConfigurationError: A number is out of its range.
    """
    trace = workload.trace
    if rate is None:
        seconds = [costs(0, trace.prompt_tokens(request)) for request in trace.requests]
        # A profile of nothing but zeros is allowed, and bears any rate.
        rate = LOAD * replicas * len(seconds) / (math.fsum(seconds) or 1.0)
    size = result.recommended or result.unlimited
    share = size.tokens // replicas
    if share < result.longest_request_tokens:
        memory = "as much as the longest request needs"
    elif result.recommended is None:
        memory = "what holds everything, divided among them"
    else:
        memory = "the recommended size, divided among them"
    blocks = -(-max(share, result.longest_request_tokens) // BLOCK_SIZE)
    has_sessions = any(request.session for request in trace.requests)
    return Replicas(
        replicas,
        blocks * BLOCK_SIZE,
        memory,
        rate,
        {
            routing: simulate_replicas(
                trace,
                replicas=replicas,
                gpu_blocks=blocks,
                block_size=BLOCK_SIZE,
                routing=routing,
                rate=rate,
                prefill_seconds=costs,
            )
            for routing in ROUTINGS
            if routing != "session" or has_sessions
        },
    )
