"""How many new tenants a minute may bring their own salt.

Each salt has KV caches of its own, so that somebody who sends a new one with every request evicts
everybody else's.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable

__all__ = ["TenantLimit"]

KNOWN = 65_536
"""Tenants that are remembered, those seen last."""

MINUTE = 60.0


class TenantLimit:
    """Counts the salts that were not seen lately, in a sliding window of a minute.

    Args:
        per_minute: How many are let in; 0 for all.
        known: How many salts are remembered.
        clock: Gives seconds.
    """

    def __init__(
        self, per_minute: int, *, known: int = KNOWN, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_minute = per_minute
        self._most = known
        self._clock = clock
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._entered: deque[float] = deque()

    def admit(self, salt: str) -> int | None:
        """Let a request in, or say after how many whole seconds it may come again."""
        if not self._per_minute:
            return None
        # A salt may be long, and is a secret.
        key = hashlib.blake2b(salt.encode(), digest_size=16).digest()
        if key in self._known:
            self._known.move_to_end(key)
            return None
        now = self._clock()
        while self._entered and now - self._entered[0] >= MINUTE:
            self._entered.popleft()
        if len(self._entered) >= self._per_minute:
            return max(1, math.ceil(MINUTE - (now - self._entered[0])))
        self._entered.append(now)
        self._known[key] = None
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return None
