"""Which earlier answer a question may be served, free of any framework.

Two questions may share an answer only if they would be answered from the same documents, in the
same scope (tenant, chain, settings, other inputs), and the guard sees no difference between them.
All of that is one key, and an answer is looked for only among those with an equal key. So nothing
has to be invalidated: when a document changes, the questions that find it have another key.

Within a key, the same words are served at once. Other words are served up to a distance that is
learnt (:class:`~ragcache_integrations.query_cache.tolerance.AdaptiveTolerance`) for all entries
of a scope, which is where the bound on the share of wrong answers comes from, and up to the cap of
the entry, which is lowered for good when it answered wrongly. That is the idea of vCache (Schroeder
et al., 2025, https://arxiv.org/abs/2502.03771), a threshold for each entry, without the need to see
each entry hundreds of times.

The last times that something was forgotten are remembered, so that an answer that was begun before
is not kept afterwards.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.files import decode_learning, encode_learning
from ragcache_integrations.query_cache.tolerance import AdaptiveTolerance, TenantTolerances
from ragcache_integrations.retrievers.keys import (
    QuestionMarks,
    may_share,
    question_difference,
    question_marks,
)

from .entries import CachedAnswer, Group, Question, Record, Vector, nearest, unit_vector, words_of
from .knobs import AnswerKnobs
from .types import METRICS, AnswerExplanation, AnswerStats

__all__ = ["AnswerCore", "Forgettings", "Held", "Near"]


_MOST = 64
"""That are remembered. An answer that more have overtaken is taken for forgotten."""


class Forgettings:
    """Remembers the last times that a cache forgot something. Not thread-safe.

    Attributes:
        count: How often that was.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last: deque[Callable[[Question], bool]] = deque(maxlen=_MOST)

    def add(self, matches: Callable[[Question], bool]) -> None:
        """Remember that the answers to some questions were forgotten."""
        self.count += 1
        self._last.append(matches)

    def concern(self, question: Question, moment: int) -> bool:
        """Whether the answers to a question were forgotten since :attr:`count` was ``moment``."""
        missed = self.count - moment
        return missed > len(self._last) or any(
            matches(question) for matches in list(self._last)[len(self._last) - missed :]
        )


A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Near(Generic[A]):
    """The entry nearest to a question, among those of its key.

    Attributes:
        entry: The entry.
        distance: To its question, from 0.
        served: Whether its answer is to be served.
        check: Whether it is to be answered again nevertheless, in the background, and reported to
            :meth:`AnswerCore.learn`.
    """

    entry: CachedAnswer[A]
    distance: float
    served: bool
    check: bool = False


class Held(NamedTuple, Generic[A]):
    """What a cache holds at one moment, see :meth:`AnswerCore.restore`.

    Attributes:
        answers: The answers with their ages and caps, least recently used first.
        learning: What each scope has learnt, as JSON can hold it; ``None`` for a fixed tolerance.
    """

    answers: list[tuple[Record[A], float, float]]
    learning: list[Any] | None


Counted = Literal[
    "lookups", "checks", "failed_checks", "insertions", "evictions", "expired", "unkept"
]


class AnswerCore(Generic[A]):
    """Keeps answers and decides which may be served. Thread-safe; no method blocks.

    An adapter retrieves the documents of a question first. It asks for an answer to the same words
    (:meth:`find`), then for one to near words (:meth:`nearest`), which needs the embedding, and
    otherwise answers the question, puts the answer in (:meth:`insert`) and reports what it learnt
    (:meth:`learn`)::

        core = AnswerCore[str](AnswerKnobs(tolerance=0.2))
        question = Question("what is faiss", frozenset({("12", "hash of its text")}))
        entry = core.find(question)
        if entry is None:
            core.insert(question, embedding, "a library for vector search")

    Args:
        knobs: The settings.
        clock: Returns seconds that never go back.

    Attributes:
        knobs: The settings.
    """

    def __init__(self, knobs: AnswerKnobs, clock: Callable[[], float] = time.monotonic) -> None:
        self.knobs = knobs
        self._clock = clock
        self._lock = make_lock()
        self._order: Memo[CachedAnswer[A], None] = Memo(knobs.capacity)
        # The entries of a key by their normalised words.
        self._groups: dict[Hashable, Group[A]] = {}
        self._forgettings = Forgettings()
        self._counts: Counter[str] = Counter()
        # By scope: tenant, other inputs, settings of the call. What one learns holds for no other.
        self._learnt: TenantTolerances | None = None
        if knobs.tolerance == "auto":
            self._learnt = TenantTolerances(
                partial(
                    AdaptiveTolerance,
                    max_violation=knobs.error,
                    confidence=knobs.confidence,
                    start=knobs.start_tolerance,
                    largest=knobs.largest_tolerance,
                    shadow_rate=knobs.check_rate,
                    seed=knobs.seed,
                )
            )

    @property
    def tolerance(self) -> float:
        """The largest distance at which an answer is served in any scope, now."""
        if self._learnt is not None:
            return self._learnt.widest
        assert self.knobs.tolerance != "auto"  # noqa: S101 - tolerances are learnt then
        return self.knobs.tolerance

    def _tolerance_of(self, question: Question) -> float:
        """Return the largest distance at which an answer is served to a question, now."""
        return self.tolerance if self._learnt is None else self._learnt.value(question.scope)

    @property
    def farthest(self) -> float:
        """The farthest distance at which anything is served or learnt; 0: embeddings are no use."""
        return self.tolerance if self._learnt is None else self._learnt.largest

    def find(self, question: Question, among: Group[A] | None = None) -> CachedAnswer[A] | None:
        """Return the answer to the same words; counts as a lookup.

        Args:
            question: The question.
            among: The answers of its key, where they are kept elsewhere.
        """
        words, key = self._keys(question)
        with self._lock:
            self._counts["lookups"] += 1
            entry = self._live(key, among).entries.get(words)
            if entry is not None:
                self._order.get(entry)  # reading counts as a use
                self._counts.update(hits=1, same_words=1)
        return entry

    def nearest(
        self, question: Question, embedding: Vector, among: Group[A] | None = None
    ) -> Near[A] | None:
        """Return the nearest entry, and whether it is to be served.

        Args:
            question: The question, for whose words :meth:`find` found nothing.
            embedding: Its embedding, of shape ``(dim,)``.
            among: As for :meth:`find`.

        Returns:
            ``None`` where there is no entry of its key, or the guard sees a difference in all that
            are near.
        """
        key = self.key_of(question)
        unit = unit_vector(embedding)
        with self._lock:
            near = self._live(key, among).nearest(unit, self._guard_of(question))
            if near is None:
                return None
            entry, distance = near
            served = distance <= min(self._tolerance_of(question), entry.cap)
            check = False
            if served:
                self._order.get(entry)  # reading counts as a use
                self._counts["hits"] += 1
                check = self._learnt is not None and self._learnt.wants_check(
                    question.scope, distance
                )
            return Near(entry, distance, served, check)

    def learn(self, near: Near[A], *, wrong: bool) -> None:
        """Report whether an entry's answer is, or would have been, wrong for a question near to it.

        Args:
            near: What :meth:`nearest` returned, served or not.
            wrong: Whether the chain gave another answer.
        """
        entry, distance = near.entry, near.distance
        with self._lock:
            self._counts["wrong"] += near.served and wrong
            if self._learnt is not None and (near.served or distance <= entry.cap):
                scope = entry.question.scope
                self._learnt.observe(scope, distance, wrong, served=near.served)
            if wrong:
                # Rephrasings of one near-duplicate scatter around its distance.
                entry.cap = min(entry.cap, distance / 2)

    @property
    def moment(self) -> int:
        """A number that grows whenever something is forgotten, see :meth:`insert`."""
        return self._forgettings.count

    def insert(
        self, question: Question, embedding: Vector | None, answer: A, moment: int | None = None
    ) -> bool:
        """Keep an answer, in the place of an earlier one to the same words.

        Args:
            question: What it was given to.
            embedding: The question's embedding, of shape ``(dim,)``; ``None`` where only the same
                words count.
            answer: The answer. It must not be changed afterwards.
            moment: What :attr:`moment` was before the question was answered. An answer that was
                to be forgotten meanwhile is not kept.

        Returns:
            Whether it is kept.
        """
        words, key = self._keys(question)
        unit = None if embedding is None else unit_vector(embedding)
        entry = CachedAnswer(question, answer, unit, self._clock(), key)
        with self._lock:
            if moment is not None and self._forgettings.concern(question, moment):
                return False
            self._counts["insertions"] += 1
            group = self._groups.setdefault(key, Group())
            before = group.remove(words)
            if before is not None:
                entry.cap = before.cap
                self._order.pop(before, None)
            group.add(words, entry)
            for other, _ in self._order.put(entry, None):
                self._counts["evictions"] += 1
                self._remove(other)
        return True

    def group(
        self,
        question: Question,
        answers: Iterable[tuple[Record[A], float, float]],
        moment: bytes = b"",
    ) -> Group[A]:
        """Return answers that are kept elsewhere, without those that are too old.

        Args:
            question: A question.
            answers: Answers of its key, with their ages in seconds and their caps.
            moment: See :class:`Group`.
        """
        key, now = self.key_of(question), self._clock()
        group = Group[A](moment)
        # Groups have the oldest first.
        for record, age, cap in sorted(answers, key=lambda answer: -answer[1]):
            embedding, since = record.embedding, now - age
            entry = CachedAnswer(record.question, record.answer, embedding, since, key, cap)
            if not self._is_old(entry):
                group.add(words_of(record.question), entry)
        return group

    def count(self, what: Counted, by: int = 1) -> None:
        """Count something that the owner did."""
        with self._lock:
            self._counts[what] += by

    def age(self, entry: CachedAnswer[A]) -> float:
        """Return the seconds since an answer was put in."""
        return self._clock() - entry.since

    def held(self, version: int) -> Held[A]:
        """Return what there is of a version of the settings, without what is too old."""
        with self._lock:
            answers = [
                (
                    Record(entry.question, entry.embedding, entry.answer),
                    max(self.age(entry), 0.0),
                    entry.cap,
                )
                for entry in self._order
                if entry.question.version == version and not self._is_old(entry)
            ]
            return Held(answers, encode_learning(self._learnt))

    def learning_settings(self) -> dict[str, Any]:
        """Return what must agree for a learnt tolerance to be used by another cache."""
        names = ("tolerance", "error", "confidence", "start_tolerance", "largest_tolerance")
        return {name: getattr(self.knobs, name) for name in (*names, "check_rate", "guard")}

    def restore(
        self, answers: Iterable[tuple[Record[A], float, float]], learning: list[Any] | None
    ) -> int:
        """Replace all answers; return how many there are.

        Args:
            answers: Answers with their ages in seconds and their caps, the least recently used
                first. What is too old is left out.
            learning: What was learnt for the same settings; ``None``: what has been learnt here is
                kept.

        Raises:
            ValueError: ``learning`` is something else. Nothing is changed then.
        """
        now, ttl = self._clock(), math.inf if self.knobs.ttl is None else self.knobs.ttl
        entries: dict[tuple[str, Hashable], CachedAnswer[A]] = {}
        for record, age, cap in answers:
            if age <= ttl:
                words, key = self._keys(record.question)
                entries.pop((words, key), None)  # the later one is in its place, as for insert
                entries[words, key] = CachedAnswer(
                    record.question, record.answer, record.embedding, now - age, key, cap
                )
        groups: dict[Hashable, Group[A]] = {}
        # Groups have the oldest first.
        for (words, key), entry in sorted(entries.items(), key=lambda item: item[1].since):
            groups.setdefault(key, Group()).add(words, entry)
        order: Memo[CachedAnswer[A], None] = Memo(self.knobs.capacity)
        for entry in entries.values():
            order.put(entry, None)
        learnt = decode_learning(learning, self._learnt) or self._learnt
        with self._lock:
            self._groups, self._order, self._learnt = groups, order, learnt
        return len(order)

    def clear(self) -> None:
        """Forget all answers. What has been learnt is kept."""
        with self._lock:
            self._order.clear()
            self._groups.clear()
            self._forgettings.add(lambda _: True)

    def forget(self, *, namespace: str | None = None, ids: Collection[str] | None = None) -> int:
        """Forget the answers for which everything given holds; return how many.

        Args:
            namespace: They are of this tenant, the first part of their scope.
            ids: They come from one of these documents.

        Raises:
            ConfigurationError: An argument is something else, such as a single text for ``ids``.
        """
        if not isinstance(namespace, str | None):
            raise ConfigurationError(f"namespace must be a string or None, got {namespace!r:.100}")
        if ids is not None and not _are_texts(ids):
            raise ConfigurationError(f"ids must be several strings, got {ids!r:.100}")
        held = None if ids is None else frozenset(ids)

        def matches(question: Question) -> bool:
            return (namespace is None or question.scope[0] == namespace) and (
                held is None or any(name in held for name, _ in question.documents)
            )

        with self._lock:
            self._forgettings.add(matches)
            chosen = [entry for entry in self._order if matches(entry.question)]
            for entry in chosen:
                del self._order[entry]
                self._remove(entry)
        return len(chosen)

    def explain(
        self, question: Question, embedding: Vector | None, among: Group[A] | None = None
    ) -> AnswerExplanation:
        """Explain why a question would be served an answer, or not. Nothing is counted."""
        words, key = self._keys(question)
        unit = None if embedding is None else unit_vector(embedding)
        tolerance = 0.0 if embedding is None else self._tolerance_of(question)
        explained = partial(AnswerExplanation, tolerance=tolerance)
        with self._lock:
            group = self._live(key, among)
            same = group.entries.get(words)
            if same is not None:
                reason = "the same words were answered from the same documents"
                return explained(hit=True, reason=reason, question=same.question.text, distance=0.0)
            near = group.nearest(unit, self._guard_of(question))
            if near is not None:
                entry, distance = near
                hit = distance <= min(tolerance, entry.cap)
                reason = _why_near(distance, tolerance, hit=hit)
                return explained(hit, reason, entry.question.text, distance)
            here = [
                entry
                for entry in self._order
                if entry.question.scope == question.scope
                and entry.question.version == question.version
                and not self._is_old(entry)
            ]
            near = nearest(here, unit)
        if near is None:
            reason = (
                "nothing embeds questions, and none in the same words was answered from these "
                "documents"
                if unit is None
                else "no question of this tenant, with these other inputs and settings, is near"
            )
            return explained(hit=False, reason=reason, question=None, distance=None)
        entry, distance = near
        reason = f"the nearest question is at distance {distance:.4g}"
        if entry.question.documents != question.documents:
            shared = len(entry.question.documents & question.documents)
            reason += f", but shares {shared} of its {len(question.documents)} documents"
        difference = question_difference(question.whole, entry.question.whole)
        if self.knobs.guard and difference is not None:
            reason += f", but differs in {difference}"
        return explained(hit=False, reason=reason, question=entry.question.text, distance=distance)

    def stats(self) -> AnswerStats:
        """Return what was done so far."""
        with self._lock:
            counts = {name: self._counts[name] for name in METRICS["answer_cache"]["counters"]}
            return AnswerStats(
                entries=len(self._order),
                capacity=self.knobs.capacity,
                **counts,
                tolerance=self.tolerance,
                learning=None if self._learnt is None else self._learnt.report(),
            )

    def key_of(self, question: Question) -> Hashable:
        """Return what must be equal for an answer to be shared: plain data."""
        marks: QuestionMarks = question_marks(question.whole) if self.knobs.guard else ()
        return question.scope, question.version, question.documents, marks

    def _guard_of(self, question: Question) -> Callable[[CachedAnswer[A]], bool] | None:
        """Return what says whether the guard lets an entry of the same key answer a question."""
        if not self.knobs.guard:
            return None
        return lambda entry: may_share(question.whole, entry.question.whole)

    def _keys(self, question: Question) -> tuple[str, Hashable]:
        """Return the normalised words, and the key."""
        return words_of(question), self.key_of(question)

    def _live(self, key: Hashable, among: Group[A] | None) -> Group[A]:
        """Return a key's group, or that which is kept elsewhere, without what is too old."""
        if among is not None:
            return among
        group: Group[A] = self._groups.get(key) or Group()
        if self.knobs.ttl is not None:
            for entry in list(itertools.takewhile(self._is_old, group.entries.values())):
                self._counts["expired"] += 1
                self._order.pop(entry, None)
                self._remove(entry)
        return group

    def _is_old(self, entry: CachedAnswer[A]) -> bool:
        return self.knobs.ttl is not None and self.age(entry) > self.knobs.ttl

    def _remove(self, entry: CachedAnswer[A]) -> None:
        group = self._groups[entry.key]
        words = words_of(entry.question)
        if group.entries.get(words) is entry:
            group.remove(words)
        if not group.entries:
            del self._groups[entry.key]


def _are_texts(values: object) -> bool:
    if isinstance(values, str | bytes) or not isinstance(values, Collection):
        return False
    return all(isinstance(value, str) for value in values)


def _why_near(distance: float, tolerance: float, *, hit: bool) -> str:
    """Say of the nearest entry of a key why it would be served, or not."""
    reason = f"the nearest question with the same documents is at distance {distance:.4g}"
    if hit:
        return f"{reason}, within the tolerance of {tolerance:.4g}"
    if distance > tolerance:
        return f"{reason}, beyond the tolerance of {tolerance:.4g}"
    return f"{reason}, but an answer of that entry at such a distance was wrong"
