"""Counts of what an engine has done, from any thread."""

from __future__ import annotations

from dataclasses import replace

from ragcache_integrations.core.forks import make_reentrant_lock
from ragcache_integrations.core.generation import Usage

from .stats import EngineStats

__all__ = ["Counters"]


class Counters:
    """Keeps :class:`EngineStats` up to date."""

    def __init__(self) -> None:
        self._lock = make_reentrant_lock()  # reentrant: a garbage collection may count an abort
        self._stats = EngineStats()

    def _add(self, **counts: int) -> EngineStats:
        """Add to the counts of these names, and return the counts before."""
        with self._lock:
            before = self._stats
            sums = {name: getattr(before, name) + count for name, count in counts.items()}
            self._stats = replace(before, **sums)
        return before

    def started(self) -> None:
        """A request was accepted."""
        self._add(requests=1)

    def finished(self, usage: Usage) -> None:
        """A request's answer is complete."""
        self._add(
            finished_requests=1,
            prompt_tokens=usage.prompt_tokens,
            cached_prompt_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
        )

    def aborted(self) -> None:
        """A request was aborted."""
        self._add(aborted_requests=1)

    def failed(self) -> None:
        """A request ended in an error."""
        self._add(failed_requests=1)

    def restarted(self, replayed: int, resumed: int) -> None:
        """The process was restarted.

        Args:
            replayed: Number of requests that restart.
            resumed: Number of requests that resume after their emitted tokens.
        """
        self._add(restarts=1, replayed_requests=replayed, resumed_requests=resumed)

    def retried(self) -> None:
        """A request is retried."""
        self._add(retried_requests=1)

    def host_tier_failed(self, blocks: int) -> bool:
        """Count blocks that the host tier could not copy.

        Args:
            blocks: Number of blocks.

        Returns:
            Whether these are the first.
        """
        return not self._add(host_tier_failures=blocks).host_tier_failures

    def snapshot(self) -> EngineStats:
        """The counts so far."""
        return self._stats
