"""Orders of documents, and how much of each a prefix cache would hold already."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parts.prompts.contextpilot_peer import ContextPilotPeer, has_contextpilot
from ragcache_integrations.prompts.order.order import DocumentOrder
from ragcache_integrations.prompts.order.paths import PathModel
from ragcache_integrations.prompts.order.settings import within_limit
from ragcache_workbench.simulation.simulator import simulate
from ragcache_workbench.simulation.traces import Trace, TraceRequest

__all__ = ["BLOCK", "ORDERS", "Ordered", "core_us", "order_all", "order_limited"]

BLOCK = 16
WINDOW = 32
"""Requests that wait at once, where the order looks ahead."""
PASSES = 5

Request = tuple[str, ...]
Lengths = Mapping[str, int]


@dataclass(frozen=True)
class Ordered:
    """A stream as it is sent to the engine.

    Attributes:
        name: Of the order.
        numbers: Of the requests, in the order in which they are sent.
        sent: Their documents, in that order.
        us: Microseconds that a request took to be ordered: the median online, where each is ordered
            by itself, and the mean of a batch.
    """

    name: str
    numbers: Sequence[int]
    sent: Sequence[Request]
    us: float

    def cached_tokens(self, lengths: Lengths) -> list[int]:
        """Document tokens of each request that an unlimited cache holds, by request number."""
        seen: set[Request] = set()
        cached = [0] * len(self.sent)
        for number, documents in zip(self.numbers, self.sent, strict=True):
            for end, document in enumerate(documents, 1):
                path = documents[:end]
                if path in seen:
                    cached[number] += lengths[document]
                seen.add(path)
        return cached

    def cached_share(self, lengths: Lengths, cache_tokens: int, policy: str) -> float:
        """Share of the document tokens found in a cache of limited size, in whole blocks.

        Args:
            lengths: Tokens of the documents.
            cache_tokens: Size of the cache.
            policy: ``vllm`` for stock vLLM's LRU over blocks, or one of the knowledge tree's.
        """
        trace = Trace(
            tuple(
                TraceRequest(tuple((name, lengths[name]) for name in documents))
                for documents in self.sent
            )
        )
        blocks = -(-max(cache_tokens, 2 * max(map(trace.prompt_tokens, trace.requests))) // BLOCK)
        found = simulate(trace, gpu_blocks=blocks, block_size=BLOCK, policy=policy)
        return found.stats.token_hit_rate


def order_all(
    requests: Sequence[Request], lengths: Lengths, cache_tokens: int | None = None
) -> list[Ordered]:
    """The same stream in every order.

    What the benchmark itself holds is kept from the garbage collector meanwhile, so that nobody's
    time has a look through all of it.

    Args:
        requests: Documents of each request, the most relevant first.
        lengths: Tokens of the documents.
        cache_tokens: Size of the cache, for the orders that want to know it; ``None`` for one that
            holds all.
    """
    orders = []
    for make in ORDERS.values():
        gc.collect()
        gc.freeze()
        try:
            orders.append(make(requests, lengths, cache_tokens))
        finally:
            gc.unfreeze()
    return orders


def core_us(requests: Sequence[Request], lengths: Lengths) -> float:
    """The median microseconds of what ``cached_first`` is made of, least of several passes.

    The longest cached path, the documents behind it, and the path that this makes: without
    checks of arguments, locks, and the statistics that :class:`DocumentOrder` adds.
    """
    return min(_core_pass(requests, lengths) for _ in range(PASSES))


def _core_pass(requests: Sequence[Request], lengths: Lengths) -> float:
    model, times = PathModel(), []
    clock = time.perf_counter_ns
    for request in requests:
        tokens = [lengths[one] for one in request]
        began = clock()
        path, _ = model.longest_path("", request)
        rest = [place for place in range(len(request)) if place not in path]
        model.enter("", request, tokens, within_limit(rest, None, path))
        times.append(clock() - began)
    return statistics.median(times) / 1e3


def order_limited(
    requests: Sequence[Request], lengths: Lengths, limits: Mapping[str, Any]
) -> Ordered:
    """The stream in the order ``cached_first``, or another, within limits."""
    order = DocumentOrder(**{"order": "cached_first", **limits})
    name = ", ".join(f"{name} {value}" for name, value in limits.items())
    return replace(_online(requests, lengths, order), name=name or order.order)


def _relevance(requests: Sequence[Request], lengths: Lengths, _: int | None) -> Ordered:
    return _online(requests, lengths, DocumentOrder("relevance"))


def _cached_first(
    requests: Sequence[Request], lengths: Lengths, cache_tokens: int | None
) -> Ordered:
    return _online(requests, lengths, DocumentOrder("cached_first", cache_tokens=cache_tokens))


def _popularity(requests: Sequence[Request], lengths: Lengths, cache_tokens: int | None) -> Ordered:
    order = DocumentOrder("cached_first", uncached="popularity", cache_tokens=cache_tokens)
    return replace(_online(requests, lengths, order), name="popularity")


def _look_ahead(requests: Sequence[Request], lengths: Lengths, cache_tokens: int | None) -> Ordered:
    order = DocumentOrder("cached_first", cache_tokens=cache_tokens)
    tokens = [[lengths[one] for one in request] for request in requests]
    orders: list[tuple[int, ...]] = []
    began = time.perf_counter_ns()
    for start in range(0, len(requests), WINDOW):
        window = slice(start, start + WINDOW)
        orders += order.arrange_all(requests[window], tokens[window])
    took = (time.perf_counter_ns() - began) / 1e3
    return Ordered(
        "look_ahead", range(len(requests)), _taken(requests, orders), took / len(requests)
    )


def _batch(requests: Sequence[Request], lengths: Lengths, _: int | None) -> Ordered:
    tokens = [[lengths[one] for one in request] for request in requests]
    order = DocumentOrder("cached_first")
    began = time.perf_counter_ns()
    scheduled = order.schedule(requests, tokens)
    took = (time.perf_counter_ns() - began) / 1e3
    numbers = [one.request for one in scheduled]
    chosen = [requests[number] for number in numbers]
    sent = _taken(chosen, [one.order for one in scheduled])
    return Ordered("batch", numbers, sent, took / len(requests))


def _contextpilot(requests: Sequence[Request], _lengths: Lengths, _cache: int | None) -> Ordered:
    sent, times = ContextPilotPeer().online(requests)
    return Ordered("contextpilot", range(len(requests)), sent, statistics.median(times))


def _contextpilot_batch(
    requests: Sequence[Request], _lengths: Lengths, _cache: int | None
) -> Ordered:
    numbers, sent, took = ContextPilotPeer().batch(requests)
    return Ordered("contextpilot_batch", numbers, sent, took / len(requests))


ORDERS: dict[str, Callable[[Sequence[Request], Lengths, int | None], Ordered]] = {
    "relevance": _relevance,
    "cached_first": _cached_first,
    "popularity": _popularity,
    "look_ahead": _look_ahead,
    "batch": _batch,
}
if has_contextpilot():
    ORDERS |= {"contextpilot": _contextpilot, "contextpilot_batch": _contextpilot_batch}


def _online(requests: Sequence[Request], lengths: Lengths, order: DocumentOrder) -> Ordered:
    tokens = [[lengths[one] for one in request] for request in requests]
    orders, times = [], []
    clock = time.perf_counter_ns
    for request, sizes in zip(requests, tokens, strict=True):
        began = clock()
        orders.append(order.arrange(request, sizes))
        times.append(clock() - began)
    sent = _taken(requests, orders)
    return Ordered(order.order, range(len(requests)), sent, statistics.median(times) / 1e3)


def _taken(requests: Sequence[Request], orders: Sequence[Sequence[int]]) -> list[Request]:
    return [
        tuple(request[place] for place in order)
        for request, order in zip(requests, orders, strict=True)
    ]
