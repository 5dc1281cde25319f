"""What several replicas would find for the traffic, by what a router chooses them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter, methodcaller

from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from ragcache_workbench.reports import percent
from ragcache_workbench.simulation import (
    ROUTINGS,
    Characterisation,
    ReplicasResult,
    Workload,
    simulate_replicas,
)

__all__ = ["MEASURES", "Replicas", "compare_routings", "duration"]

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
