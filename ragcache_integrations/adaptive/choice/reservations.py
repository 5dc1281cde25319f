"""What the answers in the making will still take of the memory."""

from __future__ import annotations

import time
from collections.abc import Callable

from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel

from .best_fit import CallPlan, Choice, Situation
from .load import MemoryLoad

__all__ = ["Reservations"]

MEMORY = 0.9
"""How much of the running means stays when a measurement comes in."""

ARRIVAL_SECONDS = 0.05
"""Until then a plan's calls have reached the engine, which tells of them when asked later."""

PACE_LIMITS = (0.01, 100.0)


class Reservations:
    """Counts the memory of answers in the making, so that two do not take the same. Thread-safe.

    What an engine says is free does not tell of requests that have not reached it, nor of those
    that wait in its queue. Both are taken off: the first for as long as they take to get there, the
    second by their number and the usual need of a call.

    Args:
        clock: Seconds that only rise.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = make_lock()
        self._plans: dict[int, tuple[float, CallPlan]] = {}
        self._tickets = 0
        self._call_tokens = 0.0
        self._pace = 1.0
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._plans = {}  # answers that the parent makes

    @property
    def idle(self) -> bool:
        """Whether no answer is in the making."""
        return not self._plans

    @property
    def pace(self) -> float:
        """How long answers take here, as a multiple of what is estimated; a running mean."""
        return self._pace

    def choose(
        self,
        load: MemoryLoad,
        latency_budget: float | None,
        prefill: PrefillCostModel,
        choose: Callable[[Situation], Choice],
        *,
        as_of: float | None = None,
    ) -> tuple[Choice, int]:
        """Choose a configuration and reserve its memory, before anyone else chooses.

        Args:
            load: What the engine says.
            latency_budget: Seconds that the answer may take.
            prefill: Prefill seconds, by which the queue is timed.
            choose: Chooses what fits a situation.
            as_of: When the engine was asked, by the clock; now where ``None``.

        Returns:
            The choice, and its ticket.
        """
        with self._lock:
            waiting = load.waiting_requests * self._call_tokens
            since = (self._clock() if as_of is None else as_of) - ARRIVAL_SECONDS
            coming = sum(plan.footprint for born, plan in self._plans.values() if born >= since)
            free = load.free_tokens - waiting - coming
            queue = load.waiting_requests * prefill(0, int(self._call_tokens)) if waiting else 0.0
            choice = choose(Situation(int(free), latency_budget, queue, self._pace))
            return choice, self._enter(choice.plan)

    def leave(self, ticket: int) -> None:
        """Give a plan's memory back; its answer was given, or given up."""
        with self._lock:
            self._plans.pop(ticket, None)

    def note(self, estimated: float, measured: float) -> None:
        """Learn from how long an answer took.

        Args:
            estimated: Seconds that it should have taken by the cost model alone.
            measured: Seconds that it took.
        """
        if estimated <= 0:
            return
        low, high = PACE_LIMITS
        with self._lock:
            ratio = min(high, max(low, measured / estimated))
            self._pace = MEMORY * self._pace + (1 - MEMORY) * ratio

    def _enter(self, plan: CallPlan) -> int:
        self._tickets += 1
        self._plans[self._tickets] = (self._clock(), plan)
        mean = sum(call.need for call in plan.calls) / len(plan.calls)
        old = self._call_tokens
        self._call_tokens = MEMORY * old + (1 - MEMORY) * mean if old else mean
        return self._tickets
