"""Reserves memory for the answers that are being made."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel

from .best_fit import CallPlan, Choice, Situation
from .load import MemoryLoad

__all__ = ["Reservations"]

MEMORY = 0.9
"""Weight of the old value when a running mean is updated."""

ARRIVAL_SECONDS = 0.05
"""Within this time a plan's calls reach the engine, whose load includes them from then on."""

Chosen = TypeVar("Chosen", bound=Choice | None)

PACE_LIMITS = (0.01, 100.0)
"""The least and the largest ratio that one answer counts for."""


class Reservations:
    """Reserves the memory of answers that are being made, so that no two get the same. Thread-safe.

    The free memory that an engine reports excludes neither requests that have not reached it yet
    nor those that wait in its queue. Both are subtracted: the former until they should have reached
    it, the latter by their number times the mean need of a call.

    Args:
        clock: A monotonic clock, in seconds.

    Attributes:
        pace: Running mean of the answers' measured over their estimated seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = make_lock()
        self._plans: dict[int, tuple[float, CallPlan]] = {}
        self._tickets = 0
        self._call_tokens = 0.0
        self.pace = 1.0
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._plans = {}  # they are the parent's

    @property
    def idle(self) -> bool:
        """Whether no answer is being made."""
        return not self._plans

    def choose(
        self,
        load: MemoryLoad,
        latency_budget: float | None,
        prefill: PrefillCostModel,
        choose: Callable[[Situation], Chosen],
        *,
        as_of: float | None = None,
    ) -> tuple[Chosen, int]:
        """Choose a configuration and reserve its memory, before anyone else chooses.

        Args:
            load: The load that the engine reports.
            latency_budget: Seconds that the answer may take; ``None`` for no limit.
            prefill: Estimates prefill seconds, and so how long the queue takes.
            choose: Chooses a configuration that fits a situation; ``None`` if it takes none.
            as_of: When the load was read, by the clock; ``None`` for now.

        Returns:
            The choice, and the ticket that :meth:`leave` takes; 0 for no choice.
        """
        with self._lock:
            waiting = load.waiting_requests * self._call_tokens
            since = (self._clock() if as_of is None else as_of) - ARRIVAL_SECONDS
            plans = self._plans.copy().values()
            coming = sum(plan.footprint for born, plan in plans if born >= since)
            free = load.free_tokens - waiting - coming
            queue = load.waiting_requests * prefill(0, int(self._call_tokens)) if waiting else 0.0
            choice = choose(Situation(int(free), latency_budget, queue, self.pace))
            return choice, 0 if choice is None else self._enter(choice.plan)

    def leave(self, ticket: int) -> None:
        """Release the memory of a plan whose answer is complete or cancelled. Idempotent."""
        # Without the lock: the garbage collector, which closes streams that were given up, may call
        # this in the midst of a choice.
        self._plans.pop(ticket, None)

    def note(self, estimated: float, measured: float) -> None:
        """Update the pace by an answer.

        Args:
            estimated: Seconds that it should have taken, by the cost model alone.
            measured: Seconds that it took.
        """
        if estimated <= 0:
            return
        low, high = PACE_LIMITS
        with self._lock:
            ratio = min(high, max(low, measured / estimated))
            self.pace = MEMORY * self.pace + (1 - MEMORY) * ratio

    def _enter(self, plan: CallPlan) -> int:
        self._tickets += 1
        self._plans[self._tickets] = (self._clock(), plan)
        mean = sum(call.need for call in plan.calls) / len(plan.calls)
        old = self._call_tokens
        self._call_tokens = MEMORY * old + (1 - MEMORY) * mean if old else mean
        return self._tickets
