"""What is done about faults: the knobs, and how long to wait before the next try."""

from __future__ import annotations

from dataclasses import dataclass

from ragcache_integrations.core.checks import is_number, is_whole
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "FaultSettings",
    "backoff_seconds",
    "check_limit",
    "fault_settings",
    "heartbeat_seconds",
]

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
HEARTBEATS = 4
"""So many of them are missed before a process counts as hung; at most one a second is sent."""


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """See :class:`~ragcache_integrations.engine.RAGCacheEngine` for the meanings."""

    max_restarts: int = 5
    restart_window: float = 60.0
    rewarm_tokens: int = 8192
    hang_timeout: float | None = 20.0
    step_timeout: float | None = 600.0
    request_timeout: float | None = None
    max_retries: int = 2


def fault_settings(
    *,
    max_restarts: int,
    restart_window: float,
    rewarm_tokens: int,
    hang_timeout: float | None,
    step_timeout: float | None,
    request_timeout: float | None,
    max_retries: int,
) -> FaultSettings:
    """Check the knobs.

    Raises:
        ConfigurationError: A knob is out of its range.
    """
    counts = {
        "max_restarts": max_restarts,
        "rewarm_tokens": rewarm_tokens,
        "max_retries": max_retries,
    }
    for name, count in counts.items():
        if not is_whole(count) or count < 0:
            msg = f"{name} must be a whole number of at least 0, got {count!r}"
            raise ConfigurationError(msg)
    if not is_number(restart_window) or restart_window < 0:
        msg = f"restart_window must be a number of seconds of at least 0, got {restart_window!r}"
        raise ConfigurationError(msg)
    check_limit("hang_timeout", hang_timeout)
    check_limit("step_timeout", step_timeout)
    check_limit("request_timeout", request_timeout)
    return FaultSettings(
        max_restarts,
        float(restart_window),
        rewarm_tokens,
        hang_timeout,
        step_timeout,
        request_timeout,
        max_retries,
    )


def check_limit(name: str, limit: float | None) -> None:
    """Check one of the limits on time.

    Raises:
        ConfigurationError: It is out of its range.
    """
    if limit is not None and not (is_number(limit) and limit > 0):
        msg = f"{name} must be a number of seconds above 0, or None for no limit, got {limit!r}"
        raise ConfigurationError(msg)


def heartbeat_seconds(hang_timeout: float | None) -> float:
    """How often a process has to say that it lives."""
    return min(1.0, (hang_timeout or HEARTBEATS) / HEARTBEATS)


def backoff_seconds(tries: int) -> float:
    """How long to wait before the next try: twice as long after each that failed.

    Args:
        tries: How many have failed, at least 1.
    """
    doublings = min(tries - 1, 16)  # far beyond the longest
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * float(1 << doublings))
