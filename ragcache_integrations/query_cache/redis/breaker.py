"""Leaves a server alone that does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from ragcache_integrations.core.forks import make_lock

__all__ = ["Breaker"]


class Breaker:
    """A circuit breaker: after some failures in a row, most requests are not even tried.

    Once in a while one is let through; when it succeeds, so are all. Thread-safe.

    Args:
        failures: How many failures in a row open it.
        pause: Seconds between two tries while it is open.
        clock: Returns a monotonic time in seconds.
    """

    def __init__(
        self, failures: int, pause: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = failures
        self._pause = pause
        self._clock = clock
        self._lock = make_lock()
        self._failed = 0
        self._next_try = 0.0

    def allows(self) -> bool:
        """Whether a request may be tried now. Who hears yes says what came of it."""
        if self._failed < self._most:
            return True
        with self._lock:
            now = self._clock()
            if now < self._next_try:
                return False
            self._next_try = now + self._pause
            return True

    def fail(self) -> bool:
        """Note a failure; return whether it was the one that opened the breaker."""
        with self._lock:
            self._failed += 1
            self._next_try = self._clock() + self._pause
            return self._failed == self._most

    def succeed(self) -> bool:
        """Note a success; return whether the breaker was open."""
        if not self._failed:
            return False
        with self._lock:
            was_open = self._failed >= self._most
            self._failed = 0
            return was_open
