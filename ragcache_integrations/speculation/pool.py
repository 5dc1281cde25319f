"""The pool of algorithm 2: requests that wait for, or are in, their prefill.

The module also measures how long prefills take here, and how many of them fill the device.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace

from ragcache_integrations.core.forks import make_lock, make_reentrant_lock, renew_after_fork
from ragcache_integrations.engine import EngineLoad
from ragcache_integrations.knowledge_tree import PrefillCostModel

__all__ = ["Capacity", "Pace", "PrefillPool", "saturating_tokens"]


MEMORY = 0.9
"""How much of the running means stays when a measurement comes in."""

SATURATED = 0.8
"""Share of the highest prefill speed from which on a device counts as saturated."""


def saturating_tokens(cost: PrefillCostModel) -> int:
    """The fewest prompt tokens at once that use the device to the full (RAGCache §5.3).

    Args:
        cost: Prefill times; the speed of a device rises with the tokens and then hardly any more.

    Returns:
        Where it comes to 80 % of its highest speed.
    """
    speeds = {new: new / max(cost(0, new), 1e-12) for new in cost.new_tokens}
    enough = SATURATED * max(speeds.values())
    return next(new for new, speed in speeds.items() if speed >= enough)


@dataclass(frozen=True, slots=True)
class Pace:
    """Running means over recent requests; 0 before the first.

    Attributes:
        prompt_tokens: Length of a prompt.
        prefill_seconds: From submission to first token where nothing else was being prefilled.
        computed_tokens: Prompt tokens that were computed, not cached, in that time.
    """

    prompt_tokens: float = 0.0
    prefill_seconds: float = 0.0
    computed_tokens: float = 0.0

    def computed_in(self, seconds: float, at_most: int) -> int:
        """How many prompt tokens have been computed after some seconds."""
        if not self.prefill_seconds:
            return at_most
        speed = self.computed_tokens / self.prefill_seconds
        return min(at_most, round(seconds * speed))


class Capacity:
    """Decides by the load whether there is room for a guess, from what was measured.

    Args:
        max_prefill_bs: Prompts that may be prefilled at once; ``None`` for as many as saturate
            the device.
        saturating: Tokens that saturate it.
    """

    def __init__(self, max_prefill_bs: int | None, saturating: int) -> None:
        self._max_prefill_bs = max_prefill_bs
        self._saturating = saturating
        self._lock = make_lock()
        self.pace = Pace()

    def note_prompt(self, tokens: int) -> None:
        """A prompt was submitted."""
        with self._lock:
            mean = _mean(self.pace.prompt_tokens, tokens)
            self.pace = replace(self.pace, prompt_tokens=mean)

    def note_prefill(self, seconds: float, computed_tokens: int) -> None:
        """A prompt was prefilled alone."""
        with self._lock:
            self.pace = replace(
                self.pace,
                prefill_seconds=_mean(self.pace.prefill_seconds, seconds),
                computed_tokens=_mean(self.pace.computed_tokens, computed_tokens),
            )

    @property
    def batch_size(self) -> int:
        """Prompts at once that use the device to the full."""
        if self._max_prefill_bs is not None:
            return self._max_prefill_bs
        tokens = self.pace.prompt_tokens
        return max(1, int(self._saturating / tokens)) if tokens else 1

    def has_room(self, load: EngineLoad) -> bool:
        """Whether another prompt fits the memory and the device has time for it."""
        fitting = load.prefilling_requests + int(
            load.free_kv_tokens / max(1.0, self.pace.prompt_tokens)
        )
        pool = load.waiting_requests + load.prefilling_requests
        return pool < min(self.batch_size, fitting)


def _mean(old: float, new: float) -> float:
    return MEMORY * old + (1 - MEMORY) * new if old else float(new)


class PrefillPool:
    """Counts requests in their prefill phase. Safe from any number of threads and event loops.

    Attributes:
        departures: How many have left so far, for :meth:`departure`.
    """

    def __init__(self) -> None:
        # Reentrant: a garbage collection that ends a request in the midst of this leaves for it.
        self._lock = make_reentrant_lock()
        self._size = 0
        self.departures = 0
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._size, self._waiting = 0, {}  # requests of the parent

    def __len__(self) -> int:
        return self._size

    def enter(self, limit: int | None = None) -> bool:
        """Enter if there are fewer than ``limit`` inside; ``None`` for any number."""
        with self._lock:
            if limit is not None and self._size >= limit:
                return False
            self._size += 1
            return True

    def leave(self) -> None:
        """Leave, and wake everybody who waits for that."""
        with self._lock:
            self._size -= 1
            self.departures += 1
            waiting, self._waiting = self._waiting, {}
        for event, loop in waiting.items():
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
                loop.call_soon_threadsafe(event.set)

    async def departure(self, since: int) -> None:
        """Wait until more have left than ``since``."""
        event = asyncio.Event()
        with self._lock:
            if self.departures > since:
                return
            self._waiting[event] = asyncio.get_running_loop()
        try:
            await event.wait()
        finally:
            with self._lock:
                self._waiting.pop(event, None)
