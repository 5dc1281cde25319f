"""What ``tolerance="auto"`` learns from: answers of entries, compared with the store's."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

from ragcache_integrations.query_cache.entries import NOWHERE, Entry
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.types import Hit, Metric, Wording

from .answers import Answers, Look, Match
from .decisions import Decisions

__all__ = ["Learning"]

T = TypeVar("T")


class Learning(Generic[T]):
    """Labels answers for the tolerance. Its owner holds the lock.

    Args:
        settings: The arguments of the cache.
        answers: Answers from entries.
        decisions: Has the tolerance that is learnt.
    """

    def __init__(self, settings: Settings, answers: Answers[T], decisions: Decisions[T]) -> None:
        self._settings = settings
        self._answers = answers
        self._decisions = decisions

    def learn(
        self, look: Look[T], truth: Entry[T], wording: Wording | None, *, served: bool
    ) -> bool | None:
        """Compare what the nearest entry answers with what the store said.

        Args:
            look: The query.
            truth: What the store said for it, under its cache key.
            wording: Its words; an entry of other ones says nothing.
            served: Whether the cache answered so.

        Returns:
            Whether the answer was good enough; ``None`` where there is none to learn from.
        """
        table, learnt = look.table, self._decisions.learnt
        partition = table.partitions.get(truth.key, NOWHERE)
        slot, distance = table.keys.nearest(look.query, partition, look.k, look.now)
        entry = table.entry(slot) if slot >= 0 else None
        if learnt is None or entry is None:
            return None
        match: Match[T] | None = Match(slot, entry, distance)
        if wording is not None and not wording.accepts(entry.text):
            match = self._decisions.next_accepted(look, partition, wording)
        if match is None:
            return None
        (slot, entry, distance), cap = match, table.reach.cap
        would_be_served = served or distance <= cap[slot]
        if not would_be_served or not self._answers.fresh(look, match):
            return None
        hit = self._answers.of_entry(look, match)
        violated = _recall(hit, truth, look.k, self._settings.metric) < self._settings.target_recall
        learnt.observe(self._decisions.tenant(truth.key), distance, violated, served=served)
        self._decisions.note_learnt(learnt)
        if violated and served:
            # Rephrasings of one near-duplicate scatter around its distance.
            cap[slot] = min(cap[slot], distance / 2)
        return not violated


def _recall(hit: Hit[T], truth: Entry[T], k: int, metric: Metric) -> float:
    """Return the share of the store's k documents that an answer has.

    A document as near as the last of them counts, too: the store could have returned it as well.

    Args:
        hit: The answer.
        truth: What the store said for the same query.
        k: How many documents were requested.
        metric: How the cache ranks documents.
    """
    right = {(candidate.id, candidate.fingerprint) for candidate in truth.candidates[:k]}
    if not right:
        return 1.0
    furthest = -math.inf
    if truth.readable is not None and hit.scores is not None:
        distances = truth.readable.distances
        last = float(distances[min(k, len(distances)) - 1])
        furthest = last + 1e-9 * abs(last)
    scores = hit.scores or [math.nan] * len(hit.candidates)
    correct = sum(
        (candidate.id, candidate.fingerprint) in right
        or (-score if metric == "ip" else score) <= furthest
        for candidate, score in zip(hit.candidates, scores, strict=True)
    )
    return min(correct, len(right)) / len(right)
