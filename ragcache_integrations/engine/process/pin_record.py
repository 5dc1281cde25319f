"""What is pinned, so that it can be pinned again after a restart.

The pins themselves are in the engine's process, and end with it. The application therefore keeps
the requests that made them, and when they end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.prompt import FOREVER
from ragcache_integrations.engine.protocol import Submit

__all__ = ["PinRecord"]

FEW = 64
"""Of a record this short nothing is forgotten while it grows."""

_Place = tuple[str, tuple[tuple[str, int, int], ...], tuple[int, ...]]


class PinRecord:
    """The requests that pinned documents. Thread-safe.

    It is at most about twice as large as the pins, for which the KV cache has a limit: those whose
    time is over are forgotten whenever it has doubled.

    Args:
        now: Clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pins: dict[_Place, tuple[Submit, float]] = {}
        self._full = FEW
        self._lock = make_lock()

    def __len__(self) -> int:
        return len(self._pins)

    def note(self, request: Submit) -> None:
        """Record a request that was answered; one that pins nothing is ignored."""
        if request.pin is not None and request.pin > 0:
            until = math.inf if request.pin >= FOREVER else self._now() + request.pin
            with self._lock:
                self._pins[_place(request)] = request, until
                if len(self._pins) >= self._full:
                    self._forget_ended(self._now())
                    self._full = max(FEW, 2 * len(self._pins))

    def forget(self, request: Submit) -> None:
        """Its documents are not pinned any more."""
        with self._lock:
            self._pins.pop(_place(request), None)

    def clear(self) -> None:
        """Nothing is pinned any more."""
        with self._lock:
            self._pins.clear()

    def requests(self) -> list[Submit]:
        """The requests that pin again what is pinned now, for the time that is left."""
        with self._lock:
            now = self._now()
            self._forget_ended(now)
            return [
                replace(request, pin=min(FOREVER, until - now), attempt=0)
                for request, until in self._pins.values()
            ]

    def _forget_ended(self, now: float) -> None:
        self._pins = {place: pin for place, pin in self._pins.items() if pin[1] > now}


def _place(request: Submit) -> _Place:
    """Where in prompts the documents are pinned."""
    end = request.documents[-1][2] if request.documents else 0
    return request.namespace, request.documents, tuple(request.token_ids[:end])
