"""How many new tenants a minute may bring their own salt.

Each salt has KV caches of its own, so that somebody who sends a new one with every request evicts
everybody else's. Requests that are refused compute nothing, and count for nothing.
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
"""Tenants that are remembered, those seen last."""

MINUTE = 60.0


@dataclass(slots=True)
class _Pending:
    """A new salt of which no request has been served yet.

    Attributes:
        account: Whose minute it counts in.
        since: When it was let in.
        requests: How many with it are under way.
    """

    account: bytes
    since: float
    requests: int = 0


class TenantLimit:
    """Counts the salts that were not seen lately, in a sliding window of a minute.

    Args:
        per_minute: How many are let in for each account; 0 for all.
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
        self._pending: dict[bytes, _Pending] = {}
        self._entered: dict[bytes, deque[float]] = {}

    def admit(self, salt: str, account: bytes = b"") -> int | None:
        """Let a request in, or say after how many whole seconds it may come again.

        A request that was let in must be settled.

        Args:
            salt: The request's.
            account: Who pays for it, such as the digest of an API key.
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
        """End a request that was let in.

        Args:
            salt: The request's.
            served: Whether anything may have been computed for it. A new salt with which nothing
                was, counts no more.
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
    """A salt may be long, and is a secret."""
    return hashlib.blake2b(salt.encode(), digest_size=16).digest()
