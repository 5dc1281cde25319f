"""Several replicas under simulated traffic: what a router's choice costs and gains.

Each replica has a knowledge tree and memory of its own, and serves one request at a time from a
queue. A router chooses a replica for each request as ``docs/scaling.md`` describes: requests with
the same key meet, but on no replica that is much busier than the others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from ragcache_integrations.core.checks import check_choice, check_int, check_number, or_none
from ragcache_integrations.errors import ConfigurationError

from .simulator import Server, ServerKnobs, ServerSettings, SimulationResult, result_of
from .traces import Trace, TraceRequest

__all__ = ["BALANCE_FACTOR", "MOST_REPLICAS", "ROUTINGS", "ReplicasResult", "simulate_replicas"]

ROUTINGS = ("document", "session", "round_robin", "random")
"""By what a router chooses the replica of a request."""

BALANCE_FACTOR = 150
"""The most unfinished requests of a replica in per cent of the mean, as in ``docs/scaling.md``."""

MOST_REPLICAS = 1000
"""Each request looks at all of them, and each has a tree of its own."""

DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class ReplicasResult:
    """What a simulation of several replicas found.

    Attributes:
        routing: By what the router chose.
        replicas: What each replica found, its requests in the order of arrival.
        assigned: The replica of each request, from 0, in the order of the trace.
        prompt_tokens: Length of each request's prompt in tokens.
        cached_tokens: Tokens of it that were found in its replica's memory.
        ttft: Each request's seconds from its arrival to its first token.
    """

    routing: str
    replicas: tuple[SimulationResult, ...]
    assigned: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    cached_tokens: tuple[int, ...]
    ttft: tuple[float, ...]

    @property
    def token_hit_rate(self) -> float:
        """Share of the documents' tokens that were found, over all replicas; 0 without any."""
        stats = [replica.stats for replica in self.replicas]
        hits = sum(one.document_tokens_hit_gpu + one.document_tokens_hit_host for one in stats)
        tokens = sum(one.document_tokens for one in stats)
        return hits / tokens if tokens else 0.0

    @property
    def saved_share(self) -> float:
        """Share of the prefill time that the caches save."""
        uncached = math.fsum(replica.uncached_prefill_seconds for replica in self.replicas)
        spent = math.fsum(replica.prefill_seconds for replica in self.replicas)
        return 1 - spent / uncached if uncached else 0.0

    @property
    def mean_ttft(self) -> float:
        """Mean seconds to the first token."""
        return statistics.fmean(self.ttft)

    def ttft_quantile(self, share: float) -> float:
        """Seconds to the first token that a share of the requests does not exceed.

        Args:
            share: From 0 to 1; 0.5 is the median.
        """
        return float(np.quantile(self.ttft, share))

    @property
    def busiest_share(self) -> float:
        """Share of the requests that the replica with the most of them got; 1 / N is even."""
        counts = [self.assigned.count(number) for number in range(len(self.replicas))]
        return max(counts) / len(self.assigned)

    @property
    def busiest_work(self) -> float:
        """Share of all prefill seconds on the replica with the most of them; 1 / N is even."""
        seconds = [replica.prefill_seconds for replica in self.replicas]
        return max(seconds) / total if (total := math.fsum(seconds)) else 1 / len(seconds)


def simulate_replicas(
    trace: Trace,
    *,
    replicas: int,
    routing: str = "document",
    rate: float | None = None,
    balance_factor: int = BALANCE_FACTOR,
    seed: int = 0,
    **knobs: Unpack[ServerKnobs],
) -> ReplicasResult:
    """Run a trace over several replicas behind a router.

    With one replica this is :func:`simulate` with ``queue=True``. Real engines compute several
    requests at once, so compare ways of routing, and do not expect the seconds of a real server::

        costs = PrefillCostModel.load("profile.json")  # ragcache profile --output profile.json
        result = simulate_replicas(
            trace, replicas=4, gpu_blocks=2000, rate=8.0, prefill_seconds=costs
        )
        print(result.token_hit_rate, result.ttft_quantile(0.95), result.busiest_share)

    Args:
        trace: The requests.
        replicas: How many replicas there are, from 1 to :data:`MOST_REPLICAS`.
        routing: ``document``: requests that begin with the same document meet; ``session``:
            requests of the same session do; ``round_robin``; or ``random``. Requests without a
            session go by their document, those without a document by their question, and those
            without either take turns.
        rate: Requests a second for all replicas together, arriving as a Poisson process; ``None``
            for the arrivals of the trace.
        balance_factor: By document and by session: the most unfinished requests that a replica may
            have, in per cent of the mean, at least 100; a request beyond that goes to the next
            replica in the order of its key. 0 for no limit.
        seed: Decides the arrivals, the random choices, and which key belongs to which replica.
        **knobs: Settings of each replica, as for :func:`simulate`; ``prefill_seconds`` may be a
            profile that ``ragcache profile`` measured.

    Raises:
        ConfigurationError: An argument is out of its range, no request has a session where they are
            routed by it, or what :func:`simulate` refuses.

    Source: RAGCache §5 for the tree; Mirrokni, Thorup and Zadimoghaddam, Consistent Hashing with
    Bounded Loads (2016), for the limit.
    """
    replicas = check_int("replicas", replicas, 1, MOST_REPLICAS, unit="replicas")
    router = _Router(routing, replicas, balance_factor, seed, trace)
    rate = or_none(check_number)(
        "rate", rate, 0, above=True, unit="requests a second", also="None for the trace's arrivals"
    )
    if rate is not None:
        trace = _with_arrivals(trace, rate, seed)
    settings = ServerSettings.of(knobs)
    pager = settings.pager(trace)
    servers = [Server(settings, pager) for _ in range(replicas)]
    assigned = []
    for number, request in enumerate(trace.requests):
        for server in servers:
            server.advance(request.arrival)
        unfinished = [server.unfinished(request.arrival) for server in servers]
        assigned.append(router.choose(request, unfinished))
        servers[assigned[-1]].arrive(number, request)
    for server in servers:
        server.advance()
    lengths = tuple(map(trace.prompt_tokens, trace.requests))
    served = list(enumerate(assigned))
    return ReplicasResult(
        routing=routing,
        replicas=tuple(result_of(settings, server, lengths) for server in servers),
        assigned=tuple(assigned),
        prompt_tokens=lengths,
        cached_tokens=tuple(
            servers[replica].prefixes[number].cached_tokens for number, replica in served
        ),
        ttft=tuple(servers[replica].ttft[number] for number, replica in served),
    )


def _with_arrivals(trace: Trace, rate: float, seed: int) -> Trace:
    gaps = np.random.default_rng([seed, 0]).exponential(1 / rate, len(trace.requests))
    requests = zip(trace.requests, np.cumsum(gaps).tolist(), strict=True)
    return dataclasses.replace(
        trace,
        requests=tuple(
            dataclasses.replace(request, arrival=arrival) for request, arrival in requests
        ),
    )


class _Router:
    """Chooses replicas: by rendezvous hashing with bounded loads, in turns, or at random."""

    def __init__(self, routing: str, replicas: int, factor: int, seed: int, trace: Trace) -> None:
        self._routing = check_choice("routing", routing, ROUTINGS)
        self._factor = check_int("balance_factor", factor, 0, unit="per cent")
        if 0 < self._factor < 100:  # noqa: PLR2004 - per cent
            raise ConfigurationError(
                "balance_factor must be 0 for no limit, or at least 100 per cent of the mean, got "
                f"{factor}"
            )
        self._seed = check_int("seed", seed, 0)
        if routing == "session" and not any(request.session for request in trace.requests):
            msg = 'routing "session" needs sessions: no request of the trace has one'
            raise ConfigurationError(msg)
        self._replicas = range(replicas)
        self._turns = itertools.cycle(self._replicas)
        self._chances = np.random.default_rng([self._seed, 1])
        self._ranked: dict[str, list[int]] = {}

    def choose(self, request: TraceRequest, unfinished: Sequence[int]) -> int:
        """Choose the replica of a request; ``unfinished`` has the requests of each replica."""
        if self._routing == "random":
            return int(self._chances.integers(len(self._replicas)))
        key = "" if self._routing == "round_robin" else self._key(request)
        if not key:
            return next(self._turns)
        ranked = self._ranked.get(key)
        if ranked is None:
            ranked = self._ranked[key] = self._rank(key)
        if not self._factor:
            return ranked[0]
        total = sum(unfinished) + 1
        limit = math.ceil(total * self._factor / 100 / len(ranked))
        return next(replica for replica in ranked if unfinished[replica] < limit)

    def _key(self, request: TraceRequest) -> str:
        """What requests that should meet share, as :func:`affinity_key` chooses it."""
        if self._routing == "session" and request.session:
            return repr(("session", request.namespace, request.session))
        if request.documents:
            return repr(("document", request.namespace, request.documents[0][0]))
        return repr(("question", request.namespace, request.question)) if request.question else ""

    def _rank(self, key: str) -> list[int]:
        """All replicas, those that should serve a key first first.

        Adding a replica only moves the keys that it ranks first for.
        """

        def weight(replica: int) -> bytes:
            text = f"{self._seed} {replica} {key}"
            return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()

        return sorted(self._replicas, key=weight, reverse=True)
