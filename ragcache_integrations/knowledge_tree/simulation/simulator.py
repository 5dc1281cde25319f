"""A trace-driven simulator: the knowledge tree over paged memory, without a model.

It runs the engine's own tree, policies and queue, one request at a time, so that cache sizes and
policies can be compared in seconds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.policies import DEFAULT_POLICY, POLICIES
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from ragcache_integrations.knowledge_tree.reordering import ReorderingQueue
from ragcache_integrations.knowledge_tree.stats import TreeStats
from ragcache_integrations.knowledge_tree.tier import Tier
from ragcache_integrations.knowledge_tree.tree import KnowledgeTree

from .paged_memory import (
    CachedPrefix,
    PagedMemory,
    PagedRequest,
    Pager,
    StockMemory,
    TreeMemory,
)
from .traces import Trace, TraceRequest

__all__ = ["SIMULATED_POLICIES", "STOCK_POLICY", "SimulationResult", "simulate"]

STOCK_POLICY = "vllm"
"""Stock vLLM: its own block LRU, and no tree."""

SIMULATED_POLICIES = (*POLICIES, STOCK_POLICY)

PrefillSeconds = Callable[[int, int], float]


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
    _check(gpu_blocks, block_size, output_tokens, decode_seconds)
    if reorder_window is not None and not queue:
        msg = f"reorder_window only acts on a queue: it needs queue=True, got {reorder_window}"
        raise ConfigurationError(msg)
    seconds = prefill_seconds or PrefillCostModel.default()
    pager = Pager(trace, block_size, output_tokens)
    largest = max(map(trace.prompt_tokens, trace.requests))
    if pager.blocks(largest) > gpu_blocks:
        msg = (
            f"gpu_blocks must be at least {pager.blocks(largest)} for the longest prompt of "
            f"{largest} tokens and its answer, got {gpu_blocks}"
        )
        raise ConfigurationError(msg)
    if policy == STOCK_POLICY:
        if host_blocks or cache_depth is not None or reorder_window is not None or quotas:
            msg = (
                "stock vLLM has no host_blocks, cache_depth, reorder_window and quotas here, got "
                f"{host_blocks}, {cache_depth}, {reorder_window} and {quotas}"
            )
            raise ConfigurationError(msg)
        memory: PagedMemory = StockMemory(gpu_blocks, block_size)
    elif policy in POLICIES:
        tree: KnowledgeTree[int] = KnowledgeTree(
            block_size=block_size,
            gpu_blocks=gpu_blocks,
            host_blocks=host_blocks,
            policy=policy,
            prefill_seconds=seconds,
            cache_depth=cache_depth,
            quotas=quotas,
        )
        if gpu_tier is not None:
            tree.gpu = gpu_tier
        memory = TreeMemory(gpu_blocks, tree)
    else:
        msg = f"unknown policy {policy!r}: allowed are {', '.join(SIMULATED_POLICIES)}"
        raise ConfigurationError(msg)

    ttft: tuple[float, ...] = ()
    with tqdm(total=len(trace.requests), disable=not show_progress, unit=" requests") as bar:
        if queue:
            server = _Server(memory, pager, seconds, reorder_window)
            prefixes, ttft = server.run(
                trace.requests, (output_tokens - 1) * decode_seconds, bar.update
            )
            stats = server.stats()
        else:
            prefixes = []
            for request in trace.requests:
                paged = pager.page(request)
                memory.enter(paged)
                prefixes.append(memory.serve(paged))
                bar.update()
            stats = memory.stats()
    lengths = list(map(trace.prompt_tokens, trace.requests))
    cached = tuple(prefix.cached_tokens for prefix in prefixes)
    return SimulationResult(
        policy=policy,
        block_size=block_size,
        gpu_blocks=gpu_blocks,
        host_blocks=host_blocks,
        stats=stats,
        cached_tokens=cached,
        host_tokens=tuple(prefix.host_tokens for prefix in prefixes),
        prefill_seconds=math.fsum(
            seconds(alpha, length - alpha) for alpha, length in zip(cached, lengths, strict=True)
        ),
        uncached_prefill_seconds=math.fsum(seconds(0, length) for length in lengths),
        ttft=ttft,
    )


def _check(gpu_blocks: int, block_size: int, output_tokens: int, decode_seconds: float) -> None:
    for name, value in (
        ("gpu_blocks", gpu_blocks),
        ("block_size", block_size),
        ("output_tokens", output_tokens),
    ):
        if value < 1:
            msg = f"{name} must be at least 1, got {value}"
            raise ConfigurationError(msg)
    if not 0 <= decode_seconds < math.inf:
        msg = f"decode_seconds must be finite and at least 0, got {decode_seconds}"
        raise ConfigurationError(msg)


class _Server:
    """Serves one request at a time, as they arrive, from a waiting queue."""

    def __init__(
        self, memory: PagedMemory, pager: Pager, seconds: PrefillSeconds, window: int | None
    ) -> None:
        self._memory = memory
        self._pager = pager
        self._seconds = seconds
        self._paged: dict[int, PagedRequest] = {}
        self._waiting: ReorderingQueue[int] = ReorderingQueue(self._score, window or 0)

    def run(
        self,
        requests: Sequence[TraceRequest],
        decode_seconds: float,
        served: Callable[[], object],
    ) -> tuple[list[CachedPrefix], tuple[float, ...]]:
        """Serve all; what was found for each, and the times to first token."""
        prefixes: dict[int, CachedPrefix] = {}
        ttft: dict[int, float] = {}
        coming = iter(enumerate(requests))
        following = next(coming, None)
        now = 0.0
        while following is not None or self._waiting:
            while following is not None and (following[1].arrival <= now or not self._waiting):
                now = max(now, following[1].arrival)
                self._arrive(*following)
                following = next(coming, None)
            number = self._waiting.peek()
            prefixes[number] = prefix = self._memory.serve(self._paged[number])
            self._waiting.begin_step()
            self._waiting.pop()  # only now: it scores again who waits for the same documents
            new_tokens = self._paged.pop(number).prompt_tokens - prefix.cached_tokens
            now += self._seconds(prefix.cached_tokens, new_tokens)
            ttft[number] = now - requests[number].arrival
            now += decode_seconds
            served()
        order = range(len(requests))
        return [prefixes[number] for number in order], tuple(ttft[number] for number in order)

    def stats(self) -> TreeStats:
        """What happened so far."""
        return dataclasses.replace(
            self._memory.stats(),
            reorderings=self._waiting.reorderings,
            longest_overtaking=self._waiting.longest_overtaking,
        )

    def _arrive(self, number: int, request: TraceRequest) -> None:
        paged = self._paged[number] = self._pager.page(request)
        self._memory.enter(paged)
        self._waiting.add(number, (paged.topic,))

    def _score(self, number: int) -> float:
        """CachedLength / ComputationLength (RAGCache §5.2)."""
        request = self._paged[number]
        cached = self._memory.find(request).cached_tokens
        return cached / (request.prompt_tokens - cached)
