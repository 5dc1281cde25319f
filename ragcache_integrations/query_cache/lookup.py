"""Lookups: the answer of an entry to a query, its proof, and the decision whether it is a hit.

``tolerance="auto"`` learns here, too, from answers that are compared with the store's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterable
from functools import partial
from types import ModuleType
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.checks import as_number
from ragcache_integrations.query_cache.certificates import nothing_nearer, proven, proven_unit
from ragcache_integrations.query_cache.entries import NOWHERE, Entry, EntryTable
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.tolerance import AdaptiveTolerance, TenantTolerances
from ragcache_integrations.query_cache.types import (
    Candidate,
    Explanation,
    Hit,
    Metric,
    Wording,
    unanswered,
)

__all__ = ["Decisions", "Look", "Match", "Used", "apart"]


T = TypeVar("T")
Vectors = NDArray[np.float32]
Used = list[tuple[int, Entry[T]]]
"""Entries that an answer comes from, with their slots."""


class Look(NamedTuple, Generic[T]):
    """One lookup of one query.

    Attributes:
        table: The entries at its beginning.
        query: The query's embedding, shape (dim,).
        k: How many candidates to answer with, at least 1.
        now: Its time, in nanoseconds of the cache's clock.
    """

    table: EntryTable[T]
    query: Vectors
    k: int
    now: int


class Match(NamedTuple, Generic[T]):
    """The entry whose key is nearest to a query.

    Attributes:
        slot: Its place in the table.
        entry: The entry, as it was when it was found.
        distance: From the query to its key.
    """

    slot: int
    entry: Entry[T]
    distance: float


_SECOND = 1_000_000_000
# Entries whose knowledge is taken together where the nearest one's does not prove enough. More of
# them hardly prove more.
_TOGETHER = 10


class Decisions(Generic[T]):
    """Answers from a table, and decides by distance, by what is proven and by what came later.

    What it reads may change meanwhile: its caller looks again, under the lock.

    Args:
        settings: The arguments of the cache.
        kernels: The module of compiled or plain loops.

    Attributes:
        learnt: The tolerance of each tenant; ``None`` if it is fixed.
        limit: How far keys are looked for.
    """

    def __init__(self, settings: Settings, kernels: ModuleType) -> None:
        self._settings = settings
        self._kernels = kernels
        self._rank = kernels.rank
        self._unit_keys = settings.metric == "cosine"
        self._inner = settings.metric == "ip"
        self._proves = settings.proves
        self._required = settings.required_bound
        self._fixed = 0.0 if settings.tolerance == "auto" else as_number(settings.tolerance)
        unranked = settings.unranked_tolerance
        self._unranked = self._fixed if unranked is None else min(unranked, self._fixed)
        self.note_learnt(_learnt_tolerances(settings))

    def fresh(self, look: Look[T], match: Match[T]) -> bool:
        """Whether no document that came after the entry belongs in its answer."""
        table, entry = look.table, match.entry
        newest = table.reach.newest[match.slot]
        if newest == math.inf:
            return True
        if entry.readable is None or entry.complete:  # it is about to be changed
            return False
        distances = entry.readable.distances
        last = distances[min(look.k, len(distances)) - 1]
        return bool(2 * table.apart(match.distance) <= newest - last)

    def answer_from(
        self, look: Look[T], match: Match[T], ranked: NDArray[np.float64] | None = None
    ) -> Hit[T]:
        """Answer from one entry.

        Args:
            look: The lookup.
            match: The entry.
            ranked: If the kernel has ranked its candidates: the values of the best ones, then their
                positions among all of them.
        """
        table, query, k, now = look
        _, entry, distance = match
        candidates = entry.candidates
        age = (now - entry.born) / _SECOND
        values: list[float]
        order: Iterable[int]
        if ranked is not None:
            best = min(k, len(candidates))
            numbers: list[float] = ranked.tolist()
            values, order = numbers[:best], map(int, numbers[best : 2 * best])
        elif entry.readable is None or distance == 0.0:
            # The store's own order stands where the query is the same.
            bound = 1.0 if self._proves and distance == 0.0 else None
            return Hit(candidates[:k], distance, age, recall_bound=bound)
        else:
            rows, vectors = entry.readable.rows, table.pool.vectors
            places, nearest = self._rank(query, self._unit_keys, vectors, rows, self._inner)
            values, order = nearest[:k].tolist(), places[:k].tolist()
        bound = None
        if self._proves:
            bound = self._count_proven(table, match, values) / len(values) if values else 1.0
        if self._inner:
            values = [-value for value in values]
        answer = tuple([candidates[place] for place in order])
        return Hit(answer, distance, age, True, tuple(values), bound)  # noqa: FBT003 - quicker

    def _count_proven(self, table: EntryTable[T], match: Match[T], values: list[float]) -> int:
        radius = float(table.reach.radius[match.slot])
        if self._settings.unit:
            return proven_unit(values, radius, match.distance)
        return proven(values, radius, table.apart(match.distance))

    def guess(self, look: Look[T], partition: int) -> tuple[Candidate[T], ...]:
        """Return the nearest of the documents that entries nearby hold; k, or none at all."""
        return tuple(self._nearest_known(look, partition)[1])

    def _nearest_known(
        self, look: Look[T], partition: int
    ) -> tuple[Used[T], list[Candidate[T]], list[float]]:
        """Return the nearest entries, and the k nearest of the documents that they hold.

        Returns:
            The entries, with their slots; the documents, none if they are fewer than k; and their
            distances.
        """
        table, query, k, now = look
        used: Used[T] = []
        candidates: dict[int, Candidate[T]] = {}  # by their row in the pool
        for slot in table.keys.neighbours(query, partition, now, _TOGETHER):
            entry = table.entry(slot)
            if entry is None or table.partitions.get(entry.key) != partition:
                continue  # another took its place
            if entry.readable is not None:
                used.append((slot, entry))
                rows = entry.readable.rows.tolist()
                candidates |= zip(rows, entry.candidates, strict=True)
        if len(candidates) < k:
            return used, [], []
        known, vectors = list(candidates.values()), table.pool.vectors
        order, distances = self._rank(
            query, self._unit_keys, vectors, np.array(list(candidates)), self._inner
        )
        return used, [known[place] for place in order[:k].tolist()], distances[:k].tolist()

    def answer_from_several(self, look: Look[T], partition: int) -> tuple[Hit[T] | None, Used[T]]:
        """Answer from several entries where all that they know proves what is required.

        Args:
            look: The lookup.
            partition: Number of the cache key that the entries belong to.

        Returns:
            The answer if there is one, and the entries that it comes from.
        """
        table, query, k, now = look
        if not self._settings.unit:
            return None, []
        used, best, distances = self._nearest_known(look, partition)
        if not best:
            return None, used
        needed = math.ceil((self._required or 0.0) * k)
        chosen = [slot for slot, _ in used]
        keys = table.keys.keys(np.array(chosen)).astype(np.float64)
        prepared = table.keys.prepare(query).astype(np.float64)
        radii = table.reach.radius[chosen].clip(0.0, 2.0).tolist()
        if not nothing_nearer(keys, radii, prepared, distances[needed - 1], self._kernels):
            return None, used
        distance = float(np.linalg.norm(keys[0] - prepared))
        age = (now - min(entry.born for _, entry in used)) / _SECOND
        scores = tuple(distances)
        hit = Hit(tuple(best), distance, age, reranked=True, scores=scores, recall_bound=needed / k)
        return hit, used

    @property
    def tolerance(self) -> float:
        """The largest distance at which an unproven lookup of any tenant hits, now."""
        return self._fixed if self.learnt is None else self.learnt.widest

    def tolerance_of(self, key: Hashable) -> float:
        """Return the largest distance at which an unproven lookup under a cache key hits, now."""
        return self._fixed if self.learnt is None else self.learnt.value(self.tenant(key))

    def tenant(self, key: Hashable) -> Hashable:
        """Return whose questions a cache key is for: what they teach holds for no other tenant."""
        tenant_of = self._settings.tenant_of
        return key if tenant_of is None else tenant_of(key)

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
        reranks = self._settings.vectors is not None
        return self.tolerance if reranks else self._unranked

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
        fresh = self.fresh(look, match)
        if self.learnt is None and distance > self.limit_of(entry):
            return None, fresh, used
        hit = self.answer_from(look, match) if fresh else None
        if self._required is not None:
            bound = None if hit is None else hit.recall_bound
            if bound is None or bound < self._required:
                partition = look.table.partitions.get(entry.key)
                hit = None
                # Beyond what the nearest entry knows, the others prove next to nothing.
                if partition is not None and distance < reach.radius[slot]:
                    hit, others = self.answer_from_several(look, partition)
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
        k = look.k
        entries = look.table.keys.eligible(partition, k, look.now)
        match = self.nearest(look, partition)
        if match is None:
            kin = None if wording is None else self._nearest_kin(look, key, wording)
            if wording is not None and kin is not None:
                return self._apart(kin, wording, entries)
            where = "entry in the buckets searched" if entries else "entry"
            reason = f"no {where} of this key" + ("" if k == sys.maxsize else f" serves k={k}")
            return unanswered(reason, self.tolerance_of(key), entries)
        if wording is not None and not wording.accepts(match.entry.text):
            other = self.next_accepted(look, partition, wording)
            if other is None:
                return self._apart(match, wording, entries)
            match = other
        hit, fresh, _ = self.decide(look, match)
        plain = self.answer_from(look, match)
        reason = self.reason(hit, plain.recall_bound, fresh, match)
        bound = plain.recall_bound if hit is None else hit.recall_bound
        limit = self.limit_of(match.entry)
        return Explanation(hit is not None, reason, match.distance, limit, bound, entries)

    def _nearest_kin(self, look: Look[T], key: Hashable, wording: Wording) -> Match[T] | None:
        """Return the nearest entry whose cache key differs in what it says of the words alone."""
        table, query, k, now = look
        if wording.kin is None:
            return None
        expired = set(table.keys.expired(now))
        found = {
            slot: entry
            for slot, entry in enumerate(table.entries)
            if entry is not None
            and slot not in expired
            and (len(entry.candidates) >= k or entry.complete)
            and wording.kin(key, entry.key)
        }
        if not found:
            return None
        vectors = table.keys.keys(np.fromiter(found, np.intp)).astype(np.float64)
        distances = np.linalg.norm(vectors - table.keys.prepare(query), axis=1)
        distance, slot = min(zip(distances.tolist(), found, strict=True))
        return Match(slot, found[slot], distance)

    def _apart(self, match: Match[T], wording: Wording, entries: int) -> Explanation:
        """Explain why an entry does not answer that is near, but of other words."""
        distance, limit = match.distance, self.limit_of(match.entry)
        return Explanation(
            hit=False,
            reason=apart(distance, limit, wording, match.entry.text),
            distance=distance,
            tolerance=limit,
            entries=entries,
        )

    @staticmethod
    def nearest(look: Look[T], partition: int) -> Match[T] | None:
        """Return the entry whose key is nearest, however far. The cache's lock is held."""
        slot, distance = look.table.keys.nearest(look.query, partition, look.k, look.now)
        entry = look.table.entry(slot) if slot >= 0 else None
        return None if entry is None else Match(slot, entry, distance)

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
        return hit.recall_bound is not None and hit.recall_bound >= self._settings.target_recall

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
        learnt, partition = self.learnt, look.table.partitions.get(truth.key, NOWHERE)
        match = self.nearest(look, partition)
        if match is not None and wording is not None and not wording.accepts(match.entry.text):
            match = self.next_accepted(look, partition, wording)
        if learnt is None or match is None:
            return None
        (slot, _, distance), cap = match, look.table.reach.cap
        would_be_served = served or distance <= cap[slot]
        if not would_be_served or not self.fresh(look, match):
            return None
        hit = self.answer_from(look, match)
        violated = _recall(hit, truth, look.k, self._settings.metric) < self._settings.target_recall
        learnt.observe(self.tenant(truth.key), distance, violated, served=served)
        self.note_learnt(learnt)
        if violated and served:
            # Rephrasings of one near-duplicate scatter around its distance.
            cap[slot] = min(cap[slot], distance / 2)
        return not violated


def _learnt_tolerances(settings: Settings) -> TenantTolerances | None:
    if settings.tolerance != "auto":
        return None
    return TenantTolerances(
        partial(
            AdaptiveTolerance,
            target_recall=settings.target_recall,
            max_violation=settings.max_violation,
            start=settings.start_tolerance,
            largest=2.0 if settings.unit else math.inf,
            seed=settings.seed,
        )
    )


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


_UNREAD = "its text is another one, and their embeddings may be the same nevertheless"
_MOST_ASKED = 16
"""Of the nearest entries, how many have their words compared."""


def apart(distance: float, limit: float, wording: Wording, text: str) -> str:
    """Return in words why an entry that is near does not answer, as its words are other words.

    Args:
        distance: To its key.
        limit: How far it may be.
        wording: The query's words.
        text: The entry's.
    """
    near = f"the nearest entry is at distance {distance:.4g}"
    why = wording.apart(text)
    if distance <= limit:
        return f"{near}, but {why or _UNREAD}"
    return f"{near}, beyond the tolerance of {limit:.4g}" + ("" if why is None else f", and {why}")
