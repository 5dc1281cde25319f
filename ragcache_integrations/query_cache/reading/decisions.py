"""Whether a match is a hit, and why."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np

from ragcache_integrations.core.checks import as_number
from ragcache_integrations.query_cache.entries import Entry
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.tolerance import TenantTolerances
from ragcache_integrations.query_cache.types import Explanation, Hit, Wording, unanswered

from .answers import Answers, Look, Match, Used

__all__ = ["Decisions"]

T = TypeVar("T")

_MOST_ASKED = 16
"""Of the nearest entries, how many have their words compared."""


class Decisions(Generic[T]):
    """Decides by distance, by what is proven, and by what came after an entry.

    Args:
        settings: The arguments of the cache.
        answers: Reads what entries answer.
        learnt: What tenants have learnt; ``None`` if the tolerance is fixed.

    Attributes:
        learnt: The tolerance of each tenant, unless it is fixed.
        limit: How far keys are looked for.
    """

    def __init__(
        self, settings: Settings, answers: Answers[T], learnt: TenantTolerances | None
    ) -> None:
        self._answers = answers
        self._fixed = 0.0 if settings.tolerance == "auto" else as_number(settings.tolerance)
        unranked = settings.unranked_tolerance
        self._unranked = self._fixed if unranked is None else min(unranked, self._fixed)
        self._reranks = settings.vectors is not None
        self._proves = settings.proves
        self._required = settings.required_bound
        self._target = settings.target_recall
        self._tenant_of = settings.tenant_of
        self.note_learnt(learnt)

    @property
    def tolerance(self) -> float:
        """The largest distance at which an unproven lookup of any tenant hits, now."""
        return self._fixed if self.learnt is None else self.learnt.widest

    def tolerance_of(self, key: Hashable) -> float:
        """Return the largest distance at which an unproven lookup under a cache key hits, now."""
        return self._fixed if self.learnt is None else self.learnt.value(self.tenant(key))

    def tenant(self, key: Hashable) -> Hashable:
        """Return whose questions a cache key is for: what they teach holds for no other tenant."""
        return key if self._tenant_of is None else self._tenant_of(key)

    def note_learnt(self, learnt: TenantTolerances | None) -> None:
        """Go by what has been learnt by now.

        Args:
            learnt: Learns the tolerances from now on.
        """
        self.learnt = learnt
        self.limit = self._fixed if learnt is None else learnt.reach
        if learnt is not None and self._proves:
            self.limit = math.inf  # proofs may allow what the tolerance learnt does not

    @property
    def farthest(self) -> float:
        """The largest distance at which any entry answers an unproven lookup, now."""
        return self.tolerance if self._reranks else self._unranked

    def limit_of(self, entry: Entry[T]) -> float:
        """How far an unproven lookup may be from the key of an entry to hit."""
        if self.learnt is not None:
            return self.tolerance_of(entry.key)
        return self._unranked if entry.readable is None else self._fixed

    def decide(self, look: Look[T], match: Match[T]) -> tuple[Hit[T] | None, bool, Used[T]]:
        """Return the hit that a match gives, whether the entry is fresh, and what was read."""
        slot, entry, distance = match
        reach = look.table.reach
        used = [(slot, entry)]
        fresh = self._answers.fresh(look, match)
        if self.learnt is None and distance > self.limit_of(entry):
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
        elif hit is not None and self.learnt is not None:
            limit = min(self.tolerance_of(entry.key), reach.cap[slot])
            if distance > limit and not self.suffices(hit):
                hit = None
        return hit, fresh, used

    def explain(
        self, look: Look[T], partition: int, key: Hashable, wording: Wording | None = None
    ) -> Explanation:
        """Explain why a lookup hits or misses. The cache's lock is held."""
        table, query, k, now = look
        entries = table.keys.eligible(partition, k, now)
        slot, distance = table.keys.nearest(query, partition, k, now)
        if slot < 0:
            where = "entry in the buckets searched" if entries else "entry"
            reason = f"no {where} of this key serves k={k}"
            return unanswered(reason, self.tolerance_of(key), entries)
        entry = table.entry(slot)
        assert entry is not None  # noqa: S101 - found under the lock
        match = Match(slot, entry, distance)
        if wording is not None and not wording.accepts(entry.text):
            other = self.next_accepted(look, partition, wording)
            if other is None:
                reason = f"the nearest entry is at distance {distance:.4g}, but of other words"
                tolerance = self.limit_of(entry)
                return Explanation(False, reason, distance, tolerance, None, entries)  # noqa: FBT003 - no hit
            match = other
            entry, distance = match.entry, match.distance
        hit, fresh, _ = self.decide(look, match)
        plain = self._answers.of_entry(look, match)
        reason = self.reason(hit, plain.recall_bound, fresh, match)
        bound = plain.recall_bound if hit is None else hit.recall_bound
        limit = self.limit_of(entry)
        return Explanation(hit is not None, reason, distance, limit, bound, entries)

    def next_accepted(self, look: Look[T], partition: int, wording: Wording) -> Match[T] | None:
        """Return the nearest entry whose words may be answered alike. The cache's lock is held."""
        table = look.table
        prepared = table.keys.prepare(look.query).astype(np.float64)
        for slot in table.keys.neighbours(look.query, partition, look.now, _MOST_ASKED):
            entry = table.entry(slot)
            if entry is None or (len(entry.candidates) < look.k and not entry.complete):
                continue
            distance = float(np.linalg.norm(table.keys.key(slot) - prepared))
            if distance > self.limit:
                return None
            if wording.accepts(entry.text):
                return Match(slot, entry, distance)
        return None

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
            fixed = self.learnt is None
            unranked = " of answers that are not re-ranked" if fixed and limit < self._fixed else ""
            return f"{near}, beyond the tolerance of {limit:.4g}{unranked}"
        if self._required is not None:
            proved = "nothing is proven of it" if bound is None else f"{bound:.2f} is proven"
            return f"{near}, but of the recall of {self._required:.2f} asked for, {proved}"
        return f"{near}, but a check of an answer of this entry at such a distance failed"
