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

_Place = tuple[str, tuple[tuple[str, int, int], ...], tuple[int, ...]]


class PinRecord:
    """The requests that pinned documents. Thread-safe.

    It is no larger than the pins, for which the KV cache has a limit.

    Args:
        now: Clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pins: dict[_Place, tuple[Submit, float]] = {}
        self._lock = make_lock()

    def note(self, request: Submit) -> None:
        """Record a request that was answered; one that pins nothing is ignored."""
        if request.pin is not None and request.pin > 0:
            until = math.inf if request.pin >= FOREVER else self._now() + request.pin
            with self._lock:
                self._pins[_place(request)] = request, until

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
            self._pins = {
                place: (request, until)
                for place, (request, until) in self._pins.items()
                if until > now
            }
            return [
                replace(request, pin=min(FOREVER, until - now), attempt=0)
                for request, until in self._pins.values()
            ]


def _place(request: Submit) -> _Place:
    """Where in prompts the documents are pinned."""
    end = request.documents[-1][2] if request.documents else 0
    return request.namespace, request.documents, tuple(request.token_ids[:end])
