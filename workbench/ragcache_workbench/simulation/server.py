"""A simulated server: its memory, and the waiting queue in front of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.policies import POLICIES
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

__all__ = ["SIMULATED_POLICIES", "STOCK_POLICY", "PrefillSeconds", "Server", "ServerSettings"]

STOCK_POLICY = "vllm"
"""Stock vLLM: its own block LRU, and no tree."""

SIMULATED_POLICIES = (*POLICIES, STOCK_POLICY)

PrefillSeconds = Callable[[int, int], float]
"""T(alpha, beta): seconds to prefill beta new tokens after alpha cached ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a simulated server; :func:`simulate` describes them.

    Raises:
        ConfigurationError: A number is out of its range, the policy is unknown, or stock vLLM was
            asked for with what only a tree has.
    """

    gpu_blocks: int
    host_blocks: int
    block_size: int
    policy: str
    prefill_seconds: PrefillSeconds
    cache_depth: int | None
    quotas: Mapping[str, float] | None
    output_tokens: int
    reorder_window: int | None
    decode_seconds: float
    gpu_tier: Tier[int] | None = None

    def __post_init__(self) -> None:
        for name in ("gpu_blocks", "block_size", "output_tokens"):
            if getattr(self, name) < 1:
                msg = f"{name} must be at least 1, got {getattr(self, name)}"
                raise ConfigurationError(msg)
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
            msg = (
                "stock vLLM has no host_blocks, cache_depth, reorder_window and quotas here, got "
                f"{self.host_blocks}, {self.cache_depth}, {self.reorder_window} and {self.quotas}"
            )
            raise ConfigurationError(msg)

    def pager(self, trace: Trace) -> Pager:
        """Return what cuts the requests of a trace into blocks.

        Raises:
            ConfigurationError: A request does not fit the memory.
        """
        pager = Pager(trace, self.block_size, self.output_tokens)
        largest = max(map(trace.prompt_tokens, trace.requests))
        if pager.blocks(largest) > self.gpu_blocks:
            msg = (
                f"gpu_blocks must be at least {pager.blocks(largest)} for the longest prompt of "
                f"{largest} tokens and its answer, got {self.gpu_blocks}"
            )
            raise ConfigurationError(msg)
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
