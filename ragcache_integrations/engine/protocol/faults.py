"""What the engine does about faults: its settings, and the pause before the next attempt."""

from __future__ import annotations

from dataclasses import dataclass

from ragcache_integrations.core.checks import check_field, check_int, check_number, check_seconds

__all__ = ["FaultSettings", "backoff_seconds", "heartbeat_seconds"]

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
HEARTBEATS = 4
"""A process that misses this many in a row counts as hung; at most one a second is sent."""


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """See :class:`~ragcache_integrations.engine.RAGCacheEngine` for the meanings.

    Raises:
        ConfigurationError: A setting is out of its range.
    """

    max_restarts: int = 5
    restart_window: float = 60.0
    rewarm_tokens: int = 8192
    hang_timeout: float | None = 20.0
    step_timeout: float | None = 600.0
    request_timeout: float | None = None
    max_retries: int = 2

    def __post_init__(self) -> None:
        for name in ("max_restarts", "rewarm_tokens", "max_retries"):
            check_field(self, check_int, name, 0)
        check_field(self, check_number, "restart_window", 0, unit="seconds")
        for name in ("hang_timeout", "step_timeout", "request_timeout"):
            check_field(self, check_seconds, name, also="None for no limit")


def heartbeat_seconds(hang_timeout: float | None) -> float:
    """Seconds between the heartbeats that a process must send."""
    return min(1.0, (hang_timeout or HEARTBEATS) / HEARTBEATS)


def backoff_seconds(tries: int) -> float:
    """Seconds to wait before the next attempt: twice as long after each failure.

    Args:
        tries: Number of failed attempts, at least 1.
    """
    doublings = min(tries - 1, 16)  # far beyond the longest
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * float(1 << doublings))
