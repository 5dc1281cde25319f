"""What comes of a match that a scan without a lock found."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.entries import Contents
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.types import Hit, Wording

from .answers import Answers, Look, Match
from .decisions import Decisions

__all__ = ["Conclusions"]

T = TypeVar("T")


class Conclusions(Generic[T]):
    """Concludes lookups, and counts them.

    Args:
        settings: The arguments of the cache.
        contents: What the cache holds.
        answers: Answers from entries.
        decisions: Decides whether a match is a hit.
    """

    def __init__(
        self,
        settings: Settings,
        contents: Contents[T],
        answers: Answers[T],
        decisions: Decisions[T],
    ) -> None:
        self._settings = settings
        self._contents = contents
        self._answers = answers
        self._decisions = decisions
        # Nothing but the distance decides.
        self._simple = decisions.learnt is None and settings.guarantee is None

    def conclude(
        self,
        look: Look[T],
        slot: int,
        sequence: int,
        distance: float,
        ranked: NDArray[np.float64] | None = None,
        count: int = -1,
    ) -> tuple[bool, Hit[T] | None]:
        """Return whether the match is still valid, and its answer.

        Args:
            look: The lookup.
            slot: Place of the entry in the table.
            sequence: Number of its insertion.
            distance: From the query to its key.
            ranked: What the kernel ranked.
            count: Of how many candidates; -1 where it ranked none.
        """
        contents, table = self._contents, look.table
        entry = table.entries[slot]
        if entry is None or entry.sequence != sequence:
            return False, None
        if len(entry.candidates) < look.k and not entry.complete:  # documents went since the scan
            return False, None
        match = Match(slot, entry, distance)
        too_far = entry.readable is None and distance > self._decisions.limit_of(entry)
        if not self._simple or table.disturbed or too_far:
            return self._weigh(look, match)
        if count < 0:
            hit = self._answers.of_entry(look, match)
        elif count == len(entry.candidates):
            assert ranked is not None  # noqa: S101 - something was ranked
            hit = self._answers.of_ranked(look, match, ranked)
        else:  # documents went since the scan
            return False, None
        with contents.lock:
            if table is not contents.table or table.entries[slot] is not entry:
                return False, None
            contents.counts["lookups"] += 1
            contents.counts["hits"] += 1
            if hit.recall_bound == 1.0:
                contents.counts["proven"] += 1
            table.keys.touch(slot)
        return True, hit

    def of_other_words(self, look: Look[T], partition: int, wording: Wording) -> Hit[T] | None:
        """Answer from the nearest entry whose words may be answered alike, and count that."""
        contents = self._contents
        while True:
            with contents.lock:
                match = None
                if look.table is contents.table:
                    match = self._decisions.next_accepted(look, partition, wording)
                if match is None:
                    contents.counts["lookups"] += 1
                    return None
            valid, hit = self._weigh(look, match)
            if valid:
                return hit

    def _weigh(self, look: Look[T], match: Match[T]) -> tuple[bool, Hit[T] | None]:
        """Version of :meth:`conclude` for caches in which more than the distance decides."""
        contents, table = self._contents, look.table
        hit, fresh, used = self._decisions.decide(look, match)
        with contents.lock:
            if table is not contents.table or any(
                table.entry(slot) is not was for slot, was in used
            ):
                return False, None
            contents.counts["lookups"] += 1
            if hit is None:
                if not fresh or self._settings.guarantee is not None:
                    contents.counts["unproven" if fresh else "stale"] += 1
                return True, None
            contents.counts["hits"] += 1
            if hit.recall_bound == 1.0:
                contents.counts["proven"] += 1
            learnt = self._decisions.learnt
            if learnt is not None and not self._decisions.suffices(hit):
                tenant = self._decisions.tenant(match.entry.key)
                hit.check = learnt.wants_check(tenant, match.distance)
            table.keys.touch(match.slot)
        return True, hit
