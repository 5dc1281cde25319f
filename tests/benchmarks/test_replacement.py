"""Policies that are compared with: others' by hand, and an optimum that nothing beats."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from parts.replacement.optimum import optimal_tier
from parts.replacement.peers import S3FifoTier, WTinyLfuTier
from parts.traffic.traces import document_stream, sampled_lengths

from ragcache_integrations.knowledge_tree.tier import Tier
from ragcache_workbench.simulation.simulator import SIMULATED_POLICIES, simulate
from ragcache_workbench.simulation.traces import Trace, TraceRequest


def found(documents: str, blocks: int, tier: Tier[int]) -> str:
    """Which requests for one document each, of one block, find it. A request takes a block more."""
    requests = tuple(TraceRequest(((name, 4),), 4) for name in documents)
    result = simulate(
        Trace(requests),
        gpu_blocks=blocks,
        block_size=4,
        output_tokens=1,
        policy="lru",
        gpu_tier=tier,
    )
    return "".join(
        name if cached else "-"
        for name, cached in zip(documents, result.cached_tokens, strict=True)
    )


def optimum(documents: str, blocks: int) -> str:
    trace = Trace(tuple(TraceRequest(((name, 4),), 4) for name in documents))
    return found(documents, blocks, optimal_tier(trace))


def test_the_optimum_keeps_what_is_needed_first() -> None:
    # A block for the question, one for the document that is asked for, and room for one more.
    assert optimum("abcabc", 3) == "---a-c"
    assert optimum("abab", 3) == "--ab"


@pytest.mark.parametrize("seed", range(3))
def test_nothing_finds_more_tokens_than_the_optimum(seed: int) -> None:
    lengths = sampled_lengths(map(str, range(12)), low=3, high=20, seed=seed)
    trace = document_stream(lengths, top_k=2, requests=300, exponent=0.7, seed=seed)

    def hit_rate(policy: str, tier: Tier[int] | None = None) -> float:
        result = simulate(trace, gpu_blocks=60, block_size=4, policy=policy, gpu_tier=tier)
        return result.stats.token_hit_rate

    best = hit_rate("lru", optimal_tier(trace))
    others = [hit_rate(policy) for policy in SIMULATED_POLICIES]
    others += [hit_rate("lru", tier) for tier in (S3FifoTier(60), WTinyLfuTier(60))]
    assert max(others) < best
    assert min(others) > 0.2 * best


@pytest.mark.parametrize("tier", [S3FifoTier, WTinyLfuTier])
def test_what_comes_once_does_not_push_out_what_came_often(
    tier: Callable[[int], Tier[int]],
) -> None:
    once = "".join(map(chr, range(0x4E00, 0x4E00 + 60)))
    assert found("abab" + "abab" + once + "ab", 20, tier(20)).endswith("ab")
    assert found("a" + once + "a", 20, tier(20)).endswith("-")


def test_s3_fifo_lets_what_comes_back_soon_into_the_main_queue() -> None:
    tier = S3FifoTier(10)
    once = "".join(map(chr, range(0x4E00, 0x4E00 + 40)))
    # It went from the small queue, and came again while its ghost was remembered.
    assert found("a" + once[:9] + "a" + once[9:] + "a", 10, tier).endswith("a")
