"""Counts of what an engine has done, from any thread."""

from __future__ import annotations

from dataclasses import replace

from ragcache_integrations.core.forks import make_reentrant_lock
from ragcache_integrations.core.generation import Usage

from .generation import EngineStats

__all__ = ["Counters"]


class Counters:
    """Keeps :class:`EngineStats` up to date."""

    def __init__(self) -> None:
        self._lock = make_reentrant_lock()  # reentrant: a garbage collection may count an abort
        self._stats = EngineStats()

    def started(self) -> None:
        """A request was accepted."""
        with self._lock:
            self._stats = replace(self._stats, requests=self._stats.requests + 1)

    def finished(self, usage: Usage) -> None:
        """A request's answer is complete."""
        with self._lock:
            stats = self._stats
            self._stats = replace(
                stats,
                finished_requests=stats.finished_requests + 1,
                prompt_tokens=stats.prompt_tokens + usage.prompt_tokens,
                cached_prompt_tokens=stats.cached_prompt_tokens + usage.cached_tokens,
                completion_tokens=stats.completion_tokens + usage.completion_tokens,
            )

    def aborted(self) -> None:
        """A request was aborted."""
        with self._lock:
            self._stats = replace(self._stats, aborted_requests=self._stats.aborted_requests + 1)

    def failed(self) -> None:
        """A request ended in an error."""
        with self._lock:
            self._stats = replace(self._stats, failed_requests=self._stats.failed_requests + 1)

    def restarted(self, replayed: int, resumed: int) -> None:
        """The process was restarted.

        Args:
            replayed: Number of requests that restart.
            resumed: Number of requests that resume after their emitted tokens.
        """
        with self._lock:
            stats = self._stats
            self._stats = replace(
                stats,
                restarts=stats.restarts + 1,
                replayed_requests=stats.replayed_requests + replayed,
                resumed_requests=stats.resumed_requests + resumed,
            )

    def retried(self) -> None:
        """A request is retried."""
        with self._lock:
            self._stats = replace(self._stats, retried_requests=self._stats.retried_requests + 1)

    def host_tier_failed(self, blocks: int) -> bool:
        """Count blocks that the host tier could not copy.

        Args:
            blocks: Number of blocks.

        Returns:
            Whether these are the first.
        """
        with self._lock:
            before = self._stats.host_tier_failures
            self._stats = replace(self._stats, host_tier_failures=before + blocks)
        return not before

    def snapshot(self) -> EngineStats:
        """The counts so far."""
        return self._stats
