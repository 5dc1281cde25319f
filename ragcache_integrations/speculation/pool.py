"""The pool of algorithm 2: requests that wait for, or are in, their prefill."""

from __future__ import annotations

import asyncio
import contextlib

from ragcache_integrations.core.forks import make_reentrant_lock, renew_after_fork

__all__ = ["PrefillPool"]


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
