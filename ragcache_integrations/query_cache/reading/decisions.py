"""Whether a match is a hit, and why."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

from ragcache_integrations.core.checks import as_number
from ragcache_integrations.query_cache.entries import Entry
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.tolerance import AdaptiveTolerance
from ragcache_integrations.query_cache.types import Explanation, Hit, unanswered

from .answers import Answers, Look, Match, Used

__all__ = ["Decisions"]

T = TypeVar("T")


class Decisions(Generic[T]):
    """Decides by distance, by what is proven, and by what came after an entry.

    Args:
        settings: The arguments of the cache.
        answers: Reads what entries answer.
        adaptive: Learns the tolerance; ``None`` where it is fixed.

    Attributes:
        adaptive: Learns the tolerance, where it is not fixed.
        limit: How far keys are looked for.
    """

    def __init__(
        self, settings: Settings, answers: Answers[T], adaptive: AdaptiveTolerance | None
    ) -> None:
        self._answers = answers
        self._fixed = 0.0 if settings.tolerance == "auto" else as_number(settings.tolerance)
        unranked = settings.unranked_tolerance
        self._unranked = self._fixed if unranked is None else min(unranked, self._fixed)
        self._reranks = settings.vectors is not None
        self._proves = settings.proves
        self._required = settings.required_bound
        self._target = settings.target_recall
        self.note_learnt(adaptive)

    @property
    def tolerance(self) -> float:
        """The largest distance at which an unproven lookup hits, now."""
        return self._fixed if self.adaptive is None else self.adaptive.value

    def note_learnt(self, adaptive: AdaptiveTolerance | None) -> None:
        """Go by what has been learnt by now.

        Args:
            adaptive: Learns the tolerance from now on.
        """
        self.adaptive = adaptive
        # Proofs may allow what the tolerance learnt does not.
        self.limit = math.inf if adaptive is not None and self._proves else self.tolerance

    @property
    def farthest(self) -> float:
        """The largest distance at which any entry answers an unproven lookup, now."""
        return self.tolerance if self._reranks else self._unranked

    def limit_of(self, entry: Entry[T]) -> float:
        """How far an unproven lookup may be from the key of an entry to hit."""
        if self.adaptive is not None:
            return self.tolerance
        return self._unranked if entry.readable is None else self._fixed

    def decide(self, look: Look[T], match: Match[T]) -> tuple[Hit[T] | None, bool, Used[T]]:
        """Return the hit that a match gives, whether the entry is fresh, and what was read."""
        slot, entry, distance = match
        reach = look.table.reach
        used = [(slot, entry)]
        fresh = self._answers.fresh(look, match)
        if self.adaptive is None and distance > self.limit_of(entry):
            return None, fresh, used
        hit = self._answers.of_entry(look, match) if fresh else None
        if self._required is not None:
            bound = None if hit is None else hit.recall_bound
            if bound is None or bound < self._required:
                partition = look.table.partitions.get(entry.key)
                hit = None
                # Beyond what the nearest entry knows, the others prove next to nothing.
                if partition is not None and distance < reach.radius[slot]:
                    hit, others = self._answers.of_several(look, partition)
                    used += others
        elif hit is not None and self.adaptive is not None:
            limit = min(self.tolerance, reach.cap[slot])
            if distance > limit and not self.suffices(hit):
                hit = None
        return hit, fresh, used

    def explain(self, look: Look[T], partition: int) -> Explanation:
        """Explain why a lookup hits or misses. The cache's lock is held."""
        table, query, k, now = look
        entries = table.keys.eligible(partition, k, now)
        slot, distance = table.keys.nearest(query, partition, k, now)
        if slot < 0:
            where = "entry in the buckets searched" if entries else "entry"
            return unanswered(f"no {where} of this key serves k={k}", self.tolerance, entries)
        entry = table.entry(slot)
        assert entry is not None  # noqa: S101 - found under the lock
        match = Match(slot, entry, distance)
        hit, fresh, _ = self.decide(look, match)
        plain = self._answers.of_entry(look, match)
        reason = self.reason(hit, plain.recall_bound, fresh, match)
        bound = plain.recall_bound if hit is None else hit.recall_bound
        limit = self.limit_of(entry)
        return Explanation(hit is not None, reason, distance, limit, bound, entries)

    def suffices(self, hit: Hit[T]) -> bool:
        """Whether a hit is proven to be no violation, for a tolerance that is learnt."""
        return hit.recall_bound is not None and hit.recall_bound >= self._target

    def reason(self, hit: Hit[T] | None, bound: float | None, fresh: bool, match: Match[T]) -> str:
        """Return in words why a lookup hits or misses.

        Args:
            hit: The answer; ``None`` for a miss.
            bound: What is proven of the nearest entry's answer.
            fresh: Whether no newer document belongs in that entry's answer.
            match: That entry.
        """
        distance, limit = match.distance, self.limit_of(match.entry)
        near = f"the nearest entry is at distance {distance:.4g}"
        if hit is not None:
            if distance > limit:
                return f"{near}; beyond the tolerance, but its answer is proven"
            return f"{near}, within the tolerance of {limit:.4g}"
        if not fresh:
            return f"{near}, but newer documents may belong in the answer"
        if distance > limit:
            unranked = " of answers that are not re-ranked" if limit < self.tolerance else ""
            return f"{near}, beyond the tolerance of {limit:.4g}{unranked}"
        if self._required is not None:
            proved = "nothing is proven of it" if bound is None else f"{bound:.2f} is proven"
            return f"{near}, but of the recall of {self._required:.2f} asked for, {proved}"
        return f"{near}, but a check of an answer of this entry at such a distance failed"
