"""Limits the number of new tenants per minute.

Each cache salt has separate KV caches, so that a client that sends a new salt with every request
would evict everybody else's. Refused requests compute nothing, and do not count.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["TenantLimit"]

KNOWN = 65_536
"""Number of tenants that are remembered, the most recent ones."""

MINUTE = 60.0


@dataclass(slots=True)
class _Pending:
    """A new salt of which no request has been served yet.

    Attributes:
        account: Account in whose minute it counts.
        since: When it was admitted, in seconds of the clock.
        requests: Number of unfinished requests with it.
    """

    account: bytes
    since: float
    requests: int = 0


class TenantLimit:
    """Counts the salts that were not seen lately, in a sliding window of a minute.

    Args:
        per_minute: How many are admitted for each account; 0 for no limit.
        known: How many salts are remembered.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, per_minute: int, *, known: int = KNOWN, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_minute = per_minute
        self._most = known
        self._clock = clock
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._pending: dict[bytes, _Pending] = {}
        self._entered: dict[bytes, deque[float]] = {}

    def admit(self, salt: str, account: bytes = b"") -> int | None:
        """Admit a request; every admitted request must be settled.

        Args:
            salt: The request's cache salt.
            account: The account in which a new salt counts, such as the digest of an API key.

        Returns:
            ``None`` if the request is admitted, else whole seconds after which it may be sent
            again.
        """
        key = _key(salt)
        if not self._per_minute or key in self._known:
            return None
        pending = self._pending.get(key)
        if pending is None:
            now = self._clock()
            entered = self._entered.setdefault(account, deque())
            while entered and now - entered[0] >= MINUTE:
                entered.popleft()
            if len(entered) >= self._per_minute:
                return max(1, math.ceil(MINUTE - (now - entered[0])))
            entered.append(now)
            pending = self._pending[key] = _Pending(account, now)
        pending.requests += 1
        return None

    def settle(self, salt: str, *, served: bool) -> None:
        """Settle an admitted request when it ends.

        Args:
            salt: The request's cache salt.
            served: Whether anything may have been computed for it. A new salt for which nothing was
                computed no longer counts.
        """
        if not self._per_minute:
            return
        key = _key(salt)
        pending = self._pending.get(key)
        if pending is not None:
            pending.requests -= 1
        if served:
            self._pending.pop(key, None)
            self._known[key] = None
        if key in self._known:
            self._known.move_to_end(key)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        elif pending is not None and not pending.requests:
            del self._pending[key]
            entered = self._entered[pending.account]
            if pending.since in entered:  # not yet a minute ago
                entered.remove(pending.since)


def _key(salt: str) -> bytes:
    """A digest of a salt, which may be long and is a secret."""
    return hashlib.blake2b(salt.encode(), digest_size=16).digest()
