"""Does caching pay here? RAGCache §3 for any traffic: skew, prefill times, and what sizes reach."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.policies import DEFAULT_POLICY
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel

from .paged_memory import Pager
from .simulator import (
    STOCK_POLICY,
    SimulationResult,
    simulate,
)
from .traces import Trace

__all__ = [
    "ENOUGH",
    "HALF",
    "LEAST_HIT_RATE",
    "AccessSkew",
    "CacheSize",
    "Characterisation",
    "PrefillTimes",
    "characterise",
]

LEAST_HIT_RATE = 0.05
"""Where an unlimited cache would find a smaller share of the documents' tokens, it does not pay."""

ENOUGH = 0.95
"""Share of an unlimited cache's hit rate that the recommended size reaches."""

HALF = 0.5
"""The same for the size that is named where memory is short."""

PRECISION = 1.1
"""A size that is named is at most this many times the smallest one that is enough."""

SHORTEST_PREFIX = 128
"""Where the curve of prefill times begins, as RAGCache's figure 4 does."""


@dataclass(frozen=True, slots=True)
class AccessSkew:
    """How unevenly documents are asked for (RAGCache §3.2, figure 5).

    Attributes:
        counts: How often each document was asked for, the most popular first.
    """

    counts: tuple[int, ...]

    @property
    def documents(self) -> int:
        """How many different documents were asked for."""
        return len(self.counts)

    @property
    def accesses(self) -> int:
        """How many documents were asked for, repetitions included."""
        return sum(self.counts)

    def share_of_top(self, part: float) -> float:
        """Share of the accesses that go to the most popular ``part`` of the documents.

        Args:
            part: From 0 to 1; the number of documents is rounded up.
        """
        return sum(self.counts[: math.ceil(part * self.documents)]) / self.accesses

    def curve(self) -> list[tuple[float, float]]:
        """The cumulative distribution: parts of the documents, and their share of the accesses."""
        documents, accesses = self.documents, self.accesses
        sums = itertools.accumulate(self.counts, initial=0)
        return [(rank / documents, total / accesses) for rank, total in enumerate(sums)]


@dataclass(frozen=True, slots=True)
class PrefillTimes:
    """What a cached prefix saves (RAGCache §3.2, figure 4).

    Attributes:
        prefix_tokens: Lengths of the prefix, rising.
        new_tokens: Tokens after the documents, which are computed in any case.
        uncached: Seconds to prefill both.
        cached: Seconds where the prefix is cached.
    """

    prefix_tokens: tuple[int, ...]
    new_tokens: int
    uncached: tuple[float, ...]
    cached: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What a cache of one size finds.

    Attributes:
        tokens: Its size, both tiers and one running request included.
        document_hit_rate: Share of the documents found, with the default policy.
        token_hit_rate: Share of the documents' tokens found, with the default policy.
        saved_share: Share of the prefill time saved, with the default policy.
        stock_document_hit_rate: Share of the documents found by stock vLLM's block LRU.
        stock_token_hit_rate: Share of the documents' tokens found by it.
        stock_saved_share: Share of the prefill time saved by it.
    """

    tokens: int
    document_hit_rate: float
    token_hit_rate: float
    saved_share: float
    stock_document_hit_rate: float
    stock_token_hit_rate: float
    stock_saved_share: float


@dataclass(frozen=True, slots=True)
class Characterisation:
    """What caching does for some traffic.

    Attributes:
        requests: How many requests there were.
        document_tokens: Tokens of all different documents.
        mean_prompt_tokens: Mean length of a prompt.
        longest_request_tokens: Memory that the longest request needs while it runs.
        skew: How unevenly documents are asked for.
        prefill: What a cached prefix saves.
        sizes: Cache sizes, rising; the last one holds everything.
        recommended: The smallest that finds :data:`ENOUGH` of what the last one finds; ``None``
            where caching does not pay.
        half: The smallest that finds :data:`HALF` of it; ``None`` where caching does not pay.
    """

    requests: int
    document_tokens: int
    mean_prompt_tokens: float
    longest_request_tokens: int
    skew: AccessSkew
    prefill: PrefillTimes
    sizes: tuple[CacheSize, ...]
    recommended: CacheSize | None
    half: CacheSize | None

    @property
    def unlimited(self) -> CacheSize:
        """The cache that holds everything."""
        return self.sizes[-1]

    @property
    def pays(self) -> bool:
        """Whether caching pays at all: an unlimited cache finds :data:`LEAST_HIT_RATE` or more."""
        return self.recommended is not None


def characterise(
    trace: Trace,
    *,
    prefill_seconds: Callable[[int, int], float] | None = None,
    sizes: int = 10,
    block_size: int = 32,
    cache_depth: int | None = None,
    output_tokens: int = 8,
    show_progress: bool = False,
) -> Characterisation:
    """Find out what caching does for some traffic, by simulating caches of several sizes.

    Args:
        trace: The traffic; some of it with documents.
        prefill_seconds: T(alpha, beta); :meth:`PrefillCostModel.default` where it is ``None``.
        sizes: How many sizes to simulate, evenly apart on a logarithmic scale from what the longest
            request needs to what holds everything; a few more find the recommended one.
        block_size: Tokens per block.
        cache_depth: Only the first documents of a request are kept; ``None`` for all.
        output_tokens: Length of every answer.
        show_progress: Show a progress bar.

    Raises:
        ConfigurationError: A number is out of its range, or no request has a document.
    """
    if sizes < 2:  # noqa: PLR2004 - the smallest and the largest
        raise ConfigurationError(f"sizes must be at least 2, got {sizes}")
    counts = Counter(name for request in trace.requests for name, _ in request.documents)
    if not counts:
        msg = "no request of the workload has a document: there is nothing to cache"
        raise ConfigurationError(msg)
    seconds = prefill_seconds or PrefillCostModel.default()
    pager = Pager(trace, block_size, output_tokens)
    kept: set[int] = set()
    longest = 0
    for request in trace.requests:
        paged = pager.page(request)
        longest = max(longest, paged.blocks)
        spans = paged.spans[:cache_depth]
        kept.update(paged.keys[: (spans[-1][2] if spans else 0) // block_size])

    with tqdm(desc="Simulating cache sizes", disable=not show_progress, unit=" sizes") as progress:

        def measure(blocks: int) -> CacheSize:
            def run(policy: str, depth: int | None) -> SimulationResult:
                return simulate(
                    trace,
                    gpu_blocks=blocks,
                    block_size=block_size,
                    policy=policy,
                    prefill_seconds=seconds,
                    cache_depth=depth,
                    output_tokens=output_tokens,
                )

            ours, stock = run(DEFAULT_POLICY, cache_depth), run(STOCK_POLICY, None)
            progress.update()
            return CacheSize(
                tokens=blocks * block_size,
                document_hit_rate=ours.stats.document_hit_rate,
                token_hit_rate=ours.stats.token_hit_rate,
                saved_share=ours.saved_share,
                stock_document_hit_rate=stock.stats.document_hit_rate,
                stock_token_hit_rate=stock.stats.token_hit_rate,
                stock_saved_share=stock.saved_share,
            )

        measured = {
            blocks: measure(blocks) for blocks in _spread(longest, longest + len(kept), sizes)
        }
        pays = measured[max(measured)].token_hit_rate >= LEAST_HIT_RATE
        recommended = _smallest(measured, measure, ENOUGH) if pays else None
        half = _smallest(measured, measure, HALF) if pays else None
    lengths = list(map(trace.prompt_tokens, trace.requests))
    questions = [request.question_tokens for request in trace.requests]
    return Characterisation(
        requests=len(trace.requests),
        document_tokens=trace.document_tokens,
        mean_prompt_tokens=statistics.fmean(lengths),
        longest_request_tokens=longest * block_size,
        skew=AccessSkew(tuple(times for _, times in counts.most_common())),
        prefill=_prefill_times(seconds, max(lengths), round(statistics.median(questions))),
        sizes=tuple(size for _, size in sorted(measured.items())),
        recommended=recommended,
        half=half,
    )


def _spread(low: int, high: int, count: int) -> list[int]:
    """Whole numbers from ``low`` to ``high``, evenly apart on a logarithmic scale."""
    step = (high / low) ** (1 / (count - 1))
    return sorted({*(round(low * step**number) for number in range(count)), high})


def _smallest(
    measured: dict[int, CacheSize], measure: Callable[[int], CacheSize], share: float
) -> CacheSize:
    """The smallest size that finds a share of what the largest does; adds what it measures."""
    needed = share * measured[max(measured)].token_hit_rate
    enough = min(blocks for blocks, size in measured.items() if size.token_hit_rate >= needed)
    short = max((blocks for blocks in measured if blocks < enough), default=enough)
    while enough > PRECISION * short and enough - short > 1:
        middle = min(max(round(math.sqrt(short * enough)), short + 1), enough - 1)
        measured[middle] = measure(middle)
        if measured[middle].token_hit_rate >= needed:
            enough = middle
        else:
            short = middle
    return measured[enough]


def _prefill_times(
    seconds: Callable[[int, int], float], longest: int, new_tokens: int
) -> PrefillTimes:
    highest = max(longest - new_tokens, 2 * SHORTEST_PREFIX)
    prefixes: Sequence[int] = _spread(SHORTEST_PREFIX, highest, 16)
    return PrefillTimes(
        prefix_tokens=tuple(prefixes),
        new_tokens=new_tokens,
        uncached=tuple(seconds(0, prefix + new_tokens) for prefix in prefixes),
        cached=tuple(seconds(prefix, new_tokens) for prefix in prefixes),
    )
