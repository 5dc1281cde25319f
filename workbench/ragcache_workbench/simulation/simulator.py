"""A trace-driven simulator: the knowledge tree over paged memory, without a model.

It runs the engine's own tree, policies and queue, one request at a time, so that cache sizes and
policies can be compared in seconds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Required, Self, TypedDict, Unpack

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

__all__ = [
    "SIMULATED_POLICIES",
    "STOCK_POLICY",
    "Server",
    "ServerKnobs",
    "ServerSettings",
    "SimulationResult",
    "result_of",
    "simulate",
]

STOCK_POLICY = "vllm"
"""Stock vLLM: its own block LRU, and no tree."""

SIMULATED_POLICIES = (*POLICIES, STOCK_POLICY)

PrefillSeconds = Callable[[int, int], float]
"""T(alpha, beta): seconds to prefill beta new tokens after alpha cached ones."""


class ServerKnobs(TypedDict, total=False):
    """Settings of a simulated server.

    Attributes:
        gpu_blocks: Blocks of GPU memory for documents and running requests alike; vLLM's
            ``num_gpu_blocks`` is one more.
        host_blocks: Blocks of the host tier; none by default.
        block_size: Tokens per block; 16 by default.
        policy: ``lrfu``, ``pgdsf``, ``gdsf``, ``lru`` or ``lfu``; or ``vllm`` for stock vLLM.
        prefill_seconds: T(alpha, beta); :meth:`PrefillCostModel.default` where it is ``None``.
        cache_depth: Only the first documents of a request are kept; ``None`` for all.
        quotas: Part of the memory that belongs to each of some tenants.
        output_tokens: Length of every answer; 8 by default.
        reorder_window: With a queue: by how many others a waiting request may be overtaken by one
            of which more is cached (RAGCache §5.2); ``None`` for the order of arrival.
        decode_seconds: With a queue: seconds for each token of an answer after the first.
    """

    gpu_blocks: Required[int]
    host_blocks: int
    block_size: int
    policy: str
    prefill_seconds: PrefillSeconds | None
    cache_depth: int | None
    quotas: Mapping[str, float] | None
    output_tokens: int
    reorder_window: int | None
    decode_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Checked settings of a simulated server; :class:`ServerKnobs` describes them.

    Raises:
        ConfigurationError: A number is out of its range, the policy is unknown, or stock vLLM was
            asked for with what only a tree has.
    """

    gpu_blocks: int
    host_blocks: int = 0
    block_size: int = 16
    policy: str = DEFAULT_POLICY
    prefill_seconds: PrefillSeconds = field(default_factory=PrefillCostModel.default)
    cache_depth: int | None = None
    quotas: Mapping[str, float] | None = None
    output_tokens: int = 8
    reorder_window: int | None = None
    decode_seconds: float = 0.0
    gpu_tier: Tier[int] | None = None

    @classmethod
    def of(cls, knobs: ServerKnobs) -> Self:
        """Return settings with these knobs; those that are ``None`` have their defaults."""
        given: Any = {name: value for name, value in knobs.items() if value is not None}
        return cls(**given)

    def __post_init__(self) -> None:
        for name in ("gpu_blocks", "block_size", "output_tokens"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.decode_seconds < math.inf:
            msg = f"decode_seconds must be finite and at least 0, got {self.decode_seconds}"
            raise ConfigurationError(msg)
        if self.policy not in SIMULATED_POLICIES:
            msg = f"unknown policy {self.policy!r}: allowed are {', '.join(SIMULATED_POLICIES)}"
            raise ConfigurationError(msg)
        has_tree = bool(self.host_blocks or self.quotas) or not (
            self.cache_depth is None and self.reorder_window is None
        )
        if self.policy == STOCK_POLICY and has_tree:
            raise ConfigurationError(
                "stock vLLM has no host_blocks, cache_depth, reorder_window and quotas here, got "
                f"{self.host_blocks}, {self.cache_depth}, {self.reorder_window} and {self.quotas}"
            )

    def pager(self, trace: Trace) -> Pager:
        """Return what cuts the requests of a trace into blocks.

        Raises:
            ConfigurationError: A request does not fit the memory.
        """
        pager = Pager(trace, self.block_size, self.output_tokens)
        largest = max(map(trace.prompt_tokens, trace.requests))
        if pager.blocks(largest) > self.gpu_blocks:
            raise ConfigurationError(
                f"gpu_blocks must be at least {pager.blocks(largest)} for the longest prompt of "
                f"{largest} tokens and its answer, got {self.gpu_blocks}"
            )
        return pager

    def memory(self) -> PagedMemory:
        """Return an empty memory."""
        if self.policy == STOCK_POLICY:
            return StockMemory(self.gpu_blocks, self.block_size)
        tree: KnowledgeTree[int] = KnowledgeTree(
            block_size=self.block_size,
            gpu_blocks=self.gpu_blocks,
            host_blocks=self.host_blocks,
            policy=self.policy,
            prefill_seconds=self.prefill_seconds,
            cache_depth=self.cache_depth,
            quotas=self.quotas,
        )
        if self.gpu_tier is not None:
            tree.gpu = self.gpu_tier
        return TreeMemory(self.gpu_blocks, tree)


class Server:
    """Serves one request at a time, as they arrive, from a waiting queue.

    Args:
        settings: Its settings.
        pager: Cuts its requests into blocks.
    """

    def __init__(self, settings: ServerSettings, pager: Pager) -> None:
        self._memory = settings.memory()
        self._pager = pager
        self._seconds = settings.prefill_seconds
        self._answer_seconds = (settings.output_tokens - 1) * settings.decode_seconds
        self._paged: dict[int, PagedRequest] = {}
        self._arrivals: dict[int, float] = {}
        self._waiting: ReorderingQueue[int] = ReorderingQueue(
            self._score, settings.reorder_window or 0
        )
        self._free_at = 0.0
        self.prefixes: dict[int, CachedPrefix] = {}
        """What was found for each request that was served, by its number."""
        self.ttft: dict[int, float] = {}
        """Seconds from its arrival to its first token, by its number."""

    def arrive(self, number: int, request: TraceRequest) -> None:
        """Take in a request, no earlier than those before it."""
        self.advance(request.arrival)
        if not self._waiting:
            self._free_at = max(self._free_at, request.arrival)
        paged = self._paged[number] = self._pager.page(request)
        self._arrivals[number] = request.arrival
        self._memory.enter(paged)
        self._waiting.add(number, (paged.topic,))

    def advance(self, until: float = math.inf) -> None:
        """Serve the requests that begin before a second; all that wait by default."""
        while self._waiting and self._free_at < until:
            self._serve()

    def unfinished(self, second: float) -> int:
        """How many requests wait or run at a second up to which it was advanced."""
        return len(self._paged) + (self._free_at > second)

    def stats(self) -> TreeStats:
        """What happened so far."""
        return dataclasses.replace(
            self._memory.stats(),
            reorderings=self._waiting.reorderings,
            longest_overtaking=self._waiting.longest_overtaking,
        )

    def _serve(self) -> None:
        number = self._waiting.peek()
        prefix = self.prefixes[number] = self._memory.serve(self._paged[number])
        self._waiting.begin_step()
        self._waiting.pop()  # only now: it scores again who waits for the same documents
        new_tokens = self._paged.pop(number).prompt_tokens - prefix.cached_tokens
        first_token = self._free_at + self._seconds(prefix.cached_tokens, new_tokens)
        self.ttft[number] = first_token - self._arrivals.pop(number)
        self._free_at = first_token + self._answer_seconds

    def _score(self, number: int) -> float:
        """CachedLength / ComputationLength (RAGCache §5.2)."""
        request = self._paged[number]
        cached = self._memory.find(request).cached_tokens
        return cached / (request.prompt_tokens - cached)


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
    queue: bool = False,
    gpu_tier: Tier[int] | None = None,
    show_progress: bool = False,
    **knobs: Unpack[ServerKnobs],
) -> SimulationResult:
    """Run a trace over a cache.

    Requests are served one at a time: in the order of the trace, or, with ``queue``, by one server
    with a waiting queue, as they arrive.

    Args:
        trace: The requests.
        queue: Simulate arrivals and waiting too, and give each request's time to first token.
        gpu_tier: Rules over the GPU's memory in place of the policy, which must be one of a tree:
            for policies that are only compared with.
        show_progress: Show a progress bar.
        **knobs: Settings of the server; see :class:`ServerKnobs`.

    Raises:
        ConfigurationError: A number is out of its range, a request does not fit the memory, the
            policy is unknown, or stock vLLM was asked for with what only a tree has.
    """
    settings = dataclasses.replace(ServerSettings.of(knobs), gpu_tier=gpu_tier)
    if settings.reorder_window is not None and not queue:
        raise ConfigurationError(
            "reorder_window only acts on a queue: it needs queue=True, got "
            f"{settings.reorder_window}"
        )
    server = Server(settings, settings.pager(trace))
    requests = tqdm(trace.requests, disable=not show_progress, unit=" requests")
    for number, request in enumerate(requests):
        server.arrive(number, request)
        if not queue:
            server.advance()
    server.advance()
    result = result_of(settings, server, list(map(trace.prompt_tokens, trace.requests)))
    return result if queue else dataclasses.replace(result, ttft=())


def result_of(settings: ServerSettings, server: Server, lengths: Sequence[int]) -> SimulationResult:
    """Return what a server found, its requests in the order of arrival.

    Args:
        settings: Its settings.
        server: The server, with nothing left to serve.
        lengths: Tokens of the prompt of every request, by its number.
    """
    numbers = sorted(server.prefixes)
    prefixes = [server.prefixes[number] for number in numbers]
    prompts = [lengths[number] for number in numbers]
    cached = tuple(prefix.cached_tokens for prefix in prefixes)
    seconds = settings.prefill_seconds
    return SimulationResult(
        policy=settings.policy,
        block_size=settings.block_size,
        gpu_blocks=settings.gpu_blocks,
        host_blocks=settings.host_blocks,
        stats=server.stats(),
        cached_tokens=cached,
        host_tokens=tuple(prefix.host_tokens for prefix in prefixes),
        prefill_seconds=math.fsum(
            seconds(alpha, length - alpha) for alpha, length in zip(cached, prompts, strict=True)
        ),
        uncached_prefill_seconds=math.fsum(seconds(0, length) for length in prompts),
        ttft=tuple(server.ttft[number] for number in numbers),
    )
