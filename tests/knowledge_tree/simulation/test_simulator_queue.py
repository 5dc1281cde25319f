"""The simulated queue: times worked out by hand, and what reordering does to them."""

from __future__ import annotations

import statistics

import pytest
from parts.traffic.traces import document_stream, sampled_lengths

from ragcache_workbench.simulation.simulator import SimulationResult, simulate
from ragcache_workbench.simulation.traces import Trace, TraceRequest

SIZE = 4


def ask(name: str, arrival: float) -> TraceRequest:
    return TraceRequest(((name, 8),), 4, arrival=arrival)


def serve(*requests: TraceRequest, **options: object) -> SimulationResult:
    settings = {
        "gpu_blocks": 4,
        "block_size": SIZE,
        "output_tokens": 3,
        "queue": True,
        "prefill_seconds": lambda _, new: new / 4,
        "decode_seconds": 1.0,
    } | options
    return simulate(Trace(requests), **settings)  # type: ignore[arg-type]


def test_a_request_waits_for_the_one_before_it() -> None:
    # A prefill takes 3 s, an answer 2 s more; a hit spares 2 s.
    result = serve(ask("a", 1.0), ask("b", 2.0), ask("b", 20.0))

    assert result.ttft == (3.0, 7.0, 1.0)
    assert result.cached_tokens == (0, 0, 8)


def test_what_is_cached_overtakes() -> None:
    requests = [ask("a", 0.0), ask("b", 1.0), ask("a", 2.0)]
    in_order = serve(*requests)
    reordered = serve(*requests, reorder_window=1)

    assert in_order.ttft == (3.0, 7.0, 11.0)
    assert in_order.stats.reorderings == 0
    assert reordered.ttft == (3.0, 10.0, 4.0)
    assert reordered.cached_tokens == (0, 0, 8)
    assert reordered.stats.reorderings == reordered.stats.longest_overtaking == 1


def test_nobody_is_overtaken_more_often_than_the_window_allows() -> None:
    requests = [ask("a", 0.0), ask("b", 1.0), *(ask("a", 2.0) for _ in range(10))]
    result = serve(*requests, reorder_window=3)

    assert result.stats.longest_overtaking == 3
    served_before_b = sum(
        request.arrival + ttft < 1.0 + result.ttft[1]
        for request, ttft in zip(requests, result.ttft, strict=True)
    )
    assert served_before_b == 1 + 3


def test_who_waits_for_the_same_document_is_looked_at_again() -> None:
    # Nobody's document is cached when b and c queue up; b is computed, then b overtakes c.
    requests = [ask("a", 0.0), ask("b", 1.0), ask("c", 1.0), ask("b", 1.0)]
    result = serve(*requests, reorder_window=8)

    assert result.cached_tokens == (0, 0, 0, 8)
    assert result.stats.reorderings == 1


@pytest.mark.parametrize("policy", ["pgdsf", "vllm"])
def test_without_waiting_the_queue_changes_nothing(policy: str) -> None:
    lengths = sampled_lengths(map(str, range(50)), low=20, high=400, seed=0)
    trace = document_stream(lengths, top_k=2, requests=300, exponent=1.0, seed=0, rate=1e-6)
    plain, queued = (
        simulate(trace, gpu_blocks=120, policy=policy, queue=queue) for queue in (False, True)
    )

    assert plain.ttft == ()
    assert plain.cached_tokens == queued.cached_tokens
    assert plain.stats == queued.stats
    assert sum(queued.ttft) == pytest.approx(queued.prefill_seconds)


def test_reordering_pays_at_saturation() -> None:
    lengths = sampled_lengths(map(str, range(200)), low=20, high=400, seed=0)
    trace = document_stream(lengths, top_k=2, requests=600, exponent=1.0, seed=0, rate=1e6)
    in_order, reordered = (
        simulate(trace, gpu_blocks=200, queue=True, reorder_window=window) for window in (None, 32)
    )

    assert reordered.stats.longest_overtaking == 32
    assert reordered.stats.token_hit_rate > in_order.stats.token_hit_rate
    assert statistics.fmean(reordered.ttft) < statistics.fmean(in_order.ttft)
