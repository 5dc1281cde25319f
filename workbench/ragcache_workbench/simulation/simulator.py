"""A trace-driven simulator: the knowledge tree over paged memory, without a model.

It runs the engine's own tree, policies and queue, one request at a time, so that cache sizes and
policies can be compared in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.policies import DEFAULT_POLICY
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from ragcache_integrations.knowledge_tree.stats import TreeStats
from ragcache_integrations.knowledge_tree.tier import Tier

from .paged_memory import CachedPrefix
from .server import SIMULATED_POLICIES, STOCK_POLICY, PrefillSeconds, Server, ServerSettings
from .traces import Trace

__all__ = ["SIMULATED_POLICIES", "STOCK_POLICY", "SimulationResult", "simulate"]


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a simulation found.

    Attributes:
        policy: Who ruled over the memory.
        block_size: Tokens per block.
        gpu_blocks: Blocks of the GPU tier; running requests live in them too.
        host_blocks: Blocks of the host tier.
        stats: Hit rates by documents and by tokens, per tier, and what the tree counted.
        cached_tokens: Of each request, in the order of the trace: tokens of the prompt found in
            either tier.
        host_tokens: Those of them that were read back from the host.
        prefill_seconds: All requests' prefill times by T(alpha, beta). Reading back from the
            host counts as nothing.
        uncached_prefill_seconds: What they would be without a cache.
        ttft: Each request's seconds from its arrival to its first token; empty unless a queue
            was simulated.
    """

    policy: str
    block_size: int
    gpu_blocks: int
    host_blocks: int
    stats: TreeStats
    cached_tokens: tuple[int, ...]
    host_tokens: tuple[int, ...]
    prefill_seconds: float
    uncached_prefill_seconds: float
    ttft: tuple[float, ...] = ()

    @property
    def saved_share(self) -> float:
        """Share of the prefill time that the cache saves."""
        if not self.uncached_prefill_seconds:
            return 0.0
        return 1 - self.prefill_seconds / self.uncached_prefill_seconds


def simulate(
    trace: Trace,
    *,
    gpu_blocks: int,
    host_blocks: int = 0,
    block_size: int = 16,
    policy: str = DEFAULT_POLICY,
    prefill_seconds: PrefillSeconds | None = None,
    cache_depth: int | None = None,
    quotas: Mapping[str, float] | None = None,
    output_tokens: int = 8,
    queue: bool = False,
    reorder_window: int | None = None,
    decode_seconds: float = 0.0,
    gpu_tier: Tier[int] | None = None,
    show_progress: bool = False,
) -> SimulationResult:
    """Run a trace over a cache.

    Requests are served one at a time: in the order of the trace, or, with ``queue``, by one server
    with a waiting queue, as they arrive.

    Args:
        trace: The requests.
        gpu_blocks: Blocks of GPU memory for documents and running requests alike; vLLM's
            ``num_gpu_blocks`` is one more.
        host_blocks: Blocks of the host tier.
        block_size: Tokens per block.
        policy: ``lrfu``, ``pgdsf``, ``gdsf``, ``lru`` or ``lfu``; or ``vllm`` for stock vLLM.
        prefill_seconds: T(alpha, beta); :meth:`PrefillCostModel.default` where it is ``None``.
        cache_depth: Only the first documents of a request are kept; ``None`` for all.
        quotas: Part of the memory that belongs to each of some tenants.
        output_tokens: Length of every answer.
        queue: Simulate arrivals and waiting too, and give each request's time to first token.
        reorder_window: With a queue: by how many others a waiting request may be overtaken by one
            of which more is cached (RAGCache §5.2); ``None`` for the order of arrival.
        decode_seconds: With a queue: seconds for each token of an answer after the first.
        gpu_tier: Rules over the GPU's memory in place of the policy, which must be one of a tree:
            for policies that are only compared with.
        show_progress: Show a progress bar.

    Raises:
        ConfigurationError: A number is out of its range, a request does not fit the memory, the
            policy is unknown, or stock vLLM was asked for with what only a tree has.
    """
    if reorder_window is not None and not queue:
        msg = f"reorder_window only acts on a queue: it needs queue=True, got {reorder_window}"
        raise ConfigurationError(msg)
    settings = ServerSettings(
        gpu_blocks=gpu_blocks,
        host_blocks=host_blocks,
        block_size=block_size,
        policy=policy,
        prefill_seconds=prefill_seconds or PrefillCostModel.default(),
        cache_depth=cache_depth,
        quotas=quotas,
        output_tokens=output_tokens,
        reorder_window=reorder_window,
        decode_seconds=decode_seconds,
        gpu_tier=gpu_tier,
    )
    pager = settings.pager(trace)
    lengths = list(map(trace.prompt_tokens, trace.requests))
    with tqdm(total=len(trace.requests), disable=not show_progress, unit=" requests") as bar:
        if queue:
            server = Server(settings, pager)
            for number, request in enumerate(trace.requests):
                server.arrive(number, request)
                bar.update()
            server.advance()
            return result_of(settings, server, lengths)
        memory = settings.memory()
        prefixes = []
        for request in trace.requests:
            paged = pager.page(request)
            memory.enter(paged)
            prefixes.append(memory.serve(paged))
            bar.update()
        return summarise(settings, memory.stats(), prefixes, lengths)


def result_of(settings: ServerSettings, server: Server, lengths: Sequence[int]) -> SimulationResult:
    """Return what a server found, its requests in the order of arrival.

    Args:
        settings: Its settings.
        server: The server, with nothing left to serve.
        lengths: Tokens of the prompt of every request, by its number.
    """
    numbers = sorted(server.prefixes)
    return summarise(
        settings,
        server.stats(),
        [server.prefixes[number] for number in numbers],
        [lengths[number] for number in numbers],
        tuple(server.ttft[number] for number in numbers),
    )


def summarise(
    settings: ServerSettings,
    stats: TreeStats,
    prefixes: Sequence[CachedPrefix],
    lengths: Sequence[int],
    ttft: tuple[float, ...] = (),
) -> SimulationResult:
    """Return the result of a simulation.

    Args:
        settings: Settings of the server.
        stats: What its memory counted.
        prefixes: What was found for each request.
        lengths: Tokens of the prompt of each request.
        ttft: Seconds to the first token of each request; empty without a queue.
    """
    seconds = settings.prefill_seconds
    cached = tuple(prefix.cached_tokens for prefix in prefixes)
    return SimulationResult(
        policy=settings.policy,
        block_size=settings.block_size,
        gpu_blocks=settings.gpu_blocks,
        host_blocks=settings.host_blocks,
        stats=stats,
        cached_tokens=cached,
        host_tokens=tuple(prefix.host_tokens for prefix in prefixes),
        prefill_seconds=math.fsum(
            seconds(alpha, length - alpha) for alpha, length in zip(cached, lengths, strict=True)
        ),
        uncached_prefill_seconds=math.fsum(seconds(0, length) for length in lengths),
        ttft=ttft,
    )
